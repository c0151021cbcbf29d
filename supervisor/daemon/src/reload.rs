//! Reading the configuration again: each owner's part, and each plugin, for itself.
//!
//! What is new is made beside what is in force, and takes its place in one step; launches under way keep what they began with. A mistake in
//! the administrator's files leaves everything as it was. One in the user's file leaves the user's former part in force beside what the
//! administrator says now. A plugin that cannot be loaded is left out, and one that takes long to compile is not waited for. The answer
//! names each. SIGHUP, `POST /v1/reload` and `agentctl reload` all do this.

mod keep;

use std::sync::Arc;

use agentd_api::configuration::Consequence;
use agentd_api::plugin::ReloadView;
use agentd_api::{Code, Problem};
use tokio::sync::Mutex;

use crate::config::{self, Effects, Sources};
use crate::manager;
use crate::message::chain;
use crate::plugins::SETTLED;
use crate::session::Sessions;
use crate::standing;
use crate::world::{World, Worlds};

/// What reloads. Shared.
#[derive(Debug)]
pub(crate) struct Reload {
    sources: Sources,
    worlds: Arc<Worlds>,
    sessions: Arc<Sessions>,
    /// One at a time, so that the last one to be asked for is the one in force.
    running: Mutex<()>,
}

/// The configuration that is in the files, made and not in force.
struct Next {
    world: World,
    view: ReloadView,
}

impl Reload {
    pub(crate) fn new(sources: Sources, worlds: Arc<Worlds>, sessions: Arc<Sessions>) -> Self {
        Self { sources, worlds, sessions, running: Mutex::new(()) }
    }

    /// Takes the configuration that is in the files now into use, or says why everything stays as it is.
    pub(crate) async fn reload(&self) -> Result<ReloadView, Problem> {
        let _alone = self.running.lock().await;
        manager::reloading();
        let result = self.replace().await;
        match &result {
            Ok(view) => {
                tracing::info!(changed = ?view.changed, plugins = view.plugins, "the configuration was read again");
                for mistake in &view.mistakes {
                    tracing::error!("{mistake}; {}", mistake.consequence.explained());
                }
            }
            Err(problem) => {
                tracing::error!(
                    problem = problem.detail,
                    "the configuration stays as it was: what is in the files cannot be used"
                );
            }
        }
        manager::ready();
        result
    }

    /// Says what a reload would do, and does nothing of it.
    pub(crate) async fn dry_run(&self) -> Result<ReloadView, Problem> {
        let _alone = self.running.lock().await;
        let Next { world, mut view } = self.next().await?;
        if let Err(error) = world.tcp.check(&world.config).await {
            view.mistakes.push(error.mistake(&world.read, world.tcp.address()));
        }
        Ok(ReloadView { dry_run: true, ..view })
    }

    async fn replace(&self) -> Result<ReloadView, Problem> {
        let Next { world, mut view } = self.next().await.inspect_err(|problem| {
            if !problem.particulars.mistakes.is_empty() {
                self.worlds.now().standing.set(problem.particulars.mistakes.clone());
            }
        })?;
        let mut standing = world.read.mistakes.clone();
        if let Err(error) = world.tcp.apply(&world.config).await {
            let mistake = error.mistake(&world.read, world.tcp.address());
            standing.push(mistake.clone());
            view.mistakes.push(mistake);
        }
        // A plugin that could not be loaded may be loaded later: how it stands, it says itself.
        world.standing.set(standing);
        self.worlds.replace(world);
        self.sessions.renew();
        Ok(view)
    }

    async fn next(&self) -> Result<Next, Problem> {
        let (sources, before) = (self.sources.clone(), self.worlds.now());
        let of = Arc::clone(&before);
        let loaded = tokio::task::spawn_blocking(move || config::load_again(&sources, &of.read))
            .await
            .map_err(|error| internal(&error))?;
        let loaded = loaded.map_err(|mistakes| {
            standing::problem(mistakes)
                .hint("the configuration that was in force before still is; correct the file and reload again")
        })?;
        let world = before.again(loaded);
        let plugins = world.plugins_within(SETTLED).await.map_err(|error| internal(&error))?;
        let mut mistakes = world.read.mistakes.clone();
        // Under a configuration that is refused none is loaded, and those with a mistake are among the mistakes.
        let failed = plugins.failed().filter(|(_, problem)| problem.code != Code::ConfigurationInvalid.as_str());
        mistakes.extend(failed.map(|(name, problem)| {
            let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
            let message = format!("the plugin \"{name}\" cannot be loaded: {}{hint}", problem.detail);
            world.read.mistake(&["plugins", name], message, Consequence::LeftOut)
        }));
        let keys = world.read.changed_since(&before.read);
        let changes: Vec<_> = keys.iter().map(|key| Effects::change(key)).collect();
        let view = ReloadView {
            files: world.read.files.clone(),
            restart: Effects::at_the_next_start(&changes),
            changed: keys,
            plugins: plugins.len(),
            compiling: plugins.compiling(),
            changes,
            mistakes,
            dry_run: false,
        };
        Ok(Next { world, view })
    }
}

fn internal(error: &dyn std::error::Error) -> Problem {
    Problem::new(Code::Internal, chain(error))
}
