//! The start of an agent outside of a session, for a login or the removal of a conversation. The agent has the
//! environment that a launch would build.

use std::sync::Arc;

use agentd_api::login::AgentStart;
use agentd_api::session::SessionSpec;
use agentd_api::snapshot::TerminalVariable;
use agentd_api::{ByteString, Code, Problem, SessionId, chain};
use async_recursion::async_recursion as boxed;

use crate::Session;
use crate::bringup::program;
use crate::generation::Generation;
use crate::launch_plan::LaunchPlan;

/// Builds the environment of a launch outside of a session. With `session` the agent finds the conversation of that
/// session. The result contains secrets.
///
/// # Errors
///
/// The configuration has no such agent, the directory cannot be entered, the environment cannot be built, or it has no
/// such program.
#[boxed]
pub async fn agent_start(
    generation: &Arc<Generation>,
    spec: SessionSpec,
    session: Option<&Session>,
) -> Result<AgentStart, Problem> {
    let invalid = |detail: &str| Problem::new(Code::InvalidRequest, detail);
    if !spec.directory.is_absolute() {
        return Err(invalid("`directory` is not absolute").hint("name the directory in which the agent would work"));
    }
    let command = generation.agent_command(&spec)?;
    let mut plan = LaunchPlan::new(generation, &SessionId::random(), &Arc::new(spec), 1);
    if let Some(session) = session {
        plan.conversation_places.clone_from(&session.state().await?.conversation_places);
    }
    plan.reach().await?;
    let ending = |_| Problem::new(Code::TooBusy, "agentd is ending");
    let _permit = plan.permits.acquire().await.map_err(ending)?;
    let not_built = |message: String| Problem::new(Code::EnvironmentNotBuilt, message);
    let pipeline = plan.pipeline().await.map_err(|error| not_built(chain(&error)))?;
    let built = pipeline.build(&plan.target(), &plan.daemon.trust, &plan.secrets).await;
    let environment = built.map_err(|unbuilt| not_built(unbuilt.message))?.environment;
    let (first, rest) = command.split_first().ok_or_else(|| invalid("the agent's command is empty"))?;
    let found = program(&plan, &environment, first).await.map_err(|(_, message)| not_built(message))?;
    let variable =
        |(name, value): (&str, &[u8])| TerminalVariable { name: name.to_owned(), value: ByteString::from(value) };
    Ok(AgentStart {
        command: [found.display().to_string()].into_iter().chain(rest.iter().cloned()).collect(),
        environment: environment.pairs().map(variable).collect(),
    })
}
