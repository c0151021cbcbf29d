//! What journald is told of a session: the beginning and the end of its agent, and what the agent prints to stderr, each entry with the field
//! `AGENTD_SESSION`, as the daemon's are.
//!
//! In journald's own protocol (`systemd.io/JOURNAL_NATIVE_PROTOCOL`), and not by the unit's stderr: what a user's unit says there gets no
//! fields of ours (`LogExtraFields=`, systemd 252). The session's journal is the truth; what journald does not take at once is not said again.

use std::os::unix::net::UnixDatagram;

/// Where journald listens.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Who says something, as in the field `SYSLOG_IDENTIFIER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Keeper,
    /// The agent, or whoever has its stderr.
    Agent,
}

#[derive(Debug)]
pub(crate) struct Journald {
    socket: UnixDatagram,
    session: String,
}

impl Journald {
    /// `None` where there is no journald.
    pub(crate) fn connect(session: &str) -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        socket.connect(SOCKET).ok()?;
        Some(Self { socket, session: session.to_owned() })
    }

    /// One entry of what may not have secrets in it any more.
    pub(crate) fn say(&self, who: Who, message: &[u8]) {
        let _ = self.socket.send(&entry(&self.session, who, message));
    }
}

fn entry(session: &str, who: Who, message: &[u8]) -> Vec<u8> {
    let identifier = match who {
        Who::Keeper => "agentd-keeper",
        Who::Agent => "agentd-agent",
    };
    let mut entry = Vec::with_capacity(message.len() + 128);
    // 6 is informational, syslog(3): how bad a line of an agent is, nobody knows.
    let fields = [
        ("PRIORITY", b"6".as_slice()),
        ("SYSLOG_IDENTIFIER", identifier.as_bytes()),
        ("AGENTD_SESSION", session.as_bytes()),
        ("MESSAGE", message),
    ];
    for (name, value) in fields {
        // With its length, so that a value may hold anything.
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
        let entry = entry("kmdn", Who::Agent, b"x\nAGENTD_SESSION=other\n\xff");
        let session = b"AGENTD_SESSION\n\x04\0\0\0\0\0\0\0kmdn\n";
        assert!(entry.windows(session.len()).any(|part| part == session));
        let message = b"MESSAGE\n\x18\0\0\0\0\0\0\0x\nAGENTD_SESSION=other\n\xff\n";
        assert!(entry.ends_with(message), "{:?}", String::from_utf8_lossy(&entry));
    }
}
