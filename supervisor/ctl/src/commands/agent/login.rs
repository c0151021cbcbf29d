//! Implements `agentctl agent login`: starts an agent in the environment of its sessions, and carries out one of its
//! login methods.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use agentd_api::AgentName;
use agentd_api::login::{AgentStart, AgentStartRequest, LoginKind, LoginMethod};
use agentd_api::session::{ConditionStatus, ConditionType, SessionView};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::commands::{Context, label, tell};
use crate::error::Error;
use crate::spec::absolute;
use crate::way::Way;
use agentd_screen::terminal::Screen;

/// Time for the answer to `initialize`.
const INITIALIZE: Duration = Duration::from_mins(1);
/// Time for the end of an agent whose standard input is closed.
const END: Duration = Duration::from_secs(5);

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
    let directory = absolute(dir)?;
    let start = context.client.agent_start(agent.as_str(), &AgentStartRequest { directory: directory.clone() }).await?;
    let mut running = RunningAgent::start(&start, &directory)?;
    let methods = running.introduce().await?;
    let chosen = choose(&methods, method, agent)?;
    let screen = Screen::stderr();
    tell(&format!("{}: {}", screen.line(agent.as_str()), screen.line(&chosen.name)))?;
    if let Some(words) = &chosen.description {
        tell(&screen.line(words))?;
    }
    match chosen.kind {
        LoginKind::Agent | LoginKind::Unknown => running.authenticate(&chosen.id).await?,
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
    for view in context.client.list(None).await?.value.sessions {
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

fn not_started(program: &Path, source: &std::io::Error) -> Error {
    let detail = format!("cannot start {}: {source}", program.display());
    usage(detail, "check the agent's command with `agentctl agents`, and its installation".to_owned())
}

fn of_agent(start: &AgentStart, directory: &Path) -> Command {
    plain(Path::new(start.command.first().map_or("", String::as_str)), start, directory)
}

fn plain(program: &Path, start: &AgentStart, directory: &Path) -> Command {
    let mut command = Command::new(program);
    let variables = start.environment.iter();
    let variables =
        variables.map(|variable| (OsStr::new(&variable.name), OsString::from_vec(variable.value.as_bytes().to_vec())));
    command.env_clear().envs(variables).current_dir(directory).kill_on_drop(true);
    command
}

/// An agent that this process has started. Its standard error is this terminal's, since agents print addresses there.
struct RunningAgent {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RunningAgent {
    fn start(start: &AgentStart, directory: &Path) -> Result<Self, Error> {
        let mut command = of_agent(start, directory);
        command.args(start.command.iter().skip(1)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = PathBuf::from(command.as_std().get_program());
        let mut child = command.spawn().map_err(|source| not_started(&program, &source))?;
        let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        let lines = lines.ok_or_else(|| Error::Setup(std::io::Error::other("the agent has no standard output")))?;
        Ok(Self { stdin: child.stdin.take(), child, lines })
    }

    async fn send(&mut self, message: &Value) -> Result<(), Error> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        // An agent that has ended is noticed when its answer is read.
        let _ = stdin.write_all(format!("{message}\n").as_bytes()).await;
        let _ = stdin.flush().await;
        Ok(())
    }

    /// Makes a request and returns the result, or the agent's own words.
    async fn request(&mut self, id: u64, method: &str, params: Value) -> Result<Value, Error> {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await?;
        loop {
            let Some(line) = self.lines.next_line().await.map_err(Error::Setup)? else {
                let detail = format!("the agent ended before it answered {method}");
                return Err(usage(detail, "check its command with `agentctl agents`".to_owned()));
            };
            let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
            if message["id"] == id && message.get("method").is_none() {
                return match message.get("error") {
                    None => Ok(message["result"].clone()),
                    Some(error) => {
                        let words = error["message"].as_str().unwrap_or("an error without a message");
                        let details = error["data"]["details"].as_str().map(|text| format!(": {text}"));
                        let words = Screen::stderr().line(&format!("{words}{}", details.unwrap_or_default()));
                        let detail = format!("the agent answered {method} with an error: {words}");
                        Err(usage(detail, "do what the message says, or try another method with --method".to_owned()))
                    }
                };
            }
            if message.get("method").is_some() && !message["id"].is_null() {
                let error = json!({ "code": -32601, "message": "agentctl offers no methods during a login" });
                self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })).await?;
            }
        }
    }

    /// Introduces this client, and returns the agent's login methods.
    async fn introduce(&mut self) -> Result<Vec<LoginMethod>, Error> {
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": { "auth": { "terminal": true }, "_meta": { "terminal-auth": true } },
            "clientInfo": { "name": "agentd", "version": env!("CARGO_PKG_VERSION") },
        });
        let silent = |_| {
            let detail = format!("the agent did not answer initialize within {} s", INITIALIZE.as_secs());
            usage(detail, "check its command with `agentctl agents`".to_owned())
        };
        let result = timeout(INITIALIZE, self.request(1, "initialize", params)).await.map_err(silent)??;
        Ok(LoginMethod::of(&result))
    }

    /// Lets the agent log in. This can take as long as a person needs in a browser; Ctrl-C ends it.
    async fn authenticate(&mut self, method: &str) -> Result<(), Error> {
        self.request(2, "authenticate", json!({ "methodId": method })).await.map(drop)
    }

    async fn end(&mut self) {
        self.stdin = None;
        if timeout(END, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

#[cfg(test)]
mod tests {
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
