//! Fake services for the fixtures of interface version 1.0.0: they answer every call and assert the arguments.

use std::time::{Duration, Instant};

use agentd_plugin_host::{
    COMMAND_PATH, ExchangeEnding, ExchangeResult, Failure, FileKind, Interface, Invocation, Liveness, LogLevel,
    MachineServices, Metadata, MountEntry, NameService, NetworkProblem, PathFilter, ProgramEnding, ProgramResult,
    Route, RouteTo, Services, SourcedScript, Step, Variables,
};

/// Services with a fixed answer to each call. They panic if the arguments of a call are not those of the fixtures.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answers;

fn text(text: &str) -> String {
    text.to_owned()
}

fn resolved(path: &str, allowed: PathFilter<'_>) -> Result<String, Failure> {
    let path = path.replace("{cwd}", "/work");
    if allowed(&path) { Ok(path) } else { Err(Failure::NotGranted(text("outside"))) }
}

#[async_trait::async_trait]
impl Services for Answers {
    fn log(&self, _: LogLevel, message: &str) {
        assert!(message.starts_with("fixture: "), "{message}");
    }

    fn machine(&self) -> &dyn MachineServices {
        self
    }

    async fn login_environment(&self, _: Instant) -> Result<Variables, Failure> {
        Ok(vec![(text("LOGIN"), b"1".to_vec())])
    }

    async fn locate_scripts(&self, paths: Vec<String>, _: Instant) -> Result<Vec<Option<String>>, Failure> {
        assert_eq!(paths, ["{config}/fixture.sh", "/nowhere/fixture.sh"]);
        Ok(vec![Some(text("/config/fixture.sh")), None])
    }

    async fn source_script(
        &self,
        path: &str,
        mut environment: Variables,
        _: Instant,
    ) -> Result<SourcedScript, Failure> {
        assert_eq!(path, "{config}/fixture.sh");
        environment.push((text("SOURCED"), b"2".to_vec()));
        Ok(SourcedScript { path: text("/config/fixture.sh"), environment })
    }

    async fn read_secret(&self, name: &str, _: Instant) -> Result<Vec<u8>, Failure> {
        assert_eq!(name, "fixture");
        Ok(b"hush".to_vec())
    }
}

#[async_trait::async_trait]
impl MachineServices for Answers {
    async fn run_command(
        &self,
        run: Invocation,
        allowed: PathFilter<'_>,
        until: Instant,
    ) -> Result<ProgramResult, Failure> {
        assert_eq!(run.arguments, ["one", "two words"]);
        assert_eq!(run.environment, [(text("FIXTURE"), b"1".to_vec()), (text("PATH"), COMMAND_PATH.into())]);
        assert_eq!((run.directory.as_deref(), run.input.as_slice()), (Some("{cwd}"), &b"input"[..]));
        assert!(until <= Instant::now() + Duration::from_secs(1), "its own time, not the call's");
        resolved(&run.program, allowed)?;
        Ok(ProgramResult { ending: ProgramEnding::Exited(3), output: b"out\n".to_vec(), errors: b"err".to_vec() })
    }

    async fn inspect_file(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Metadata, Failure> {
        let path = resolved(path, allowed)?;
        Ok(Metadata { path, kind: FileKind::File, size: 7, modified: 8 })
    }

    async fn read_file(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Vec<u8>, Failure> {
        resolved(path, allowed).map(String::into_bytes)
    }

    async fn list_directory(&self, path: &str, allowed: PathFilter<'_>, _: Instant) -> Result<Vec<String>, Failure> {
        resolved(path, allowed)?;
        Ok(vec![text("a"), text("b")])
    }

    async fn resolve_host(&self, host: &str, _: Instant) -> Result<Vec<String>, NetworkProblem> {
        assert_eq!(host, "fixture.example");
        Err(NetworkProblem::NoSuchHost(text("no such host")))
    }

    async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: Vec<Step>,
        _: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        assert_eq!((host, port), ("fixture.example", 27000));
        let first = Step { send: b"hello\n".to_vec(), receive: 64, until: b"\n".to_vec() };
        assert_eq!(steps, [first, Step { receive: 4, ..Step::default() }]);
        Ok(ExchangeResult {
            address: text("192.0.2.7"),
            connected: Duration::from_millis(5),
            received: vec![b"hi\n".to_vec(), b"by".to_vec()],
            ending: ExchangeEnding::Closed,
        })
    }

    async fn interfaces(&self, _: Instant) -> Result<Vec<Interface>, Failure> {
        let addresses = vec![text("10.8.0.2/24"), text("fe80::1/64")];
        Ok(vec![Interface { name: text("tun0"), up: true, running: false, loopback: false, addresses }])
    }

    async fn routes(&self, _: Instant) -> Result<Vec<Route>, Failure> {
        Ok(vec![Route { destination: text("0.0.0.0/0"), gateway: None, via: text("tun0"), metric: 50 }])
    }

    async fn way_to(&self, address: &str, _: Instant) -> Result<Option<RouteTo>, Failure> {
        assert_eq!(address, "192.0.2.1");
        Ok(Some(RouteTo { via: Some(text("tun0")), source: text("10.8.0.2") }))
    }

    async fn name_service(&self, _: Instant) -> Result<NameService, Failure> {
        Ok(NameService { servers: vec![text("10.8.0.1")], search: vec![text("corp"), text("lab")] })
    }

    async fn mounts(&self, _: Instant) -> Result<Vec<MountEntry>, Failure> {
        let mounted = |path: &str| MountEntry {
            path: text(path),
            source: text("server:/x"),
            kind: text("nfs4"),
            options: vec![text("rw"), text("hard")],
            device: text("0:42"),
        };
        Ok(vec![mounted("/fixture"), mounted("/home")])
    }

    async fn probe_mount(&self, path: &str, time: Duration, _: Instant) -> Result<Liveness, Failure> {
        assert_eq!(path, "/fixture");
        assert!(time <= Duration::from_millis(200), "{time:?}");
        Ok(Liveness::Error(text("stale")))
    }

    async fn processes(&self, name: &str, _: Instant) -> Result<u32, Failure> {
        assert_eq!(name, "fixture");
        Ok(2)
    }
}

/// Names and values that both fixtures, the provider and the prerequisite, report from [`Answers`].
pub(crate) const BOTH: &[(&str, &str)] = &[
    ("MONOTONIC", "true"),
    ("RUN", "exited 3 out\\n err"),
    ("INSPECT", "/work/fixture.txt file 7 8"),
    ("READ", "/work/fixture.txt"),
    ("ENTRIES", "a,b"),
    ("RESOLVE", "problem no-such-host: no such host"),
    ("EXCHANGE", "192.0.2.7 5 closed hi\\n,by"),
    ("INTERFACES", "tun0 true false false 10.8.0.2/24,fe80::1/64"),
    ("ROUTES", "0.0.0.0/0 - tun0 50"),
    ("WAY", "tun0 10.8.0.2"),
    ("NAMES", "10.8.0.1 corp,lab"),
    ("MOUNTS", "/fixture server:/x nfs4 rw,hard 0:42"),
    ("PROBE", "error stale"),
    ("RUNNING", "2"),
    ("SECRET", "4 bytes"),
];

/// Names and values that only the provider fixture reports.
pub(crate) const PROVIDER: &[(&str, &str)] = &[
    ("SESSION", "s1 - demo /tmp 1"),
    ("ENVIRONMENT", "A=1"),
    ("SETTINGS", "text=hello"),
    ("LOGIN", "LOGIN=1"),
    ("LOCATE", "/config/fixture.sh,-"),
    ("SOURCE", "/config/fixture.sh A=1,SOURCED=2"),
];
