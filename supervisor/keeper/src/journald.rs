//! Messages to journald: the start and end of the session's agent, and its stderr. Each entry has the field
//! `AGENTD_SESSION`, like the daemon's entries.
//!
//! The messages use journald's native protocol (`systemd.io/JOURNAL_NATIVE_PROTOCOL`) and not the unit's stderr. The
//! stderr of a user's unit cannot carry extra fields (`LogExtraFields=`, systemd 252). The session's journal is
//! authoritative. A message that journald does not take at once is lost.

use std::os::unix::net::UnixDatagram;

/// Path of journald's socket.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Source of a message, for the field `SYSLOG_IDENTIFIER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageSource {
    Keeper,
    /// The agent, or a process that inherited its stderr.
    Agent,
}

#[derive(Debug)]
pub(crate) struct Journald {
    socket: UnixDatagram,
    session: String,
}

impl Journald {
    /// Connects to journald. Returns `None` if there is no journald.
    pub(crate) fn connect(session: &str) -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        socket.connect(SOCKET).ok()?;
        Some(Self { socket, session: session.to_owned() })
    }

    /// Sends one entry. The text must already be masked.
    pub(crate) fn say(&self, who: MessageSource, message: &[u8]) {
        let _ = self.socket.send(&entry(&self.session, who, message));
    }
}

fn entry(session: &str, who: MessageSource, message: &[u8]) -> Vec<u8> {
    let identifier = match who {
        MessageSource::Keeper => "agentd-keeper",
        MessageSource::Agent => "agentd-agent",
    };
    let mut entry = Vec::with_capacity(message.len() + 128);
    // Priority 6 is informational (syslog(3)), because the severity of an agent's line is unknown.
    let fields = [
        ("PRIORITY", b"6".as_slice()),
        ("SYSLOG_IDENTIFIER", identifier.as_bytes()),
        ("AGENTD_SESSION", session.as_bytes()),
        ("MESSAGE", message),
    ];
    for (name, value) in fields {
        // The length prefix allows any bytes in the value.
        entry.extend_from_slice(name.as_bytes());
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
        entry.extend_from_slice(value);
        entry.push(b'\n');
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cannot_forge_a_field() {
        let entry = entry("kmdn", MessageSource::Agent, b"x\nAGENTD_SESSION=other\n\xff");
        let session = b"AGENTD_SESSION\n\x04\0\0\0\0\0\0\0kmdn\n";
        assert!(entry.windows(session.len()).any(|part| part == session));
        let message = b"MESSAGE\n\x18\0\0\0\0\0\0\0x\nAGENTD_SESSION=other\n\xff\n";
        assert!(entry.ends_with(message), "{:?}", String::from_utf8_lossy(&entry));
    }
}
