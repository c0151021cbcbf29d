//! The operations of the daemon that the endpoint calls. The endpoint itself implements no reload and no
//! examination.

use std::fmt::Debug;

use agentd_api::Problem;
use agentd_api::agents::{AgentAddRequest, AgentAddView};
use agentd_api::doctor::DoctorView;
use agentd_api::hook::{HookList, HookTestView};
use agentd_api::keep::{KeepRequest, KeepView};
use agentd_api::plugin::ReloadView;
use async_trait::async_trait;

/// The daemon, as its control endpoint calls it.
#[async_trait]
pub trait Operations: Debug + Send + Sync {
    /// Reads the configuration again and puts it in force.
    ///
    /// # Errors
    ///
    /// The files cannot be used. The former configuration stays in force.
    async fn reload(&self) -> Result<ReloadView, Problem>;

    /// Reports what [`Self::reload`] would do, and changes nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::reload`].
    async fn reload_dry_run(&self) -> Result<ReloadView, Problem>;

    /// Adds names to a list of variables that the whitelist keeps, in the user's configuration file, and reloads.
    ///
    /// # Errors
    ///
    /// The request is invalid, or the file cannot be written.
    async fn keep(&self, request: &KeepRequest) -> Result<KeepView, Problem>;

    /// Adds an agent to the user's configuration file, and reloads.
    ///
    /// # Errors
    ///
    /// The request is invalid, the configuration has the agent, or the file cannot be written.
    async fn add_agent(&self, request: &AgentAddRequest) -> Result<AgentAddView, Problem>;

    /// Examines the daemon's own health.
    async fn doctor(&self) -> DoctorView;

    /// Lists the hooks with the state of their deliveries.
    async fn hooks(&self) -> HookList;

    /// Sends a test event to a hook.
    ///
    /// # Errors
    ///
    /// The configuration has no such hook.
    async fn test_hook(&self, name: &str) -> Result<HookTestView, Problem>;
}
