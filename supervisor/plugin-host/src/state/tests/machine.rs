//! Fake services that succeed always and record their calls.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::call::{Failure, LogLevel};
use crate::services::{
    CONTENT, ENTRIES, ERRORS, ExchangeEnding, ExchangeResult, FileKind, Interface, Invocation, Liveness,
    MachineServices, Metadata, MountEntry, NameService, NetworkProblem, PathFilter, ProgramEnding, ProgramResult,
    RECEIVE, Route, RouteTo, Services, SourcedScript, Step, Variables,
};

/// Succeeds always with the largest possible result, and records each call.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) asked: Mutex<Vec<String>>,
    /// Environments that programs received.
    pub(super) given: Mutex<Vec<Variables>>,
    /// Targets of symbolic links.
    pub(super) links: BTreeMap<&'static str, &'static str>,
    pub(super) addresses: Vec<&'static str>,
    /// Variables of the login shell.
    pub(super) login: Mutex<Variables>,
    /// Whether calls never end.
    pub(super) stuck: bool,
}

impl Machine {
    async fn heard(&self, what: String) {
        self.asked.lock().unwrap().push(what);
        if self.stuck {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves a path, if the plugin may access it.
    fn resolved(&self, path: &str, allowed: PathFilter<'_>) -> Result<String, Failure> {
        let path = path.replace("{cwd}", "/work");
        let resolved = self.links.get(path.as_str()).map_or(path.clone(), |&leads| leads.to_owned());
        if resolved == "absent" {
            return Err(Failure::NotFound("there is no such file".to_owned()));
        }
        if allowed(&resolved) { Ok(resolved) } else { Err(Failure::NotGranted("the machine says no".to_owned())) }
    }
}

#[async_trait::async_trait]
impl Services for Machine {
    fn log(&self, level: LogLevel, message: &str) {
        self.asked.lock().unwrap().push(format!("{level:?} {message}"));
    }

    fn machine(&self) -> &dyn MachineServices {
        self
    }

    async fn login_environment(&self, _: Instant) -> Result<Variables, Failure> {
        self.heard("login".to_owned()).await;
        Ok(self.login.lock().unwrap().clone())
    }

    async fn locate_scripts(&self, paths: Vec<String>, _: Instant) -> Result<Vec<Option<String>>, Failure> {
        self.heard(format!("locate {}", paths.join(" "))).await;
        Ok(vec![None; paths.len()])
    }

    async fn source_script(&self, path: &str, environment: Variables, _: Instant) -> Result<SourcedScript, Failure> {
        self.heard(format!("source {path}")).await;
        Ok(SourcedScript { path: path.to_owned(), environment })
    }

    async fn read_secret(&self, name: &str, _: Instant) -> Result<Vec<u8>, Failure> {
        self.heard(format!("secret {name}")).await;
        Ok(vec![b's'; if name == "large" { CONTENT + 1 } else { 1 }])
    }
}

#[async_trait::async_trait]
impl MachineServices for Machine {
    async fn run_command(
        &self,
        run: Invocation,
        allowed: PathFilter<'_>,
        until: Instant,
    ) -> Result<ProgramResult, Failure> {
        let left = until.saturating_duration_since(Instant::now()).as_millis().div_ceil(100);
        self.heard(format!("run {} {} {left}", run.program, run.arguments.join(" "))).await;
        self.given.lock().unwrap().push(run.environment);
        let found = if run.program.contains('/') { run.program } else { format!("/usr/bin/{}", run.program) };
        self.resolved(&found, allowed)?;
        Ok(ProgramResult { ending: ProgramEnding::Exited(0), output: run.input, errors: vec![b'e'; 2 * ERRORS] })
    }

    async fn inspect_file(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Metadata, Failure> {
        self.heard(format!("inspect {path}")).await;
        let path = self.resolved(path, allowed)?;
        Ok(Metadata { path, kind: FileKind::File, size: 1, modified: 2 })
    }

    async fn read_file(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Vec<u8>, Failure> {
        self.heard(format!("read {path}")).await;
        let path = self.resolved(path, allowed)?;
        Ok(vec![b'c'; if path.ends_with("large") { CONTENT + 1 } else { CONTENT }])
    }

    async fn list_directory(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Vec<String>, Failure> {
        self.heard(format!("list {path}")).await;
        let path = self.resolved(path, allowed)?;
        Ok(vec!["n".to_owned(); if path.ends_with("large") { ENTRIES + 1 } else { ENTRIES }])
    }

    async fn resolve_host(&self, host: &str, _: Instant) -> Result<Vec<String>, NetworkProblem> {
        self.heard(format!("resolve {host}")).await;
        Ok(self.addresses.iter().map(|&address| address.to_owned()).collect())
    }

    async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: Vec<Step>,
        until: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        let left = until.saturating_duration_since(Instant::now()).as_millis().div_ceil(100);
        let most: Vec<String> = steps.iter().map(|step| step.receive.to_string()).collect();
        self.heard(format!("exchange {host} {port} [{}] {left}", most.join(" "))).await;
        if host == "10.0.0.9" {
            return Err(NetworkProblem::Refused("nobody listens".to_owned()));
        }
        let received = vec![vec![b'r'; RECEIVE as usize + 1]; steps.len() + 1];
        let ending = ExchangeEnding::Complete;
        Ok(ExchangeResult { address: host.to_owned(), connected: Duration::ZERO, received, ending })
    }

    async fn interfaces(&self, _: Instant) -> Result<Vec<Interface>, Failure> {
        self.heard("interfaces".to_owned()).await;
        Ok(Vec::new())
    }

    async fn routes(&self, _: Instant) -> Result<Vec<Route>, Failure> {
        self.heard("routes".to_owned()).await;
        Ok(Vec::new())
    }

    async fn way_to(&self, address: &str, _: Instant) -> Result<Option<RouteTo>, Failure> {
        self.heard(format!("way {address}")).await;
        Ok(None)
    }

    async fn name_service(&self, _: Instant) -> Result<NameService, Failure> {
        self.heard("names".to_owned()).await;
        Ok(NameService::default())
    }

    async fn mounts(&self, _: Instant) -> Result<Vec<MountEntry>, Failure> {
        self.heard("mounts".to_owned()).await;
        let mounted = |path: &str| MountEntry {
            path: path.to_owned(),
            source: "s".to_owned(),
            kind: "k".to_owned(),
            options: Vec::new(),
            device: "0:1".to_owned(),
        };
        Ok(["/", "/mnt", "/mnt/a", "/mnt/a/b", "/mnt/secret", "/home"].into_iter().map(mounted).collect())
    }

    async fn probe_mount(&self, path: &str, time: Duration, _: Instant) -> Result<Liveness, Failure> {
        self.heard(format!("probe {path} {}", time.as_millis().div_ceil(100))).await;
        Ok(Liveness::Answers("0:1".to_owned()))
    }

    async fn processes(&self, name: &str, _: Instant) -> Result<u32, Failure> {
        self.heard(format!("process {name}")).await;
        Ok(1)
    }
}
