//! Takes over a changed specification.

use agentd_api::spec::{ChangedField, Effect};

use super::Driver;

impl Driver {
    /// Takes over a changed specification. A launch that has not started its agent begins again with it.
    pub(super) async fn take_over_spec(&mut self) {
        let changes = std::mem::take(&mut self.recorder.spec_changes);
        if changes.is_empty() {
            return;
        }
        self.terms.renew(&self.recorder.document, &self.recorder.state);
        self.timers.limits_changed();
        if changes.iter().any(concerns_launch) {
            self.launching.bring_up = None;
        }
        // The next daemon finds the session by its new name before it has read the journal.
        self.recorder.remember_now().await;
    }
}

/// Reports whether a launch that is under way needs the change.
fn concerns_launch(change: &ChangedField) -> bool {
    change.effect == Effect::NextLaunch || matches!(change.field.as_str(), "requires" | "tags")
}
