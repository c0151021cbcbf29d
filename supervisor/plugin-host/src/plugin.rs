//! A loaded plugin and its calls: each in a store and an instance of its own.
//!
//! An instance may be made before it is wanted ([`Plugin::prepare`]); it is used by one call all the same, and thrown away.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, Store, Trap, UpdateDeadline};

use crate::bindings::prerequisite::exports::agentd::plugin::prerequisite_check;
use crate::bindings::prerequisite::{Prerequisite, PrerequisitePre};
use crate::bindings::provider::agentd::plugin::{
    clock, command, file, log, mount, network, process, script, secret, shell_environment, types,
};
use crate::bindings::provider::exports::agentd::plugin::environment_provider;
use crate::bindings::provider::{Provider, ProviderPre};
use crate::call::{Call, Change, Description, Failure, NoSession, Report};
use crate::convert::{self, flaw, misdescribed};
use crate::epoch::Ticker;
use crate::grant::{Capability, Grant};
use crate::limits::{Bytes, Exceeded, Limits, STACK, Seconds, TABLE_ENTRIES};
use crate::services::Services;
use crate::state::{State, variables};

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

/// Why a call of a plugin gave nothing. Each names the plugin, by the name it was loaded under.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("plugin {plugin:?} took longer than its {}", Seconds(*limit))]
    Time { plugin: String, limit: Duration },
    #[error("plugin {plugin:?} used more than its {} of memory", Bytes(*limit))]
    Memory { plugin: String, limit: usize },
    #[error("plugin {plugin:?} used more than its {limit} table entries")]
    TableEntries { plugin: String, limit: usize },
    #[error("plugin {plugin:?} used more than its {} of stack", Bytes(*limit))]
    Stack { plugin: String, limit: usize },
    #[error("plugin {plugin:?} handed over more than its {} of output", Bytes(*limit))]
    Output { plugin: String, limit: usize },
    /// `said` is the plugin's last error message: a panic's text, where it has one.
    #[error("plugin {plugin:?} crashed: {}", said.as_deref().unwrap_or(trap))]
    Crashed { plugin: String, trap: String, said: Option<String> },
    /// The plugin's own answer.
    #[error("plugin {plugin:?} failed: {failure}")]
    Failed { plugin: String, failure: Failure },
    #[error("plugin {plugin:?} answered with {what}")]
    Invalid { plugin: String, what: String },
    #[error("plugin {plugin:?} is a {is}, not a {wanted}")]
    World { plugin: String, is: World, wanted: World },
    #[error("plugin {plugin:?} contributes to the environment of a session, and there is none")]
    NoSession { plugin: String },
}

impl CallError {
    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Time { .. } => "plugin-time",
            Self::Memory { .. } => "plugin-memory",
            Self::TableEntries { .. } => "plugin-table-entries",
            Self::Stack { .. } => "plugin-stack",
            Self::Output { .. } => "plugin-output",
            Self::Crashed { .. } => "plugin-crashed",
            Self::Failed { .. } => "plugin-failed",
            Self::Invalid { .. } => "plugin-answer",
            Self::World { .. } => "plugin-world",
            Self::NoSession { .. } => "plugin-no-session",
        }
    }

    /// What the user can do, where it is something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Time { .. } | Self::Memory { .. } | Self::Output { .. } => {
                Some("raise the plugin's limit in the configuration if it needs more")
            }
            Self::Failed { failure: Failure::Configuration { .. }, .. } => {
                Some("correct the plugin's settings in the configuration")
            }
            _ => None,
        }
    }
}

/// A plugin that is compiled, linked against its grant, and has described itself. Cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    inner: Arc<Inner>,
}

struct Inner {
    linked: Linked,
    description: Description,
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
    pub(crate) fn new(linked: Linked, description: Description) -> Self {
        Self { inner: Arc::new(Inner { linked, description }) }
    }

    /// The name it was loaded under.
    pub fn name(&self) -> &str {
        &self.inner.linked.name
    }

    /// What it said of itself when it was loaded.
    pub fn description(&self) -> &Description {
        &self.inner.description
    }

    pub fn world(&self) -> World {
        self.inner.linked.world()
    }

    /// What it imports, all of it granted.
    pub fn imports(&self) -> &[Capability] {
        &self.inner.linked.imports
    }

    /// A provider's changes to the environment of the call, to be applied in order.
    pub async fn provide(&self, call: Call) -> Result<Vec<Change>, CallError> {
        let linked = &self.inner.linked;
        let Pre::Provider(pre) = &linked.pre else { return Err(linked.not_a(World::Provider)) };
        let Call { session, environment, settings, services, limits } = call;
        let session = session.ok_or_else(|| CallError::NoSession { plugin: linked.name.clone() })?;
        let request = environment_provider::Request {
            session: convert::session(session),
            environment: variables(environment),
            settings: convert::settings(settings),
        };
        let (mut store, made) = match linked.take(&limits) {
            Some((mut store, instance)) => {
                store.data_mut().begin(&limits, services);
                (store, Some(instance))
            }
            None => (linked.store(services, &limits), None),
        };
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
        match changes.iter().find_map(flaw) {
            None => Ok(changes),
            Some(what) => Err(CallError::Invalid { plugin: linked.name.clone(), what }),
        }
    }

    /// Makes the instance for the next call of a provider, and throws away what calls have left: that is a third of a
    /// short call's time, and nobody need wait for it. What goes wrong here goes wrong again in the call, and is told there.
    pub async fn prepare(&self, limits: Limits) {
        let linked = &self.inner.linked;
        let Pre::Provider(pre) = &linked.pre else { return };
        let used = std::mem::take(&mut linked.shelf().used);
        drop(used);
        if linked.shelf().ready.is_some() {
            return;
        }
        let mut store = linked.store(Arc::new(NoSession { plugin: linked.name.clone() }), &limits);
        let made = linked.within(&mut store, limits, async |store| pre.instantiate_async(store).await).await;
        if let Ok(instance) = made
            && store.data().accountant.memory() <= KEPT
        {
            linked.shelf().ready = Some(Ready { store, instance, memory: limits.memory });
        }
    }

    /// What a prerequisite found.
    pub async fn check(&self, call: Call) -> Result<Report, CallError> {
        let linked = &self.inner.linked;
        let Pre::Prerequisite(pre) = &linked.pre else { return Err(linked.not_a(World::Prerequisite)) };
        let Call { session, environment, settings, services, limits } = call;
        let request = prerequisite_check::Request {
            session: session.map(convert::session),
            environment: variables(environment),
            settings: convert::settings(settings),
        };
        let report = linked
            .run(services, limits, async |store| {
                let instance = pre.instantiate_async(&mut *store).await?;
                instance.agentd_plugin_prerequisite_check().call_check(store, &request).await
            })
            .await?;
        report.map(Into::into).map_err(|failure| linked.failed(failure))
    }
}

/// Bytes of memory that an instance may hold while nobody calls it; a whole interpreter holds more.
const KEPT: usize = 4 << 20;
/// Used stores that wait to be thrown away.
const USED: usize = 2;

/// What lies between two calls.
#[derive(Default)]
struct Shelf {
    ready: Option<Ready>,
    used: Vec<Store<State>>,
}

/// An instance that no call has used.
struct Ready {
    store: Store<State>,
    instance: Provider,
    /// The limit under which it was made.
    memory: usize,
}

/// A component with its grant's imports resolved; not called yet.
pub(crate) struct Linked {
    name: String,
    engine: Engine,
    ticker: Arc<Ticker>,
    grant: Arc<Grant>,
    imports: Vec<Capability>,
    pre: Pre,
    shelf: Mutex<Shelf>,
}

enum Pre {
    Provider(ProviderPre<State>),
    Prerequisite(PrerequisitePre<State>),
}

impl Linked {
    /// Links what was admitted, and nothing else.
    pub(crate) fn new(
        name: String,
        ticker: Arc<Ticker>,
        grant: Grant,
        imports: Vec<Capability>,
        world: World,
        component: &Component,
    ) -> wasmtime::Result<Self> {
        let engine = component.engine().clone();
        let mut linker = Linker::<State>::new(&engine);
        types::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
        for import in &imports {
            match import {
                Capability::Log => log::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
                Capability::Clock => clock::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
                Capability::ShellEnvironment => {
                    shell_environment::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
                }
                Capability::Script => script::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
                Capability::Command => command::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
                Capability::File => file::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
                Capability::Network => network::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
                Capability::Mount => mount::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
                Capability::Process => process::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
                Capability::Secret => secret::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?,
            }
        }
        let pre = linker.instantiate_pre(component)?;
        let pre = match world {
            World::Provider => Pre::Provider(ProviderPre::new(pre)?),
            World::Prerequisite => Pre::Prerequisite(PrerequisitePre::new(pre)?),
        };
        Ok(Self { name, engine, ticker, grant: Arc::new(grant), imports, pre, shelf: Mutex::default() })
    }

    fn world(&self) -> World {
        match self.pre {
            Pre::Provider(_) => World::Provider,
            Pre::Prerequisite(_) => World::Prerequisite,
        }
    }

    /// Asks the plugin what it is.
    pub(crate) async fn describe(&self, services: Arc<dyn Services>, limits: Limits) -> Result<Description, CallError> {
        let description: Description = self
            .run(services, limits, async |store| match &self.pre {
                Pre::Provider(pre) => {
                    let instance: Provider = pre.instantiate_async(&mut *store).await?;
                    Ok(instance.agentd_plugin_environment_provider().call_describe(store).await?.into())
                }
                Pre::Prerequisite(pre) => {
                    let instance: Prerequisite = pre.instantiate_async(&mut *store).await?;
                    Ok(instance.agentd_plugin_prerequisite_check().call_describe(store).await?.into())
                }
            })
            .await?;
        match misdescribed(&description) {
            None => Ok(description),
            Some(what) => Err(CallError::Invalid { plugin: self.name.clone(), what }),
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instance that was made under the same limit of memory, if there is one.
    fn take(&self, limits: &Limits) -> Option<(Store<State>, Provider)> {
        let ready = self.shelf().ready.take().filter(|ready| ready.memory == limits.memory)?;
        Some((ready.store, ready.instance))
    }

    /// Keeps a used store until somebody has the time to throw it away.
    fn put_away(&self, used: Store<State>) {
        let used_before = &mut self.shelf().used;
        if used_before.len() < USED {
            used_before.push(used);
        }
    }

    /// One call, in a store of its own, within its limits.
    async fn run<T>(
        &self,
        services: Arc<dyn Services>,
        limits: Limits,
        work: impl AsyncFnOnce(&mut Store<State>) -> wasmtime::Result<T>,
    ) -> Result<T, CallError> {
        let mut store = self.store(services, &limits);
        self.within(&mut store, limits, work).await
    }

    fn store(&self, services: Arc<dyn Services>, limits: &Limits) -> Store<State> {
        let mut store = Store::new(&self.engine, State::new(limits, Arc::clone(&self.grant), services));
        store.limiter(|state| &mut state.accountant);
        store.epoch_deadline_callback(|context| {
            if Instant::now() >= context.data().deadline {
                return Err(Exceeded::Time.into());
            }
            Ok(UpdateDeadline::Yield(1)) // a guest that computes must not hold the thread of others
        });
        store
    }

    /// Works in a store within the limits of one call.
    async fn within<T>(
        &self,
        store: &mut Store<State>,
        limits: Limits,
        work: impl AsyncFnOnce(&mut Store<State>) -> wasmtime::Result<T>,
    ) -> Result<T, CallError> {
        store.set_hostcall_fuel(limits.output);
        store.set_epoch_deadline(1);
        let deadline = store.data().deadline;
        let running = self.ticker.running();
        let result = tokio::time::timeout_at(deadline.into(), work(store)).await;
        drop(running);
        store.data_mut().finish();
        match result {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.explain(&error, &limits, store.data_mut().last_error.take())),
            Err(_) => Err(CallError::Time { plugin: self.name.clone(), limit: limits.time }),
        }
    }

    fn explain(&self, error: &wasmtime::Error, limits: &Limits, said: Option<String>) -> CallError {
        let plugin = self.name.clone();
        match error.downcast_ref::<Exceeded>() {
            Some(Exceeded::Time) => return CallError::Time { plugin, limit: limits.time },
            Some(Exceeded::Memory) => return CallError::Memory { plugin, limit: limits.memory },
            Some(Exceeded::TableEntries) => return CallError::TableEntries { plugin, limit: TABLE_ENTRIES },
            None => {}
        }
        if error.downcast_ref::<Trap>() == Some(&Trap::StackOverflow) {
            return CallError::Stack { plugin, limit: STACK };
        }
        let trap = error.root_cause().to_string();
        // wasmtime has no public type for this one; a test holds the text.
        if trap.contains("fuel allocated for hostcalls has been exhausted") {
            return CallError::Output { plugin, limit: limits.output };
        }
        CallError::Crashed { plugin, trap, said }
    }

    fn failed(&self, failure: types::Failure) -> CallError {
        CallError::Failed { plugin: self.name.clone(), failure: failure.into() }
    }

    fn not_a(&self, wanted: World) -> CallError {
        CallError::World { plugin: self.name.clone(), is: self.world(), wanted }
    }
}
