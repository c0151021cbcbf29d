//! Effects of start-up files in each installed shell. Every row of the table is given to each shell in the form that
//! its user would write. The result is the environment of the agent that starts then, compared byte by byte.
//!
//! The rows are data ([`rows`]), and this module runs them. A shell that is not installed is skipped. In CI a skipped
//! shell is a failure.

#[cfg(target_os = "linux")]
mod corpus;
mod rows;
mod scripts;
mod shells;
#[cfg(target_os = "linux")]
mod sources;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agentd_api::session::{ConditionType, Phase, SessionView};

use crate::harness::{Daemon, Session, process, require};
use rows::{Expect, Row, Value};

/// Environment variables as the kernel stores them.
pub(super) type Environment = BTreeMap<String, Vec<u8>>;

/// A shell and its start-up file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shell {
    pub(super) name: &'static str,
    /// Possible paths of the program.
    programs: &'static [&'static str],
    /// The start-up file of every login, relative to the home.
    pub(super) file: &'static str,
    pub(super) dialect: Dialect,
}

/// Language of the start-up files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Sh,
    Fish,
    Csh,
    Nu,
}

const fn shell(name: &'static str, programs: &'static [&'static str], file: &'static str, dialect: Dialect) -> Shell {
    Shell { name, programs, file, dialect }
}

pub(crate) const BASH: Shell = shell("bash", &["/bin/bash"], ".bash_profile", Dialect::Sh);
pub(crate) const ZSH: Shell = shell("zsh", &["/bin/zsh"], ".zshrc", Dialect::Sh);
pub(crate) const FISH: Shell = shell("fish", &["/usr/bin/fish"], ".config/fish/config.fish", Dialect::Fish);
pub(crate) const TCSH: Shell = shell("tcsh", &["/bin/tcsh"], ".tcshrc", Dialect::Csh);
pub(crate) const CSH: Shell = shell("csh", &["/bin/bsd-csh"], ".cshrc", Dialect::Csh);
pub(crate) const DASH: Shell = shell("dash", &["/bin/dash"], ".profile", Dialect::Sh);
pub(crate) const KSH: Shell = shell("ksh", &["/bin/ksh93", "/bin/ksh"], ".profile", Dialect::Sh);
pub(crate) const NU: Shell =
    shell("nu", &["/usr/local/bin/nu", "/usr/bin/nu"], ".config/nushell/config.nu", Dialect::Nu);

impl Shell {
    /// Returns the program's path, or `None` if the shell is not installed.
    pub(super) fn program(&self) -> Option<PathBuf> {
        require::shell(self.name, self.programs)
    }

    /// Writes the start-up file.
    pub(super) fn write(&self, home: &Path, text: &str) {
        let file = home.join(self.file);
        std::fs::create_dir_all(file.parent().expect("it is below the home")).unwrap();
        std::fs::write(file, format!("{text}\n")).unwrap();
    }
}

/// Returns a daemon whose user has this login shell and no start-up file.
pub(crate) fn daemon(shell: &Path) -> Daemon {
    let daemon = Daemon::prepare();
    std::fs::remove_file(daemon.home().join(".profile")).expect("the harness wrote one");
    let providers =
        "[[environment.providers]]\nplugin = \"snapshot\"\n[[environment.providers]]\nplugin = \"env-script\"\n";
    daemon.configure(|config| {
        let shell = format!("shell = \"{}\"\ndeadline = \"20s\"\n", shell.display());
        format!("{}\n{providers}", config.replace("shell = \"/bin/bash\"\n", &shell))
    });
    daemon
}

/// Returns the environment of the session's agent.
pub(crate) async fn of_agent(session: &Session) -> Environment {
    let view = session.wait_for("the session is ready or has failed", settled).await;
    assert_eq!(view.status.phase, Phase::Idle, "{view:#?}");
    let pid = view.status.agent_pid.expect("an agent that runs has a pid");
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    let entries = bytes.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let equals = entry.iter().position(|byte| *byte == b'=').expect("NAME=VALUE");
            (String::from_utf8(entry[..equals].to_vec()).unwrap(), entry[equals + 1..].to_vec())
        })
        .collect()
}

fn settled(view: &SessionView) -> bool {
    matches!(view.status.phase, Phase::Idle | Phase::Failed)
}

/// Returns the reason and message of the condition that reports a failed build of the environment.
pub(super) async fn refusal(session: &Session) -> (String, String) {
    let view = session.wait_for("the session is ready or has failed", settled).await;
    assert_eq!(view.status.phase, Phase::Failed, "{view:#?}");
    let condition = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::EnvironmentReady);
    let condition = condition.unwrap_or_else(|| panic!("{view:#?}"));
    (condition.reason.clone(), condition.message.clone())
}

/// Gives every row to the shell. One daemon runs all rows that must give an environment, one after the other. Each row
/// that must fail has its own daemon.
async fn conforms(shell: Shell) {
    let Some(program) = shell.program() else { return };
    let mut daemon = daemon(&program);
    daemon.run().await;
    for row in rows::ROWS {
        let (Some(text), expect) = (row.text(shell), row.expect(shell)) else { continue };
        eprintln!("{}: {}", shell.name, row.name);
        match expect {
            Expect::Variables(expected) => {
                shell.write(&daemon.home(), text);
                // The snapshot of the previous row must not replace a row's own incomplete snapshot.
                daemon.client.post("/v1/snapshots/invalidate", &serde_json::json!({})).await;
                let session = daemon.create(&daemon.scripted(&[])).await;
                let environment = of_agent(&session).await;
                check(shell, row, expected, &environment);
                let pid = session.view().await.status.agent_pid.unwrap();
                let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
                assert_eq!(cwd, daemon.work(), "{}: {}", shell.name, row.name);
                session.stop().await;
            }
            Expect::Fails(reason, words) => {
                let mut own = self::daemon(&program);
                if *reason == "LoginShellTimedOut" {
                    own.configure(|config| config.replace("deadline = \"20s\"", "deadline = \"2s\""));
                }
                shell.write(&own.home(), text);
                own.run().await;
                let session = own.create(&own.scripted(&[])).await;
                let (got, message) = refusal(&session).await;
                assert!(got == *reason && message.contains(words), "{}: {}: {got}: {message}", shell.name, row.name);
                nothing_left(&own, shell, row);
            }
        }
        nothing_left(&daemon, shell, row);
    }
}

fn check(shell: Shell, row: &Row, expected: &[(&str, Value)], environment: &Environment) {
    for (name, value) in expected {
        let got = environment.get(*name);
        let right = match value {
            Value::Is(bytes) => got.is_some_and(|got| got == bytes),
            Value::Times(byte, count) => {
                got.is_some_and(|got| got.len() == *count && got.iter().all(|other| other == byte))
            }
            Value::Absent => got.is_none(),
        };
        let shown = got.map(|got| String::from_utf8_lossy(&got[..got.len().min(200)]).into_owned());
        assert!(
            right,
            "{}: {}: {name} is {shown:?}, not {value:?}; there are {:?}",
            shell.name,
            row.name,
            environment.keys()
        );
    }
}

/// Fails if a process that a start-up file of this home started still runs: they all start `sleep 8642`.
fn nothing_left(daemon: &Daemon, shell: Shell, row: &Row) {
    let left = process::running(daemon.root(), "sleep", Some("8642"));
    assert!(left.is_empty(), "{}: {}: left {left:?}", shell.name, row.name);
}

#[tokio::test]
async fn every_row_holds_in_bash() {
    conforms(BASH).await;
}

#[tokio::test]
async fn every_row_holds_in_zsh() {
    conforms(ZSH).await;
}

#[tokio::test]
async fn every_row_holds_in_fish() {
    conforms(FISH).await;
}

#[tokio::test]
async fn every_row_holds_in_tcsh() {
    conforms(TCSH).await;
}

#[tokio::test]
async fn every_row_holds_in_csh() {
    conforms(CSH).await;
}

#[tokio::test]
async fn every_row_holds_in_dash() {
    conforms(DASH).await;
}

#[tokio::test]
async fn every_row_holds_in_ksh() {
    conforms(KSH).await;
}

#[tokio::test]
async fn every_row_holds_in_nushell() {
    conforms(NU).await;
}
