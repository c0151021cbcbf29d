//! A validated place, and the command lines that all kinds have.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use agentd_api::PlaceName;

use crate::{
    ClientError, CommandPlace, Container, EngineState, Kubernetes, LaunchNames, Pod, ResidentTimes, Slurm, Ssh,
    command, container, kubernetes, slurm, ssh,
};

/// A configured place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name in the configuration.
    pub name: PlaceName,
    /// Path of agentd-keeper on the place, or a name that the place looks up.
    pub keeper: String,
    /// SHA-256 that agentd-keeper must have there, in lower-case hexadecimal digits.
    pub keeper_sha256: Option<String>,
    /// Time for which an agent continues after its connection is lost.
    pub grace: Duration,
    /// Time after which a silent connection counts as lost.
    pub silence: Duration,
    /// Time between two queries of the states.
    pub poll: Duration,
    /// Names of prerequisites that the engine ensures.
    pub ensures: Vec<String>,
    /// Names of the variables that the client gets from agentd's environment, beside those of every client.
    pub pass: Vec<String>,
    /// Variables that are set for the client.
    pub env: BTreeMap<String, String>,
    /// Times of an agent that stays on the place when the connection is lost. Absent: the loss ends it.
    pub resident: Option<ResidentTimes>,
    /// The engine and its settings.
    pub kind: PlaceKind,
}

/// The engine of a place, with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceKind {
    /// A job of Slurm.
    Slurm(Slurm),
    /// Another machine over ssh.
    Ssh(Ssh),
    /// A container of podman or Docker.
    Container(Container),
    /// A pod of Kubernetes.
    Kubernetes(Kubernetes),
    /// A client of the user's own.
    Command(CommandPlace),
}

/// Variables of agentd's environment that every client gets.
const BASE: [&str; 5] = ["HOME", "PATH", "USER", "LOGNAME", "LANG"];

impl PlaceKind {
    /// Returns the word of the kind in the configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Slurm(_) => "slurm",
            Self::Ssh(_) => "ssh",
            Self::Container(_) => "container",
            Self::Kubernetes(_) => "kubernetes",
            Self::Command(_) => "command",
        }
    }

    /// Returns a summary of the target for people: the partition, the host, the image, the context or the program.
    pub fn target(&self) -> Option<String> {
        match self {
            Self::Slurm(slurm) => slurm.partition.clone(),
            Self::Ssh(ssh) => Some(ssh.target()),
            Self::Container(container) => Some(container.image.clone()),
            Self::Kubernetes(kubernetes) => Some(kubernetes.target()),
            Self::Command(command) => command.client.first().cloned(),
        }
    }

    /// Returns the configured program of the client: a name or an absolute path.
    pub fn program(&self) -> String {
        match self {
            Self::Slurm(slurm) => slurm.tool("srun"),
            Self::Ssh(_) => ssh::PROGRAM.to_owned(),
            Self::Container(container) => container.engine.clone(),
            Self::Kubernetes(_) => kubernetes::PROGRAM.to_owned(),
            Self::Command(command) => command.client.first().cloned().unwrap_or_default(),
        }
    }

    /// Reports whether the engine can keep a launch in a queue. No time limit then applies to its start.
    pub fn has_queue(&self) -> bool {
        match self {
            Self::Slurm(_) | Self::Kubernetes(_) => true,
            Self::Ssh(_) | Self::Container(_) => false,
            Self::Command(command) => !command.status.is_empty(),
        }
    }

    /// Reports whether the engine keeps an ended launch until it is removed.
    pub fn keeps_ended(&self) -> bool {
        matches!(self, Self::Container(_) | Self::Kubernetes(_))
    }

    /// Reports whether an agent is started again after the engine ended it because of a node or a preemption.
    pub fn requeues(&self) -> bool {
        matches!(self, Self::Slurm(slurm) if slurm.requeue)
    }
}

impl Place {
    /// Returns the file with agentd-keeper that the place takes along.
    pub fn keeper_file(&self) -> Option<&Path> {
        match &self.kind {
            PlaceKind::Slurm(slurm) => slurm.keeper_file.as_deref(),
            PlaceKind::Ssh(ssh) => ssh.keeper_file.as_deref(),
            PlaceKind::Container(container) => container.keeper_file.as_deref(),
            PlaceKind::Kubernetes(_) | PlaceKind::Command(_) => None,
        }
    }

    /// Returns the file with agentd-keeper, if the client asks for its content. Other engines carry the file by
    /// themselves.
    pub fn sends(&self) -> Option<&Path> {
        self.keeper_file().filter(|_| matches!(self.kind, PlaceKind::Ssh(_)))
    }

    /// Returns the file with the manifest of the pod, for a place with a template.
    pub fn template(&self) -> Option<&Path> {
        match &self.kind {
            PlaceKind::Kubernetes(Kubernetes { pod: Pod::Template(path), .. }) => Some(path),
            _ => None,
        }
    }

    /// Builds the environment of the client and of the other command lines. `daemon` looks up a variable of agentd's
    /// own environment.
    pub fn environment(&self, daemon: impl Fn(&str) -> Option<OsString>) -> BTreeMap<String, OsString> {
        let names = BASE.into_iter().chain(self.pass.iter().map(String::as_str));
        let mut environment: BTreeMap<String, OsString> =
            names.filter_map(|name| Some((name.to_owned(), daemon(name)?))).collect();
        if let PlaceKind::Slurm(_) = self.kind {
            environment.insert(slurm::TIME_FORMAT.0.to_owned(), slurm::TIME_FORMAT.1.into());
        }
        environment.extend(self.env.iter().map(|(name, value)| (name.clone(), value.into())));
        environment
    }

    /// Builds the command line of the client. The first word is a name or an absolute path.
    ///
    /// # Errors
    ///
    /// A file of the launch is missing or invalid, or the directory cannot be an argument.
    pub fn client(&self, launch: &LaunchNames<'_>) -> Result<Vec<String>, ClientError> {
        match &self.kind {
            PlaceKind::Slurm(slurm) => Ok(slurm.client(&self.keeper, launch)),
            PlaceKind::Ssh(ssh) => ssh.start(&self.keeper, self.silence, launch.keeper, ""),
            PlaceKind::Container(container) => Ok(container.run(&self.keeper, launch, container::Run::Client)),
            PlaceKind::Kubernetes(kubernetes) => kubernetes.client(&self.keeper, launch),
            PlaceKind::Command(command) => command::replaced(&command.client, launch, &self.keeper),
        }
    }

    /// Builds the command line that ends a launch, also while it is queued. Absent if the end of the client ends it.
    ///
    /// # Errors
    ///
    /// The directory cannot be an argument.
    pub fn cancel(&self, launch: &LaunchNames<'_>) -> Result<Option<Vec<String>>, ClientError> {
        match &self.kind {
            PlaceKind::Slurm(slurm) => Ok(Some(slurm.cancel(launch))),
            PlaceKind::Ssh(ssh) if self.resident.is_some() => {
                Ok(Some(ssh.enter(&self.keeper, self.silence, &format!("end {}", launch.name()))))
            }
            PlaceKind::Ssh(_) => Ok(None),
            PlaceKind::Container(container) => Ok(Some(container.remove(launch))),
            PlaceKind::Kubernetes(kubernetes) => Ok(Some(kubernetes.delete(launch))),
            PlaceKind::Command(own) => command::optional(&own.cancel, launch, &self.keeper),
        }
    }

    /// Builds the command line that ends and removes all that a launch left behind after a crash. It succeeds if
    /// nothing is left.
    ///
    /// # Errors
    ///
    /// The directory cannot be an argument.
    pub fn sweep(&self, launch: &LaunchNames<'_>) -> Result<Option<Vec<String>>, ClientError> {
        match &self.kind {
            PlaceKind::Command(own) if !own.sweep.is_empty() => command::optional(&own.sweep, launch, &self.keeper),
            _ => self.cancel(launch),
        }
    }

    /// Builds the command line that prints the states of all launches on the place. Absent if the engine has no states.
    pub fn status(&self) -> Option<Vec<String>> {
        match &self.kind {
            PlaceKind::Slurm(slurm) => Some(slurm.status()),
            PlaceKind::Ssh(ssh) if self.resident.is_some() => Some(ssh.enter(&self.keeper, self.silence, "list")),
            PlaceKind::Ssh(_) => None,
            PlaceKind::Container(container) => Some(container.status()),
            PlaceKind::Kubernetes(kubernetes) => Some(kubernetes.status()),
            PlaceKind::Command(own) => (!own.status.is_empty()).then(|| own.status.clone()),
        }
    }

    /// Parses the output of [`Self::status`]. Launches of other programs are left out. Each launch has one state, that
    /// of its last job.
    ///
    /// # Errors
    ///
    /// A text for people: the output is no list of states.
    pub fn parse_status(&self, output: &str) -> Result<Vec<EngineState>, String> {
        let states = match &self.kind {
            PlaceKind::Slurm(_) => slurm::parse_status(output),
            PlaceKind::Ssh(_) if self.resident.is_some() => ssh::parse_status(output)?,
            PlaceKind::Ssh(_) => Vec::new(),
            PlaceKind::Container(_) => container::parse_status(output)?,
            PlaceKind::Kubernetes(_) => kubernetes::parse_status(output)?,
            PlaceKind::Command(_) => command::parse_status(output)?,
        };
        Ok(states.into_iter().filter(|state| crate::session_and_launch(&state.name).is_some()).collect())
    }

    /// Builds the command line that prints the end of a launch, for a launch that [`Self::status`] does not list.
    /// `job` is the engine's id of the launch.
    pub fn ended(&self, launch: &LaunchNames<'_>, job: Option<&str>) -> Option<Vec<String>> {
        match &self.kind {
            PlaceKind::Slurm(slurm) => slurm.ended(job?),
            PlaceKind::Ssh(_) | PlaceKind::Command(_) => None,
            PlaceKind::Container(container) => Some(container.inspect(launch)),
            PlaceKind::Kubernetes(kubernetes) => Some(kubernetes.get(launch)),
        }
    }

    /// Parses the output of [`Self::ended`]. Returns `None` if the output has no state.
    pub fn parse_ended(&self, output: &str) -> Option<EngineState> {
        match &self.kind {
            PlaceKind::Slurm(_) => slurm::parse_ended(output),
            PlaceKind::Ssh(_) | PlaceKind::Command(_) => None,
            PlaceKind::Container(_) => container::parse_ended(output),
            PlaceKind::Kubernetes(_) => kubernetes::parse_ended(output),
        }
    }

    /// Builds the command line that prints the version of the client's program.
    pub fn version(&self) -> Option<Vec<String>> {
        let program = self.kind.program();
        match &self.kind {
            PlaceKind::Slurm(_) | PlaceKind::Container(_) => Some(vec![program, "--version".to_owned()]),
            PlaceKind::Ssh(_) => Some(vec![program, "-V".to_owned()]),
            PlaceKind::Kubernetes(_) => Some([program.as_str(), "version", "--client"].map(str::to_owned).to_vec()),
            PlaceKind::Command(_) => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::launch::launch_1;

    pub(crate) fn place(kind: PlaceKind) -> Place {
        Place {
            ensures: Vec::new(),
            resident: None,
            name: "farm".parse().unwrap(),
            keeper: "agentd-keeper".to_owned(),
            keeper_sha256: None,
            grace: Duration::ZERO,
            silence: Duration::from_secs(30),
            poll: Duration::from_secs(5),
            pass: vec!["SLURM_CONF".to_owned(), "KRB5CCNAME".to_owned()],
            env: BTreeMap::from([("LANG".to_owned(), "C".to_owned())]),
            kind,
        }
    }

    #[test]
    fn a_client_has_the_passed_variables_and_no_others() {
        let daemon = |name: &str| (name != "KRB5CCNAME").then(|| OsString::from(format!("of {name}")));
        let environment = place(PlaceKind::Slurm(Slurm::default())).environment(daemon);
        let expected = [
            ("HOME", "of HOME"),
            ("LANG", "C"),
            ("LOGNAME", "of LOGNAME"),
            ("PATH", "of PATH"),
            ("SLURM_CONF", "of SLURM_CONF"),
            ("SLURM_TIME_FORMAT", "%s"),
            ("USER", "of USER"),
        ];
        assert_eq!(environment, expected.map(|(name, value)| (name.to_owned(), value.into())).into());
        let ssh = place(PlaceKind::Ssh(Ssh::default())).environment(daemon);
        assert!(!ssh.contains_key("SLURM_TIME_FORMAT"));
    }

    #[test]
    fn a_launch_over_ssh_has_no_tools_and_one_of_slurm_has_all() {
        let ssh = place(PlaceKind::Ssh(Ssh { host: "h".to_owned(), ..Ssh::default() }));
        assert_eq!((ssh.cancel(&launch_1()), ssh.sweep(&launch_1())), (Ok(None), Ok(None)));
        assert_eq!((ssh.status(), ssh.ended(&launch_1(), Some("1"))), (None, None));
        assert!(!ssh.kind.has_queue());
        let slurm = place(PlaceKind::Slurm(Slurm::default()));
        assert_eq!(slurm.cancel(&launch_1()), slurm.sweep(&launch_1()));
        assert!(!slurm.kind.keeps_ended() && PlaceKind::Container(crate::Container::default()).keeps_ended());
        assert!(slurm.status().is_some() && slurm.ended(&launch_1(), None).is_none() && slurm.kind.has_queue());
    }

    #[test]
    fn a_client_of_the_users_own_is_swept_by_its_own_program_or_cancelled() {
        let own = CommandPlace {
            client: crate::words(["run", "{name}"]),
            cancel: crate::words(["end", "{name}"]),
            ..CommandPlace::default()
        };
        let swept = |own: &CommandPlace| place(PlaceKind::Command(own.clone())).sweep(&launch_1()).unwrap().unwrap();
        assert_eq!(swept(&own), ["end", "agentd-k1-x-3"]);
        assert_eq!(swept(&CommandPlace { sweep: crate::words(["rm", "{launch}"]), ..own.clone() }), ["rm", "3"]);
        let kind = PlaceKind::Command(own);
        assert!(!kind.has_queue() && kind.target().as_deref() == Some("run"));
    }

    #[test]
    fn launches_of_other_programs_are_left_out_of_the_states() {
        let own = CommandPlace { status: crate::words(["states"]), ..CommandPlace::default() };
        let place = place(PlaceKind::Command(own));
        let states = place.parse_status("agentd-a-1 running\nother running\nagentd-a running\n").unwrap();
        assert_eq!(states.iter().map(|state| &*state.name).collect::<Vec<_>>(), ["agentd-a-1"]);
    }
}
