//! Validates a place, and converts it into the type of the crate `agentd-place`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::PlaceName;
use agentd_api::place::HERE;
use agentd_place::{CommandPlace, Container, Kubernetes, Mount, Place, PlaceKind, Pod, ResidentTimes, Slurm, Ssh};

use super::super::{Scope, ScopeError, seconds};
use super::Kind::{self, Command, Container as Containers, Kubernetes as Pods, Slurm as Jobs, Ssh as Shell};
use super::{ConfiguredPlace, Level};

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Jobs => "slurm",
            Shell => "ssh",
            Containers => "container",
            Pods => "kubernetes",
            Command => "command",
        }
    }

    /// Returns the variables that a client gets by default from agentd's environment.
    fn passed(self) -> Vec<String> {
        let name = match self {
            Jobs => "SLURM_CONF",
            Shell => "SSH_AUTH_SOCK",
            Containers => "XDG_RUNTIME_DIR",
            Pods => "KUBECONFIG",
            Command => return Vec::new(),
        };
        vec![name.to_owned()]
    }
}

/// Name of agentd-keeper in the search path of a place.
const KEEPER: &str = "agentd-keeper";
/// Path of agentd-keeper in a container that mounts it.
const MOUNTED_KEEPER: &str = "/agentd-keeper";
/// Least silence after which a connection counts as lost.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// Least time between two queries.
const LEAST_POLL: Duration = Duration::from_millis(100);

/// Time after which an agent without a connection is ended.
const UNATTENDED: Duration = Duration::from_hours(7 * 24);
/// Time for which the end of an agent waits to be read.
const LINGER: Duration = Duration::from_hours(24);

/// A mistake in a place: its key below the place, and the message after `places.NAME`.
pub(super) type Wrong = (&'static str, String);

impl ConfiguredPlace {
    /// Returns the keys that are set and that not all kinds have, with the kinds that have them.
    fn special_keys(&self) -> impl Iterator<Item = (&'static str, &'static [Kind])> {
        // Over ssh, only agents that stay have a list of states.
        let polled: &[Kind] = match self.level {
            Some(Level::Resident) => &[Jobs, Shell, Containers, Pods, Command],
            _ => &[Jobs, Containers, Pods, Command],
        };
        let keys: [(&str, bool, &[Kind]); 32] = [
            ("keeper_file", self.keeper_file.is_some(), &[Jobs, Shell, Containers]),
            ("poll", self.poll.is_some(), polled),
            ("options", !self.options.is_empty(), &[Jobs, Shell, Containers, Pods]),
            ("memory", self.memory.is_some(), &[Jobs, Containers, Pods]),
            ("cores", self.cores.is_some(), &[Jobs, Containers, Pods]),
            ("partition", self.partition.is_some(), &[Jobs]),
            ("time", self.time.is_some(), &[Jobs]),
            ("gpus", self.gpus.is_some(), &[Jobs]),
            ("licenses", !self.licenses.is_empty(), &[Jobs]),
            ("account", self.account.is_some(), &[Jobs]),
            ("qos", self.qos.is_some(), &[Jobs]),
            ("reservation", self.reservation.is_some(), &[Jobs]),
            ("constraint", self.constraint.is_some(), &[Jobs]),
            ("requeue", self.requeue.is_some(), &[Jobs]),
            ("bin", self.bin.is_some(), &[Jobs]),
            ("host", self.host.is_some(), &[Shell]),
            ("user", self.user.is_some(), &[Shell, Containers]),
            ("port", self.port.is_some(), &[Shell]),
            ("config", self.config.is_some(), &[Shell]),
            ("image", self.image.is_some(), &[Containers, Pods]),
            ("engine", self.engine.is_some(), &[Containers]),
            ("mounts", !self.mounts.is_empty(), &[Containers]),
            ("network", self.network.is_some(), &[Containers]),
            ("engine_options", !self.engine_options.is_empty(), &[Containers]),
            ("namespace", self.namespace.is_some(), &[Pods]),
            ("context", self.context.is_some(), &[Pods]),
            ("template", self.template.is_some(), &[Pods]),
            ("client", !self.client.is_empty(), &[Command]),
            ("status", !self.status.is_empty(), &[Command]),
            ("cancel", !self.cancel.is_empty(), &[Command]),
            ("sweep", !self.sweep.is_empty(), &[Command]),
            ("submit", !self.submit.is_empty(), &[Command]),
        ];
        keys.into_iter().filter(|(_, is_set, _)| *is_set).map(|(key, _, kinds)| (key, kinds))
    }

    /// Validates the place. `home` replaces `~` in paths of this machine.
    pub(super) fn place(&self, name: &PlaceName, home: Option<&Path>) -> Result<Place, Wrong> {
        if name.as_str() == HERE {
            return Err(("kind", format!("is reserved: {HERE:?} means this machine; choose another name")));
        }
        let Some(kind) = self.kind else {
            let words = [Jobs, Shell, Containers, Pods, Command].map(Kind::as_str);
            return Err(("kind", format!("has no kind; add one of {}", words.join(", "))));
        };
        if let Some((key, kinds)) = self.special_keys().find(|(_, kinds)| !kinds.contains(&kind)) {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            let (own, others) = (kind.as_str(), kinds.join(", "));
            if key == "poll" && kind == Shell {
                let message = ".poll is no key of the kind \"ssh\" at the level \"connected\"; remove it, or set \
                               level = \"resident\"";
                return Err((key, message.to_owned()));
            }
            return Err((key, format!(".{key} is no key of the kind {own:?}; remove it, or choose the kind {others}")));
        }
        self.check_texts()?;
        self.check_client(name)?;
        self.check_numbers()?;
        let keeper = self.keeper(kind)?;
        Ok(Place {
            name: name.clone(),
            keeper,
            keeper_sha256: self.keeper_sha256()?,
            grace: self.grace.map_or(Duration::ZERO, |time| time.0),
            silence: self.silence.unwrap_or(seconds(30)).0,
            poll: self.poll.unwrap_or(seconds(5)).0,
            ensures: self.ensures.clone(),
            pass: self.pass.clone().unwrap_or_else(|| kind.passed()),
            env: self.env.clone(),
            resident: self.resident(kind)?,
            kind: self.kind(kind, home)?,
        })
    }

    /// Returns the times of an agent that stays on the place.
    fn resident(&self, kind: Kind) -> Result<Option<ResidentTimes>, Wrong> {
        let is_resident = self.level == Some(Level::Resident);
        let keys = [
            ("unattended", self.unattended.is_some(), true),
            ("linger", self.linger.is_some(), true),
            ("submit", !self.submit.is_empty(), true),
            ("grace", self.grace.is_some(), false),
        ];
        let wrong = keys.into_iter().find(|(_, is_set, of_resident)| *is_set && *of_resident != is_resident);
        if let Some((key, _, of_resident)) = wrong {
            let level = if of_resident { "resident" } else { "connected" };
            return Err((key, format!(".{key} is no key of this level; remove it, or set level = {level:?}")));
        }
        let names_job = self.client.iter().any(|word| word.contains("{job}"));
        if names_job && self.submit.is_empty() {
            return Err(("client", ".client has {job}, and no command gives one; set submit".to_owned()));
        }
        if is_resident && kind == Jobs && self.keeper_file.is_some() {
            let message = ".keeper_file is not possible with level = \"resident\", since sbatch takes no file along; \
                           install agentd-keeper on the nodes, and set keeper";
            return Err(("keeper_file", message.to_owned()));
        }
        Ok(is_resident.then(|| ResidentTimes {
            unattended: self.unattended.map_or(UNATTENDED, |time| time.0),
            linger: self.linger.map_or(LINGER, |time| time.0),
        }))
    }

    /// Checks all texts: they become arguments.
    fn check_texts(&self) -> Result<(), Wrong> {
        let texts = [
            ("keeper", &self.keeper),
            ("partition", &self.partition),
            ("account", &self.account),
            ("qos", &self.qos),
            ("reservation", &self.reservation),
            ("constraint", &self.constraint),
            ("host", &self.host),
            ("user", &self.user),
            ("image", &self.image),
            ("engine", &self.engine),
            ("network", &self.network),
            ("namespace", &self.namespace),
            ("context", &self.context),
        ];
        for (key, text) in texts.into_iter().filter_map(|(key, text)| Some((key, text.as_ref()?))) {
            if text.is_empty() || text.starts_with('-') || text.chars().any(char::is_control) {
                let message =
                    format!(".{key} is {text:?}; set a text without control characters and without a leading -");
                return Err((key, message));
            }
        }
        let lists = [
            ("options", &self.options),
            ("engine_options", &self.engine_options),
            ("licenses", &self.licenses),
            ("client", &self.client),
            ("status", &self.status),
            ("cancel", &self.cancel),
            ("sweep", &self.sweep),
            ("submit", &self.submit),
        ];
        for (key, list) in lists {
            if list.iter().any(|word| word.contains('\0')) || list.first().is_some_and(String::is_empty) {
                return Err((key, format!(".{key} has a NUL character or begins with an empty word; remove it")));
            }
        }
        let is_license = |text: &&String| !text.is_empty() && !text.contains([',', ' ', '\t', '\n']);
        if let Some(license) = self.licenses.iter().find(|license| !is_license(license)) {
            return Err(("licenses", format!(".licenses has {license:?}; write each as \"NAME:COUNT\"")));
        }
        if let Some(mount) = self.mounts.iter().find(|mount| !agentd_place::is_mount(mount)) {
            let message =
                format!(".mounts has {mount:?}; write \"SOURCE:TARGET\" or \"SOURCE:TARGET:ro\" with absolute paths");
            return Err(("mounts", message));
        }
        let files = [
            ("keeper_file", &self.keeper_file),
            ("bin", &self.bin),
            ("config", &self.config),
            ("template", &self.template),
        ];
        for (key, path) in files.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?))) {
            if !path.is_absolute() && !path.starts_with("~") {
                return Err((key, format!(".{key} is {}; begin the path with / or ~/", path.display())));
            }
        }
        Ok(())
    }

    /// Checks the environment of the client.
    fn check_client(&self, name: &PlaceName) -> Result<(), Wrong> {
        let scope = Scope::new("", &[], &[], &self.env);
        if let Some((key, error)) = scope.check().into_iter().next() {
            let hint = match &error {
                ScopeError::Secret(variable) => {
                    format!("add {variable:?} to places.{name}.pass, which takes it from agentd's environment")
                }
                other => other.hint(),
            };
            return Err((key, format!(".env: {error}; {hint}")));
        }
        let passed: BTreeMap<String, String> =
            self.pass.iter().flatten().map(|name| (name.clone(), String::new())).collect();
        let wrong = Scope::new("", &[], &[], &passed).check().into_iter().map(|(_, error)| error);
        // A secret may be passed: agentd's environment is not stored.
        if let Some(error) = wrong.into_iter().find(|error| !matches!(error, ScopeError::Secret(_))) {
            return Err(("pass", format!(".pass: {error}; {}", error.hint())));
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), Wrong> {
        if self.silence.is_some_and(|time| time.0 < LEAST_SILENCE) {
            return Err(("silence", ".silence is less than 1 s; set a longer time".to_owned()));
        }
        if self.poll.is_some_and(|time| time.0 < LEAST_POLL) {
            return Err(("poll", ".poll is less than 100 ms; set a longer time".to_owned()));
        }
        let zeros = [
            ("time", self.time.is_some_and(|time| time.0.is_zero())),
            ("memory", self.memory == Some(0)),
            ("cores", self.cores == Some(0)),
            ("gpus", self.gpus == Some(0)),
            ("port", self.port == Some(0)),
        ];
        match zeros.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((key, _)) => Err((key, format!(".{key} is 0; set a value above 0, or remove it"))),
            None => Ok(()),
        }
    }

    /// Returns the path or the name of agentd-keeper on the place.
    fn keeper(&self, kind: Kind) -> Result<String, Wrong> {
        let is_mounted = kind == Containers && self.keeper_file.is_some();
        let Some(keeper) = &self.keeper else {
            return Ok(if is_mounted { MOUNTED_KEEPER } else { KEEPER }.to_owned());
        };
        let is_home = kind == Shell && keeper.starts_with("~/");
        let message = if matches!(kind, Jobs | Shell) && self.keeper_file.is_some() {
            "is not used beside keeper_file; remove one of them"
        } else if !keeper.starts_with('/') && keeper.contains('/') && !is_home {
            "is a relative path; set an absolute path, or a name without /"
        } else if is_mounted && (!keeper.starts_with('/') || keeper.contains(':')) {
            "is the target of keeper_file; set an absolute path without a colon"
        } else if kind == Shell && !agentd_place::is_safe_remotely(keeper) {
            "has a character that shells treat in different ways; use none of ' ! \\"
        } else {
            return Ok(keeper.clone());
        };
        Err(("keeper", format!(".keeper is {keeper:?}, which {message}")))
    }

    /// Returns the SHA-256 that agentd-keeper must have on the place.
    fn keeper_sha256(&self) -> Result<Option<String>, Wrong> {
        let Some(digest) = &self.keeper_sha256 else { return Ok(None) };
        if self.keeper_file.is_some() {
            let message = ".keeper_sha256 is not used beside keeper_file, whose own is used; remove one of them";
            return Err(("keeper_sha256", message.to_owned()));
        }
        if digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let message = format!(".keeper_sha256 is {digest:?}; set the 64 hexadecimal digits that sha256sum prints");
            return Err(("keeper_sha256", message));
        }
        Ok(Some(digest.to_ascii_lowercase()))
    }

    /// Returns the settings of the kind.
    fn kind(&self, kind: Kind, home: Option<&Path>) -> Result<PlaceKind, Wrong> {
        match kind {
            Jobs => Ok(PlaceKind::Slurm(self.slurm(home))),
            Shell => self.ssh(home).map(PlaceKind::Ssh),
            Containers => self.container(home).map(PlaceKind::Container),
            Pods => self.kubernetes(home).map(PlaceKind::Kubernetes),
            Command => self.command().map(PlaceKind::Command),
        }
    }

    fn slurm(&self, home: Option<&Path>) -> Slurm {
        Slurm {
            partition: self.partition.clone(),
            time: self.time.map(|time| time.0),
            memory: self.memory,
            cores: self.cores,
            gpus: self.gpus,
            licenses: self.licenses.clone(),
            account: self.account.clone(),
            qos: self.qos.clone(),
            reservation: self.reservation.clone(),
            constraint: self.constraint.clone(),
            requeue: self.requeue.unwrap_or_default(),
            options: self.options.clone(),
            keeper_file: local(self.keeper_file.as_ref(), home),
            bin: local(self.bin.as_ref(), home),
        }
    }

    fn ssh(&self, home: Option<&Path>) -> Result<Ssh, Wrong> {
        Ok(Ssh {
            host: self.host.clone().ok_or_else(|| missing(Shell, "host", "\"HOST\""))?,
            user: self.user.clone(),
            port: self.port,
            config: local(self.config.as_ref(), home),
            options: self.options.clone(),
            keeper_file: local(self.keeper_file.as_ref(), home),
        })
    }

    fn container(&self, home: Option<&Path>) -> Result<Container, Wrong> {
        let engine = self.engine.clone().unwrap_or_else(|| "podman".to_owned());
        if !engine.starts_with('/') && !matches!(engine.as_str(), "podman" | "docker") {
            let message = format!(".engine is {engine:?}; set \"podman\", \"docker\" or an absolute path");
            return Err(("engine", message));
        }
        Ok(Container {
            image: self.image.clone().ok_or_else(|| missing(Containers, "image", "\"IMAGE\""))?,
            engine,
            mounts: self.mounts.iter().filter_map(|mount| Mount::parse(mount)).collect(),
            user: self.user.clone(),
            network: self.network.clone(),
            memory: self.memory,
            cores: self.cores,
            options: self.options.clone(),
            engine_options: self.engine_options.clone(),
            keeper_file: local(self.keeper_file.as_ref(), home),
        })
    }

    fn kubernetes(&self, home: Option<&Path>) -> Result<Kubernetes, Wrong> {
        let pod = match (&self.image, local(self.template.as_ref(), home)) {
            (Some(image), None) => Pod::Image(image.clone()),
            (None, Some(template)) => Pod::Template(template),
            (None, None) => return Err(missing(Pods, "image", "\"IMAGE\", or template = \"FILE\"")),
            (Some(_), Some(_)) => {
                return Err(("image", " has image and template; remove one of them".to_owned()));
            }
        };
        Ok(Kubernetes {
            namespace: self.namespace.clone(),
            context: self.context.clone(),
            pod,
            memory: self.memory,
            cores: self.cores,
            options: self.options.clone(),
        })
    }

    fn command(&self) -> Result<CommandPlace, Wrong> {
        if self.client.is_empty() {
            return Err(missing(Command, "client", "[\"PROGRAM\", \"{name}\", \"{keeper}\", \"enter\"]"));
        }
        let has_word = |word: &&String| agentd_place::WORDS.iter().any(|own| word.contains(&format!("{{{own}}}")));
        if let Some(word) = self.status.iter().find(has_word) {
            let message = format!(".status has {word:?}, but it is run once for all launches; remove the braces");
            return Err(("status", message));
        }
        Ok(CommandPlace {
            client: self.client.clone(),
            status: self.status.clone(),
            cancel: self.cancel.clone(),
            sweep: self.sweep.clone(),
            submit: self.submit.clone(),
        })
    }

    /// Reports whether a path of this machine begins with `~`.
    pub(super) fn needs_home(&self) -> bool {
        let files = [&self.keeper_file, &self.bin, &self.config, &self.template];
        files.into_iter().flatten().any(|path| path.starts_with("~"))
    }
}

/// Makes the message about a missing key.
fn missing(kind: Kind, key: &'static str, example: &str) -> Wrong {
    (key, format!(" has no {key}, which the kind {:?} needs; add {key} = {example}", kind.as_str()))
}

/// Returns a path of this machine with `~` replaced.
fn local(path: Option<&PathBuf>, home: Option<&Path>) -> Option<PathBuf> {
    let path = path?;
    Some(match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.clone(),
    })
}
