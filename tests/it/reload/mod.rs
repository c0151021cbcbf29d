//! A reload of the configuration. Plugins are added, changed and removed through files, and a mistake affects only its
//! part of the configuration.

mod damaged;

use std::fs;
use std::path::PathBuf;

use agentd_api::configuration::{Consequence, Effect, Mistake};
use agentd_api::environment::EnvironmentView;
use agentd_api::plugin::{OnFailure, PluginList, PluginState, PluginView, ReloadView};
use agentd_api::problem::Problem;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::harness::digest::sha256;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, process, require, until, within};

/// Returns a component that sets NAME to this value.
fn giving(value: &str) -> Vec<u8> {
    let fields = format!("(data (i32.const 512) \"{value}\")");
    // The answer at 64 is Ok with a list of one change. The change at 256 sets NAME (4 bytes at 144) to the value at
    // 512.
    let provide = format!(
        "(i32.store (i32.const 68) (i32.const 256)) (i32.store (i32.const 72) (i32.const 1)) \
         (i32.store (i32.const 260) (i32.const 144)) (i32.store (i32.const 264) (i32.const 4)) \
         (i32.store (i32.const 268) (i32.const 512)) (i32.store (i32.const 272) (i32.const {}))",
        value.len()
    );
    Guest { fields: &fields, provide: &provide, ..Guest::default() }.provider()
}

fn crashing() -> Vec<u8> {
    Guest { provide: "unreachable", ..Guest::default() }.provider()
}

/// Writes a component to the directory of the user's plugins, and returns its declaration.
fn place(daemon: &Daemon, name: &str, component: &[u8]) -> String {
    let folder = daemon.root().join("config/plugins");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{name}.wasm")), component).unwrap();
    format!("[plugins.{name}]\nsha256 = \"{}\"\ngrant.variables = [\"NAME\"]\n", sha256(component))
}

fn file(daemon: &Daemon) -> PathBuf {
    daemon.root().join("config/agentd.toml")
}

/// Returns the harness's configuration with one more plugin and its declaration.
fn with(plain: &str, name: &str, declared: &str) -> String {
    let providers = format!("[environment]\nproviders = [\"snapshot\", \"whitelist\", \"{name}\"]");
    format!("{}\n{declared}", plain.replace("[environment]", &providers))
}

/// Returns the data of the feed's events about plugins of this kind.
async fn of_feed(daemon: &Daemon, kind: &str) -> Vec<Value> {
    let answer = daemon.client.get(&format!("/v1/events?after=0&follow=false&kind={kind}")).await;
    let lines = String::from_utf8(answer.body.to_vec()).unwrap();
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["kind"] == kind).map(|event| event["data"].clone()).collect()
}

async fn reload(daemon: &Daemon) -> ReloadView {
    daemon.client.call("POST", "/v1/reload", "").await.expect(200)
}

/// Returns the problem of a reload that the administrator's mistake prevents.
async fn refused(daemon: &Daemon) -> Problem {
    let response = daemon.client.call("POST", "/v1/reload", "").await;
    let problem = response.problem();
    assert_eq!((problem.status, problem.code), (422, agentd_api::Code::ConfigurationInvalid), "{problem:?}");
    assert!(
        problem.particulars.mistakes.iter().all(|mistake| mistake.consequence == Consequence::FormerInForce),
        "{problem:?}"
    );
    problem
}

/// Reloads, and returns the only mistake. Asserts its consequence.
async fn mistake(daemon: &Daemon, consequence: Consequence) -> Mistake {
    let view = reload(daemon).await;
    let [mistake] = view.mistakes.as_slice() else { panic!("{view:#?}") };
    assert_eq!(mistake.consequence, consequence, "{view:#?}");
    mistake.clone()
}

async fn plugins(daemon: &Daemon) -> Vec<PluginView> {
    daemon.client.get("/v1/plugins").await.expect::<PluginList>(200).plugins
}

async fn plugin(daemon: &Daemon, name: &str) -> PluginView {
    daemon.client.get(&format!("/v1/plugins/{name}")).await.expect(200)
}

async fn name_of(session: &Session) -> Option<String> {
    let environment: serde_json::Value = serde_json::from_str(&session.turn("env").await.text).unwrap();
    environment["NAME"].as_str().map(str::to_owned)
}

/// Returns the value of NAME in a new session.
async fn name_now(daemon: &Daemon) -> Option<String> {
    name_of(&daemon.session(&daemon.scripted(&[])).await).await
}

fn environment_of(view: &SessionView) -> Condition {
    let mut conditions = view.status.conditions.iter();
    conditions.find(|condition| condition.kind == ConditionType::EnvironmentReady).expect("it was built or not").clone()
}

/// Returns the condition with which a new session's launch fails.
async fn refusal(daemon: &Daemon) -> Condition {
    let session = daemon.create(&daemon.scripted(&[])).await;
    let condition = environment_of(&session.wait_for_phase(Phase::Failed).await);
    assert_eq!(condition.status, ConditionStatus::False);
    condition
}

#[tokio::test]
async fn plugins_come_and_change_and_go_by_files_and_a_reload() {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let first = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(name_of(&first).await, None);

    let declared = place(&daemon, "toolchain", &giving("one"));
    fs::write(file(&daemon), with(&plain, "toolchain", &format!("{declared}grant.command = [\"/bin/true\"]\n")))
        .unwrap();
    let view = reload(&daemon).await;
    let changed = [
        "environment.providers",
        "plugins.toolchain.grant.command",
        "plugins.toolchain.grant.variables",
        "plugins.toolchain.sha256",
    ];
    assert_eq!(view.changed, changed);
    assert_eq!((view.files, view.restart, view.plugins), (vec![file(&daemon)], vec![], 3));
    assert_eq!(name_now(&daemon).await.as_deref(), Some("one"));
    let toolchain = plugin(&daemon, "toolchain").await;
    assert_eq!((toolchain.state, toolchain.calls, toolchain.failures), (PluginState::Loaded, 1, 0));
    assert_eq!(toolchain.source, daemon.root().join("config/plugins/toolchain.wasm").display().to_string());
    assert_eq!(toolchain.declared_in, Some(file(&daemon)));
    assert_eq!(toolchain.sha256, Some(sha256(giving("one"))));
    assert_eq!(toolchain.grant["command"], ["/bin/true"]);
    assert_eq!(toolchain.used_by, ["toolchain"]);
    let described = toolchain.description.unwrap();
    assert_eq!((described.component.as_str(), described.world.as_str()), ("hostile", "provider"));

    // Another file with another pin replaces the first. Sessions that started before keep the value of the first.
    let declared = place(&daemon, "toolchain", &giving("two"));
    fs::write(file(&daemon), with(&plain, "toolchain", &declared)).unwrap();
    assert_eq!(reload(&daemon).await.changed, ["plugins.toolchain.grant.command", "plugins.toolchain.sha256"]);
    assert_eq!(name_now(&daemon).await.as_deref(), Some("two"));

    fs::write(file(&daemon), &plain).unwrap();
    fs::remove_file(daemon.root().join("config/plugins/toolchain.wasm")).unwrap();
    let changed = ["environment.providers", "plugins.toolchain.grant.variables", "plugins.toolchain.sha256"];
    assert_eq!(reload(&daemon).await.changed, changed);
    assert_eq!(name_now(&daemon).await, None);
    assert!(plugins(&daemon).await.iter().all(|plugin| plugin.source == "built-in"));
    assert_eq!(daemon.client.get("/v1/plugins/toolchain").await.problem().code, agentd_api::Code::NoSuchPlugin);
    // The first session has run without an interruption.
    assert_eq!(first.turn("say still here").await.text, "still here");
    assert_eq!(first.view().await.status.launches, 1);
}

#[tokio::test]
async fn a_signal_reloads_as_a_request_does() {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let declared = place(&daemon, "toolchain", &giving("by-signal"));
    fs::write(file(&daemon), with(&plain, "toolchain", &declared)).unwrap();
    kill(process::pid(daemon.pid()), Signal::SIGHUP).unwrap();
    within("the plugin is there", async {
        while plugins(&daemon).await.iter().all(|plugin| plugin.name != "toolchain") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(name_now(&daemon).await.as_deref(), Some("by-signal"));
}

#[tokio::test]
async fn a_plugin_whose_file_is_another_is_left_out_with_both_hashes_until_it_is_repaired() {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let (component, mut changed) = (giving("one"), giving("one"));
    let declared = place(&daemon, "toolchain", &component);
    fs::write(file(&daemon), with(&plain, "toolchain", &declared)).unwrap();
    reload(&daemon).await;

    *changed.last_mut().unwrap() ^= 1;
    place(&daemon, "toolchain", &changed);
    let told = mistake(&daemon, Consequence::LeftOut).await;
    assert_eq!((told.key.as_str(), told.file.as_ref()), ("plugins.toolchain", Some(&file(&daemon))));
    for word in [&sha256(&component), &sha256(&changed)] {
        assert!(told.message.contains(word), "{word} is not in {told:?}");
    }
    assert_eq!(plugin(&daemon, "toolchain").await.state, PluginState::Failed);
    assert_eq!(refusal(&daemon).await.reason, "PluginNotLoaded");
    place(&daemon, "toolchain", &component);
    let view = reload(&daemon).await;
    assert_eq!((view.changed, view.mistakes), (vec![], vec![]));
    assert_eq!(name_now(&daemon).await.as_deref(), Some("one"));
}

#[tokio::test]
async fn a_repaired_plugin_comes_back_though_another_cannot_be_loaded_in_the_same_reload() {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let declared = place(&daemon, "toolchain", &giving("one"));
    place(&daemon, "other", b"no component");
    let other = format!("[plugins.other]\nsha256 = \"{}\"\n", "0".repeat(64));
    let stale = declared.replace("sha256 = \"", "sha256 = \"00").replace("00\"\n", "\"\n");
    fs::write(file(&daemon), with(&plain, "toolchain", &format!("{stale}\n{other}"))).unwrap();
    reload(&daemon).await;
    assert_eq!(plugin(&daemon, "toolchain").await.state, PluginState::Failed);
    let text =
        with(&plain, "toolchain", &format!("{declared}\n{other}")).replace("[launch]", "[limits]\nbody = 9\n[launch]");
    fs::write(file(&daemon), text).unwrap();
    let told = mistake(&daemon, Consequence::LeftOut).await;
    assert_eq!(told.key, "plugins.other");
    assert_eq!(plugin(&daemon, "toolchain").await.state, PluginState::Loaded);
    // Settings that are independent of both plugins also take effect.
    assert_eq!(
        daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await.problem().code,
        agentd_api::Code::BodyTooLarge
    );
}

#[tokio::test]
async fn a_user_file_with_a_mistake_leaves_the_former_one_in_force_and_says_where_it_is_wrong() {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    for (text, place, words) in [
        ("[environment\n", ":1:13", ["", ""]),
        ("[limits]\nlaunchs = 3\n", ":2:1", ["launchs", "launches"]),
        ("[environment]\nproviders = [\"nobody\"]\n", ":2:1", ["nobody", "whitelist"]),
        ("[plugin_policy]\nuser_plugins = true\n", ":1:2", ["[plugin_policy]", "administrator"]),
    ] {
        fs::write(file(&daemon), text).unwrap();
        let told = mistake(&daemon, Consequence::FormerInForce).await;
        assert_eq!(told.place(), format!("{}{place}", file(&daemon).display()), "{told:?}");
        assert!(words.iter().all(|word| told.to_string().contains(word)), "{words:?}: {told}");
        assert_eq!(plugins(&daemon).await.len(), 3);
    }
    // Until then, the agent and the plugins of the first configuration were in force.
    assert_eq!(name_now(&daemon).await, None);
    fs::write(file(&daemon), format!("{plain}\n[plugins.snapshot]\ngrant = {{}}\n")).unwrap();
    let told = mistake(&daemon, Consequence::LeftOut).await;
    assert!(told.message.contains("shell-environment") && told.message.contains("login-shell = true"), "{told}");
    fs::write(file(&daemon), format!("{plain}\n[plugins.whitelist]\nsettings = {{ alow = [] }}\n")).unwrap();
    let told = mistake(&daemon, Consequence::LeftOut).await;
    assert!(told.message.contains("unknown setting \"alow\""), "{told}");
    // Without the plugin that filters variables for agents, the daemon launches no agent.
    assert_eq!(refusal(&daemon).await.reason, "PluginNotLoaded");
}

#[tokio::test]
async fn a_dry_run_says_what_a_reload_would_do_and_does_nothing() {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let text = plain.replace("[launch]", "[limits]\nactive_sessions = 1\n[launch]")
        + "[control]\ntcp = \"127.0.0.1:0\"\ntoken = { file = \"/nowhere/token\" }\n";
    fs::write(file(&daemon), text).unwrap();
    for (method, path) in [("POST", "/v1/reload?dry_run"), ("GET", "/v1/reload")] {
        let view: ReloadView = daemon.client.call(method, path, "").await.expect(200);
        assert!(view.dry_run);
        assert_eq!(view.changed, ["control.tcp", "control.token.file", "limits.active_sessions"]);
        assert!(view.mistakes.len() == 1 && view.mistakes[0].message.contains("/nowhere/token"), "{view:?}");
    }
    daemon.session(&daemon.scripted(&[])).await;
    daemon.session(&daemon.scripted(&[])).await;
    let view = reload(&daemon).await;
    assert_eq!((view.dry_run, view.mistakes[0].key.as_str()), (false, "control.token"));
    let third = daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await.problem();
    assert_eq!(third.code, agentd_api::Code::TooManySessions);
}

#[tokio::test]
async fn settings_and_limits_take_effect_at_the_next_launch_and_the_rest_is_named() {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    fs::write(daemon.home().join(".profile"), "export FROM_PROFILE=kept OTHER=dropped\n").unwrap();
    let before = daemon.session(&daemon.scripted(&[])).await;
    let text = plain
        .replace("[launch]", "[limits]\nactive_sessions = 2\nconnections = 9\n\n[launch]\nmanager = \"detached\"")
        + "\n[plugins.whitelist]\nsettings = { allow = [\"FROM_PROFILE\"] }\n";
    fs::write(file(&daemon), text).unwrap();
    let view = reload(&daemon).await;
    let changed =
        ["launch.manager", "limits.active_sessions", "limits.connections", "plugins.whitelist.settings.allow"];
    assert_eq!(view.changed, changed);
    assert_eq!(view.restart, ["launch.manager", "limits.connections"]);
    let effects: Vec<Effect> = view.changes.iter().map(|change| change.effect).collect();
    assert_eq!(effects, [Effect::NextStart, Effect::Now, Effect::NextStart, Effect::NextLaunch]);
    let after = daemon.session(&daemon.scripted(&[])).await;
    let environment = async |session: &Session| {
        daemon.client.get(&session.path("/environment?values=true")).await.expect::<EnvironmentView>(200)
    };
    let has = |view: &EnvironmentView| view.variables.iter().any(|variable| variable.name == "FROM_PROFILE");
    assert!(!has(&environment(&before).await) && has(&environment(&after).await));
    assert_eq!(plugin(&daemon, "whitelist").await.settings["allow"], ["FROM_PROFILE"]);
    let third = daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await.problem();
    assert_eq!(third.code, agentd_api::Code::TooManySessions);
}

#[tokio::test]
async fn a_launch_under_way_keeps_what_it_began_with() {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let declared = place(&daemon, "toolchain", &giving("one"));
    let declared = format!("{declared}\n[plugins.env-script]\n");
    let text = with(&plain, "toolchain", &declared).replace("\"toolchain\"]", "\"env-script\", \"toolchain\"]");
    fs::write(file(&daemon), &text).unwrap();
    reload(&daemon).await;
    let (begun, go) = (daemon.root().join("begun"), daemon.root().join("go"));
    // The script waits for the test's file, and for no duration.
    let script =
        format!("touch {begun}\nwhile ! test -e {go}; do sleep 0.01; done\n", begun = quoted(&begun), go = quoted(&go));
    fs::write(daemon.root().join("config/env-setup.sh"), script).unwrap();
    let session = daemon.create(&daemon.scripted(&[])).await;
    until("the script runs", || begun.exists()).await;

    let declared = place(&daemon, "toolchain", &giving("two"));
    fs::write(file(&daemon), with(&plain, "toolchain", &declared)).unwrap();
    reload(&daemon).await;
    fs::write(&go, "").unwrap();
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(name_of(&session).await.as_deref(), Some("one"));
    assert_eq!(name_now(&daemon).await.as_deref(), Some("two"));
}

#[tokio::test]
async fn a_plugin_that_cannot_be_loaded_at_the_start_stops_the_launches_that_need_it_and_no_daemon() {
    let mut daemon = Daemon::prepare();
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    place(&daemon, "toolchain", b"no component");
    let declared = format!("[plugins.toolchain]\nsha256 = \"{}\"\n", "0".repeat(64));
    fs::write(file(&daemon), with(&plain, "toolchain", &declared)).unwrap();
    daemon.run().await;
    let condition = refusal(&daemon).await;
    assert_eq!(condition.reason, "PluginNotLoaded");
    assert!(condition.message.contains("toolchain") && condition.message.contains(&"0".repeat(64)), "{condition:?}");
    let toolchain = plugin(&daemon, "toolchain").await;
    assert_eq!((toolchain.state, toolchain.calls, toolchain.description), (PluginState::Failed, 0, None));
    assert_eq!(toolchain.problem.unwrap().code, "plugin-not-pinned");
    assert_eq!(plugin(&daemon, "snapshot").await.state, PluginState::Loaded);
    let failed = of_feed(&daemon, "plugin.failed").await;
    let named: Vec<_> = failed.iter().map(|data| (&data["plugin"], &data["problem"]["code"])).collect();
    assert_eq!(named, [(&json!("toolchain"), &json!("plugin-not-pinned"))]);

    // The daemon also starts with a broken plugin that launches may skip, and then they skip it.
    daemon.terminate().await;
    fs::write(file(&daemon), with(&plain, "toolchain", &format!("{declared}on_failure = \"skip\"\n"))).unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let condition = environment_of(&session.view().await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::True, "ProviderSkipped"));
    assert!(condition.message.contains("toolchain") && condition.message.contains("pinned"), "{condition:?}");
    assert_eq!(name_of(&session).await, None);
}

#[tokio::test]
async fn a_plugin_that_keeps_failing_is_suspended_and_not_called_until_a_reload() {
    let mut daemon = Daemon::prepare();
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let declared = place(&daemon, "broken", &crashing());
    fs::write(file(&daemon), with(&plain, "broken", &format!("{declared}on_failure = \"skip\"\n"))).unwrap();
    daemon.run().await;
    let mut session = daemon.session(&daemon.scripted(&[])).await;
    for calls in 1..=5 {
        let condition = environment_of(&session.view().await);
        assert!(condition.message.contains("plugin \"broken\" crashed"), "{condition:?}");
        let broken = plugin(&daemon, "broken").await;
        assert_eq!((broken.calls, broken.consecutive_failures, broken.on_failure), (calls, calls, OnFailure::Skip));
        assert_eq!(broken.state == PluginState::Suspended, calls == 5, "{broken:?}");
        session = daemon.session(&daemon.scripted(&[])).await;
    }
    // The sixth session started without the plugin and did not call it.
    let condition = environment_of(&session.view().await);
    assert_eq!(condition.reason, "ProviderSkipped");
    assert!(condition.message.contains("is suspended after 5 failures in a row"), "{condition:?}");
    let broken = plugin(&daemon, "broken").await;
    assert_eq!((broken.state, broken.calls, broken.failures), (PluginState::Suspended, 5, 5));
    let problem = broken.problem.unwrap();
    assert!(problem.detail.contains("crashed") && problem.hint.unwrap().contains("agentctl reload"));
    assert!(broken.last_failure.unwrap().message.contains("plugin \"broken\" crashed"));
    assert_eq!(plugin(&daemon, "whitelist").await.failures, 0);
    let suspended = of_feed(&daemon, "plugin.suspended").await;
    assert_eq!(suspended.len(), 1, "{suspended:?}");
    assert!(
        suspended[0]["plugin"] == "broken" && suspended[0]["detail"].as_str().unwrap().contains("after 5 failures")
    );

    // A reload ends the suspension. A launch that must not skip the plugin fails at once while the plugin is suspended.
    fs::write(file(&daemon), with(&plain, "broken", &declared)).unwrap();
    assert_eq!(reload(&daemon).await.changed, ["plugins.broken.on_failure"]);
    for calls in 1..=6 {
        let condition = refusal(&daemon).await;
        assert_eq!(condition.reason, if calls == 6 { "PluginSuspended" } else { "ProviderFailed" }, "{condition:?}");
        assert!(condition.message.contains("crashed"), "{condition:?}");
        assert_eq!(plugin(&daemon, "broken").await.calls, calls.min(5));
    }
}

#[tokio::test]
async fn a_script_that_fails_does_not_suspend_the_plugin_that_sources_it() {
    let daemon = Daemon::start().await;
    fs::write(daemon.root().join("config/env-setup.sh"), "exit 3\n").unwrap();
    for failures in 1..=6 {
        assert_eq!(refusal(&daemon).await.reason, "ScriptFailed");
        let view = plugin(&daemon, "env-script").await;
        assert_eq!((view.failures, view.consecutive_failures, view.state), (failures, 0, PluginState::Loaded));
    }
}

#[tokio::test]
async fn what_the_administrator_says_is_read_only_from_what_is_roots_and_no_user_widens_it() {
    if require::root("to be the administrator").is_none() {
        return;
    }
    let mut daemon = Daemon::prepare();
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let system = daemon.system_config();
    let (admins, policy) = (system.join("agentd.toml"), system.join("conf.d/policy.toml"));
    fs::create_dir_all(system.join("plugins")).unwrap();
    fs::create_dir(system.join("conf.d")).unwrap();
    let component = giving("corp");
    fs::write(system.join("plugins/corp.wasm"), &component).unwrap();
    // A plugin of the same name in the user's directory, which the daemon searches later.
    place(&daemon, "corp", &giving("user"));
    fs::write(&admins, format!("[plugins.corp]\nsha256 = \"{}\"\ngrant.variables = [\"NAME\"]\n", sha256(&component)))
        .unwrap();
    fs::write(file(&daemon), with(&plain, "corp", "")).unwrap();
    daemon.run().await;
    assert_eq!(name_now(&daemon).await.as_deref(), Some("corp"));
    let corp = plugin(&daemon, "corp").await;
    assert_eq!(
        (corp.declared_in.as_ref(), corp.source),
        (Some(&admins), system.join("plugins/corp.wasm").display().to_string())
    );

    // A user's file cannot change the administrator's plugins, and cannot declare plugins if the administrator forbids
    // that. The daemon leaves out that part of the file, and applies the administrator's changes.
    let declared = place(&daemon, "own", &giving("own"));
    for (policies, text, words) in [
        ("[limits]\nqueued_turns = 3\n", "[plugins.corp]\ngrant = { script = [\"/**\"] }\n", [&file(&daemon), &admins]),
        ("[limits]\nqueued_turns = 4\n[plugin_policy]\nuser_plugins = false\n", &declared, [&file(&daemon), &system]),
    ] {
        fs::write(&policy, policies).unwrap();
        fs::write(file(&daemon), format!("{plain}{text}")).unwrap();
        let view = reload(&daemon).await;
        let [told] = view.mistakes.as_slice() else { panic!("{view:#?}") };
        assert_eq!(told.consequence, Consequence::LeftOut);
        assert!(words.iter().all(|path| told.to_string().contains(&path.display().to_string())), "{told}");
        assert!(view.changed.contains(&"limits.queued_turns".to_owned()), "{view:?}");
        let corp = plugin(&daemon, "corp").await;
        assert!(corp.grant.keys().eq(["variables"]), "{corp:?}");
        assert_eq!(name_now(&daemon).await, None, "what does not need it is launched");
    }
    assert_eq!(plugin(&daemon, "own").await.state, PluginState::Failed);
    // A user cannot grant a denied capability to a plugin of their own. The built-in plugin that uses the capability is
    // not the user's, so it keeps the capability.
    let component = include_bytes!("../../../plugins/dist/snapshot.wasm");
    let declared = place(&daemon, "own", component) + "grant.login-shell = true\n";
    fs::write(file(&daemon), with(&plain, "own", &declared)).unwrap();
    fs::write(&policy, "[plugin_policy]\ndeny = { login-shell = true }\n").unwrap();
    let told = mistake(&daemon, Consequence::LeftOut).await;
    assert!(told.key == "plugins.own" && told.message.contains("shell-environment"), "{told:?}");
    // A mistake in the user's file does not weaken the administrator's denial.
    fs::write(file(&daemon), with(&plain, "own", &declared) + "[plugin_policy]\ndeny = 1\n").unwrap();
    let told = reload(&daemon).await.mistakes;
    assert!(told.iter().any(|mistake| mistake.consequence == Consequence::FormerInForce), "{told:?}");
    assert_eq!(plugin(&daemon, "own").await.state, PluginState::Failed);
    fs::write(file(&daemon), with(&plain, "own", &declared)).unwrap();
    fs::write(&policy, "").unwrap();
    reload(&daemon).await;
    assert_eq!(plugin(&daemon, "own").await.state, PluginState::Loaded);

    // A file that other users can write is not the administrator's. A reload refuses the file, and after a start with
    // this file the daemon launches no session.
    fs::write(&policy, "").unwrap();
    fs::write(file(&daemon), &plain).unwrap();
    reload(&daemon).await;
    for path in [&admins, &policy, &system, &system.join("conf.d")] {
        let mode = fs::metadata(path).unwrap().permissions();
        std::os::unix::fs::chown(path, Some(4711), None).unwrap();
        let owner = refused(&daemon).await;
        assert!(owner.detail.contains(&format!("{path:?} belongs to user 4711")), "{owner:?}");
        std::os::unix::fs::chown(path, Some(0), None).unwrap();
        let wide = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(path, wide).unwrap();
        let written = refused(&daemon).await;
        assert!(written.detail.contains(&format!("{path:?} is writable by other users")), "{written:?}");
        fs::set_permissions(path, mode).unwrap();
    }
    reload(&daemon).await;
    daemon.terminate().await;
    std::os::unix::fs::chown(&policy, Some(4711), None).unwrap();
    daemon.run().await;
    let refused = daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await.problem();
    assert_eq!(refused.code, agentd_api::Code::ConfigurationInvalid);
    assert!(refused.detail.contains("belongs to user 4711"), "{refused:?}");
}
