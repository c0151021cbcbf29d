//! Prerequisites of a session are checked before its launch. The launch is refused with all missing prerequisites,
//! waits for them, or is forced. The checks are repeated while the session runs.

use std::fs;
use std::time::{Duration, Instant};

use agentd_api::plugin::PluginView;
use agentd_api::prerequisite::{CheckReport, Moment, Outcome, PrerequisiteList, PrerequisiteView};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use agentd_api::{Body, Code, Event};
use serde_json::json;

use crate::guest::Guest;
use crate::harness::digest::sha256;
use crate::harness::{Daemon, Response, Session, within};

/// Returns a check that reads the file of this name in the configuration directory. The first letter is the outcome
/// (pass, warn, fail, unknown), and the whole content is the summary. Without the file, the check fails with the
/// summary `hostile`. Its remedy is `mend it`.
fn reading(file: &str) -> Vec<u8> {
    let path = format!("{{config}}/{file}");
    let fields = format!("(data (i32.const 512) \"{path}\") (data (i32.const 700) \"mend it\")");
    let provide = format!(
        r"(i32.store8 (i32.const 72) (i32.const 2))
          (i32.store (i32.const 92) (i32.const 1)) (i32.store (i32.const 96) (i32.const 700))
          (i32.store (i32.const 100) (i32.const 7))
          (call $read (i32.const 512) (i32.const {length}) (i32.const 600))
          (if (i32.eqz (i32.load8_u (i32.const 600))) (then
            (i32.store (i32.const 76) (i32.load (i32.const 604))) (i32.store (i32.const 80) (i32.load (i32.const 608)))
            {p} {w} {u}))",
        length = path.len(),
        p = letter('p', 0),
        w = letter('w', 1),
        u = letter('u', 3),
    );
    let imports = r#"(import "agentd:plugin/file@1.0.0" "read" (func $read (param i32 i32 i32)))"#;
    Guest { imports, fields: &fields, provide: &provide, ..Guest::default() }.prerequisite()
}

fn letter(letter: char, outcome: u8) -> String {
    let (first, letter) = ("(i32.load8_u (i32.load (i32.const 604)))", u32::from(letter));
    format!("(if (i32.eq {first} (i32.const {letter})) (then (i32.store8 (i32.const 72) (i32.const {outcome}))))")
}

/// Returns a check that waits for bytes from a listener on the port, and then runs in an endless loop.
fn listening(port: u16) -> Vec<u8> {
    let fields = "(data (i32.const 512) \"127.0.0.1\")
        (data (i32.const 528) \"\\00\\00\\00\\00\\00\\00\\00\\00\\10\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\")";
    let provide = format!(
        "(call $exchange (i32.const 512) (i32.const 9) (i32.const {port}) (i32.const 528) (i32.const 1) \
         (i64.const 600000) (i32.const 600)) (loop $again (br $again))"
    );
    let imports =
        r#"(import "agentd:plugin/network@1.0.0" "exchange" (func $exchange (param i32 i32 i32 i32 i32 i64 i32)))"#;
    Guest { imports, fields, provide: &provide, ..Guest::default() }.prerequisite()
}

/// Starts a daemon with prerequisites. Each has a name and further keys of its declaration. Its plugin reads the file
/// with the prerequisite's name.
pub(crate) async fn with(declared: &[(&str, &str)]) -> Daemon {
    let mut daemon = Daemon::prepare();
    declare(&daemon, declared);
    daemon.run().await;
    daemon
}

pub(crate) fn declare(daemon: &Daemon, declared: &[(&str, &str)]) {
    for (name, keys) in declared {
        add(daemon, name, &reading(name), "file = [\"{config}/**\"]", keys);
    }
}

/// Returns the name of a prerequisite's plugin. It differs from the names of built-in plugins.
fn plugin(name: &str) -> String {
    format!("{name}-of-text")
}

fn add(daemon: &Daemon, name: &str, component: &[u8], grant: &str, keys: &str) {
    let plugin = plugin(name);
    let folder = daemon.root().join("config/plugins");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{plugin}.wasm")), component).unwrap();
    let pin = sha256(component);
    daemon.configure(|config| {
        format!(
            "{config}\n[plugins.{plugin}]\nsha256 = \"{pin}\"\ngrant = {{ {grant} }}\n\
             [prerequisites.{name}]\nplugin = \"{plugin}\"\n{keys}\n"
        )
    });
}

pub(crate) const ALL: &str = "required_by = \"all\"";

/// Sets the content of the file that this prerequisite's check reads.
pub(crate) fn world(daemon: &Daemon, name: &str, state: &str) {
    let file = daemon.root().join("config").join(name);
    let new = file.with_extension("new");
    fs::write(&new, state).unwrap();
    fs::rename(new, file).unwrap();
}

pub(crate) fn met(view: &SessionView) -> Condition {
    condition(view).expect("it is looked at")
}

fn condition(view: &SessionView) -> Option<Condition> {
    let mut conditions = view.status.conditions.iter();
    conditions.find(|condition| condition.kind == ConditionType::PrerequisitesMet).cloned()
}

/// Returns the reports of the journal's last record of checks.
fn checked(journal: &[Event]) -> Vec<CheckReport> {
    let checks = journal.iter().filter_map(|event| match &event.body {
        Body::PrerequisitesChecked(checked) => Some(checked.clone()),
        _ => None,
    });
    let all: Vec<_> = checks.collect();
    let last = all.last().map_or(0, |last| last.launch);
    all.into_iter().filter(|checked| checked.launch == last).flat_map(|checked| checked.reports).collect()
}

async fn resume(daemon: &Daemon, session: &Session, query: &str) -> Response {
    daemon.client.call("POST", &session.path(&format!("/resume?{query}")), "").await
}

/// Resumes the session as soon as its prerequisites are met. A result that failed a moment ago is checked again soon.
async fn resumed(daemon: &Daemon, session: &Session) -> SessionView {
    within("it is resumed when all is there", async {
        while resume(daemon, session, "wait=60").await.status != 202 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    session.wait_for_phase(Phase::Idle).await
}

/// Creates a session that waits at most this long for its prerequisites, and returns the session once it waits.
async fn waiting(daemon: &Daemon, seconds: &str) -> Session {
    let spec = daemon.scripted(&[]);
    let path = format!("/v1/sessions?wait_for_prerequisites={seconds}");
    let view: SessionView = daemon.client.post(&path, &spec).await.expect(202);
    let session = Session::new(view.id, daemon.client.clone(), daemon.state());
    session.wait_for_phase(Phase::Waiting).await;
    session
}

pub(crate) async fn calls(daemon: &Daemon, name: &str) -> u64 {
    daemon.client.get(&format!("/v1/plugins/{}", plugin(name))).await.expect::<PluginView>(200).calls
}

async fn list(daemon: &Daemon) -> Vec<PrerequisiteView> {
    daemon.client.get("/v1/prerequisites").await.expect::<PrerequisiteList>(200).prerequisites
}

#[tokio::test]
async fn a_session_is_refused_with_everything_that_is_missing_and_resumed_when_it_is_there() {
    let keys = format!("{ALL}\nremedy = \"connect the VPN\"");
    let daemon = with(&[("vpn", &keys), ("lab", ALL), ("mount", ALL), ("other", "")]).await;
    world(&daemon, "vpn", "fail: no route");
    world(&daemon, "lab", "unknown: it does not say");
    world(&daemon, "mount", "pass");
    let session = daemon.create(&daemon.scripted(&[])).await;
    let condition = met(&session.wait_for_phase(Phase::Failed).await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "PrerequisiteFailed"));
    let missing = "lab (unknown): unknown: it does not say; mend it; vpn (fail): fail: no route; connect the VPN";
    assert_eq!(condition.message, missing);
    let journal = session.journal();
    let found: Vec<_> = checked(&journal).iter().map(|report| (report.name.clone(), report.outcome)).collect();
    let [lab, mount, vpn] = ["lab", "mount", "vpn"].map(str::to_owned);
    assert_eq!(found, [(lab, Outcome::Unknown), (mount, Outcome::Pass), (vpn, Outcome::Fail)]);
    assert!(!journal.iter().any(|event| matches!(event.body, Body::EnvironmentBuilt(_))), "nothing was built");

    let problem = resume(&daemon, &session, "").await.problem();
    assert_eq!((problem.status, problem.code), (409, Code::PrerequisitesNotMet));
    let names: Vec<_> = problem.prerequisites.iter().map(|report| report.name.as_str()).collect();
    assert_eq!(names, ["lab", "vpn"]);
    assert_eq!(problem.prerequisites[1].remedy.as_deref(), Some("connect the VPN"));
    assert_eq!(session.view().await.status.launches, 1, "nothing was begun");

    world(&daemon, "vpn", "pass");
    world(&daemon, "lab", "pass");
    let condition = met(&resumed(&daemon, &session).await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::True, "Passed"));
    assert!(!condition.message.contains("other"), "{condition:?}");
}

#[tokio::test]
async fn what_only_warns_starts_the_session_and_is_told_to_the_agent_by_name() {
    let daemon = with(&[("vpn", &format!("{ALL}\non_failure = \"warn\"")), ("lab", ALL)]).await;
    world(&daemon, "lab", "warn: a licence is short");
    let session = daemon.session(&daemon.scripted(&[])).await;
    let condition = met(&session.view().await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::True, "PrerequisiteWarns"));
    assert!(
        condition.message.contains("a licence is short") && condition.message.contains("vpn (fail)"),
        "{condition:?}"
    );
    session.turn("say one").await;
    session.stop().await;
    session.resume().await;
    let turn = session.turn("say two").await;
    let note = turn.events.iter().find_map(|event| match &event.body {
        Body::TurnStarted(started) => started.note.clone(),
        _ => None,
    });
    let note = note.expect("it was resumed");
    assert!(note.contains("Unmet prerequisites of this session: lab (warn), vpn (fail)."), "{note}");
    assert!(!note.contains("licence"), "{note}");
}

#[tokio::test]
async fn a_session_needs_what_it_names_and_what_its_tags_need_and_nothing_undeclared() {
    let daemon = with(&[("vpn", ""), ("lab", "required_by = { tags = [\"fpga\"] }"), ("mount", "")]).await;
    let refused =
        async |spec: SessionSpec| met(&daemon.create(&spec).await.wait_for_phase(Phase::Failed).await).message;
    let message = refused(SessionSpec { requires: vec!["vpn".to_owned()], ..daemon.scripted(&[]) }).await;
    assert!(message.contains("vpn (fail)") && !message.contains("lab"), "{message}");
    let message = refused(SessionSpec { tags: vec!["fpga".to_owned()], ..daemon.scripted(&[]) }).await;
    assert!(message.contains("lab (fail)") && !message.contains("vpn"), "{message}");
    assert_eq!(met(&daemon.session(&daemon.scripted(&[])).await.view().await).reason, "NoneRequired");
    let spec = SessionSpec { requires: vec!["gone".to_owned()], ..daemon.scripted(&[]) };
    assert_eq!(daemon.client.post("/v1/sessions", &spec).await.problem().code, Code::NoSuchPrerequisite);
}

#[tokio::test]
async fn a_session_that_waits_starts_within_two_seconds_of_the_last_thing_being_there() {
    let daemon = with(&[("vpn", ALL), ("lab", ALL)]).await;
    let session = waiting(&daemon, "60").await;
    let condition = met(&session.view().await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Waiting"));
    assert!(condition.message.contains("lab (fail)") && condition.message.contains("vpn (fail)"), "{condition:?}");
    world(&daemon, "vpn", "pass");
    session.wait_for("only one is missing", |view| !met(view).message.contains("vpn")).await;
    assert_eq!(session.view().await.status.phase, Phase::Waiting);
    world(&daemon, "lab", "pass");
    let there = Instant::now();
    session.wait_for("it is waited for no longer", |view| view.status.phase != Phase::Waiting).await;
    let took = there.elapsed();
    session.wait_for_phase(Phase::Idle).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(met(&session.view().await).reason, "Passed");
}

#[tokio::test]
async fn a_wait_that_runs_out_says_what_was_still_missing() {
    let daemon = with(&[("vpn", ALL), ("lab", ALL)]).await;
    world(&daemon, "lab", "pass");
    let session = waiting(&daemon, "1.5").await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let condition = met(&view);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "WaitTimedOut"));
    assert_eq!(condition.message, "the wait is over, and still missing is vpn (fail): hostile; mend it");
    assert_eq!(view.status.message.as_deref(), Some(condition.message.as_str()));
}

#[tokio::test]
async fn a_session_that_waits_is_stopped_at_once() {
    let daemon = with(&[("vpn", ALL)]).await;
    let session = waiting(&daemon, "600").await;
    let condition = met(&session.stop().await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Stopped"));
    // No session waits any more, so the check no longer runs.
    world(&daemon, "vpn", "pass");
    assert_eq!(session.view().await.status.launches, 1);
    resumed(&daemon, &session).await;
}

#[tokio::test]
async fn a_wait_goes_on_under_the_next_daemon_and_keeps_its_limit() {
    let mut daemon = with(&[("vpn", ALL)]).await;
    let (first, second) = (waiting(&daemon, "600").await, waiting(&daemon, "2").await);
    let until = |session: &Session| {
        session.journal().iter().find_map(|event| match &event.body {
            Body::LaunchStarted(started) => started.wait_until,
            _ => None,
        })
    };
    let limit = until(&first);
    daemon.kill9();
    daemon.run().await;
    assert_eq!(met(&second.wait_for_phase(Phase::Failed).await).reason, "WaitTimedOut");
    first.wait_for_phase(Phase::Waiting).await;
    world(&daemon, "vpn", "pass");
    first.wait_for_phase(Phase::Idle).await;
    assert_eq!((first.view().await.status.launches, until(&first)), (1, limit));
}

#[tokio::test]
async fn a_forced_launch_goes_on_and_the_journal_has_who_forced_it() {
    let daemon = with(&[("vpn", ALL)]).await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    session.wait_for_phase(Phase::Failed).await;
    assert_eq!(resume(&daemon, &session, "force&wait_for_prerequisites=1").await.problem().code, Code::InvalidRequest);
    assert_eq!(resume(&daemon, &session, "force&wait=60").await.status, 202);
    let condition = met(&session.wait_for_phase(Phase::Idle).await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Forced"));
    let forced = session.journal().into_iter().find_map(|event| match event.body {
        Body::PrerequisitesForced(forced) => Some(forced),
        _ => None,
    });
    let forced = forced.expect("it is in the journal");
    assert_eq!((forced.launch, forced.missing.as_slice()), (2, &["vpn".to_owned()][..]));
    assert_eq!((forced.by.uid, forced.by.session), (nix::unistd::getuid().as_raw(), None));
    assert_eq!(forced.by.pid, Some(std::process::id()));
    // The force applied only to that launch, and the next launch is refused again.
    session.stop().await;
    assert_eq!(resume(&daemon, &session, "").await.problem().code, Code::PrerequisitesNotMet);
}

#[tokio::test]
async fn fifty_sessions_that_are_resumed_at_once_run_a_shared_check_once() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[limits]\nactive_sessions = 60\n"));
    declare(&daemon, &[("vpn", &format!("{ALL}\ncache = \"10m\""))]);
    daemon.run().await;
    // All fifty launches fail, and each session can be resumed.
    let mut sessions = Vec::new();
    for _ in 0..50 {
        sessions.push(daemon.create(&daemon.scripted(&[])).await);
    }
    for session in &sessions {
        session.wait_for_phase(Phase::Failed).await;
    }
    world(&daemon, "vpn", "pass");
    within("what failed holds no longer", async {
        while check(&daemon, "vpn").await.outcome != Outcome::Pass {
            tokio::task::yield_now().await;
        }
    })
    .await;
    reload(&daemon).await;
    let before = calls(&daemon, "vpn").await;
    let paths: Vec<String> = sessions.iter().map(|session| session.path("/resume")).collect();
    let mut asking = tokio::task::JoinSet::new();
    for path in paths {
        let client = daemon.client.clone();
        asking.spawn(async move { client.call("POST", &path, "").await.status.as_u16() });
    }
    assert_eq!(asking.join_all().await, [202; 50]);
    for session in &sessions {
        session
            .wait_for("what it needs is there", |view| condition(view).is_some_and(|met| met.reason == "Passed"))
            .await;
    }
    assert_eq!(calls(&daemon, "vpn").await - before, 1);
}

#[tokio::test]
async fn fifty_sessions_that_wait_look_once_a_second_however_long_a_look_takes() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[limits]\nactive_sessions = 60\n"));
    let port = listener.local_addr().unwrap().port();
    let keys = format!("{ALL}\ntime = \"4s\"");
    add(&daemon, "silent", &listening(port), "network = [\"127.0.0.1:*\"]", &keys);
    daemon.run().await;
    let mut sessions = Vec::new();
    for _ in 0..50 {
        let path = "/v1/sessions?wait_for_prerequisites=600";
        let view: SessionView = daemon.client.post(path, &daemon.scripted(&[])).await.expect(202);
        sessions.push(Session::new(view.id, daemon.client.clone(), daemon.state()));
    }
    let looks = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            open.push((listener.accept().await.unwrap().0, Instant::now()));
            // The first connection was before the sessions waited.
            if let [_, (_, first), .., (_, last)] = open.as_slice()
                && open.len() == 8
            {
                return *last - *first;
            }
        }
    });
    for session in &sessions {
        session.wait_for_phase(Phase::Waiting).await;
    }
    let took = within("it is looked at eight times", looks).await.unwrap();
    assert!((Duration::from_secs(5)..Duration::from_secs(12)).contains(&took), "six looks after one took {took:?}");
}

pub(crate) async fn check(daemon: &Daemon, name: &str) -> CheckReport {
    daemon.client.post(&format!("/v1/prerequisites/{name}/check"), &json!({})).await.expect(200)
}

async fn reload(daemon: &Daemon) {
    assert_eq!(daemon.client.call("POST", "/v1/reload", "").await.status, 200);
}

#[tokio::test]
async fn what_is_checked_after_the_environment_is_shared_by_equal_ones() {
    let daemon = with(&[("licence", &format!("{ALL}\nmoment = \"after-environment\"\ncache = \"10m\""))]).await;
    world(&daemon, "licence", "pass");
    for _ in 0..3 {
        let session = daemon.session(&daemon.scripted(&[])).await;
        assert_eq!(met(&session.view().await).reason, "Passed");
    }
    assert_eq!(calls(&daemon, "licence").await, 1);
    let spec = SessionSpec { env_setup: Some("export EDITOR=vi".to_owned()), ..daemon.scripted(&[]) };
    let other = daemon.session(&spec).await;
    assert_eq!(calls(&daemon, "licence").await, 2);
    let view = list(&daemon).await.remove(0);
    assert_eq!((view.name.as_str(), view.moment, view.used_by.len()), ("licence", Moment::AfterEnvironment, 4));

    // A check on request needs a session. A launch that it refuses has an environment, but no agent.
    let path = "/v1/prerequisites/licence/check";
    assert_eq!(daemon.client.post(path, &json!({})).await.problem().code, Code::InvalidRequest);
    world(&daemon, "licence", "fail: none left");
    let report: CheckReport = daemon.client.post(path, &json!({ "session": other.id })).await.expect(200);
    assert_eq!((report.outcome, report.summary.as_str()), (Outcome::Fail, "fail: none left"));
    let spec = SessionSpec { env_setup: Some("export EDITOR=emacs".to_owned()), ..daemon.scripted(&[]) };
    let refused = daemon.create(&spec).await;
    let view = refused.wait_for_phase(Phase::Failed).await;
    assert_eq!(met(&view).reason, "PrerequisiteFailed");
    let journal = refused.journal();
    assert!(journal.iter().any(|event| matches!(event.body, Body::EnvironmentBuilt(_))));
    let failures = journal.iter().filter(|event| matches!(event.body, Body::LaunchFailed(_))).count();
    assert_eq!(failures, 1, "{journal:#?}");
    assert!(!journal.iter().any(|event| matches!(event.body, Body::KeeperStarted(_))));
}

#[tokio::test]
async fn a_check_that_hangs_ends_at_its_time_and_holds_up_nobody() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut daemon = Daemon::prepare();
    let port = listener.local_addr().unwrap().port();
    let keys = format!("{ALL}\ntime = \"1s\"");
    add(&daemon, "silent", &listening(port), "network = [\"127.0.0.1:*\"]", &keys);
    daemon.run().await;
    let begun = Instant::now();
    let session = daemon.create(&daemon.scripted(&[])).await;
    let mut slowest = Duration::ZERO;
    let view = loop {
        let asked = Instant::now();
        assert_eq!(daemon.client.get("/healthz").await.status, 200);
        slowest = slowest.max(asked.elapsed());
        let view = session.view().await;
        if view.status.phase == Phase::Failed {
            break view;
        }
        assert!(begun.elapsed() < crate::harness::LIMIT, "{view:#?}");
    };
    let report = checked(&session.journal()).remove(0);
    assert_eq!(report.outcome, Outcome::Unknown);
    assert!((900..2500).contains(&report.took_ms), "{report:?}");
    assert!(report.summary.contains("took longer than its 1 s"), "{report:?}");
    assert!(met(&view).message.contains("silent (unknown)"), "{view:#?}");
    // A check that held up the endpoint would do so for its second.
    assert!(slowest < Duration::from_millis(500), "the slowest answer of /healthz took {slowest:?}");
}

#[tokio::test]
async fn a_drop_in_mid_session_is_in_the_condition_and_the_events_and_refuses_the_next_resume() {
    let keys = format!("{ALL}\ninterval = \"400ms\"");
    let after = format!("{keys}\nmoment = \"after-environment\"");
    let daemon = with(&[("vpn", &keys), ("licence", &after)]).await;
    world(&daemon, "vpn", "pass");
    world(&daemon, "licence", "pass");
    let session = daemon.session(&daemon.scripted(&[])).await;
    let (mut events, other) = (session.events("after=0").await, daemon.session(&daemon.scripted(&[])).await);
    world(&daemon, "vpn", "fail: it dropped");
    let dropped = |view: &SessionView| met(view).reason == "PrerequisiteFailed";
    for session in [&session, &other] {
        let condition = met(&session.wait_for("the drop is seen", dropped).await);
        assert_eq!(condition.message, "vpn (fail): fail: it dropped; mend it");
    }
    let is_change = |event: &Event| matches!(event.body, Body::PrerequisitesChanged(_));
    let seen = events.until("the drop is in the events", is_change).await;
    let Some(Body::PrerequisitesChanged(changed)) = seen.last().map(|event| event.body.clone()) else {
        panic!("{seen:?}")
    };
    assert_eq!((changed.reports.len(), changed.reports[0].name.as_str()), (1, "vpn"));
    // The daemon ends no agent because of the change.
    assert_eq!(session.turn("say still here").await.text, "still here");
    world(&daemon, "licence", "warn: one left");
    let written = || session.journal().iter().filter(|event| is_change(event)).count();
    crate::harness::until("the next change is seen", || written() == 2).await;
    other.stop().await;
    assert_eq!(resume(&daemon, &other, "").await.problem().code, Code::PrerequisitesNotMet);
    world(&daemon, "vpn", "pass");
    let condition = met(&session.wait_for("it is back", |view| !dropped(view)).await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::True, "PrerequisiteWarns"));
    assert_eq!(written(), 3, "what is as it was is not written");
    let view = list(&daemon).await.into_iter().find(|view| view.name == "vpn").unwrap();
    assert!(view.next_at.is_some() && view.used_by == [session.id.clone()], "{view:?}");
}

#[tokio::test]
async fn a_check_whose_plugin_could_not_be_loaded_is_made_when_its_file_is_mended() {
    let daemon = with(&[("vpn", &format!("{ALL}\ninterval = \"200ms\""))]).await;
    world(&daemon, "vpn", "pass");
    let session = daemon.session(&daemon.scripted(&[])).await;
    let component = daemon.root().join(format!("config/plugins/{}.wasm", plugin("vpn")));
    let good = fs::read(&component).unwrap();
    fs::write(&component, b"\0asm\x0d\0\x01\0 another").unwrap();
    reload(&daemon).await;
    let view = session.wait_for("it cannot be checked", |view| met(view).status == ConditionStatus::False).await;
    assert!(met(&view).message.contains("is not the pinned one"), "{view:#?}");
    // The check runs again without a launch or a reload.
    fs::write(&component, good).unwrap();
    session.wait_for("it is checked again", |view| met(view).status == ConditionStatus::True).await;
}

#[tokio::test]
async fn a_reload_takes_declarations_into_use() {
    let mut daemon = Daemon::prepare();
    add(&daemon, "vpn", &reading("vpn"), "file = [\"{config}/**\"]", "interval = \"200ms\"");
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(met(&session.view().await).reason, "NoneRequired");
    daemon.configure(|config| format!("{config}\nrequired_by = \"all\"\n"));
    reload(&daemon).await;
    // The running session needs the prerequisite from now on. A waiting session waits for the new declarations.
    session.wait_for("it is looked at", |view| met(view).reason == "PrerequisiteFailed").await;
    let refused = daemon.create(&daemon.scripted(&[])).await;
    assert!(met(&refused.wait_for_phase(Phase::Failed).await).message.contains("vpn (fail)"));
    let waits = waiting(&daemon, "600").await;
    daemon.configure(|config| config.replace("required_by = \"all\"", ""));
    reload(&daemon).await;
    let view = waits.wait_for_phase(Phase::Idle).await;
    assert_eq!((met(&view).reason.as_str(), view.status.launches), ("NoneRequired", 1));
}

#[tokio::test]
async fn a_restart_without_what_it_needs_is_tried_again_after_longer_pauses_and_not_for_ever() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        let often = "restart = \"on-failure\"\nrestart_first = \"10ms\"\nrestart_longest = \"40ms\"";
        config.replace("restart = \"never\"", often)
    });
    declare(&daemon, &[("vpn", ALL)]);
    world(&daemon, "vpn", "pass");
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    world(&daemon, "vpn", "fail: it dropped");
    within("the check's own cache is over", async {
        while check(&daemon, "vpn").await.outcome == Outcome::Pass {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let agent = session.view().await.status.agent_pid.expect("it runs");
    nix::sys::signal::kill(crate::harness::process::pid(agent), nix::sys::signal::Signal::SIGKILL).unwrap();
    let parked = |view: &SessionView| view.status.phase == Phase::Failed && view.status.launches == 6;
    let view = session.wait_for("it is parked", parked).await;
    assert_eq!(met(&view).reason, "PrerequisiteFailed");
    world(&daemon, "vpn", "pass");
    assert_eq!(resumed(&daemon, &session).await.status.launches, 7, "nobody had started it meanwhile");
}

#[tokio::test]
async fn what_a_reload_removes_or_changes_is_judged_anew_for_those_that_run() {
    let never = format!("{ALL}\ninterval = \"0s\"");
    let daemon = with(&[("vpn", &format!("{never}\non_failure = \"warn\"")), ("lab", &never)]).await;
    world(&daemon, "lab", "warn: one left");
    let session = daemon.session(&daemon.scripted(&[])).await;
    let reason = |view: &SessionView| met(view).reason;
    let condition = met(&session.view().await);
    assert!(condition.message.contains("lab (warn)") && condition.message.contains("vpn (fail)"), "{condition:?}");
    // The failed check only caused a warning so far. From now on it prevents the next launch.
    daemon.configure(|config| config.replace("\non_failure = \"warn\"", ""));
    reload(&daemon).await;
    let view = session.wait_for("it is judged by what is declared", |view| reason(view) == "PrerequisiteFailed").await;
    assert!(!met(&view).message.contains("lab"), "{view:?}");
    // The remedy changes, and a prerequisite is added. The new prerequisite is checked even though its interval is 0.
    daemon.configure(|config| config.replacen(&never, &format!("{never}\nremedy = \"dial in\""), 1));
    declare(&daemon, &[("mount", &never)]);
    reload(&daemon).await;
    let told = |view: &SessionView| met(view).message.contains("dial in") && met(view).message.contains("mount (fail)");
    session.wait_for("what is new is looked at", told).await;
    // No session needs a prerequisite any more.
    daemon.configure(|config| config.replace(ALL, ""));
    reload(&daemon).await;
    session.wait_for("what is removed is gone", |view| reason(view) == "NoneRequired").await;
    assert_eq!(session.turn("say still here").await.text, "still here");
}
