//! Starts the daemon when no daemon answers: the `agentd` in the directory of this program.
//!
//! Not responsible for keeping it alive: the daemon detaches itself, and this program never waits for its end.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::reach::bring_up;
use agentd_client::{Client, Error as ClientError, Revival, Revive, Reviving};

/// Time limit of a daemon's start.
const PATIENCE: Duration = Duration::from_secs(10);
/// Further wait after the started daemon ended: a daemon that another client started may be about to answer.
const AFTER_END: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);
const LOG_LINES: usize = 10;

/// Permission and parameters to start the daemon.
#[derive(Debug, Clone)]
pub(crate) struct Starter {
    program: PathBuf,
    log: PathBuf,
}

impl Starter {
    /// Uses the `agentd` in the directory of this program.
    pub(crate) fn beside_this_program() -> io::Result<Self> {
        let program = std::env::current_exe()?.with_file_name("agentd");
        Ok(Self { program, log: state_directory(|name| std::env::var_os(name).map(PathBuf::from))?.join("agentd.log") })
    }

    /// Returns the starter for a stream of events.
    pub(crate) fn reviver(self) -> Box<dyn Revive> {
        Box::new(self)
    }

    /// Starts the daemon and waits until it answers.
    pub(crate) async fn start(&self, client: &Client) -> Result<(), Error> {
        let log_began = self.log.metadata().map_or(0, |metadata| metadata.len());
        let mut child = self.spawn()?;
        let mut deadline = Instant::now() + PATIENCE;
        let mut ended: Option<ExitStatus> = None;
        loop {
            let error = match client.health().await {
                Ok(()) => return Ok(()),
                Err(error @ (ClientError::Unreachable { .. } | ClientError::Broken { .. })) => error,
                Err(error) => return Err(error.into()),
            };
            if ended.is_none() {
                ended = child.try_wait().ok().flatten();
                // The foreground process ends with success once the daemon runs in the background.
                if ended.is_some_and(|status| !status.success()) {
                    deadline = deadline.min(Instant::now() + AFTER_END);
                }
            }
            if Instant::now() >= deadline {
                let failure = ended.filter(|status| !status.success());
                // Messages before the log exists are in the pipe, which is closed once the process has ended.
                let said = failure.and(child.stderr.take()).map(io::read_to_string).and_then(Result::ok);
                let command = format!("`{} serve --background`", self.program.display());
                let what = match failure {
                    Some(status) => format!("{command} ended with {status}"),
                    None => format!("{command} did not answer within {} s: {error}", PATIENCE.as_secs()),
                };
                return Err(self.failed(what, log_began, said.as_deref(), None));
            }
            sleep(PAUSE).await;
        }
    }

    fn spawn(&self) -> Result<Child, Error> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--background"]).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(|source| {
            let what = format!("cannot execute {}", self.program.display());
            self.failed(what, u64::MAX, None, Some(source))
        })
    }

    fn failed(&self, what: String, log_began: u64, said: Option<&str>, source: Option<io::Error>) -> Error {
        let mut last_lines = last_lines(&self.log, log_began).unwrap_or_default();
        last_lines.extend(said.unwrap_or_default().lines().take(LOG_LINES).map(str::to_owned));
        let hint = format!("the log of agentd is {}", self.log.display());
        Error::NotStarted { what, hint, last_lines, source }
    }
}

impl Revive for Starter {
    fn revive<'a>(&'a mut self, client: &'a mut Client) -> Reviving<'a> {
        Box::pin(async move {
            bring_up(self, client).await.map_err(|error| match error {
                // The administrator may still start the daemon.
                Error::Managed { .. } => Revival::Later(error.into()),
                error => Revival::Failed(error.into()),
            })
        })
    }
}

/// Returns the last lines appended to a file since its length was `began` bytes.
fn last_lines(path: &Path, began: u64) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(began.max(length.saturating_sub(64 << 10)).min(length)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| (*line).to_owned()).collect())
}

/// Returns the daemon's state directory: systemd's `STATE_DIRECTORY`, else `agentd` under `XDG_STATE_HOME`,
/// else under `~/.local/state`.
pub(crate) fn state_directory(variable: impl Fn(&str) -> Option<PathBuf>) -> io::Result<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    if let Some(path) = absolute("STATE_DIRECTORY") {
        return Ok(path);
    }
    if let Some(path) = absolute("XDG_STATE_HOME") {
        return Ok(path.join("agentd"));
    }
    Ok(match absolute("HOME") {
        Some(home) => home,
        None => home_directory()?,
    }
    .join(".local/state/agentd"))
}

/// Returns the user's home directory: `HOME`, else the directory of the passwd entry.
pub(crate) fn home_directory() -> io::Result<PathBuf> {
    if let Some(home) = std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        return Ok(home);
    }
    let user = nix::unistd::User::from_uid(nix::unistd::getuid())?;
    user.map(|user| user.dir).ok_or_else(|| io::Error::other("HOME is not set and the user has no passwd entry"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starter(directory: &Path, script: &str) -> Starter {
        let program = directory.join("agentd");
        crate::testing::program(&program, script);
        Starter { program, log: directory.join("agentd.log") }
    }

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_daemon_that_does_not_start_is_reported_with_the_new_lines_of_its_log() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("agentd.log"), "an old line\n").unwrap();
        let log = directory.path().join("agentd.log");
        let starter = starter(directory.path(), &format!("echo cannot bind >> '{}'; exit 7", log.display()));
        let client = Client::new(directory.path().join("control.sock"));
        let error = run(starter.start(&client)).unwrap_err();
        let Error::NotStarted { what, last_lines, .. } = error else { panic!("{error:?}") };
        assert!(what.contains("exit status: 7"), "{what}");
        assert_eq!(last_lines, ["cannot bind"]);
    }

    #[test]
    fn what_a_daemon_says_before_it_has_a_log_is_reported_too() {
        let directory = tempfile::tempdir().unwrap();
        let starter = starter(directory.path(), "echo agentd: no home >&2; exit 1");
        let error = run(starter.start(&Client::new(directory.path().join("control.sock")))).unwrap_err();
        assert!(
            matches!(&error, Error::NotStarted { last_lines, .. } if last_lines == &["agentd: no home"]),
            "{error:?}"
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("agentd");
        let starter = Starter { program: program.clone(), log: directory.path().join("agentd.log") };
        let error = run(starter.start(&Client::new(directory.path().join("control.sock")))).unwrap_err();
        assert!(error.to_string().contains(&program.display().to_string()), "{error}");
        assert_eq!(error.exit_status(), 3);
    }

    #[test]
    fn the_state_directory_is_the_first_that_is_given() {
        let with = |given: &[(&str, &str)]| {
            let given: Vec<_> = given.iter().map(|(n, v)| ((*n).to_owned(), PathBuf::from(v))).collect();
            state_directory(|name| given.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())).unwrap()
        };
        assert_eq!(with(&[("STATE_DIRECTORY", "/s"), ("XDG_STATE_HOME", "/x")]), Path::new("/s"));
        assert_eq!(with(&[("XDG_STATE_HOME", "/x"), ("HOME", "/h")]), Path::new("/x/agentd"));
        assert_eq!(with(&[("XDG_STATE_HOME", "x"), ("HOME", "/h")]), Path::new("/h/.local/state/agentd"));
    }
}
