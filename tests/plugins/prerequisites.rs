//! The built-in prerequisites: each calls the services that its own grant allows, and reports what the services answer.

use std::time::{Duration, Instant};

use agentd_plugin_host::{
    Call, CallError, CheckOutcome, ExchangeEnding, ExchangeResult, Failure, Grant, Interface, Invocation, Liveness,
    LogLevel, MachineServices, MountEntry, NameService, NetworkProblem, PathFilter, ProgramEnding, ProgramResult,
    Report, Route, RouteTo, Services, Setting, Step, builtin,
};

use crate::bench::{Bench, call, source};

/// A machine in the network 10.0.0.0/8 with one server that answers and one mount that hangs.
struct Machine;

const SERVER: &str = "inside.example";

#[async_trait::async_trait]
impl Services for Machine {
    fn log(&self, _: LogLevel, _: &str) {}

    fn machine(&self) -> &dyn MachineServices {
        self
    }
}

#[async_trait::async_trait]
impl MachineServices for Machine {
    async fn run_command(
        &self,
        run: Invocation,
        allowed: PathFilter<'_>,
        _: Instant,
    ) -> Result<ProgramResult, Failure> {
        assert!(allowed(&run.program));
        Ok(ProgramResult {
            ending: ProgramEnding::Exited(3),
            output: b"no board is free\n".to_vec(),
            errors: Vec::new(),
        })
    }

    async fn resolve_host(&self, _: &str, _: Instant) -> Result<Vec<String>, NetworkProblem> {
        Ok(vec!["10.1.2.3".to_owned()])
    }

    async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: Vec<Step>,
        _: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        if host != SERVER {
            return Err(NetworkProblem::Refused(format!("{host} port {port}: it was refused")));
        }
        Ok(ExchangeResult {
            address: "10.1.2.3".to_owned(),
            connected: Duration::from_millis(3),
            received: steps.iter().map(|_| b"SSH-2.0-x\r\n".to_vec()).collect(),
            ending: ExchangeEnding::Complete,
        })
    }

    async fn interfaces(&self, _: Instant) -> Result<Vec<Interface>, Failure> {
        Ok(Vec::new())
    }

    async fn routes(&self, _: Instant) -> Result<Vec<Route>, Failure> {
        Ok(Vec::new())
    }

    async fn way_to(&self, _: &str, _: Instant) -> Result<Option<RouteTo>, Failure> {
        Ok(None)
    }

    async fn name_service(&self, _: Instant) -> Result<NameService, Failure> {
        Ok(NameService::default())
    }

    async fn mounts(&self, _: Instant) -> Result<Vec<MountEntry>, Failure> {
        let mounted = |path: &str, source: &str, kind: &str| MountEntry {
            path: path.to_owned(),
            source: source.to_owned(),
            kind: kind.to_owned(),
            options: Vec::new(),
            device: "0:52".to_owned(),
        };
        Ok(vec![mounted("/", "/dev/sda1", "ext4"), mounted("/mnt/home", &format!("{SERVER}:/home"), "nfs4")])
    }

    async fn probe_mount(&self, _: &str, _: Duration, _: Instant) -> Result<Liveness, Failure> {
        Ok(Liveness::Hangs)
    }
}

fn asked(settings: &[(&str, &str)]) -> Call {
    let setting = |&(key, value): &(&str, &str)| Setting { key: key.to_owned(), values: vec![value.to_owned()] };
    Call { settings: settings.iter().map(setting).collect(), ..call(Machine) }
}

async fn check(name: &str, call: Call) -> Result<Report, CallError> {
    let built_in = builtin().iter().find(|built_in| built_in.name == name).unwrap();
    let grant = match name {
        "command" => Grant { command: vec!["/opt/check **".into()], ..built_in.grant() },
        _ => built_in.grant(),
    };
    Bench::new().load(source(name), &grant).await.unwrap().check(call).await
}

#[tokio::test]
async fn each_finds_what_holds_and_what_does_not_and_says_what_to_do() {
    let licences =
        |text: &str| Call { environment: vec![("LM_LICENSE_FILE".to_owned(), text.as_bytes().to_vec())], ..asked(&[]) };
    let inside = ("network", "10.0.0.0/8");
    for (name, call, outcome, summary) in [
        ("vpn", asked(&[("host", SERVER), inside]), CheckOutcome::Pass, "inside.example port 443 answers from inside"),
        ("vpn", asked(&[("host", "other"), inside]), CheckOutcome::Fail, "other port 443 refuses the connection"),
        (
            "vpn",
            asked(&[("host", SERVER), ("network", "192.168.0.0/16")]),
            CheckOutcome::Fail,
            "inside.example resolves to 10.1.2.3, which is outside",
        ),
        (
            "license-server",
            licences("27000@inside.example"),
            CheckOutcome::Pass,
            "the licence servers of LM_LICENSE_FILE answer",
        ),
        (
            "license-server",
            licences("1@a,2@inside.example,3@c"),
            CheckOutcome::Fail,
            "no licence server of LM_LICENSE_FILE answers: 1@a (LM_LICENSE_FILE) refuses the connection; \
             3@c (LM_LICENSE_FILE) refuses the connection; triad (LM_LICENSE_FILE) 1 of 3 answer; 2 must",
        ),
        ("mount", asked(&[("path", "/mnt/home")]), CheckOutcome::Fail, "/mnt/home is mounted and does not answer"),
        ("mount", asked(&[("path", "/mnt/other")]), CheckOutcome::Fail, "nothing is mounted at /mnt/other"),
        (
            "tcp",
            asked(&[("host", SERVER), ("port", "22"), ("banner", "SSH-2")]),
            CheckOutcome::Pass,
            "inside.example port 22 answers with the expected banner",
        ),
        (
            "tcp",
            asked(&[("host", "other"), ("port", "22")]),
            CheckOutcome::Fail,
            "other port 22 refuses the connection",
        ),
        ("command", asked(&[("program", "/opt/check")]), CheckOutcome::Fail, "no board is free"),
    ] {
        let report = check(name, call).await.unwrap();
        assert_eq!((report.outcome, report.summary.as_str()), (outcome, summary), "{name}");
        assert!(!report.facts.is_empty(), "{name}: {summary}");
        assert_eq!(report.remedy.is_some(), outcome != CheckOutcome::Pass, "{name}: {summary}");
    }
}

#[tokio::test]
async fn a_program_that_was_not_granted_is_not_run() {
    let error = check("command", asked(&[("program", "/opt/other")])).await.unwrap_err().to_string();
    assert!(error.contains("not granted"), "{error}");
}
