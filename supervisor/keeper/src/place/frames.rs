//! Kinds and contents of the frames on a line. The module `wire` has their form.

use agentd_api::event::PlaceHost;
use serde::{Deserialize, Serialize};

use crate::protocol::PlacedProgram;

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
    /// The program and its tree have ended: [`Exited`]. The last frame.
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
}

/// Each kind with its byte. No byte is the first one of [`MARKER`].
pub(super) const KINDS: [(u8, Kind); 16] = [
    (0x10, Kind::Hello),
    (0x11, Kind::Running),
    (0x12, Kind::Refused),
    (0x13, Kind::Exited),
    (0x14, Kind::Beat),
    (0x15, Kind::Begin),
    (0x16, Kind::Signal),
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
    pub(super) program: PlacedProgram,
    pub(super) silence_ms: u64,
    pub(super) grace_ms: u64,
    pub(super) close_ms: u64,
    pub(super) term_ms: u64,
}

/// Content of [`Kind::Running`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Running {
    pub(super) pid: u32,
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
