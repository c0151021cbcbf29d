//! Programs of the machine. Grant: `command = [patterns]`, each the program and its arguments with a space between.
//!
//! A program is run without a shell and without a terminal, and gets no variable that it is not given here.

use std::time::Duration;

use super::{host, milliseconds};
use crate::{Failure, Variable};

pub use crate::bindings::provider::agentd::plugin::command::{Completed, Ending, Invocation};

/// What is run, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command(Invocation);

impl Command {
    /// `program` is an absolute path, or a name that is looked up in the machine's own directories of programs.
    pub fn new(program: impl Into<String>) -> Self {
        Self(Invocation {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            input: Vec::new(),
            time: None,
        })
    }

    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.0.arguments.push(argument.into());
        self
    }

    #[must_use]
    pub fn arguments<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.0.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// A variable of its environment, in the place of one with this name.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        let variable = Variable::new(name, value);
        self.0.environment.retain(|other| other.name != variable.name);
        self.0.environment.push(variable);
        self
    }

    /// Variables of its environment, such as those of a request.
    #[must_use]
    pub fn environment<'a>(self, variables: impl IntoIterator<Item = &'a Variable>) -> Self {
        variables
            .into_iter()
            .fold(self, |command, variable| command.variable(variable.name.as_str(), variable.value.as_slice()))
    }

    /// Where it starts: `{cwd}`, `{session}` or `{config}`; `/` if not said.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<String>) -> Self {
        self.0.directory = Some(directory.into());
        self
    }

    /// What it reads from its standard input.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.0.input = input.into();
        self
    }

    /// When it is ended, with everything that it started; if not said, when the call's own time is over.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.0.time = Some(milliseconds(time));
        self
    }

    /// Runs it. A program that ends with another status than 0 is no failure.
    pub fn run(&self) -> Result<Completed, Failure> {
        host::command::run(&self.0)
    }

    /// Runs it, and takes another end than with status 0 for a failure that has its last words.
    pub fn output(&self) -> Result<Vec<u8>, Failure> {
        let completed = self.run()?;
        if completed.success() {
            return Ok(completed.output);
        }
        let ended = match completed.ending {
            Ending::Exited(status) => format!("ended with status {status}"),
            Ending::Signalled(signal) => format!("was ended by signal {signal}"),
        };
        let words = completed.last_words();
        let said = if words.is_empty() { String::new() } else { format!(": {words}") };
        Err(Failure::failed(format!("{} {ended}{said}", self.0.program)))
    }
}

impl Completed {
    /// Whether it ended with status 0.
    pub fn success(&self) -> bool {
        self.ending == Ending::Exited(0)
    }

    /// The last line of its standard error that is not empty.
    pub fn last_words(&self) -> String {
        let errors = String::from_utf8_lossy(&self.errors);
        errors.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_given_twice_has_its_last_value() {
        let command = Command::new("/bin/true")
            .environment(&[Variable::new("PATH", "/bin"), Variable::new("LANG", "C")])
            .variable("PATH", "/usr/bin");
        assert_eq!(command.0.environment, [Variable::new("LANG", "C"), Variable::new("PATH", "/usr/bin")]);
    }
}
