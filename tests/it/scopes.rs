//! Variables that the configuration keeps and sets for an agent, a directory or a session, and recognition of agents.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use agentd_api::Code;
use agentd_api::environment::EnvironmentView;
use agentd_api::session::{Phase, SessionSpec};
use serde_json::{Value, json};

use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session, scripted_agent};

const PROFILE: &str = "export EDITOR=ed LANG=C.UTF-8 SSH_AUTH_SOCK=/run/keys ACME_COLOUR=red ACME_SHAPE=round \
    AWS_PROFILE=dev\n\
    export ANTHROPIC_API_KEY=planted-key-1 OPENAI_API_KEY=planted-key-2\n";

/// Starts a daemon with `PROFILE` and more configuration, in which `{work}` is the working directory.
async fn configured(more: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    fs::write(daemon.home().join(".profile"), PROFILE).unwrap();
    configure(&daemon, more);
    daemon.run().await;
    daemon
}

fn configure(daemon: &Daemon, more: &str) {
    let more = more.replace("{work}", &daemon.work().display().to_string());
    let more = more.replace("{root}", &daemon.root().display().to_string());
    daemon.configure(|config| format!("{config}\n{more}\n"));
}

/// A session of the agent that the configuration of these tests declares as `mine`.
fn mine(daemon: &Daemon, environment: &Value) -> SessionSpec {
    let spec = json!({ "agent": "mine", "directory": daemon.work(), "environment": environment });
    serde_json::from_value(spec).unwrap()
}

fn agent(more: &str) -> String {
    let command = [scripted_agent().display().to_string(), "--store".to_owned(), "{root}".to_owned()];
    format!("[agents.mine]\ncommand = {command:?}\n{more}\n")
}

async fn variables(session: &Session) -> Value {
    serde_json::from_str(&session.turn("env").await.text).expect("the agent says its environment")
}

fn texts<'a>(variables: &'a Value, names: &[&str]) -> Vec<Option<&'a str>> {
    names.iter().map(|name| variables[name].as_str()).collect()
}

/// Returns a function that names the provider that set a variable last.
async fn providers(session: &Session, daemon: &Daemon) -> impl Fn(&str) -> String + use<> {
    let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
    move |name: &str| {
        let variable = view.variables.iter().find(|variable| variable.name == name);
        variable.map(|variable| variable.provider.clone()).unwrap_or_default()
    }
}

#[tokio::test]
async fn each_scope_keeps_drops_and_gives_and_each_variable_names_the_scope_that_gave_it() {
    let scopes = agent("allow = [\"ACME_*\"]\nenv = { A = \"agent\", B = \"agent\", C = \"agent\", D = \"agent\" }")
        + "[directories.\"{work}\"]\nallow = [\"SSH_AUTH_SOCK\"]\ndrop = [\"AWS_*\"]\n\
           env = { B = \"directory\", C = \"directory\" }\n\
           [directories.\"{work}/deeper\"]\nenv = { C = \"deeper\" }\n\
           [directories.\"/elsewhere\"]\nenv = { A = \"elsewhere\" }\n";
    let mut daemon = configured(&scopes).await;
    let own = json!({ "env": { "C": "session", "LD_PRELOAD_NOTE": "x" }, "drop": ["ACME_SHAPE", "D"],
        "allow": ["AWS_PROFILE"] });
    let session = daemon.session(&mine(&daemon, &own)).await;
    let names = ["A", "B", "C", "D", "SSH_AUTH_SOCK", "ACME_COLOUR", "ACME_SHAPE", "AWS_PROFILE", "EDITOR"];
    let expected = [
        Some("agent"),
        Some("directory"),
        Some("session"),
        None,
        Some("/run/keys"),
        Some("red"),
        None,
        Some("dev"),
        Some("ed"),
    ];
    assert_eq!(texts(&variables(&session).await, &names), expected);
    let provider = providers(&session, &daemon).await;
    assert_eq!(provider("A"), "env (agent mine)");
    assert_eq!(provider("B"), format!("env (directory {})", daemon.work().display()));
    assert_eq!(provider("C"), "env (session)");
    let id = session.id.to_string();
    let explained = ctl(&daemon, &["env", &id, "--explain", "C"]).await;
    for step in ["env (agent mine)", "env (directory", "env (session)"] {
        assert!(explained.out.contains(step), "{explained:?}");
    }

    // The session keeps its own variables across daemons. Variables of the configuration are read again.
    session.stop().await;
    daemon.kill9();
    daemon.configure(|config| config.replace("A = \"agent\"", "A = \"changed\""));
    daemon.run().await;
    let shown = ctl(&daemon, &["env", &id, "--diff"]).await;
    assert!(shown.out.contains('A') && shown.out.contains("env (agent mine)"), "{shown:?}");
    session.resume().await;
    assert_eq!(texts(&variables(&session).await, &["A", "C", "ACME_SHAPE"]), [Some("changed"), Some("session"), None]);
}

#[tokio::test]
async fn an_agent_that_is_built_in_or_another_files_has_scopes_without_a_command() {
    let daemon = Daemon::prepare();
    fs::write(daemon.home().join(".profile"), PROFILE).unwrap();
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    fs::create_dir(daemon.system_config()).unwrap();
    fs::write(
        daemon.system_config().join("agentd.toml"),
        agent("allow = [\"ACME_SHAPE\"]").replace("{root}", &daemon.root().display().to_string()),
    )
    .unwrap();
    configure(
        &daemon,
        "[agents.demo]\nallow = [\"ACME_COLOUR\"]\nenv = { A = \"demo\" }\n[agents.mine]\nenv = { A = \"mine\" }\n",
    );
    let mut daemon = daemon;
    daemon.run().await;
    for (agent, expected) in [("demo", ["ACME_COLOUR", "demo"]), ("mine", ["ACME_SHAPE", "mine"])] {
        let spec = SessionSpec { agent: Some(agent.parse().unwrap()), ..mine(&daemon, &json!({})) };
        let session = daemon.session(&spec).await;
        let view: EnvironmentView = daemon.client.get(&session.path("/environment?values=true")).await.expect(200);
        let value = |name: &str| {
            let variable = view.variables.iter().find(|variable| variable.name == name);
            variable.and_then(|variable| variable.value.clone()).map(|value| value.display().to_string())
        };
        assert_eq!(value("A").as_deref(), Some(expected[1]), "{agent}");
        for name in ["ACME_COLOUR", "ACME_SHAPE"] {
            assert_eq!(value(name).is_some(), name == expected[0], "{agent} {name}");
        }
    }
    let kept = ctl(&daemon, &["env", "keep", "ACME_SHAPE", "--agent", "demo"]).await;
    assert_eq!(kept.status, Some(0), "{kept:?}");
    let listed = ctl(&daemon, &["agents", "--json"]).await;
    assert_eq!(listed.out.matches("demo-agent").count(), 1, "{listed:?}");
    configure(&daemon, "[agents.absent]\nallow = [\"X\"]\n");
    let refused = ctl(&daemon, &["reload"]).await;
    assert!(
        refused.err.contains("agents.absent has no command") && refused.err.contains("add command = "),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_deeper_directory_has_what_is_said_of_those_around_it_and_goes_before_them_through_a_link_too() {
    let link = tempfile::tempdir().unwrap();
    let scopes = agent("")
        + &format!("[directories.\"{}/to\"]\nenv = {{ A = \"outer\", B = \"outer\" }}\n", link.path().display())
        + "[directories.\"{work}/deeper\"]\nenv = { B = \"inner\" }\n";
    let mut daemon = Daemon::prepare();
    symlink(daemon.work(), link.path().join("to")).unwrap();
    fs::create_dir(daemon.work().join("deeper")).unwrap();
    configure(&daemon, &scopes);
    daemon.run().await;
    let spec = SessionSpec { directory: daemon.work().join("deeper"), ..mine(&daemon, &json!({})) };
    let session = daemon.session(&spec).await;
    assert_eq!(texts(&variables(&session).await, &["A", "B"]), [Some("outer"), Some("inner")]);
    let beside = daemon.root().join("work-beside");
    fs::create_dir(&beside).unwrap();
    let session = daemon.session(&SessionSpec { directory: beside, ..spec }).await;
    assert_eq!(texts(&variables(&session).await, &["A", "B"]), [None, None], "a name that only begins like it");
}

#[tokio::test]
async fn a_secret_is_given_by_no_scope_and_the_refusal_says_where_it_belongs() {
    let daemon = configured(&agent("")).await;
    for (environment, code, words) in [
        (json!({ "env": { "GITHUB_TOKEN": "hunter22" } }), Code::SecretInEnvironment, "[secrets.GITHUB_TOKEN]"),
        (json!({ "env": { "REMOTE": "https://kim:hunter22@h/" } }), Code::SecretInEnvironment, "[secrets.REMOTE]"),
        (json!({ "env": { "AGENTD_SESSION": "x" } }), Code::InvalidRequest, "agentd's own"),
        (json!({ "env": { "1A": "x" } }), Code::InvalidRequest, "not a variable name"),
        (json!({ "allow": ["A B"] }), Code::InvalidRequest, "neither a variable name"),
        (json!({ "drop": [""] }), Code::InvalidRequest, "neither a variable name"),
    ] {
        let problem = daemon.client.post("/v1/sessions", &mine(&daemon, &environment)).await.problem();
        let text = format!("{} {}", problem.detail, problem.hint.clone().unwrap_or_default());
        assert_eq!(problem.code, code, "{environment}: {text}");
        assert!(text.contains(words) && !text.contains("hunter22"), "{text}");
    }
    let asked = ["new", "--agent", "mine", "--env", "GITHUB_TOKEN=hunter22"];
    let refused = ctl(&daemon, &asked).await;
    assert!(refused.status != Some(0) && refused.err.contains("[secrets.GITHUB_TOKEN]"), "{refused:?}");
    assert!(!refused.err.contains("hunter22"), "{refused:?}");
    let refused = ctl(&daemon, &["new", "--agent", "mine", "--env", "hunter22"]).await;
    assert!(refused.err.contains("--env NAME=VALUE") && !refused.err.contains("hunter22"), "{refused:?}");
    let sessions: Value = daemon.client.get("/v1/sessions?fields=*").await.json();
    assert_eq!(sessions["sessions"].as_array().map(Vec::len), Some(0), "{sessions}");

    let asked =
        ["new", "--agent", "mine", "--env", "A=1=2", "--allow", "SSH_AUTH_SOCK", "--drop", "EDITOR", "--ready", "30s"];
    let made = ctl(&daemon, &asked).await;
    assert_eq!(made.status, Some(0), "{made:?}");
    let session = Session::new(made.out.trim().parse().unwrap(), daemon.client.clone(), daemon.state());
    let given = variables(&session).await;
    assert_eq!(texts(&given, &["A", "SSH_AUTH_SOCK", "EDITOR"]), [Some("1=2"), Some("/run/keys"), None]);
}

#[tokio::test]
async fn a_secret_in_the_configuration_is_a_mistake_with_its_place_and_its_value_is_not_repeated() {
    let daemon = configured(&agent("env = { GITHUB_TOKEN = \"hunter22\" }")).await;
    let problem = daemon.client.post("/v1/sessions", &mine(&daemon, &json!({}))).await.problem();
    assert_eq!(problem.code, Code::ConfigurationInvalid);
    let text = serde_json::to_string(&problem).unwrap();
    assert!(text.contains("agents.mine.env") && text.contains("[secrets.GITHUB_TOKEN]"), "{text}");
    assert!(!text.contains("hunter22"), "{text}");
}

#[tokio::test]
async fn what_the_whitelist_is_allowed_is_kept_by_the_snapshot_too() {
    let whitelist = "[plugins.whitelist]\nsettings = { allow = [\"SSH_AUTH_SOCK\"] }\n";
    let keep = "[plugins.snapshot]\nsettings = { keep = [\"SSH_AUTH_SOCK\"] }\n";
    for settings in [whitelist, keep] {
        let daemon = configured(&(agent("") + settings)).await;
        let session = daemon.session(&mine(&daemon, &json!({}))).await;
        assert_eq!(texts(&variables(&session).await, &["SSH_AUTH_SOCK"]), [Some("/run/keys")], "{settings}");
    }
}

#[tokio::test]
async fn a_family_is_left_out_by_its_name_and_a_name_that_is_none_is_refused_with_those_that_are() {
    let settings = |without: &str| format!("[plugins.whitelist]\nsettings = {{ without = [{without:?}] }}\n");
    let daemon = configured(&(agent("") + &settings("cloud"))).await;
    let session = daemon.session(&mine(&daemon, &json!({}))).await;
    assert_eq!(texts(&variables(&session).await, &["AWS_PROFILE", "EDITOR"]), [None, Some("ed")]);
    let dropped = ctl(&daemon, &["env", session.id.as_str(), "--explain", "AWS_PROFILE"]).await;
    assert!(dropped.out.contains("family \"cloud\""), "{dropped:?}");
    let daemon = configured(&(agent("") + &settings("clowd"))).await;
    let session = daemon.create(&mine(&daemon, &json!({}))).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let message = view.status.message.unwrap_or_default();
    assert!(message.contains("\"clowd\"") && message.contains("cloud, compilers"), "{message}");
}

/// Creates a copy of the scripted agent at this path.
fn copy_to(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::copy(scripted_agent(), path).unwrap();
}

#[tokio::test]
async fn an_agent_gets_its_own_key_for_what_it_is_and_not_for_what_it_is_called() {
    let lib = tempfile::tempdir().unwrap();
    let claude = lib.path().join("node_modules/@anthropic-ai/claude-code/cli.js");
    let codex = lib.path().join("codex-x86_64-unknown-linux-musl");
    copy_to(&claude);
    copy_to(&codex);
    let reviewer = lib.path().join("reviewer");
    symlink(&claude, &reviewer).unwrap();
    let plain = scripted_agent();
    let declared = |name: &str, command: &[&Path]| format!("[agents.{name}]\ncommand = {command:?}\n");
    let config = declared("reviewer", &[&reviewer])
        + &declared("launched", &[Path::new("/usr/bin/env"), Path::new("A=1"), &reviewer])
        + &declared("gemini", &[&codex])
        + &declared("claude", &[&plain]);
    let daemon = configured(&config).await;
    for (agent, kept) in [
        ("reviewer", [true, false]),
        ("launched", [true, false]),
        ("gemini", [false, true]),
        // The program is not a known agent, so the configured name decides.
        ("claude", [true, false]),
    ] {
        let spec = SessionSpec { agent: Some(agent.parse().unwrap()), ..mine(&daemon, &json!({})) };
        let session = daemon.session(&spec).await;
        let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
        let has = |name: &str| view.variables.iter().any(|variable| variable.name == name);
        assert_eq!([has("ANTHROPIC_API_KEY"), has("OPENAI_API_KEY")], kept, "{agent}");
    }
}

#[tokio::test]
async fn a_rotated_secret_is_named_in_the_difference_and_in_the_note() {
    let allow = "[plugins.whitelist]\nsettings = { allow = [\"OPENAI_API_KEY\"] }\n";
    let daemon = configured(&(agent("") + allow)).await;
    let session = daemon.session(&mine(&daemon, &json!({}))).await;
    session.turn("say hello").await;
    let id = session.id.to_string();
    let same = ctl(&daemon, &["env", &id, "--diff"]).await;
    assert!(!same.out.contains("OPENAI_API_KEY"), "{same:?}");
    fs::write(daemon.home().join(".profile"), PROFILE.replace("planted-key-2", "planted-key-3")).unwrap();
    let changed = ctl(&daemon, &["env", &id, "--diff", "--values"]).await;
    assert!(changed.out.contains("OPENAI_API_KEY"), "{changed:?}");
    assert!(!changed.out.contains("planted-key") && !changed.err.contains("not stored"), "{changed:?}");
    session.stop().await;
    session.resume().await;
    session.turn("say again").await;
    let journal = fs::read_to_string(session.directory().join("journal.jsonl")).unwrap();
    assert!(journal.contains("OPENAI_API_KEY changed by snapshot"), "the note names it");
    assert!(!journal.contains("planted-key"), "and no value");
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_a_warning_of_the_doctor_and_of_the_check() {
    let daemon = configured(&(agent("") + "[directories.\"{work}/later\"]\nallow = [\"X\"]\n")).await;
    let session = daemon.session(&mine(&daemon, &json!({}))).await;
    assert_eq!(session.view().await.status.phase, Phase::Idle);
    let doctor = ctl(&daemon, &["doctor"]).await;
    assert!(doctor.out.contains("later does not exist"), "{}", doctor.out);
    let file = daemon.root().join("config/agentd.toml");
    let check = ctl(&daemon, &["config", "check", &file.display().to_string()]).await;
    assert_eq!(check.status, Some(0), "{check:?}");
    assert!(check.out.contains("warning: ") && check.out.contains("later does not exist"), "{check:?}");
}
