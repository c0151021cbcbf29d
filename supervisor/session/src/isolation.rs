//! The isolation of a session's agent: the level in force, and the paths that are hidden from the agent.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agentd_api::isolation::Isolation;
use agentd_api::session::SessionSpec;
use agentd_api::{Code, Problem, SessionId};
use agentd_keeper::protocol::{Enclosure, Variable, VisibleDirectory};

use crate::generation::{Generation, credentials};
use agentd_config::{Config, IsolationBus, KeySource, TokenSource};
use agentd_environment::SOCKET_VARIABLE;

/// Returns the configured level of the session's agent. A command in the specification has no configured level.
fn of_agent(config: &Config, spec: &SessionSpec) -> Isolation {
    let name = match (&spec.agent, &spec.command) {
        (Some(name), _) => name,
        (None, Some(_)) => return Isolation::None,
        (None, None) => &config.default_agent,
    };
    config.agents.get(name).map_or(Isolation::None, |agent| agent.isolation)
}

/// Returns the level in force: the stricter of the session's level and its agent's level.
fn level(config: &Config, spec: &SessionSpec) -> Isolation {
    spec.isolation.unwrap_or_default().max(of_agent(config, spec))
}

/// Reports whether the next launch of the session's agent is guarded.
pub fn is_guarded(generation: &Generation, spec: &SessionSpec) -> bool {
    level(&generation.config, spec) == Isolation::Guard
}

/// Refuses a session that asks for less isolation than its agent has.
pub fn check(generation: &Generation, spec: &SessionSpec) -> Result<(), Problem> {
    let least = of_agent(&generation.config, spec);
    match spec.isolation {
        Some(asked) if asked < least => {
            let agent = generation.agent_label(spec);
            let detail = format!(
                "the session asks for isolation \"{}\", but the agent \"{agent}\" requires at least \"{}\"",
                asked.as_str(),
                least.as_str()
            );
            let hint = format!("leave isolation out, or change agents.{agent}.isolation in agentd.toml");
            Err(Problem::new(Code::InvalidRequest, detail).hint(hint))
        }
        _ => Ok(()),
    }
}

/// Sets the path of a guarded agent's own control socket, whatever its environment contains.
pub fn set_socket(socket: &Path, variables: &mut Vec<Variable>) {
    variables.retain(|variable| variable.name.as_bytes() != SOCKET_VARIABLE.as_bytes());
    variables.push(Variable { name: SOCKET_VARIABLE.into(), value: socket.as_os_str().into() });
}

/// Returns the paths that are hidden from a guarded agent; `None` for an agent that is not guarded.
pub fn enclosure(generation: &Generation, id: &SessionId, spec: &SessionSpec) -> Option<Enclosure> {
    if !is_guarded(generation, spec) {
        return None;
    }
    let (config, of) = (&generation.config, &generation.daemon.directories);
    let own = [&of.config, &of.system_config, &of.state, &of.cache, &of.runtime].map(Clone::clone);
    let mut files = generation.read.files.clone();
    files.push(generation.read.sources.user.clone());
    files.extend(named_files(config).chain(generation.secrets.files()).filter_map(|path| in_home(path, config)));
    let mut directories: Vec<PathBuf> = own.into_iter().chain(credentials()).collect();
    if config.launch.isolation_bus == IsolationBus::Hide {
        for runtime in runtime_directories() {
            directories.extend(Some(runtime.join("systemd")).filter(|directory| directory.is_dir()));
            files.push(runtime.join("bus"));
        }
    }
    let shown = |path, read_only| VisibleDirectory { path, read_only };
    Some(Enclosure {
        missing: config.launch.isolation_missing,
        directories,
        files,
        shown: [shown(of.session_guest(id), true), shown(of.session_files(id), false)]
            .into_iter()
            .chain(spec.directories.iter().map(|directory| shown(directory.clone(), false)))
            .chain(spec.workspace.as_ref().map(|workspace| shown(of.workspace(workspace.owner(id)), false)))
            .collect(),
    })
}

/// Returns the user's runtime directories (XDG Base Directory Specification). They contain the service manager's
/// sockets in `systemd` (systemd(1)), and the session bus as `bus` (dbus-daemon(1)).
fn runtime_directories() -> BTreeSet<PathBuf> {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{}", nix::unistd::geteuid()));
    named.into_iter().chain([usual]).collect()
}

/// Returns the files that contain the tokens of the control endpoint and the keys of stored environments, and the
/// read-only socket.
fn named_files(config: &Config) -> impl Iterator<Item = &PathBuf> {
    let control = &config.control;
    let token = control.token.iter().filter_map(|source| match source {
        TokenSource::File(path) => Some(path),
        TokenSource::Credential(_) => None,
    });
    let named = control.tokens.values().filter_map(|token| token.file.as_ref());
    let token = token.chain(named).chain(control.read_only.iter().map(|read_only| &read_only.socket));
    let encryption = &config.environment.encryption;
    let keys = std::iter::once(&encryption.key).chain(&encryption.previous).filter_map(|source| match source {
        KeySource::File(path) => Some(path),
        KeySource::Generated | KeySource::Credential(_) => None,
    });
    token.chain(keys)
}

/// Replaces a leading `~` by the home directory.
fn in_home(path: &Path, config: &Config) -> Option<PathBuf> {
    let Ok(below) = path.strip_prefix("~") else { return Some(path.to_owned()) };
    Some(config.environment.home_directory()?.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_level_of_agent_and_session_applies() {
        let config: Config = toml::from_str(
            "default_agent = \"held\"\n[agents.held]\ncommand = [\"a\"]\nisolation = \
             \"guard\"\n[agents.free]\ncommand = [\"a\"]\n",
        )
        .unwrap();
        let spec = |agent: Option<&str>, isolation| SessionSpec {
            agent: agent.map(|name| name.parse().unwrap()),
            isolation,
            ..SessionSpec::new("/work")
        };
        let (none, guard) = (Some(Isolation::None), Some(Isolation::Guard));
        for (agent, asked, holds) in [
            (None, None, Isolation::Guard),
            (Some("held"), none, Isolation::Guard),
            (Some("held"), guard, Isolation::Guard),
            (Some("free"), None, Isolation::None),
            (Some("free"), guard, Isolation::Guard),
            (Some("demo"), None, Isolation::None),
        ] {
            assert_eq!(level(&config, &spec(agent, asked)), holds, "{agent:?} {asked:?}");
        }
        let command = SessionSpec { command: Some(vec!["a".to_owned()]), ..spec(None, None) };
        assert_eq!(level(&config, &command), Isolation::None, "a command of the session is no configured agent");
    }

    #[test]
    fn files_that_the_configuration_names_are_found_also_in_the_home_directory() {
        let config: Config = toml::from_str(
            "[environment]\nhome = \"/home/kim\"\nencryption = { key = { file = \"/keys/now\" } }\n\
             [control]\ntcp = \"127.0.0.1:0\"\ntoken = { file = \"~/token\" }\n",
        )
        .unwrap();
        let files: Vec<_> = named_files(&config).filter_map(|path| in_home(path, &config)).collect();
        assert_eq!(files, [PathBuf::from("/home/kim/token"), PathBuf::from("/keys/now")]);
    }
}
