//! A keeper whose agent runs on a place.

use agentd_api::event::{PlaceChanged, PlaceState};
use agentd_keeper::protocol::{Enclosure, Limits, PlaceLine};

use super::place::{direct, through};
use super::*;

fn placed(line: PlaceLine, text: &str) -> LaunchRecord {
    LaunchRecord { place: Some(Box::new(line)), ..script(text) }
}

fn changes(journal: &[Event]) -> Vec<PlaceChanged> {
    let changed = |event: &Event| match &event.body {
        Body::PlaceChanged(changed) => Some((**changed).clone()),
        _ => None,
    };
    journal.iter().filter_map(changed).collect()
}

/// Waits until the agent runs on its place.
fn wait_until_it_runs(keeper: &Keeper) {
    eventually("the agent runs", || changes(&keeper.journal()).first().map(|changed| changed.state));
}

fn launch(keeper: &Keeper, record: LaunchRecord) -> (Daemon, FromKeeper) {
    let (mut daemon, _) = keeper.connect();
    let answer = daemon.call(&ToKeeper::Launch(Box::new(record)));
    (daemon, answer)
}

#[test]
fn an_agent_on_a_place_has_the_life_of_a_local_one() {
    let record = LaunchRecord {
        program: "sh".into(),
        limits: Limits { memory_bytes: Some(1), processes: Some(1) },
        ..placed(
            through("echo motd; \"$KEEPER\" enter"),
            r#"echo "{\"session\":\"$AGENTD_SESSION\"}"; sleep 600 & while read x; do echo "$x"; done; exit 3"#,
        )
    };
    let mut record = record;
    record.environment.extend(variables(&[("AGENTD_SESSION", b"s1")]));
    let (keeper, mut daemon) = Keeper::with(record);
    assert_eq!(keeper.wait_for_out(1), [r#"{"session":"s1"}"#]);
    daemon.say(&json!({"ping": 1}));
    assert_eq!(keeper.wait_for_out(2)[1], r#"{"ping":1}"#);
    daemon.stop(PATIENT);
    let (exited, journal) = keeper.ended();
    assert_eq!((exited.status, exited.killed, exited.requested), (Some(3), 1, true));
    assert_eq!((exited.reason, exited.exec_error), (None, None));
    let kinds: Vec<_> = journal.iter().map(|event| event.body.kind()).collect();
    let expected =
        ["keeper.started", "agent.started", "place.changed", "agent.out", "agent.in", "agent.out", "agent.exited"];
    assert_eq!(kinds, expected);
    let Body::AgentStarted(started) = &journal[1].body else { panic!("{:?}", journal[1]) };
    assert_eq!((started.place.as_deref(), started.command[0].as_str()), (Some("lab"), "sh"));
    let [changed] = &changes(&journal)[..] else { panic!("one change") };
    assert_eq!((changed.launch, changed.place.as_str(), changed.state), (1, "lab", PlaceState::Running));
    assert_eq!(changed.host.as_ref().unwrap().uid, nix::unistd::geteuid().as_raw());
}

#[test]
fn an_agent_that_ends_by_itself_on_a_place_has_its_own_status() {
    let (keeper, _daemon) = Keeper::with(placed(direct(), "echo 1; echo err >&2; kill -6 $$"));
    let (exited, journal) = keeper.ended();
    assert_eq!((exited.status, exited.signal, exited.requested), (None, Some(6), false));
    let stderr = |event: &Event| matches!(&event.body, Body::AgentStderr(text) if text.text.as_bytes() == b"err");
    assert!(journal.iter().any(stderr));
}

#[test]
fn a_launch_that_the_place_refuses_has_failed() {
    for (record, words) in [
        (
            LaunchRecord { directory: "/no/dir".into(), ..placed(direct(), "") },
            "cannot enter the directory \"/no/dir\"",
        ),
        (LaunchRecord { program: "no-such".into(), ..placed(direct(), "") }, "cannot find the program \"no-such\""),
        (placed(through("echo >&2 'no route'; exit 255"), ""), "its client ended with status 255: no route"),
        (placed(PlaceLine { client: strings(&["/no/ssh"]), ..direct() }, ""), "cannot execute \"/no/ssh\""),
    ] {
        let keeper = Keeper::start();
        let (_daemon, answer) = launch(&keeper, record);
        assert!(matches!(answer, FromKeeper::Launched { .. }), "{answer:?}");
        let (exited, journal) = keeper.ended();
        let error = exited.exec_error.clone().unwrap();
        assert!(error.contains(words) && error.contains("place \"lab\""), "{error}");
        assert_eq!((exited.status, exited.signal, exited.reason), (None, None, None));
        assert!(changes(&journal).is_empty());
    }
    let keeper = Keeper::start();
    let enclosed = LaunchRecord { enclosure: Some(Enclosure::default()), ..placed(direct(), "") };
    let (_daemon, answer) = launch(&keeper, enclosed);
    assert_eq!(code(answer), "not-executed");
    assert!(keeper.ended().0.exec_error.unwrap().contains("cannot isolate an agent on place \"lab\""));
}

#[test]
fn a_stop_in_the_queue_cancels_the_launch() {
    let directory = tempfile::tempdir().unwrap();
    let cancel = format!("echo yes >{}", crate::harness::quote::quoted(directory.path().join("cancelled")));
    for times in [PATIENT, AT_ONCE] {
        let line = PlaceLine {
            client: strings(&["/bin/sleep", "1000"]),
            cancel: Some(strings(&["/bin/sh", "-c", &cancel])),
            enter_ms: None,
            ..direct()
        };
        let (keeper, mut daemon) = Keeper::with(placed(line, ""));
        daemon.stop(times);
        let (exited, journal) = keeper.ended();
        assert_eq!((exited.requested, exited.exec_error, exited.status, exited.signal), (true, None, None, None));
        assert!(changes(&journal).is_empty());
        std::fs::remove_file(directory.path().join("cancelled")).unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_lost_line_is_recorded_and_is_the_reason_of_the_end() {
    let (keeper, _daemon) = Keeper::with(placed(through("\"$KEEPER\" enter"), "echo \"[$$,$PPID]\"; sleep 600"));
    let [[agent, inner]]: [[i32; 2]; 1] = [serde_json::from_str(&keeper.wait_for_out(1)[0]).unwrap()];
    kill(Pid::from_raw(inner), Signal::SIGKILL).unwrap();
    let (exited, journal) = keeper.ended();
    let reason = exited.reason.unwrap();
    assert!(
        reason.starts_with("the connection to place \"lab\" is lost: its client ended with status 137"),
        "{reason}"
    );
    assert_eq!((exited.status, exited.signal, exited.exec_error), (None, None, None));
    let [running, lost] = &changes(&journal)[..] else { panic!("{journal:?}") };
    assert_eq!((running.state, lost.state), (PlaceState::Running, PlaceState::Lost));
    assert!(reason.ends_with(lost.message.as_deref().unwrap()));
    assert!(!alive(agent));
}

#[test]
#[cfg(target_os = "linux")]
fn a_lost_line_is_recorded_before_the_launch_is_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let cancel = format!("until test -e {}; do sleep 0.01; done", crate::harness::quote::quoted(&go));
    let line = PlaceLine { cancel: Some(strings(&["/bin/sh", "-c", &cancel])), ..through("\"$KEEPER\" enter") };
    let (keeper, _daemon) = Keeper::with(placed(line, "echo \"[$PPID]\"; sleep 600"));
    let [inner]: [i32; 1] = serde_json::from_str(&keeper.wait_for_out(1)[0]).unwrap();
    kill(Pid::from_raw(inner), Signal::SIGKILL).unwrap();
    let is_lost = || changes(&keeper.journal()).last().is_some_and(|changed| changed.state == PlaceState::Lost);
    eventually("the loss is recorded", || is_lost().then_some(()));
    std::fs::write(go, "").unwrap();
    let (exited, journal) = keeper.ended();
    assert!(exited.reason.unwrap().contains("is lost: its client ended with status 137"));
    assert_eq!(changes(&journal).len(), 2, "one record of the loss: {journal:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_near_side_is_a_lost_line() {
    let (keeper, _daemon) = Keeper::with(placed(direct(), "echo 1; sleep 600"));
    wait_until_it_runs(&keeper);
    let journal = keeper.journal();
    let near = journal.iter().find_map(|event| match &event.body {
        Body::AgentStarted(started) => Some(i32::try_from(started.pid).unwrap()),
        _ => None,
    });
    kill(Pid::from_raw(near.unwrap()), Signal::SIGKILL).unwrap();
    let (exited, journal) = keeper.ended();
    assert!(exited.reason.unwrap().ends_with("agentd-keeper place was ended by signal 9"));
    assert_eq!(changes(&journal).last().unwrap().state, PlaceState::Lost);
}

#[test]
#[cfg(target_os = "linux")]
fn a_keeper_that_is_killed_leaves_nothing_on_the_place() {
    let text = "(setsid sh -c 'echo \"[$$]\"; exec sleep 600' &); echo \"[$$]\"; exec sleep 600";
    let (mut keeper, _daemon) = Keeper::with(placed(direct(), text));
    let pids: Vec<[i32; 1]> = keeper.wait_for_out(2).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    keeper.process.kill().unwrap();
    keeper.process.wait().unwrap();
    for [pid] in pids {
        eventually("a process is gone", || (!alive(pid)).then_some(()));
    }
}

#[test]
fn an_agent_that_obeys_nothing_is_killed_on_its_place() {
    let line = PlaceLine { grace_ms: 600_000, ..direct() };
    let (keeper, mut daemon) = Keeper::with(placed(line, "trap '' TERM; echo \"[$$]\"; while :; do sleep 600; done"));
    let [pid]: [i32; 1] = serde_json::from_str(&keeper.wait_for_out(1)[0]).unwrap();
    daemon.stop(AT_ONCE);
    let (exited, _) = keeper.ended();
    assert_eq!((exited.requested, exited.exec_error, exited.reason), (true, None, None));
    assert!(!alive(pid));
}

#[test]
fn much_output_of_a_place_is_in_the_journal_whole() {
    let text = r#"i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo "{\"n\":$i}"; done"#;
    let (keeper, _daemon) = Keeper::with(placed(direct(), text));
    let (exited, journal) = keeper.ended();
    let lines = journal.iter().filter_map(|event| match &event.body {
        Body::AgentOut(data) => Some(data.get().to_owned()),
        _ => None,
    });
    assert!(lines.eq((1..=20_000).map(|n| format!("{{\"n\":{n}}}"))));
    assert_eq!(exited.status, Some(0));
}
