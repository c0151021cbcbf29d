//! Implements the operations that the control endpoint requests from the daemon.

use std::sync::Arc;

use agentd_api::Problem;
use agentd_api::agents::{AgentAddRequest, AgentAddView};
use agentd_api::doctor::DoctorView;
use agentd_api::hook::{HookList, HookTestView};
use agentd_api::keep::{KeepRequest, KeepView};
use agentd_api::plugin::ReloadView;
use async_trait::async_trait;

use crate::doctor::{Clocks, examine, hooks, schedules};
use crate::reload::Reload;
use agentd_control::Operations;
use agentd_hooks::Hooks;
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
    pub(crate) hooks: Arc<Hooks>,
    /// Wall clock and monotonic clock at the daemon's start.
    pub(crate) started: Clocks,
}

#[async_trait]
impl Operations for Supervisor {
    async fn reload(&self) -> Result<ReloadView, Problem> {
        let view = self.reload.reload().await?;
        // A client that reloads can rely on its new hooks.
        self.hooks.settle().await;
        Ok(view)
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
        view.checks.push(hooks::check(&self.hooks.list().await));
        view
    }

    async fn hooks(&self) -> HookList {
        self.hooks.list().await
    }

    async fn test_hook(&self, name: &str) -> Result<HookTestView, Problem> {
        self.hooks.test(name).await
    }
}
