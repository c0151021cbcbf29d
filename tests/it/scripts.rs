//! Reports about scripts without an effect, the search for scripts above the directory, and the tools' functions in
//! scripts of every shell.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agentd_api::doctor::shell_word;
use agentd_api::environment::EnvironmentView;
use agentd_api::scripts::{ScriptList, ScriptState};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use agentd_api::validation::ValidationView;
use serde_json::json;

use crate::harness::client::in_query;
use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, require};

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
}

fn condition(view: &SessionView) -> Condition {
    let mut conditions = view.status.conditions.iter();
    conditions.find(|one| one.kind == ConditionType::EnvironmentValid).expect("each launch says it").clone()
}

/// Returns a session with this script.
async fn with_script(daemon: &Daemon, script: &str) -> Session {
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some(script.to_owned());
    daemon.session(&spec).await
}

async fn of_agent(session: &Session) -> serde_json::Value {
    serde_json::from_str(&session.turn("env").await.text).unwrap()
}

/// Returns a daemon with this profile and a clean PATH.
async fn daemon(profile: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    write(&daemon.home().join(".profile"), &format!("export PATH=/usr/bin:/bin\n{profile}"));
    daemon.run().await;
    daemon
}

#[tokio::test]
async fn a_script_that_did_nothing_is_a_warning_and_no_failure() {
    let daemon = daemon("").await;
    let session = with_script(&daemon, "no_such_tool use 20\necho chatter >&2\nexport A=1\n").await;
    assert_eq!(of_agent(&session).await["A"], "1");
    let said = condition(&session.view().await);
    assert_eq!((said.status, said.reason.as_str()), (ConditionStatus::False, "ScriptErrors"), "{said:?}");
    assert!(said.message.contains("no_such_tool: command not found"), "{}", said.message);
    assert!(!said.message.contains("chatter"), "{}", said.message);

    let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
    let [run] = &view.scripts[..] else { panic!("{:?}", view.scripts) };
    assert_eq!((run.status, run.warnings.len(), run.provider.as_str()), (Some(0), 1, "env-script"));
    assert!(run.stderr[1] == "chatter" && run.path.ends_with("env-setup.sh"), "{run:?}");
    let (status, out, _) = ctl(&daemon, &["env", session.id.as_str(), "--scripts"]).await.parts();
    assert!(status == Some(0) && out.contains("stderr: chatter"), "{out}");
    assert!(out.contains("warning: it printed") && out.contains("no_such_tool"), "{out}");
    let validation: ValidationView = daemon.client.get(&session.path("/validation")).await.expect(200);
    assert_eq!(validation.warnings[0].reason, "ScriptErrors");

    let session = with_script(&daemon, "echo chatter >&2\nexport A=2\n").await;
    assert_eq!(condition(&session.view().await).status, ConditionStatus::True);
    let session = with_script(&daemon, "export A=3\nreturn 3\n").await;
    let said = condition(&session.view().await);
    assert!(said.message.contains("its last command ended with status 3"), "{said:?}");
    assert_eq!(of_agent(&session).await["A"], "3");
}

#[tokio::test]
async fn each_shell_says_in_its_words_that_something_is_missing() {
    let daemon = daemon("").await;
    for (program, package, what) in [
        ("/bin/bash", "bash", "gone_tool x\n:\n"),
        ("/bin/bash", "bash", ". /nowhere/settings64.sh\n:\n"),
        ("/bin/bash", "bash", "eval \"$(gone_tool hook)\"\n"),
        ("/bin/zsh", "zsh", "gone_tool x\n:\n"),
        ("/bin/zsh", "zsh", ". /nowhere/settings64.sh\n:\n"),
        ("/bin/ksh", "ksh", "gone_tool x\n:\n"),
        ("/bin/dash", "dash", "gone_tool x\n:\n"),
        ("/usr/bin/fish", "fish", "gone_tool x\ntrue\n"),
        ("/bin/tcsh", "tcsh", "gone_tool x\necho\n"),
    ] {
        let Some(program) = require::shell_file(program, package) else { continue };
        let session = with_script(&daemon, &format!("#!{}\n{what}", program.display())).await;
        let said = condition(&session.view().await);
        assert_eq!(said.reason, "ScriptErrors", "{} {what}: {said:?}", program.display());
        let named = if what.contains("settings64") { "settings64.sh" } else { "gone_tool" };
        assert!(said.message.contains(named), "{} {what}: {said:?}", program.display());
        session.stop().await;
    }
}

#[tokio::test]
async fn a_tool_that_is_a_function_is_told_with_the_line_to_add_and_secrets_are_masked() {
    let daemon = daemon("export VERY_SECRET_TOKEN=abcdef0123456789\n").await;
    let session = with_script(
        &daemon,
        "nvm use\nexport OTHER_API_KEY=$(printf hunter2; printf hunter2)\necho \"key $OTHER_API_KEY\" >&2\n",
    )
    .await;
    let said = condition(&session.view().await);
    assert!(said.message.contains("add a line like `. \"$HOME/.nvm/nvm.sh\"`"), "{}", said.message);
    let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
    let lines = view.scripts[0].stderr.join("\n");
    assert!(lines.contains("key ") && !lines.contains("hunter2"), "{lines}");
    assert!(daemon.holders("hunter2hunter2").is_empty(), "{:?}", daemon.holders("hunter2hunter2"));
}

#[tokio::test]
async fn a_result_that_came_with_a_warning_is_not_kept() {
    let daemon = daemon("").await;
    let (script, runs) = (daemon.root().join("config/env-setup.sh"), daemon.root().join("runs"));
    let count = || fs::read_to_string(&runs).unwrap().lines().count();
    for (number, (text, kept)) in
        [("false\n", false), ("gone_tool\n:\n", false), ("true\n", true)].into_iter().enumerate()
    {
        let _ = fs::remove_file(&runs);
        write(
            &script,
            &format!("# agentd-depends: x{number}\necho run >> '{}'\nexport A={number}\n{text}", runs.display()),
        );
        for launch in 1..=2 {
            let session = daemon.session(&daemon.scripted(&[])).await;
            assert_eq!(of_agent(&session).await["A"], number.to_string());
            let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
            assert_eq!(view.scripts[0].status.is_none(), kept && launch == 2, "{text}: {:?}", view.scripts);
            session.stop().await;
        }
        assert_eq!(count(), if kept { 1 } else { 2 }, "{text}");
    }
}

#[tokio::test]
async fn a_script_above_the_directory_is_found_runs_where_it_lies_and_is_approved_by_its_path() {
    let daemon = daemon("").await;
    let (project, deep) = (daemon.work().join("project"), daemon.work().join("project/a/b"));
    fs::create_dir_all(&deep).unwrap();
    let script = project.join(".agentd-env.sh");
    write(&script, "export RAN_IN=\"$PWD\"\n");
    let spec = SessionSpec { directory: deep.clone(), ..daemon.scripted(&[]) };
    let view = daemon.create(&spec).await.wait_for_phase(Phase::Failed).await;
    let ready = view.status.conditions.iter().find(|one| one.kind == ConditionType::EnvironmentReady).unwrap();
    let script = script.canonicalize().unwrap();
    let command = format!("`agentctl env allow {}`", shell_word(script.to_str().unwrap()));
    assert!(ready.reason == "ScriptNotApproved" && ready.message.contains(&command), "{ready:?}");

    let query = format!("/v1/scripts?directory={}", in_query(&deep));
    let list: ScriptList = daemon.client.get(&query).await.expect(200);
    assert_eq!((list.scripts.len(), &list.scripts[0].path, list.looked_for.len()), (1, &script, 3), "{list:?}");
    let (_, out, _) = ctl(&daemon, &["env", "scripts", deep.to_str().unwrap()]).await.parts();
    assert!(out.contains("project/.agentd-env.sh") && out.contains("not-approved"), "{out}");
    let body = json!({ "directory": script });
    let list: ScriptList = daemon.client.post("/v1/scripts/allow", &body).await.expect(200);
    assert_eq!(list.scripts[0].state, ScriptState::Approved);
    let session = daemon.session(&spec).await;
    let place = project.canonicalize().unwrap();
    assert_eq!(of_agent(&session).await["RAN_IN"], place.to_str().unwrap());
    let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
    assert_eq!((&view.scripts[0].path, &view.scripts[0].directory), (&script, &place));

    // The nearest script takes precedence, and needs its own approval.
    write(&deep.join(".agentd-env.sh"), "export RAN_IN=nearest\n");
    let view = daemon.create(&spec).await.wait_for_phase(Phase::Failed).await;
    let ready = view.status.conditions.iter().find(|one| one.kind == ConditionType::EnvironmentReady).unwrap();
    assert!(ready.message.contains("a/b"), "{ready:?}");
    fs::remove_file(deep.join(".agentd-env.sh")).unwrap();

    // A user who can write a directory on the way could put a script there.
    fs::set_permissions(project.join("a"), Permissions::from_mode(0o777)).unwrap();
    let session = daemon.session(&spec).await;
    assert!(of_agent(&session).await.get("RAN_IN").is_none());
}

/// Shells that source scripts, with the packages that have them.
const SHELLS: [(&str, &str); 6] = [
    ("/bin/bash", "bash"),
    ("/bin/zsh", "zsh"),
    ("/bin/ksh", "ksh"),
    ("/bin/dash", "dash"),
    ("/usr/bin/fish", "fish"),
    ("/bin/tcsh", "tcsh"),
];

fn modulefile(daemon: &Daemon) -> PathBuf {
    let modules = daemon.root().join("modulefiles");
    write(&modules.join("gcc/12"), "#%Module1.0\nsetenv CC gcc-12\nprepend-path PATH /apps/gcc/bin\n");
    modules
}

/// Returns a daemon whose user has this login shell. The start-up file reads the init file of the modules.
async fn login_with_modules(shell: &str, file: &str, init: &Path) -> Daemon {
    let mut daemon = Daemon::prepare();
    fs::remove_file(daemon.home().join(".profile")).unwrap();
    let modules = modulefile(&daemon);
    let text = format!("source {}\nmodule use {}\n", quoted(init), quoted(&modules));
    write(&daemon.home().join(file), &text);
    daemon.configure(|config| config.replace("shell = \"/bin/bash\"", &format!("shell = \"{shell}\"")));
    daemon.run().await;
    daemon
}

/// Asserts that `module` and `ml` work in the scripts of every shell, after this login shell.
async fn modules_everywhere(shell: &str, file: &str, init: &Path) {
    let daemon = login_with_modules(shell, file, init).await;
    for (program, package) in SHELLS {
        let Some(program) = require::shell_file(program, package) else { continue };
        for word in ["module load", "ml load"] {
            let script = format!("#!{}\n{word} gcc/12\n", program.display());
            let session = with_script(&daemon, &script).await;
            let agent = of_agent(&session).await;
            assert_eq!(agent["CC"], "gcc-12", "{shell}, {script}: {:?}", condition(&session.view().await));
            assert!(agent["PATH"].as_str().unwrap().starts_with("/apps/gcc/bin:"), "{agent}");
            let leftover = agent.as_object().unwrap().keys().find(|name| name.starts_with("__agentd"));
            assert_eq!(leftover, None);
            session.stop().await;
        }
    }
}

#[tokio::test]
async fn scripts_have_environment_modules_whatever_the_login_shell_is() {
    for (shell, file, init) in [("/bin/zsh", ".zshrc", "zsh"), ("/bin/tcsh", ".tcshrc", "tcsh")] {
        let init = format!("/usr/share/modules/init/{init}");
        let Some(init) = require::shell_file(&init, "environment-modules") else { return };
        if require::shell_file(shell, shell).is_some() {
            modules_everywhere(shell, file, &init).await;
        }
    }
}

#[tokio::test]
async fn scripts_have_lmod_whatever_the_login_shell_is() {
    let Some(bash) = require::lmod() else { return };
    for (shell, file, init) in [("/bin/zsh", ".zshrc", "zsh"), ("/usr/bin/fish", ".config/fish/config.fish", "fish")] {
        if require::shell_file(shell, shell).is_some() {
            modules_everywhere(shell, file, &bash.with_file_name(init)).await;
        }
    }
}

#[tokio::test]
async fn a_stub_is_read_only_when_it_is_called_and_no_earlier_script_says_where_it_lies() {
    let mut daemon = Daemon::prepare();
    let root = daemon.root().to_owned();
    let nvm = |name: &str| {
        let text = format!("nvm() {{ export NVM_RAN={name}; }}\necho read >> '{}'\n", root.join(name).display());
        write(&root.join(format!("{name}-dir/nvm.sh")), &text);
        root.join(format!("{name}-dir")).display().to_string()
    };
    let (own, other) = (nvm("own"), nvm("other"));
    write(&daemon.home().join(".profile"), &format!("export PATH=/usr/bin:/bin NVM_DIR={}\n", quoted(&own)));
    write(&root.join("config/env-setup.sh"), &format!("export NVM_DIR={}\n", quoted(&other)));
    daemon.run().await;
    let session = with_script(&daemon, "export A=1\n").await;
    assert_eq!(of_agent(&session).await["A"], "1");
    assert!(!root.join("own").exists(), "nothing called it");
    let session = with_script(&daemon, "nvm use; nvm use\n").await;
    assert_eq!(of_agent(&session).await["NVM_RAN"], "own");
    assert_eq!(fs::read_to_string(root.join("own")).unwrap(), "read\n", "once");
    assert!(!root.join("other").exists());
    assert_eq!(condition(&session.view().await).status, ConditionStatus::True);
}
