//! What a session's agent is kept from: the level that holds for it, and what is hidden from it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agentd_api::isolation::Isolation;
use agentd_api::session::SessionSpec;
use agentd_api::{Code, Problem, SessionId};
use agentd_keeper::protocol::{Enclosure, Shown, Variable};

use crate::config::{Config, IsolationBus, KeySource, TokenSource};
use crate::env::{SOCKET_VARIABLE, Seed};
use crate::world::{World, credentials};

/// The level of the session's agent in the configuration. A command of one's own has none.
fn of_agent(config: &Config, spec: &SessionSpec) -> Isolation {
    let name = match (&spec.agent, &spec.command) {
        (Some(name), _) => name,
        (None, Some(_)) => return Isolation::None,
        (None, None) => &config.default_agent,
    };
    config.agents.get(name).map_or(Isolation::None, |agent| agent.isolation)
}

/// The level that holds: the stricter of the session's and its agent's.
fn level(config: &Config, spec: &SessionSpec) -> Isolation {
    spec.isolation.unwrap_or_default().max(of_agent(config, spec))
}

/// Whether the session's agent is guarded at its next launch.
pub(crate) fn is_guarded(world: &World, spec: &SessionSpec) -> bool {
    level(&world.config, spec) == Isolation::Guard
}

/// What can be said against the level that a session asks for.
pub(crate) fn check(world: &World, spec: &SessionSpec) -> Result<(), Problem> {
    let least = of_agent(&world.config, spec);
    match spec.isolation {
        Some(asked) if asked < least => {
            let agent = world.agent_label(spec);
            let detail = format!(
                "the session asks for isolation \"{}\", and the agent \"{agent}\" has at least \"{}\"",
                asked.as_str(),
                least.as_str()
            );
            let hint = format!("leave isolation out, or change agents.{agent}.isolation in agentd.toml");
            Err(Problem::new(Code::InvalidRequest, detail).hint(hint))
        }
        _ => Ok(()),
    }
}

/// Gives a guarded agent the path of its own control socket, whatever its environment says.
pub(crate) fn set_socket(world: &World, id: &SessionId, spec: &SessionSpec, variables: &mut Vec<Variable>) {
    if is_guarded(world, spec) {
        variables.retain(|variable| variable.name.as_bytes() != SOCKET_VARIABLE.as_bytes());
        let value = world.directories.guest_socket(id).into_os_string().into();
        variables.push(Variable { name: SOCKET_VARIABLE.into(), value });
    }
}

/// What the session's agent is kept from; nothing where it is not guarded.
pub(crate) fn enclosure(world: &World, id: &SessionId, spec: &SessionSpec) -> Option<Enclosure> {
    if !is_guarded(world, spec) {
        return None;
    }
    let (config, of) = (&world.config, &world.directories);
    let own = [&of.config, &of.system_config, &of.state, &of.cache, &of.runtime].map(Clone::clone);
    let mut files = world.read.files.clone();
    files.push(world.read.sources.user.clone());
    files.extend(named_files(config).chain(world.secrets.files()).filter_map(|path| in_home(path, config)));
    let mut directories: Vec<PathBuf> = own.into_iter().chain(credentials()).collect();
    if config.launch.isolation_bus == IsolationBus::Hide {
        for runtime in runtime_directories() {
            directories.extend(Some(runtime.join("systemd")).filter(|directory| directory.is_dir()));
            files.push(runtime.join("bus"));
        }
    }
    let shown = |path, read_only| Shown { path, read_only };
    Some(Enclosure {
        missing: config.launch.isolation_missing,
        directories,
        files,
        shown: vec![shown(of.session_guest(id), true), shown(of.session_files(id), false)],
    })
}

/// The user's runtime directories (XDG Base Directory Specification): the service manager's sockets are in `systemd`
/// there (systemd(1)), and the session bus is `bus` (dbus-daemon(1)).
fn runtime_directories() -> BTreeSet<PathBuf> {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{}", nix::unistd::geteuid()));
    named.into_iter().chain([usual]).collect()
}

/// The files that hold the token of the control endpoint and the keys of stored environments.
fn named_files(config: &Config) -> impl Iterator<Item = &PathBuf> {
    let token = config.control.token.iter().filter_map(|source| match source {
        TokenSource::File(path) => Some(path),
        TokenSource::Credential(_) => None,
    });
    let encryption = &config.environment.encryption;
    let keys = std::iter::once(&encryption.key).chain(&encryption.previous).filter_map(|source| match source {
        KeySource::File(path) => Some(path),
        KeySource::Generated | KeySource::Credential(_) => None,
    });
    token.chain(keys)
}

/// A path with `~` in front of it as the home directory.
fn in_home(path: &Path, config: &Config) -> Option<PathBuf> {
    let Ok(below) = path.strip_prefix("~") else { return Some(path.to_owned()) };
    let environment = &config.environment;
    let seed = Seed::find(environment.home.as_deref(), environment.shell.as_deref()).ok()?;
    Some(seed.home.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_of_agent_and_session_holds() {
        let config: Config = toml::from_str(
            "default_agent = \"held\"\n[agents.held]\ncommand = [\"a\"]\nisolation = \"guard\"\n[agents.free]\ncommand = [\"a\"]\n",
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
        assert_eq!(level(&config, &command), Isolation::None, "a command of one's own is no configured agent");
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
