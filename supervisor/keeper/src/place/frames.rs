//! Kinds and contents of the frames on a line. The module `wire` has their form.

use agentd_api::event::PlaceHost;
use serde::{Deserialize, Serialize};

use crate::protocol::{Masks, PlacedProgram, StreamCursor};

/// First bytes of the far side. The control character keeps an echo of a command line from being taken for it.
pub(super) const MARKER: &[u8] = b"\x01agentd-enter 1\n";
/// Part of the marker that is left if a terminal or a filter changes it.
pub(super) const WORD: &str = "agentd-enter";
/// Version of this format.
pub(super) const PROTOCOL: u32 = 1;
/// Maximum number of bytes of a stream that were sent and that the receiver has not passed on yet.
pub(super) const WINDOW: usize = 1 << 20;

/// Stream of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    In,
    Out,
    Err,
}

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// First frame of the far side: [`Hello`].
    Hello,
    /// The program runs: [`Running`].
    Running,
    /// The program was not started: [`Refused`]. The last frame.
    Refused,
    /// The program and its tree have ended: [`Exited`]. The last frame of the far side.
    Exited,
    /// Shows that the sender is alive. Has no content.
    Beat,
    /// The program to start: [`Begin`]. First frame of the near side.
    Begin,
    /// Signal for the program's process group: its number (u32, little endian).
    Signal,
    /// Bytes of a stream.
    Data(Stream),
    /// End of a stream.
    End(Stream),
    /// Number of bytes of a stream that were passed on (u32, little endian).
    Taken(Stream),
    /// The journal has all bytes of stdout and stderr before these numbers (two u64, little endian).
    Kept,
    /// Number of complete lines of stdin that the far side has received (u64, little endian).
    Lines,
    /// More values to mask in the output, for the far side to keep: [`Masks`].
    Masks,
    /// The end of the program was passed on. Last frame of the near side.
    Over,
    /// The output of the program cannot be stored, so the program waits: the reason in UTF-8. Empty if it can be again.
    Stalled,
}

/// Each kind with its byte. No byte is the first one of [`MARKER`].
pub(super) const KINDS: [(u8, Kind); 21] = [
    (0x10, Kind::Hello),
    (0x11, Kind::Running),
    (0x12, Kind::Refused),
    (0x13, Kind::Exited),
    (0x14, Kind::Beat),
    (0x15, Kind::Begin),
    (0x16, Kind::Signal),
    (0x17, Kind::Kept),
    (0x18, Kind::Lines),
    (0x19, Kind::Masks),
    (0x1a, Kind::Over),
    (0x1b, Kind::Stalled),
    (0x20, Kind::Data(Stream::In)),
    (0x21, Kind::Data(Stream::Out)),
    (0x22, Kind::Data(Stream::Err)),
    (0x30, Kind::End(Stream::In)),
    (0x31, Kind::End(Stream::Out)),
    (0x32, Kind::End(Stream::Err)),
    (0x40, Kind::Taken(Stream::In)),
    (0x41, Kind::Taken(Stream::Out)),
    (0x42, Kind::Taken(Stream::Err)),
];

impl Kind {
    pub(super) fn of(byte: u8) -> Option<Self> {
        KINDS.iter().find(|(known, _)| *known == byte).map(|(_, kind)| *kind)
    }

    pub(super) fn byte(self) -> u8 {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or(0, |(byte, _)| *byte)
    }
}

/// Content of [`Kind::Hello`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    /// Version of `agentd-keeper`.
    pub(super) version: String,
    /// Facts about the place. Another version may have other fields.
    #[serde(default)]
    pub(super) host: serde_json::Value,
}

impl Hello {
    /// Returns the facts about the place.
    pub(super) fn host(&self) -> PlaceHost {
        serde_json::from_value(self.host.clone()).unwrap_or_default()
    }
}

/// Content of [`Kind::Begin`]. The times are those of [`crate::protocol::PlaceLine`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begin {
    /// Absent if the program is known to run.
    pub(super) program: Option<PlacedProgram>,
    pub(super) silence_ms: u64,
    pub(super) grace_ms: u64,
    pub(super) close_ms: u64,
    pub(super) term_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resident: Option<BeginResident>,
    /// SHA-256 of the `agentd-keeper` that may start the program. Absent: that of each one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<String>,
}

/// Part of [`Begin`] for a program that stays on its place.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BeginResident {
    /// Position of the near side in the streams.
    pub(super) resume: StreamCursor,
    /// Number of bytes of each stream that wait at the near side.
    pub(super) waiting: StreamCursor,
    /// Position of the journal.
    pub(super) kept: StreamCursor,
    /// Texts to keep, with a program.
    pub(super) masks: Masks,
    pub(super) alone_ms: u64,
    pub(super) linger_ms: u64,
}

/// Content of [`Kind::Running`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Running {
    pub(super) pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resident: Option<RunningResident>,
}

/// Part of [`Running`] for a program that stays on its place.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct RunningResident {
    /// Number of complete lines of stdin that were received.
    pub(super) lines: u64,
    /// Number of bytes of stdin that wait for the program.
    pub(super) waiting: u64,
    pub(super) masks: Masks,
}

/// Content of [`Kind::Refused`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Refused {
    /// Code of [`crate::protocol::PlaceReport::Refused`].
    pub(super) code: String,
    pub(super) message: String,
}

/// Content of [`Kind::Exited`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exited {
    pub(super) status: Option<i32>,
    pub(super) signal: Option<i32>,
    /// Number of other processes that were killed.
    pub(super) killed: u32,
    /// Whether output was dropped because the line was lost.
    pub(super) cut: bool,
}
