//! Implements the operations that the control endpoint requests from the daemon.

use std::sync::Arc;

use agentd_api::Problem;
use agentd_api::agents::{AgentAddRequest, AgentAddView};
use agentd_api::doctor::DoctorView;
use agentd_api::keep::{KeepRequest, KeepView};
use agentd_api::plugin::ReloadView;
use async_trait::async_trait;

use crate::doctor::{Clocks, examine, schedules};
use crate::reload::Reload;
use agentd_control::Operations;
use agentd_session::Sessions;
use agentd_session::generation::Generations;
use agentd_session::schedules::Schedules;

/// Carries out [`Operations`] with the daemon's parts.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) reload: Arc<Reload>,
    pub(crate) generations: Arc<Generations>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) schedules: Arc<Schedules>,
    /// Wall clock and monotonic clock at the daemon's start.
    pub(crate) started: Clocks,
}

#[async_trait]
impl Operations for Supervisor {
    async fn reload(&self) -> Result<ReloadView, Problem> {
        self.reload.reload().await
    }

    async fn reload_dry_run(&self) -> Result<ReloadView, Problem> {
        self.reload.dry_run().await
    }

    async fn keep(&self, request: &KeepRequest) -> Result<KeepView, Problem> {
        self.reload.keep(request).await
    }

    async fn add_agent(&self, request: &AgentAddRequest) -> Result<AgentAddView, Problem> {
        self.reload.add_agent(request).await
    }

    async fn doctor(&self) -> DoctorView {
        let mut view = examine(&self.generations.now(), &self.sessions, self.started).await;
        view.checks.push(schedules::check(&self.schedules.list()));
        view
    }
}
