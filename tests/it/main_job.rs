//! The command at the top of the README, and `agentctl` as the person at a terminal has it.

use std::process::{Command, Output};

use crate::harness::home::Home;
use crate::harness::{Daemon, journal, paths, within};

async fn output(mut command: Command) -> Output {
    let what = format!("the end of {command:?}");
    let output = tokio::task::spawn_blocking(move || command.output().expect("it can be executed"));
    within(&what, output).await.expect("it does not panic")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8")
}

#[tokio::test]
async fn run_with_a_prompt_prints_the_answer_and_ends_with_zero_on_a_machine_with_nothing() {
    let home = Home::new();
    let mut run = home.agentctl();
    run.args(["run", "--prompt", "show your environment"]);
    let answer = text(&output(run).await);
    assert!(
        answer.contains("PATH=") && answer.contains(&format!("HOME={}", home.root().join("home").display())),
        "{answer}"
    );
    assert!(!answer.contains("XDG_STATE_HOME"), "agentctl's own environment reached the agent: {answer}");
}

#[tokio::test]
async fn agentctl_does_everything_that_its_daemon_does_and_says_it_in_json() {
    let home = Home::new();
    let agentctl = |args: &[&str]| {
        let mut command = home.agentctl();
        command.args(args);
        output(command)
    };
    let made: serde_json::Value =
        serde_json::from_str(&text(&agentctl(&["--json", "new", "--ready", "60"]).await)).expect("JSON");
    let id = made["id"].as_str().expect("an id").to_owned();
    let list: serde_json::Value = serde_json::from_str(&text(&agentctl(&["--json", "ls"]).await)).expect("JSON");
    assert!(list.to_string().contains(&id), "{list}");
    assert!(text(&agentctl(&["ls"]).await).contains(&id));
    let view: serde_json::Value = serde_json::from_str(&text(&agentctl(&["--json", "show", &id]).await)).expect("JSON");
    assert_eq!(view["id"], id.as_str());

    text(&agentctl(&["prompt", &id, "show your environment"]).await);
    let env = text(&agentctl(&["env", &id]).await);
    let path = env.lines().find(|line| line.contains("PATH")).unwrap_or_else(|| panic!("{env}"));
    assert!(["snapshot", "whitelist", "env-script"].iter().any(|provider| path.contains(provider)), "{path}");

    text(&agentctl(&["stop", &id]).await);
    text(&agentctl(&["resume", &id]).await);
    text(&agentctl(&["stop", &id]).await);
    journal::checked(&home.root().join("state/agentd"), &id.parse().expect("an id"));
    text(&agentctl(&["rm", &id]).await);
    let gone = agentctl(&["show", &id]).await;
    assert!(!gone.status.success());
    let complaint = String::from_utf8_lossy(&gone.stderr);
    assert!(complaint.contains(&id), "{complaint}");
}

#[tokio::test]
async fn a_run_of_a_command_of_ones_own_ends_with_the_turn() {
    let daemon = Daemon::start().await;
    let mut run = Command::new(paths::agentctl());
    run.env_clear()
        .env("AGENTD_SOCKET", daemon.client.socket())
        .current_dir(daemon.work())
        .stdin(std::process::Stdio::null())
        .args(["run", "--prompt", "say one\ncwd", "--"])
        .arg(crate::harness::scripted_agent());
    let answer = text(&output(run).await);
    assert!(answer.contains(&format!("one{}", daemon.work().display())), "{answer}");
}
