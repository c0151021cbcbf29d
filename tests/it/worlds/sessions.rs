//! Sessions that need the VPN: sessions that wait for it, a session that loses it, and fifty sessions that start at
//! once.

use std::time::{Duration, Instant, SystemTime};

use agentd_api::plugin::PluginView;
use agentd_api::prerequisite::{CheckReport, Outcome, PrerequisiteList, PrerequisiteView};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use agentd_api::{Body, Code, Event};
use tokio::task::JoinSet;

use super::stage::{SLACK, Stage, declared, fact};
use super::world::{HOST, INSIDE_HOST, Manner, Peer, World};
use crate::harness::ctl::ctl;
use crate::harness::{Client, Daemon, Response, Session, within};
use crate::prerequisites_ctl::words;

const ALL: &str = "required_by = \"all\"";
const DISCONNECTED: &str = "vpn (fail): the address of git.corp.test is unavailable: the interface vpn0 is not \
    connected; connect the VPN: its interface is vpn0";

/// Declares the `vpn` prerequisite with the plugin's default times, unless `keys` sets others.
fn vpn(more: &str, keys: &str) -> String {
    let settings = format!("host = \"{HOST}\", network = [\"10.99.0.0/16\"], interface = \"vpn0\"{more}");
    declared("vpn", "vpn", &settings, &format!("{ALL}\n{keys}"))
}

fn condition(view: &SessionView) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == ConditionType::PrerequisitesMet)
}

fn met(view: &SessionView) -> Condition {
    condition(view).cloned().expect("it is looked at")
}

fn passed(view: &SessionView) -> bool {
    condition(view).is_some_and(|condition| condition.reason == "Passed")
}

async fn waiting(stage: &Stage, seconds: &str) -> Session {
    let spec = stage.daemon.scripted(&[]);
    let path = format!("/v1/sessions?wait_for_prerequisites={seconds}");
    let view: SessionView = stage.daemon.client.post(&path, &spec).await.expect(202);
    let session = Session::new(view.id, stage.daemon.client.clone(), stage.daemon.state());
    session.wait_for_phase(Phase::Waiting).await;
    session
}

async fn resume(client: &Client, session: &str) -> Response {
    client.call("POST", &format!("/v1/sessions/{session}/resume"), "").await
}

#[tokio::test]
async fn a_session_that_waits_starts_within_two_seconds_of_the_vpn_coming_up() {
    starts_when_the_vpn_comes_up(false).await;
}

#[tokio::test]
async fn a_session_that_waits_starts_as_soon_where_another_way_leads_out_and_the_names_are_behind_the_vpn() {
    starts_when_the_vpn_comes_up(true).await;
}

/// With `home`, packets for the name server leave by another route and are lost, so the check that runs meanwhile ends
/// only at its deadline.
async fn starts_when_the_vpn_comes_up(home: bool) {
    let Some(stage) = Stage::new(|_| vpn("", "cache = \"0s\"")).await else { return };
    let _host = stage.world.inside_host();
    stage.world.disconnect();
    if !home {
        stage.world.home(false);
    }
    let session = waiting(&stage, "60").await;
    let condition = met(&session.view().await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Waiting"));
    assert!(condition.message.starts_with(&format!("{DISCONNECTED}; waiting until 20")), "{condition:?}");
    let up = Instant::now();
    stage.world.connect().await;
    session.wait_for("it is waited for no longer", |view| view.status.phase != Phase::Waiting).await;
    let took = up.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(met(&session.view().await).reason, "Passed");
    stage.pulse.judge();
}

#[tokio::test]
async fn a_wait_that_runs_out_says_what_was_still_missing_of_the_real_things() {
    let config = || {
        let tcp = format!("host = \"{INSIDE_HOST}\", port = 22, banner = \"SSH-2\", timeout = \"1s\"");
        vpn(", timeout = \"1s\"", "") + &declared("board", "tcp", &tcp, ALL)
    };
    let Some(stage) = Stage::new(|_| config()).await else { return };
    let _host = stage.world.inside_host();
    let _board = Peer::listen(&stage.world.inside, INSIDE_HOST, 22, Manner::IsSilent);
    stage.world.disconnect();
    let session = waiting(&stage, "4").await;
    assert!(met(&session.view().await).message.contains(DISCONNECTED));
    // The VPN is connected, but another requirement is still missing.
    stage.world.connect().await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let condition = met(&view);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "WaitTimedOut"));
    let missing = "the wait is over, and still missing is board (fail): 10.99.1.1 port 22 accepts the \
        connection but sends nothing within 1 s; ";
    assert!(condition.message.starts_with(missing) && !condition.message.contains("vpn"), "{condition:?}");
    assert_eq!(view.status.message, Some(condition.message));
    stage.pulse.judge();
}

#[tokio::test]
async fn a_vpn_that_drops_in_mid_session_is_seen_everywhere_within_its_interval_and_refuses_the_next_resume() {
    const INTERVAL: Duration = Duration::from_secs(2);
    const CHECK: Duration = Duration::from_secs(1);
    let config = vpn(
        ", timeout = \"1s\"",
        "interval = \"2s\"\ncache = \"0s\"\nremedy = \"connect the VPN with `nmcli con up corp`\"",
    );
    let Some(stage) = Stage::new(|_| config).await else { return };
    let _host = stage.world.inside_host();
    let session = stage.daemon.session(&SessionSpec { name: "fix".parse().ok(), ..stage.daemon.scripted(&[]) }).await;
    let mut events = session.events("after=0").await;
    let agent = session.view().await.status.agent_pid;
    stage.world.disconnect();
    let begun = Instant::now();
    let is_change = |event: &Event| matches!(event.body, Body::PrerequisitesChanged(_));
    let seen = events.until("the drop is in the events", is_change).await;
    let took = begun.elapsed();
    assert!(took < INTERVAL + CHECK + SLACK, "{took:?}");
    let Some(Body::PrerequisitesChanged(changed)) = seen.last().map(|event| event.body.clone()) else { unreachable!() };
    let report = &changed.reports[0];
    assert_eq!((changed.reports.len(), report.name.as_str(), report.outcome), (1, "vpn", Outcome::Fail));
    assert_eq!(fact(report, "interface vpn0"), "down, 10.99.0.2/16");
    let told = "vpn (fail): the address of git.corp.test is unavailable: the interface vpn0 is not connected; \
                connect the VPN with `nmcli con up corp`";
    // The daemon writes the condition and the event in the same step.
    let condition = met(&session.view().await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "PrerequisiteFailed"));
    assert_eq!(condition.message, told);
    let (status, table, _) = ctl(&stage.daemon, &["ls"]).await.parts();
    let row = words(table.lines().nth(1).unwrap_or_default());
    assert!(status == Some(0) && row.contains(" fix ") && row.contains(" idle ") && row.ends_with(told), "{table}");

    // The session and its agent still run.
    assert_eq!(session.turn("say still here").await.text, "still here");
    assert_eq!(session.view().await.status.agent_pid, agent);
    session.stop().await;
    let problem = resume(&stage.daemon.client, session.id.as_str()).await.problem();
    assert_eq!((problem.status, problem.code), (409, Code::PrerequisitesNotMet));
    assert_eq!(problem.prerequisites[0].remedy.as_deref(), Some("connect the VPN with `nmcli con up corp`"));
    assert_eq!(fact(&problem.prerequisites[0], "name servers"), "10.99.0.53");
    let (status, _, refusal) = ctl(&stage.daemon, &["resume", "fix"]).await.parts();
    assert!(status == Some(4) && refusal.contains("remedy: connect the VPN with `nmcli con up corp`"), "{refusal}");
    assert_eq!(session.view().await.status.launches, 1, "nothing was begun");

    stage.world.connect().await;
    within("it is resumed when the VPN is back", async {
        while resume(&stage.daemon.client, session.id.as_str()).await.status != 202 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(session.turn("remember").await.text.matches("say still here").count(), 1);
    stage.pulse.judge();
}

#[tokio::test]
async fn fifty_sessions_that_are_resumed_at_once_ask_each_server_once() {
    const SESSIONS: usize = 50;
    let cache = "cache = \"10m\"\ninterval = \"0s\"";
    let config = {
        let board = format!("host = \"{INSIDE_HOST}\", port = 22, banner = \"SSH-2\"");
        "[limits]\nactive_sessions = 60\n".to_owned()
            + &vpn("", cache)
            + &declared("board", "tcp", &board, &format!("{ALL}\n{cache}"))
            + &declared("licences", "license-server", "variables = [\"LM_LICENSE_FILE\"]", &format!("{ALL}\n{cache}"))
    };
    // This test has no pulse, because fifty agents that start at once overload the machine.
    let Some(world) = World::new().await else { return };
    let daemon = world.daemon(&config).await;
    let servers = world.licence_servers(1);
    let (host, board) =
        (world.inside_host(), Peer::listen(&world.inside, INSIDE_HOST, 22, Manner::Says("SSH-2.0-x\r\n")));
    // Fifty sessions fail at their start, as after a suspend that has disconnected the VPN.
    world.disconnect();
    world.home(false);
    let spec = SessionSpec {
        env_setup: Some("export LM_LICENSE_FILE=27000@lic1.corp.test".to_owned()),
        ..daemon.scripted(&[])
    };
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(daemon.create(&spec).await);
    }
    for session in &sessions {
        session.wait_for_phase(Phase::Failed).await;
    }
    world.connect().await;
    // The daemon uses a failed result for a quarter of a second, so the test waits until the results are older.
    within("what was found is old", async {
        let is_old = |view: &PrerequisiteView| {
            let age = |report: &CheckReport| SystemTime::from(report.checked_at).elapsed().unwrap_or_default();
            view.report.as_ref().is_none_or(|report| age(report) > Duration::from_millis(300))
        };
        let found = async || daemon.client.get("/v1/prerequisites").await.expect::<PrerequisiteList>(200).prerequisites;
        while !found().await.iter().all(is_old) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let asked = || [&host, &board, &servers[0]].map(Peer::accepted);
    assert_eq!(asked(), [0; 3]);
    let before = calls(&daemon).await;
    let mut asking = JoinSet::new();
    for session in &sessions {
        let (client, id) = (daemon.client.clone(), session.id.clone());
        asking.spawn(async move { resume(&client, id.as_str()).await.status.as_u16() });
    }
    assert_eq!(asking.join_all().await, [202; SESSIONS]);
    for session in &sessions {
        session.wait_for("what it needs is there", passed).await;
    }
    assert_eq!((asked(), calls(&daemon).await), ([1; 3], before.map(|calls| calls + 1)));
}

/// Returns the number of calls of each plugin.
async fn calls(daemon: &Daemon) -> [u64; 3] {
    let mut calls = [0; 3];
    for (calls, plugin) in calls.iter_mut().zip(["vpn", "tcp", "license-server"]) {
        *calls = daemon.client.get(&format!("/v1/plugins/{plugin}")).await.expect::<PluginView>(200).calls;
    }
    calls
}
