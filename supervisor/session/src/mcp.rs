//! agentd's own MCP server: the entry with which a session's agent starts it.
//!
//! The server is the program `agentctl` beside the daemon's own program. It calls the control endpoint from inside the
//! session, so it may do what every process of the session may do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agentd_api::SessionId;
use agentd_api::session::SessionSpec;
use agentd_config::Config;
use agentd_decide::acp::OwnServer;
use agentd_environment::{SESSION_VARIABLE, SOCKET_VARIABLE};

use crate::generation::Generation;
use crate::isolation;

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

/// Reports whether the session's agent is to get the server. The setting of the agent overrides the general one.
fn is_wanted(config: &Config, spec: &SessionSpec) -> bool {
    let name = match (&spec.agent, &spec.command) {
        (Some(name), _) => Some(name),
        (None, Some(_)) => None,
        (None, None) => Some(&config.default_agent),
    };
    name.and_then(|name| config.agents.get(name)?.mcp).unwrap_or(config.mcp.enabled)
}

/// Returns the server for the session's agent. A guarded agent gets its own socket, and no server if it cannot see
/// the program.
pub(crate) fn server(generation: &Generation, id: &SessionId, spec: &SessionSpec) -> Option<OwnServer> {
    let Generation { daemon, config, .. } = generation;
    let command = daemon.mcp_program.as_ref().filter(|_| is_wanted(config, spec))?;
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
