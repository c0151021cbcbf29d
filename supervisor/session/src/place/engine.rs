//! Runs the tools of a place's engine, such as `squeue` and `podman ps`, and reads their answers.
//!
//! [`agentd_place`] builds the command lines and parses the output.

use std::process::Stdio;
use std::time::{Duration, Instant};

use agentd_place::{EngineState, LaunchNames};
use async_recursion::async_recursion as boxed;
use tokio::process::Command;

use super::SessionPlace;

/// Time limit of one tool. A controller under load answers late.
const ANSWERS: Duration = Duration::from_secs(15);
/// Time limit for the end of an earlier launch, and the pause between two looks at it. A job on a lost node is listed
/// for minutes.
const CLEARED: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(200);
/// Maximum length of a message of a tool in bytes.
const LONGEST: usize = 500;

/// Reason why an engine does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    #[error("cannot run {program:?} for place {place:?}")]
    NotRun { place: String, program: String, source: std::io::Error },
    #[error("{program:?} of place {place:?} did not end within {seconds} s")]
    Late { place: String, program: String, seconds: u64 },
    #[error("{program:?} of place {place:?} ended with {status}: {message}")]
    Failed { place: String, program: String, status: String, message: String },
    #[error("{program:?} of place {place:?} printed no states: {message}")]
    Unreadable { place: String, program: String, message: String },
}

impl SessionPlace {
    /// Runs a tool, and returns its output.
    #[boxed]
    pub(crate) async fn tool(&self, command: &[String]) -> Result<String, EngineError> {
        let (place, program) = (self.name().to_owned(), command.first().cloned().unwrap_or_default());
        let mut started = Command::new(&program);
        started
            .args(command.iter().skip(1))
            .env_clear()
            .envs(self.environment().iter().map(|one| (one.name.as_os_str(), one.value.as_os_str())))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let ran = match tokio::time::timeout(ANSWERS, started.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(source)) => return Err(EngineError::NotRun { place, program, source }),
            Err(_) => return Err(EngineError::Late { place, program, seconds: ANSWERS.as_secs() }),
        };
        if !ran.status.success() {
            let message = String::from_utf8_lossy(&ran.stderr).trim().chars().take(LONGEST).collect();
            return Err(EngineError::Failed { place, program, status: ran.status.to_string(), message });
        }
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    /// Returns the states of all launches on the place. `None` for an engine without states.
    pub(crate) async fn states(&self) -> Result<Option<Vec<EngineState>>, EngineError> {
        let Some(command) = self.place.status() else { return Ok(None) };
        let output = self.tool(&command).await?;
        let states = self.place.parse_status(&output).map_err(|message| EngineError::Unreadable {
            place: self.name().to_owned(),
            program: command.first().cloned().unwrap_or_default(),
            message,
        })?;
        Ok(Some(states))
    }

    /// Returns the job of a launch that the engine lists, if it has one.
    pub(crate) async fn job_of(&self, session: &str, launch: u64) -> Result<Option<String>, EngineError> {
        let name = LaunchNames::new(session, launch).name();
        let states = self.states().await?.unwrap_or_default();
        Ok(states.into_iter().find(|state| state.name == name).and_then(|state| state.job))
    }

    /// Returns the end of a launch that the engine does not list any more.
    pub(crate) async fn end_of(&self, launch: &LaunchNames<'_>, job: Option<&str>) -> Option<EngineState> {
        let command = self.place.ended(launch, job)?;
        match self.tool(&command).await {
            // A controller that lost its state gives the number of a job again.
            Ok(output) => self.place.parse_ended(&output).filter(|end| end.name == launch.name()),
            Err(error) => {
                tracing::debug!(%error, "the engine does not tell the end of a launch");
                None
            }
        }
    }

    /// Ends an earlier launch that the engine still runs, and waits for its end. Its agent would otherwise continue
    /// beside that of the next launch, with one conversation.
    pub(crate) async fn clear(&self, launch: &LaunchNames<'_>) {
        let (name, begun) = (launch.name(), Instant::now());
        let runs = |states: &[EngineState]| states.iter().any(|state| state.name == name && !state.is_ended());
        let mut is_swept = false;
        while begun.elapsed() < CLEARED && matches!(self.states().await, Ok(Some(states)) if runs(&states)) {
            if !std::mem::replace(&mut is_swept, true) {
                self.sweep(launch).await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends and removes all that a launch left behind at its engine.
    pub(crate) async fn sweep(&self, launch: &LaunchNames<'_>) {
        let Ok(Some(command)) = self.place.sweep(launch) else { return };
        match self.tool(&command).await {
            Ok(_) => tracing::info!(launch = launch.name(), place = self.name(), "removed what a launch left behind"),
            Err(error) => tracing::warn!(%error, launch = launch.name(), "cannot remove what a launch left behind"),
        }
    }
}
