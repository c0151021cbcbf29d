//! Changes of a session's specification: by PATCH, `agentctl set` and `agentctl edit`; their times of effect.

use std::fs;

use agentd_api::session::{ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use agentd_api::spec::{Effect, FIELDS, SpecChangeView, SpecChanged};
use agentd_api::{Body, Code};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::ctl::{agentctl, ctl, end_of};
use crate::harness::{Daemon, Session, process, until, within};
use crate::prerequisites;

async fn patched(daemon: &Daemon, session: &Session, patch: Value) -> SpecChangeView {
    daemon.client.patch(&session.path(""), &patch, None).await.expect(200)
}

fn changes(view: &SpecChangeView) -> Vec<(&str, Effect)> {
    view.changes.iter().map(|change| (change.field.as_str(), change.effect)).collect()
}

fn recorded(session: &Session) -> Vec<SpecChanged> {
    let changed = |body: Body| if let Body::SpecChanged(changed) = body { Some(changed) } else { None };
    session.journal().into_iter().filter_map(|event| changed(event.body)).collect()
}

fn reason(view: &SessionView, kind: ConditionType) -> Option<(ConditionStatus, &str)> {
    let found = view.status.conditions.iter().find(|condition| condition.kind == kind);
    found.map(|condition| (condition.status, condition.reason.as_str()))
}

#[tokio::test]
async fn a_change_is_answered_recorded_and_kept_over_a_kill() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let first = daemon.client.get(&session.path("")).await;
    assert_eq!(first.etag.as_deref(), Some("\"1\""));
    let patch = json!({ "name": "build", "restart": "never", "limits": { "memory": "2G" }, "tags": ["lab"] });
    let answer = daemon.client.patch(&session.path(""), &patch, first.etag.as_deref()).await;
    assert_eq!(answer.etag.as_deref(), Some("\"2\""));
    let view: SpecChangeView = answer.expect(200);
    let wanted = [
        ("name", Effect::Live),
        ("restart", Effect::Live),
        ("limits.memory", Effect::NextLaunch),
        ("tags", Effect::Live),
    ];
    assert_eq!(changes(&view), wanted);
    assert_eq!((view.session.generation, view.session.status.observed_generation), (2, 2));
    let awaits = Some((ConditionStatus::False, "AwaitsLaunch"));
    assert_eq!(reason(&view.session, ConditionType::SpecApplied), awaits);

    daemon.kill9();
    daemon.run().await;
    let by_name = daemon.client.view("build").await;
    assert_eq!((&by_name.id, &by_name.spec, by_name.generation), (&session.id, &view.session.spec, 2));
    assert_eq!(reason(&by_name, ConditionType::SpecApplied), awaits);
    let [changed] = &recorded(&session)[..] else { panic!("one change") };
    assert_eq!((changed.generation, &changed.spec, &changed.changes), (2, &*view.session.spec, &view.changes));
    assert_eq!(changed.requester.as_ref().unwrap().uid, nix::unistd::getuid().as_raw());

    session.stop().await;
    let resumed = session.resume().await;
    assert_eq!(reason(&resumed, ConditionType::SpecApplied), None);
    assert_eq!(resumed.generation, 2);
}

#[tokio::test]
async fn a_patch_that_changes_nothing_writes_nothing_and_a_bad_one_is_refused() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let other = daemon.session(&SessionSpec { name: Some("other".parse().unwrap()), ..daemon.scripted(&[]) }).await;
    let before = session.view().await;
    for same in [json!({}), json!({ "limits": {} }), json!({ "permissions": "ask", "name": null })] {
        let view = patched(&daemon, &session, same).await;
        assert_eq!((view.changes, &view.session), (vec![], &before));
    }
    for (patch, code, words) in [
        (json!({ "directory": "/" }), Code::FieldFixed, "directory"),
        (json!({ "initial_prompt": "again" }), Code::FieldFixed, "initial_prompt"),
        (json!({ "agent": "demo" }), Code::FieldFixed, "agent"),
        (json!({ "command": null }), Code::FieldFixed, "command"),
        (json!({ "command": [] }), Code::InvalidRequest, "command"),
        (json!({ "colour": "red" }), Code::InvalidRequest, "colour"),
        (json!({ "limits": { "memory": "lots" } }), Code::InvalidRequest, "lots"),
        (json!({ "name": "Not A Name" }), Code::InvalidRequest, "name"),
        (json!({ "name": "other" }), Code::NameTaken, "other"),
        (json!({ "name": other.id }), Code::NameTaken, other.id.as_str()),
        (json!({ "requires": ["nothing"] }), Code::NoSuchPrerequisite, "nothing"),
        (json!({ "environment": { "env": { "API_TOKEN": "abcdef" } } }), Code::SecretInEnvironment, "API_TOKEN"),
        (json!({ "env_setup": "export API_TOKEN=abcdefgh\n" }), Code::InvalidRequest, "API_TOKEN"),
        (json!([1]), Code::MalformedRequest, "map"),
    ] {
        let problem = daemon.client.patch(&session.path(""), &patch, None).await.problem();
        assert_eq!(problem.code, code, "{patch}: {problem:?}");
        assert!(problem.detail.contains(words) && problem.hint.is_some(), "{patch}: {problem:?}");
        assert_eq!(session.view().await, before, "{patch}");
    }
    for tags in ["\"2\"", "\"0\"", "W/\"1\"", "\"x\""] {
        let answer = daemon.client.patch(&session.path(""), &json!({ "tags": ["a"] }), Some(tags)).await;
        assert_eq!((answer.status.as_u16(), answer.problem().code), (412, Code::GenerationChanged), "{tags}");
    }
    let answer = daemon.client.patch(&session.path(""), &json!({ "tags": ["a"] }), Some("1")).await;
    assert_eq!(answer.problem().code, Code::InvalidRequest);
    assert_eq!(session.view().await, before);
    for (tags, generation) in [("\"7\", \"1\"", 2), ("*", 3)] {
        let answer = daemon.client.patch(&session.path(""), &json!({ "tags": [tags] }), Some(tags)).await;
        assert_eq!(answer.expect::<SpecChangeView>(200).session.generation, generation);
    }
}

#[tokio::test]
async fn a_hundred_patches_at_once_lose_no_update() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + "\n[limits]\nconnections_per_caller = 200\n");
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let mut patches = JoinSet::new();
    for number in 0..100 {
        let (client, path) = (daemon.client.clone(), session.path(""));
        patches.spawn(async move {
            // Each adds its own tag to those that it has read, as an editor does.
            let mut refused = 0;
            loop {
                let read = client.get(&path).await;
                let mut tags = read.expect::<SessionView>(200).spec.tags.clone();
                tags.push(format!("n{number}"));
                let answer = client.patch(&path, &json!({ "tags": tags }), read.etag.as_deref()).await;
                match answer.status.as_u16() {
                    200 => return refused,
                    412 => refused += 1,
                    _ => panic!("{answer:?}"),
                }
            }
        });
    }
    let refused: u32 = within("the patches", patches.join_all()).await.into_iter().sum();
    assert!(refused > 0, "no patch was stale: they did not run side by side");
    let view = session.view().await;
    let mut tags = view.spec.tags.clone();
    tags.sort();
    let mut wanted: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
    wanted.sort();
    assert_eq!((view.generation, tags), (101, wanted));
    let generations: Vec<u64> = recorded(&session).iter().map(|changed| changed.generation).collect();
    assert_eq!(generations, (2..=101).collect::<Vec<_>>());
}

#[tokio::test]
async fn concurrent_renames_never_give_one_name_twice() {
    let daemon = Daemon::start().await;
    let mut sessions = Vec::new();
    for _ in 0..5 {
        sessions.push(daemon.session(&daemon.scripted(&[])).await);
    }
    let mut renames = JoinSet::new();
    for session in &sessions {
        let (client, path) = (daemon.client.clone(), session.path(""));
        renames.spawn(async move { client.patch(&path, &json!({ "name": "wanted" }), None).await.status.as_u16() });
    }
    let spec = SessionSpec { name: Some("wanted".parse().unwrap()), ..daemon.scripted(&[]) };
    let (client, body) = (daemon.client.clone(), serde_json::to_string(&spec).unwrap());
    renames.spawn(async move { client.call("POST", "/v1/sessions", body).await.status.as_u16() });
    let mut statuses = within("the renames", renames.join_all()).await;
    statuses.sort_unstable();
    assert!(statuses[0] < 300 && statuses[1..].iter().all(|status| *status == 409), "{statuses:?}");
}

#[tokio::test]
async fn each_live_field_works_at_once() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let allowed = patched(&daemon, &session, json!({ "permissions": "allow" })).await;
    assert_eq!(changes(&allowed), [("permissions", Effect::Live)]);
    // The agent's question is answered by the new policy.
    assert!(session.turn("tool echo permitted").await.text.contains("permitted"));

    // The time of the running turn counts: the new limit is over at once.
    let accepted = session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    patched(&daemon, &session, json!({ "limits": { "turn_seconds": 1 } })).await;
    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("cancelled"), "{:?}", turn.ended);

    patched(&daemon, &session, json!({ "limits": { "turn_seconds": null, "idle_seconds": 1 } })).await;
    session.wait_for_phase(Phase::Stopped).await;
    // A session at rest can be changed too.
    let stopped = patched(&daemon, &session, json!({ "limits": { "idle_seconds": null }, "name": "rested" })).await;
    assert_eq!(reason(&stopped.session, ConditionType::SpecApplied), None);
    assert_eq!(daemon.client.view("rested").await.id, session.id);
}

#[tokio::test]
async fn fields_of_the_launch_take_effect_with_the_next_launch() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let patch = json!({
        "env_setup": "export SPEC_SCRIPT=from-script\n", "environment": { "env": { "SPEC_SET": "from-spec" } },
    });
    let view = patched(&daemon, &session, patch).await;
    assert_eq!(changes(&view), [("env_setup", Effect::NextLaunch), ("environment", Effect::NextLaunch)]);
    let condition = view.session.status.conditions.iter().find(|one| one.kind == ConditionType::SpecApplied).unwrap();
    assert!(condition.message.contains("env_setup, environment"), "{condition:?}");
    assert!(!session.turn("env").await.text.contains("SPEC_"));
    session.stop().await;
    session.resume().await;
    let text = session.turn("env").await.text;
    assert!(text.contains("\"SPEC_SCRIPT\":\"from-script\"") && text.contains("\"SPEC_SET\":\"from-spec\""), "{text}");

    let view = patched(&daemon, &session, json!({ "env_setup": null, "environment": null })).await;
    assert_eq!(view.changes[0].from, "export SPEC_SCRIPT=from-script\n");
    let undone = json!({ "env_setup": "export SPEC_SCRIPT=from-script\n" });
    let view = patched(&daemon, &session, undone).await;
    let waits = |view: &SpecChangeView| {
        let mut conditions = view.session.status.conditions.iter();
        conditions.find(|one| one.kind == ConditionType::SpecApplied).map(|one| one.message.clone())
    };
    assert!(waits(&view).unwrap().ends_with(": environment"), "{view:?}");
    let set = json!({ "environment": { "env": { "SPEC_SET": "from-spec" } } });
    assert_eq!(waits(&patched(&daemon, &session, set).await), None, "everything is as it was launched");
    patched(&daemon, &session, json!({ "env_setup": null, "environment": null })).await;
    session.stop().await;
    session.resume().await;
    assert!(!session.turn("env").await.text.contains("SPEC_"));
    assert!(!session.directory().join("env-setup.sh").exists());
}

#[tokio::test]
async fn a_launch_that_waits_begins_again_with_the_change() {
    let daemon = prerequisites::with(&[("gate", "")]).await;
    let spec = SessionSpec { requires: vec!["gate".to_owned()], ..daemon.scripted(&[]) };
    let view: SessionView = daemon.client.post("/v1/sessions?wait_for_prerequisites=600", &spec).await.expect(202);
    let session = Session::new(view.id, daemon.client.clone(), daemon.state());
    let waiting = session.wait_for_phase(Phase::Waiting).await;
    assert_eq!(reason(&waiting, ConditionType::Ready), Some((ConditionStatus::False, "Waiting")));
    patched(&daemon, &session, json!({ "requires": [], "environment": { "env": { "SPEC_SET": "late" } } })).await;
    let view = session.wait_for_phase(Phase::Idle).await;
    assert_eq!((view.status.launches, reason(&view, ConditionType::SpecApplied)), (1, None));
    assert!(session.turn("env").await.text.contains("\"SPEC_SET\":\"late\""));
}

#[tokio::test]
async fn a_prerequisite_required_later_is_checked_while_the_agent_runs() {
    let daemon = prerequisites::with(&[("gate", "interval = \"100ms\"")]).await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let met = |view: &SessionView| reason(view, ConditionType::PrerequisitesMet).map(|(status, _)| status);
    patched(&daemon, &session, json!({ "requires": ["gate"] })).await;
    session.see("the missing prerequisite is shown", |view| met(view) == Some(ConditionStatus::False)).await;
    assert_eq!(session.view().await.status.phase, Phase::Idle);
    patched(&daemon, &session, json!({ "requires": [] })).await;
    session.see("nothing is missing", |view| met(view) != Some(ConditionStatus::False)).await;
}

#[tokio::test]
async fn a_change_for_a_hung_keeper_is_refused_in_time_and_made_once() {
    let daemon = Daemon::impatient().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let keeper = process::pid(session.view().await.status.keeper_pid.unwrap());
    kill(keeper, Signal::SIGSTOP).unwrap();
    let patch = json!({ "name": "late", "tags": ["late"] });
    for _ in 0..2 {
        let problem = daemon.client.patch(&session.path(""), &patch, None).await.problem();
        assert_eq!(problem.code, Code::KeeperSilent, "{problem:?}");
    }
    kill(keeper, Signal::SIGCONT).unwrap();
    let answers = |view: &SessionView| reason(view, ConditionType::KeeperAnswers).is_none();
    session.see("the keeper answers again", answers).await;
    // The first request may still have taken effect. Its repetition then changes nothing.
    let view = patched(&daemon, &session, patch).await;
    assert_eq!((view.session.generation, recorded(&session).len()), (2, 1));
    assert_eq!(daemon.client.view("late").await.id, session.id);
}

#[tokio::test]
async fn the_summary_and_the_times_follow_the_session() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let running = session.view().await;
    assert_eq!(reason(&running, ConditionType::Ready), Some((ConditionStatus::True, "Idle")));
    let started = running.status.started_at.expect("the agent was started");
    assert!(started >= running.created && running.status.ended_at.is_none());
    let stopped = session.stop().await;
    assert_eq!(reason(&stopped, ConditionType::Ready), Some((ConditionStatus::False, "Stopped")));
    let ended = stopped.status.ended_at.expect("the session ended");
    assert!(ended >= started && stopped.status.started_at == Some(started));
    let resumed = session.resume().await;
    assert!(resumed.status.started_at.unwrap() > ended && resumed.status.ended_at.is_none());
    let since = |view: &SessionView| {
        view.status.conditions.iter().find(|one| one.kind == ConditionType::Ready).unwrap().last_transition_time
    };
    assert!(since(&resumed) > ended && since(&stopped) <= ended);
}

#[tokio::test]
async fn a_repeated_creation_is_recognised_after_a_change() {
    let daemon = Daemon::start().await;
    let body = serde_json::to_string(&daemon.scripted(&[])).unwrap();
    let create = async || daemon.client.attempt("POST", "/v1/sessions", body.clone(), Some("once")).await.unwrap();
    let made: SessionView = create().await.expect(202);
    daemon.client.wait_for(made.id.as_str(), "idle", |view| view.status.phase == Phase::Idle).await;
    let path = format!("/v1/sessions/{}", made.id);
    daemon.client.patch(&path, &json!({ "name": "changed" }), None).await.expect::<SpecChangeView>(200);
    let again: SessionView = create().await.expect(202);
    assert_eq!((again.id, again.generation), (made.id, 2));
}

#[tokio::test]
async fn a_session_in_a_directory_that_is_gone_can_be_renamed() {
    let daemon = Daemon::start().await;
    let directory = tempfile::tempdir().unwrap();
    let spec = SessionSpec { directory: directory.path().to_owned(), ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    session.stop().await;
    drop(directory);
    let view = patched(&daemon, &session, json!({ "name": "homeless" })).await;
    assert_eq!(view.session.spec.name.as_ref().unwrap().as_str(), "homeless");
}

#[tokio::test]
async fn agentctl_sets_and_edits() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let id = session.id.as_str();
    let said = ctl(&daemon, &["set", id, "name=build", "limits.memory=2G", "tags=a,b", "resume_note=full"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let wanted = "build: generation 2\n  name takes effect at once\n  limits.memory takes effect with the next \
                  launch\n  resume_note takes effect with the next turn\n  tags takes effect at once\n";
    assert_eq!(said.out, wanted);
    let said = ctl(&daemon, &["set", "build", "tags=a,b"]).await;
    assert_eq!((said.status, said.err.as_str()), (Some(0), "nothing changed\n"));
    let said = ctl(&daemon, &["set", "build", "directory=/", "tags="]).await;
    assert!(said.status == Some(1) && said.err.contains("never changes"), "{said:?}");
    let said = ctl(&daemon, &["set", "build", "colour=red"]).await;
    assert!(said.status == Some(2) && said.err.contains("limits.memory"), "{said:?}");
    let said = ctl(&daemon, &["set", "--generation", "1", "build", "tags="]).await;
    assert!(said.status == Some(4) && said.err.contains("generation 2"), "{said:?}");

    let edit = async |script: &str| {
        let editor = daemon.root().join("editor");
        fs::write(&editor, script).unwrap();
        let mut command = agentctl(&daemon, &["edit", "build"]);
        command.env_remove("VISUAL").env("EDITOR", format!("sh '{}'", editor.display()));
        end_of(command.spawn().unwrap()).await
    };
    let said = edit("sed -i -e 's/^name = .*/name = \"edited\"/' -e '/^tags = /,/^]/d' \"$1\"\n").await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let view = daemon.client.view("edited").await;
    assert_eq!((view.generation, view.spec.tags.len(), view.spec.limits.memory), (3, 0, Some(2 << 30)));
    ctl(&daemon, &["set", "edited", "name=build"]).await;

    assert_eq!(edit("true\n").await.err, "nothing changed\n");
    let refused = edit("echo 'directory = \"/\"' > \"$1\"\n").await;
    assert!(refused.status == Some(1) && refused.err.contains("your text is in"), "{refused:?}");
    let kept = refused.err.split("your text is in ").nth(1).unwrap().lines().next().unwrap();
    assert_eq!(fs::read_to_string(kept).unwrap(), "directory = \"/\"\n");
    fs::remove_file(kept).unwrap();
    let invalid = edit("echo '[' > \"$1\"\n").await;
    assert!(invalid.status == Some(2) && invalid.err.contains("not valid TOML"), "{invalid:?}");
    let failed = edit("exit 3\n").await;
    assert!(failed.status == Some(2) && failed.err.contains("editor"), "{failed:?}");
    assert_eq!(daemon.client.view("build").await.generation, 4);
}

#[tokio::test]
async fn agentctl_waits_for_a_state() {
    let daemon = Daemon::start().await;
    let session = daemon.create(&daemon.scripted(&["--slow-init", "500"])).await;
    let id = session.id.as_str();
    let said = ctl(&daemon, &["wait", id]).await;
    assert_eq!((said.status, said.out.as_str(), said.err.as_str()), (Some(0), "", ""));
    assert_eq!(session.view().await.status.phase, Phase::Idle);

    let late = ctl(&daemon, &["wait", id, "--for", "Ready=False", "--timeout", "0"]).await;
    assert!(late.status == Some(1) && late.err.contains("Ready is True: the agent waits"), "{late:?}");
    let none = ctl(&daemon, &["wait", id, "--for", "EnvironmentDrifted", "--timeout", "0"]).await;
    assert!(none.status == Some(1) && none.err.contains("no condition EnvironmentDrifted"), "{none:?}");
    let wrong = ctl(&daemon, &["wait", id, "--for", "Raedy"]).await;
    assert!(wrong.status == Some(2) && wrong.err.contains("Raedy"), "{wrong:?}");

    // A wait continues over a kill of the daemon, and sees what happens after it.
    let waits = |wanted: &str| {
        let told = daemon.root().join(format!("waits-for-{wanted}"));
        let mut command = agentctl(&daemon, &["--verbose", "wait", id, "--for", wanted, "--timeout", "10m"]);
        (command.stderr(fs::File::create(&told).unwrap()).spawn().unwrap(), told)
    };
    let ((waiting, told), (deleted, told_too)) = (waits("phase=stopped"), waits("deleted"));
    let has_begun = || [&told, &told_too].iter().all(|told| fs::read_to_string(told).unwrap().contains("waiting for"));
    until("both wait", has_begun).await;
    let mut daemon = daemon;
    daemon.kill9();
    daemon.run().await;
    session.stop().await;
    assert_eq!(end_of(waiting).await.status, Some(0), "{}", fs::read_to_string(&told).unwrap());
    daemon.client.call("DELETE", &session.path(""), "").await;
    assert_eq!(end_of(deleted).await.status, Some(0));
    let gone = ctl(&daemon, &["wait", id, "--for", "deleted", "--timeout", "0"]).await;
    assert_eq!(gone.status, Some(0), "{gone:?}");
    let unknown = ctl(&daemon, &["wait", id]).await;
    assert_eq!(unknown.status, Some(1), "{unknown:?}");
}

#[test]
fn the_table_in_the_book_is_the_program_s() {
    let page = fs::read_to_string("../docs/guide/specs.md").unwrap();
    for field in FIELDS {
        let row = format!("| `{}` | {} | {} |", field.name, field.effect.describe(), field.detail);
        assert!(page.contains(&row), "docs/guide/specs.md lacks the row\n{row}");
    }
}
