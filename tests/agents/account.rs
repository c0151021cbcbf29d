//! The scripted agent's own account of its life, for tests that kill it: one line `WORD JSON-STRING` for each thing that happened.
//!
//! `began` comes first, or `overlapped` while another agent holds the same account; the text is the agent's `stat` line (proc(5)). `asked`,
//! `said` and `answered` follow. The last two are noted after the line was written to stdout, so that a killed agent never claims more than
//! it wrote.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

/// The account's file, which this agent holds while it lives: the kernel gives the lock back however the agent ends.
pub(crate) struct Account {
    file: File,
    _held: Option<Flock<File>>,
}

impl Account {
    pub(crate) fn open(path: &Path) -> Self {
        let open = || OpenOptions::new().create(true).append(true).open(path).expect("the account can be opened");
        let held = Flock::lock(open(), FlockArg::LockExclusiveNonblock).ok();
        let word = if held.is_some() { "began" } else { "overlapped" };
        let account = Self { file: open(), _held: held };
        account.note(word, &std::fs::read_to_string("/proc/self/stat").expect("/proc is mounted"));
        account
    }

    /// Adds a line, in one write.
    pub(crate) fn note(&self, word: &str, text: &str) {
        let line = format!("{word} {}\n", json!(text));
        (&self.file).write_all(line.as_bytes()).expect("the account can be written");
    }
}
