//! A component with resolved imports. Creates stores and instances, and runs calls in them within their limits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Engine, Store, Trap, UpdateDeadline};

use crate::bindings::prerequisite::{Prerequisite, PrerequisitePre};
use crate::bindings::provider::agentd::plugin::{
    clock, command, file, log, mount, network, process, script, secret, shell_environment, types,
};
use crate::bindings::provider::{Provider, ProviderPre};
use crate::cache::Compiled;
use crate::call::Description;
use crate::convert::misdescribed;
use crate::epoch::Ticker;
use crate::error::CallError;
use crate::grant::{Capability, Patterns, Places, Rules};
use crate::limits::{Exceeded, Limits, STACK, TABLE_ENTRIES};
use crate::memory::Memory;
use crate::plugin::World;
use crate::services::Services;
use crate::state::{Bounds, CallState, PassThrough};

/// Maximum memory of an instance that waits for the next call, in bytes. An interpreter uses more and is not
/// kept.
const KEPT: usize = 4 << 20;
/// Maximum number of used stores that wait to be dropped.
const USED: usize = 2;

/// Stores that are kept between calls.
#[derive(Default)]
struct Shelf {
    ready: Option<Ready>,
    used: Vec<Store<CallState>>,
}

/// An instance that no call has used yet.
struct Ready {
    store: Store<CallState>,
    instance: Provider,
    /// Memory limit that the instance was created with.
    memory: usize,
}

/// A component that is linked with its granted imports.
pub(crate) struct Linked {
    pub(crate) name: String,
    engine: Engine,
    ticker: Arc<Ticker>,
    bounds: Arc<Bounds>,
    pub(crate) imports: Vec<Capability>,
    pub(crate) pre: Pre,
    shelf: Mutex<Shelf>,
    pub(crate) memory: Memory,
    /// Keeps the compiled file locked, so that the cache does not remove it.
    _code: Arc<Compiled>,
}

/// The component in the form from which wasmtime creates instances.
pub(crate) enum Pre {
    Provider(ProviderPre<CallState>),
    Prerequisite(PrerequisitePre<CallState>),
}

impl Linked {
    /// Links the component with the given imports and no others.
    pub(crate) fn new(
        name: String,
        ticker: Arc<Ticker>,
        rules: Rules,
        imports: Vec<Capability>,
        world: World,
        code: Arc<Compiled>,
    ) -> wasmtime::Result<Self> {
        let component = &code.component;
        let engine = component.engine().clone();
        let mut linker = Linker::<CallState>::new(&engine);
        types::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?;
        for import in &imports {
            match import {
                Capability::Log => log::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
                Capability::Clock => clock::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
                Capability::ShellEnvironment => {
                    shell_environment::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?;
                }
                Capability::Script => script::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
                Capability::Command => command::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
                Capability::File => file::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
                Capability::Network => network::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
                Capability::Mount => mount::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
                Capability::Process => process::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
                Capability::Secret => secret::add_to_linker::<_, HasSelf<CallState>>(&mut linker, |state| state)?,
            }
        }
        let pre = linker.instantiate_pre(component)?;
        let pre = match world {
            World::Provider => Pre::Provider(ProviderPre::new(pre)?),
            World::Prerequisite => Pre::Prerequisite(PrerequisitePre::new(pre)?),
        };
        Ok(Self {
            name,
            engine,
            ticker,
            bounds: Bounds::new(rules),
            imports,
            pre,
            shelf: Mutex::default(),
            memory: Memory::default(),
            _code: code,
        })
    }

    /// Restricts the plugin to the patterns that it declared as its wants, in addition to the grant.
    pub(crate) fn wants(&mut self, wanted: Patterns) {
        self.bounds = Bounds::new(Rules { wanted: Some(wanted), ..self.bounds.rules.clone() });
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.bounds.rules
    }

    /// Returns the variables that the call may pass to programs. Empty if the plugin cannot run programs.
    pub(crate) fn around(&self, environment: &[(String, Vec<u8>)], foreign: &[String]) -> PassThrough {
        let runs = self.imports.contains(&Capability::Command);
        if runs { PassThrough::new(environment, foreign) } else { PassThrough::default() }
    }

    pub(crate) fn world(&self) -> World {
        match self.pre {
            Pre::Provider(_) => World::Provider,
            Pre::Prerequisite(_) => World::Prerequisite,
        }
    }

    /// Calls the plugin's `describe` function and validates the description.
    pub(crate) async fn describe(&self, services: Arc<dyn Services>, limits: Limits) -> Result<Description, CallError> {
        let description: Description = self
            .run(services, limits, Places::default(), async |store| match &self.pre {
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
            Some(what) => Err(self.invalid(what)),
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports whether an instance waits for the next call, and no used store waits to be dropped.
    pub(crate) fn is_warm(&self) -> bool {
        let kept = self.shelf();
        kept.ready.is_some() && kept.used.is_empty()
    }

    /// Drops used stores. Reports whether an instance for the next call should be created.
    pub(crate) fn clear(&self) -> bool {
        let used = std::mem::take(&mut self.shelf().used);
        drop(used);
        self.shelf().ready.is_none()
    }

    /// Keeps an instance for the next call, if its memory is small.
    pub(crate) fn keep(&self, store: Store<CallState>, instance: Provider, limits: &Limits) {
        if store.data().accountant.memory() <= KEPT {
            self.shelf().ready = Some(Ready { store, instance, memory: limits.memory });
        }
    }

    /// Returns a kept instance if it was created with this memory limit.
    pub(crate) fn take(&self, limits: &Limits) -> Option<(Store<CallState>, Provider)> {
        let ready = self.shelf().ready.take().filter(|ready| ready.memory == limits.memory)?;
        Some((ready.store, ready.instance))
    }

    /// Keeps a used store, to be dropped outside of a call.
    pub(crate) fn put_away(&self, used: Store<CallState>) {
        let used_before = &mut self.shelf().used;
        if used_before.len() < USED {
            used_before.push(used);
        }
    }

    /// Runs one call in a new store within its limits.
    pub(crate) async fn run<T>(
        &self,
        services: Arc<dyn Services>,
        limits: Limits,
        places: Places,
        work: impl AsyncFnOnce(&mut Store<CallState>) -> wasmtime::Result<T>,
    ) -> Result<T, CallError> {
        let mut store = self.store(self.state(services, &limits, places));
        self.within(&mut store, limits, work).await
    }

    /// Creates the state of one call. The time of the call begins.
    pub(crate) fn state(&self, services: Arc<dyn Services>, limits: &Limits, places: Places) -> CallState {
        CallState::new(limits, Arc::clone(&self.bounds), services, places)
    }

    /// Reports whether a call's result depends on nothing but its input and on the host's answers that a transcript
    /// records.
    pub(crate) fn is_repeatable(&self) -> bool {
        let recorded = [Capability::Log, Capability::ShellEnvironment, Capability::Script];
        self.imports.iter().all(|import| recorded.contains(import))
    }

    /// Creates a store for one call.
    pub(crate) fn store(&self, state: CallState) -> Store<CallState> {
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.accountant);
        store.epoch_deadline_callback(|context| {
            if Instant::now() >= context.data().deadline {
                return Err(Exceeded::Time.into());
            }
            Ok(UpdateDeadline::Yield(1)) // a computing plugin must not block the thread
        });
        store
    }

    /// Runs work in a store within the limits of one call.
    pub(crate) async fn within<T>(
        &self,
        store: &mut Store<CallState>,
        limits: Limits,
        work: impl AsyncFnOnce(&mut Store<CallState>) -> wasmtime::Result<T>,
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

    /// Converts wasmtime's error into the limit or the trap that caused it.
    pub(crate) fn explain(&self, error: &wasmtime::Error, limits: &Limits, said: Option<String>) -> CallError {
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
        // wasmtime has no public type for this error. A test checks the text.
        if trap.contains("fuel allocated for hostcalls has been exhausted") {
            return CallError::Output { plugin, limit: limits.output };
        }
        CallError::Crashed { plugin, trap, said }
    }

    pub(crate) fn failed(&self, failure: types::Failure) -> CallError {
        CallError::Failed { plugin: self.name.clone(), failure: failure.into() }
    }

    pub(crate) fn not_a(&self, wanted: World) -> CallError {
        CallError::World { plugin: self.name.clone(), is: self.world(), wanted }
    }

    pub(crate) fn invalid(&self, what: String) -> CallError {
        CallError::Invalid { plugin: self.name.clone(), what }
    }
}
