//! The driver's clock: gives each wait of [`agentd_decide::waits`] its deadline, and acts when the deadline
//! passes.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::driver::{Driver, DriverError};
use super::refresh::RenewalState;
use agentd_api::quantity::Time;
use agentd_decide::state::Run;
use agentd_decide::waits::{Wait, WaitLimits, over, waits};

impl Driver {
    /// Sets the deadlines of the current waits. A wait that continues keeps its deadline.
    pub(super) fn arm(&mut self) {
        if !matches!(self.state.run, Run::Running(_)) {
            self.renewal = RenewalState::default();
        }
        let patience = self.patience();
        let (now, time) = (Instant::now(), Timestamp::now());
        let old = std::mem::take(&mut self.waits);
        self.waits = waits(&self.state, &self.facts())
            .into_iter()
            .filter(|wait| !matches!(wait, Wait::Expiry { .. }) || self.renewal.is_free())
            .filter_map(|wait| {
                let known = old.iter().find(|(known, _, _)| *known == wait);
                let (until, limit) = if let Some((_, until, limit)) = known {
                    (*until, *limit)
                } else {
                    let limit = patience.with(&wait, time)?;
                    (now.checked_add(limit)?, limit)
                };
                Some((wait, until, limit))
            })
            .collect();
        let restart = self.waits.iter().find(|(wait, _, _)| matches!(wait, Wait::Restart { .. }));
        self.next_restart = match (restart, self.next_restart) {
            (None, _) => None,
            (Some((wait, _, _)), Some(known)) if old.iter().any(|(before, _, _)| before == wait) => Some(known),
            (Some((_, until, _)), _) => {
                let rest = until.saturating_duration_since(now);
                Timestamp::now().checked_add(rest).ok()
            }
        };
    }

    fn patience(&self) -> WaitLimits {
        let (limits, launch) = (&self.generation.config.limits, &self.generation.config.launch);
        let own = &self.document.spec.limits;
        // In a session's own limit 0 means no limit. Without an own limit the configured one applies.
        let choose = |own: Option<u64>, configured: Option<Time>| match own {
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => configured.map(|span| span.0),
        };
        WaitLimits {
            initialize: limits.initialize.0,
            open: limits.open_conversation.0,
            turn: choose(own.turn_seconds, Some(limits.turn)),
            cancel: limits.cancel.0,
            silence: Some(limits.silence.0).filter(|silence| !silence.is_zero()),
            idle: choose(own.idle_seconds, limits.idle),
            permission: choose(own.permission_seconds, limits.permission),
            restart_first: launch.restart_first.0,
            restart_longest: launch.restart_longest.0,
        }
    }

    /// Handles one expired wait. Only one at a time, since its records may end the others.
    pub(super) async fn expire(&mut self) -> Result<(), DriverError> {
        let now = Instant::now();
        if self.renewal.is_due(now) {
            self.begin_renewal();
            return Ok(());
        }
        let Some(position) = self.waits.iter().position(|(_, until, _)| *until <= now) else { return Ok(()) };
        let (wait, _, limit) = self.waits.swap_remove(position);
        if matches!(wait, Wait::Restart { .. }) && self.generation.launchable().is_err() {
            // The restart waits further, until the configuration allows launches.
            return Ok(());
        }
        if let Wait::Expiry { at } = wait {
            if at <= Timestamp::now() {
                self.begin_renewal();
            }
            return Ok(());
        }
        match over(&self.state, &wait, limit, &self.facts()) {
            Some(batch) => self.append(batch).await.map(drop),
            None => Ok(()),
        }
    }
}
