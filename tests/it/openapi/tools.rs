//! Programs of others read the description: a validator, a generator of clients, and a tester of endpoints.
//! `tests/openapi/` has their settings and the program that uses the generated client.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use super::described::file as described;
use crate::harness::{Daemon, paths, require};

/// Longest time that a program may take on a busy machine.
const LONGEST: Duration = Duration::from_mins(5);

/// Phases of the tester, and the time in seconds for which each run makes calls: single calls, and calls that use the
/// answers of others.
const PHASES: [(&str, &str); 2] = [("examples,coverage,fuzzing", "20"), ("stateful", "20")];

fn file(name: &str) -> PathBuf {
    paths::checkout().join("tests/openapi").join(name)
}

/// Runs a program to its end, and returns its output. Fails if the program fails.
async fn run(command: &mut Command, home: &Path) -> String {
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", home).env("LANG", "C.UTF-8");
    // Python writes nothing beside the files of the repository.
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(home).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONGEST, command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("{command:?} does not end")).expect("the program starts");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said
}

#[tokio::test]
async fn a_validator_accepts_the_description() {
    let Some(programs) = require::openapi() else { return };
    let home = tempfile::tempdir().unwrap();
    let said = run(Command::new(programs.join("openapi-spec-validator")).arg(described()), home.path()).await;
    assert!(said.contains(": OK"), "{said}");
}

#[tokio::test]
async fn a_client_that_was_generated_from_the_description_runs_a_session() {
    let Some(programs) = require::openapi() else { return };
    let daemon = Daemon::start().await;
    let (home, client) = (daemon.home(), daemon.root().join("generated"));
    let mut generator = Command::new(programs.join("openapi-python-client"));
    generator.args(["generate", "--meta", "none", "--path"]).arg(described());
    generator.arg("--config").arg(file("generator.yaml")).arg("--output-path").arg(client.join("agentd_client"));
    let said = run(&mut generator, &home).await;
    assert!(!said.contains("Unable to") && !said.contains("WARNING"), "a part is missing in the client:\n{said}");
    let mut program = Command::new(programs.join("python"));
    program.arg(file("client.py")).arg(daemon.client.socket()).arg(daemon.work());
    // Python adds the directory to the places of modules.
    let said = run_with(&mut program, &home, ("PYTHONPATH", &client)).await;
    assert!(said.ends_with(" events\n"), "{said}");
}

/// Runs a program with one more variable.
async fn run_with(command: &mut Command, home: &Path, (name, value): (&str, &Path)) -> String {
    let mut line = Command::new("/usr/bin/env");
    let inner = command.as_std();
    line.arg(format!("{name}={}", value.display())).arg(inner.get_program()).args(inner.get_args());
    run(&mut line, home).await
}

/// Starts a daemon that listens on TCP. Returns the daemon, its address and the token.
async fn listening() -> (Daemon, String, &'static str) {
    let token = "0123456789abcdef0123456789abcdef";
    let mut daemon = Daemon::prepare();
    let file = daemon.root().join("token");
    fs::write(&file, token).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    daemon.configure(|config| {
        format!("{config}\n[control]\ntcp = \"127.0.0.1:0\"\ntoken = {{ file = \"{}\" }}\n", file.display())
    });
    daemon.run().await;
    let version: Value = daemon.client.get("/v1/version").await.expect(200);
    let address = version["tcp"].as_str().unwrap_or_else(|| panic!("{version}")).to_owned();
    (daemon, address, token)
}

#[tokio::test]
async fn a_tester_of_endpoints_gets_no_answer_that_is_not_described() {
    let Some(programs) = require::openapi() else { return };
    let (mut daemon, address, token) = listening().await;
    let home = daemon.home();
    // The tester looks for its settings and hooks where it runs.
    for name in ["schemathesis.toml", "hooks.py"] {
        fs::copy(file(name), home.join(name)).unwrap();
    }
    for (phases, seconds) in PHASES {
        let mut tester = Command::new(programs.join("schemathesis"));
        tester.arg("run").arg(described()).args(["--phases", phases, "--max-time", seconds]);
        tester.args(["--url", &format!("http://{address}"), "-H", &format!("Authorization: Bearer {token}")]);
        let said = run_with(&mut tester, &home, ("AGENTD_WORK", &daemon.work())).await;
        daemon.assert_running();
        let passed = said.lines().find(|line| line.contains(" generated, ")).unwrap_or_default().to_owned();
        let count = passed.split_whitespace().next().and_then(|count| count.parse::<u32>().ok());
        assert!(count.is_some_and(|count| count >= 50), "the tester made too few calls: {said}");
    }
}
