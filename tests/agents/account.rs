//! Writes the scripted agent's account of its life, for tests that kill the agent. Each event is one line `WORD
//! JSON-STRING`.
//!
//! The first line is `began`, or `overlapped` while another agent holds the same account; its text is the agent's
//! `stat` line (proc(5)). The lines `asked`, `said` and `answered` follow. The last two are noted after the message
//! was written to stdout. A killed agent therefore never claims more than it wrote.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

/// The account's file, locked while this agent lives. The kernel releases the lock however the agent ends.
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

    /// Appends a line, in one write.
    pub(crate) fn note(&self, word: &str, text: &str) {
        let line = format!("{word} {}\n", json!(text));
        (&self.file).write_all(line.as_bytes()).expect("the account can be written");
    }
}
