//! Takes over a changed specification.

use agentd_api::spec::{ChangedField, Effect};

use super::Driver;

impl Driver {
    /// Takes over a changed specification, as another configuration. A launch that has not started its agent begins
    /// again if it needs the change.
    pub(super) async fn take_over_spec(&mut self) {
        let changes = std::mem::take(&mut self.recorder.spec_changes);
        if changes.is_empty() {
            return;
        }
        self.renew();
        self.timers.limits_changed();
        let begins_again = |change: &ChangedField| {
            change.effect == Effect::NextLaunch || ["repos", "workflow"].contains(&&*change.field)
        };
        if changes.iter().any(begins_again) {
            self.launching.bring_up = None;
        }
        // The next daemon finds the session by its new name before it has read the journal.
        self.recorder.remember(true).await;
    }
}
