//! Programs of the machine, each under `agentd-keeper run`: with nothing inherited, no terminal, and nothing left of it afterwards.
//!
//! Of arguments, input and environment nothing is ever said in a message.

use std::path::Path;
use std::time::Instant;

use agentd_api::ByteString;
use agentd_keeper::look::{Look, Looked};
use agentd_keeper::protocol::{RunOutcome, RunRequest, Variable};
use agentd_plugins::{Allowed, CONTENT, Completed, ERRORS, Ending, Failure, Invocation, Places};

use super::file::{failure, not_granted};
use super::look::Lot;
use super::{Machine, absolute, before, seconds, text};
use crate::runner;

/// Where a program is looked for that is named without a directory.
const DIRECTORIES: [&str; 7] =
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/homebrew/bin"];

impl Machine {
    /// Runs a program to its end. At the deadline, when this is dropped, and after its end all that it started is killed.
    pub async fn run(
        &self,
        invocation: Invocation,
        places: &Places,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<Completed, Failure> {
        let (begun, end) = (Instant::now(), before(deadline));
        check(&invocation)?;
        let Invocation { program, arguments, environment, directory, input } = invocation;
        let directory = begins_in(directory.as_deref(), places)?;
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
                "the program {program:?} took longer than {time} and was ended with everything it had started"
            ))
        };
        let run = tokio::time::timeout_at(deadline.into(), runner::run(&self.keeper, &request)).await;
        let result = run.map_err(|_| late())?.map_err(|error| {
            Failure::Failed(format!(
                "cannot run the program {program:?}: cannot run {}: {error}",
                self.keeper.display()
            ))
        })?;
        if result.killed > 0 {
            tracing::debug!(program, killed = result.killed, "what a plugin's program left behind was ended");
        }
        let ending = match result.outcome {
            // Both are small: eight bits, and the number of a signal.
            RunOutcome::Exited(status) => Ending::Exited(u8::try_from(status & 0xff).unwrap_or(u8::MAX)),
            RunOutcome::Signalled(signal) => Ending::Signalled(u8::try_from(signal).unwrap_or(u8::MAX)),
            RunOutcome::TimedOut | RunOutcome::Cancelled => return Err(late()),
            RunOutcome::TooMuchOutput => {
                let text = format!(
                    "the program {program:?} printed more than {CONTENT} bytes and was ended with everything it had started"
                );
                return Err(Failure::TooLarge(text));
            }
            RunOutcome::NotExecuted(reason) => return Err(Failure::Unavailable(reason)),
            RunOutcome::Changed | RunOutcome::NotSealed | RunOutcome::Captured | RunOutcome::Unanswered => {
                return Err(Failure::Failed(format!("the program {program:?} changed while it was run")));
            }
        };
        Ok(Completed { ending, output: result.stdout.0, errors: result.stderr.0 })
    }

    /// The program as it is called, and with everything resolved. It and the directory have answered: else not even the keeper, which
    /// waits for the program to begin, could be ended.
    async fn found(
        &self,
        program: &str,
        directory: &str,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<(ByteString, ByteString), Failure> {
        let places = if program.contains('/') {
            vec![ByteString::from(program)]
        } else {
            DIRECTORIES.iter().map(|directory| format!("{directory}/{program}").into()).collect()
        };
        let mut eye =
            self.looks.open(Lot::Asked, format!("the program {program:?} or {directory:?}"), deadline).await?;
        let found = match eye.answer(&Look::Program(places)).await? {
            Looked::Program { named, path } => {
                let resolved = text(Path::new(path.as_os_str()))?;
                if !allowed(resolved) {
                    return Err(not_granted("program", program, resolved));
                }
                (named, path)
            }
            // What is there is told only of what may be run.
            _ if program.contains('/') && !allowed(program) => return Err(not_granted("program", program, program)),
            other => return Err(failure("run the program", program, other)),
        };
        match eye.answer(&Look::Resolve(directory.into())).await? {
            Looked::Path(_) => Ok(found),
            other => Err(failure("run a program in", directory, other)),
        }
    }
}

/// A place of the call, or `/`. No other path: what a program may do is judged by its words, which another directory would turn.
fn begins_in(directory: Option<&str>, places: &Places) -> Result<String, Failure> {
    match directory {
        None => Ok("/".to_owned()),
        Some(place @ ("{cwd}" | "{session}" | "{config}")) => absolute(place, places),
        Some(other) => {
            let text =
                format!("a program cannot begin in {other:?}: it is neither {{cwd}} nor {{session}} nor {{config}}");
            Err(Failure::Failed(text))
        }
    }
}

/// What no program can be given.
fn check(invocation: &Invocation) -> Result<(), Failure> {
    let Invocation { program, arguments, environment, .. } = invocation;
    let wrong = |what: &str| Err(Failure::Failed(format!("cannot run the program {program:?}: {what}")));
    if program.is_empty() || program.contains('\0') || (program.contains('/') && !program.starts_with('/')) {
        return wrong("it is neither an absolute path nor a name");
    }
    if program.split('/').any(|name| name == "..") {
        return Err(Failure::NotGranted(format!("the program {program:?} has \"..\" in it")));
    }
    if arguments.iter().any(|argument| argument.contains('\0')) {
        return wrong("an argument has a NUL byte in it");
    }
    if environment.iter().any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains(&0)) {
        return wrong("a variable has a name or a value that no environment can hold");
    }
    Ok(())
}
