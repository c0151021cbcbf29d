//! `environment-modules`: loads a list of Environment Modules into a session's environment with `modulecmd`,
//! without a shell.
//!
//! Each module is loaded by its own run of modulecmd, with the environment that the modules before it produced.
//! Thus each error names its module, and each change names its modulefile.
//!
//! The first module that cannot be loaded fails the whole call with modulecmd's message. A session with half of
//! its tools is worse than none.
//!
//! The program modulecmd always exits with status 0. Its `mlstatus` and its error messages tell whether it succeeded.

mod answer;
mod difference;
mod words;

use std::collections::BTreeMap;

use agentd_plugin_sdk::command::Command;
use agentd_plugin_sdk::{
    Capability, Change, Description, Effect, Failure, Provider, Request, Variable, export_provider, log,
};

/// The path of modulecmd in Debian on this architecture.
const PROGRAM: &str = "/usr/lib/x86_64-linux-gnu/modulecmd.tcl";

/// Variables for modulecmd itself, independent of the user's: UTF-8 and plain text. They are not changes.
const FOR_MODULECMD: [(&str, &str); 3] = [("LC_ALL", "C.UTF-8"), ("MODULES_COLOR", "never"), ("MODULES_PAGER", "")];

struct EnvironmentModules;

impl Provider for EnvironmentModules {
    fn describe() -> Description {
        Description::new(
            "environment-modules",
            env!("CARGO_PKG_VERSION"),
            "loads Environment Modules by modulecmd, without a shell",
        )
        .required_setting("modules", "a list of modules, loaded in order, such as [\"gcc/12\", \"openmpi\"]")
        .setting("modulepath", "a list of directories with modulefiles; default: MODULEPATH of the environment so far")
        .setting("program", &format!("the absolute path of modulecmd; default: {PROGRAM:?}"))
        .setting("purge", "true unloads first what the environment so far has loaded; default: false")
        .wants(Capability::Command, ["/** r load *", "/** r purge"], "asks modulecmd what its modules change")
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        let modules = names(request)?;
        let mut loading = Loading::begin(request)?;
        if request.flag("purge")?.unwrap_or(false)
            && loading.value("LOADEDMODULES").is_some_and(|list| !list.is_empty())
        {
            loading.run(&["purge"], "unloading the modules of the environment so far", "unloaded with its module")?;
        }
        for module in modules {
            loading.run(
                &["load", module],
                &format!("loading the module {module:?}"),
                &format!("{module} unsets it"),
            )?;
        }
        Ok(loading.changes)
    }
}

export_provider!(EnvironmentModules);

/// Returns the modules to load. Refuses names that modulecmd would take for an option or for two names.
fn names(request: &Request) -> Result<&[String], Failure> {
    let modules = request.required_settings("modules")?;
    let is_name = |name: &String| !name.is_empty() && !name.starts_with('-') && !name.contains(char::is_whitespace);
    match modules.iter().find(|name| !is_name(name)) {
        Some(wrong) => Err(Failure::configuration("modules", format!("must be names of modules, and has {wrong:?}"))),
        None => Ok(modules),
    }
}

/// The environment while modules are loaded into it, and the changes so far.
struct Loading<'a> {
    program: &'a str,
    /// The session's environment before the first module.
    before: BTreeMap<&'a str, &'a [u8]>,
    environment: BTreeMap<String, Vec<u8>>,
    changes: Vec<Change>,
}

impl<'a> Loading<'a> {
    fn begin(request: &'a Request) -> Result<Self, Failure> {
        let program = request.setting("program")?.unwrap_or(PROGRAM);
        if !program.starts_with('/') {
            return Err(Failure::configuration("program", format!("must be an absolute path, and is {program:?}")));
        }
        let before: BTreeMap<&str, &[u8]> =
            request.environment.iter().map(|variable| (variable.name.as_str(), variable.value.as_slice())).collect();
        let environment = before.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect();
        let mut loading = Self { program, before, environment, changes: Vec::new() };
        if let Some(directories) = request.settings("modulepath") {
            let is_directory = |path: &String| path.starts_with('/') && !path.contains(':');
            if let Some(wrong) = directories.iter().find(|path| !is_directory(path)) {
                let what = format!("must be absolute paths of directories, and has {wrong:?}");
                return Err(Failure::configuration("modulepath", what));
            }
            let value = directories.join(":").into_bytes();
            loading.apply("MODULEPATH", Some(value), "", None);
        }
        if loading.value("MODULEPATH").is_none_or(<[u8]>::is_empty) {
            return Err(Failure::configuration("modulepath", "must be set: the environment so far has no MODULEPATH"));
        }
        Ok(loading)
    }

    fn value(&self, name: &str) -> Option<&[u8]> {
        self.environment.get(name).map(Vec::as_slice)
    }

    /// Runs modulecmd and applies its output.
    fn run(&mut self, arguments: &[&str], what: &str, why: &str) -> Result<(), Failure> {
        let variables: Vec<Variable> =
            self.environment.iter().map(|(name, value)| Variable::new(name.as_str(), value.as_slice())).collect();
        let command =
            Command::new(self.program).argument("r").arguments(arguments.iter().copied()).environment(&variables);
        let command = FOR_MODULECMD.iter().fold(command, |command, (name, value)| command.variable(*name, *value));
        let completed = command.run().map_err(|failure| failure.of(what))?;
        let (errors, notes) = words::split(&completed.errors);
        for note in notes {
            log::info(format!("{what}: {note}"));
        }
        let spoilt =
            |wrong: String| Failure::failed(format!("{what}: the output of {} is invalid: {wrong}", self.program));
        // Errors come before complaints about the output, because a failing program may print anything.
        if !errors.is_empty() {
            let missing = errors.iter().any(|error| words::is_missing(error));
            let words = format!("{what}: {}", errors.join("; "));
            return Err(if missing { Failure::not_found(words) } else { Failure::failed(words) });
        }
        if !completed.success() {
            return Err(Failure::failed(format!(
                "{what}: {} ended with {:?} and no error",
                self.program, completed.ending
            )));
        }
        let answer = answer::parse(&completed.output).map_err(spoilt)?;
        if answer.status == Some(false) {
            return Err(Failure::failed(format!("{what}: {} failed without an error message", self.program)));
        }
        if answer.status.is_none() && answer.variables.is_empty() && answer.others > 0 {
            return Err(spoilt("it is not modulecmd's output for R".to_owned()));
        }
        if answer.others > 0 {
            log::debug(format!("{what}: ignored {} lines of output that are for a shell", answer.others));
        }
        self.take(answer.variables, what, why)
    }

    fn take(&mut self, variables: Vec<(String, Option<Vec<u8>>)>, what: &str, why: &str) -> Result<(), Failure> {
        // modulecmd replaces bytes that are not UTF-8, and would write the replaced value.
        let is_text = |name: &String| self.value(name).is_none_or(|value| std::str::from_utf8(value).is_ok());
        if let Some((name, _)) = variables.iter().find(|(name, value)| value.is_some() && !is_text(name)) {
            let text = format!(
                "{what}: the module changes {name}, whose current value is not UTF-8; modulecmd would corrupt it"
            );
            return Err(Failure::failed(text));
        }
        let files = variables.iter().find(|(name, _)| name == "_LMFILES_").and_then(|(_, value)| value.as_deref());
        let origin = files.and_then(|files| self.only_new_file(files));
        for (name, value) in variables {
            self.apply(&name, value, why, origin.as_deref());
        }
        Ok(())
    }

    /// Returns the modulefile that was loaded, if it was only one. With several, the origin of a change is
    /// unknown.
    fn only_new_file(&self, files: &[u8]) -> Option<String> {
        let entries = |list: &[u8]| String::from_utf8_lossy(list).split(':').map(str::to_owned).collect::<Vec<_>>();
        let known = entries(self.value("_LMFILES_").unwrap_or_default());
        let mut new = entries(files).into_iter().filter(|file| !file.is_empty() && !known.contains(file));
        new.next().filter(|_| new.next().is_none())
    }

    fn apply(&mut self, name: &str, value: Option<Vec<u8>>, why: &str, origin: Option<&str>) {
        let made = difference::changes(name, self.value(name), value.as_deref(), why);
        // Setting or unsetting a variable makes earlier changes of it obsolete.
        if made.iter().any(|change| matches!(change.effect, Effect::Set(_) | Effect::Unset(_))) {
            self.changes.retain(|change| change.name() != name);
        }
        for change in made {
            // Removing a variable that the session did not have is not a change.
            if matches!(change.effect, Effect::Unset(_)) && !self.before.contains_key(name) {
                continue;
            }
            self.changes.push(match origin {
                Some(origin) => change.from_file(origin),
                None => change,
            });
        }
        match value {
            Some(value) => self.environment.insert(name.to_owned(), value),
            None => self.environment.remove(name),
        };
    }
}

#[cfg(test)]
mod tests;
