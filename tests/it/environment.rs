//! The agent's environment: built from nothing, equal wherever agentd was started, and with a provider for every
//! variable.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use agentd_api::environment::EnvironmentView;
use agentd_api::session::PermissionPolicy;

use crate::harness::client::in_query;
use crate::harness::{Daemon, Session, process};

type Variables = BTreeMap<String, String>;

/// The environment as the agent itself sees it.
async fn of_agent(session: &Session) -> Variables {
    let text = session.turn("env").await.text;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

async fn reported(daemon: &Daemon, session: &Session, query: &str) -> EnvironmentView {
    daemon.client.get(&session.path(&format!("/environment{query}"))).await.expect(200)
}

/// Two hundred variables of a terminal that has been used for a while, traps among them.
fn of_a_terminal(daemon: &Daemon) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> =
        (0..200).map(|n| (format!("PLANTED_{n}"), format!("planted-value-{n}"))).collect();
    let traps = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin:/planted/bin"),
        ("HOME", "/planted/home"),
        ("EDITOR", "planted-editor"),
        ("LANG", "planted_LANG.UTF-8"),
        ("TERM", "planted-term"),
        ("SHELL", "/planted/shell"),
        ("BASH_ENV", "/planted/bash-env"),
        ("ENV", "/planted/env"),
        ("LD_LIBRARY_PATH", "/planted/lib"),
        ("VIRTUAL_ENV", "/planted/venv"),
        ("NODE_ENV", "planted"),
        ("XDG_CONFIG_HOME", "/planted/config"),
        ("SSH_AUTH_SOCK", "/planted/agent"),
        ("OPENAI_API_KEY", "planted-key"),
        ("CLAUDECODE", "planted"),
        ("AGENTD_PLANTED", "planted"),
        ("BASH_FUNC_planted%%", "() {  echo planted; }"),
    ];
    variables.extend(traps.map(|(name, value)| (name.to_owned(), value.to_owned())));
    variables.push(("OLDPWD".to_owned(), daemon.root().join("planted").display().to_string()));
    variables
}

#[tokio::test]
async fn a_variable_planted_in_the_daemons_own_environment_never_reaches_the_agent() {
    let mut daemon = Daemon::prepare();
    daemon.set_environment(of_a_terminal(&daemon));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let leaked: Variables = of_agent(&session)
        .await
        .into_iter()
        .filter(|(name, value)| name.contains("PLANTED") || value.to_lowercase().contains("planted"))
        .collect();
    assert!(leaked.is_empty(), "{leaked:#?}");
}

#[tokio::test]
async fn the_environment_is_the_same_from_a_terminal_with_two_hundred_variables_and_from_env_i() {
    let mut daemon = Daemon::prepare();
    let mut seen = Vec::new();
    for environment in [of_a_terminal(&daemon), Vec::new(), vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())]] {
        daemon.set_environment(environment);
        daemon.run().await;
        let session = daemon.session(&daemon.scripted(&[])).await;
        let mut variables = of_agent(&session).await;
        for (name, value) in &mut variables {
            // Variables with the session's ID differ between the sessions, so the ID is replaced.
            *value = value.replace(session.id.as_str(), "SESSION");
            assert!(!name.is_empty());
        }
        seen.push(variables);
        session.stop().await;
        daemon.terminate().await;
    }
    assert_eq!(seen[0], seen[1], "a terminal and env -i");
    assert_eq!(seen[1], seen[2], "env -i and a service manager");
    assert_eq!(seen[0].get("EDITOR").map(String::as_str), Some("ed"), "the login shell's: {:#?}", seen[0]);
    assert_eq!(seen[0].get("HOME"), Some(&daemon.home().display().to_string()));
    assert!(seen[0].contains_key("PATH"), "{:#?}", seen[0]);
}

#[tokio::test]
async fn what_agentd_reports_is_what_the_agent_has_with_a_provider_for_every_variable() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let agent = of_agent(&session).await;
    let view = reported(&daemon, &session, "?values=true").await;
    let values: Variables = view
        .variables
        .iter()
        .map(|variable| {
            let value = variable.value.as_ref().unwrap_or_else(|| panic!("no value: {variable:?}"));
            (variable.name.clone(), value.display().into_owned())
        })
        .collect();
    assert_eq!(values, agent);
    for variable in &view.variables {
        assert!(!variable.provider.is_empty() && variable.step >= 1, "{variable:?}");
        assert!(variable.digest.is_some(), "{variable:?}");
    }
    let editor = view.variables.iter().find(|variable| variable.name == "EDITOR").expect("EDITOR is in the safe list");
    assert_eq!(editor.provider, "snapshot", "{editor:?}");
    let dropped = view.dropped.iter().find(|dropped| dropped.name == "FROM_PROFILE");
    assert_eq!(dropped.map(|dropped| dropped.provider.as_str()), Some("whitelist"), "{:?}", view.dropped);

    let names = reported(&daemon, &session, "").await;
    assert!(names.variables.iter().all(|variable| variable.value.is_none()), "values were not asked for");
}

#[tokio::test]
async fn env_run_by_the_agents_own_tool_prints_the_names_that_agentd_reports() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    spec.permissions = PermissionPolicy::Allow;
    let session = daemon.session(&spec).await;
    let names = |text: &str| -> BTreeSet<String> {
        text.lines().filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect()
    };
    let tool = names(&session.turn("tool env | sort").await.text);
    // The shell that runs the tool always adds its own names.
    let output = Command::new("/bin/sh").args(["-c", "env"]).env_clear().output().expect("/bin/sh runs");
    let of_shell = names(&String::from_utf8_lossy(&output.stdout));
    let agentd: BTreeSet<String> =
        reported(&daemon, &session, "").await.variables.into_iter().map(|variable| variable.name).collect();
    assert_eq!(&tool - &of_shell, &agentd - &of_shell);
}

#[tokio::test]
async fn scripts_run_from_the_global_to_the_session_and_the_later_wins() {
    let daemon = Daemon::start().await;
    std::fs::write(
        daemon.root().join("config/env-setup.sh"),
        "export FROM_GLOBAL=global SHARED=global\nexport EDITOR=from-global\n",
    )
    .unwrap();
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some("export FROM_SESSION=\"after $FROM_GLOBAL\" SHARED=session\nunset LANG\n".to_owned());
    let session = daemon.session(&spec).await;
    let agent = of_agent(&session).await;
    let get = |name: &str| agent.get(name).map(String::as_str);
    assert_eq!(get("FROM_SESSION"), Some("after global"), "{agent:#?}");
    assert_eq!((get("SHARED"), get("EDITOR"), get("LANG")), (Some("session"), Some("from-global"), None));

    let view = reported(&daemon, &session, "").await;
    let shared = view.variables.iter().find(|variable| variable.name == "SHARED").unwrap();
    assert_eq!(shared.provider, "env-script");
    let origin = shared.origin.as_ref().expect("a script's path is its origin");
    assert!(origin.starts_with(daemon.state().join("sessions").join(session.id.as_str())), "{}", origin.display());
}

#[tokio::test]
async fn values_survive_whatever_bytes_they_are_made_of() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    let script = r#"
export NEWLINES=$'one\ntwo\n\nfour=4\n' SPACES='  both ends  ' EMPTY= EQUALS='a=b=c' NOISY="$(echo loud >&2)"
echo 'END_OF_ENVIRONMENT FAKE=1'
sleep 1000 &
"#;
    spec.env_setup = Some(script.to_owned());
    let session = daemon.session(&spec).await;
    let agent = of_agent(&session).await;
    let get = |name: &str| agent.get(name).map(String::as_str);
    assert_eq!(get("NEWLINES"), Some("one\ntwo\n\nfour=4\n"));
    assert_eq!((get("SPACES"), get("EMPTY"), get("EQUALS")), (Some("  both ends  "), Some(""), Some("a=b=c")));
    assert_eq!(get("FAKE"), None);
}

#[tokio::test]
async fn a_script_of_a_directory_runs_only_when_it_was_approved_with_this_content() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.work().join(".agentd-env.sh"), "export FROM_DIRECTORY=yes\n").unwrap();
    let body = serde_json::json!({ "directory": daemon.work() });
    let refused = daemon.create(&daemon.scripted(&[])).await;
    let view = refused.wait_for_phase(agentd_api::session::Phase::Failed).await;
    assert!(view.status.message.as_deref().unwrap_or_default().contains(".agentd-env.sh"), "{view:#?}");

    let allowed: serde_json::Value = daemon.client.post("/v1/scripts/allow", &body).await.expect(200);
    assert_eq!(allowed["scripts"][0]["state"], "approved", "{allowed}");
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(of_agent(&session).await.get("FROM_DIRECTORY").map(String::as_str), Some("yes"));

    std::fs::write(daemon.work().join(".agentd-env.sh"), "export FROM_DIRECTORY=changed\n").unwrap();
    let path = format!("/v1/scripts?directory={}", in_query(&daemon.work()));
    let changed: serde_json::Value = daemon.client.get(&path).await.expect(200);
    assert_eq!(changed["scripts"][0]["state"], "changed", "{changed}");
    let refused = daemon.create(&daemon.scripted(&[])).await;
    refused.wait_for_phase(agentd_api::session::Phase::Failed).await;
}

#[tokio::test]
async fn no_value_of_the_environment_is_in_the_journal_or_in_any_argument_list() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    // The script computes the value, because the journal contains the script's text.
    spec.env_setup = Some("export SOME_VALUE=\"needle-$((2026 * 3))-needle\"".to_owned());
    let session = daemon.session(&spec).await;
    let needle = b"needle-6078-needle";
    let contains = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let journal = std::fs::read(crate::harness::journal::path(&daemon.state(), &session.id)).unwrap();
    assert!(!contains(&journal), "the journal holds a value");
    for pid in crate::harness::process::of(daemon.root()) {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!contains(&arguments), "the arguments of {pid} hold a value");
    }
    assert!(!contains(daemon.last_words().as_bytes()), "the log holds a value");
}

/// Returns the daemon's `look` processes, which inspect files.
fn looking(daemon: &Daemon) -> Vec<u32> {
    let parent = format!("PPid:\t{}\n", daemon.pid());
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let looks = |pid: &u32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("cmdline").contains("\0look\0") && read("status").contains(&parent) && process::is_alive(*pid)
    };
    pids.filter(looks).collect()
}

#[tokio::test]
async fn one_process_looks_at_the_places_of_launches_that_follow_each_other_and_another_when_it_was_killed() {
    let daemon = Daemon::start().await;
    let (mut last, mut kept) = (Vec::new(), None);
    // On a busy machine a lookup may exceed its time limit, and its process is killed.
    for _ in 0..20 {
        daemon.session(&daemon.scripted(&[])).await;
        let now = looking(&daemon);
        kept = now.iter().find(|pid| last.contains(*pid)).copied();
        if kept.is_some() {
            break;
        }
        last = now;
    }
    assert!(kept.is_some(), "no process looked at the places of two launches");
    for pid in looking(&daemon) {
        process::kill9(pid);
    }
    let mut others = Vec::new();
    for _ in 0..20 {
        daemon.session(&daemon.scripted(&[])).await;
        others = looking(&daemon);
        if !others.is_empty() {
            break;
        }
    }
    assert!(!others.is_empty(), "no other process looked at the places of a launch");
}
