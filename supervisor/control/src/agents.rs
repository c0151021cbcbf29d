//! The known and the configured agents: whether each is installed, its version and its login. Adds agents to the user's
//! configuration.

use std::sync::Arc;

use agentd_api::agents::{AgentAddRequest, AgentState, Catalogue, LoginState};
use agentd_api::{Code, Problem};
use agentd_catalogue::{KnownAgent, LoginSign, all, by_name};
use agentd_config::{Agent, DEMO};
use agentd_session::generation::Generation;
use agentd_session::{agent_look, refused_logins};
use hyper::Request;
use tokio::task::JoinSet;

use super::handlers::{Answer, read, to_the_end};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;

/// An agent to look for.
#[derive(Debug)]
struct Wanted {
    /// Name in the configuration. Without one, a known agent that is not configured.
    name: Option<String>,
    command: Vec<String>,
    known: Option<&'static KnownAgent>,
}

pub(super) async fn add(context: &Context, request: Request<RequestBody>) -> Answer {
    let wish: AgentAddRequest = read(context, request).await?;
    let operations = Arc::clone(&context.operations);
    let added = async move { operations.add_agent(&wish).await };
    json(&to_the_end(added).await?)
}

/// Lists the configured agents, then the known agents that are not configured. `only` names one.
pub(super) async fn catalogue(context: &Context, only: Option<String>, versions: bool) -> Answer {
    let generation = &context.generation;
    generation.launchable()?;
    let mut wanted: Vec<Wanted> = generation
        .agents()
        .into_iter()
        .map(|(name, command)| {
            let known = generation.config.agent(&name).and_then(Agent::known);
            Wanted { name: Some(name), command, known }
        })
        .collect();
    if let Some(only) = &only {
        wanted.retain(|one| one.name.as_ref() == Some(only));
        if wanted.is_empty() {
            wanted.extend(by_name(only).map(not_configured));
        }
        if wanted.is_empty() {
            let names: Vec<&str> = all().iter().map(KnownAgent::name).collect();
            let detail = format!("there is neither a configured nor a known agent {only:?}");
            return Err(Problem::new(Code::NoSuchAgent, detail).hint(format!("known agents: {}", names.join(", "))));
        }
    }
    let mut agents = look(generation, wanted, versions).await;
    if only.is_none() {
        // A known agent that is configured under another name is not listed again.
        let is_listed = |known: &&KnownAgent| agents.iter().any(|one| one.like.as_deref() == Some(known.name()));
        let rest = all().iter().filter(|known| !is_listed(known)).map(not_configured).collect();
        agents.extend(look(generation, rest, versions).await);
    } else {
        for agent in &mut agents {
            let known = agent.like.as_deref().and_then(by_name);
            agent.known = known.and_then(|known| serde_json::to_value(known).ok());
        }
    }
    let sessions = context.sessions.list().await;
    let refused = refused_logins(&sessions);
    for agent in agents.iter_mut().filter(|agent| agent.configured) {
        // A refusal shows more than a file or a key, which may have expired.
        if let Some((_, condition)) = refused.get(&agent.name) {
            (agent.login, agent.login_from) = (LoginState::Refused, Some(condition.message.clone()));
        }
    }
    json(&Catalogue { agents })
}

fn not_configured(known: &'static KnownAgent) -> Wanted {
    Wanted { name: None, command: known.agentd.command.clone(), known: Some(known) }
}

/// Looks for the agents, some at a time. The result has their order.
async fn look(generation: &Arc<Generation>, wanted: Vec<Wanted>, versions: bool) -> Vec<AgentState> {
    let mut tasks = JoinSet::new();
    for (number, one) in wanted.into_iter().enumerate() {
        let generation = Arc::clone(generation);
        tasks.spawn(async move { (number, state(&generation, one, versions).await) });
    }
    let mut states = tasks.join_all().await;
    states.sort_by_key(|(number, _)| *number);
    states.into_iter().map(|(_, state)| state).collect()
}

/// Looks for an agent. The number of launches bounds the environments that are built at once.
async fn state(generation: &Arc<Generation>, wanted: Wanted, versions: bool) -> AgentState {
    let found = agent_look(generation, wanted.name.as_deref(), &wanted.command).await;
    let known = match (wanted.known, &found) {
        (None, Ok(look)) => look.recognised(&wanted.command).await,
        (known, _) => known,
    };
    let version = match &found {
        Ok(look) if versions && look.found.is_some() => Some(look.version(generation).await),
        _ => None,
    };
    let name = wanted.name.clone().or_else(|| known.map(|known| known.name().to_owned())).unwrap_or_default();
    let is_built_in = name == DEMO && !generation.config.agent(DEMO).is_some_and(Agent::has_command);
    let sign = match (known, &found) {
        (Some(known), Ok(look)) => Some(look.login_sign(known).await),
        _ => None,
    };
    let (login, login_from) = match sign {
        Some(LoginSign::Key(variable)) => (LoginState::Key, Some(variable)),
        Some(LoginSign::File(file)) => (LoginState::LoggedIn, Some(file.display().to_string())),
        Some(LoginSign::NotNeeded) => (LoginState::NotNeeded, None),
        Some(LoginSign::Missing) => (LoginState::Missing, None),
        None if is_built_in => (LoginState::NotNeeded, None),
        Some(LoginSign::Unknown) | None => (LoginState::Unknown, None),
    };
    let (version, unknown_version) = version.map_or((None, None), |version| (version.clone().ok(), version.err()));
    let missing = match &found {
        Err(why) => Some(format!("cannot build an environment: {why}")),
        Ok(look) if look.found.is_none() && wanted.name.is_some() => {
            Some(format!("the program {:?} does not exist; sessions have PATH={}", look.program, look.path))
        }
        Ok(_) => None,
    };
    AgentState {
        configured: wanted.name.is_some(),
        default: wanted.name.as_deref() == Some(generation.config.default_agent.as_str()),
        like: known.map(|known| known.name().to_owned()),
        command: wanted.command,
        program: found.ok().and_then(|look| look.found),
        version,
        problem: missing.or(unknown_version),
        login,
        login_from,
        install: known.map(|known| known.agentd.install.clone()),
        warm: wanted.name.as_ref().and_then(|name| generation.daemon.warm.view(generation, name)),
        known: None,
        name,
    }
}
