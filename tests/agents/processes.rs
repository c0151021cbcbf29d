//! Processes of the scripted agent: copies of itself that a test requests, and the file that lists them.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{pause, setsid};

/// Runs a descendant that is hard to find and to end: in its own process session, immune to SIGTERM, and holding the
/// agent's stdout and stderr.
pub(crate) fn stray(pidfile: &Path) {
    block_sigterm();
    setsid().expect("a fresh child leads no process group");
    note_pid(pidfile, "stray", std::process::id());
    loop {
        pause();
    }
}

/// Runs a shell command like real agents: in its own process session.
pub(crate) fn tool(command: &str) {
    setsid().expect("a fresh child leads no process group");
    let error = Command::new("/bin/sh").args(["-c", command]).exec();
    panic!("/bin/sh: {error}");
}

pub(crate) fn block_sigterm() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.thread_block().expect("SIGTERM can be blocked");
}

/// Writes one line in one write, so that concurrent processes do not mix their lines.
pub(crate) fn note_pid(pidfile: &Path, role: &str, pid: u32) {
    let mut file = OpenOptions::new().create(true).append(true).open(pidfile).expect("the pid file can be opened");
    file.write_all(format!("{role} {pid}\n").as_bytes()).expect("the pid file can be written");
}

pub(crate) fn myself() -> Command {
    Command::new(std::env::current_exe().expect("this program has a path"))
}

pub(crate) fn spawn_stray(pidfile: &Path) -> Child {
    myself().arg("stray").arg(pidfile).stdin(Stdio::null()).spawn().expect("a stray can be started")
}

/// Waits until the pid file has another stray, so that the reader finds the process running.
pub(crate) fn await_strays(pidfile: &Path, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::read_to_string(pidfile).unwrap_or_default().matches("stray ").count() < count {
        assert!(Instant::now() < deadline, "the stray did not start within 10 s");
        thread::sleep(Duration::from_millis(2));
    }
}
