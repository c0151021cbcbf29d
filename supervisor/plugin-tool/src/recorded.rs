//! Implements the host's services for a case. Calls are answered from the case; a call without an answer is recorded
//! with lines that would answer it.
//!
//! The services never access this machine, so a case has the same result everywhere.

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::ByteString;
use agentd_api::plugin_tool::Unanswered;
use agentd_plugin_host::{
    ExchangeEnding, ExchangeResult, Failure, FileKind, Interface, Invocation, Liveness, LogLevel, MachineServices,
    Metadata, MountEntry, NameService, NetworkProblem, PathFilter, Places, ProgramEnding, ProgramResult, Route,
    RouteTo, Services, SourcedScript, Step, Variables,
};

use super::case::{self, Answers};

/// Returns the places of a fictitious session.
pub(crate) fn places(id: &str, directory: &str) -> Places {
    Places {
        cwd: Some(directory.to_owned()),
        session: Some(format!("/home/user/.local/state/agentd/sessions/{id}")),
        config: Some("/home/user/.config/agentd".to_owned()),
        home: Some("/home/user".to_owned()),
    }
}

/// Replaces the place name at the beginning of a path.
fn expand(places: &Places, path: &str) -> String {
    let known = [
        ("{cwd}", &places.cwd),
        ("{session}", &places.session),
        ("{config}", &places.config),
        ("{home}", &places.home),
    ];
    let place =
        |(word, place): (&str, &Option<String>)| Some(format!("{}{}", place.as_ref()?, path.strip_prefix(word)?));
    known.into_iter().find_map(place).unwrap_or_else(|| path.to_owned())
}

/// Answers calls from a case, and records log messages and unanswered calls.
#[derive(Debug)]
pub(crate) struct Recorded {
    answers: Answers,
    places: Places,
    records: Mutex<CallRecords>,
}

/// Records of a call: log messages and unanswered calls.
#[derive(Debug, Default)]
struct CallRecords {
    log: Vec<String>,
    unanswered: Vec<Unanswered>,
}

impl Recorded {
    pub(crate) fn new(answers: Answers, places: Places) -> Self {
        Self { answers, places, records: Mutex::default() }
    }

    /// Takes the log messages and the unanswered calls.
    pub(crate) fn take_records(&self) -> (Vec<String>, Vec<Unanswered>) {
        let mut records = self.lock();
        (std::mem::take(&mut records.log), std::mem::take(&mut records.unanswered))
    }

    fn same(&self, one: &str, other: &str) -> bool {
        expand(&self.places, one) == expand(&self.places, other)
    }

    fn lock(&self) -> MutexGuard<'_, CallRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an unanswered call and returns a failure to the plugin.
    fn unanswered<T>(&self, call: String, lines: String) -> Result<T, Failure> {
        let failure = Failure::Failed(format!("the case has no answer for {call}"));
        let mut records = self.lock();
        if records.unanswered.iter().all(|unanswered| unanswered.call != call) {
            records.unanswered.push(Unanswered { call, lines });
        }
        Err(failure)
    }

    /// Returns the answer for a file that the plugin may access.
    fn file(&self, what: &str, path: &str, allowed: PathFilter<'_>) -> Result<(&case::File, String), Failure> {
        let found = self.answers.file.iter().find(|file| self.same(&file.path, path));
        let resolved = found.and_then(|file| file.resolved.clone()).unwrap_or_else(|| expand(&self.places, path));
        if !allowed(&resolved) {
            return Err(Failure::NotGranted(format!("the file {path:?} is outside of this plugin's grant")));
        }
        let Some(file) = found else {
            let lines = format!("[[answers.file]]\npath = {}\n{what}", quoted(path));
            return self.unanswered(format!("the file {path:?}"), lines);
        };
        refused(file.failure.as_ref())?;
        Ok((file, resolved))
    }

    fn network(&self, host: &str, port: Option<u16>) -> Result<&case::Network, NetworkProblem> {
        let fits = |network: &&case::Network| {
            network.host == host && (port.is_none() || network.port.is_none() || network.port == port)
        };
        let Some(network) = self.answers.network.iter().find(fits) else {
            let mut call = format!("the host {host:?}");
            let mut lines = format!("[[answers.network]]\nhost = {}\n", quoted(host));
            if let Some(port) = port {
                let _ = write!(call, " at port {port}");
                let _ = writeln!(lines, "port = {port}");
            }
            lines.push_str("addresses = [\"10.0.0.1\"]\n");
            return Ok(self.unanswered(call, lines)?);
        };
        match network.problem.clone() {
            None => Ok(network),
            Some(case::NetworkProblem::NoSuchHost(text)) => Err(NetworkProblem::NoSuchHost(text)),
            Some(case::NetworkProblem::NotResolved(text)) => Err(NetworkProblem::NotResolved(text)),
            Some(case::NetworkProblem::Refused(text)) => Err(NetworkProblem::Refused(text)),
            Some(case::NetworkProblem::Unreachable(text)) => Err(NetworkProblem::Unreachable(text)),
            Some(case::NetworkProblem::TimedOut(text)) => Err(NetworkProblem::TimedOut(text)),
            Some(case::NetworkProblem::Other(failure)) => Err(NetworkProblem::Other(failure)),
        }
    }
}

/// Returns a TOML string.
fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

fn refused(failure: Option<&Failure>) -> Result<(), Failure> {
    failure.map_or(Ok(()), |failure| Err(failure.clone()))
}

fn pairs<'a>(variables: impl IntoIterator<Item = (&'a String, &'a ByteString)>) -> Variables {
    variables.into_iter().map(|(name, value)| (name.clone(), value.as_bytes().to_vec())).collect()
}

/// Reports whether each argument matches its pattern. A last pattern `**` matches any further arguments.
fn fit(patterns: &[String], arguments: &[String]) -> bool {
    let one = |(pattern, argument): (&String, &String)| agentd_plugin_host::glob(pattern, argument);
    match patterns.split_last() {
        Some((last, first)) if last == "**" => arguments.len() >= first.len() && first.iter().zip(arguments).all(one),
        _ => arguments.len() == patterns.len() && patterns.iter().zip(arguments).all(one),
    }
}

#[async_trait::async_trait]
impl Services for Recorded {
    fn log(&self, level: LogLevel, message: &str) {
        let level = match level {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        };
        self.lock().log.push(format!("{level}: {message}"));
    }

    fn machine(&self) -> &dyn MachineServices {
        self
    }

    async fn login_environment(&self, _: Instant) -> Result<Variables, Failure> {
        let Some(login) = &self.answers.login else {
            return self
                .unanswered("the login shell".to_owned(), "[answers.login.environment]\nPATH = \"/usr/bin\"\n".into());
        };
        refused(login.failure.as_ref())?;
        Ok(pairs(&login.environment))
    }

    async fn locate_scripts(&self, paths: Vec<String>, _: Instant) -> Result<Vec<Option<String>>, Failure> {
        let locate = |path: &String| {
            let script = self.answers.script.iter().find(|script| self.same(&script.path, path))?;
            Some(script.resolved.clone().unwrap_or_else(|| expand(&self.places, path)))
        };
        Ok(paths.iter().map(locate).collect())
    }

    async fn source_script(&self, path: &str, environment: Variables, _: Instant) -> Result<SourcedScript, Failure> {
        let Some(script) = self.answers.script.iter().find(|script| self.same(&script.path, path)) else {
            // A missing script is a valid answer: most scripts that a plugin looks for do not exist.
            return Err(Failure::NotFound(format!("the script {path:?} does not exist")));
        };
        refused(script.failure.as_ref())?;
        let stays = |name: &String| !script.environment.contains_key(name) && !script.unset.contains(name);
        let mut after: Variables = environment.into_iter().filter(|(name, _)| stays(name)).collect();
        after.extend(pairs(&script.environment));
        after.sort();
        let path = script.resolved.clone().unwrap_or_else(|| expand(&self.places, path));
        Ok(SourcedScript { path, environment: after })
    }

    async fn read_secret(&self, name: &str, _: Instant) -> Result<Vec<u8>, Failure> {
        let Some(secret) = self.answers.secret.iter().find(|secret| secret.name == name) else {
            let lines = format!("[[answers.secret]]\nname = {}\nvalue = \"not a real one\"\n", quoted(name));
            return self.unanswered(format!("the secret {name:?}"), lines);
        };
        refused(secret.failure.as_ref())?;
        Ok(secret.value.as_bytes().to_vec())
    }
}

#[async_trait::async_trait]
impl MachineServices for Recorded {
    async fn run_command(
        &self,
        invocation: Invocation,
        allowed: PathFilter<'_>,
        _: Instant,
    ) -> Result<ProgramResult, Failure> {
        let Invocation { program, arguments, .. } = invocation;
        let fits = |command: &&case::Command| command.program == program && fit(&command.arguments, &arguments);
        let found = self.answers.command.iter().find(fits);
        let resolved = found.and_then(|command| command.resolved.as_ref()).unwrap_or(&program);
        if !allowed(resolved) {
            let text = format!("the program {program:?} with these arguments is outside of this plugin's grant");
            return Err(Failure::NotGranted(text));
        }
        let Some(command) = found else {
            let words = arguments.iter().map(String::as_str).collect::<toml_edit::Array>();
            let lines =
                format!("[[answers.command]]\nprogram = {}\narguments = {words}\noutput = \"\"\n", quoted(&program));
            return self.unanswered(format!("the program {program:?} with these arguments"), lines);
        };
        refused(command.failure.as_ref())?;
        Ok(ProgramResult {
            ending: command.signal.map_or(ProgramEnding::Exited(command.status), ProgramEnding::Signalled),
            output: command.output.as_bytes().to_vec(),
            errors: command.errors.as_bytes().to_vec(),
        })
    }

    async fn inspect_file(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Metadata, Failure> {
        let (file, path) = self.file("content = \"\"\n", path, allowed)?;
        let kind = if file.entries.is_some() { FileKind::Directory } else { FileKind::File };
        let size = file.content.as_ref().map_or(0, |content| content.as_bytes().len() as u64);
        Ok(Metadata { path, kind, size, modified: file.modified })
    }

    async fn read_file(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Vec<u8>, Failure> {
        let (file, _) = self.file("content = \"\"\n", path, allowed)?;
        let content = file.content.as_ref().map(|content| content.as_bytes().to_vec());
        content.ok_or_else(|| Failure::Unavailable(format!("{path:?} is a directory")))
    }

    async fn list_directory(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Vec<String>, Failure> {
        let (file, _) = self.file("entries = []\n", path, allowed)?;
        let mut entries =
            file.entries.clone().ok_or_else(|| Failure::Unavailable(format!("{path:?} is not a directory")))?;
        entries.sort();
        Ok(entries)
    }

    async fn resolve_host(&self, host: &str, _: Instant) -> Result<Vec<String>, NetworkProblem> {
        self.network(host, None).map(|network| network.addresses.clone())
    }

    async fn exchange(
        &self,
        host: &str,
        port: u16,
        _: Vec<Step>,
        _: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        let network = self.network(host, Some(port))?;
        Ok(ExchangeResult {
            address: network.addresses.first().map_or_else(|| host.to_owned(), Clone::clone),
            connected: Duration::from_millis(network.connected),
            received: network.received.iter().map(|bytes| bytes.as_bytes().to_vec()).collect(),
            ending: match network.ending {
                case::ExchangeEnding::Complete => ExchangeEnding::Complete,
                case::ExchangeEnding::Closed => ExchangeEnding::Closed,
                case::ExchangeEnding::TimedOut => ExchangeEnding::TimedOut,
            },
        })
    }

    async fn interfaces(&self, _: Instant) -> Result<Vec<Interface>, Failure> {
        let Some(interfaces) = &self.answers.facts.interfaces else {
            let lines = "[[answers.facts.interfaces]]\nname = \"eth0\"\naddresses = [\"10.0.0.2/24\"]\n";
            return self.unanswered("the network's interfaces".to_owned(), lines.to_owned());
        };
        let interface = |interface: &case::Interface| Interface {
            name: interface.name.clone(),
            up: interface.up,
            running: interface.running,
            loopback: interface.loopback,
            addresses: interface.addresses.clone(),
        };
        Ok(interfaces.iter().map(interface).collect())
    }

    async fn routes(&self, _: Instant) -> Result<Vec<Route>, Failure> {
        let Some(routes) = &self.answers.facts.routes else {
            let lines =
                "[[answers.facts.routes]]\ndestination = \"0.0.0.0/0\"\ngateway = \"10.0.0.1\"\nvia = \"eth0\"\n";
            return self.unanswered("the routes".to_owned(), lines.to_owned());
        };
        let route = |route: &case::Route| Route {
            destination: route.destination.clone(),
            gateway: route.gateway.clone(),
            via: route.via.clone(),
            metric: route.metric,
        };
        Ok(routes.iter().map(route).collect())
    }

    async fn way_to(&self, address: &str, _: Instant) -> Result<Option<RouteTo>, Failure> {
        let Some(way) = self.answers.facts.ways.iter().find(|way| way.address == address) else {
            let lines = format!(
                "[[answers.facts.ways]]\naddress = {}\nvia = \"eth0\"\nsource = \"10.0.0.2\"\n",
                quoted(address)
            );
            return self.unanswered(format!("the route to {address:?}"), lines);
        };
        Ok(way.source.clone().map(|source| RouteTo { via: way.via.clone(), source }))
    }

    async fn name_service(&self, _: Instant) -> Result<NameService, Failure> {
        let Some(known) = &self.answers.facts.name_service else {
            let lines = "[answers.facts.name-service]\nservers = [\"10.0.0.1\"]\n";
            return self.unanswered("the name service".to_owned(), lines.to_owned());
        };
        Ok(NameService { servers: known.servers.clone(), search: known.search.clone() })
    }

    async fn mounts(&self, _: Instant) -> Result<Vec<MountEntry>, Failure> {
        let mounted = |mount: &case::Mount| MountEntry {
            path: mount.path.clone(),
            source: mount.source.clone(),
            kind: mount.kind.clone(),
            options: mount.options.clone(),
            device: mount.device.clone(),
        };
        Ok(self.answers.mount.iter().map(mounted).collect())
    }

    async fn probe_mount(&self, path: &str, _: Duration, _: Instant) -> Result<Liveness, Failure> {
        let Some(mount) = self.answers.mount.iter().find(|mount| self.same(&mount.path, path)) else {
            let lines = format!(
                "[[answers.mount]]\npath = {}\nsource = \"server:/export\"\nkind = \"nfs4\"\nliveness = \"answers\"\n",
                quoted(path)
            );
            return self.unanswered(format!("the mount {path:?}"), lines);
        };
        Ok(match &mount.liveness {
            case::Liveness::Answers => Liveness::Answers(mount.device.clone()),
            case::Liveness::Hangs => Liveness::Hangs,
            case::Liveness::Error(text) => Liveness::Error(text.clone()),
        })
    }

    async fn processes(&self, name: &str, _: Instant) -> Result<u32, Failure> {
        let Some(process) = self.answers.process.iter().find(|process| process.name == name) else {
            let lines = format!("[[answers.process]]\nname = {}\nrunning = 1\n", quoted(name));
            return self.unanswered(format!("processes named {name:?}"), lines);
        };
        Ok(process.running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(answers: &str) -> Recorded {
        let answers = toml::from_str(answers).unwrap_or_else(|error| panic!("{error}"));
        Recorded::new(answers, places("s1", "/work"))
    }

    #[test]
    fn arguments_are_patterns_and_a_last_double_star_is_any_number() {
        let fits = |patterns: &[&str], arguments: &[&str]| {
            let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            fit(&owned(patterns), &owned(arguments))
        };
        assert!(fits(&[], &[]) && fits(&["a", "b*"], &["a", "bc"]) && fits(&["a", "**"], &["a"]));
        assert!(fits(&["**"], &["a", "b"]));
        assert!(!fits(&["a"], &["a", "b"]) && !fits(&["a", "**"], &[]) && !fits(&["a"], &["b"]));
    }

    #[tokio::test]
    async fn an_unanswered_call_is_recorded_once_with_lines_that_answer_it() {
        let recorded = recorded("");
        for _ in 0..2 {
            recorded.read_file("/a \"b\"", &|_| true, Instant::now()).await.unwrap_err();
        }
        recorded.processes("vpn", Instant::now()).await.unwrap_err();
        recorded.exchange("h", 1, Vec::new(), Instant::now()).await.unwrap_err();
        recorded.way_to("10.0.0.9", Instant::now()).await.unwrap_err();
        recorded.interfaces(Instant::now()).await.unwrap_err();
        recorded.probe_mount("/mnt", Duration::ZERO, Instant::now()).await.unwrap_err();
        recorded.read_secret("s", Instant::now()).await.unwrap_err();
        recorded.login_environment(Instant::now()).await.unwrap_err();
        let (_, unanswered) = recorded.take_records();
        assert_eq!(unanswered.len(), 8);
        // Added to the case, the lines answer the calls.
        let lines: String = unanswered.iter().map(|unanswered| unanswered.lines.as_str()).collect();
        let case: case::Case = toml::from_str(&lines).unwrap_or_else(|error| panic!("{error}\n{lines}"));
        assert_eq!(case.answers.file[0].path, "/a \"b\"");
    }

    #[tokio::test]
    async fn the_resolved_path_must_be_granted() {
        let recorded = recorded("[[file]]\npath = \"{cwd}/a\"\nresolved = \"/etc/shadow\"\ncontent = \"x\"");
        let inside = |path: &str| path.starts_with("/work/");
        let refused = recorded.read_file("/work/a", &inside, Instant::now()).await;
        assert!(matches!(refused, Err(Failure::NotGranted(_))), "{refused:?}");
        assert_eq!(recorded.read_file("/work/a", &|path| path == "/etc/shadow", Instant::now()).await.unwrap(), b"x");
    }

    #[tokio::test]
    async fn a_script_changes_what_it_is_given() {
        let recorded = recorded("[[script]]\npath = \"{cwd}/x.sh\"\nunset = [\"B\"]\nenvironment = { A = \"1\" }");
        let given = [("A", "0"), ("B", "0"), ("C", "0")].map(|(name, value)| (name.to_owned(), value.into())).to_vec();
        let sourced = recorded.source_script("{cwd}/x.sh", given, Instant::now()).await.unwrap();
        assert_eq!(sourced.path, "/work/x.sh");
        assert_eq!(sourced.environment, [("A".to_owned(), b"1".to_vec()), ("C".to_owned(), b"0".to_vec())]);
        let absent = recorded.source_script("{cwd}/y.sh", Vec::new(), Instant::now()).await;
        assert!(matches!(absent, Err(Failure::NotFound(_))));
        assert!(recorded.take_records().1.is_empty());
    }
}
