//! Schedules of a real daemon without systemd: runs at their time, missed times, prerequisites and runs beside each
//! other. Further tests are about captured environments, unreadable files, and the calls.

mod commands;
mod kills;

use std::fs;
use std::time::Duration;

use agentd_api::schedule::{LABEL, RunOutcome, ScheduleList, ScheduleRun, ScheduleRuns, ScheduleView, Timer};
use agentd_api::session::{Phase, SessionSpec, SessionView, WholeList};
use agentd_api::{Code, ScheduleName};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::harness::session::said;
use crate::harness::{Client, Daemon, LIMIT, Session};
use crate::prerequisites;

/// A time that does not come during a test.
const FAR: &str = "2199-01-01T00:00:00Z";

/// Returns the specification of a session that a schedule creates.
fn session(daemon: &Daemon, prompt: &str) -> Value {
    json!(SessionSpec { initial_prompt: Some(prompt.to_owned()), ..daemon.scripted(&[]) })
}

async fn add(daemon: &Daemon, spec: &Value) -> ScheduleView {
    daemon.client.post("/v1/schedules", spec).await.expect(201)
}

async fn view(client: &Client, name: &str) -> ScheduleView {
    client.get(&format!("/v1/schedules/{name}")).await.expect(200)
}

/// Waits until the schedule has this state.
async fn see(client: &Client, name: &str, what: &str, good: impl Fn(&ScheduleView) -> bool) -> ScheduleView {
    let mut last = None;
    let seeing = async {
        loop {
            let view = view(client, name).await;
            if good(&view) {
                return view;
            }
            last = Some(view);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let seen = tokio::time::timeout(LIMIT, seeing).await.ok();
    seen.unwrap_or_else(|| panic!("{name}: {what}: not in time; last {last:#?}"))
}

async fn ended(client: &Client, name: &str) -> ScheduleRun {
    let is_over = |view: &ScheduleView| view.last.as_ref().is_some_and(|run| !run.outcome.is_active());
    see(client, name, "its last run is over", is_over).await.last.unwrap()
}

async fn run(client: &Client, name: &str) -> ScheduleRun {
    let answer = client.call("POST", &format!("/v1/schedules/{name}/run"), "").await;
    answer.expect::<ScheduleRuns>(200).runs.remove(0)
}

async fn sessions(client: &Client) -> Vec<SessionView> {
    client.get("/v1/sessions?fields=*").await.expect::<WholeList>(200).sessions
}

fn in_seconds(seconds: i64) -> String {
    Timestamp::from_second(Timestamp::now().as_second() + seconds).unwrap().to_string()
}

#[tokio::test]
async fn a_session_is_created_at_its_time_with_the_schedules_label_and_its_turn_tells_the_outcome() {
    let daemon = Daemon::start().await;
    let at = in_seconds(2);
    let spec = json!({ "name": "once", "at": at, "session": session(&daemon, "say hello") });
    let added = add(&daemon, &spec).await;
    assert_eq!((added.next, added.timer), (Some(at.parse().unwrap()), Some(Timer::Agentd)));
    assert!(sessions(&daemon.client).await.is_empty(), "nothing starts before the time");
    let run = ended(&daemon.client, "once").await;
    assert_eq!((run.outcome, run.due.to_string(), run.requested), (RunOutcome::Succeeded, at, false), "{run:?}");
    assert!(run.started.unwrap() >= run.due, "{run:?}");
    let after = view(&daemon.client, "once").await;
    assert_eq!((after.next, after.timer, after.history.len(), after.active), (None, None, 1, 0));
    let made = sessions(&daemon.client).await;
    assert_eq!((made.len(), Some(&made[0].id)), (1, run.session.as_ref()));
    assert_eq!(made[0].spec.labels[LABEL], "once");
    let made = Session::new(made[0].id.clone(), daemon.client.clone(), daemon.state());
    assert!(made.journal().iter().filter_map(said).any(|text| text == "hello"));
}

#[tokio::test]
async fn a_calendar_expression_runs_again_and_again_and_a_name_gets_the_time() {
    let daemon = Daemon::start().await;
    let mut made = session(&daemon, "say hello");
    made["name"] = json!("tick");
    add(&daemon, &json!({ "name": "ticks", "calendar": "*:*:0/2", "timezone": "Europe/Berlin", "session": made }))
        .await;
    let two = |view: &ScheduleView| view.history.iter().filter(|run| run.outcome == RunOutcome::Succeeded).count() >= 2;
    let seen = see(&daemon.client, "ticks", "two runs are over", two).await;
    daemon.client.call("DELETE", "/v1/schedules/ticks", "").await;
    let mut due: Vec<i64> = seen.history.iter().map(|run| run.due.as_second()).collect();
    assert!(due.iter().all(|due| due % 2 == 0), "{seen:#?}");
    due.dedup();
    assert_eq!(due.len(), seen.history.len(), "each time has one run");
    let first = sessions(&daemon.client).await.remove(0);
    let name = first.spec.name.as_ref().unwrap().to_string();
    assert!(name.starts_with("tick-20") && name.len() == "tick-20261224-180000".len(), "{name}");
}

#[tokio::test]
async fn a_prompt_goes_to_its_session_which_is_resumed_first() {
    let daemon = Daemon::start().await;
    let target = daemon.session(&daemon.scripted(&[])).await;
    let prompt = json!({ "session": target.id, "text": "say scheduled" });
    add(&daemon, &json!({ "name": "prompts", "at": FAR, "prompt": prompt })).await;
    run(&daemon.client, "prompts").await;
    let first = ended(&daemon.client, "prompts").await;
    assert_eq!(
        (first.outcome, first.session.as_ref(), first.requested),
        (RunOutcome::Succeeded, Some(&target.id), true)
    );
    target.stop().await;
    let begun = run(&daemon.client, "prompts").await;
    assert_eq!(begun.outcome, RunOutcome::Started, "{begun:?}");
    let second = ended(&daemon.client, "prompts").await;
    assert_eq!(second.outcome, RunOutcome::Succeeded, "{second:?}");
    assert_ne!(second.turn, first.turn);
    assert_eq!(target.journal().iter().filter_map(said).filter(|text| text == "scheduled").count(), 2);

    // A repeated request begins one run.
    let path = "/v1/schedules/prompts/run";
    let [one, two] = [
        daemon.client.attempt("POST", path, "", Some("k")).await.unwrap().expect::<ScheduleRuns>(200),
        daemon.client.attempt("POST", path, "", Some("k")).await.unwrap().expect::<ScheduleRuns>(200),
    ];
    assert_eq!(one.runs[0].turn, two.runs[0].turn);
    ended(&daemon.client, "prompts").await;
    assert_eq!(view(&daemon.client, "prompts").await.history.len(), 3);
}

#[tokio::test]
async fn times_that_passed_while_the_daemon_was_down_run_once_or_are_skipped() {
    let mut daemon = Daemon::start().await;
    for (name, missed) in [("once", "once"), ("skip", "skip")] {
        let spec = json!({
            "name": name, "calendar": "*-*-* 03:00", "timezone": "UTC", "missed": missed,
            "session": session(&daemon, "say hello")
        });
        add(&daemon, &spec).await;
    }
    let at = in_seconds(1);
    add(&daemon, &json!({ "name": "late", "at": at, "session": session(&daemon, "say hello") })).await;
    daemon.kill9();
    // The machine slept for three days: the last time that was dealt with is that long ago.
    for name in ["once", "skip"] {
        let file = daemon.state().join(format!("schedules/{name}.json"));
        let mut stored: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let cursor = Timestamp::now().checked_sub(Duration::from_hours(3 * 24)).unwrap();
        stored["cursor"] = json!(cursor);
        fs::write(file, stored.to_string()).unwrap();
    }
    let at: Timestamp = at.parse().unwrap();
    while Timestamp::now() <= at {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    daemon.run().await;
    let once = ended(&daemon.client, "once").await;
    assert_eq!(once.outcome, RunOutcome::Succeeded, "{once:?}");
    let history = view(&daemon.client, "once").await.history;
    let outcomes: Vec<(RunOutcome, Option<u64>)> = history.iter().map(|run| (run.outcome, run.count)).collect();
    assert_eq!(outcomes, [(RunOutcome::Missed, Some(2)), (RunOutcome::Succeeded, None)], "{history:#?}");
    let is_recorded = |view: &ScheduleView| view.last.is_some();
    let skip = see(&daemon.client, "skip", "the missed times are recorded", is_recorded).await;
    // The latest time is in the last minute only if the test runs at three o'clock.
    if Timestamp::now().as_second() % 86_400 - 3 * 3600 > 120 || Timestamp::now().as_second() % 86_400 < 3 * 3600 {
        assert_eq!(skip.history.len(), 1, "{skip:#?}");
        assert_eq!((skip.history[0].outcome, skip.history[0].count), (RunOutcome::Missed, Some(3)), "{skip:#?}");
    }
    assert_eq!(ended(&daemon.client, "late").await.outcome, RunOutcome::Succeeded);
    assert!(sessions(&daemon.client).await.iter().all(|made| made.spec.labels[LABEL] != "skip"));
}

#[tokio::test]
async fn a_run_beside_an_active_one_follows_the_policy() {
    let daemon = Daemon::start().await;
    for policy in ["allow", "forbid", "replace"] {
        let spec = json!({
            "name": policy, "at": FAR, "concurrency": policy, "session": session(&daemon, "count 100000 20")
        });
        add(&daemon, &spec).await;
        let first = run(&daemon.client, policy).await;
        assert_eq!(first.outcome, RunOutcome::Started, "{first:?}");
        let second = run(&daemon.client, policy).await;
        let after = view(&daemon.client, policy).await;
        match policy {
            "allow" => assert_eq!((second.outcome, after.active), (RunOutcome::Started, 2)),
            "forbid" => {
                assert_eq!((second.outcome, after.active), (RunOutcome::Skipped, 1));
                assert!(second.reason.unwrap().contains("is still active"));
            }
            _ => {
                assert_eq!(second.outcome, RunOutcome::Started, "{after:#?}");
                let replaced = &after.history[0];
                assert_eq!(replaced.outcome, RunOutcome::Failed, "{after:#?}");
                assert!(replaced.reason.as_ref().unwrap().starts_with("replaced by the run of"), "{replaced:?}");
                let stopped = daemon.client.view(first.session.unwrap().as_str()).await;
                assert_eq!(stopped.status.phase, Phase::Stopped);
            }
        }
    }
}

#[tokio::test]
async fn a_missing_prerequisite_is_waited_for_or_skips_the_run() {
    let daemon = prerequisites::with(&[("vpn", "")]).await;
    prerequisites::world(&daemon, "vpn", "fail");
    let mut made = session(&daemon, "say hello");
    made["requires"] = json!(["vpn"]);
    let spec = |name: &str, policy: &str| json!({ "name": name, "at": FAR, "prerequisites": policy, "session": made });
    add(&daemon, &spec("skips", "skip")).await;
    let skipped = run(&daemon.client, "skips").await;
    assert_eq!((skipped.outcome, &skipped.session), (RunOutcome::Skipped, &None));
    assert!(skipped.reason.as_ref().unwrap().contains("vpn"), "{skipped:?}");
    assert!(sessions(&daemon.client).await.is_empty());

    let mut limited = spec("limited", "wait");
    limited["wait_seconds"] = json!("1s");
    add(&daemon, &limited).await;
    run(&daemon.client, "limited").await;
    let failed = ended(&daemon.client, "limited").await;
    assert_eq!(failed.outcome, RunOutcome::Failed, "{failed:?}");
    let shown = view(&daemon.client, "limited").await;
    assert!(shown.error.unwrap().contains("vpn"), "the schedule says why");

    add(&daemon, &spec("waits", "wait")).await;
    let begun = run(&daemon.client, "waits").await;
    assert_eq!(begun.outcome, RunOutcome::Started, "{begun:?}");
    let waiting = begun.session.unwrap();
    daemon.client.wait_for(waiting.as_str(), "it waits", |view| view.status.phase == Phase::Waiting).await;
    prerequisites::world(&daemon, "vpn", "pass");
    assert_eq!(ended(&daemon.client, "waits").await.outcome, RunOutcome::Succeeded);
}

#[tokio::test]
async fn a_captured_environment_outlives_the_daemon_and_is_on_no_disk_in_clear() {
    let mut daemon = Daemon::start().await;
    daemon.configure(|config| config + "\n[plugins.whitelist]\nsettings = { allow = [\"PLANTED\"] }\n");
    let secret = "captured-4f1c9d";
    let variables = json!([{ "name": "PLANTED", "value": secret }, { "name": "PATH", "value": "/usr/bin:/bin" }]);
    let kept: Value = daemon.client.post("/v1/snapshots", &json!({ "variables": variables })).await.expect(201);
    let mut made = session(&daemon, "env");
    let refused = json!({ "name": "c", "at": FAR, "environment": "captured", "session": made });
    assert_eq!(daemon.client.post("/v1/schedules", &refused).await.problem().code, Code::SnapshotNeeded);
    made["environment"] = json!({ "snapshot": kept["id"] });
    add(&daemon, &json!({ "name": "captured", "at": FAR, "environment": "captured", "session": made })).await;
    assert_eq!(daemon.holders(secret), Vec::<std::path::PathBuf>::new());
    daemon.terminate().await;
    daemon.run().await;
    run(&daemon.client, "captured").await;
    let done = ended(&daemon.client, "captured").await;
    assert_eq!(done.outcome, RunOutcome::Succeeded, "{done:?}");
    let made = Session::new(done.session.unwrap(), daemon.client.clone(), daemon.state());
    let told: String = made.journal().iter().filter_map(said).collect();
    assert!(told.contains(secret), "{told}");
    daemon.client.call("DELETE", "/v1/schedules/captured", "").await;
    assert_eq!(fs::read_dir(daemon.state().join("schedules/environments")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_harms_no_other_schedule_and_is_named() {
    let mut daemon = Daemon::start().await;
    for name in ["bad", "good"] {
        add(&daemon, &json!({ "name": name, "at": FAR, "session": session(&daemon, "say hello") })).await;
    }
    daemon.terminate().await;
    let file = daemon.state().join("schedules/bad.json");
    fs::write(&file, "{").unwrap();
    fs::write(daemon.state().join("schedules/NO.json"), "{}").unwrap();
    daemon.run().await;
    let list: ScheduleList = daemon.client.get("/v1/schedules").await.expect(200);
    assert_eq!(list.schedules.len(), 1);
    let unreadable: Vec<&str> = list.unreadable.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(unreadable, ["NO", "bad"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{", "the file is unchanged");
    let problem = daemon.client.get("/v1/schedules/bad").await.problem();
    assert!(problem.code == Code::ScheduleUnreadable && problem.hint.is_some(), "{problem:?}");
    let taken = json!({ "name": "bad", "at": FAR, "session": session(&daemon, "say hello") });
    assert_eq!(daemon.client.post("/v1/schedules", &taken).await.problem().code, Code::NameTaken);
    let doctor = daemon.client.get("/v1/doctor").await.expect::<Value>(200).to_string();
    assert!(doctor.contains("the schedule bad cannot be read"), "{doctor}");
    run(&daemon.client, "good").await;
    assert_eq!(ended(&daemon.client, "good").await.outcome, RunOutcome::Succeeded);
    assert_eq!(daemon.client.call("DELETE", "/v1/schedules/bad", "").await.status, 204);
    assert!(!file.exists());
}

#[tokio::test]
async fn a_wrong_specification_is_refused_with_the_part_and_the_remedy() {
    let daemon = Daemon::start().await;
    let prompt = json!({ "session": "a", "text": "go" });
    for (change, code, words) in [
        (json!({}), Code::ScheduleInvalid, "has no time"),
        (json!({ "calendar": "25:00" }), Code::ScheduleInvalid, "the hour 25"),
        (json!({ "calendar": "daily", "timezone": "No/Where" }), Code::ScheduleInvalid, "no time zone"),
        (json!({ "calendar": "daily UTC", "timezone": "Europe/Berlin" }), Code::ScheduleInvalid, "time zones"),
        (json!({ "calendar": "2020-01-01" }), Code::ScheduleInvalid, "no time after now"),
        (json!({ "at": "2020-01-01T00:00:00Z" }), Code::ScheduleInvalid, "no time after now"),
        (json!({ "at": FAR, "calendar": "daily" }), Code::ScheduleInvalid, "both"),
        (json!({ "at": FAR, "timezone": "UTC" }), Code::ScheduleInvalid, "no calendar expression"),
        (json!({ "at": FAR, "prompt": null }), Code::ScheduleInvalid, "nothing to start"),
        (json!({ "at": FAR, "session": session(&daemon, "x") }), Code::ScheduleInvalid, "both"),
        (json!({ "at": FAR, "history_limit": 0 }), Code::ScheduleInvalid, "history limit"),
        (json!({ "at": FAR, "prerequisites": "skip", "wait_seconds": 5 }), Code::ScheduleInvalid, "does not wait"),
        (json!({ "at": FAR, "environment": "captured" }), Code::ScheduleInvalid, "only a new session"),
        (json!({ "at": FAR, "prompt": { "session": "a", "text": " " } }), Code::ScheduleInvalid, "is empty"),
        (json!({ "at": FAR, "colour": 1 }), Code::MalformedRequest, "colour"),
        (
            json!({ "at": FAR, "prompt": null, "session": { "parent": "a" } }),
            Code::ScheduleInvalid,
            "sends no prompt by itself",
        ),
        (
            json!({ "at": FAR, "prompt": null, "session": { "directory": "/does/not/exist" } }),
            Code::NoSuchDirectory,
            "/does/not/exist",
        ),
    ] {
        let mut spec = json!({ "name": "s", "prompt": prompt });
        for (key, value) in change.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let problem = daemon.client.post("/v1/schedules", &spec).await.problem();
        assert!(problem.code == code && problem.detail.contains(words), "{change}: {problem:?}");
        assert!(problem.hint.is_some(), "{change}: {problem:?}");
    }
    assert_eq!(daemon.client.get("/v1/schedules/s").await.problem().code, Code::NoSuchSchedule);
    assert_eq!(daemon.client.call("POST", "/v1/schedules/s/run", "").await.problem().code, Code::NoSuchSchedule);
    assert_eq!(fs::read_dir(daemon.state().join("schedules")).unwrap().count(), 1, "only `environments` is there");
}

#[tokio::test]
async fn a_changed_schedule_has_another_generation_and_a_suspended_one_makes_up_for_nothing() {
    let daemon = Daemon::start().await;
    let spec = |calendar: &str, suspended: bool| {
        let prompt = json!({ "session": "a", "text": "go" });
        json!({ "name": "s", "calendar": calendar, "timezone": "UTC", "prompt": prompt, "suspended": suspended })
    };
    let added = add(&daemon, &spec("*:*:*", true)).await;
    assert_eq!((added.generation, added.next, added.timer), (1, None, None));
    let put = async |spec: &Value| daemon.client.call("PUT", "/v1/schedules/s", spec.to_string()).await;
    // Three times pass while the schedule is suspended.
    let until = Timestamp::now().checked_add(Duration::from_secs(3)).unwrap();
    while Timestamp::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let answer = put(&spec("2199-01-01 00:00", false)).await;
    assert_eq!(answer.etag.as_deref(), Some("\"2\""));
    let changed: ScheduleView = answer.expect(200);
    assert_eq!((changed.generation, changed.next), (2, Some(FAR.parse().unwrap())));
    assert!(changed.history.is_empty(), "{changed:#?}");
    assert_eq!(put(&spec("2199-01-01 00:00", false)).await.expect::<ScheduleView>(200).generation, 2);
    let other = put(&json!({ "name": "t", "at": FAR, "prompt": { "session": "a", "text": "go" } })).await;
    assert_eq!(other.problem().code, Code::FieldFixed);
    let twin = daemon.client.post("/v1/schedules", &spec("daily", false)).await;
    assert_eq!(twin.problem().code, Code::NameTaken);
    // A session that does not exist is a failure that the schedule shows.
    let failed = run(&daemon.client, "s").await;
    assert_eq!(failed.outcome, RunOutcome::Failed, "{failed:?}");
    assert!(view(&daemon.client, "s").await.error.unwrap().contains("no session \"a\""));
    let _: ScheduleName = "s".parse().unwrap();
}
