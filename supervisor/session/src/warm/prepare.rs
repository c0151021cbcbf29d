//! Starts an agent before its session exists: builds the environment of the session, and has the agent started in it.

use std::sync::Arc;

use agentd_api::event::LaunchReason;
use agentd_api::session::SessionSpec;
use agentd_api::{SessionId, chain};
use agentd_decide::acp;
use agentd_environment::SessionFile;

use crate::bringup;
use crate::generation::Generation;
use crate::launch::WarmKeeper;
use crate::launch_plan::LaunchPlan;

/// Number of the first request of a launch.
pub(super) const FIRST_REQUEST: u64 = 1;

/// Starts an agent for a later session with this specification. The error is a text for people.
pub(super) async fn prepare(generation: &Arc<Generation>, spec: &Arc<SessionSpec>) -> Result<WarmKeeper, String> {
    let mut plan = LaunchPlan::new(generation, &SessionId::random(), spec, 1);
    (plan.reason, plan.is_new) = (LaunchReason::Create, true);
    plan.reach().await.map_err(|problem| problem.detail)?;
    let permit = plan.permits.acquire().await.map_err(|error| error.to_string())?;
    let pipeline = plan.pipeline().await.map_err(|error| chain(&error))?;
    let built = pipeline.build(&plan.target(), &plan.daemon.trust, &plan.secrets).await;
    let built = built.map_err(|failure| failure.message)?;
    drop(permit);
    if !SessionFile::of(&built.environment, |_| true).is_empty() {
        return Err("its environment has files, which only a session has".to_owned());
    }
    let record = bringup::launch_record(&plan, &built, Vec::new()).await;
    let mut record = record.map_err(|failure| failure.message)?;
    let editor = generation.agent(spec).map_or(&[][..], |agent| &agent.editor);
    record.initialize = Some(acp::initialize(FIRST_REQUEST, editor));
    let limit = generation.config.limits.initialize.0;
    plan.daemon.launcher.warm_up(&plan.keeper, record, limit).await.map_err(|error| chain(&error))
}
