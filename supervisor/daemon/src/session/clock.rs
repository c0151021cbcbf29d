//! The driver's clock: holds [`super::waits`] to their times.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::driver::{Broken, Driver};
use super::refresh::Refresh;
use super::state::Run;
use super::waits::{Patience, Wait, over, waits};
use agentd_api::quantity::Time;

impl Driver {
    /// Holds the clock to what is waited for; a wait that goes on keeps its time.
    pub(super) fn arm(&mut self) {
        if !matches!(self.state.run, Run::Running(_)) {
            self.refresh = Refresh::default();
        }
        let patience = self.patience();
        let (now, time) = (Instant::now(), Timestamp::now());
        let old = std::mem::take(&mut self.waits);
        self.waits = waits(&self.state, &self.facts())
            .into_iter()
            .filter(|wait| !matches!(wait, Wait::Expiry { .. }) || self.refresh.is_free())
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

    fn patience(&self) -> Patience {
        let (limits, launch) = (&self.world.config.limits, &self.world.config.launch);
        let own = &self.document.spec.limits;
        // Of a session's own limit, 0 is never; where it has none, the configuration's holds.
        let choose = |own: Option<u64>, configured: Option<Time>| match own {
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => configured.map(|span| span.0),
        };
        Patience {
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

    /// What has been waited for long enough. One at a time: what is recorded for it may end the others.
    pub(super) async fn expire(&mut self) -> Result<(), Broken> {
        let now = Instant::now();
        if self.refresh.is_due(now) {
            self.begin_refresh();
            return Ok(());
        }
        let Some(position) = self.waits.iter().position(|(_, until, _)| *until <= now) else { return Ok(()) };
        let (wait, _, limit) = self.waits.swap_remove(position);
        if matches!(wait, Wait::Restart { .. }) && self.world.launchable().is_err() {
            // It waits once more, until the configuration can be used.
            return Ok(());
        }
        if let Wait::Expiry { at } = wait {
            if at <= Timestamp::now() {
                self.begin_refresh();
            }
            return Ok(());
        }
        match over(&self.state, &wait, limit, &self.facts()) {
            Some(batch) => self.append(batch).await.map(drop),
            None => Ok(()),
        }
    }
}
