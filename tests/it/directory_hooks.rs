//! `snapshot_scope`: hooks of direnv and of the user work in a session's directory as they work in a terminal there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentd_api::session::{Condition, ConditionStatus, ConditionType, SessionSpec};

use crate::conformance::{self, Environment, Shell};
use crate::harness::{Daemon, Session, require};

/// Each shell that direnv has a hook for, and the hook as direnv's documentation has it.
const HOOKS: [(Shell, &str); 4] = [
    (conformance::BASH, ". ~/.bashrc"),
    (conformance::ZSH, "eval \"$(direnv hook zsh)\""),
    (conformance::FISH, "direnv hook fish | source"),
    (conformance::TCSH, "eval `direnv hook tcsh`"),
];

fn direnv() -> Option<PathBuf> {
    require::shell_file("/usr/bin/direnv", "direnv")
}

fn project(daemon: &Daemon, envrc: &str) -> PathBuf {
    let directory = daemon.root().join("it's a project");
    fs::create_dir_all(directory.join("src")).unwrap();
    fs::write(directory.join(".envrc"), envrc).unwrap();
    directory
}

/// `direnv allow`, as the user types it.
fn allow(daemon: &Daemon, directory: &Path) {
    let mut command = Command::new("/usr/bin/direnv");
    command.arg("allow").arg(directory).env_clear().env("HOME", daemon.home()).env("PATH", "/usr/bin:/bin");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

async fn session_in(daemon: &Daemon, directory: &Path) -> (Session, Environment) {
    let session = daemon.create(&SessionSpec { directory: directory.to_owned(), ..daemon.scripted(&[]) }).await;
    let environment = conformance::of_agent(&session).await;
    (session, environment)
}

async fn fresh(session: &Session) -> Condition {
    let view = session.view().await;
    view.status.conditions.into_iter().find(|one| one.kind == ConditionType::SnapshotFresh).expect("it is said")
}

fn value(environment: &Environment, name: &str) -> Option<String> {
    environment.get(name).map(|value| String::from_utf8(value.clone()).unwrap())
}

#[tokio::test]
async fn direnv_does_for_the_agent_what_it_does_for_the_user_and_keeps_its_own_trust() {
    let Some(_) = direnv() else { return };
    for (shell, hook) in HOOKS {
        let Some(program) = shell.program() else { return };
        let mut daemon = conformance::daemon(&program);
        shell.write(&daemon.home(), hook);
        if shell.name == "bash" {
            fs::write(daemon.home().join(".bashrc"), "eval \"$(direnv hook bash)\"\n").unwrap();
        }
        daemon.run().await;
        let directory = project(&daemon, "export PROJECT=one\nPATH_add bin\n");
        let (session, environment) = session_in(&daemon, &directory).await;
        assert_eq!(value(&environment, "PROJECT"), None, "{}", shell.name);
        let condition = fresh(&session).await;
        assert_eq!(
            (condition.status, condition.reason.as_str()),
            (ConditionStatus::False, "DirectoryRefused"),
            "{condition:?}"
        );
        assert!(condition.message.contains("is blocked"), "{condition:?}");

        allow(&daemon, &directory);
        for below in [directory.clone(), directory.join("src")] {
            let (session, environment) = session_in(&daemon, &below).await;
            assert_eq!(value(&environment, "PROJECT").as_deref(), Some("one"), "{} {below:?}", shell.name);
            let path = value(&environment, "PATH").unwrap();
            assert!(path.starts_with(directory.join("bin").to_str().unwrap()), "{} {path}", shell.name);
            assert_eq!(fresh(&session).await.status, ConditionStatus::True);
            assert!(!environment.keys().any(|name| name.starts_with("DIRENV_")), "{environment:?}");
        }

        fs::write(directory.join(".envrc"), "export PROJECT=two\nexport OTHER=$(cat value)\nwatch_file value\n")
            .unwrap();
        fs::write(directory.join("value"), "first").unwrap();
        let (session, environment) = session_in(&daemon, &directory).await;
        assert_eq!(value(&environment, "PROJECT"), None, "what was not allowed is not used");
        assert_eq!(fresh(&session).await.reason, "DirectoryRefused");
        allow(&daemon, &directory);
        for content in ["first", "second"] {
            fs::write(directory.join("value"), content).unwrap();
            let (_, environment) = session_in(&daemon, &directory).await;
            assert_eq!(value(&environment, "OTHER").as_deref(), Some(content), "{}", shell.name);
        }
        let (_, environment) = session_in(&daemon, &daemon.work()).await;
        assert_eq!(value(&environment, "PROJECT"), None, "another directory");
    }
}

#[tokio::test]
async fn a_hook_of_cd_is_run_once_in_the_directory_and_the_configuration_can_say_no() {
    let Some(program) = conformance::ZSH.program() else { return };
    let mut daemon = conformance::daemon(&program);
    let rc = "load-nvmrc() { [[ -f .nvmrc ]] && export NODE_OF=$(<.nvmrc) && print -r -- $PWD >> ~/runs }\n\
              autoload -U add-zsh-hook\nadd-zsh-hook chpwd load-nvmrc\nload-nvmrc\n";
    conformance::ZSH.write(&daemon.home(), rc);
    daemon.run().await;
    let directory = project(&daemon, "");
    fs::write(directory.join(".nvmrc"), "18").unwrap();
    let (session, environment) = session_in(&daemon, &directory).await;
    assert_eq!(value(&environment, "NODE_OF").as_deref(), Some("18"));
    assert!(fresh(&session).await.message.contains("it's a project"));
    let runs = || fs::read_to_string(daemon.home().join("runs")).unwrap();
    assert_eq!(runs(), format!("{}\n", directory.display()));
    session_in(&daemon, &directory).await;
    assert_eq!(runs().lines().count(), 1, "it is known");
    fs::write(directory.join(".nvmrc"), "20").unwrap();
    let (_, environment) = session_in(&daemon, &directory).await;
    assert_eq!(value(&environment, "NODE_OF").as_deref(), Some("20"));

    daemon.configure(|config| config.replace("[environment]\n", "[environment]\nsnapshot_scope = \"user\"\n"));
    daemon.client.post("/v1/reload", &serde_json::json!({})).await;
    let (_, environment) = session_in(&daemon, &directory).await;
    assert_eq!(value(&environment, "NODE_OF"), None);
}

#[tokio::test]
async fn a_shell_that_does_not_stay_in_the_directory_gives_the_homes_environment_and_that_is_said() {
    let Some(program) = conformance::BASH.program() else { return };
    let mut daemon = conformance::daemon(&program);
    daemon.configure(|config| config.replace("[environment]\n", "[environment]\nsnapshot_scope = \"directory\"\n"));
    conformance::BASH.write(&daemon.home(), "export KEPT=1\ncd() { builtin cd ~; }\n");
    daemon.run().await;
    let (session, environment) = session_in(&daemon, &daemon.work()).await;
    assert_eq!(value(&environment, "KEPT").as_deref(), Some("1"));
    let condition = fresh(&session).await;
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "DirectoryNotEntered"));
    assert!(condition.message.contains("ended up in"), "{condition:?}");
    // It recovers when the cause is gone.
    conformance::BASH.write(&daemon.home(), "export KEPT=1\n");
    let (session, _) = session_in(&daemon, &daemon.work()).await;
    assert_eq!(fresh(&session).await.status, ConditionStatus::True);
}
