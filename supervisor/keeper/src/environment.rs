//! `agentd-keeper dump-environment TO [LABEL]` is the last command of a login shell or a script. It writes the
//! resulting environment, and the other attributes that a child inherits.
//!
//! A record consists of header lines of text, a NUL, each `NAME=VALUE` with a NUL, and a final NUL. The echo of a
//! typed command has no NUL, so terminal output cannot be mistaken for a record.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{FromRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::attributes;
use crate::protocol::Attributes;

/// Label with which the command does not exit after its dump, so that the shell does not show its next prompt.
pub(crate) const STAY: &str = "stay";
/// Label of a dump that only reports that a line before the last one was executed.
pub(crate) const STEP: &str = "step";
/// First bytes of a record.
const MAGIC: &[u8] = b"agentd-environment 1 ";
/// Maximum time that a dump with the label [`STAY`] waits. The run ends it long before.
const LONGEST_STAY: Duration = Duration::from_mins(10);

/// Destination of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Descriptor(RawFd),
    File(PathBuf),
}

/// Writes this process's environment. Skips entries without `=`.
#[allow(unsafe_code, reason = "an inherited file descriptor is known only by its number")]
pub fn dump(target: &Target, label: &str) -> io::Result<()> {
    let record = record(label, &attributes::lines(), std::env::vars_os());
    match target {
        Target::Descriptor(fd) => {
            // SAFETY: the caller passed this number for writing, and no other code in this process uses it. If it is
            // not open, the write fails.
            let mut to = unsafe { File::from_raw_fd(*fd) };
            to.write_all(&record)?;
        }
        Target::File(path) => {
            let to = File::options().write(true).open(path)?;
            // The lock keeps two dumps apart, because a command typed twice runs twice. Writes longer than a
            // pipe's block can mix.
            let mut to = Flock::lock(to, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
            to.write_all(&record)?;
        }
    }
    if label == STAY {
        std::thread::sleep(LONGEST_STAY);
    }
    Ok(())
}

fn record(label: &str, attributes: &str, variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<u8> {
    let mut bytes = [MAGIC, label.as_bytes(), b"\n", attributes.as_bytes(), b"\0"].concat();
    for (name, value) in variables {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'=');
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    }
    bytes.push(0);
    bytes
}

/// Complete record of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) label: String,
    pub(crate) attributes: Attributes,
    /// Variables as `NAME=VALUE`, each with a NUL.
    pub(crate) variables: Vec<u8>,
    /// Position at which the next record begins.
    pub(crate) end: usize,
}

/// Reports whether the bytes are records and not output of another program.
pub(crate) fn are_records(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl Record {
    /// Parses the record at `from`. Returns `None` if the record is incomplete.
    pub(crate) fn read(bytes: &[u8], from: usize) -> Option<Self> {
        let rest = bytes.get(from..)?.strip_prefix(MAGIC)?;
        let header = memchr::memchr(0, rest)?;
        let text = String::from_utf8_lossy(&rest[..header]);
        let (label, attributes) = text.split_once('\n')?;
        let (begin, mut at) = (header + 1, header + 1);
        loop {
            match memchr::memchr(0, rest.get(at..)?)? {
                0 => break,
                length => at += length + 1,
            }
        }
        Some(Self {
            label: label.to_owned(),
            attributes: attributes::parse(attributes),
            variables: rest[begin..at].to_vec(),
            end: from + MAGIC.len() + at + 1,
        })
    }
}

/// Parsed records of a capture.
#[derive(Debug, Default)]
pub(crate) struct Dumps {
    /// Number of records with the label [`STEP`].
    pub(crate) steps: usize,
    /// Whether a record with the environment is complete.
    pub(crate) whole: bool,
    /// Whether the last command was executed.
    pub(crate) last: bool,
    pub(crate) record: Option<Record>,
}

impl Dumps {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let (mut dumps, mut at) = (Self::default(), 0);
        while let Some(record) = Record::read(bytes, at) {
            at = record.end;
            match record.label.as_str() {
                STEP => dumps.steps += 1,
                label => {
                    dumps.last |= label == STAY;
                    dumps.whole = true;
                    // A later record shows the changes that the rest of the line made.
                    dumps.record.get_or_insert(record);
                }
            }
        }
        dumps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt as _;

    proptest! {
        #[test]
        fn a_record_parses_back_and_no_prefix_of_it_parses(
            variables in proptest::collection::vec(
                ("[A-Za-z_%()]{1,8}", proptest::collection::vec(1_u8..=255, 0..40)),
                0..6,
            )
        ) {
            let pairs = variables.iter().map(|(name, value)| (name.clone().into(), OsString::from_vec(value.clone())));
            let bytes = record("x", "umask 22\n", pairs);
            let expected: Vec<u8> =
                variables.iter().flat_map(|(name, value)| [name.as_bytes(), b"=", value, b"\0"].concat()).collect();
            let read = Record::read(&[&bytes[..], b"more"].concat(), 0).unwrap();
            prop_assert_eq!((&read.variables, read.end, read.attributes.umask), (&expected, bytes.len(), 0o22));
            for end in 0..bytes.len() {
                prop_assert_eq!(Record::read(&bytes[..end], 0), None);
            }
        }
    }

    #[test]
    fn the_echo_of_a_terminal_is_not_a_record() {
        let echo = b" /tmp/x/agentd-keeper dump-environment /tmp/x/capture stay\r\n";
        assert!(!are_records(echo) && Record::read(echo, 0).is_none());
    }
}
