//! Hooks: tells programs, addresses and the desktop of events, in order and at least once.
//!
//! Each hook has one task (`worker`), a reader of the feed and a stored position. The feed itself is the queue, so a
//! receiver that hangs delays no session, no other hook and not the feed. At most eight attempts run at a time.
//!
//! **Promises.** The events of a hook arrive in the order of the feed. The position is stored after an event was
//! delivered or dropped, so a killed daemon delivers that event again, with the same id. A new hook begins with the
//! events after its begin.
//!
//! This crate does not decide which sessions need a person: it reads the condition `NeedsAttention`.

mod body;
mod command;
mod deliver;
mod desktop;
mod message;
mod position;
mod post;
mod retry;
mod send;
mod signature;
mod status;
mod tls;
mod tracker;
mod worker;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::hook::{HookList, HookTestView};
use agentd_api::{Code, Problem, hint};
use agentd_config::Hook;
use agentd_feed::Feed;
use agentd_session::Sessions;
use agentd_session::generation::{Generation, Generations};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use send::Sender;
use status::HookStatus;
use worker::Worker;

/// Maximum number of attempts that run at a time.
const AT_ONCE: usize = 8;
/// Interval at which the metrics of the lag are set.
const MEASURED: Duration = Duration::from_secs(5);
/// Time for which the end of the daemon waits for the hooks.
const LAST: Duration = Duration::from_secs(3);

/// The parts of the daemon that every hook uses.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) generations: Arc<Generations>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) feed: Arc<Feed>,
    /// Directory of the positions.
    pub(crate) directory: PathBuf,
    pub(crate) permits: Semaphore,
}

/// The hooks of one daemon.
#[derive(Debug)]
pub struct Hooks {
    surroundings: Arc<Surroundings>,
    running: Mutex<Running>,
}

/// The hooks at work.
#[derive(Debug, Default)]
struct Running {
    /// Number of the generation whose hooks these are.
    generation: u64,
    hooks: BTreeMap<String, Entry>,
    is_closed: bool,
}

/// A hook at work.
#[derive(Debug)]
struct Entry {
    hook: Hook,
    sender: Arc<Sender>,
    status: Arc<HookStatus>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Entry {
    /// Stops the task. An attempt that has begun is abandoned, and made again from the stored position.
    async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

impl Hooks {
    /// Creates the hooks. [`Self::run`] starts them. `directory` has their positions.
    pub fn new(generations: Arc<Generations>, sessions: Arc<Sessions>, feed: Arc<Feed>, directory: PathBuf) -> Self {
        let permits = Semaphore::new(AT_ONCE);
        let surroundings = Arc::new(Surroundings { generations, sessions, feed, directory, permits });
        Self { surroundings, running: Mutex::default() }
    }

    /// Starts the hooks, and follows each change of the configuration until [`Self::close`].
    pub async fn run(self: Arc<Self>) {
        let mut generations = self.surroundings.generations.subscribe();
        let mut measuring = tokio::time::interval(MEASURED);
        loop {
            self.settle().await;
            self.measure().await;
            tokio::select! {
                changed = generations.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                _ = measuring.tick() => {}
            }
            if self.running.lock().await.is_closed {
                return;
            }
        }
    }

    /// Starts, stops and changes hooks as the configuration in force has them. Afterwards each new hook has its
    /// position. A hook that fails or is disabled begins again.
    pub async fn settle(&self) {
        let mut running = self.running.lock().await;
        let generation = self.surroundings.generations.now();
        if running.is_closed || running.generation == generation.number {
            return;
        }
        running.generation = generation.number;
        let wanted: BTreeMap<String, Hook> =
            generation.config.hooks.iter().map(|hook| (hook.name(), hook.clone())).collect();
        for (name, entry) in std::mem::take(&mut running.hooks) {
            if wanted.get(&name) == Some(&entry.hook) && entry.status.is_working() {
                running.hooks.insert(name, entry);
            } else {
                entry.stop().await;
            }
        }
        self.forget(&generation, &wanted).await;
        // A new hook begins after everything that happened before, and the feed is open then.
        self.surroundings.feed.catch_up().await;
        for (name, hook) in wanted {
            if let MapEntry::Vacant(place) = running.hooks.entry(name) {
                let entry = self.start(place.key().clone(), hook, &generation).await;
                place.insert(entry);
            }
        }
    }

    async fn start(&self, name: String, hook: Hook, generation: &Generation) -> Entry {
        let (sender, stop) = (Arc::new(Sender::new(name.clone(), hook.clone())), CancellationToken::new());
        let metrics = Arc::clone(&generation.daemon.metrics);
        let status = Arc::new(HookStatus::new(name, metrics));
        let surroundings = Arc::clone(&self.surroundings);
        let mut worker = Worker::new(surroundings, Arc::clone(&sender), Arc::clone(&status), stop.clone());
        worker.begin().await;
        Entry { hook, sender, status, stop, task: tokio::spawn(worker.run()) }
    }

    /// Removes the positions of hooks that the configuration no longer has. With a mistake in the configuration, a
    /// hook may be missing by mistake too, so the positions stay.
    async fn forget(&self, generation: &Generation, wanted: &BTreeMap<String, Hook>) {
        if !generation.read.mistakes.is_empty() {
            return;
        }
        let (directory, names) = (self.surroundings.directory.clone(), wanted.keys().cloned().collect());
        let forgotten = agentd_host::work::blocking(move || position::forget(&directory, &names)).await;
        if let Ok(Err(error)) = forgotten {
            tracing::warn!(%error, "cannot remove the positions of former hooks");
        }
    }

    /// Sets the metrics of the lag.
    async fn measure(&self) {
        let running = self.running.lock().await;
        let last = *self.surroundings.feed.watch().borrow();
        let metrics = &self.surroundings.generations.now().daemon.metrics;
        metrics.replace(|metrics| {
            metrics.hook_lag.reset();
            for (name, entry) in &running.hooks {
                #[allow(clippy::cast_precision_loss, reason = "a lag is far below 2^52")]
                metrics.hook_lag.set([metrics.hook(name)], entry.status.lag(last) as f64);
            }
        });
    }

    /// Lists the hooks with the state of their deliveries, in the order of the configuration.
    pub async fn list(&self) -> HookList {
        let running = self.running.lock().await;
        let last = *self.surroundings.feed.watch().borrow();
        let config = &self.surroundings.generations.now().config;
        let entries = config.hooks.iter().filter_map(|hook| running.hooks.get(&hook.name()));
        HookList { hooks: entries.map(|entry| entry.status.view(&entry.hook, last)).collect() }
    }

    /// Sends a test event, also to a hook that is disabled. The position of the hook stays.
    ///
    /// # Errors
    ///
    /// The configuration has no such hook.
    pub async fn test(&self, name: &str) -> Result<HookTestView, Problem> {
        let sender = self.running.lock().await.hooks.get(name).map(|entry| Arc::clone(&entry.sender));
        let Some(sender) = sender else {
            return Err(Problem::new(Code::NoSuchHook, format!("there is no hook {name:?}")).hint(hint::LIST_HOOKS));
        };
        Ok(worker::test(&self.surroundings, &sender).await)
    }

    /// Ends the hooks. Events that are not delivered yet are delivered by the next daemon.
    pub async fn close(&self) {
        let ending = async {
            let mut running = self.running.lock().await;
            running.is_closed = true;
            for entry in std::mem::take(&mut running.hooks).into_values() {
                entry.stop().await;
            }
        };
        if tokio::time::timeout(LAST, ending).await.is_err() {
            tracing::warn!("the hooks did not end in time; the next daemon may repeat their last events");
        }
    }
}
