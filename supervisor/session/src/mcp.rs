//! MCP servers of a session: agentd's own, and those of the configuration and of the session.
//!
//! agentd's own server is the program `agentctl` beside the daemon's own program. It calls the control endpoint from
//! inside the session, so it may do what every process of the session may do.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agentd_api::SessionId;
use agentd_api::mcp::{LaunchedServer, McpChoice, McpOrigin, McpServer, OWN, placeholder};
use agentd_api::session::SessionSpec;
use agentd_config::{AgentMcp, Config};
use agentd_decide::acp::OwnServer;
use agentd_environment::{Environment, SESSION_VARIABLE, SOCKET_VARIABLE};
use agentd_keeper::protocol::Fill;

use crate::bringup;
use crate::generation::Generation;
use crate::isolation;
use crate::launch_plan::LaunchPlan;
use crate::repositories::terminal;

/// Command of `agentctl` that is the server.
const COMMAND: &str = "mcp";

/// Returns the program if it can be executed, and logs a warning otherwise.
pub(crate) fn program(ctl: &Path) -> Option<String> {
    let is_executable = |path: &Path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let found = is_executable(ctl).then(|| ctl.to_str().map(str::to_owned)).flatten();
    if found.is_none() {
        tracing::warn!(
            program = %ctl.display(),
            "cannot give agents the MCP server of agentd: the program is missing or cannot be executed; install \
             agentctl beside agentd, or set mcp.enabled = false"
        );
    }
    found
}

/// Returns the setting of the session's agent for its MCP servers.
fn of_agent<'a>(config: &'a Config, spec: &SessionSpec) -> Option<&'a AgentMcp> {
    let name = match (&spec.agent, &spec.command) {
        (Some(name), _) => Some(name),
        (None, Some(_)) => None,
        (None, None) => Some(&config.default_agent),
    };
    config.agents.get(name?)?.mcp.as_ref()
}

/// Reports whether the session's agent is to get agentd's own server. The session's choice overrides the setting of the
/// agent, which overrides the general one.
fn is_wanted(config: &Config, spec: &SessionSpec) -> bool {
    match spec.mcp.get(OWN) {
        Some(McpChoice::Configured(is_wanted)) => *is_wanted,
        _ => config.mcp.gives_own(of_agent(config, spec)),
    }
}

/// Returns the servers that the session wants, by name, without agentd's own.
pub(crate) fn wanted(config: &Config, agent: &str, spec: &SessionSpec) -> Vec<(String, McpOrigin, McpServer)> {
    let configured = config.mcp.of((agent, of_agent(config, spec)), &spec.directory);
    let configured = configured.map(|(name, server)| (name.clone(), (McpOrigin::Configuration, server.server())));
    let mut servers: BTreeMap<String, (McpOrigin, McpServer)> = configured.collect();
    for (name, choice) in spec.mcp.iter().filter(|(name, _)| *name != OWN) {
        match choice {
            McpChoice::Configured(true) => {
                if let Some(server) = config.mcp.servers.get(name) {
                    servers.insert(name.clone(), (McpOrigin::Configuration, server.server()));
                }
            }
            McpChoice::Configured(false) => _ = servers.remove(name),
            McpChoice::Own(server) => _ = servers.insert(name.clone(), (McpOrigin::Session, (**server).clone())),
        }
    }
    servers.into_iter().map(|(name, (origin, server))| (name, origin, server)).collect()
}

/// Checks the MCP servers of a specification.
///
/// # Errors
///
/// The text describes the mistake.
pub(crate) fn check(config: &Config, spec: &SessionSpec) -> Result<(), String> {
    for (name, choice) in &spec.mcp {
        match choice {
            McpChoice::Configured(_) if name == OWN || config.mcp.servers.contains_key(name) => {}
            McpChoice::Configured(_) => return Err(format!("there is no MCP server {name:?} in the configuration")),
            McpChoice::Own(server) => {
                server.check(name).map_err(|mistake| format!("the MCP server {name:?} {mistake}"))?;
                if let Some(secret) = server.secrets().find(|secret| !config.secrets.contains_key(*secret)) {
                    return Err(format!("the MCP server {name:?} needs the secret {secret:?}, which is not declared"));
                }
            }
        }
    }
    Ok(())
}

/// The MCP servers of a launch.
#[derive(Debug, Default)]
pub(crate) struct ServersOfLaunch {
    pub launched: Vec<LaunchedServer>,
    /// The secrets that replace their placeholders.
    pub fills: Vec<Fill>,
}

/// Finds the programs of the servers in the environment, and reads their secrets. A server that lacks something is left
/// out, with the reason.
pub(crate) async fn of_launch(plan: &LaunchPlan, environment: &Environment) -> ServersOfLaunch {
    let mut of_launch = ServersOfLaunch::default();
    let secrets = secrets(plan).await;
    for (name, origin, server) in &plan.mcp {
        let mut server = server.clone();
        let mut missing = server.secrets().find_map(|secret| secrets.get(secret)?.as_ref().err().cloned());
        if let Some(program) = server.command.first_mut() {
            match bringup::program(plan, environment, program).await {
                Ok(path) => *program = path.display().to_string(),
                Err((_, error)) => missing = Some(error),
            }
        }
        of_launch.launched.push(LaunchedServer { name: name.clone(), origin: *origin, server, missing });
    }
    let known = secrets.into_iter().filter_map(|(name, value)| Some((placeholder(&name), value.ok()?)));
    of_launch.fills = known.map(|(placeholder, text)| Fill { placeholder, text }).collect();
    of_launch
}

/// Reads the secrets of the servers, by name. An error is a text for people.
async fn secrets(plan: &LaunchPlan) -> BTreeMap<String, Result<String, String>> {
    let servers = plan.mcp.iter().map(|(_, _, server)| server);
    let wanted: BTreeSet<String> = servers.flat_map(McpServer::secrets).map(str::to_owned).collect();
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    // A link must not lead a session into the directory of a secret.
    let places = plan.target().real().await;
    let login = async { Ok(terminal(plan).await) };
    let read = plan.secrets.take_only(&wanted, &plan.agent, places.directory.as_deref(), login).await;
    let not_given = |name: &String| format!("the configuration does not give the secret {name:?} to this session");
    let mut secrets: BTreeMap<_, _> = wanted.iter().map(|name| (name.clone(), Err(not_given(name)))).collect();
    secrets.extend(read.missing.into_iter().map(|missing| (missing.name.clone(), Err(missing.to_string()))));
    secrets.extend(read.given.into_iter().map(|given| {
        let text = std::str::from_utf8(&given.value).map(str::to_owned);
        let text = text.map_err(|_| format!("the secret {:?} is not UTF-8", given.name));
        (given.name, text)
    }));
    secrets
}

/// Returns the server for the session's agent. A guarded agent gets its own socket, and no server if it cannot see
/// the program.
pub(crate) fn server(generation: &Generation, id: &SessionId, spec: &SessionSpec) -> Option<OwnServer> {
    let Generation { daemon, config, .. } = generation;
    // The program and the control socket are on this machine.
    let is_possible = is_wanted(config, spec) && !generation.is_elsewhere(spec);
    let command = daemon.mcp_program.as_ref().filter(|_| is_possible)?;
    let directories = &daemon.directories;
    let socket: PathBuf = match isolation::enclosure(generation, id, spec) {
        None => directories.control_socket(),
        Some(enclosure) => {
            let is_hidden = enclosure.directories.iter().any(|hidden| Path::new(command).starts_with(hidden));
            (!is_hidden).then(|| directories.guest_socket(id))?
        }
    };
    let env =
        vec![(SOCKET_VARIABLE.to_owned(), socket.to_str()?.to_owned()), (SESSION_VARIABLE.to_owned(), id.to_string())];
    Some(OwnServer { command: command.clone(), args: vec![COMMAND.to_owned()], env })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_own_setting_overrides_the_general_one() {
        let agents = "[agents.on]\ncommand = [\"a\"]\nmcp = true\n[agents.off]\ncommand = [\"a\"]\nmcp = \
                      false\n[agents.plain]\ncommand = [\"a\"]\n";
        for (general, name, expected) in [
            ("", Some("plain"), true),
            ("", Some("off"), false),
            ("", None, true),
            ("[mcp]\nenabled = false\n", Some("plain"), false),
            ("[mcp]\nenabled = false\n", Some("on"), true),
            ("default_agent = \"off\"\n", None, false),
        ] {
            let config: Config = toml::from_str(&format!("{general}{agents}")).unwrap();
            let spec = SessionSpec { agent: name.map(|name| name.parse().unwrap()), ..SessionSpec::new("/work") };
            assert_eq!(is_wanted(&config, &spec), expected, "{general:?} {name:?}");
        }
        let config: Config = toml::from_str("[mcp]\nenabled = false\n").unwrap();
        let command = SessionSpec { command: Some(vec!["a".to_owned()]), ..SessionSpec::new("/work") };
        assert!(!is_wanted(&config, &command), "a command of the session has the general setting");
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_no_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agentctl");
        assert_eq!(program(&path), None);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(program(&path), None, "it is not executable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(program(&path).as_deref(), path.to_str());
        assert_eq!(program(directory.path()), None, "a directory");
    }
}
