//! The capability `command`: runs programs. Grant: `command = [patterns]`, each a program and its arguments
//! separated by single spaces.
//!
//! A program runs without a shell and without a terminal. Its environment has the given variables and, unless
//! given, a default `PATH`.

use std::time::Duration;

use super::{host, milliseconds};
use crate::{Failure, Variable};

pub use crate::bindings::provider::agentd::plugin::command::{Completed, Ending, Invocation};

/// A program to run, with its arguments, environment and input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command(Invocation);

impl Command {
    /// Makes a command. `program` is an absolute path, or a name that is looked up in the standard directories
    /// of programs.
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

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.0.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.0.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of the program's environment. Replaces a variable of the same name.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        let variable = Variable::new(name, value);
        self.0.environment.retain(|other| other.name != variable.name);
        self.0.environment.push(variable);
        self
    }

    /// Sets variables of the program's environment, for example those of a request.
    #[must_use]
    pub fn environment<'a>(self, variables: impl IntoIterator<Item = &'a Variable>) -> Self {
        variables
            .into_iter()
            .fold(self, |command, variable| command.variable(variable.name.as_str(), variable.value.as_slice()))
    }

    /// Sets the working directory: `{cwd}`, `{session}` or `{config}`. The default is `/`.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<String>) -> Self {
        self.0.directory = Some(directory.into());
        self
    }

    /// Sets the program's standard input.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.0.input = input.into();
        self
    }

    /// Sets the time after which the program and its descendants are killed. The default is the remaining time
    /// of the call.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.0.time = Some(milliseconds(time));
        self
    }

    /// Runs the program. An exit status other than 0 is not a failure.
    pub fn run(&self) -> Result<Completed, Failure> {
        host::command::run(&self.0)
    }

    /// Runs the program and returns its standard output. An exit status other than 0 is a failure with the last
    /// line of standard error.
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
    /// Reports whether the program exited with status 0.
    pub fn success(&self) -> bool {
        self.ending == Ending::Exited(0)
    }

    /// Returns the last non-empty line of standard error.
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
