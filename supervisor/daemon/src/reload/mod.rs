//! Reloads the configuration. Each owner's part and each plugin is replaced separately.
//!
//! The new generation is built beside the generation in force and replaces it in one step. Launches in progress keep
//! their generation. Mistakes have these effects:
//!
//! - A mistake in the administrator's files leaves the whole configuration unchanged.
//! - A mistake in the user's file keeps the user's former part in force, beside the administrator's new part.
//! - A plugin that cannot be loaded is left out. A slow compilation is not waited for.
//!
//! The response lists each mistake. SIGHUP, `POST /v1/reload` and `agentctl reload` all reload this way.

mod agent;
mod edit;
mod keep;

use std::sync::Arc;

use agentd_api::configuration::Consequence;
use agentd_api::feed::{ConfigurationRefused, ConfigurationReloaded, Notice};
use agentd_api::plugin::ReloadView;
use agentd_api::{Code, Problem};
use tokio::sync::Mutex;

use agentd_api::chain;
use agentd_config::{self as config, Effects, Sources};
use agentd_control::{ReadOnlyEndpoint, TcpEndpoint};
use agentd_host::manager;
use agentd_plugin_set::SETTLED;
use agentd_session::Sessions;
use agentd_session::configuration_mistakes;
use agentd_session::generation::{Generation, Generations};
use agentd_traces::Traces;

use crate::serve::send_traces;

/// Everything outside of the generation that a configuration turns on and off.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    pub(crate) tcp: Arc<TcpEndpoint>,
    pub(crate) read_only: Arc<ReadOnlyEndpoint>,
    pub(crate) traces: Traces,
}

/// Carries out reloads. Shared between the control endpoint and the signal handler.
#[derive(Debug)]
pub(crate) struct Reload {
    sources: Sources,
    generations: Arc<Generations>,
    sessions: Arc<Sessions>,
    /// TCP listener, opened, changed or closed by each configuration.
    tcp: Arc<TcpEndpoint>,
    traces: Traces,
    /// The read-only socket, opened, moved or closed by each configuration.
    read_only: Arc<ReadOnlyEndpoint>,
    /// Serialises reloads, so that the last requested reload is the generation in force.
    running: Mutex<()>,
}

/// A generation built from the files that is not in force yet.
struct Next {
    generation: Generation,
    view: ReloadView,
}

impl Reload {
    pub(crate) fn new(
        sources: Sources,
        generations: Arc<Generations>,
        sessions: Arc<Sessions>,
        outputs: Outputs,
    ) -> Self {
        let Outputs { tcp, read_only, traces } = outputs;
        Self { sources, generations, sessions, tcp, traces, read_only, running: Mutex::new(()) }
    }

    /// Applies the configuration in the files. The error states why the configuration in force remains.
    pub(crate) async fn reload(&self) -> Result<ReloadView, Problem> {
        let _alone = self.running.lock().await;
        manager::reloading();
        let result = self.replace().await;
        match &result {
            Ok(view) => {
                tracing::info!(changed = ?view.changed, plugins = view.plugins, "reloaded the configuration");
                for mistake in &view.mistakes {
                    tracing::error!("{mistake}; {}", mistake.consequence.explained());
                }
            }
            Err(problem) => {
                tracing::error!(
                    problem = problem.detail,
                    "cannot reload the configuration; the previous configuration stays in force"
                );
            }
        }
        manager::ready();
        self.generations.now().daemon.changes.note(notice(&result));
        result
    }

    /// Reports the result of a reload without applying the configuration.
    pub(crate) async fn dry_run(&self) -> Result<ReloadView, Problem> {
        let _alone = self.running.lock().await;
        let Next { generation, mut view } = self.next().await?;
        if let Err(error) = self.tcp.check(&generation.config).await {
            view.mistakes.push(error.mistake(&generation.read, self.tcp.address()));
        }
        if let Err(error) = self.read_only.check(&generation.config).await {
            view.mistakes.push(error.mistake(&generation.read, self.read_only.path().as_deref()));
        }
        Ok(ReloadView { dry_run: true, ..view })
    }

    async fn replace(&self) -> Result<ReloadView, Problem> {
        let Next { generation, mut view } = self.next().await.inspect_err(|problem| {
            if !problem.particulars.mistakes.is_empty() {
                self.generations.now().daemon.standing.set(problem.particulars.mistakes.clone());
            }
        })?;
        let mut standing = generation.read.mistakes.clone();
        if let Err(error) = self.tcp.apply(&generation.config).await {
            let mistake = error.mistake(&generation.read, self.tcp.address());
            standing.push(mistake.clone());
            view.mistakes.push(mistake);
        }
        if let Err(error) = self.read_only.apply(&generation.config).await {
            let mistake = error.mistake(&generation.read, self.read_only.path().as_deref());
            standing.push(mistake.clone());
            view.mistakes.push(mistake);
        }
        // A plugin that could not be loaded may be loaded later, so plugins report their own state.
        generation.daemon.standing.set(standing);
        send_traces(&generation, &self.traces);
        self.generations.replace(generation);
        self.sessions.renew();
        Ok(view)
    }

    async fn next(&self) -> Result<Next, Problem> {
        let (sources, before) = (self.sources.clone(), self.generations.now());
        let of = Arc::clone(&before);
        let loaded = agentd_host::work::blocking(move || config::reload(&sources, &of.read))
            .await
            .map_err(|error| internal(&error))?;
        let loaded = loaded.map_err(|mistakes| {
            configuration_mistakes::problem(mistakes)
                .hint("the previous configuration stays in force; correct the file and reload again")
        })?;
        let generation = before.next(loaded);
        let plugins = generation.plugins_within(SETTLED).await.map_err(|error| internal(&error))?;
        let mut mistakes = generation.read.mistakes.clone();
        // A refused configuration loads no plugins. Plugins with configuration mistakes are among the mistakes
        // already.
        let failed = plugins.failed().filter(|(_, problem)| problem.code != Code::ConfigurationInvalid.as_str());
        mistakes.extend(failed.map(|(name, problem)| {
            let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
            let message = format!("cannot load the plugin \"{name}\": {}{hint}", problem.detail);
            generation.read.mistake(&["plugins", name], message, Consequence::LeftOut)
        }));
        let keys = generation.read.changed_since(&before.read);
        let changes: Vec<_> = keys.iter().map(|key| Effects::change(key)).collect();
        let view = ReloadView {
            files: generation.read.files.clone(),
            restart: Effects::at_the_next_start(&changes),
            changed: keys,
            plugins: plugins.count(),
            compiling: plugins.compiling(),
            changes,
            mistakes,
            dry_run: false,
        };
        Ok(Next { generation, view })
    }
}

/// Returns the event of a reload.
fn notice(result: &Result<ReloadView, Problem>) -> Notice {
    match result {
        Ok(view) => Notice::ConfigurationReloaded(ConfigurationReloaded {
            changed: view.changed.clone(),
            plugins: view.plugins,
            mistakes: view.mistakes.iter().map(ToString::to_string).collect(),
        }),
        Err(problem) => Notice::ConfigurationRefused(Box::new(ConfigurationRefused { problem: problem.clone() })),
    }
}

fn internal(error: &dyn std::error::Error) -> Problem {
    Problem::new(Code::Internal, chain(error))
}
