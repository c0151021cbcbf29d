//! Compilation of plugins while sessions are launched. A session shows what its launch waits for, and a compilation
//! that failed because of a passing problem is tried again.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant, SystemTime};

use agentd_api::doctor::DoctorView;
use agentd_api::plugin::{PluginState, PluginView, ReloadView};
use agentd_api::prerequisite::Outcome;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::guest::Guest;
use crate::harness::digest::sha256;
use crate::harness::{Daemon, process, until};

/// Returns the fields of a component that takes seconds to compile and was never compiled before.
fn many_functions() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() % (1 << 62);
    let mut fields = format!("(func $unique (result i64) (i64.const {now}))");
    for function in 0..3000 {
        write!(fields, "(func $f{function} (param i64) (result i64) (local.get 0)").unwrap();
        for step in 0..400 {
            write!(fields, "(i64.mul (i64.const {step})) (i64.add (local.get 0))").unwrap();
        }
        fields.push(')');
    }
    fields
}

fn large() -> Vec<u8> {
    Guest { fields: &many_functions(), ..Guest::default() }.provider()
}

/// Returns a daemon whose pipeline ends with the plugin `corp`, which is this component.
fn prepared(component: &[u8]) -> Daemon {
    let daemon = Daemon::prepare();
    let file = daemon.root().join("config/corp.wasm");
    fs::write(&file, component).unwrap();
    let pin = sha256(component);
    let mut text = String::new();
    for plugin in ["snapshot", "whitelist", "env-script", "corp"] {
        writeln!(text, "[[environment.providers]]\nplugin = \"{plugin}\"").unwrap();
    }
    daemon
        .configure(|config| format!("{config}\n{text}[plugins.corp]\nfile = '{}'\nsha256 = '{pin}'\n", file.display()));
    daemon
}

/// Returns the compilers that the daemon has started.
fn compilers(daemon: &Daemon) -> Vec<u32> {
    let of_it = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent == Some(daemon.pid()) && arguments.split(|byte| *byte == 0).nth(1) == Some(b"compile")
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(of_it).collect()
}

fn environment(view: &SessionView) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == ConditionType::EnvironmentReady)
}

fn is_compiling(view: &SessionView) -> bool {
    environment(view).is_some_and(|condition| condition.reason == "CompilingPlugin")
}

async fn corp(daemon: &Daemon) -> PluginView {
    daemon.client.get("/v1/plugins/corp").await.expect(200)
}

/// Returns the compiler whose input is this component.
async fn compiler(daemon: &Daemon, component: &[u8]) -> u32 {
    let length = |pid: &u32| fs::metadata(format!("/proc/{pid}/fd/0")).map_or(0, |input| input.len());
    let mut found = None;
    until("the plugin is compiled", || {
        found = compilers(daemon).into_iter().find(|pid| length(pid) == component.len() as u64);
        found.is_some()
    })
    .await;
    found.expect("it was found")
}

#[tokio::test]
async fn a_launch_says_that_it_waits_for_a_compiler_and_one_that_was_killed_is_run_again() {
    let component = large();
    let mut daemon = prepared(&component);
    daemon.run().await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    let first = compiler(&daemon, &component).await;
    kill(process::pid(first), Signal::SIGSTOP).unwrap();
    let view = session.wait_for("it says what it waits for", is_compiling).await;
    let waiting = environment(&view).unwrap();
    assert_eq!((waiting.status, waiting.message.as_str()), (ConditionStatus::False, "compiling corp"));
    assert_eq!(view.status.phase, Phase::Preparing);
    assert_eq!(corp(&daemon).await.state, PluginState::Compiling);

    kill(process::pid(first), Signal::SIGKILL).unwrap();
    let killed = Instant::now();
    let settled = |view: &SessionView| matches!(view.status.phase, Phase::Idle | Phase::Failed);
    let view = session.wait_for("the launch has an end", settled).await;
    if view.status.phase == Phase::Failed {
        let failed = environment(&view).unwrap();
        assert_eq!(failed.reason, "PluginNotLoaded");
        assert!(
            failed.message.contains("SIGKILL") && failed.message.contains("a later launch tries it again"),
            "{failed:?}"
        );
        assert_eq!(corp(&daemon).await.state, PluginState::Failed);
    } else {
        // On a busy machine, this launch itself needs the plugin a second later.
        assert!(killed.elapsed() >= Duration::from_secs(1), "{:?}", killed.elapsed());
        session.stop().await;
    }

    // The first launch that is at least a second later compiles the plugin again.
    let begun = Instant::now();
    loop {
        let launches = session.view().await.status.launches;
        session.post("/resume", &json!({})).await;
        let view = session
            .wait_for("the launch comes to something", |view| view.status.launches > launches && settled(view))
            .await;
        if view.status.phase == Phase::Idle {
            break;
        }
        assert!(begun.elapsed() < crate::harness::LIMIT, "{view:#?}");
    }
    let plugin = corp(&daemon).await;
    assert_eq!((plugin.state, plugin.problem), (PluginState::Loaded, None));
    session.stop().await;
}

/// Stopped compilers, which are killed when this value is dropped.
struct Held(Vec<u32>);

impl Drop for Held {
    fn drop(&mut self) {
        for compiler in &self.0 {
            let _ = kill(process::pid(*compiler), Signal::SIGKILL); // it may have ended with its daemon
        }
    }
}

#[tokio::test]
async fn what_is_compiled_already_waits_for_no_compiler() {
    let right = Guest::default().provider();
    let mut daemon = prepared(&right);
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    daemon.terminate().await;
    // The plugin is loaded as soon as its file is correct again, while compilers run for other plugins.
    let corp_file = daemon.root().join("config/corp.wasm");
    fs::write(&corp_file, b"\0asm\x0d\0\x01\0 another").unwrap();
    // There are more of these plugins than compile at once, and no step of the pipeline uses them.
    for number in 0..4 {
        let component = large();
        let file = daemon.root().join(format!("config/a{number}.wasm"));
        fs::write(&file, &component).unwrap();
        let pin = sha256(&component);
        daemon.configure(|config| {
            format!("{config}\n[plugins.a{number}]\nfile = '{}'\nsha256 = '{pin}'\n", file.display())
        });
    }
    daemon.run().await;
    until("two are compiled", || compilers(&daemon).len() == 2).await;
    let held = Held(compilers(&daemon));
    for compiler in &held.0 {
        kill(process::pid(*compiler), Signal::SIGSTOP).unwrap();
    }
    fs::write(&corp_file, right).unwrap();
    session.resume().await;
    assert_eq!(corp(&daemon).await.state, PluginState::Loaded);
    assert_eq!(compilers(&daemon), held.0, "they are still at it");
}

#[tokio::test]
async fn a_plugin_with_the_wrong_file_is_loaded_when_its_file_has_changed() {
    let right = Guest::default().provider();
    let mut daemon = prepared(&right);
    let file = daemon.root().join("config/corp.wasm");
    fs::write(&file, b"\0asm\x0d\0\x01\0 another").unwrap();
    daemon.run().await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let failed = environment(&view).unwrap();
    assert!(failed.message.contains("is not the pinned one"), "{failed:?}");
    assert!(!failed.message.contains("tries it again"), "{failed:?}");
    assert_eq!(corp(&daemon).await.problem.unwrap().code, "plugin-not-pinned");

    fs::write(&file, right).unwrap();
    session.resume().await;
    assert_eq!(corp(&daemon).await.state, PluginState::Loaded);
}

#[tokio::test]
async fn a_reload_waits_for_a_compiler_within_a_bound_and_names_what_is_compiled() {
    let daemon = Daemon::start().await;
    let config = daemon.root().join("config/agentd.toml");
    let plain = fs::read_to_string(&config).unwrap();
    let declare = |component: &[u8]| {
        let file = daemon.root().join("config/corp.wasm");
        fs::write(&file, component).unwrap();
        let declared = format!("[plugins.corp]\nfile = '{}'\nsha256 = '{}'\n", file.display(), sha256(component));
        fs::write(&config, format!("{plain}\n{declared}")).unwrap();
    };
    let reload = async || daemon.client.call("POST", "/v1/reload", "").await.expect::<ReloadView>(200);
    let component = large();
    declare(&component);
    let (view, first) = tokio::join!(reload(), async {
        let first = compiler(&daemon, &component).await;
        kill(process::pid(first), Signal::SIGSTOP).unwrap();
        first
    });
    assert_eq!((view.compiling, view.mistakes), (vec!["corp".to_owned()], vec![]));
    kill(process::pid(first), Signal::SIGKILL).unwrap();
    until("the compiler is gone", || compilers(&daemon).is_empty()).await;
}

#[tokio::test]
async fn a_plugin_that_a_reload_could_not_load_and_a_launch_could_is_no_mistake_any_more() {
    let right = Guest::default().provider();
    let mut daemon = prepared(&right);
    daemon.run().await;
    let file = daemon.root().join("config/corp.wasm");
    fs::write(&file, b"another").unwrap();
    let view: ReloadView = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
    assert!(view.mistakes.len() == 1 && view.mistakes[0].key == "plugins.corp", "{view:?}");
    fs::write(&file, &right).unwrap();
    daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(corp(&daemon).await.state, PluginState::Loaded);
    let doctor: DoctorView = daemon.client.get("/v1/doctor").await.expect(200);
    let check = doctor.checks.iter().find(|check| check.name == "configuration").unwrap();
    assert_eq!(check.outcome, Outcome::Pass, "{check:?}");
}

#[tokio::test]
async fn a_prerequisite_whose_plugin_is_compiled_holds_up_no_session_that_does_not_need_it() {
    let component = Guest { fields: &many_functions(), ..Guest::default() }.prerequisite();
    let mut daemon = Daemon::prepare();
    let file = daemon.root().join("config/slow.wasm");
    fs::write(&file, &component).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    daemon.configure(|config| {
        format!(
            "{config}\n[prerequisites.server]\nplugin = \"tcp\"\nrequired_by = \"all\"\ninterval = \"200ms\"\n\
             settings = {{ host = \"127.0.0.1\", port = {port} }}\n"
        )
    });
    daemon.run().await;
    // The plugins of the pipeline are compiled first.
    daemon.session(&daemon.scripted(&[])).await;
    daemon.configure(|config| {
        let declared =
            format!("[plugins.slow-check]\nfile = '{}'\nsha256 = '{}'\n", file.display(), sha256(&component));
        format!("{config}\n{declared}[prerequisites.slow]\nplugin = \"slow-check\"\n")
    });
    let (view, stopped) = tokio::join!(daemon.client.call("POST", "/v1/reload", ""), async {
        let stopped = compiler(&daemon, &component).await;
        kill(process::pid(stopped), Signal::SIGSTOP).unwrap();
        stopped
    });
    assert_eq!(view.expect::<ReloadView>(200).compiling, ["slow-check"]);
    let session = daemon.session(&daemon.scripted(&[])).await;
    let met = |view: &SessionView| {
        let mut conditions = view.status.conditions.iter();
        conditions
            .find(|one| one.kind == ConditionType::PrerequisitesMet)
            .is_some_and(|one| one.status == ConditionStatus::True)
    };
    assert!(met(&session.view().await));
    // The daemon continues to check the session's prerequisites meanwhile.
    drop(listener);
    session.wait_for("the server is missed", |view| !met(view)).await;
    kill(process::pid(stopped), Signal::SIGKILL).unwrap();
    session.stop().await;
}
