//! Another machine over ssh.

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::place::KEEPER_WANTED;

use crate::{ClientError, ENTER, EngineState, KeeperCopy, command, words};

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
    /// Static agentd-keeper on this machine that is sent to a host without it.
    pub keeper_file: Option<PathBuf>,
}

/// Directory of the sent keepers on the host, one for each content.
const KEEPERS: &str = "${XDG_CACHE_HOME:-$HOME/.cache}/agentd/keepers";
/// A script of sh(1) that runs the keeper with this content, of this size, in a role. The first two arguments are the
/// SHA-256 and the size; the role follows. A host without this keeper asks for it, and stores it once it has checked it
/// ([`KEEPER_WANTED`]). The last three remain.
///
/// The program head(1) may read more bytes than it prints, so the sender sends nothing else before the keeper answers.
const START: &str = "s=\"KEEPERS\"; d=\"$s/$1\"; k=\"$d/agentd-keeper\"; \
    if [ -x \"$k\" ]; then :; else t=\"$d/new.$$\"; \
    (umask 077; mkdir -p \"$d\" && echo \"WANTED $1\" && head -c \"$2\" > \"$t\" && chmod 700 \"$t\" && \
    [ \"$(\"$t\" enter digest)\" = \"$1\" ] && mv -f \"$t\" \"$k\") || \
    { rm -f \"$t\"; echo \"agentd-keeper cannot be stored in $d\" >&2; exit 126; }; \
    ls -dt \"$s\"/*/ | tail -n +4 | while read -r o; do rm -rf \"$o\"; done; fi; \
    shift 2; exec \"$k\" enter \"$@\"";
/// A script of sh(1) that runs the newest sent keeper in a role. A host without one has started nothing, unless the
/// keepers were deleted: agents that stay have directories.
const NEWEST: &str = "k=$(ls -t \"KEEPERS\"/*/agentd-keeper 2> /dev/null | head -n 1); \
    if [ -n \"$k\" ]; then exec \"$k\" enter \"$@\"; fi; \
    if ls -d \"${XDG_STATE_HOME:-$HOME/.local/state}\"/agentd/places/*/ > /dev/null 2>&1; then \
    echo \"an agent may run here, and agentd-keeper was deleted from KEEPERS\" >&2; exit 1; fi";

/// Program of the client.
pub(crate) const PROGRAM: &str = "ssh";
/// Number of unanswered questions of ssh after which the connection counts as lost.
const QUESTIONS: u64 = 3;

impl Ssh {
    /// Returns the host with its user.
    pub(crate) fn target(&self) -> String {
        self.user.as_ref().map_or_else(|| self.host.clone(), |user| format!("{user}@{}", self.host))
    }

    /// Builds the client of a role of `agentd-keeper enter` that starts a program. The words of the role contain no
    /// character of a shell. `copy` is the content of [`Self::keeper_file`].
    pub(crate) fn start(
        &self,
        keeper: &str,
        silence: Duration,
        copy: Option<&KeeperCopy>,
        role: &str,
    ) -> Result<Vec<String>, ClientError> {
        let Some(file) = &self.keeper_file else { return Ok(self.enter(keeper, silence, role)) };
        let KeeperCopy { sha256, bytes } = copy.ok_or_else(|| ClientError::NoKeeper(file.clone()))?;
        Ok(self.remote(silence, &script(START, &format!("{sha256} {bytes} {role}"))))
    }

    /// Builds the client of another role.
    pub(crate) fn enter(&self, keeper: &str, silence: Duration, role: &str) -> Vec<String> {
        let command = match &self.keeper_file {
            Some(_) => script(NEWEST, role),
            None => format!("exec {} {ENTER} {role}", quoted(keeper)),
        };
        self.remote(silence, &command)
    }

    /// Builds the client of a command for the login shell of the host.
    ///
    /// ssh uses the first value of each option. Options that keep the stdio intact come before those of the user, and
    /// all others behind them.
    fn remote(&self, silence: Duration, command: &str) -> Vec<String> {
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
        client.extend(["--".to_owned(), self.host.clone(), command.trim_end().to_owned()]);
        client
    }
}

/// Returns the command line of a script with arguments. The script contains no character that shells treat in different
/// ways between single quotes.
fn script(script: &str, arguments: &str) -> String {
    let script = script.replace("KEEPERS", KEEPERS).replace("WANTED", KEEPER_WANTED);
    format!("exec /bin/sh -c '{script}' agentd-keeper {arguments}")
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

    fn client(ssh: &Ssh, keeper: &str, silence: Duration) -> Vec<String> {
        ssh.start(keeper, silence, None, "").expect("the place sends no keeper")
    }

    #[test]
    fn a_client_has_no_terminal_and_asks_a_silent_server() {
        let ssh = Ssh { host: "farm".to_owned(), ..Ssh::default() };
        let expected = "ssh -T -o EscapeChar=none -o BatchMode=yes -o RemoteCommand=none -o ControlMaster=no \
                        -o ServerAliveInterval=10 -o ServerAliveCountMax=3 -o ConnectTimeout=30 -o ForwardAgent=no \
                        -o ClearAllForwardings=yes \
                        -- farm exec agentd-keeper enter";
        assert_eq!(client(&ssh, "agentd-keeper", SILENCE).join(" "), expected);
        let short = client(&ssh, "agentd-keeper", Duration::from_secs(1)).join(" ");
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
            keeper_file: None,
        };
        let client = client(&ssh, "/opt/agentd-keeper", SILENCE);
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

    #[test]
    fn a_sent_keeper_is_named_by_its_content() {
        let ssh = Ssh { host: "farm".to_owned(), keeper_file: Some("/opt/keeper".into()), ..Ssh::default() };
        let missing = ssh.start("agentd-keeper", SILENCE, None, "");
        assert_eq!(missing, Err(ClientError::NoKeeper("/opt/keeper".into())));
        let copy = KeeperCopy { sha256: "5a".repeat(32), bytes: 4096 };
        let start =
            ssh.start("agentd-keeper", SILENCE, Some(&copy), "attach agentd-k1-3 start").unwrap().pop().unwrap();
        let end = format!("' agentd-keeper {} 4096 attach agentd-k1-3 start", copy.sha256);
        assert!(start.starts_with("exec /bin/sh -c 's=") && start.ends_with(&end), "{start}");
        let list = ssh.enter("agentd-keeper", SILENCE, "list").pop().unwrap();
        assert!(list.ends_with("' agentd-keeper list"), "{list}");
        for command in [start, list] {
            let script = command.split('\'').nth(1).unwrap();
            assert!(is_safe_remotely(script) && !script.contains("KEEPERS") && !script.contains("WANTED "), "{script}");
        }
    }
}
