//! A loaded plugin and its calls. Each call has its own store and instance.
//!
//! An instance may be created in advance ([`Plugin::warm_up`]). It still serves only one call and is then
//! dropped.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;

use crate::bindings::prerequisite::exports::agentd::plugin::prerequisite_check;
use crate::bindings::provider::exports::agentd::plugin::environment_provider;
use crate::call::{Call, Change, Description, Effect, NoSession, Report, Setting};
use crate::convert::{self, flaw, repeated};
use crate::error::{CallError, LoadError};
use crate::grant::{Capability, Places, ResolvedFronts, UncoveredPattern, Variables, steers, variables_line};
use crate::limits::Limits;
use crate::linked::{Linked, Pre};
use crate::memory::Input;
use crate::settings::check;
use crate::state::{CallState, HostCall, variables};
use crate::text::{is_line, shown};

/// Maximum number of variables that a refusal lists.
const VARIABLES: usize = 64;

/// The kind of a plugin: the WIT world that it implements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// Changes the environment of a session.
    Provider,
    /// Checks a prerequisite.
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

/// A plugin that is compiled, linked with its grant and described. Cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    inner: Arc<Inner>,
}

struct Inner {
    linked: Linked,
    facts: Facts,
}

/// Facts that were determined when the plugin was loaded.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) description: Description,
    pub(crate) narrowed: Vec<UncoveredPattern>,
    /// SHA-256 of the component in hexadecimal.
    pub(crate) sha256: String,
    /// Version of the plugin interface that the component uses.
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

    /// Returns the name that the plugin was loaded under.
    pub fn name(&self) -> &str {
        &self.inner.linked.name
    }

    /// Returns the plugin's description of itself.
    pub fn description(&self) -> &Description {
        &self.inner.facts.description
    }

    /// Returns the kind of the plugin.
    pub fn world(&self) -> World {
        self.inner.linked.world()
    }

    /// Returns the imported capabilities. All of them are granted.
    pub fn imports(&self) -> &[Capability] {
        &self.inner.linked.imports
    }

    /// Returns the wanted patterns that are denied or that no grant covers.
    pub fn narrowed(&self) -> &[UncoveredPattern] {
        &self.inner.facts.narrowed
    }

    /// Returns the SHA-256 of the component in hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.inner.facts.sha256
    }

    /// Returns the version of the plugin interface that the component uses.
    pub fn interface(&self) -> &'static str {
        self.inner.facts.interface
    }

    /// Checks that the plugin accepts these settings and that no required setting is missing.
    pub fn check_settings(&self, settings: &[Setting]) -> Result<(), LoadError> {
        check(&self.description().settings, settings)
            .map_err(|problem| LoadError::Settings { plugin: self.name().to_owned(), problem })
    }

    /// Calls a provider. Returns its changes to the call's environment, to be applied in order.
    #[boxed]
    pub async fn provide(&self, call: Call) -> Result<Vec<Change>, CallError> {
        let linked = &self.inner.linked;
        let state = linked.state(Arc::clone(&call.services), &call.limits, call.places.clone());
        self.call(call, state).await.map(|(changes, _)| changes)
    }

    /// Calls a provider like [`Self::provide`], unless an earlier call had the same input and the host still gives the
    /// same answers. Then the changes are those of the earlier call, and the provider does not run. The host's answers,
    /// their effects and the log are the same in both cases.
    ///
    /// Only for providers that read nothing of the session but its agent and its directory, as agentd's own ones do.
    #[boxed]
    pub async fn provide_again(&self, call: Call) -> Result<Vec<Change>, CallError> {
        let linked = &self.inner.linked;
        let mut state = linked.state(Arc::clone(&call.services), &call.limits, call.places.clone());
        let Some(input) = Input::of(&call).filter(|_| linked.is_repeatable()) else {
            return self.call(call, state).await.map(|(changes, _)| changes);
        };
        if let Some(earlier) = linked.memory.find(&input)
            && state.repeat(&earlier.calls).await.map_err(|error| linked.explain(&error, &call.limits, None))?
        {
            state.finish();
            return Ok(earlier.changes.clone());
        }
        state.transcript.record();
        let (changes, calls) = self.call(call, state).await?;
        if let Some(calls) = calls {
            linked.memory.keep(input, calls, &changes);
        }
        Ok(changes)
    }

    /// Runs the provider. Returns its changes, and its requests if they can be repeated.
    async fn call(&self, call: Call, state: CallState) -> Result<(Vec<Change>, Option<Vec<HostCall>>), CallError> {
        let linked = &self.inner.linked;
        let Pre::Provider(pre) = &linked.pre else { return Err(linked.not_a(World::Provider)) };
        let Call { session, environment, foreign, settings, limits, places: _, services: _ } = call;
        let session = session.ok_or_else(|| CallError::NoSession { plugin: linked.name.clone() })?;
        let around = linked.around(&environment, &foreign);
        let request = environment_provider::Request {
            session: convert::session(session),
            environment: variables(environment),
            settings: convert::settings(settings),
        };
        let (mut store, made) = match linked.take(&limits) {
            Some((mut store, instance)) => {
                store.data_mut().begin(&limits, state);
                (store, Some(instance))
            }
            None => (linked.store(state), None),
        };
        store.data_mut().set_pass_through(around);
        let answer = linked
            .within(&mut store, limits, async |store| {
                let instance = match made {
                    Some(instance) => instance,
                    None => pre.instantiate_async(&mut *store).await?,
                };
                instance.agentd_plugin_environment_provider().call_provide(store, &request).await
            })
            .await;
        let calls = store.data_mut().transcript.repeatable();
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
        Ok((changes, calls))
    }

    /// Reports whether [`Self::warm_up`] has nothing to do.
    pub fn is_warm(&self) -> bool {
        self.inner.linked.is_warm()
    }

    /// Creates the instance for a provider's next call and drops used stores.
    ///
    /// This takes a third of the time of a short call, so it happens between calls. Errors are ignored here,
    /// because the call will report them.
    #[boxed]
    pub async fn warm_up(&self, limits: Limits) {
        let linked = &self.inner.linked;
        let Pre::Provider(pre) = &linked.pre else { return };
        if !linked.clear() {
            return;
        }
        let services = Arc::new(NoSession { plugin: linked.name.clone() });
        let mut store = linked.store(linked.state(services, &limits, Places::default()));
        let made = linked.within(&mut store, limits, async |store| pre.instantiate_async(store).await).await;
        if let Ok(instance) = made {
            linked.keep(store, instance, &limits);
        }
    }

    /// Describes a change that uses a secret without permission.
    fn secret_outside(&self, changes: &[Change]) -> Option<String> {
        changes.iter().find_map(|change| {
            let Effect::Secret { name, secret } = &change.effect else { return None };
            let rules = self.inner.linked.rules();
            let verdict =
                rules.judge(&Places::default(), &ResolvedFronts::default(), |patterns| patterns.secret(secret));
            let outside = verdict.err()?;
            Some(format!("the variable {name:?} by the secret {}, which {outside}", shown(secret)))
        })
    }

    /// Describes variables that the plugin may not change, with the configuration line that grants them.
    fn variables_outside(&self, changes: &[Change]) -> Option<String> {
        let rules = self.inner.linked.rules();
        let names: BTreeSet<&str> = changes.iter().map(Change::name).collect();
        // Built-in plugins act for the user. Only a grant that lists variables restricts them.
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
            "the variable {}{more}, which its grant does not include; if you trust the plugin, add to its grant: {}{}",
            shown(first),
            variables_line(outside.iter().copied().filter(|name| is_line(name)).take(VARIABLES)),
            why.unwrap_or_default()
        ))
    }

    /// Reports whether the grant allows the plugin to change the variable.
    pub fn may_give(&self, variable: &str) -> bool {
        let rules = self.inner.linked.rules();
        let own = rules.granted.variables == Variables::Any;
        rules.granted.variables.grants(variable) && (own || !rules.denied.variables.denies(variable))
    }

    /// Reports whether the plugin receives the value of a secret variable. Its grant of secrets must name the
    /// variable exactly.
    pub fn is_given_secret(&self, variable: &str) -> bool {
        let rules = self.inner.linked.rules();
        rules.granted.has_secret(variable) && !rules.denied.denies_secret(variable)
    }

    /// Calls a prerequisite and returns its report.
    #[boxed]
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
                store.data_mut().set_pass_through(around);
                let instance = pre.instantiate_async(&mut *store).await?;
                instance.agentd_plugin_prerequisite_check().call_check(store, &request).await
            })
            .await?;
        report.map(Into::into).map_err(|failure| linked.failed(failure))
    }
}
