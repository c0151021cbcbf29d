//! A loaded plugin and its calls: each in a store and an instance of its own.
//!
//! An instance may be made before it is wanted ([`Plugin::prepare`]); it is used by one call all the same, and thrown away.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::bindings::prerequisite::exports::agentd::plugin::prerequisite_check;
use crate::bindings::provider::exports::agentd::plugin::environment_provider;
use crate::call::{Call, Change, Description, Effect, NoSession, Report, Setting};
use crate::convert::{self, flaw, repeated};
use crate::error::{CallError, LoadError};
use crate::grant::{Capability, Led, Narrowed, Places, Variables, steers, variables_line};
use crate::limits::Limits;
use crate::linked::{Linked, Pre};
use crate::settings::check;
use crate::state::variables;
use crate::text::{is_line, shown};

/// The most variables that a refusal names.
const VARIABLES: usize = 64;

/// What a plugin is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    Provider,
    Prerequisite,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Provider => "provider",
            Self::Prerequisite => "prerequisite",
        })
    }
}

/// A plugin that is compiled, linked against its grant, and has described itself. Cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    inner: Arc<Inner>,
}

struct Inner {
    linked: Linked,
    facts: Facts,
}

/// What was learnt of a plugin when it was loaded.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) description: Description,
    pub(crate) narrowed: Vec<Narrowed>,
    /// Of the component, in hexadecimal digits.
    pub(crate) sha256: String,
    /// The version of the interface that it is made for.
    pub(crate) interface: &'static str,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("name", &self.inner.linked.name)
            .field("world", &self.world())
            .field("imports", &self.inner.linked.imports)
            .finish_non_exhaustive()
    }
}

impl Plugin {
    pub(crate) fn new(linked: Linked, facts: Facts) -> Self {
        Self { inner: Arc::new(Inner { linked, facts }) }
    }

    /// The name it was loaded under.
    pub fn name(&self) -> &str {
        &self.inner.linked.name
    }

    /// What it said of itself when it was loaded.
    pub fn description(&self) -> &Description {
        &self.inner.facts.description
    }

    pub fn world(&self) -> World {
        self.inner.linked.world()
    }

    /// What it imports, all of it granted.
    pub fn imports(&self) -> &[Capability] {
        &self.inner.linked.imports
    }

    /// What it wants and no grant covers, or is denied to it.
    pub fn narrowed(&self) -> &[Narrowed] {
        &self.inner.facts.narrowed
    }

    /// The SHA-256 of the component, in hexadecimal digits.
    pub fn sha256(&self) -> &str {
        &self.inner.facts.sha256
    }

    /// The version of the interface that it is made for.
    pub fn interface(&self) -> &'static str {
        self.inner.facts.interface
    }

    /// Whether it knows these settings, and those that it cannot do without are among them.
    pub fn check_settings(&self, settings: &[Setting]) -> Result<(), LoadError> {
        check(&self.description().settings, settings)
            .map_err(|problem| LoadError::Settings { plugin: self.name().to_owned(), problem })
    }

    /// A provider's changes to the environment of the call, to be applied in order.
    pub async fn provide(&self, call: Call) -> Result<Vec<Change>, CallError> {
        let linked = &self.inner.linked;
        let Pre::Provider(pre) = &linked.pre else { return Err(linked.not_a(World::Provider)) };
        let Call { session, environment, foreign, settings, places, services, limits } = call;
        let session = session.ok_or_else(|| CallError::NoSession { plugin: linked.name.clone() })?;
        let around = linked.around(&environment, &foreign);
        let request = environment_provider::Request {
            session: convert::session(session),
            environment: variables(environment),
            settings: convert::settings(settings),
        };
        let (mut store, made) = match linked.take(&limits) {
            Some((mut store, instance)) => {
                store.data_mut().begin(&limits, services, places);
                (store, Some(instance))
            }
            None => (linked.store(services, &limits, places), None),
        };
        store.data_mut().surround(around);
        let answer = linked
            .within(&mut store, limits, async |store| {
                let instance = match made {
                    Some(instance) => instance,
                    None => pre.instantiate_async(&mut *store).await?,
                };
                instance.agentd_plugin_environment_provider().call_provide(store, &request).await
            })
            .await;
        linked.put_away(store);
        let answer = answer?;
        let changes: Vec<Change> =
            answer.map_err(|failure| linked.failed(failure))?.into_iter().map(Into::into).collect();
        if let Some(what) = changes.iter().find_map(flaw).or_else(|| repeated(&changes)) {
            return Err(linked.invalid(what));
        }
        if let Some(what) = self.secret_outside(&changes).or_else(|| self.variables_outside(&changes)) {
            return Err(CallError::Outside { plugin: linked.name.clone(), what });
        }
        Ok(changes)
    }

    /// Makes the instance for the next call of a provider, and throws away what calls have left: that is a third of a
    /// short call's time, and nobody need wait for it. What goes wrong here goes wrong again in the call, and is told there.
    pub async fn prepare(&self, limits: Limits) {
        let linked = &self.inner.linked;
        let Pre::Provider(pre) = &linked.pre else { return };
        if !linked.clear() {
            return;
        }
        let services = Arc::new(NoSession { plugin: linked.name.clone() });
        let mut store = linked.store(services, &limits, Places::default());
        let made = linked.within(&mut store, limits, async |store| pre.instantiate_async(store).await).await;
        if let Ok(instance) = made {
            linked.keep(store, instance, &limits);
        }
    }

    /// A variable by a secret that it may not have.
    fn secret_outside(&self, changes: &[Change]) -> Option<String> {
        changes.iter().find_map(|change| {
            let Effect::Secret { name, secret } = &change.effect else { return None };
            let rules = self.inner.linked.rules();
            let verdict = rules.judge(&Places::default(), &Led::default(), |patterns| patterns.secret(secret));
            let outside = verdict.err()?;
            Some(format!("the variable {name:?} by the secret {}, which {outside}", shown(secret)))
        })
    }

    /// The variables that it may not give, with the line that grants them.
    fn variables_outside(&self, changes: &[Change]) -> Option<String> {
        let rules = self.inner.linked.rules();
        let names: BTreeSet<&str> = changes.iter().map(Change::name).collect();
        // What agentd's own plugins give is the user's: only a list that names variables bounds them.
        let own = rules.granted.variables == Variables::Any;
        let denied = |name: &&str| !own && rules.denied.variables.denies(name);
        if let Some(name) = names.iter().copied().find(denied) {
            return Some(format!("the variable {}, which is denied by the administrator", shown(name)));
        }
        let outside: Vec<&str> = names.into_iter().filter(|name| !rules.granted.variables.grants(name)).collect();
        let first = outside.first()?;
        let more = outside.len() - 1;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let why = outside.iter().find_map(|name| Some((name, steers(name)?)));
        let why = why.map(|(name, does)| format!("; {} is granted only by its exact name, since {does}", shown(name)));
        Some(format!(
            "the variable {}{more}, which its grant does not have; if you trust it, add to its grant: {}{}",
            shown(first),
            variables_line(outside.iter().copied().filter(|name| is_line(name)).take(VARIABLES)),
            why.unwrap_or_default()
        ))
    }

    /// Whether it may set the variable, as far as its grant says.
    pub fn may_give(&self, variable: &str) -> bool {
        let rules = self.inner.linked.rules();
        let own = rules.granted.variables == Variables::Any;
        rules.granted.variables.grants(variable) && (own || !rules.denied.variables.denies(variable))
    }

    /// Whether it is given the value of a variable that is a secret: by the variable's own name in its grant of secrets.
    pub fn is_given_secret(&self, variable: &str) -> bool {
        let rules = self.inner.linked.rules();
        rules.granted.has_secret(variable) && !rules.denied.denies_secret(variable)
    }

    /// What a prerequisite found.
    pub async fn check(&self, call: Call) -> Result<Report, CallError> {
        let linked = &self.inner.linked;
        let Pre::Prerequisite(pre) = &linked.pre else { return Err(linked.not_a(World::Prerequisite)) };
        let Call { session, environment, foreign, settings, places, services, limits } = call;
        let around = linked.around(&environment, &foreign);
        let request = prerequisite_check::Request {
            session: session.map(convert::session),
            environment: variables(environment),
            settings: convert::settings(settings),
        };
        let report = linked
            .run(services, limits, places, async move |store| {
                store.data_mut().surround(around);
                let instance = pre.instantiate_async(&mut *store).await?;
                instance.agentd_plugin_prerequisite_check().call_check(store, &request).await
            })
            .await?;
        report.map(Into::into).map_err(|failure| linked.failed(failure))
    }
}
