//! Decides which parts of an environment a degraded launch leaves out when they fail.
//!
//! The whitelist is never left out: without it, variables that agents must not receive would reach the agent. A
//! provider is left out as a whole, because its answer is one list of changes. A script of agentd's own `env-script`
//! is left out alone.

use agentd_api::degraded::{MissingKind, MissingPart};
use agentd_config::{SNAPSHOT, WHITELIST};
use agentd_plugin_host::{Failure, SourcedScript};
use agentd_plugin_set::PipelineStep;

use super::services::CallServices;
use crate::lock::locked;

/// Reports whether a degraded launch may leave out the step.
pub(super) fn may_be_left_out(step: &PipelineStep) -> bool {
    !(step.plugin.is_built_in() && step.plugin.name == WHITELIST)
}

/// Reports whether the step gives the environment of the login shell or of a terminal.
pub(super) fn is_snapshot(step: &PipelineStep) -> bool {
    step.plugin.is_built_in() && step.plugin.name == SNAPSHOT
}

/// Failed and left out providers of a build.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Messages of the providers that every launch skips.
    pub(super) skipped: Vec<String>,
    /// Providers that only a degraded launch leaves out.
    pub(super) without: Vec<MissingPart>,
    pub(super) is_without_snapshot: bool,
}

impl LeftOut {
    /// Adds a provider that failed and did not end the build.
    pub(super) fn add(&mut self, step: &PipelineStep, message: String) {
        if step.plugin.is_skipped_on_failure() {
            self.skipped.push(message);
            return;
        }
        self.is_without_snapshot |= is_snapshot(step);
        self.without.push(MissingPart { kind: MissingKind::Provider, name: step.name.clone(), message });
    }
}

impl CallServices {
    /// Reports whether a script of this call is left out when it fails. Other providers than agentd's own may depend
    /// on the script, so they fail with it.
    pub(super) fn leaves_out_scripts(&self) -> bool {
        self.is_degraded && self.granted.is_none()
    }

    /// Leaves out a script, as if it had changed nothing. A script that does not exist is the provider's concern.
    pub(super) async fn leave_out(
        &self,
        path: &str,
        environment: Vec<(String, Vec<u8>)>,
        failure: Failure,
    ) -> Result<SourcedScript, Failure> {
        if matches!(failure, Failure::NotFound(_)) {
            return Err(failure);
        }
        // The provider continues, so these do not explain its later failure.
        (*locked(&self.unapproved), *locked(&self.failed)) = (None, None);
        let file = self.located(vec![path.to_owned()]).await.ok().and_then(|mut files| files.pop());
        let name = file.map_or_else(|| path.to_owned(), |(place, _)| place.script.display().to_string());
        locked(&self.without).push(MissingPart { kind: MissingKind::Script, name, message: reason(failure) });
        Ok(SourcedScript { path: path.to_owned(), environment })
    }
}

/// Returns the host's message about a script, without the kind of the failure.
fn reason(failure: Failure) -> String {
    match failure {
        Failure::NotApproved(text) | Failure::TimedOut(text) | Failure::Unavailable(text) | Failure::Failed(text) => {
            text
        }
        other => other.to_string(),
    }
}
