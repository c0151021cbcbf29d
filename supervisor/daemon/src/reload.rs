//! Reading the configuration again: the whole of it with all its plugins, or nothing.
//!
//! What is new is made beside what is in force, and takes its place in one step when nothing is wrong with it; launches under way
//! keep what they began with. SIGHUP, `POST /v1/reload` and so `agentctl reload` are this.

use std::sync::Arc;

use agentd_api::plugin::ReloadView;
use agentd_api::{Code, Problem};
use tokio::sync::Mutex;

use crate::config::{self, Sources};
use crate::directories::DirectoryError;
use crate::manager;
use crate::message::chain;
use crate::session::Sessions;
use crate::world::{AT_START, Worlds};

/// What reloads. Shared.
#[derive(Debug)]
pub(crate) struct Reload {
    sources: Sources,
    worlds: Arc<Worlds>,
    sessions: Arc<Sessions>,
    /// One at a time, so that the last one to be asked for is the one in force.
    running: Mutex<()>,
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

    async fn replace(&self) -> Result<ReloadView, Problem> {
        let sources = self.sources.clone();
        let loaded =
            tokio::task::spawn_blocking(move || config::load(&sources)).await.map_err(|error| internal(&error))?;
        let loaded = loaded.map_err(|error| {
            Problem::new(Code::ConfigurationInvalid, chain(&error))
                .hint("the configuration that was in force before still is; correct the file and reload again")
        })?;
        let before = self.worlds.now();
        let next = before.again(loaded).map_err(|error: DirectoryError| internal(&error))?;
        let plugins = next.plugins().await.map_err(|error| internal(&error))?;
        let failed: Vec<_> = plugins.failed().collect();
        if let Some((_, problem)) = failed.first() {
            let each: Vec<String> =
                failed.iter().map(|(name, problem)| format!("plugins.{name}: {}", problem.detail)).collect();
            let hint = problem.hint.clone().map(|hint| format!("{hint}; ")).unwrap_or_default();
            return Err(Problem::new(Code::PluginUnusable, each.join("; "))
                .hint(format!("{hint}the plugins that were in force before still are")));
        }
        let changed = next.read.changed_since(&before.read);
        let restart = changed.iter().filter(|key| AT_START.iter().any(|at_start| within(at_start, key)));
        let view = ReloadView {
            files: next.read.files.clone(),
            restart: restart.cloned().collect(),
            changed,
            plugins: plugins.len(),
        };
        self.worlds.replace(next);
        self.sessions.renew();
        Ok(view)
    }
}

/// Whether the key is what is named, or a table that it stands in.
fn within(named: &str, key: &str) -> bool {
    named.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn internal(error: &dyn std::error::Error) -> Problem {
    Problem::new(Code::Internal, chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_takes_effect_at_the_start_is_known_by_its_table_too() {
        assert!(within("limits.connections", "limits.connections") && within("limits.connections", "limits"));
        assert!(!within("limits.connections", "limits.con") && !within("limits.connections", "limits.connections.x"));
    }
}
