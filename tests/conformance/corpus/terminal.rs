//! The terminal's side: an interactive login at its own terminal. The command is typed when the shell waits for input.
//!
//! The capture uses no code of agentd, so that it is independent.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};

use super::case::Case;
use super::compare::Side;
use crate::conformance::{Environment, Shell};
use crate::harness::Daemon;

/// Time without output after which a shell without a child process counts as waiting for input.
const QUIET: Duration = Duration::from_millis(150);
/// Time without output after which a shell with a child process counts as waiting for input.
const SILENT: Duration = Duration::from_secs(2);
/// Time after which input without an effect is typed again, because a program that asked a question has read it.
const AGAIN: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_mins(1);
/// Files of `/proc/PID` that are copied.
const FILES: [&str; 4] = ["environ", "status", "limits", "stat"];

/// Logs in, types the keys of the case and the command that shows the environment, and returns the terminal's side.
pub(super) async fn capture(case: &Case, shell: Shell, program: &Path, daemon: &Daemon) -> Result<Side, String> {
    let (begun, done) = (daemon.root().join("b"), daemon.root().join("d"));
    fs::create_dir(&begun).expect("the daemon's directory is new");
    let mut terminal = Terminal::log_in(shell, program, &daemon.home());
    let at = Instant::now();
    for keys in &case.types {
        terminal.waits(at).await?;
        terminal.press(keys);
    }
    if case.has_directory() {
        terminal.waits(at).await?;
        terminal.press(&format!("cd '{}'\r", daemon.work().display()));
    }
    // `/proc/self` is the process of the command that reads it. The command moves the last file after all files are
    // complete.
    let files: Vec<String> = FILES.iter().map(|file| format!("/proc/self/{file}")).collect();
    let (files, begins) = (files.join(" "), begun.display());
    let line = format!(" /bin/cp {files} '{begins}'; /bin/mv '{begins}/stat' '{}'\r", done.display());
    while !done.exists() {
        terminal.waits(at).await?;
        terminal.press(&line);
        let typed = Instant::now();
        while !done.exists() && typed.elapsed() < AGAIN {
            pause().await;
        }
    }
    fs::rename(&done, begun.join("stat")).map_err(|error| error.to_string())?;
    let environ = fs::read(begun.join("environ")).map_err(|error| error.to_string())?;
    Ok(Side::of_process(parse(&environ), &begun))
}

/// The entries of an environment; one whose name is not UTF-8 is left out.
fn parse(environ: &[u8]) -> Environment {
    let entries = environ.split(|&byte| byte == 0).filter_map(|entry| {
        let equals = entry.iter().position(|&byte| byte == b'=')?;
        Some((String::from_utf8(entry[..equals].to_vec()).ok()?, entry[equals + 1..].to_vec()))
    });
    entries.collect()
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// A login shell at a terminal. The terminal hangs up when this value is dropped.
struct Terminal {
    child: Child,
    keyboard: File,
    seen: Arc<Mutex<Seen>>,
}

struct Seen {
    text: Vec<u8>,
    last: Instant,
}

impl Terminal {
    /// Logs in as login(1) does, with the variables of every login, the user's own variables, and a program name that
    /// begins with `-`.
    fn log_in(shell: Shell, program: &Path, home: &Path) -> Self {
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("the machine has terminals");
        let screen = File::from(pty.slave);
        let copy = || screen.try_clone().expect("a descriptor can be copied");
        let mut login = Command::new("setsid");
        login.args(["--ctty", "perl", "-e", "my ($file, $name) = @ARGV; exec { $file } $name or die $!"]);
        login.arg(program).arg(format!("-{}", shell.name)).env_clear().current_dir(home);
        login.envs(of_every_login(home, program)).env("TERM", "xterm-256color");
        let child = login.stdin(copy()).stdout(copy()).stderr(copy()).spawn().expect("util-linux has setsid");
        drop(screen);
        let keyboard = File::from(pty.master);
        let seen = Arc::new(Mutex::new(Seen { text: Vec::new(), last: Instant::now() }));
        watch(&keyboard, Arc::clone(&seen));
        Self { child, keyboard, seen }
    }

    /// Waits until the shell seems to wait for input.
    async fn waits(&mut self, at: Instant) -> Result<(), String> {
        loop {
            let (quiet, any) = {
                let seen = self.seen.lock().expect("no panic");
                (seen.last.elapsed(), !seen.text.is_empty())
            };
            let ended = self.child.try_wait().expect("it can be waited for");
            if let Some(status) = ended.filter(|_| quiet > QUIET) {
                return Err(format!("the shell ended: {status}; {}", self.shown()));
            }
            if at.elapsed() > LIMIT {
                return Err(format!("no answer in {} s; {}", LIMIT.as_secs(), self.shown()));
            }
            if quiet >= SILENT || (any && quiet >= QUIET && !self.has_children()) {
                return Ok(());
            }
            pause().await;
        }
    }

    fn has_children(&self) -> bool {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.map_or(true, |children| !children.trim().is_empty())
    }

    fn press(&mut self, keys: &str) {
        // A shell that has just ended is found out by the next wait.
        let _ = self.keyboard.write_all(keys.as_bytes());
        self.seen.lock().expect("no panic").last = Instant::now();
    }

    fn shown(&self) -> String {
        let seen = self.seen.lock().expect("no panic");
        let end = &seen.text[seen.text.len().saturating_sub(800)..];
        format!("the terminal shows {:?}", String::from_utf8_lossy(end))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Reads the terminal's output, and answers questions of programs about the terminal: its kind and cursor position.
fn watch(terminal: &File, seen: Arc<Mutex<Seen>>) {
    const QUESTIONS: [(&[u8], &[u8]); 3] =
        [(b"\x1b[6n", b"\x1b[1;1R"), (b"\x1b[c", b"\x1b[?62;22c"), (b"\x1b[0c", b"\x1b[?62;22c")];
    let mut reader = terminal.try_clone().expect("a descriptor can be copied");
    std::thread::spawn(move || {
        let mut block = [0; 16 << 10];
        // The end of the last program at a terminal is an error for its reader (EIO).
        while let Ok(length @ 1..) = reader.read(&mut block) {
            for (question, answer) in QUESTIONS {
                let asked = block[..length].windows(question.len()).filter(|part| *part == question).count();
                let _ = reader.write_all(&answer.repeat(asked));
            }
            let mut seen = seen.lock().expect("no panic");
            seen.text.extend_from_slice(&block[..length]);
            seen.last = Instant::now();
        }
    });
}

/// Returns the variables of `pam_env(8)` and login(1): those of the files that logins of Debian and Fedora read, and
/// those of the user.
fn of_every_login(home: &Path, shell: &Path) -> Vec<(String, String)> {
    let uid = nix::unistd::geteuid();
    let name = nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    // login.defs(5)
    let wanted = if uid.is_root() { "ENV_SUPATH" } else { "ENV_PATH" };
    let defs = fs::read_to_string("/etc/login.defs").unwrap_or_default();
    let path = defs
        .lines()
        .find_map(|line| line.strip_prefix(wanted)?.trim().strip_prefix("PATH="))
        .unwrap_or("/usr/bin:/bin");
    let mut all = vec![("PATH".to_owned(), path.to_owned())];
    for file in ["/etc/environment", "/etc/default/locale", "/etc/locale.conf"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.strip_prefix("export ").unwrap_or(line).split_once('='));
        all.extend(pairs.map(|(name, value)| (name.to_owned(), value.trim_matches(['"', '\'']).to_owned())));
    }
    let own = |name: &str, value: String| (name.to_owned(), value);
    all.extend([own("HOME", home.display().to_string()), own("SHELL", shell.display().to_string())]);
    all.extend([own("USER", name.clone()), own("LOGNAME", name)]);
    let runtime = PathBuf::from(format!("/run/user/{uid}"));
    if runtime.is_dir() {
        all.push(own("XDG_RUNTIME_DIR", runtime.display().to_string()));
    }
    all
}
