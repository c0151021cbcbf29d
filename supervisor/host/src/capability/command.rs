//! Runs programs for plugins under `agentd-keeper run`: without inherited descriptors, without a terminal, and
//! without remaining descendants.
//!
//! Messages never contain arguments, input or environment.

use std::path::Path;
use std::time::Instant;

use agentd_api::ByteString;
use agentd_keeper::look::{LookupAnswer, LookupRequest};
use agentd_keeper::protocol::{RunOutcome, RunRequest, Variable};
use agentd_plugin_host::{CONTENT, ERRORS, Failure, Invocation, PathFilter, Places, ProgramEnding, ProgramResult};

use super::file::{failure, not_granted};
use super::look::Purpose;
use super::{Machine, absolute, before, seconds, text};
use crate::runner;

/// Directories in which a program without a directory in its name is searched.
pub const DIRECTORIES: [&str; 7] =
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/homebrew/bin"];

impl Machine {
    /// Runs a program until it exits. The program and all its descendants are killed at the deadline, when the
    /// program exits, and when the future is dropped.
    pub async fn run(
        &self,
        invocation: Invocation,
        places: &Places,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<ProgramResult, Failure> {
        let (begun, end) = (Instant::now(), before(deadline));
        check(&invocation)?;
        let Invocation { program, arguments, environment, directory, input } = invocation;
        let directory = working_directory(directory.as_deref(), places)?;
        let (named, path) = self.found(&program, &directory, allowed, end).await?;
        let time = end.saturating_duration_since(Instant::now());
        let request = RunRequest {
            arg0: Some(named).filter(|named| *named != path),
            program: path,
            args: arguments.into_iter().map(ByteString::from).collect(),
            environment: environment
                .into_iter()
                .map(|(name, value)| Variable { name: name.into(), value: value.into() })
                .collect(),
            directory: directory.into(),
            deadline_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            stdin: Some(input.into()),
            max_output: CONTENT as u64,
            whole_stdout: true,
            first_of_stderr: Some(ERRORS as u64),
            ..RunRequest::default()
        };
        let late = || {
            let time = seconds(begun, deadline);
            Failure::TimedOut(format!(
                "the program {program:?} exceeded its time limit of {time} and was killed with all its descendants"
            ))
        };
        let run = tokio::time::timeout_at(deadline.into(), runner::run_by(&self.keeper, &request)).await;
        let result = run.map_err(|_| late())?.map_err(|error| {
            Failure::Failed(format!("cannot run the program {program:?}: cannot run {}: {error}", self.keeper))
        })?;
        if result.killed > 0 {
            tracing::debug!(program, killed = result.killed, "killed processes that a plugin's program left behind");
        }
        let ending = match result.outcome {
            // Both values fit: a status has eight bits, and a signal has a small number.
            RunOutcome::Exited(status) => ProgramEnding::Exited(u8::try_from(status & 0xff).unwrap_or(u8::MAX)),
            RunOutcome::Signalled(signal) => ProgramEnding::Signalled(u8::try_from(signal).unwrap_or(u8::MAX)),
            RunOutcome::TimedOut | RunOutcome::Cancelled => return Err(late()),
            RunOutcome::TooMuchOutput => {
                let text = format!(
                    "the program {program:?} printed more than {CONTENT} bytes and was killed with all its descendants"
                );
                return Err(Failure::TooLarge(text));
            }
            RunOutcome::NotExecuted(reason) => return Err(Failure::Unavailable(reason)),
            RunOutcome::Changed | RunOutcome::NotSealed | RunOutcome::Captured | RunOutcome::Unanswered => {
                return Err(Failure::Failed(format!("the program {program:?} changed during the run")));
            }
        };
        Ok(ProgramResult { ending, output: result.stdout.0, errors: result.stderr.0 })
    }

    /// Returns the program's path as called, and its resolved path. The lookup also shows that the program and the
    /// directory answer. Otherwise the keeper could hang at the start of the program and could not be stopped.
    async fn found(
        &self,
        program: &str,
        directory: &str,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<(ByteString, ByteString), Failure> {
        let places = if program.contains('/') {
            vec![ByteString::from(program)]
        } else {
            DIRECTORIES.iter().map(|directory| format!("{directory}/{program}").into()).collect()
        };
        let mut looker =
            self.lookers.open(Purpose::Plugin, format!("the program {program:?} or {directory:?}"), deadline).await?;
        let found = match looker.answer(&LookupRequest::Program(places)).await? {
            LookupAnswer::Program { named, path } => {
                let resolved = text(Path::new(path.as_os_str()))?;
                if !allowed(resolved) {
                    return Err(not_granted("program", program, resolved));
                }
                (named, path)
            }
            // Only a granted path may reveal whether it exists.
            _ if program.contains('/') && !allowed(program) => return Err(not_granted("program", program, program)),
            other => return Err(failure("run the program", program, other)),
        };
        match looker.answer(&LookupRequest::Resolve(directory.into())).await? {
            LookupAnswer::Path(_) => Ok(found),
            other => Err(failure("run a program in", directory, other)),
        }
    }
}

/// Returns the working directory: a place of the call, or `/`. Other directories are refused, because they could
/// change the meaning of granted arguments.
fn working_directory(directory: Option<&str>, places: &Places) -> Result<String, Failure> {
    match directory {
        None => Ok("/".to_owned()),
        Some(place @ ("{cwd}" | "{session}" | "{config}")) => absolute(place, places),
        Some(other) => {
            let text =
                format!("cannot run a program in the directory {other:?}; use {{cwd}}, {{session}} or {{config}}");
            Err(Failure::Failed(text))
        }
    }
}

/// Refuses an invocation that no process can receive.
fn check(invocation: &Invocation) -> Result<(), Failure> {
    let Invocation { program, arguments, environment, .. } = invocation;
    let wrong = |what: &str| Err(Failure::Failed(format!("cannot run the program {program:?}: {what}")));
    if program.is_empty() || program.contains('\0') || (program.contains('/') && !program.starts_with('/')) {
        return wrong("it is neither an absolute path nor a name");
    }
    if program.split('/').any(|name| name == "..") {
        return Err(Failure::NotGranted(format!("the program {program:?} contains \"..\"")));
    }
    if arguments.iter().any(|argument| argument.contains('\0')) {
        return wrong("an argument contains a NUL byte");
    }
    if environment.iter().any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains(&0)) {
        return wrong("the name or the value of a variable is invalid");
    }
    Ok(())
}
