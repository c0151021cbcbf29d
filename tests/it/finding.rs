//! Finding out why a variable is missing: the comparison with a terminal, the configuration that keeps a variable, and
//! the messages of a launch.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::keep::KeepView;
use agentd_api::problem::Code;
use agentd_api::session::{ConditionType, Phase};
use serde_json::{Value, json};

use crate::harness::ctl::{Said, agentctl, ctl, end_of};
use crate::harness::quote::quoted;
use crate::harness::{Daemon, paths, scripted_agent, until, within};

fn file(daemon: &Daemon) -> PathBuf {
    daemon.root().join("config/agentd.toml")
}

fn written(daemon: &Daemon) -> String {
    fs::read_to_string(file(daemon)).unwrap()
}

/// Runs agentctl in a terminal that has these variables.
async fn in_terminal(daemon: &Daemon, variables: &[(&str, &str)], arguments: &[&str]) -> Said {
    let mut command = agentctl(daemon, arguments);
    command.envs(variables.iter().copied());
    end_of(command.spawn().expect("it can be executed")).await
}

#[tokio::test]
async fn the_terminal_is_compared_here_and_no_secret_of_it_is_shown_or_sent() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let id = session.id.as_str();
    let terminal = [
        ("FROM_PROFILE", "dropped"),
        ("ONLY_HERE", "needle-of-a-terminal"),
        ("MY_TOKEN", "needle-of-a-terminal"),
        ("EDITOR", "emacs"),
        ("SSH_TTY", "/dev/pts/9"),
    ];
    let said = in_terminal(&daemon, &terminal, &["env", id, "--diff", "terminal", "--values"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    for piece in ["agentctl env keep FROM_PROFILE", "ONLY_HERE", "--env-from terminal", "terminal: emacs", "SSH_TTY"] {
        assert!(said.out.contains(piece), "{piece}: {}", said.out);
    }
    assert!(!said.out.contains("needle"), "{}", said.out);
    let said = in_terminal(&daemon, &terminal, &["env", id, "--diff", "terminal", "--json"]).await;
    let lists: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(lists["missing"][0]["dropped_by"], "whitelist", "{lists}");
    assert_eq!(lists["differing"][0]["name"], "EDITOR", "{lists}");
    assert!(!said.out.contains("needle") && !said.out.contains("emacs"), "{}", said.out);
    assert_eq!(daemon.holders("needle-of-a-terminal"), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn an_explanation_knows_what_this_terminal_has() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let explain = |name| {
        let (daemon, id) = (&daemon, session.id.to_string());
        async move { in_terminal(daemon, &[("ONLY_HERE", "1")], &["env", &id, "--explain", name]).await.out }
    };
    let only_here = explain("ONLY_HERE").await;
    assert!(only_here.contains("this terminal has it") && only_here.contains("--env-from terminal"), "{only_here}");
    assert!(explain("FROM_PROFILE").await.contains("remedy: agentctl env keep FROM_PROFILE"));
    assert!(!explain("NOWHERE").await.contains("terminal"));
}

#[tokio::test]
async fn a_terminal_with_another_home_than_the_sessions_is_told_so() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let id = session.id.as_str();
    let (own, other) = (daemon.home().display().to_string(), daemon.root().join("other").display().to_string());
    for (home, differs) in [(&own, false), (&other, true)] {
        let terminal = [("HOME", home.as_str()), ("ONLY_HERE", "1")];
        for arguments in [
            &["env", id, "--diff", "terminal"][..],
            &["env", id, "--diff", "terminal", "--json"],
            &["env", id, "--explain", "HOME"],
            &["env", id, "--explain", "HOME", "--json"],
            &["env", id, "--explain", "ONLY_HERE"],
        ] {
            let said = in_terminal(&daemon, &terminal, arguments).await;
            assert_eq!(said.out.contains("HomeDiffers"), differs, "{arguments:?}: {said:?}");
            assert!(!differs || said.out.contains(home.as_str()) && said.out.contains(&own), "{arguments:?}: {said:?}");
        }
    }
    let said = in_terminal(&daemon, &[("HOME", &other)], &["env", id, "--explain", "NOWHERE"]).await;
    assert!(!said.out.contains("HomeDiffers"), "{said:?}");
}

#[tokio::test]
async fn a_run_says_once_how_many_variables_of_the_terminal_were_dropped() {
    let daemon = Daemon::start().await;
    let agent = scripted_agent().display().to_string();
    let said = |arguments: Vec<String>, variables: Vec<(&'static str, &'static str)>| {
        let daemon = &daemon;
        async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            in_terminal(daemon, &variables, &arguments).await
        }
    };
    let run = |flags: &[&str]| -> Vec<String> {
        let words = [&["run"], flags, &["--prompt", "say hi", "--", &agent]].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let here = vec![("FROM_PROFILE", "1"), ("TERM", "dumb")];
    let line = "1 variable of this terminal was dropped: agentctl env ";
    let told = said(run(&[]), here.clone()).await;
    assert_eq!((told.status, told.err.matches(line).count(), told.out.as_str()), (Some(0), 1, "hi\n"), "{told:?}");
    assert!(told.err.contains(" --diff terminal"), "{}", told.err);
    for (flags, variables) in [(&["--quiet"][..], here.clone()), (&["--json"], here), (&[], Vec::new())] {
        let told = said(run(flags), variables).await;
        assert!(told.status == Some(0) && !told.err.contains("dropped") && !told.out.contains(line), "{told:?}");
    }
}

#[tokio::test]
async fn what_was_dropped_is_pointed_at_in_a_pipe_too() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let said = ctl(&daemon, &["env", session.id.as_str()]).await;
    assert!(said.err.contains("were dropped: agentctl env") && said.err.contains("--dropped"), "{said:?}");
    assert!(!said.out.contains("dropped"), "{said:?}");
}

#[tokio::test]
async fn a_dry_run_writes_nothing_and_a_change_is_written_through_a_link_with_the_files_mode() {
    let daemon = Daemon::start().await;
    let (link, real) = (file(&daemon), daemon.root().join("dotfiles.toml"));
    fs::rename(&link, &real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    let before = written(&daemon);
    let said = ctl(&daemon, &["env", "keep", "JAVA_HOME", "ROS_*", "--dry-run"]).await;
    assert!(said.status == Some(0) && said.out.contains("+allow = [\"JAVA_HOME\", \"ROS_*\"]"), "{said:?}");
    assert_eq!(written(&daemon), before);
    let said = ctl(&daemon, &["env", "keep", "JAVA_HOME", "--json"]).await;
    let view: KeepView = serde_json::from_str(&said.out).unwrap();
    assert_eq!((view.added, view.created, view.mistakes), (vec!["JAVA_HOME".to_owned()], false, Vec::new()));
    assert!(written(&daemon).starts_with(&before), "{}", written(&daemon));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o7777, 0o640);
    let secret = ctl(&daemon, &["env", "keep", "DEPLOY_TOKEN"]).await;
    assert!(secret.status == Some(0) && secret.err.contains("DEPLOY_TOKEN looks like a secret"), "{secret:?}");
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_with_a_code_and_nothing_is_written() {
    let daemon = Daemon::start().await;
    let before = written(&daemon);
    let call = |body: Value| {
        let client = &daemon.client;
        async move { client.post("/v1/environment/keep", &body).await.problem() }
    };
    for (body, code) in [
        (json!({ "names": [] }), Code::InvalidRequest),
        (json!({ "names": ["A=1"] }), Code::InvalidRequest),
        (json!({ "names": ["A B"] }), Code::InvalidRequest),
        (json!({ "names": ["A"], "directory": "relative" }), Code::InvalidRequest),
        (json!({ "names": ["A"], "agent": "scripted", "directory": "/x" }), Code::InvalidRequest),
        (json!({ "names": ["A"], "agent": "nobody" }), Code::NoSuchAgent),
        (json!({ "name": "A" }), Code::MalformedRequest),
    ] {
        let problem = call(body.clone()).await;
        assert_eq!(problem.code, code, "{body}: {problem:?}");
    }
    fs::create_dir(daemon.system_config()).unwrap();
    fs::write(daemon.system_config().join("agentd.toml"), "[plugins.whitelist.settings]\npreset = \"minimal\"\n")
        .unwrap();
    if nix::unistd::geteuid().is_root() {
        let problem = call(json!({ "names": ["A"] })).await;
        assert_eq!(problem.code, Code::ConfigurationNotWritable, "{problem:?}");
        assert!(problem.hint.is_some_and(|hint| hint.contains("\"A\"") && hint.contains("plugins.whitelist.settings")));
    }
    assert_eq!(written(&daemon), before);
}

#[tokio::test]
async fn a_file_with_a_mistake_is_left_alone_and_one_that_is_not_there_is_made() {
    let daemon = Daemon::start().await;
    fs::write(file(&daemon), "default_agent = \n").unwrap();
    let said = ctl(&daemon, &["env", "keep", "A"]).await;
    assert!(said.status == Some(1) && said.err.contains("agentd.toml:1"), "{said:?}");
    assert_eq!(written(&daemon), "default_agent = \n");
    fs::remove_file(file(&daemon)).unwrap();
    let said = ctl(&daemon, &["env", "keep", "A"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    assert_eq!(written(&daemon), "[plugins.whitelist.settings]\nallow = [\"A\"]\n");
}

#[tokio::test]
async fn a_start_up_file_that_calls_agentctl_is_answered_at_once_and_the_launch_goes_on() {
    let daemon = Daemon::start().await;
    let first = daemon.session(&daemon.scripted(&[])).await;
    let (log, program) = (daemon.root().join("said"), PathBuf::from(paths::agentctl()));
    let socket = quoted(daemon.client.socket());
    let mut profile = format!("export AGENTD_SOCKET={socket}\n");
    let id = first.id.as_str();
    let calls =
        ["ls", "run hello", "new", "doctor", &format!("resume {id}"), &format!("env {id}"), &format!("validate {id}")];
    for call in calls {
        let call = format!("{} {call} </dev/null >>{} 2>&1", quoted(&program), quoted(&log));
        profile += &[&call, "; echo \"status $?\" >>", &quoted(&log), "\n"].concat();
    }
    fs::write(daemon.home().join(".profile"), profile).unwrap();
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.wait_for_phase(Phase::Idle).await;
    let text = fs::read_to_string(&log).unwrap();
    let statuses: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses.len() % calls.len(), 0, "{text}");
    assert_eq!(statuses[..2], ["0", "1"], "{text}");
    assert!(text.contains(id), "the list has the session that was there: {text}");
    assert!(text.matches("started by agentd itself").count() >= 5, "{text}");
    let fresh = session.view().await;
    let fresh = fresh.status.conditions.iter().find(|one| one.kind == ConditionType::EnvironmentReady);
    assert!(fresh.is_some(), "it was launched with the login shell's environment");
}

#[tokio::test]
async fn a_launch_that_waits_for_the_login_shell_says_so() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config.replace("[environment]\n", "[environment]\ndeadline = \"90s\"\n"));
    daemon.run().await;
    let (go, began) = (daemon.root().join("go"), daemon.root().join("began"));
    let wait = format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done\n", quoted(&began), quoted(&go));
    fs::write(daemon.home().join(".profile"), wait).unwrap();
    let mut command = agentctl(&daemon, &["run", "--prompt", "say hi", "--"]);
    command.arg(scripted_agent());
    let child = command.spawn().unwrap();
    until("the shell runs", || began.exists()).await;
    within("the launch says what it waits for", async {
        loop {
            let list: Value = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
            if list.to_string().contains("waiting for the login shell /bin/bash") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    fs::write(&go, "").unwrap();
    let said = end_of(child).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(
        said.err.contains("waiting for the login shell /bin/bash, for 90 s at most (environment.deadline)"),
        "{said:?}"
    );
}
