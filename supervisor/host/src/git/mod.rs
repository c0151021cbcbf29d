//! Changes git repositories by `git` itself: clones, resets, worktrees and removals.
//!
//! Each step is one POSIX shell script under `agentd-keeper run`. So a file system or a server that does not answer is
//! left at the deadline. The keeper kills the script with all its descendants when this daemon ends.
//!
//! A step makes a repository under a temporary name and then renames it. So the final path never has half a repository,
//! and every step can be repeated after a kill.
//!
//! Commands that contact a remote run with the environment of the user's terminal, without any prompt. They never read
//! the configuration of a repository that is there already, which may not be trusted. Commands in such a repository run
//! with the system's environment, without hooks and file monitors, and contact no remote.

mod local;
mod place;
mod remote;
mod worktree;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use agentd_api::ByteString;
use agentd_api::reason;
use agentd_keeper::protocol::{RunOutcome, RunRequest, Variable};

pub use local::{RepositoryWork, Reset, ResetOutcome};
pub use place::{Found, Located};
pub use remote::{Credential, Remote, taken};
pub use worktree::Worktree;

use crate::capability::{Machine, PROGRAM_DIRECTORIES};
use crate::{repository, runner};

/// Maximum size of the output of one step, in bytes.
const MAX_OUTPUT: u64 = 1 << 16;
/// Maximum number of characters of git's own words in a message.
const MAX_WORDS: usize = 600;
/// Time of a keeper for its report after the deadline.
const KEEPER_TIME: Duration = Duration::from_secs(3);

/// Variables that bind a command to another repository, or that let git write or run something else (git(1),
/// "ENVIRONMENT VARIABLES").
const WITHHELD: [&str; 22] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_TRACE",
    "GIT_TRACE_CURL",
    "GIT_CURL_VERBOSE",
    "GIT_REDIRECT_STDIN",
    "GIT_REDIRECT_STDOUT",
    "GIT_REDIRECT_STDERR",
    "SSH_ASKPASS",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "GIT_QUARANTINE_PATH",
    "GIT_ATTR_SOURCE",
    "GIT_CONFIG_COUNT",
];

/// Runner of git for the repositories of one session.
#[derive(Debug, Clone, Copy)]
pub struct Git<'a> {
    pub machine: &'a Machine,
    /// Path of the program `agentd-keeper`.
    pub keeper: &'a Path,
    /// Home directory, in which git finds the user's settings.
    pub home: Option<&'a Path>,
    /// The environment of the user's terminal.
    pub terminal: &'a [(String, Vec<u8>)],
    /// Values that never appear in a message.
    pub hidden: &'a [Vec<u8>],
    /// Time limit of all steps together.
    pub deadline: Instant,
}

/// Failure of a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct GitError {
    /// One CamelCase word, from [`agentd_api::reason`].
    pub reason: &'static str,
    /// Description for people, without credentials.
    pub message: String,
}

impl GitError {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Failure of a script that did run.
struct ScriptFailure {
    status: i32,
    stderr: String,
}

/// The environment of a script.
enum Surroundings<'a> {
    /// The user's terminal, for commands that contact a remote or serve the user's own repository.
    Terminal(Option<&'a Credential>),
    /// The system alone, for commands in a repository that may not be trusted. `transport` is the allowed kind of
    /// address: `none` or `file`.
    System { transport: &'static str },
}

impl Git<'_> {
    /// Runs a script. `$0` is the path of git. Returns the output.
    async fn script(
        &self,
        script: &str,
        args: Vec<ByteString>,
        surroundings: &Surroundings<'_>,
    ) -> Result<Result<String, ScriptFailure>, GitError> {
        let git = repository::find_git(self.machine, &PROGRAM_DIRECTORIES, self.deadline).await.ok_or_else(|| {
            GitError::new(reason::GIT_MISSING, "git is not installed in the directories of the system")
        })?;
        let first = ["-c".into(), script.into(), git.as_os_str().into()];
        let time = self.deadline.saturating_duration_since(Instant::now());
        let request = RunRequest {
            program: "/bin/sh".into(),
            args: first.into_iter().chain(args).collect(),
            environment: self.variables(surroundings),
            directory: "/".into(),
            deadline_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            max_output: MAX_OUTPUT,
            ..RunRequest::default()
        };
        let ran = match tokio::time::timeout(time + KEEPER_TIME, runner::run(self.keeper, &request)).await {
            Ok(Ok(ran)) => ran,
            Ok(Err(error)) => {
                return Err(GitError::new(reason::OUT_OF_RESOURCES, format!("git could not be run: {error}")));
            }
            Err(_) => return Err(late()),
        };
        match ran.outcome {
            RunOutcome::Exited(0) => Ok(Ok(String::from_utf8_lossy(ran.stdout.as_bytes()).into_owned())),
            RunOutcome::Exited(status) => Ok(Err(ScriptFailure { status, stderr: self.shown(&ran.stderr.display()) })),
            RunOutcome::TimedOut => Err(late()),
            outcome => {
                Err(GitError::new(reason::OUT_OF_RESOURCES, format!("git could not be run to its end: {outcome:?}")))
            }
        }
    }

    fn variables(&self, surroundings: &Surroundings<'_>) -> Vec<Variable> {
        let mut variables: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut settings: Vec<(String, String)> = Vec::new();
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let transport = match surroundings {
            Surroundings::Terminal(credential) => {
                let is_numbered =
                    |name: &str| name.starts_with("GIT_CONFIG_KEY_") || name.starts_with("GIT_CONFIG_VALUE_");
                let is_kept = |name: &str| !WITHHELD.contains(&name) && !is_numbered(name);
                variables.extend(self.terminal.iter().filter(|(name, _)| is_kept(name)).cloned());
                settings.extend(self.own_settings());
                if let Some(credential) = credential {
                    settings.extend(credential.settings());
                    variables.insert(remote::PASSWORD.to_owned(), credential.value());
                }
                "file:git:http:https:ssh"
            }
            Surroundings::System { transport } => {
                let off = [("GIT_NO_LAZY_FETCH", "1"), ("GIT_SSH_COMMAND", "false")];
                variables.extend(off.map(|(name, value)| (name.to_owned(), value.into())));
                let off = [
                    ("core.fsmonitor", ""),
                    ("core.hooksPath", "/dev/null"),
                    ("core.untrackedCache", "false"),
                    ("safe.bareRepository", "explicit"),
                    ("core.alternateRefsCommand", "true"),
                    ("commit.gpgSign", "false"),
                    ("log.showSignature", "false"),
                ];
                settings.extend(off.map(owned));
                transport
            }
        };
        settings.extend([("gc.auto", "0"), ("maintenance.auto", "false"), ("submodule.recurse", "false")].map(owned));
        variables.entry("PATH".to_owned()).or_insert_with(|| PROGRAM_DIRECTORIES.join(":").into());
        variables.extend(self.home.map(|home| ("HOME".to_owned(), home.as_os_str().as_encoded_bytes().to_vec())));
        // An empty GIT_ASKPASS replaces core.askPass and SSH_ASKPASS (gitcredentials(7)).
        let quiet = [
            ("LC_ALL", "C"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            ("GCM_INTERACTIVE", "never"),
            ("SSH_ASKPASS_REQUIRE", "never"),
            ("GIT_ALLOW_PROTOCOL", transport),
        ];
        variables.extend(quiet.map(|(name, value)| (name.to_owned(), value.into())));
        variables.insert("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string().into());
        for (at, (key, value)) in settings.into_iter().enumerate() {
            variables.insert(format!("GIT_CONFIG_KEY_{at}"), key.into());
            variables.insert(format!("GIT_CONFIG_VALUE_{at}"), value.into());
        }
        variables.into_iter().map(|(name, value)| Variable { name: name.into(), value: value.into() }).collect()
    }

    /// Returns the settings that the user's terminal gives git by `GIT_CONFIG_COUNT` (git-config(1)).
    fn own_settings(&self) -> Vec<(String, String)> {
        let text = |name: &str| {
            let found = self.terminal.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        let count = text("GIT_CONFIG_COUNT").and_then(|count| count.parse::<usize>().ok()).unwrap_or(0).min(1000);
        let setting = |at| Some((text(&format!("GIT_CONFIG_KEY_{at}"))?, text(&format!("GIT_CONFIG_VALUE_{at}"))?));
        (0..count).filter_map(setting).collect()
    }

    /// Returns git's words for a message: the last lines, without credentials.
    fn shown(&self, stderr: &str) -> String {
        let lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("hint:"));
        let lines: Vec<&str> = lines.collect();
        let mut text = lines[lines.len().saturating_sub(6)..].join("; ");
        for hidden in self.hidden.iter().filter_map(|value| std::str::from_utf8(value).ok()) {
            text = text.replace(hidden.trim(), HIDDEN);
        }
        let words: Vec<String> = with_hosts(&text).split(' ').map(repository::masked).collect();
        words.join(" ").chars().take(MAX_WORDS).collect()
    }
}

/// Text in place of a part that may be a credential.
const HIDDEN: &str = "(hidden)";

/// Returns the text with only the scheme and the host of each URL. Settings of the user can put a token into any other
/// part.
fn with_hosts(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['\'', '"', ' ']).unwrap_or(part.len());
        let authority = part[..end].split('/').next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        shown.push_str("://");
        shown.push_str(host);
        if part[..end].len() > authority.len() {
            shown.push_str("/…");
        }
        shown.push_str(&part[end..]);
    }
    shown
}

/// Function of a script that deletes a directory. A cache may contain directories without write permission.
const DROP: &str = r#"
drop() {
  rm -rf -- "$1" 2>/dev/null && return 0
  find "$1" -type d ! -perm -u+w -exec chmod u+w {} +
  rm -rf -- "$1"
}
"#;

/// Returns the failure for a step that took too long.
fn late() -> GitError {
    let message = "git did not finish in time; repositories.deadline sets the limit";
    GitError::new(reason::REPOSITORY_TIMED_OUT, message)
}

/// Returns the failure for a script that ended with a status that has no meaning of its own.
fn failed(reason: &'static str, what: &str, failure: &ScriptFailure) -> GitError {
    let ScriptFailure { status, stderr } = failure;
    let words = if stderr.is_empty() { format!("status {status}") } else { stderr.clone() };
    GitError::new(reason, format!("{what}: {words}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn git<'a>(machine: &'a Machine, terminal: &'a [(String, Vec<u8>)], hidden: &'a [Vec<u8>]) -> Git<'a> {
        let keeper = Path::new("/nowhere/agentd-keeper");
        Git { machine, keeper, home: Some(Path::new("/h")), terminal, hidden, deadline: Instant::now() }
    }

    #[test]
    fn messages_contain_no_credential() {
        let machine = Machine::new(std::path::PathBuf::from("/nowhere/agentd-keeper"));
        let hidden = [b"hunter2".to_vec()];
        let git = git(&machine, &[], &hidden);
        let token = agentd_keeper::tokens::examples().next().unwrap();
        let shown =
            git.shown(&format!("fatal: 'https://kim:pw@host/r' hunter2\n\nhint: try\nerror: {token} at ssh://h"));
        assert_eq!(shown, "fatal: 'https://host/…' (hidden); error: (hidden) at ssh://h");
    }

    #[test]
    fn a_terminals_environment_passes_without_prompts_and_without_another_repository() {
        let machine = Machine::new(std::path::PathBuf::from("/nowhere/agentd-keeper"));
        let own = [
            ("PATH", "/own/bin"),
            ("SSH_AUTH_SOCK", "/run/agent"),
            ("GIT_DIR", "/else"),
            ("GIT_ASKPASS", "/ask"),
            ("GIT_ALLOW_PROTOCOL", "ext"),
            ("DISPLAY", ":0"),
            ("HOME", "/other"),
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "http.proxy"),
            ("GIT_CONFIG_VALUE_0", "http://proxy"),
        ]
        .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        let git = git(&machine, &own, &[]);
        let of = |surroundings| -> std::collections::BTreeMap<String, String> {
            let variables = git.variables(&surroundings).into_iter();
            // A doubled name has the value that a program happens to find first.
            let names: Vec<_> = git.variables(&surroundings).into_iter().map(|variable| variable.name).collect();
            assert_eq!(names.len(), names.iter().map(ByteString::as_bytes).collect::<BTreeSet<_>>().len());
            variables.map(|variable| (variable.name.display().into(), variable.value.display().into())).collect()
        };
        let terminal = of(Surroundings::Terminal(None));
        let value = |name: &str| terminal.get(name).map(String::as_str);
        assert_eq!((value("PATH"), value("SSH_AUTH_SOCK")), (Some("/own/bin"), Some("/run/agent")));
        assert_eq!((value("GIT_DIR"), value("DISPLAY"), value("HOME")), (None, None, Some("/h")));
        assert_eq!((value("GIT_TERMINAL_PROMPT"), value("GIT_ASKPASS")), (Some("0"), Some("")));
        assert_eq!(
            (value("GIT_CONFIG_KEY_0"), value("GIT_CONFIG_VALUE_0")),
            (Some("http.proxy"), Some("http://proxy"))
        );
        let system = of(Surroundings::System { transport: "none" });
        assert_eq!(system.get("SSH_AUTH_SOCK"), None);
        assert_eq!(system["GIT_ALLOW_PROTOCOL"], "none");
        assert!(system.iter().any(|(name, value)| name.starts_with("GIT_CONFIG_KEY_") && value == "core.hooksPath"));
    }
}
