//! Containers of podman and Docker.
//!
//! A container is removed when it ends, so the reason of its end is known from `agentd-keeper enter` and from the last
//! query alone. The engine stores no output of the agent: it would contain the conversation.

use std::path::PathBuf;

use agentd_api::event::PlaceState;
use serde_json::Value;

use crate::state::{EngineState, some};
use crate::{ENTER, LaunchNames};

/// Settings of a place of containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// Image.
    pub image: String,
    /// Program of the engine: a name or an absolute path. Docker is known by its file name.
    pub engine: String,
    /// Directories and files of this machine.
    pub mounts: Vec<Mount>,
    /// User in the container.
    pub user: Option<String>,
    /// Network of the container.
    pub network: Option<String>,
    /// Memory limit in bytes.
    pub memory: Option<u64>,
    /// Number of processor cores.
    pub cores: Option<u32>,
    /// Further arguments of `run`.
    pub options: Vec<String>,
    /// Arguments of the engine before its command.
    pub engine_options: Vec<String>,
    /// Static agentd-keeper on this machine, which is mounted at the keeper's path.
    pub keeper_file: Option<PathBuf>,
}

/// A directory or file of this machine in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path on this machine.
    pub source: String,
    /// Absolute path in the container.
    pub target: String,
    /// Options of the engine, such as `ro`.
    pub options: Option<String>,
}

impl Mount {
    /// Parses `SOURCE:TARGET[:OPTIONS]`. Returns `None` for another form and for relative paths.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (source, target) = (parts.next()?, parts.next()?);
        let options = parts.next();
        let is_whole = parts.next().is_none() && options.is_none_or(|options| !options.is_empty());
        let are_absolute = source.starts_with('/') && target.starts_with('/') && target.len() > 1;
        (is_whole && are_absolute).then(|| Self {
            source: source.to_owned(),
            target: target.to_owned(),
            options: options.map(str::to_owned),
        })
    }

    fn argument(&self) -> String {
        let options = self.options.as_ref().map(|options| format!(":{options}")).unwrap_or_default();
        format!("--volume={}:{}{options}", self.source, self.target)
    }
}

/// Label with the session of a container.
const SESSION: &str = "agentd.session";
/// Label with the number of the launch.
const LAUNCH: &str = "agentd.launch";

/// How a container is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// The client carries the stdio, and the container ends with it.
    Client,
    /// The container runs the parent of an agent that stays.
    Stay,
}

impl Container {
    fn is_docker(&self) -> bool {
        self.engine.rsplit('/').next() == Some("docker")
    }

    fn engine(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = vec![self.engine.clone()];
        command.extend(self.engine_options.iter().cloned());
        command.extend(arguments.iter().map(|&argument| argument.to_owned()));
        command
    }

    pub(crate) fn run(&self, keeper: &str, launch: &LaunchNames<'_>, run: Run) -> Vec<String> {
        let mode = match run {
            Run::Client => "--interactive",
            Run::Stay => "--detach",
        };
        let mut client = self.engine(&["run", "--rm", mode, "--workdir=/", "--log-driver=none"]);
        client.push(format!("--name={}", launch.name()));
        client.push(format!("--label={SESSION}={}", launch.session));
        client.push(format!("--label={LAUNCH}={}", launch.launch));
        client.extend(self.user.iter().map(|user| format!("--user={user}")));
        client.extend(self.network.iter().map(|network| format!("--network={network}")));
        client.extend(self.memory.map(|bytes| format!("--memory={bytes}b")));
        client.extend(self.cores.map(|cores| format!("--cpus={cores}")));
        client.extend(self.mounts.iter().map(Mount::argument));
        client.extend(self.keeper_file.iter().map(|file| format!("--volume={}:{keeper}:ro", file.display())));
        client.extend(self.options.iter().cloned());
        client.extend([format!("--entrypoint={keeper}"), self.image.clone(), ENTER.to_owned()]);
        if run == Run::Stay {
            client.extend(["stay".to_owned(), launch.name()]);
        }
        client
    }

    /// Builds the command line that connects with the parent of an agent that stays.
    pub(crate) fn attach(&self, keeper: &str, name: &str) -> Vec<String> {
        self.engine(&["exec", "--interactive", name, keeper, ENTER, "attach", name])
    }

    /// Kills and removes the container. A container that does not exist is no error.
    pub(crate) fn remove(&self, launch: &LaunchNames<'_>) -> Vec<String> {
        let name = launch.name();
        if self.is_docker() {
            self.engine(&["rm", "--force", &name])
        } else {
            self.engine(&["rm", "--force", "--ignore", "--time=0", &name])
        }
    }

    pub(crate) fn status(&self) -> Vec<String> {
        let filter = format!("--filter=label={SESSION}");
        self.engine(&["ps", "--all", "--no-trunc", &filter, "--format={{json .}}"])
    }

    pub(crate) fn inspect(&self, launch: &LaunchNames<'_>) -> Vec<String> {
        self.engine(&["container", "inspect", &launch.name()])
    }
}

/// Parses the output of `ps`: an array of podman, or one object a line of Docker.
pub(crate) fn parse_status(output: &str) -> Result<Vec<EngineState>, String> {
    let mut states = Vec::new();
    for value in serde_json::Deserializer::from_str(output).into_iter::<Value>() {
        let value = value.map_err(|error| format!("the engine's list of containers is no JSON: {error}"))?;
        match value {
            Value::Array(containers) => states.extend(containers.iter().filter_map(listed)),
            container => states.extend(listed(&container)),
        }
    }
    Ok(states)
}

fn listed(container: &Value) -> Option<EngineState> {
    let name = container["Names"].as_str().or_else(|| container["Names"][0].as_str())?;
    let job = container["Id"].as_str().or_else(|| container["ID"].as_str());
    let status = container["Status"].as_str().unwrap_or_default();
    // Docker prints the exit code in `Exited (137) 3 seconds ago` alone.
    let in_status = || status.split_once('(')?.1.split_once(')')?.0.parse().ok();
    let exit = container["ExitCode"].as_i64().or_else(in_status);
    let facts = EngineState { job: job.and_then(some), ..EngineState::named(name) };
    Some(described(facts, container["State"].as_str()?, exit, false, ""))
}

/// Parses the output of `container inspect`.
pub(crate) fn parse_ended(output: &str) -> Option<EngineState> {
    let container = &serde_json::from_str::<Value>(output).ok()?[0];
    let (name, state) = (container["Name"].as_str()?, &container["State"]);
    let facts = EngineState {
        job: container["Id"].as_str().and_then(some),
        // Docker's names begin with a slash.
        ..EngineState::named(name.trim_start_matches('/'))
    };
    let is_out_of_memory = state["OOMKilled"].as_bool().unwrap_or_default();
    let error = state["Error"].as_str().unwrap_or_default();
    Some(described(facts, state["Status"].as_str()?, state["ExitCode"].as_i64(), is_out_of_memory, error))
}

fn described(facts: EngineState, state: &str, exit: Option<i64>, is_out_of_memory: bool, error: &str) -> EngineState {
    let known = match state.to_ascii_lowercase().as_str() {
        "created" | "configured" | "initialized" | "restarting" => PlaceState::Starting,
        "running" => PlaceState::Running,
        "stopping" | "removing" => PlaceState::Ending,
        "stopped" | "exited" | "dead" => PlaceState::Ended,
        _ => return facts.unknown(state),
    };
    if known != PlaceState::Ended {
        // The engine removes a container after its end.
        let is_of_program = state.eq_ignore_ascii_case("removing");
        return EngineState { state: Some(known), is_of_program, ..facts };
    }
    let reason = if is_out_of_memory { "OOMKilled" } else { "Exited" };
    let code = exit.map(|code| format!(" with exit code {code}")).unwrap_or_default();
    let error = if error.is_empty() { String::new() } else { format!(": {error}") };
    let message = if is_out_of_memory {
        format!("the container reached its memory limit{error}")
    } else {
        format!("the container ended{code}{error}")
    };
    let is_of_program = !is_out_of_memory;
    EngineState { state: Some(known), reason: some(reason), message: Some(message), is_of_program, ..facts }
}

/// Reports whether the text is a mount: `SOURCE:TARGET[:OPTIONS]` with absolute paths.
pub fn is_mount(text: &str) -> bool {
    Mount::parse(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::launch_1;
    use crate::words;

    fn podman() -> Container {
        Container { image: "localhost/eda:1".to_owned(), engine: "podman".to_owned(), ..Container::default() }
    }

    #[test]
    fn a_client_runs_the_keeper_of_the_image_without_a_log() {
        let expected = "podman run --rm --interactive --workdir=/ --log-driver=none --name=agentd-k1-x-3 \
                        --label=agentd.session=k1-x --label=agentd.launch=3 --entrypoint=agentd-keeper \
                        localhost/eda:1 enter";
        assert_eq!(podman().run("agentd-keeper", &launch_1(), Run::Client).join(" "), expected);
    }

    #[test]
    fn each_setting_becomes_its_option() {
        let container = Container {
            mounts: vec![Mount::parse("/work:/work").unwrap(), Mount::parse("/tools:/opt/tools:ro,z").unwrap()],
            user: Some("1000:1000".to_owned()),
            network: Some("none".to_owned()),
            memory: Some(4 << 30),
            cores: Some(2),
            options: words(["--userns=keep-id"]),
            engine_options: words(["--root", "/var/x"]),
            keeper_file: Some("/opt/agentd-keeper".into()),
            ..podman()
        };
        let client = container.run("/agentd-keeper", &launch_1(), Run::Client);
        assert_eq!(client[..4], words(["podman", "--root", "/var/x", "run"]));
        let expected = [
            "--user=1000:1000",
            "--network=none",
            "--memory=4294967296b",
            "--cpus=2",
            "--volume=/work:/work",
            "--volume=/tools:/opt/tools:ro,z",
            "--volume=/opt/agentd-keeper:/agentd-keeper:ro",
            "--userns=keep-id",
            "--entrypoint=/agentd-keeper",
            "localhost/eda:1",
            "enter",
        ];
        assert_eq!(client[11..], expected.map(str::to_owned));
        let remove = container.remove(&launch_1()).join(" ");
        assert_eq!(remove, "podman --root /var/x rm --force --ignore --time=0 agentd-k1-x-3");
    }

    #[test]
    fn docker_has_its_own_words_for_a_removal() {
        let docker = Container { engine: "/usr/bin/docker".to_owned(), ..podman() };
        assert_eq!(docker.remove(&launch_1()).join(" "), "/usr/bin/docker rm --force agentd-k1-x-3");
    }

    #[test]
    fn a_mount_has_two_absolute_paths_and_perhaps_options() {
        assert!(is_mount("/a:/b") && is_mount("/a b:/b:ro"));
        for text in ["/a", "a:/b", "/a:b", "/a:/b:", "/a:/b:ro:x", "/a:/", "", ":"] {
            assert!(!is_mount(text), "{text}");
        }
    }

    #[test]
    fn the_lists_of_both_engines_give_states() {
        // Printed by podman 4.3.1, and the form of Docker.
        let podman = r#"[{"ExitCode":0,"Id":"991d","Names":["agentd-a-1"],"State":"running","Status":"Up 1 second ago"},
            {"ExitCode":3,"Id":"1","Names":["agentd-b-1"],"State":"exited","Status":"Exited (3) now"}]"#;
        let docker = "{\"ID\":\"991d\",\"Names\":\"agentd-a-1\",\"State\":\"running\",\"Status\":\"Up 1 second\"}\n\
            {\"ID\":\"1\",\"Names\":\"agentd-b-1\",\"State\":\"exited\",\"Status\":\"Exited (3) 2 seconds ago\"}\n";
        for output in [podman, docker] {
            let states = parse_status(output).unwrap();
            assert_eq!((states[0].state, states[0].job.as_deref()), (Some(PlaceState::Running), Some("991d")));
            assert_eq!((states[1].state, states[1].reason.as_deref()), (Some(PlaceState::Ended), Some("Exited")));
            assert_eq!(states[1].message.as_deref(), Some("the container ended with exit code 3"));
        }
        let odd = parse_status(r#"[{"Names":["agentd-a-1"],"State":"paused"}]"#).unwrap();
        assert_eq!((odd[0].state, odd[0].message.as_deref()), (None, Some("the engine reports the state \"paused\"")));
        assert_eq!(parse_status("[]\n").unwrap(), []);
        assert_eq!(parse_status("").unwrap(), []);
        assert!(parse_status("Cannot connect").is_err());
    }

    #[test]
    fn an_inspected_container_says_that_its_memory_was_exceeded() {
        let output = r#"[{"Id":"1","Name":"/agentd-a-1","State":{"Status":"exited","OOMKilled":true,"ExitCode":137}}]"#;
        let end = parse_ended(output).unwrap();
        assert_eq!((end.name.as_str(), end.reason.as_deref()), ("agentd-a-1", Some("OOMKilled")));
        assert_eq!(end.message.as_deref(), Some("the container reached its memory limit"));
        let error = r#"[{"Name":"agentd-a-1","State":{"Status":"exited","ExitCode":127,"Error":"no such file"}}]"#;
        let message = parse_ended(error).unwrap().message.unwrap();
        assert_eq!(message, "the container ended with exit code 127: no such file");
        assert_eq!(parse_ended("[]\n"), None);
        assert_eq!(parse_ended("Error: no such container"), None);
    }
}
