//! Implements `agentctl agent login`: starts an agent in the environment of its sessions, and carries out one of its
//! login methods.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use agentd_api::AgentName;
use agentd_api::login::{AgentStart, AgentStartRequest, LoginKind, LoginMethod};
use agentd_api::session::{ConditionStatus, ConditionType, SessionView};
use serde_json::json;

use crate::commands::{Context, label, tell};
use crate::error::Error;
use crate::machine::Machine;
use crate::running_agent::{RunningAgent, not_started, of_agent, plain};
use agentd_client::Way;
use agentd_screen::terminal::Screen;

pub(in crate::commands) async fn login(
    context: &Context,
    agent: &AgentName,
    method: Option<&str>,
    dir: &Path,
) -> Result<u8, Error> {
    if matches!(context.client.way(), Way::Tcp { .. }) {
        return Err(usage(
            "a login happens at the machine of the sessions".to_owned(),
            format!("log in there: ssh -t HOST agentctl agent login {agent}"),
        ));
    }
    Machine::of(&context.client).only_this("a login")?;
    let directory = Machine::This.absolute(dir)?;
    let start = context
        .client
        .agent_start(agent.as_str(), &AgentStartRequest { directory: directory.clone(), session: None })
        .await?;
    let mut running = RunningAgent::start(&start, &directory, Stdio::inherit())?;
    let methods = LoginMethod::of(&running.introduce(true).await?);
    let chosen = choose(&methods, method, agent)?;
    let screen = Screen::stderr();
    tell(&format!("{}: {}", screen.line(agent.as_str()), screen.line(&chosen.name)))?;
    if let Some(words) = &chosen.description {
        tell(&screen.line(words))?;
    }
    match chosen.kind {
        // A person in a browser needs time. Ctrl-C ends the wait.
        LoginKind::Agent | LoginKind::Unknown => {
            let request = running.request("authenticate", json!({ "methodId": chosen.id })).await;
            request
                .map(drop)
                .map_err(|detail| usage(detail, "try again, or another method with --method".to_owned()))?;
        }
        LoginKind::Variables => {
            running.end().await;
            return variables(chosen, &start, agent);
        }
        LoginKind::Terminal => {
            running.end().await;
            let status = at_terminal(chosen, &start, &directory).await?;
            if !status.success() {
                let detail = format!("the login program of {agent} ended with {status}");
                return Err(usage(
                    detail,
                    format!("try again, or another method: agentctl agent login {agent} --method"),
                ));
            }
        }
    }
    running.end().await;
    // Not every agent tells a login that works from one that does not.
    tell(&format!("{agent} has accepted the login"))?;
    for view in context.client.sessions(&["status.conditions.AuthenticationRequired"]).await? {
        if waits_for_login(&view, agent) {
            let stop = if view.status.phase.is_active() {
                format!("agentctl stop {0} && ", label(&view))
            } else {
                String::new()
            };
            tell(&format!("continue with: {stop}agentctl resume {}", label(&view)))?;
        }
    }
    Ok(0)
}

fn usage(detail: String, hint: String) -> Error {
    Error::Usage { detail, hint }
}

/// Reports whether the session's agent is this one and requires a login.
fn waits_for_login(view: &SessionView, agent: &AgentName) -> bool {
    let requires = |kind, status| view.status.conditions.iter().any(|one| one.kind == kind && one.status == status);
    view.spec.agent.as_ref() == Some(agent) && requires(ConditionType::AuthenticationRequired, ConditionStatus::True)
}

/// Returns the method to carry out.
fn choose<'a>(methods: &'a [LoginMethod], wanted: Option<&str>, agent: &AgentName) -> Result<&'a LoginMethod, Error> {
    let line = |method: &LoginMethod| format!("{} ({}: {})", method.id, method.kind.as_str(), method.name);
    let list = || Screen::stderr().line(&methods.iter().map(line).collect::<Vec<_>>().join(", "));
    match (wanted, methods) {
        (_, []) => Err(usage(
            format!("{agent} offers no login method"),
            "log in with the agent's own program, or declare its key as a secret in agentd.toml".to_owned(),
        )),
        (None, [only]) => Ok(only),
        (None, _) => Err(usage(
            format!("{agent} offers several login methods: {}", list()),
            format!("name one: agentctl agent login {agent} --method ID"),
        )),
        (Some(wanted), _) => methods
            .iter()
            .find(|method| method.id == wanted)
            .ok_or_else(|| usage(format!("{agent} has no login method {wanted:?}"), format!("it offers: {}", list()))),
    }
}

/// Says whether the variables of a method are set where the agent is started.
fn variables(method: &LoginMethod, start: &AgentStart, agent: &AgentName) -> Result<u8, Error> {
    let is_set = |name: &&String| start.environment.iter().any(|variable| variable.name == **name);
    if let Some(set) = method.variables.iter().find(is_set) {
        tell(&format!("{set} is set in the environment of {agent}: there is nothing to do"))?;
        return Ok(0);
    }
    let names = method.variables.join(" or ");
    let first = method.variables.first().map_or("NAME", String::as_str);
    Err(usage(
        format!("{agent} reads its key from {names}, which the environment of its sessions does not have"),
        format!(
            "declare it in agentd.toml: [secrets.{first}] with file, credential or command, and agents = [\"{agent}\"]"
        ),
    ))
}

/// Runs a login program at this terminal. The agent's own program gets the method's arguments behind its own
/// (ACP, "Terminal authentication").
async fn at_terminal(method: &LoginMethod, start: &AgentStart, directory: &Path) -> Result<ExitStatus, Error> {
    let mut command = if let Some(program) = &method.command {
        plain(Path::new(program), start, directory)
    } else {
        let mut command = of_agent(start, directory);
        command.args(start.command.iter().skip(1));
        command
    };
    command.args(&method.args).envs(&method.env);
    for variable in ["TERM", "COLORTERM"] {
        command.envs(std::env::var_os(variable).map(|value| (variable, value)));
    }
    let program = PathBuf::from(command.as_std().get_program());
    let failed = |source| not_started(&program, &source);
    command.spawn().map_err(failed)?.wait().await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn methods(ids: &[&str]) -> Vec<LoginMethod> {
        let methods: Vec<Value> = ids.iter().map(|id| json!({ "id": id, "name": format!("The {id}") })).collect();
        LoginMethod::of(&json!({ "authMethods": methods }))
    }

    #[test]
    fn a_method_is_named_if_there_are_several() {
        let agent: AgentName = "claude".parse().unwrap();
        let said = |methods: &[LoginMethod], wanted| match choose(methods, wanted, &agent) {
            Ok(method) => method.id.clone(),
            Err(Error::Usage { detail, .. }) => detail,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(said(&methods(&["key"]), None), "key");
        assert_eq!(said(&methods(&["key", "web"]), Some("web")), "web");
        assert!(said(&methods(&["key", "web"]), None).ends_with("key (agent: The key), web (agent: The web)"));
        assert_eq!(said(&methods(&["key"]), Some("x")), "claude has no login method \"x\"");
        assert_eq!(said(&[], None), "claude offers no login method");
    }
}
