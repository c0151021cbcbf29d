//! Another machine over ssh.

use std::path::PathBuf;
use std::time::Duration;

use crate::{ENTER, EngineState, command, words};

/// Settings of a place over ssh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ssh {
    /// Host, or a name in the configuration of ssh.
    pub host: String,
    /// User on the host.
    pub user: Option<String>,
    /// TCP port.
    pub port: Option<u16>,
    /// Configuration file of ssh in place of the user's own.
    pub config: Option<PathBuf>,
    /// Further arguments of ssh.
    pub options: Vec<String>,
}

/// Program of the client.
pub(crate) const PROGRAM: &str = "ssh";
/// Number of unanswered questions of ssh after which the connection counts as lost.
const QUESTIONS: u64 = 3;

impl Ssh {
    /// Returns the host with its user.
    pub(crate) fn target(&self) -> String {
        self.user.as_ref().map_or_else(|| self.host.clone(), |user| format!("{user}@{}", self.host))
    }

    pub(crate) fn client(&self, keeper: &str, silence: Duration) -> Vec<String> {
        self.enter(keeper, silence, "")
    }

    /// Builds the client of a role of `agentd-keeper enter`. The words of the role contain no character of a shell.
    ///
    /// ssh uses the first value of each option. Options that keep the stdio intact come before those of the user, and
    /// all others behind them.
    pub(crate) fn enter(&self, keeper: &str, silence: Duration, role: &str) -> Vec<String> {
        let mut client = words([PROGRAM, "-T", "-o", "EscapeChar=none", "-o", "BatchMode=yes"]);
        // A RemoteCommand of the configuration would be refused beside the command of this line. A master of several
        // connections would end with the client that started it.
        client.extend(words(["-o", "RemoteCommand=none", "-o", "ControlMaster=no"]));
        client.extend(self.config.iter().flat_map(|file| ["-F".to_owned(), file.display().to_string()]));
        client.extend(self.user.iter().flat_map(|user| ["-l".to_owned(), user.clone()]));
        client.extend(self.port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
        client.extend(self.options.iter().cloned());
        let whole_seconds = silence.as_secs() + u64::from(silence.subsec_nanos() > 0);
        let interval = whole_seconds.div_ceil(QUESTIONS).max(1);
        let defaults = [
            format!("ServerAliveInterval={interval}"),
            format!("ServerAliveCountMax={QUESTIONS}"),
            format!("ConnectTimeout={}", whole_seconds.max(1)),
            "ForwardAgent=no".to_owned(),
            "ClearAllForwardings=yes".to_owned(),
        ];
        client.extend(defaults.into_iter().flat_map(|option| ["-o".to_owned(), option]));
        let command = format!("exec {} {ENTER} {role}", quoted(keeper)).trim_end().to_owned();
        client.extend(["--".to_owned(), self.host.clone(), command]);
        client
    }
}

/// Reports whether `quoted` protects the path of a program in every login shell. They differ in `!`, `\`,
/// `'` and line ends between single quotes.
pub fn is_safe_remotely(path: &str) -> bool {
    !path.chars().any(|c| c.is_control() || matches!(c, '\'' | '!' | '\\'))
}

/// Quotes the path of a program for the login shell of the host. `~/` at its start is the home directory there.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ',' | ':' | '@');
    match path.strip_prefix("~/") {
        Some(rest) if rest.chars().all(is_plain) => path.to_owned(),
        Some(rest) => format!("~/'{rest}'"),
        None if path.chars().all(is_plain) => path.to_owned(),
        None => format!("'{path}'"),
    }
}

/// Parses the output of `agentd-keeper enter list`. A login shell can print more lines.
pub(crate) fn parse_status(output: &str) -> Result<Vec<EngineState>, String> {
    let own = output.lines().filter(|line| line.trim_start().starts_with("agentd-"));
    command::parse_status(&own.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_client_has_no_terminal_and_asks_a_silent_server() {
        let ssh = Ssh { host: "farm".to_owned(), ..Ssh::default() };
        let expected = "ssh -T -o EscapeChar=none -o BatchMode=yes -o RemoteCommand=none -o ControlMaster=no \
                        -o ServerAliveInterval=10 -o ServerAliveCountMax=3 -o ConnectTimeout=30 -o ForwardAgent=no \
                        -o ClearAllForwardings=yes \
                        -- farm exec agentd-keeper enter";
        assert_eq!(ssh.client("agentd-keeper", SILENCE).join(" "), expected);
        let short = ssh.client("agentd-keeper", Duration::from_secs(1)).join(" ");
        assert!(short.contains("ServerAliveInterval=1 ") && short.contains("ConnectTimeout=1 "), "{short}");
    }

    #[test]
    fn options_of_the_user_come_before_the_defaults_and_behind_the_necessary_ones() {
        let ssh = Ssh {
            host: "farm".to_owned(),
            user: Some("kim".to_owned()),
            port: Some(2222),
            config: Some("/etc/farm ssh".into()),
            options: words(["-o", "ForwardAgent=yes", "-J", "jump"]),
        };
        let client = ssh.client("/opt/agentd-keeper", SILENCE);
        let expected = ["-F", "/etc/farm ssh", "-l", "kim", "-p", "2222", "-o", "ForwardAgent=yes", "-J", "jump", "-o"];
        assert_eq!(client[10..21], expected.map(str::to_owned));
        assert!(
            client.iter().position(|word| word == "ForwardAgent=yes")
                < client.iter().position(|w| w == "ForwardAgent=no")
        );
        assert_eq!(ssh.target(), "kim@farm");
    }

    #[test]
    fn the_path_of_the_keeper_is_one_word_for_every_shell() {
        for (path, expected) in [
            ("/opt/agentd-keeper", "/opt/agentd-keeper"),
            ("~/.local/bin/agentd-keeper", "~/.local/bin/agentd-keeper"),
            ("~/my tools/keeper", "~/'my tools/keeper'"),
            ("/a b/$HOME;x", "'/a b/$HOME;x'"),
        ] {
            assert_eq!(quoted(path), expected);
            assert!(is_safe_remotely(path));
        }
        for path in ["/a'b", "/a!b", "/a\\b", "/a\nb"] {
            assert!(!is_safe_remotely(path), "{path}");
        }
    }
}
