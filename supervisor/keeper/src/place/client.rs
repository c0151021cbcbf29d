//! The client of a place, as a process of the near side: its start, its end, and the texts that explain a failure.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Instant;

use agentd_api::ByteString;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::attributes::Inherited;
use crate::protocol::Variable;
use crate::spawn::{self, Program, Spawned};
use crate::wait::{self, Read};

/// Number of bytes of stderr, and of the output before the first frame, that a message may have.
const TAIL: usize = 2 << 10;
/// Maximum number of lines of stderr in a message.
const LINES: usize = 4;

/// Starts a command line in its own process session. A signal for the near side's group does not reach it.
pub(super) fn start(command: &[ByteString], environment: &[Variable], stdin: bool) -> io::Result<Spawned> {
    let [program, args @ ..] = command else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command line of the client is empty"));
    };
    spawn::spawn(&Program {
        path: program,
        arg0: None,
        args,
        environment,
        directory: &ByteString::from("/"),
        stdin,
        inherit: [None; 3],
        terminal: None,
        inherits: Inherited::default(),
        traced: false,
    })
}

/// Last bytes of an output.
#[derive(Debug, Default)]
pub(super) struct Tail(VecDeque<u8>);

impl Tail {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL)..];
        let over = (self.0.len() + bytes.len()).saturating_sub(TAIL);
        self.0.drain(..over);
        self.0.extend(bytes);
    }

    /// Reports whether a text is among the last bytes and those that follow.
    pub(super) fn has(&self, text: &str, following: &[u8]) -> bool {
        let bytes: Vec<u8> = self.0.iter().chain(following).copied().collect();
        memchr::memmem::find(&bytes, text.as_bytes()).is_some()
    }

    /// Returns the last lines as one line, without control characters.
    pub(super) fn words(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.chars().filter(|letter| !letter.is_control()).collect::<String>().trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect();
        lines[lines.len().saturating_sub(LINES)..].join("; ")
    }
}

/// Started process of the near side.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) exit: Option<ExitStatus>,
    /// Time at which the exit was noted.
    pub(super) exited_at: Option<Instant>,
    /// Last bytes of its stderr.
    pub(super) tail: Tail,
    /// Pipes whose bytes go to stderr.
    pub(super) passes: Vec<OwnedFd>,
}

impl Process {
    pub(super) fn new(pid: i32, passes: Vec<OwnedFd>) -> Self {
        Self { pid, exit: None, exited_at: None, tail: Tail::default(), passes }
    }

    /// Makes the state of a process that was not started.
    pub(super) fn none() -> Self {
        Self { exit: Some(ExitStatus::default()), ..Self::new(0, Vec::new()) }
    }

    /// Notes an exit, if it is that of this process.
    pub(super) fn note(&mut self, pid: i32, status: ExitStatus) {
        if pid == self.pid {
            (self.exit, self.exited_at) = (Some(status), Some(Instant::now()));
        }
    }

    /// Reads each pipe once, and returns the bytes.
    pub(super) fn read(&mut self) -> Vec<u8> {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4 << 10]);
        self.passes.retain(|pipe| match wait::read(pipe, &mut buffer) {
            Ok(Read::Some(n)) => {
                bytes.extend_from_slice(&buffer[..n]);
                true
            }
            Ok(Read::Nothing) => true,
            Ok(Read::End) | Err(_) => false,
        });
        self.tail.add(&bytes);
        bytes
    }

    /// Sends SIGTERM to the process group. The leader is not reaped yet, so its id is still in use by this group.
    pub(super) fn terminate(&self) {
        if self.exit.is_none() {
            let _ = killpg(Pid::from_raw(self.pid), Signal::SIGTERM);
        }
    }

    /// Kills the process group.
    pub(super) fn kill(&self) {
        if self.exit.is_none() {
            let _ = killpg(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }

    /// Describes the end of the process for people, with the last lines of its stderr.
    pub(super) fn describe(&self) -> String {
        let how = match self.exit.map(|exit| (exit.code(), exit.signal())) {
            Some((Some(code), _)) => format!("ended with status {code}"),
            Some((None, Some(signal))) => format!("was ended by signal {signal}"),
            Some((None, None)) => "ended with an unknown status".to_owned(),
            None => "closed the connection".to_owned(),
        };
        with_words(how, &self.tail.words())
    }
}

/// Adds the words of a program to a message.
pub(super) fn with_words(message: String, words: &str) -> String {
    if words.is_empty() { message } else { format!("{message}: {words}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_has_the_last_lines_without_control_characters() {
        let mut tail = Tail::default();
        assert_eq!(with_words("it ended".to_owned(), &tail.words()), "it ended");
        tail.add(&vec![b'x'; 5000]);
        tail.add(b"\nfirst\r\n\x1b[31msecond\x1b[0m\n\n  third \nfourth\nfifth");
        assert!(tail.has("third \nfourth", b"") && tail.has("fifth and", b" and") && !tail.has("sixth", b"six"));
        assert_eq!(with_words("it ended".to_owned(), &tail.words()), "it ended: [31msecond[0m; third; fourth; fifth");
        for n in 0..3000_u32 {
            tail.add(&[b'0' + (n % 10) as u8]);
        }
        assert_eq!(tail.words().len(), TAIL);
    }
}
