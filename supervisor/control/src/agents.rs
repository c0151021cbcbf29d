//! The known and the configured agents: whether each is installed, its version and its login. Adds agents to the user's
//! configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentd_api::agents::{AgentAddRequest, AgentState, Catalogue, LoginState};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, SessionView};
use agentd_api::{Code, Problem};
use agentd_catalogue::{KnownAgent, LoginSign, all, by_name};
use agentd_config::DEMO;
use agentd_session::generation::Generation;
use agentd_session::{AgentLook, agent_look};
use hyper::Request;
use hyper::body::Incoming;
use tokio::task::JoinSet;

use super::handlers::{Answer, read, to_the_end};
use super::json;
use super::router::Context;

/// An agent to look for.
#[derive(Debug)]
struct Wanted {
    /// Name in the configuration. Without one, a known agent that is not configured.
    name: Option<String>,
    command: Vec<String>,
    known: Option<&'static KnownAgent>,
}

pub(super) async fn add(context: &Context, request: Request<Incoming>) -> Answer {
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
            let known = generation.config.agents.iter().find(|(known, _)| known.as_str() == name);
            Wanted { known: known.and_then(|(_, agent)| agent.known()), name: Some(name), command }
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
    let refused = refused(&context.sessions.list().await);
    let mut agents = look(generation, wanted, versions, &refused).await;
    if only.is_none() {
        // A known agent that is configured under another name is not listed again.
        let is_listed = |known: &&KnownAgent| agents.iter().any(|one| one.like.as_deref() == Some(known.name()));
        let rest = all().iter().filter(|known| !is_listed(known)).map(not_configured).collect();
        agents.extend(look(generation, rest, versions, &refused).await);
    } else {
        for agent in &mut agents {
            let known = agent.like.as_deref().and_then(by_name);
            agent.known = known.and_then(|known| serde_json::to_value(known).ok());
        }
    }
    json(&Catalogue { agents })
}

fn not_configured(known: &'static KnownAgent) -> Wanted {
    Wanted { name: None, command: known.agentd.command.clone(), known: Some(known) }
}

/// Looks for the agents, some at a time. The result has their order.
async fn look(
    generation: &Arc<Generation>,
    wanted: Vec<Wanted>,
    versions: bool,
    refused: &BTreeMap<String, String>,
) -> Vec<AgentState> {
    let mut tasks = JoinSet::new();
    for (number, one) in wanted.into_iter().enumerate() {
        let generation = Arc::clone(generation);
        tasks.spawn(async move {
            // The number of launches bounds the environments that are built at once.
            let found = agent_look(&generation, one.name.as_deref(), &one.command).await;
            let version = match &found {
                Ok(look) if versions && look.found.is_some() => Some(look.version(&generation).await),
                _ => None,
            };
            (number, state(&generation, one, found, version))
        });
    }
    let mut states = tasks.join_all().await;
    states.sort_by_key(|(number, _)| *number);
    let states = states.into_iter().map(|(_, state)| state);
    states.map(|state| with_refusal(state, refused)).collect()
}

fn state(
    generation: &Generation,
    wanted: Wanted,
    found: Result<AgentLook, String>,
    version: Option<Result<String, String>>,
) -> AgentState {
    let known = wanted.known.or_else(|| found.as_ref().ok().and_then(|look| look.known));
    let name = wanted.name.clone().or_else(|| known.map(|known| known.name().to_owned())).unwrap_or_default();
    let has_command = |name: &str| {
        generation.config.agents.iter().any(|(known, agent)| known.as_str() == name && agent.has_command())
    };
    let is_built_in = wanted.name.as_deref().is_some_and(|name| name == DEMO && !has_command(name));
    let (login, login_from) = match found.as_ref().ok().and_then(AgentLook::login_sign) {
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
        known: None,
        name,
    }
}

/// Returns the words of the agents that lack a login now, by agent. Of each agent, the session counts that opened its
/// conversation, or was refused, last.
fn refused(sessions: &[SessionView]) -> BTreeMap<String, String> {
    let mut last: BTreeMap<String, &Condition> = BTreeMap::new();
    for view in sessions {
        let Some(agent) = view.spec.agent.as_ref().map(ToString::to_string) else { continue };
        let counts = |one: &&Condition| {
            let kinds = [ConditionType::AuthenticationRequired, ConditionType::ConversationReady];
            kinds.contains(&one.kind) && one.status == ConditionStatus::True
        };
        for condition in view.status.conditions.iter().filter(counts) {
            let newer = |known: &&Condition| known.last_transition_time < condition.last_transition_time;
            if last.get(&agent).is_none_or(newer) {
                last.insert(agent.clone(), condition);
            }
        }
    }
    last.retain(|_, condition| condition.kind == ConditionType::AuthenticationRequired);
    last.into_iter().map(|(agent, condition)| (agent, condition.message.clone())).collect()
}

/// A refusal says more than a file or a key, which may have expired.
fn with_refusal(state: AgentState, refused: &BTreeMap<String, String>) -> AgentState {
    match refused.get(&state.name).filter(|_| state.configured) {
        Some(words) => AgentState { login: LoginState::Refused, login_from: Some(words.clone()), ..state },
        None => state,
    }
}
