//! Reads the user's input line by line, and interprets a line as the answer to a question.

use std::io::{self, BufRead, IsTerminal};
use std::thread;

use agentd_api::session::{PermissionAnswer, PermissionRequest};
use nix::sys::termios::{FlushArg, tcflush};
use tokio::sync::mpsc;

use crate::form;

/// Standard input, line by line.
///
/// A separate thread reads it, because a read of a terminal cannot be cancelled. The thread is at most two
/// lines ahead, and the process does not wait for its end.
#[derive(Debug)]
pub(crate) struct Input {
    lines: mpsc::Receiver<io::Result<String>>,
    pub(crate) terminal: bool,
}

impl Input {
    pub(crate) fn open() -> io::Result<Self> {
        let (sender, lines) = mpsc::channel(1);
        thread::Builder::new().name("input".into()).spawn(move || {
            for line in io::stdin().lock().lines() {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { lines, terminal: io::stdin().is_terminal() })
    }

    /// Returns the next line, or `None` at the end. Cancel-safe.
    pub(crate) async fn line(&mut self) -> Option<io::Result<String>> {
        self.lines.recv().await
    }

    /// Discards earlier input: the user did not type it as the answer to the next question.
    pub(crate) fn forget_typed(&mut self) {
        if self.terminal {
            while self.lines.try_recv().is_ok() {}
            let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH); // a terminal that is gone has nothing to forget
        }
    }
}

/// Reads one line from a terminal, and nothing behind it: a later reader gets the rest. Earlier input is discarded.
pub(crate) async fn one_line() -> io::Result<String> {
    let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH); // a terminal that is gone has nothing to forget
    let read = || {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    };
    tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
}

/// Interprets a line as the answer to a question. Returns `None` if the line is not an answer. A form that is allowed
/// has yet to be filled in.
pub(crate) fn answer(line: &str, request: &PermissionRequest) -> Option<PermissionAnswer> {
    let line = line.trim().to_lowercase();
    match line.as_str() {
        "a" | "allow" | "y" | "yes" => return Some(PermissionAnswer::Allow),
        "d" | "deny" | "n" | "no" => return Some(PermissionAnswer::Deny),
        _ => {}
    }
    let number: usize = line.parse().ok()?;
    if form::choices(request).is_some() {
        return form::pick(request, number);
    }
    let option = request.options.get(number.checked_sub(1)?)?;
    Some(PermissionAnswer::Option(option.id.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_by_number_or_word_and_by_nothing_else() {
        let request: PermissionRequest = serde_json::from_value(serde_json::json!({
            "id": "p1", "title": "ls",
            "options": [
                { "id": "x", "name": "Yes", "kind": "allow_once" },
                { "id": "y", "name": "No", "kind": "reject_once" },
            ],
        }))
        .unwrap();
        for (line, expected) in [
            ("2\n", Some(PermissionAnswer::Option("y".into()))),
            (" Allow ", Some(PermissionAnswer::Allow)),
            ("n", Some(PermissionAnswer::Deny)),
            ("0", None),
            ("3", None),
            ("", None),
            ("fix the bug", None),
        ] {
            assert_eq!(answer(line, &request), expected, "{line:?}");
        }
    }
}
