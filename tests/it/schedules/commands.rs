//! `agentctl schedule`, and the schedules of `agentctl apply` and `agentctl diff`.

use std::fs;

use agentd_api::schedule::{Concurrency, MissedPolicy, RunOutcome, ScheduleEnvironment, ScheduleView};
use serde_json::{Value, json};

use super::{ended, view};
use crate::harness::Daemon;
use crate::harness::ctl::ctl;

#[tokio::test]
async fn a_schedule_is_added_listed_run_and_removed() {
    let daemon = Daemon::start().await;
    let target = daemon.session(&daemon.scripted(&[])).await;
    let added = ctl(
        &daemon,
        &["schedule", "add", "report", "--calendar", "weekly", "--session", target.id.as_str(), "--prompt", "say done"],
    )
    .await;
    assert!(added.status == Some(0) && added.err.contains("report runs next at "), "{added:?}");
    let listed = ctl(&daemon, &["schedule", "ls"]).await.out;
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(row[0] == "report" && row[1] == "in" && listed.contains("weekly"), "{listed}");
    let ran = ctl(&daemon, &["schedule", "run", "report"]).await;
    assert_eq!((ran.status, ran.out.trim()), (Some(0), target.id.as_str()), "{ran:?}");
    ended(&daemon.client, "report").await;
    let due = ctl(&daemon, &["schedule", "run", "report", "--due"]).await;
    assert_eq!(due.parts(), (Some(0), String::new(), String::new()), "nothing is due");
    let shown = ctl(&daemon, &["schedule", "show", "report"]).await.out;
    assert!(shown.contains("when:       weekly") && shown.contains("succeeded"), "{shown}");
    let listed = ctl(&daemon, &["schedule", "ls", "--json"]).await.out;
    assert_eq!(serde_json::from_str::<Value>(&listed).unwrap()["schedules"][0]["last"]["outcome"], "succeeded");
    assert_eq!(ctl(&daemon, &["schedule", "rm", "report"]).await.status, Some(0));
    let gone = ctl(&daemon, &["schedule", "rm", "report"]).await;
    assert!(gone.status == Some(1) && gone.err.contains("no schedule \"report\""), "{gone:?}");

    for (words, part) in [
        (&["schedule", "add", "x", "prompt"][..], "--at"),
        (&["schedule", "add", "x", "--at", "soon", "prompt"], "\"soon\" is not a time"),
        (&["schedule", "add", "x", "--at", "1h", "--session", "a"], "--session has no prompt"),
    ] {
        let wrong = ctl(&daemon, words).await;
        assert!(wrong.status == Some(2) && wrong.err.contains(part), "{words:?}: {wrong:?}");
    }
    let wrong = ctl(&daemon, &["schedule", "add", "x", "--calendar", "25:00", "do it"]).await;
    assert!(wrong.status == Some(1) && wrong.err.contains("the hour 25") && wrong.err.contains("hint"), "{wrong:?}");
}

#[tokio::test]
async fn a_new_session_has_the_options_of_run_and_the_terminals_environment() {
    let daemon = Daemon::start().await;
    let words = [
        "schedule",
        "add",
        "later",
        "--at",
        "2199-01-01 00:00",
        "--timezone",
        "UTC",
        "--captured",
        "--skip-missed",
        "--concurrency",
        "forbid",
        "--wait",
        "5m",
        "--history",
        "3",
        "--tag",
        "lab",
        "--agent",
        "scripted",
        "say hello",
    ];
    let added = ctl(&daemon, &words).await;
    assert_eq!(added.status, Some(0), "{added:?}");
    let ScheduleView { spec, .. } = view(&daemon.client, "later").await;
    assert_eq!(spec.at.unwrap().to_string(), "2199-01-01T00:00:00Z");
    assert_eq!((spec.missed, spec.concurrency), (MissedPolicy::Skip, Concurrency::Forbid));
    assert_eq!(
        (spec.environment, spec.wait_seconds, spec.history_limit),
        (ScheduleEnvironment::Captured, Some(300), Some(3))
    );
    let session = spec.session.unwrap();
    assert_eq!((session.tags, session.initial_prompt.as_deref()), (vec!["lab".to_owned()], Some("say hello")));
    assert!(session.environment.snapshot.is_some());
    let ran = ctl(&daemon, &["schedule", "run", "later"]).await;
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert_eq!(ended(&daemon.client, "later").await.outcome, RunOutcome::Succeeded);
}

#[tokio::test]
async fn files_create_change_and_leave_schedules() {
    let daemon = Daemon::start().await;
    let file = daemon.root().join("team.yaml");
    let command = serde_json::to_string(&daemon.scripted(&[]).command).unwrap();
    let write = |calendar: &str| {
        let text = format!(
            "sessions:\n- name: web\n  directory: work\n  command: {command}\nschedules:\n- name: nightly\n  calendar: \
             {calendar}\n  prompt: {{ session: web, text: say hello }}\n- name: fresh\n  calendar: weekly\n  \
             environment: captured\n  session: {{ directory: work, command: {command} }}\n"
        );
        fs::write(&file, text).unwrap();
    };
    let path = file.to_str().unwrap();
    write("daily");
    let different = ctl(&daemon, &["diff", "-f", path]).await;
    assert!(different.status == Some(1) && different.out.contains("+++ schedule nightly ("), "{different:?}");
    let dry = ctl(&daemon, &["apply", "--dry-run", "-f", path]).await;
    assert!(dry.out.contains("schedule nightly created (dry run)"), "{dry:?}");
    let made = ctl(&daemon, &["apply", "-f", path]).await;
    let wanted = "web created\nschedule nightly created\nschedule fresh created\n";
    assert_eq!((made.status, made.out.as_str()), (Some(0), wanted), "{made:?}");
    let again = ctl(&daemon, &["apply", "-f", path]).await.out;
    assert_eq!(again, "web unchanged\nschedule nightly unchanged\nschedule fresh unchanged\n");
    assert_eq!(ctl(&daemon, &["diff", "-f", path]).await.status, Some(0));
    write("hourly");
    let different = ctl(&daemon, &["diff", "-f", path]).await.out;
    assert!(different.contains("-calendar: daily\n+calendar: hourly\n"), "{different}");
    let changed = ctl(&daemon, &["apply", "-f", path, "--json"]).await.out;
    let lines: Vec<Value> = changed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[1]["result"], json!("changed"), "{changed}");
    let view = view(&daemon.client, "nightly").await;
    assert_eq!((view.generation, view.spec.calendar.as_deref()), (2, Some("hourly")));
    write("25:00");
    let refused = ctl(&daemon, &["apply", "-f", path]).await;
    assert!(refused.status == Some(1) && refused.err.contains("cannot apply schedule \"nightly\""), "{refused:?}");
}

#[tokio::test]
async fn an_option_that_would_have_no_effect_is_refused() {
    let daemon = Daemon::start().await;
    for unused in [["--idle", "3s"], ["--agent", "demo"], ["--tag", "lab"], ["--parent", "web"], ["--dir", "/"]] {
        let words = ["schedule", "add", "s", "--at", "1h", "--session", "web", "--prompt", "go"];
        let refused = ctl(&daemon, &[&words[..], &unused[..]].concat()).await;
        assert!(refused.status == Some(2) && refused.err.contains("options of a new session"), "{refused:?}");
    }
    let added = ctl(&daemon, &["schedule", "add", "s", "--at", "1h", "--session", "web", "--prompt", "go"]).await;
    assert_eq!(added.status, Some(0), "{added:?}");
}
