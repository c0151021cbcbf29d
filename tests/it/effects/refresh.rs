//! Values that expire. The daemon asks for them again before their end, while the agent runs.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use agentd_api::environment::{DifferenceView, Refresh};
use agentd_api::event::{Body, EnvironmentRefreshed};
use agentd_api::session::Phase;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, SessionView};

use super::{
    GivenChange, Kind, ValueSource, agents, condition, environment, files, prepared, script, spec, started, variable,
};
use crate::harness::digest::sha256;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, until};

fn is_current(view: &SessionView, status: ConditionStatus, reason: &str) -> bool {
    let current = condition(view, ConditionType::EnvironmentCurrent);
    current.is_some_and(|current| current.status == status && current.reason == reason)
}

fn refreshes(session: &Session) -> Vec<EnvironmentRefreshed> {
    let bodies = session.journal().into_iter().map(|event| event.body);
    bodies.filter_map(|body| if let Body::EnvironmentRefreshed(one) = body { Some(one) } else { None }).collect()
}

/// A file from `EFFECT_A`, a variable from `EFFECT_B`, and a constant variable, each valid for a second.
const LIMITED: &[GivenChange<'static>] = &[
    ("A_FILE", Kind::File("token", ValueSource::Variable("EFFECT_A")), Some(1000)),
    ("A_VALUE", Kind::Set(ValueSource::Variable("EFFECT_B")), Some(1000)),
    ("THE_SAME", Kind::Set(ValueSource::Text("x")), Some(1000)),
    ("PATH", Kind::Prepend(ValueSource::Text("/from/corp")), Some(3_600_000)),
    ("FOR_EVER", Kind::Set(ValueSource::Variable("EFFECT_B")), None),
];

fn effects(daemon: &Daemon, a: &str, b: &str) {
    script(daemon, &format!("export EFFECT_A={a} EFFECT_B={b}\n"));
}

#[tokio::test]
async fn what_expires_is_asked_for_again_files_in_their_place_and_variables_by_name() {
    let daemon = started(&[("corp", LIMITED)]).await;
    effects(&daemon, "planted-token-1", "one");
    let session = daemon.session(&spec(&daemon)).await;
    let begun = environment(&daemon, &session).await;
    assert!(variable(&begun, "A_FILE").expires_at.is_some() && variable(&begun, "PATH").expires_at.is_some());
    assert!(variable(&begun, "FOR_EVER").expires_at.is_none());
    session.wait_for("all that expired is the same", |view| is_current(view, ConditionStatus::True, "Refreshed")).await;

    // A new content replaces the file at its path, and the daemon masks the new content.
    effects(&daemon, "planted-token-2", "one");
    let file = files(&daemon, &session).join("token");
    until("the file is written anew", || fs::read_to_string(&file).is_ok_and(|text| text == "planted-token-2")).await;
    assert_eq!(agents(&session, "cat \"$A_FILE\"").await, "planted-token-2");
    assert!(is_current(&session.view().await, ConditionStatus::True, "Refreshed"));
    assert_eq!(session.turn("say planted-token-1 planted-token-2").await.text, "‹secret› ‹secret›");

    // A variable of the agent cannot change, so the condition names the variable.
    effects(&daemon, "planted-token-3", "two");
    let view = session
        .wait_for("the variable is named", |view| is_current(view, ConditionStatus::False, "VariablesExpired"))
        .await;
    let current = condition(&view, ConditionType::EnvironmentCurrent).unwrap();
    assert!(current.message.contains("A_VALUE of corp since 20"), "{current:?}");
    for name in ["THE_SAME", "FOR_EVER", "A_FILE", "PATH", "planted"] {
        assert!(!current.message.contains(name), "{current:?}");
    }
    assert_eq!(agents(&session, "printenv A_VALUE").await, "one\n");
    let refreshes = refreshes(&session);
    let last = refreshes.last().unwrap();
    assert_eq!((last.launch, last.files.as_slice(), last.stale.len()), (1, &["token".to_owned()][..], 1));
    assert!(last.expires_at.is_some());
    // A refresh happens once every 0.8 seconds, and not more often.
    let (first, renewed) = (variable(&begun, "A_FILE").expires_at.unwrap(), last.expires_at.unwrap());
    let (span, times) = (renewed.duration_since(first).as_millis(), i128::try_from(refreshes.len()).unwrap());
    assert!(span >= 790 * (times - 1), "{span} ms: {refreshes:#?}");

    let now = environment(&daemon, &session).await;
    let stored = variable(&now, "A_FILE").file.as_ref().unwrap();
    assert!([sha256("planted-token-3"), sha256("planted-token-2")].contains(&stored.digest), "{stored:?}");
    assert_eq!(variable(&now, "A_VALUE").value.as_ref().unwrap().display(), "one", "it is what the agent has");
    let path = session.path("/environment/diff?from=last&to=now&values=true");
    let difference: DifferenceView = daemon.client.get(&path).await.expect(200);
    let changed: Vec<&str> = difference.changed.iter().map(|change| change.name.as_str()).collect();
    assert!(changed.contains(&"A_VALUE") && changed.contains(&"FOR_EVER"), "{changed:?}");

    session.stop().await;
    let view = session.resume().await;
    assert!(condition(&view, ConditionType::EnvironmentCurrent).unwrap().status == ConditionStatus::True, "{view:#?}");
    assert_eq!(agents(&session, "printenv A_VALUE").await, "two\n");
}

#[tokio::test]
async fn another_daemon_goes_on_asking_and_begins_with_what_is_over() {
    let mut daemon = started(&[("corp", LIMITED)]).await;
    effects(&daemon, "planted-token-1", "one");
    let session = daemon.session(&spec(&daemon)).await;
    let file = files(&daemon, &session).join("token");
    daemon.kill9();
    effects(&daemon, "planted-token-2", "one");
    daemon.run().await;
    until("the file is written anew", || fs::read_to_string(&file).is_ok_and(|text| text == "planted-token-2")).await;
    assert_eq!(agents(&session, "cat \"$A_FILE\"").await, "planted-token-2");

    // The agent ends while no daemon runs. The next daemon removes its files.
    let view = session.view().await;
    daemon.kill9();
    crate::harness::process::kill9(view.status.agent_pid.unwrap());
    crate::harness::process::gone(&[view.status.keeper_pid.unwrap()]).await;
    assert!(file.exists());
    daemon.run().await;
    session.wait_for_phase(Phase::Failed).await;
    assert!(!files(&daemon, &session).exists());
}

#[tokio::test]
async fn a_kill_between_the_writing_and_the_journal_loses_nothing() {
    let mut daemon = prepared(&[("corp", LIMITED)]);
    let faults = daemon.state().join("faults");
    fs::create_dir(&faults).unwrap();
    daemon.run().await;
    effects(&daemon, "planted-token-1", "one");
    let session = daemon.session(&spec(&daemon)).await;
    let file = files(&daemon, &session).join("token");
    effects(&daemon, "planted-token-2", "one");
    let mut passed = 0;
    let before = loop {
        let before = refreshes(&session).len();
        // The only records of an idle session are refreshes and conditions of expired values.
        passed += 1;
        fs::write(faults.join("daemon.append.before"), format!("pause at {passed}")).unwrap();
        until("the refresh is about to be recorded", || faults.join("daemon.append.before.hit").exists()).await;
        if fs::read_to_string(&file).unwrap() == "planted-token-2" {
            break before;
        }
        fs::remove_file(faults.join("daemon.append.before.hit")).unwrap();
    };
    daemon.kill9();
    let recorded = refreshes(&session).len();
    assert!(recorded <= before + 1, "{recorded} after {before}");
    fs::remove_file(faults.join("daemon.append.before.hit")).unwrap();
    daemon.run().await;
    until("it is recorded", || refreshes(&session).len() > recorded).await;
    assert_eq!(refreshes(&session)[recorded].files, ["token"]);
    assert_eq!(agents(&session, "cat \"$A_FILE\"").await, "planted-token-2");
}

#[tokio::test]
async fn a_refresh_that_fails_is_said_is_tried_again_with_pauses_and_holds_nothing_up() {
    let daemon = started(&[("corp", LIMITED)]).await;
    effects(&daemon, "planted-token-1", "one");
    let session = daemon.session(&spec(&daemon)).await;
    let (ran, hold) = (daemon.root().join("ran"), daemon.root().join("hold"));
    fs::write(&hold, "").unwrap();
    let begun = Instant::now();
    script(
        &daemon,
        &format!(
            "echo x >> {ran}\nwhile [ -e {hold} ]; do sleep 0.05; done\necho sorry >&2\nexit 3\n",
            ran = quoted(&ran),
            hold = quoted(&hold)
        ),
    );
    let tries = || fs::read_to_string(&ran).map_or(0, |text| text.lines().count());
    until("a refresh is under way", || tries() == 1).await;
    assert_eq!(session.turn("say still here").await.text, "still here");
    assert_eq!(tries(), 1, "one at a time");
    fs::remove_file(&hold).unwrap();
    let view =
        session.wait_for("the failure is said", |view| is_current(view, ConditionStatus::False, "RefreshFailed")).await;
    let current = condition(&view, ConditionType::EnvironmentCurrent).unwrap();
    assert!(current.message.contains("env-script") && current.message.contains("sorry"), "{current:?}");
    until("it was tried three times", || tries() == 3).await;
    assert!(begun.elapsed() >= Duration::from_secs(3), "after one second and after two");
    let failed = |event: agentd_api::Event| match event.body {
        Body::Condition(condition) if condition.reason == "RefreshFailed" => Some(condition.status),
        _ => None,
    };
    let said: Vec<_> = session.journal().into_iter().filter_map(failed).collect();
    let both = [ConditionStatus::True, ConditionStatus::False];
    assert!(said == both || said == both[1..], "before the end and after it, what is the same is said once: {said:?}");

    effects(&daemon, "planted-token-2", "one");
    session.wait_for("it is well again", |view| is_current(view, ConditionStatus::True, "Refreshed")).await;
    assert_eq!(agents(&session, "cat \"$A_FILE\"").await, "planted-token-2");
}

/// A file and a variable that are valid for this number of milliseconds.
fn holding(milliseconds: u64) -> [GivenChange<'static>; 2] {
    [
        ("A_FILE", Kind::File("token", ValueSource::Variable("EFFECT_A")), Some(milliseconds)),
        ("A_VALUE", Kind::Set(ValueSource::Variable("EFFECT_B")), Some(milliseconds)),
    ]
}

#[tokio::test]
async fn what_expires_is_another_before_its_end_and_a_variable_is_said_to_hold_until_then() {
    const VALIDITY: u64 = 10_000;
    let mut daemon = started(&[("corp", &holding(VALIDITY))]).await;
    effects(&daemon, "planted-token-1", "one");
    let session = daemon.session(&spec(&daemon)).await;
    let first = variable(&environment(&daemon, &session).await, "A_FILE").expires_at.unwrap();
    let built = session.journal().into_iter().find_map(|event| match event.body {
        Body::EnvironmentBuilt(built) => Some((event.time, built)),
        _ => None,
    });
    let (recorded, built) = built.unwrap();
    let (expires, renews) = (built.expires_at.unwrap(), built.renew_at.unwrap());
    let lead = expires.duration_since(renews).as_millis();
    assert_eq!(expires, first);
    // The lead is a fifth of the validity, minus at most a quarter of that fifth. A busy machine records the refresh
    // later than its start.
    let least = expires.duration_since(recorded).as_millis() * 3 / 20 - 1;
    assert!((least..=2000).contains(&lead), "{lead} ms before the end, and at least {least}");

    // Another daemon keeps the schedule.
    daemon.kill9();
    effects(&daemon, "planted-token-2", "two");
    daemon.run().await;
    let file = files(&daemon, &session).join("token");
    until("the file is written anew", || fs::read_to_string(&file).is_ok_and(|text| text == "planted-token-2")).await;
    until("it is recorded", || !refreshes(&session).is_empty()).await;
    let events = session.journal();
    let refreshed = events.iter().find(|event| matches!(event.body, Body::EnvironmentRefreshed(_))).unwrap();
    assert!(refreshed.time >= renews, "{} is before {renews}", refreshed.time);
    // A machine that is busy for longer than the lead refreshes late. The test must not fail for that reason.
    let slow = refreshed.time.duration_since(renews).as_millis() > lead;
    assert!(slow || refreshed.time < expires, "{} is not before {expires}", refreshed.time);
    let said: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::Condition(one) if one.kind == ConditionType::EnvironmentCurrent => Some(one.reason.as_str()),
            _ => None,
        })
        .collect();
    // The end may be recorded already: the journal is read some time after the refresh.
    assert!(slow || said.contains(&"VariablesExpiring"), "{said:?}");
    let view =
        session.wait_for("its end is said", |view| is_current(view, ConditionStatus::False, "VariablesExpired")).await;
    let current = condition(&view, ConditionType::EnvironmentCurrent).unwrap();
    assert!(current.last_transition_time >= expires, "{current:?} is said before {expires}");
    assert!(current.message.contains("A_VALUE of corp since 20"), "{current:?}");
}

#[tokio::test]
async fn what_cannot_be_asked_for_again_holds_until_its_own_end_and_both_are_said() {
    let daemon = started(&[("corp", &holding(10_000))]).await;
    effects(&daemon, "planted-token-1", "one");
    let session = daemon.session(&spec(&daemon)).await;
    let expires = variable(&environment(&daemon, &session).await, "A_FILE").expires_at.unwrap();
    let tried = daemon.root().join("tried");
    script(&daemon, &format!("[ -e {0} ] || echo > {0}\necho no network >&2\nexit 3\n", quoted(&tried)));
    session.wait_for("the end is said", |view| is_current(view, ConditionStatus::False, "RefreshFailed")).await;
    let said: Vec<Condition> = session
        .journal()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::Condition(one) if one.reason == "RefreshFailed" => Some(one),
            _ => None,
        })
        .collect();
    let (after, before) = said.split_last().unwrap();
    assert!(after.status == ConditionStatus::False && after.last_transition_time >= expires, "{said:#?}");
    if let [before] = before {
        assert!(before.status == ConditionStatus::True && before.last_transition_time < expires, "{said:#?}");
        assert!(before.message.contains("no network"), "{before:#?}");
        assert!(before.message.contains(&format!("valid until {expires}")), "{before:#?}");
    } else {
        // A machine that is busy for longer than the lead records the failure once.
        let tried = fs::metadata(&tried).unwrap().modified().unwrap() + Duration::from_secs(1);
        assert!(before.is_empty() && tried > SystemTime::from(expires), "{said:#?}");
    }
    assert_eq!(fs::read_to_string(files(&daemon, &session).join("token")).unwrap(), "planted-token-1");

    effects(&daemon, "planted-token-2", "one");
    session.wait_for("it is well again", |view| is_current(view, ConditionStatus::True, "Refreshed")).await;
    assert_eq!(agents(&session, "cat \"$A_FILE\"").await, "planted-token-2");
}

/// Sets the user's script. The script records its start and its end.
fn noting(daemon: &Daemon, work: &str) {
    let note = |name: &str| format!("date +%s%3N >> {}\n", quoted(daemon.root().join(name)));
    script(daemon, &format!("{}{work}\n{}", note("begun"), note("done")));
}

/// Waits for `times` refreshes. Returns the milliseconds from the end of each call of the providers to the start of the
/// next.
async fn pauses(daemon: &Daemon, session: &Session, times: usize) -> Vec<i64> {
    until("it was asked often enough", || refreshes(session).len() >= times).await;
    let noted = |name: &str| -> Vec<i64> {
        let text = fs::read_to_string(daemon.root().join(name)).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let (begun, done) = (noted("begun"), noted("done"));
    // The first call belongs to the launch.
    (1..times).map(|call| begun[call + 1] - done[call]).collect()
}

#[tokio::test]
async fn a_provider_whose_answer_holds_for_no_time_is_not_asked_in_a_loop() {
    let daemon = started(&[("corp", &holding(0))]).await;
    noting(&daemon, "export EFFECT_A=planted-token-1 EFFECT_B=one");
    let session = daemon.session(&spec(&daemon)).await;
    let pauses = pauses(&daemon, &session, 4).await;
    assert!(pauses.iter().all(|pause| *pause >= 790), "{pauses:?}");
}

#[tokio::test]
async fn what_has_expired_when_it_comes_is_asked_for_after_pauses_that_double() {
    let short: &[GivenChange<'_>] = &[("A_VALUE", Kind::Set(ValueSource::Text("x")), Some(1000))];
    let long: &[GivenChange<'_>] = &[("ANOTHER", Kind::Set(ValueSource::Text("x")), Some(3_600_000))];
    let mut daemon = prepared(&[("corp", short), ("after", long)]);
    // The script runs between both providers, and takes longer than the first provider's answer is valid.
    let step = |plugin: &str| format!("[[environment.providers]]\nplugin = \"{plugin}\"\n");
    let (slow, after) = (step("env-script"), step("after"));
    daemon.configure(|config| config.replace(&slow, "").replace(&after, &format!("{slow}{after}")));
    noting(&daemon, "sleep 1.2");
    daemon.run().await;
    let session = daemon.session(&spec(&daemon)).await;
    let pauses = pauses(&daemon, &session, 4).await;
    assert!(pauses[0] >= 1000 && pauses[1] >= 2000 && pauses[2] >= 4000, "{pauses:?}");
    let view = session.view().await;
    let current = condition(&view, ConditionType::EnvironmentCurrent).unwrap();
    assert_eq!((current.status, current.reason.as_str()), (ConditionStatus::False, "ExpiredOnArrival"));
    assert!(current.message.contains("A_VALUE of corp") && !current.message.contains("ANOTHER"), "{current:?}");
}

#[tokio::test]
async fn what_was_stored_is_not_given_again_beyond_its_time() {
    let daemon = started(&[("corp", &[("A_VALUE", Kind::Set(ValueSource::Variable("EFFECT_B")), Some(1000))])]).await;
    effects(&daemon, "x", "one");
    let mut spec = spec(&daemon);
    spec.environment.refresh = Some(Refresh::Stored);
    let session = daemon.session(&spec).await;
    session.stop().await;
    effects(&daemon, "x", "two");
    let expires = variable(&environment(&daemon, &session).await, "A_VALUE").expires_at.unwrap();
    until("it is over", || SystemTime::now() > SystemTime::from(expires)).await;
    let view = session.resume().await;
    let ready = condition(&view, ConditionType::EnvironmentReady).unwrap();
    assert_eq!(ready.reason, "BuiltAnew");
    assert!(ready.message.contains("A_VALUE of corp expired at 20"), "{ready:?}");
    assert_eq!(agents(&session, "printenv A_VALUE").await, "two\n");
}

#[tokio::test]
async fn a_provider_that_could_not_be_loaded_is_loaded_for_a_renewal_when_its_file_is_mended() {
    let daemon = started(&[("corp", LIMITED)]).await;
    effects(&daemon, "planted-token-1", "one");
    let session = daemon.session(&spec(&daemon)).await;
    let component = daemon.root().join("config/corp.wasm");
    let good = fs::read(&component).unwrap();
    fs::write(&component, b"\0asm\x0d\0\x01\0 another").unwrap();
    daemon.client.call("POST", "/v1/reload", "").await.expect::<serde_json::Value>(200);
    let view =
        session.wait_for("the failure is said", |view| is_current(view, ConditionStatus::False, "RefreshFailed")).await;
    let current = condition(&view, ConditionType::EnvironmentCurrent).unwrap();
    assert!(current.message.contains("is not the pinned one"), "{current:?}");

    // The test starts no launch and no reload.
    fs::write(&component, good).unwrap();
    session.wait_for("it is well again", |view| is_current(view, ConditionStatus::True, "Refreshed")).await;
    assert_eq!(session.view().await.status.launches, 1);
}
