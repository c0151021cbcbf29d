//! The capability `command`: runs programs.

use super::permit::{Gate, refused};
use super::words::environment;
use super::{Answer, CallState};
use crate::bindings::provider::agentd::plugin::command;
use crate::call::Failure;
use crate::grant::{Outside, steers, variables_line};
use crate::services::{COMMAND_PATH, CONTENT, ERRORS, Invocation, ProgramEnding, ProgramResult, Variables};
use crate::text::shown;

/// Maximum size of all arguments in bytes. A program that needs more can read its standard input.
const ARGUMENTS: usize = 128 << 10;
/// Maximum number of variables that a refusal lists.
const SHOWN: usize = 32;
/// The variable that the host itself sets.
const PATH: &str = "PATH";

impl CallState {
    async fn ran(&mut self, invocation: command::Invocation) -> Result<ProgramResult, Failure> {
        let command::Invocation { program, arguments, environment: given, directory, input, time } = invocation;
        let deadline = time.map_or(self.host_deadline, |time| self.until(time));
        let what = format!("the program {}", shown(&program));
        let program = self.program(&what, program)?;
        if arguments.iter().map(|argument| argument.len() + 1).sum::<usize>() > ARGUMENTS {
            return Err(Failure::TooLarge(format!("{what} was given more than {ARGUMENTS} bytes of arguments")));
        }
        if arguments.iter().any(|argument| argument.contains('\0')) {
            return Err(Failure::Failed(format!("{what} was given an argument that has a NUL byte")));
        }
        if let Some(directory) = directory.as_deref().filter(|&d| !matches!(d, "{cwd}" | "{session}" | "{config}")) {
            let directory = shown(directory);
            return Err(Failure::Failed(format!(
                "{what} cannot start in {directory}: it is neither {{cwd}} nor {{session}} nor {{config}}"
            )));
        }
        let given = given.into_iter().map(|variable| (variable.name, variable.value)).collect();
        let given = environment(&what, given)?;
        let chosen: Vec<&str> =
            given.iter().filter(|one| !self.around.has(one)).map(|(name, _)| name.as_str()).collect();
        let led = self.led().await?;
        let command = with_arguments(&what, &arguments);
        let (rules, places) = (&self.bounds.rules, &self.places);
        // The file is known only after the machine has resolved the program. A request that no file could
        // satisfy is refused before.
        let never = rules.judge_apart(
            places,
            &led,
            |patterns| patterns.may_be_command(&program, &arguments),
            |patterns| patterns.denied_command(&program, &program, &arguments),
        );
        never.map_err(|outside| refused(&command, outside))?;
        let granted = rules.granted(places, &led);
        let refused_names = granted.not_for_command(&program, None, &arguments, &chosen);
        if !refused_names.is_empty() {
            return Err(not_with(&command, &refused_names));
        }
        let gate = Gate::new(&command, &program, |file: &str| {
            rules.judge_apart(
                places,
                &led,
                |patterns| patterns.command(&program, file, &arguments),
                |patterns| patterns.denied_command(&program, file, &arguments),
            )?;
            let all = granted.not_for_command(&program, Some(file), &arguments, &chosen).is_empty();
            if all { Ok(()) } else { Err(Outside::Variables) }
        });
        let gate = if program.starts_with('/') { gate } else { gate.opened() };
        let invocation = Invocation {
            program: program.clone(),
            arguments: arguments.clone(),
            environment: with_base(given.clone()),
            directory,
            input,
        };
        let allowed = |resolved: &str| gate.allows(resolved);
        let work = self.services.machine().run_command(invocation, &allowed, deadline);
        let answer = self.bounded_by(deadline, &what, work).await;
        let mut completed = gate.told(answer)?;
        if completed.output.len() > CONTENT {
            return Err(Failure::TooLarge(format!("the output of {what} is more than {CONTENT} bytes")));
        }
        completed.errors.truncate(ERRORS);
        Ok(completed)
    }

    /// Returns a program's name, or its cleaned path.
    fn program(&self, what: &str, program: String) -> Result<String, Failure> {
        if program.starts_with('/') {
            return Ok(self.asked(what, &program)?.written);
        }
        if program.is_empty() || program == "." || program == ".." || program.contains(['/', '\0']) {
            return Err(Failure::Failed(format!("{what} is neither an absolute path nor a program's name")));
        }
        Ok(program)
    }
}

/// Adds the host's own variables, unless the plugin set them.
fn with_base(mut given: Variables) -> Variables {
    if !given.iter().any(|(name, _)| name == PATH) {
        given.push((PATH.to_owned(), COMMAND_PATH.into()));
    }
    given
}

/// Makes the refusal of variables, with the configuration that grants them.
fn not_with(command: &str, names: &[&str]) -> Failure {
    let listed: Vec<String> = names.iter().take(SHOWN).map(|name| shown(name)).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let why = names.iter().find_map(|name| {
        steers(name).map(|does| format!("; {} is granted only by its exact name, since {does}", shown(name)))
    });
    Failure::NotGranted(format!(
        "{command} is given {}{more}, and this plugin is not granted to set that for it; \
         to grant it, write the command as {{ run = \"...\", {} }}{}",
        listed.join(", "),
        variables_line(names.iter().copied().take(SHOWN)),
        why.unwrap_or_default()
    ))
}

/// Describes the program with its arguments, on one line.
fn with_arguments(what: &str, arguments: &[String]) -> String {
    if arguments.is_empty() {
        return what.to_owned();
    }
    format!("{what} with the arguments {}", shown(&arguments.join(" ")))
}

impl command::Host for CallState {
    async fn run(&mut self, invocation: command::Invocation) -> Answer<command::Completed> {
        let completed = self.ran(invocation).await.map(|completed| command::Completed {
            ending: match completed.ending {
                ProgramEnding::Exited(status) => command::Ending::Exited(status),
                ProgramEnding::Signalled(signal) => command::Ending::Signalled(signal),
            },
            output: completed.output,
            errors: completed.errors,
        });
        Ok(completed.map_err(Into::into))
    }
}
