//! Duration of a capture of the login shell's environment. The comparison is a bare shell at its own terminal, in which
//! the command that shows the environment is typed. The two take turns, so that a busy moment of the machine affects
//! both.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::pty::{Winsize, openpty};
use serde_json::Value;

use crate::client::Client;
use crate::daemon::Daemon;
use crate::table::{Table, median, ratio};

/// Number of runs of each side.
const TURNS: usize = 15;
const GOAL: f64 = 1.3;

/// Adds the row for a home to the table: `profile` is its start-up file.
pub(crate) fn measure(table: &mut Table, daemon: &Daemon, client: &mut Client, what: &str) -> Result<()> {
    let home = daemon.root().join("home");
    let profile = fs::read(home.join(".profile"))?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        // The daemon captures again only if the start-up file has changed.
        fs::write(home.join(".profile"), [&profile, format!("\n# {turn}\n").as_bytes()].concat())?;
        ours.push(capture(daemon, client)?);
        bare.push(typed(&home, &daemon.root().join("captured"))?);
    }
    fs::write(home.join(".profile"), profile)?;
    let (ours, bare) = (median(ours), median(bare));
    table.times(format!("capture of {what}, against bash at a terminal"), ours, bare);
    table.goal(format!("<= {GOAL}"), ratio(ours, bare) <= GOAL);
    Ok(())
}

/// Returns the daemon's own figure for the duration of the shell.
fn capture(daemon: &Daemon, client: &mut Client) -> Result<Duration> {
    let id = daemon.session(client)?;
    let view: Value = client.get("/v1/snapshots")?;
    client.delete(&format!("/v1/sessions/{id}?force=true"))?;
    let took = view["login_shells"][0]["last_duration_ms"].as_u64();
    Ok(Duration::from_millis(took.context("the snapshot has no last_duration_ms")?))
}

/// Returns the time from the start of an interactive login shell to the end of the command that was typed there.
fn typed(home: &Path, file: &Path) -> Result<Duration> {
    let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None)?;
    let (mut keyboard, screen) = (File::from(pty.master), File::from(pty.slave));
    let mut shown = keyboard.try_clone()?;
    let begun = Instant::now();
    let mut shell = Command::new("setsid");
    shell.args(["--ctty", "bash", "-l"]).env_clear().env("HOME", home).env("TERM", "xterm-256color");
    shell.env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(home);
    let mut child = shell.stdin(screen.try_clone()?).stdout(screen.try_clone()?).stderr(screen).spawn()?;
    drop(shell);
    let reader = thread::spawn(move || {
        let mut block = [0; 4096];
        // The end of the last program at a terminal is an error for its reader (EIO).
        while let Ok(1..) = shown.read(&mut block) {}
    });
    writeln!(keyboard, "/bin/cp /proc/self/environ {}; exit", file.display())?;
    child.wait()?;
    let took = begun.elapsed();
    reader.join().ok().context("the reader of the terminal panicked")?;
    ensure!(file.metadata()?.len() > 0, "the shell at the terminal showed no environment");
    fs::remove_file(file)?;
    Ok(took)
}
