//! The reasons why a daemon can launch no session, as `GET /readyz` answers them.

use crate::doc::Named;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident = $code:literal, $hint:literal;)*) => {
        /// A reason why no session can be launched.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum NotReady {
            $($(#[doc = $doc])+ $reason,)*
        }

        impl NotReady {
            /// All reasons, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$reason),*];
            /// All codes, in the same order.
            pub const CODES: &'static [&'static str] = &[$($code),*];
            /// All codes with their meanings.
            pub const NAMES: &'static [Named] = &[$(Named { name: $code, doc: &[$($doc,)+] },)*];

            /// Returns the stable code.
            pub fn code(self) -> &'static str {
                match self { $(Self::$reason => $code,)* }
            }

            /// Returns the remedy.
            pub fn hint(self) -> &'static str {
                match self { $(Self::$reason => $hint,)* }
            }
        }
    };
}

reasons! {
    /// The daemon is ending.
    Stopping = "stopping", "try again when the next daemon answers; `agentctl doctor` starts one if none runs";
    /// The daemon reads the sessions from the disk.
    Starting = "starting", "try again in a moment";
    /// The daemon is drained: sessions are stopped, and none is launched.
    Draining = "draining", "undo the drain with `agentctl drain --undo`";
    /// The configuration cannot be read or has mistakes that forbid launches.
    ConfigurationInvalid = "configuration-invalid",
        "correct the places that `agentctl config check` lists, then run `agentctl reload`";
    /// Less than 16 MiB are free on the file system of the state directory.
    DiskLow = "disk-low",
        "free space on the file system of the state directory; `agentctl prune` removes ended sessions";
    /// The file system of the state directory does not answer, or reports an error.
    DiskUnresponsive = "disk-unresponsive",
        "check the disk or the file server of the state directory; `agentctl version` shows the directory";
    /// A journal cannot be written, or the state directory is read-only.
    JournalNotWritable = "journal-not-writable",
        "the condition JournalWritable of the sessions has the error; `agentctl ls` shows the sessions";
    /// A session's driver has been in one step for half of the watchdog's time.
    DriverStuck = "driver-stuck",
        "the log names the session; restart agentd if no watchdog does; no session is interrupted";
    /// The service manager that runs the sessions does not answer.
    ManagerUnresponsive = "manager-unresponsive",
        "check `systemctl --user status`; `loginctl enable-linger` keeps the user's manager running";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_in_the_order_of_the_reasons() {
        assert_eq!(NotReady::CODES[NotReady::DiskLow as usize], NotReady::DiskLow.code());
        assert!(NotReady::ManagerUnresponsive.hint().contains("systemctl"));
        assert_eq!(NotReady::NAMES.len(), NotReady::CODES.len());
    }
}
