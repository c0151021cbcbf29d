//! Agents that are kept warm: started and initialised before their session is created.

use std::fs;
use std::path::PathBuf;

use agentd_api::agents::{Catalogue, WarmView};
use agentd_api::session::{Phase, SessionSpec, SessionView, WholeList};
use agentd_api::{Body, Event};
use nix::sys::signal::{Signal, kill};

use crate::faults::{passed, set};
use crate::harness::ctl::ctl;
use crate::harness::openmetrics::page_with;
use crate::harness::process::Identity;
use crate::harness::session::Session;
use crate::harness::{Daemon, process, scripted_agent, until, within};

/// An agent that waits for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Warm {
    agent: Identity,
    keeper: u32,
    session: String,
}

/// Prepares a daemon with the agent `w`, which is kept warm.
fn prepare(flags: &[&str], keys: &str) -> Daemon {
    let daemon = Daemon::prepare();
    let (pids, store) = (daemon.pid_file().display().to_string(), daemon.root().display().to_string());
    let program = scripted_agent();
    let command = [&[program.to_str().unwrap(), "--pidfile", &pids, "--store", &store], flags].concat();
    daemon.configure(|config| format!("{config}\n[agents.w]\nlike = \"opencode\"\ncommand = {command:?}\n{keys}\n"));
    daemon
}

async fn start(keys: &str) -> Daemon {
    let mut daemon = prepare(&[], keys);
    daemon.run().await;
    daemon
}

fn spec(daemon: &Daemon) -> SessionSpec {
    SessionSpec { agent: Some("w".parse().unwrap()), ..SessionSpec::new(daemon.work()) }
}

/// Returns the agents below keepers whose session does not exist.
fn warm_agents(daemon: &Daemon) -> Vec<Warm> {
    let session = |keeper: &u32| {
        let line = fs::read(format!("/proc/{keeper}/cmdline")).unwrap_or_default();
        let mut arguments = line.split(|&byte| byte == 0).skip_while(|argument| *argument != b"--session");
        Some(String::from_utf8_lossy(arguments.nth(1)?).into_owned())
    };
    let keepers = process::running(daemon.root(), "agentd-keeper", Some("hold")).into_iter();
    let keepers: Vec<(u32, String)> = keepers.filter_map(|keeper| Some((keeper, session(&keeper)?))).collect();
    let agents = process::running(daemon.root(), "scripted-agent", None).into_iter();
    let of = |agent: u32| {
        let parent = process::parent(agent)?;
        let (keeper, session) = keepers.iter().find(|(keeper, _)| *keeper == parent)?;
        let is_warm = !daemon.state().join("sessions").join(session).exists();
        let agent = Identity::of(agent)?;
        is_warm.then(|| Warm { agent, keeper: *keeper, session: session.clone() })
    };
    agents.filter_map(of).collect()
}

/// Returns the state of the agent `w`.
async fn view(daemon: &Daemon) -> WarmView {
    let list: Catalogue = daemon.client.get("/v1/catalogue?agent=w").await.expect(200);
    list.agents[0].warm.clone().expect("it is kept warm")
}

/// Waits until this many agents are ready, and no more are being started. Returns them.
async fn ready(daemon: &Daemon, wanted: usize) -> Vec<Warm> {
    within("the agents are warm", async {
        while !matches!(view(daemon).await, WarmView { ready, starting: 0, .. } if ready == wanted) {}
    })
    .await;
    let found = warm_agents(daemon);
    assert_eq!(found.len(), wanted, "{found:?}");
    found
}

/// Creates a session, whose launch is followed by the start of a warm agent. Returns that agent.
async fn first(daemon: &Daemon) -> (Session, Warm) {
    let session = daemon.session(&spec(daemon)).await;
    let warm = ready(daemon, 1).await.remove(0);
    (session, warm)
}

/// Reports whether the agent was kept warm, and asserts that it was initialised once.
fn was_warm(journal: &[Event]) -> bool {
    let asked = |event: &&Event| matches!(&event.body, Body::AgentIn(line) if line.get().contains("\"initialize\""));
    assert_eq!(journal.iter().filter(asked).count(), 1);
    let started = journal.iter().find_map(|event| match &event.body {
        Body::AgentStarted(started) => Some(started.warm),
        _ => None,
    });
    started.expect("an agent was started")
}

/// Waits until nothing is left of an agent that was kept warm.
async fn is_gone(daemon: &Daemon, warm: &Warm) {
    process::gone(&[warm.agent.pid, warm.keeper]).await;
    let runtime = runtime(daemon, warm);
    until("the runtime directory is removed", || !runtime.exists()).await;
    assert!(!daemon.state().join("sessions").join(&warm.session).exists());
}

fn runtime(daemon: &Daemon, warm: &Warm) -> PathBuf {
    daemon.root().join("run").join(&warm.session)
}

async fn reload(daemon: &Daemon, change: impl FnOnce(String) -> String) {
    daemon.configure(change);
    let _: serde_json::Value = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
}

#[tokio::test]
async fn a_new_session_gets_the_agent_that_was_started_before_it_and_another_follows() {
    let mut daemon = start("warm = 1").await;
    let (cold, warm) = first(&daemon).await;
    assert!(!was_warm(&cold.journal()));
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert_eq!(list.sessions.len(), 1, "no session has the warm agent");
    let said = ctl(&daemon, &["agent", "ls"]).await;
    let row = said.out.lines().find(|line| line.starts_with("w ")).unwrap_or_else(|| panic!("{said:#?}"));
    assert!(said.out.lines().next().unwrap().contains("WARM") && row.contains("1 of 1"), "{said:#?}");
    let said = ctl(&daemon, &["agent", "show", "w"]).await;
    assert!(said.out.contains("warm           1 of 1\n"), "{said:#?}");

    let session = daemon.session(&spec(&daemon)).await;
    let seen = session.view().await;
    assert_eq!((seen.id.as_str(), seen.status.agent_pid), (warm.session.as_str(), Some(warm.agent.pid)));
    assert_eq!(seen.status.keeper_pid, Some(warm.keeper));
    assert_eq!(Identity::of(warm.agent.pid), Some(warm.agent), "the process is the same");
    assert!(was_warm(&session.journal()));
    assert_eq!(session.turn("say hello").await.text, "hello");
    page_with(&daemon.client, "the launch is counted", |page| {
        page.value("agentd_warm_agent_launches_total{outcome=\"used\"}") == Some(1.0)
    })
    .await;
    // Another follows, which a stop of the daemon ends. The session continues.
    let next = ready(&daemon, 1).await.remove(0);
    assert_ne!(next, warm);
    daemon.terminate().await;
    process::gone(&[next.agent.pid, next.keeper]).await;
    daemon.run().await;
    assert_eq!(session.turn("say again").await.text, "again");
    assert_eq!(session.view().await.status.agent_pid, Some(warm.agent.pid));
    is_gone(&daemon, &next).await;
}

#[tokio::test]
async fn an_agent_is_never_given_to_another_environment() {
    let daemon = start("warm = 1").await;
    let (_, warm) = first(&daemon).await;
    // Sessions with other variables, another directory or a name do not get the agent, which is replaced.
    let other = daemon.root().join("other");
    fs::create_dir(&other).unwrap();
    let mut named = spec(&daemon);
    named.name = Some("mine".parse().unwrap());
    let session = daemon.session(&named).await;
    assert_ne!(session.view().await.status.agent_pid, Some(warm.agent.pid));
    assert!(session.turn("env").await.text.contains("\"AGENTD_SESSION_NAME\":\"mine\""));
    assert_eq!(ready(&daemon, 1).await, std::slice::from_ref(&warm), "it still fits a session without a name");
    let elsewhere = daemon.session(&SessionSpec { directory: other, ..spec(&daemon) }).await;
    assert_ne!(elsewhere.view().await.status.agent_pid, Some(warm.agent.pid));
    is_gone(&daemon, &warm).await;

    // The agent of an earlier environment is ended when a launch builds another one.
    let warm = ready(&daemon, 1).await.remove(0);
    let script = daemon.root().join("config/env-setup.sh");
    fs::write(&script, "export SPECIAL=new\n").unwrap();
    let other = daemon.root().join("other");
    let session = daemon.session(&SessionSpec { directory: other, ..spec(&daemon) }).await;
    let seen = session.view().await;
    assert_eq!(seen.id.as_str(), warm.session, "the session got the id of the warm agent");
    assert_ne!(seen.status.agent_pid, Some(warm.agent.pid));
    assert!(!process::is_alive(warm.agent.pid) && !was_warm(&session.journal()));
    assert!(session.turn("env").await.text.contains("\"SPECIAL\":\"new\""));
    page_with(&daemon.client, "the launch is counted", |page| {
        page.value("agentd_warm_agent_launches_total{outcome=\"not-used\"}") == Some(1.0)
    })
    .await;
    let warm = ready(&daemon, 1).await.remove(0);
    assert_ne!(warm.session, session.id.as_str());
}

#[tokio::test]
async fn an_agent_that_no_session_needs_is_ended_after_its_time_by_a_reload_and_by_a_drain() {
    let daemon = start("warm = 1\nwarm_idle = \"1s\"").await;
    let session = daemon.session(&spec(&daemon)).await;
    until("an agent is warm", || warm_agents(&daemon).len() == 1).await;
    let warm = warm_agents(&daemon).remove(0);
    is_gone(&daemon, &warm).await;
    assert_eq!(view(&daemon).await, WarmView { wanted: 1, ..WarmView::default() });

    reload(&daemon, |config| config.replace("\"1s\"", "\"10min\"")).await;
    daemon.session(&spec(&daemon)).await;
    let warm = ready(&daemon, 1).await.remove(0);
    reload(&daemon, |config| config.replace("warm = 1", "warm = 0")).await;
    is_gone(&daemon, &warm).await;
    daemon.session(&spec(&daemon)).await;
    reload(&daemon, |config| config.replace("warm = 0", "warm = 2")).await;
    assert_eq!(warm_agents(&daemon), [], "a reload starts none");

    daemon.session(&spec(&daemon)).await;
    let warm = ready(&daemon, 1).await.remove(0);
    let _: serde_json::Value = daemon.client.call("POST", "/v1/drain", "").await.expect(202);
    is_gone(&daemon, &warm).await;
    session.wait_for_phase(Phase::Stopped).await;
}

#[tokio::test]
async fn nothing_is_left_of_a_warm_agent_when_the_daemon_its_keeper_or_itself_is_killed() {
    let mut daemon = prepare(&["--ignore-eof", "--ignore-sigterm"], "warm = 1");
    daemon.run().await;
    let (session, warm) = first(&daemon).await;
    daemon.kill9();
    process::gone(&[warm.agent.pid, warm.keeper]).await;
    daemon.run().await;
    is_gone(&daemon, &warm).await;
    assert_eq!(session.turn("say hello").await.text, "hello");

    for is_keeper in [false, true] {
        daemon.session(&spec(&daemon)).await;
        let warm = ready(&daemon, 1).await.remove(0);
        process::kill9(if is_keeper { warm.keeper } else { warm.agent.pid });
        is_gone(&daemon, &warm).await;
        ready(&daemon, 0).await;
        let session = daemon.session(&spec(&daemon)).await;
        assert!(!was_warm(&session.journal()));
        ready(&daemon, 1).await;
    }
    // The daemon and the keeper die at once.
    let warm = warm_agents(&daemon).remove(0);
    kill(process::pid(warm.keeper), Signal::SIGKILL).unwrap();
    daemon.kill9();
    daemon.run().await;
    is_gone(&daemon, &warm).await;
}

#[tokio::test]
async fn two_sessions_at_once_never_get_the_same_agent() {
    let daemon = start("warm = 2").await;
    let (_, warm) = first(&daemon).await;
    let spec = spec(&daemon);
    let (one, other) = tokio::join!(daemon.session(&spec), daemon.session(&spec));
    let pids = [one.view().await.status.agent_pid, other.view().await.status.agent_pid];
    assert_eq!(pids.iter().filter(|pid| **pid == Some(warm.agent.pid)).count(), 1, "{pids:?} {warm:?}");
    assert_eq!([was_warm(&one.journal()), was_warm(&other.journal())].iter().filter(|is_warm| **is_warm).count(), 1);
    assert_eq!((one.turn("say 1").await.text, other.turn("say 2").await.text), ("1".to_owned(), "2".to_owned()));
    // Each launch is followed by one more, up to the number of the configuration.
    ready(&daemon, 2).await;
    daemon.session(&spec).await;
    ready(&daemon, 2).await;
}

/// Kills at each point of a launch that has a warm agent. The session is ready in the end, with one agent.
#[tokio::test]
async fn a_launch_with_a_warm_agent_survives_a_kill_at_every_point() {
    for point in [
        "daemon.create.journalled",
        "daemon.bring-up.environment",
        "keeper.start.locked",
        "keeper.start.listening",
        "daemon.launch.linked",
        "keeper.launch.before",
        "keeper.launch.spawned",
        "daemon.launch.done",
    ] {
        for victim in ["daemon", "keeper", "agent"] {
            let mut daemon = prepare(&[], "warm = 1");
            fs::create_dir_all(daemon.state().join("faults")).unwrap();
            daemon.run().await;
            let (_, warm) = first(&daemon).await;
            set(&daemon.state().join("faults").join(point), "pause");
            let (client, wanted) = (daemon.client.clone(), serde_json::to_vec(&spec(&daemon)).unwrap());
            // The answer may get lost with the daemon.
            let created = tokio::spawn(async move { client.try_call("POST", "/v1/sessions", wanted).await });
            let hit = passed(&daemon, point).await;
            match victim {
                "daemon" => {
                    daemon.kill9();
                    fs::remove_file(&hit).ok();
                    fs::remove_file(daemon.state().join("faults").join(point)).ok();
                    daemon.run().await;
                }
                "keeper" => kill(process::pid(warm.keeper), Signal::SIGKILL).unwrap(),
                _ => kill(process::pid(warm.agent.pid), Signal::SIGKILL).unwrap(),
            }
            fs::remove_file(&hit).ok();
            let _ = created.await;
            let name = format!("{point}/{victim}");
            let session = Session::new(warm.session.parse().unwrap(), daemon.client.clone(), daemon.state());
            let seen = session
                .wait_for(&name, |view| matches!(view.status.phase, Phase::Idle | Phase::Failed | Phase::Stopped))
                .await;
            if seen.status.phase == Phase::Failed {
                // A killed agent or keeper fails a launch, as without a warm agent. A resume helps.
                assert_ne!(victim, "daemon", "{name}: {seen:#?}");
                let resume = session.path("/resume?wait=60");
                let _: SessionView = daemon.client.call("POST", &resume, "").await.expect(202);
            }
            assert_eq!(session.turn("say hello").await.text, "hello", "{name}");
            let pid = session.view().await.status.agent_pid.unwrap();
            let marked = process::running(daemon.root(), "scripted-agent", None).into_iter();
            let mark = format!("AGENTD_SESSION={}", session.id);
            let is_marked = |agent: &u32| {
                let environment = fs::read(format!("/proc/{agent}/environ")).unwrap_or_default();
                environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
            };
            assert_eq!(marked.filter(is_marked).collect::<Vec<_>>(), [pid], "{name}");
            session.journal();
        }
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_a_mistake_of_the_configuration() {
    let mut daemon = start("").await;
    for (agent, keys, expected) in [
        ("like = \"opencode\"", "warm = 5", "set a value from 0 to 4"),
        ("like = \"opencode\"", "warm = 1\nwarm_idle = \"0s\"", "agents.v.warm_idle is 0"),
        ("like = \"opencode\"", "warm = 1\nisolation = \"guard\"", "isolation"),
        ("like = \"kiro\"", "warm = 1", "set like to one of claude, gemini, opencode"),
        ("command = [\"/bin/cat\"]", "warm = 1", "does not know that this agent can begin a session"),
    ] {
        daemon.configure(|config| {
            let before = config.split("\n[agents.v]").next().unwrap().to_owned();
            format!("{before}\n[agents.v]\n{agent}\n{keys}\n")
        });
        let answer = daemon.client.call("POST", "/v1/reload", "").await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(text.contains(expected) && text.contains("agents.v.warm"), "{keys}: {text}");
    }
    daemon.terminate().await;
}
