//! Evaluates the staleness of a session without a launch, and translates the configured policies.

use std::sync::Arc;

use agentd_api::staleness::{StaleFinding, StaleKind, StalePolicy};
use agentd_config::Staleness;
use agentd_decide::staleness::{Present, StalenessSettings, compare};
use agentd_host::workspace::{self, WorkspaceError};
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::Session;
use crate::environment;
use crate::facts::{Purpose, read};
use crate::generation::Generation;

/// Returns the policies for the rules.
pub(crate) fn settings(configured: &Staleness) -> StalenessSettings {
    StalenessSettings {
        directory: configured.directory,
        repository: configured.repository,
        branch: configured.branch,
        head: configured.head,
        scripts: configured.scripts,
        unused: configured.unused,
        environment: configured.environment,
        agent_version: configured.agent_version,
        unused_after: configured.unused_after.0,
    }
}

/// Returns the findings that a launch of the session would have now. Those about the environment and the agent's
/// version are known to a launch only. A session with an agent has the findings of its last launch.
#[boxed]
pub async fn look(generation: &Arc<Generation>, session: &Session) -> Vec<StaleFinding> {
    let (view, baseline) = session.view_and_baseline();
    if !view.status.phase.is_over() {
        return view.status.staleness.clone();
    }
    if generation.is_elsewhere(&view.spec) {
        return Vec::new();
    }
    let directory = &view.spec.directory;
    let checked = workspace::check_all(&generation.daemon.machine, &view.spec.all_directories()).await;
    if let Err(error) = checked {
        return unusable(&error).into_iter().collect();
    }
    let home = generation.config.environment.home_directory();
    let facts = read(&generation.daemon, home.as_deref(), directory, Purpose::Other).await;
    let scripts = match generation.pipeline().await {
        Ok(pipeline) => {
            let places = environment::places_under(
                &generation.daemon.directories,
                session.id(),
                (&view.spec, view.active_workflow()),
            );
            Some(pipeline.script_digests(&places, &generation.daemon.trust).await)
        }
        Err(_) => None,
    };
    let settings = settings(&generation.config.staleness);
    let present = Present { directory, facts: &facts, scripts: scripts.as_ref(), time: Timestamp::now() };
    compare(&baseline, &present, &settings).iter().filter_map(|one| one.finding(&settings)).collect()
}

/// Returns the finding for a directory in which no agent can be started. A silent directory may be unchanged.
fn unusable(error: &WorkspaceError) -> Option<StaleFinding> {
    if matches!(error, WorkspaceError::Silent { .. } | WorkspaceError::Unknown { .. }) {
        return None;
    }
    let (reason, message) = (error.reason().to_owned(), error.to_string());
    Some(StaleFinding { kind: StaleKind::Directory, reason, message, policy: StalePolicy::Refuse })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_gone_is_stale_and_one_that_is_silent_may_be_unchanged() {
        let path = std::path::PathBuf::from("/work");
        let gone = unusable(&WorkspaceError::Gone { path: path.clone() }).unwrap();
        assert_eq!((gone.reason.as_str(), gone.policy), ("DirectoryGone", StalePolicy::Refuse));
        assert_eq!(unusable(&WorkspaceError::Silent { path, reason: "no".to_owned() }), None);
    }
}
