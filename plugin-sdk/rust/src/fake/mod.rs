//! A fake host for tests. The plugin runs natively in plain `cargo test`, and the test answers its host calls.
//!
//! ```
//! use agentd_plugin_sdk::{Capability, Change, Description, Failure, Provider, Request, command::Command, fake};
//!
//! struct Version;
//!
//! impl Provider for Version {
//!     fn describe() -> Description {
//!         Description::new("tool-version", "1.0.0", "sets TOOL_VERSION").required_setting("tool", "a program").wants(
//!             Capability::Command,
//!             ["/usr/bin/* --version"],
//!             "asks the tool for its version",
//!         )
//!     }
//!
//!     fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
//!         let tool = format!("/usr/bin/{}", request.required_setting("tool")?);
//!         Ok(vec![Change::set("TOOL_VERSION", Command::new(tool).argument("--version").output()?)])
//!     }
//! }
//!
//! let host = fake::Host::new().setting("tool", ["gcc"]).output("/usr/bin/gcc --version", "12.2");
//! assert_eq!(host.provide::<Version>(), Ok(vec![Change::set("TOOL_VERSION", "12.2")]));
//!
//! // The checks of the daemon before a call happen here too. This one finds that a setting is missing.
//! let failure = fake::Host::new().provide::<Version>().unwrap_err();
//! assert_eq!(failure, Failure::configuration("tool", "must be set, and is not"));
//! ```
//!
//! As in the daemon, the wants of the plugin's description must cover each call. If the test adds grants, one
//! of them must cover the call too. Otherwise the call fails with [`Failure::NotGranted`].
//!
//! A covered call without an answer fails the test and names the call. The plugin's results are checked as in
//! the daemon.
//!
//! The host belongs to the calling thread during [`Host::provide`], [`Host::check`] and [`Host::run`], so tests
//! can run in parallel.
//!
//! The fake host does not limit time or memory; only the daemon ends a call that never returns. `agentctl
//! plugin test` runs a component in its real sandbox.

mod answers;
mod grant;
pub(crate) mod imports;
mod places;
mod valid;

use std::cell::RefCell;
use std::fmt::{self, Debug};
use std::rc::Rc;
use std::time::Duration;

use crate::bindings::provider::agentd::plugin::command::Invocation;
use crate::bindings::provider::agentd::plugin::network::Step;
use crate::log::Level;
use crate::{
    Capability, Change, CheckRequest, Description, Effect, Failure, Prerequisite, Provider, Report, Request, Session,
    Setting, Variable, Want,
};
use answers::Answers;
pub use answers::{Content, completed, exchanged};
pub use places::Places;

/// A host call of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    Login,
    Locate(Vec<String>),
    Source { path: String, environment: Vec<Variable> },
    Run(Invocation),
    Inspect(String),
    Read(String),
    Entries(String),
    Resolve(String),
    Exchange { host: String, port: u16, steps: Vec<Step>, time: Duration },
    Interfaces,
    Routes,
    WayTo(String),
    NameService,
    Mounts,
    Probe { path: String, time: Duration },
    Running(String),
    Secret(String),
}

/// A fake host: its answers, its grants, and the session that the plugin is called for.
pub struct Host {
    session: Session,
    environment: Vec<Variable>,
    settings: Vec<Setting>,
    state: Rc<RefCell<State>>,
}

/// The state that host calls read and change.
struct State {
    answers: Answers,
    places: Places,
    /// The grants. `None` if everything is granted.
    grants: Option<Vec<(Capability, Vec<String>)>>,
    /// The plugin's wants. `None` outside of [`Host::provide`] and [`Host::check`].
    wants: Option<Vec<Want>>,
    describing: bool,
    wall: u64,
    monotonic: u64,
    log: Vec<(Level, String)>,
    calls: Vec<Call>,
}

impl Host {
    /// Makes a host that grants everything and has no answers. The session runs in `/work`, with an empty
    /// environment and no settings.
    pub fn new() -> Self {
        let places = Places::default();
        Self {
            session: Session {
                id: "s1".to_owned(),
                name: None,
                agent: "demo".to_owned(),
                directory: places.cwd.clone(),
                launch: 1,
            },
            environment: Vec::new(),
            settings: Vec::new(),
            state: Rc::new(RefCell::new(State {
                answers: Answers::default(),
                places,
                grants: None,
                wants: None,
                describing: false,
                wall: 1_767_225_600_000, // 2026-01-01
                monotonic: 0,
                log: Vec::new(),
                calls: Vec::new(),
            })),
        }
    }

    /// Sets the session. Its directory becomes `{cwd}`.
    #[must_use]
    pub fn session(mut self, session: Session) -> Self {
        self.state.borrow_mut().places.cwd.clone_from(&session.directory);
        self.session = session;
        self
    }

    /// Sets the name of the session's agent.
    #[must_use]
    pub fn agent(mut self, agent: &str) -> Self {
        agent.clone_into(&mut self.session.agent);
        self
    }

    /// Sets a variable of the environment that the plugin receives.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.environment.retain(|variable| variable.name != name);
        self.environment.push(Variable::new(name, value));
        self.environment.sort_by(|one, other| one.name.cmp(&other.name));
        self
    }

    /// Sets a setting. A scalar is one value.
    #[must_use]
    pub fn setting<V: Into<String>>(mut self, key: &str, values: impl IntoIterator<Item = V>) -> Self {
        self.settings.retain(|setting| setting.key != key);
        self.settings.push(Setting { key: key.to_owned(), values: values.into_iter().map(Into::into).collect() });
        self
    }

    /// Grants these patterns. Without any grant, everything is granted.
    #[must_use]
    pub fn grant<P: Into<String>>(self, capability: Capability, patterns: impl IntoIterator<Item = P>) -> Self {
        let patterns: Vec<String> = patterns.into_iter().map(Into::into).collect();
        if let Some(wrong) = patterns.iter().find(|pattern| !grant::is_pattern(capability, pattern)) {
            panic!("{wrong:?} is not a pattern of {capability:?}");
        }
        self.state.borrow_mut().grants.get_or_insert_default().push((capability, patterns));
        self
    }

    /// Grants nothing, except what other calls grant.
    #[must_use]
    pub fn grant_nothing(self) -> Self {
        self.state.borrow_mut().grants.get_or_insert_default();
        self
    }

    /// Sets the wall clock, in milliseconds since 1970.
    #[must_use]
    pub fn clock(self, wall: u64) -> Self {
        self.state.borrow_mut().wall = wall;
        self
    }

    /// Advances both clocks.
    pub fn time_passes(&self, time: Duration) {
        let mut state = self.state.borrow_mut();
        state.wall += u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        state.monotonic += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Calls a provider as the daemon does: gets its description, checks the settings, and returns its changes.
    pub fn provide<P: Provider>(&self) -> Result<Vec<Change>, Failure> {
        let description = self.described(P::describe);
        self.admit(&description)?;
        let request = Request {
            session: self.session.clone(),
            environment: self.environment.clone(),
            settings: self.settings.clone(),
        };
        self.with_wants(description.wants, || {
            let changes = P::provide(&request)?;
            valid::changes(&changes);
            for change in &changes {
                if let Effect::Secret(value) = &change.effect {
                    imports::secret::admit_secret(&self.state.borrow(), &value.secret)?;
                }
            }
            Ok(changes)
        })
    }

    /// Calls a prerequisite for this session.
    pub fn check<P: Prerequisite>(&self) -> Result<Report, Failure> {
        self.check_for::<P>(Some(self.session.clone()))
    }

    /// Calls a prerequisite without a session.
    pub fn check_without_session<P: Prerequisite>(&self) -> Result<Report, Failure> {
        self.check_for::<P>(None)
    }

    fn check_for<P: Prerequisite>(&self, session: Option<Session>) -> Result<Report, Failure> {
        let description = self.described(P::describe).plugin;
        self.admit(&description)?;
        let request = CheckRequest { session, environment: self.environment.clone(), settings: self.settings.clone() };
        let report = self.with_wants(description.wants, || P::check(&request))?;
        valid::report(&report);
        Ok(report)
    }

    /// Runs a part of a plugin with this host. Calls need no wants.
    pub fn run<T>(&self, part: impl FnOnce() -> T) -> T {
        let _installed = imports::install(&self.state);
        part()
    }

    /// Returns the log messages in order.
    pub fn log(&self) -> Vec<(Level, String)> {
        self.state.borrow().log.clone()
    }

    /// Returns the plugin's host calls in order, including refused ones.
    pub fn calls(&self) -> Vec<Call> {
        self.state.borrow().calls.clone()
    }

    /// Gets the description. Only the log and the clocks are available to the plugin.
    fn described<D>(&self, describe: impl FnOnce() -> D) -> D {
        self.state.borrow_mut().describing = true;
        let description = self.run(describe);
        self.state.borrow_mut().describing = false;
        description
    }

    fn with_wants<T>(&self, wants: Vec<Want>, part: impl FnOnce() -> T) -> T {
        self.state.borrow_mut().wants = Some(wants);
        let result = self.run(part);
        self.state.borrow_mut().wants = None;
        result
    }

    /// Makes the checks of the daemon when it loads a plugin.
    fn admit(&self, description: &Description) -> Result<(), Failure> {
        valid::description(description);
        for Setting { key, .. } in &self.settings {
            if !description.settings.iter().any(|known| known.key == *key) {
                let known: Vec<&str> = description.settings.iter().map(|known| known.key.as_str()).collect();
                let what = format!("unknown setting {key:?}; known settings: {}", known.join(", "));
                return Err(Failure::configuration(key, what));
            }
        }
        let missing = description
            .settings
            .iter()
            .find(|known| known.required && self.settings.iter().all(|setting| setting.key != known.key));
        missing.map_or(Ok(()), |known| Err(Failure::configuration(&known.key, "must be set, and is not")))
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Debug for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Host")
            .field("session", &self.session)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
