//! The functions of the interface under their WIT names. The fake host of the current thread answers them.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;

use super::{Call, State, grant};
use crate::{Capability, Failure};

thread_local! {
    static HOST: RefCell<Option<Rc<RefCell<State>>>> = const { RefCell::new(None) };
}

/// Restores the previous host of the thread when dropped.
pub(super) struct Installed(Option<Rc<RefCell<State>>>);

impl Drop for Installed {
    fn drop(&mut self) {
        HOST.set(self.0.take());
    }
}

/// Makes this the host of the current thread.
pub(super) fn install(state: &Rc<RefCell<State>>) -> Installed {
    Installed(HOST.replace(Some(Rc::clone(state))))
}

/// Accesses the current thread's host.
fn with<T>(what: &dyn Debug, look: impl FnOnce(&mut State) -> T) -> T {
    let host = HOST.with_borrow(Clone::clone);
    let host = host.unwrap_or_else(|| {
        panic!(
            "the plugin called {what:?} without a host: in a test, call the plugin through \
            agentd_plugin_sdk::fake::Host"
        )
    });
    let mut state = host.borrow_mut();
    look(&mut state)
}

/// Records a call and answers it.
fn called<T>(call: Call, answer: impl FnOnce(&mut State) -> T) -> T {
    with(&call.clone(), |state| {
        let describing = state.describing;
        assert!(
            !describing,
            "describe() called {call:?}: only the log and the clocks answer while a plugin is described"
        );
        state.calls.push(call);
        answer(state)
    })
}

/// Checks that both the wants and the grants cover the request.
fn admit(state: &State, capability: Capability, subject: &str, covers: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let covered = |of: Capability, patterns: &[String]| {
        let all = capability == Capability::ShellEnvironment;
        of == capability && (all || patterns.iter().any(|pattern| covers(pattern)))
    };
    if state.wants.as_ref().is_some_and(|wants| !wants.iter().any(|want| covered(want.capability, &want.patterns))) {
        return Err(Failure::NotGranted(format!("{subject} is outside of what the plugin's description wants")));
    }
    if state.grants.as_ref().is_some_and(|grants| !grants.iter().any(|(of, patterns)| covered(*of, patterns))) {
        return Err(Failure::NotGranted(format!("{subject} is outside of what the administrator granted")));
    }
    Ok(())
}

/// Replaces the placeholder of a path and checks that the path may be used.
fn admit_path(state: &State, capability: Capability, what: &str, path: &str) -> Result<String, Failure> {
    // A pattern may begin with `{home}`, but a requested path may not.
    if !path.starts_with('/') && !["{cwd}", "{session}", "{config}"].iter().any(|place| path.starts_with(place)) {
        let rule = "is neither absolute nor begins with {cwd}, {session} or {config}";
        return Err(Failure::Failed(format!("{what} {path:?} {rule}")));
    }
    let path = state.places.resolve(path);
    admit(state, capability, &format!("{what} {path}"), |pattern| grant::path(pattern, &path, &state.places))?;
    Ok(path)
}

/// Reports whether the test declared that nothing exists at this path.
fn is_nothing(state: &State, path: &str) -> bool {
    state.answers.nothing.iter().any(|pattern| grant::path(pattern, path, &state.places))
}

fn no_answer(subject: &str, method: &str) -> ! {
    panic!("the plugin requested {subject}, and the test's fake::Host has no answer: add one with {method}")
}

pub(crate) mod log {
    use super::HOST;
    use crate::log::Level;

    /// Records a log message. Without a host, prints it to stderr.
    pub(crate) fn write(level: Level, message: &str) {
        match HOST.with_borrow(Clone::clone) {
            Some(host) => host.borrow_mut().log.push((level, message.to_owned())),
            None => eprintln!("{level:?}: {message}"),
        }
    }
}

pub(crate) mod clock {
    use super::with;

    pub(crate) fn wall() -> u64 {
        with(&"clock::wall", |state| state.wall)
    }

    pub(crate) fn monotonic() -> u64 {
        with(&"clock::monotonic", |state| state.monotonic)
    }
}

pub(crate) mod shell_environment {
    use super::{Call, Capability, Failure, admit, called, no_answer};
    use crate::Variable;

    pub(crate) fn login() -> Result<Vec<Variable>, Failure> {
        called(Call::Login, |state| {
            let subject = "the login shell's environment";
            admit(state, Capability::ShellEnvironment, subject, |_| true)?;
            state.answers.login.clone().unwrap_or_else(|| no_answer(subject, "login"))
        })
    }
}

pub(crate) mod script {
    use super::{Call, Capability, Failure, State, admit_path, called, is_nothing, no_answer};
    use crate::Variable;
    use crate::script::Sourced;

    pub(crate) fn locate(paths: &[String]) -> Result<Vec<Option<String>>, Failure> {
        let place = |state: &State, path: &String| {
            let path = admit_path(state, Capability::Script, "the script", path)?;
            match state.answers.scripts.contains_key(&path) {
                true => Ok(Some(path)),
                false if is_nothing(state, &path) => Ok(None),
                false => no_answer(&format!("the script {path}"), "script or nothing_at"),
            }
        };
        called(Call::Locate(paths.to_vec()), |state| paths.iter().map(|path| place(state, path)).collect())
    }

    pub(crate) fn source(path: &str, environment: &[Variable]) -> Result<Sourced, Failure> {
        let call = Call::Source { path: path.to_owned(), environment: environment.to_vec() };
        called(call, |state| {
            let path = admit_path(state, Capability::Script, "the script", path)?;
            let nothing = is_nothing(state, &path);
            let Some(script) = state.answers.scripts.get_mut(&path) else {
                if nothing {
                    return Err(Failure::NotFound(format!("there is no script {path}")));
                }
                no_answer(&format!("the script {path}"), "script or nothing_at")
            };
            let mut after =
                environment.iter().map(|variable| (variable.name.clone(), variable.value.clone())).collect();
            script(&mut after)?;
            let environment = after.into_iter().map(|(name, value)| Variable { name, value }).collect();
            Ok(Sourced { path, environment })
        })
    }
}

pub(crate) mod command {
    use super::{Call, Capability, Failure, admit, called, grant, no_answer};
    use crate::command::{Completed, Invocation};

    pub(crate) fn run(invocation: &Invocation) -> Result<Completed, Failure> {
        called(Call::Run(invocation.clone()), |state| {
            let Invocation { program, arguments, .. } = invocation;
            let words: Vec<&str> = std::iter::once(program).chain(arguments).map(String::as_str).collect();
            let subject = format!("the command {:?}", words.join(" "));
            let matches = |pattern: &str| grant::command(pattern, program, arguments);
            admit(state, Capability::Command, &subject, matches)?;
            let answer = state.answers.programs.iter_mut().find(|(pattern, _)| matches(pattern));
            let Some((_, answer)) = answer else { no_answer(&subject, "command or output") };
            let mut completed = answer(invocation)?;
            if completed.output.len() > 1 << 20 {
                return Err(Failure::TooLarge(format!("{program} printed more than 1 MiB")));
            }
            completed.errors.truncate(64 << 10);
            Ok(completed)
        })
    }
}

pub(crate) mod file {
    use super::super::answers::Entry;
    use super::{Call, Capability, Failure, State, admit_path, called, is_nothing, no_answer};
    use crate::file::{Kind, Metadata};

    pub(crate) fn inspect(path: &str) -> Result<Metadata, Failure> {
        called(Call::Inspect(path.to_owned()), |state| {
            let (path, entry) = entry(state, path)?;
            let size = entry.content?.len() as u64;
            Ok(Metadata { path, kind: entry.kind, size, modified: entry.modified })
        })
    }

    pub(crate) fn read(path: &str) -> Result<Vec<u8>, Failure> {
        called(Call::Read(path.to_owned()), |state| {
            let (path, entry) = entry(state, path)?;
            match entry.content? {
                _ if entry.kind != Kind::File => Err(Failure::Unavailable(format!("{path} is not a file"))),
                content if content.len() > 1 << 20 => Err(Failure::TooLarge(format!("{path} has more than 1 MiB"))),
                content => Ok(content),
            }
        })
    }

    pub(crate) fn entries(path: &str) -> Result<Vec<String>, Failure> {
        called(Call::Entries(path.to_owned()), |state| {
            let (path, entry) = entry(state, path)?;
            match entry.names {
                _ if entry.kind != Kind::Directory => Err(Failure::Unavailable(format!("{path} is not a directory"))),
                names if names.len() > 10_000 => Err(Failure::TooLarge(format!("{path} has more than 10,000 names"))),
                names => Ok(names),
            }
        })
    }

    fn entry(state: &State, path: &str) -> Result<(String, Entry), Failure> {
        let path = admit_path(state, Capability::File, "the file", path)?;
        match state.answers.files.get(&path) {
            Some(entry) => Ok((path, entry.clone())),
            None if is_nothing(state, &path) => Err(Failure::NotFound(format!("there is no {path}"))),
            None => no_answer(&format!("the file {path}"), "file, directory or nothing_at"),
        }
    }
}

pub(crate) mod network {
    use std::time::Duration;

    use super::{Call, Capability, Failure, State, admit, called, grant, no_answer};
    use crate::network::{Exchanged, NameService, NetworkInterface, Problem, Route, Step, Way};

    pub(crate) fn resolve(host: &str) -> Result<Vec<String>, Problem> {
        called(Call::Resolve(host.to_owned()), |state| {
            let subject = format!("the addresses of {host}");
            let covers = |pattern: &str| grant::network(pattern, host, None);
            admit(state, Capability::Network, &subject, covers).map_err(Problem::Other)?;
            let answer = state.answers.hosts.get(&host.to_ascii_lowercase());
            answer.cloned().unwrap_or_else(|| no_answer(&subject, "resolves"))
        })
    }

    pub(crate) fn exchange(host: &str, port: u16, steps: &[Step], time: u64) -> Result<Exchanged, Problem> {
        let time = Duration::from_millis(time);
        let call = Call::Exchange { host: host.to_owned(), port, steps: steps.to_vec(), time };
        called(call, |state| {
            let subject = format!("an exchange with {host}:{port}");
            let covers = |pattern: &str| grant::network(pattern, host, Some(port));
            admit(state, Capability::Network, &subject, covers).map_err(Problem::Other)?;
            match state.answers.listeners.get_mut(&(host.to_ascii_lowercase(), port)) {
                Some(listener) => listener(steps),
                None => no_answer(&subject, "listens"),
            }
        })
    }

    pub(crate) fn interfaces() -> Result<Vec<NetworkInterface>, Failure> {
        fact(Call::Interfaces, "interfaces", |state| state.answers.interfaces.clone())
    }

    pub(crate) fn routes() -> Result<Vec<Route>, Failure> {
        fact(Call::Routes, "routes", |state| state.answers.routes.clone())
    }

    pub(crate) fn way_to(address: &str) -> Result<Option<Way>, Failure> {
        let way = |state: &State| state.answers.ways.get(address).cloned();
        fact(Call::WayTo(address.to_owned()), "way_to", way)
    }

    pub(crate) fn name_service_facts() -> Result<NameService, Failure> {
        let facts = |state: &State| state.answers.name_service.clone();
        fact(Call::NameService, "name_service", facts)
    }

    /// Answers a request for facts of the network. Any network grant allows it.
    fn fact<T>(call: Call, method: &str, answer: impl FnOnce(&State) -> Option<T>) -> Result<T, Failure> {
        let subject = format!("the network's facts ({call:?})");
        called(call, |state| {
            admit(state, Capability::Network, &subject, |_| true)?;
            Ok(answer(state).unwrap_or_else(|| no_answer(&subject, method)))
        })
    }
}

pub(crate) mod mount {
    use std::time::Duration;

    use super::{Call, Capability, Failure, admit, admit_path, called, grant, no_answer};
    use crate::mount::{Liveness, Mounted};

    pub(crate) fn mounts() -> Result<Vec<Mounted>, Failure> {
        called(Call::Mounts, |state| {
            admit(state, Capability::Mount, "the mount table", |_| true)?;
            let all = state.answers.mounts.clone().unwrap_or_else(|| no_answer("the mount table", "mounts"));
            let covers = |mounted: &Mounted| {
                let covered = |pattern: &str| grant::path(pattern, &mounted.path, &state.places);
                admit(state, Capability::Mount, "a mount", covered).is_ok()
            };
            Ok(all.into_iter().filter(covers).collect())
        })
    }

    pub(crate) fn probe(path: &str, time: u64) -> Result<Liveness, Failure> {
        called(Call::Probe { path: path.to_owned(), time: Duration::from_millis(time) }, |state| {
            let path = admit_path(state, Capability::Mount, "the path", path)?;
            let answer = state.answers.probes.get(&path);
            answer.cloned().unwrap_or_else(|| no_answer(&format!("the path {path}"), "probe"))
        })
    }
}

pub(crate) mod process {
    use super::{Call, Capability, Failure, admit, called, no_answer};
    use crate::pattern::matches;

    pub(crate) fn running(name: &str) -> Result<u32, Failure> {
        called(Call::Running(name.to_owned()), |state| {
            let subject = format!("processes named {name:?}");
            admit(state, Capability::Process, &subject, |pattern| matches(pattern, name))?;
            let answer = state.answers.processes.get(name);
            Ok(answer.copied().unwrap_or_else(|| no_answer(&subject, "running")))
        })
    }
}

pub(crate) mod secret {
    use super::{Call, Capability, Failure, State, admit, called, no_answer};
    use crate::pattern::matches;

    pub(crate) fn read(name: &str) -> Result<Vec<u8>, Failure> {
        called(Call::Secret(name.to_owned()), |state| {
            admit_secret(state, name)?;
            let answer = state.answers.secrets.get(name);
            answer.cloned().unwrap_or_else(|| no_answer(&format!("the secret {name:?}"), "secret")).0
        })
    }

    /// Checks that a secret may be used. The rule also applies to changes that set a variable to a secret.
    pub(in crate::fake) fn admit_secret(state: &State, name: &str) -> Result<(), Failure> {
        admit(state, Capability::Secret, &format!("the secret {name:?}"), |pattern| matches(pattern, name))
    }
}
