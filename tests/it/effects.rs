//! What a provider gives beside plain variables: secrets of the configuration, files, and what holds for a limited time.
//!
//! The provider is a component that is written down in the test. What changes of what it gives comes out of the environment so far, which
//! the user's script makes: so a test says what the next answer is by writing a file.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use agentd_api::environment::{DifferenceView, EnvironmentView, Refresh, VariableView};
use agentd_api::event::{Body, EnvironmentRefreshed};
use agentd_api::session::{
    Condition, ConditionStatus, ConditionType, PermissionPolicy, Phase, SessionSpec, SessionView,
};
use sha2::{Digest, Sha256};

use crate::guest::Guest;
use crate::harness::{Daemon, Session, until};

/// What the provider takes a value from.
#[derive(Clone, Copy)]
enum From<'a> {
    Text(&'a str),
    /// A variable of the environment so far, by a name of eight bytes.
    Variable(&'a str),
}

#[derive(Clone, Copy)]
enum Kind<'a> {
    Set(From<'a>),
    Unset,
    Prepend(From<'a>),
    Secret(&'a str),
    File(&'a str, From<'a>),
}

/// One change: of this variable, for so many milliseconds.
type Given<'a> = (&'a str, Kind<'a>, Option<u64>);

/// Where the changes are in the guest's memory, and how long one is.
const CHANGES: usize = 8192;
const CHANGE: usize = 56;

/// The guest's memory while it is being written down.
struct Memory {
    strings: Vec<u8>,
    changes: Vec<u8>,
    /// Calls that fetch a value from the environment so far.
    fetch: String,
}

impl Memory {
    /// Puts a text somewhere, and its place there.
    fn text(&mut self, at: usize, text: &str) {
        let place = 1024 + self.strings.len();
        self.strings.extend_from_slice(text.as_bytes());
        self.word(at, place);
        self.word(at + 4, text.len());
    }

    fn word(&mut self, at: usize, word: usize) {
        self.changes[at..at + 4].copy_from_slice(&u32::try_from(word).unwrap().to_le_bytes());
    }

    fn value(&mut self, at: usize, value: From<'_>) {
        match value {
            From::Text(text) => self.text(at, text),
            From::Variable(name) => {
                let name = u64::from_le_bytes(name.as_bytes().try_into().expect("a name of eight bytes"));
                let into = CHANGES + at;
                write!(self.fetch, "(call $find (local.get 10) (local.get 11) (i64.const {name}) (i32.const {into}))")
                    .unwrap();
            }
        }
    }
}

/// Looks for a variable in a list of them, and stores where its value is.
const FIND: &str = "(func $find (param $list i32) (param $count i32) (param $name i64) (param $into i32)
  (block $out (loop $next
    (br_if $out (i32.eqz (local.get $count)))
    (if (i32.and (i32.eq (i32.load offset=4 (local.get $list)) (i32.const 8))
                 (i64.eq (i64.load (i32.load (local.get $list))) (local.get $name)))
      (then (i32.store (local.get $into) (i32.load offset=8 (local.get $list)))
            (i32.store offset=4 (local.get $into) (i32.load offset=12 (local.get $list)))))
    (local.set $list (i32.add (local.get $list) (i32.const 16)))
    (local.set $count (i32.sub (local.get $count) (i32.const 1)))
    (br $next))))";

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "\\{byte:02x}").unwrap();
        text
    })
}

/// A component that gives these changes each time it is asked.
fn component(given: &[Given<'_>]) -> Vec<u8> {
    let mut memory = Memory { strings: Vec::new(), changes: vec![0; CHANGE * given.len()], fetch: String::new() };
    for (n, (name, kind, valid_for)) in given.iter().enumerate() {
        let at = CHANGE * n;
        memory.text(at + 4, name);
        memory.changes[at] = match *kind {
            Kind::Set(value) => {
                memory.value(at + 12, value);
                0
            }
            Kind::Unset => 1,
            Kind::Prepend(value) => {
                memory.value(at + 12, value);
                2
            }
            Kind::Secret(secret) => {
                memory.text(at + 12, secret);
                4
            }
            Kind::File(file, value) => {
                memory.text(at + 12, file);
                memory.value(at + 20, value);
                5
            }
        };
        if let Some(milliseconds) = valid_for {
            memory.changes[at + 40] = 1;
            memory.changes[at + 48..at + 56].copy_from_slice(&milliseconds.to_le_bytes());
        }
    }
    // It wants any secret: the want at 768 has its one pattern at 800.
    let want: Vec<u8> = [7_u32, 800, 1, 142, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    let fields = format!(
        "(data (i32.const 48) \"{}\") (data (i32.const 768) \"{}\") (data (i32.const 800) \"{}\") (data (i32.const 816) \"*\")
         (data (i32.const 1024) \"{}\") (data (i32.const {CHANGES}) \"{}\") {FIND}",
        escaped(&[0, 3, 0, 0, 1, 0, 0, 0]),
        escaped(&want),
        escaped(&[48, 3, 0, 0, 1, 0, 0, 0]),
        escaped(&memory.strings),
        escaped(&memory.changes),
    );
    let provide = format!(
        "{} (i32.store (i32.const 68) (i32.const {CHANGES})) (i32.store (i32.const 72) (i32.const {}))",
        memory.fetch,
        given.len()
    );
    Guest { fields: &fields, provide: &provide, pages: 32, ..Guest::default() }.provider()
}

/// A daemon whose pipeline ends with these providers, each by its name.
fn prepared(providers: &[(&str, &[Given<'_>])]) -> Daemon {
    let daemon = Daemon::prepare();
    let mut text = String::new();
    for plugin in ["snapshot", "whitelist", "env-script"] {
        writeln!(text, "[[environment.providers]]\nplugin = \"{plugin}\"").unwrap();
    }
    for (name, given) in providers {
        let component = component(given);
        let file = daemon.root().join(format!("config/{name}.wasm"));
        fs::write(&file, &component).unwrap();
        let pin = Sha256::digest(&component).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        writeln!(
            text,
            "[[environment.providers]]\nplugin = \"{name}\"\n\
             [plugins.{name}]\nfile = '{}'\nsha256 = \"{pin}\"\ngrant = {{ secret = [\"*\"] }}",
            file.display()
        )
        .unwrap();
    }
    daemon.configure(|config| format!("{config}\n{text}"));
    daemon
}

async fn started(providers: &[(&str, &[Given<'_>])]) -> Daemon {
    let mut daemon = prepared(providers);
    daemon.run().await;
    daemon
}

/// What the user's script sets, from now on.
fn script(daemon: &Daemon, text: &str) {
    fs::write(daemon.root().join("config/env-setup.sh"), text).expect("the script is written");
}

fn spec(daemon: &Daemon) -> SessionSpec {
    SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) }
}

/// What a command of the agent's prints, by a file: what the agent says is masked.
async fn agents(session: &Session, command: &str) -> String {
    let view = session.view().await;
    session.turn(&format!("tool {command} > printed")).await;
    fs::read_to_string(view.spec.directory.join("printed")).expect("the tool wrote it")
}

async fn environment(daemon: &Daemon, session: &Session) -> EnvironmentView {
    daemon.client.get(&session.path("/environment?values=true")).await.expect(200)
}

fn variable<'a>(view: &'a EnvironmentView, name: &str) -> &'a VariableView {
    view.variables.iter().find(|variable| variable.name == name).unwrap_or_else(|| panic!("{name}: {view:#?}"))
}

fn condition(view: &SessionView, kind: ConditionType) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == kind)
}

fn is_current(view: &SessionView, status: ConditionStatus, reason: &str) -> bool {
    let current = condition(view, ConditionType::EnvironmentCurrent);
    current.is_some_and(|current| current.status == status && current.reason == reason)
}

fn refreshes(session: &Session) -> Vec<EnvironmentRefreshed> {
    let bodies = session.journal().into_iter().map(|event| event.body);
    bodies.filter_map(|body| if let Body::EnvironmentRefreshed(one) = body { Some(one) } else { None }).collect()
}

/// The session's files.
fn files(daemon: &Daemon, session: &Session) -> PathBuf {
    daemon.root().join("run").join(session.id.as_str()).join("files")
}

const NOWHERE: [PathBuf; 0] = [];

/// Declares a secret that lies in a file of this name, which is there if it has a value.
fn declare(daemon: &Daemon, name: &str, value: Option<&str>, more: &str) {
    let file = daemon.root().join(name);
    if let Some(value) = value {
        fs::write(&file, value).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    daemon.configure(|config| {
        format!(
            "{config}\n[secrets.{name}]\nvariable = \"OF_{}\"\nfile = \"{}\"\n{more}\n",
            name.to_uppercase(),
            file.display()
        )
    });
}

#[tokio::test]
async fn a_secret_that_a_provider_names_is_in_the_agents_variable_and_nowhere_else() {
    let mut daemon = prepared(&[
        ("corp", &[("WITH_KEY", Kind::Secret("corp"), None), ("GIVEN", Kind::Set(From::Text("x")), None)]),
        ("after", &[("SEEN", Kind::Set(From::Variable("WITH_KEY")), None)]),
    ]);
    declare(&daemon, "corp", Some("planted-one-value"), "");
    daemon.run().await;
    let mut spec = spec(&daemon);
    spec.environment.refresh = Some(Refresh::Stored);
    let session = daemon.session(&spec).await;
    assert_eq!(agents(&session, "printenv WITH_KEY").await, "planted-one-value\n");
    let view = environment(&daemon, &session).await;
    let key = variable(&view, "WITH_KEY");
    assert_eq!((key.provider.as_str(), key.secret, &key.value, &key.digest), ("corp", true, &None, &None));
    assert_eq!(key.origin, Some("corp".into()));
    assert_eq!(key.named_secret.as_deref(), Some("corp"));
    // No provider behind it sees the value: it was not granted to them.
    assert_eq!(variable(&view, "SEEN").value.as_ref().unwrap().display(), "");
    session.turn("env").await;
    assert_eq!(daemon.holders("planted-one-value"), NOWHERE);

    // Given again by another daemon, it is what it is then.
    session.stop().await;
    daemon.terminate().await;
    fs::write(daemon.root().join("corp"), "planted-two-value").unwrap();
    daemon.run().await;
    let view = session.resume().await;
    assert_eq!(condition(&view, ConditionType::EnvironmentReady).unwrap().reason, "GivenAgain");
    assert_eq!(agents(&session, "printenv WITH_KEY").await, "planted-two-value\n");
    assert_eq!(daemon.holders("planted-two-value"), NOWHERE);
}

#[tokio::test]
async fn a_secret_that_is_not_to_be_had_ends_the_launch_or_is_done_without_as_the_configuration_says() {
    let give: &[Given<'_>] = &[("WITH_KEY", Kind::Secret("corp"), None)];
    for (declared, expected) in [
        (None, "gives the secret \"corp\", which the configuration does not declare"),
        (Some("agents = [\"another\"]"), "which the configuration does not give to this agent"),
        (Some(""), "the secret \"corp\" cannot be had from the file"),
    ] {
        let mut daemon = prepared(&[("corp", give)]);
        if let Some(more) = declared {
            declare(&daemon, "corp", None, more);
        }
        daemon.run().await;
        let session = daemon.create(&spec(&daemon)).await;
        let view = session.wait_for_phase(Phase::Failed).await;
        let ready = condition(&view, ConditionType::EnvironmentReady).unwrap();
        assert_eq!(ready.reason, "SecretUnavailable", "{ready:?}");
        assert!(ready.message.contains(expected), "{ready:?}");
    }
    let mut daemon = prepared(&[("corp", give)]);
    declare(&daemon, "corp", None, "required = false");
    daemon.run().await;
    let session = daemon.session(&spec(&daemon)).await;
    let view = session.view().await;
    let lacking = condition(&view, ConditionType::SecretsAvailable).unwrap();
    assert_eq!((lacking.status, lacking.message.contains("corp")), (ConditionStatus::False, true), "{lacking:?}");
    let view = environment(&daemon, &session).await;
    let dropped = view.dropped.iter().find(|dropped| dropped.name == "WITH_KEY").unwrap();
    assert_eq!((dropped.provider.as_str(), dropped.reason.as_deref().unwrap().contains("corp")), ("corp", true));
}

#[tokio::test]
async fn a_file_is_the_users_alone_is_written_nowhere_else_and_goes_with_the_agent() {
    let content = "registry=https://npm.example/\n//npm.example/:_authToken=planted-token-1\n";
    let daemon = started(&[(
        "corp",
        &[("NPM_TOKEN_FILE", Kind::File("npmrc", From::Text(content)), None), ("KEPT", Kind::Unset, None)],
    )])
    .await;
    let session = daemon.session(&spec(&daemon)).await;
    let path = files(&daemon, &session).join("npmrc");
    assert_eq!(agents(&session, "printenv NPM_TOKEN_FILE").await, format!("{}\n", path.display()));
    assert_eq!(agents(&session, "cat $NPM_TOKEN_FILE").await, content);
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&files(&daemon, &session)), mode(&path)), (0o700, 0o600));

    let view = environment(&daemon, &session).await;
    let file = variable(&view, "NPM_TOKEN_FILE");
    assert_eq!(file.value.as_ref().unwrap().display(), path.display().to_string(), "a path is no secret");
    assert_eq!(file.file.as_ref().unwrap().size, content.len() as u64);
    assert!(!file.secret);
    // What the agent prints of it is hidden, line by line.
    session.turn("tool cat $NPM_TOKEN_FILE; tail -1 $NPM_TOKEN_FILE").await;
    let shown = fs::read_to_string(crate::harness::journal::path(&daemon.state(), &session.id)).unwrap();
    assert!(shown.contains("‹secret›"), "{shown}");
    assert_eq!(daemon.holders("planted-token-1"), NOWHERE);

    session.stop().await;
    assert!(!files(&daemon, &session).exists(), "they are gone when the session is shown as stopped");
    session.resume().await;
    assert_eq!(agents(&session, "cat $NPM_TOKEN_FILE").await, content);
    session.turn("exit 1").await;
    session.wait_for_phase(Phase::Failed).await;
    assert!(!files(&daemon, &session).exists(), "a crash is an end too");
}

#[tokio::test]
async fn two_providers_that_give_one_file_are_both_named() {
    let give: &[Given<'_>] = &[("A_FILE", Kind::File("token", From::Text("x")), None)];
    let daemon = started(&[("first", give), ("second", give)]).await;
    let session = daemon.create(&spec(&daemon)).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let ready = condition(&view, ConditionType::EnvironmentReady).unwrap();
    assert_eq!(ready.reason, "ProviderAnswerInvalid");
    assert!(ready.message.contains("the file \"token\" is given by \"first\" and by \"second\""), "{ready:?}");
}

/// A file of `EFFECT_A`, a variable of `EFFECT_B`, and one that stays the same, for a second each.
const LIMITED: &[Given<'static>] = &[
    ("A_FILE", Kind::File("token", From::Variable("EFFECT_A")), Some(1000)),
    ("A_VALUE", Kind::Set(From::Variable("EFFECT_B")), Some(1000)),
    ("THE_SAME", Kind::Set(From::Text("x")), Some(1000)),
    ("PATH", Kind::Prepend(From::Text("/from/corp")), Some(3_600_000)),
    ("FOR_EVER", Kind::Set(From::Variable("EFFECT_B")), None),
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

    // The file is another: the agent finds it where it was, and what it says of it is hidden.
    effects(&daemon, "planted-token-2", "one");
    let file = files(&daemon, &session).join("token");
    until("the file is written anew", || fs::read_to_string(&file).is_ok_and(|text| text == "planted-token-2")).await;
    assert_eq!(agents(&session, "cat $A_FILE").await, "planted-token-2");
    assert!(is_current(&session.view().await, ConditionStatus::True, "Refreshed"));
    assert_eq!(session.turn("say planted-token-1 planted-token-2").await.text, "‹secret› ‹secret›");

    // A variable is another: it stays what it is, and is named.
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
    // One each four fifths of a second, and no more.
    let (first, renewed) = (variable(&begun, "A_FILE").expires_at.unwrap(), last.expires_at.unwrap());
    let (span, times) = (renewed.duration_since(first).as_millis(), i128::try_from(refreshes.len()).unwrap());
    assert!(span >= 790 * (times - 1), "{span} ms: {refreshes:#?}");

    let now = environment(&daemon, &session).await;
    let digest = |text: &str| Sha256::digest(text).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let stored = variable(&now, "A_FILE").file.as_ref().unwrap();
    assert!([digest("planted-token-3"), digest("planted-token-2")].contains(&stored.digest), "{stored:?}");
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
    assert_eq!(agents(&session, "cat $A_FILE").await, "planted-token-2");

    // The agent ends while no daemon is there; the next one removes its files.
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
        // Nothing is recorded of a session that is idle but a refresh, and that what it has holds no longer.
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
    assert_eq!(agents(&session, "cat $A_FILE").await, "planted-token-2");
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
            ran = ran.display(),
            hold = hold.display()
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
    assert_eq!(agents(&session, "cat $A_FILE").await, "planted-token-2");
}

/// A file and a variable that hold for so many milliseconds.
fn holding(milliseconds: u64) -> [Given<'static>; 2] {
    [
        ("A_FILE", Kind::File("token", From::Variable("EFFECT_A")), Some(milliseconds)),
        ("A_VALUE", Kind::Set(From::Variable("EFFECT_B")), Some(milliseconds)),
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
        Body::EnvironmentBuilt(built) => Some(built),
        _ => None,
    });
    let (expires, renews) = built.map(|built| (built.expires_at.unwrap(), built.renew_at.unwrap())).unwrap();
    let lead = expires.duration_since(renews).as_millis();
    assert_eq!(expires, first);
    assert!((1400..=2000).contains(&lead), "{lead} ms before the end");

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
    // A machine that is busy for longer than the lead is late, and must not be what fails this.
    let slow = refreshed.time.duration_since(renews).as_millis() > lead;
    assert!(slow || refreshed.time < expires, "{} is not before {expires}", refreshed.time);
    let said: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::Condition(one) if one.kind == ConditionType::EnvironmentCurrent => Some(one.reason.as_str()),
            _ => None,
        })
        .collect();
    assert!(slow || said.last() == Some(&"VariablesExpiring"), "{said:?}");
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
    script(&daemon, "echo no network >&2\nexit 3\n");
    session.wait_for("the end is said", |view| is_current(view, ConditionStatus::False, "RefreshFailed")).await;
    let said: Vec<Condition> = session
        .journal()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::Condition(one) if one.reason == "RefreshFailed" => Some(one),
            _ => None,
        })
        .collect();
    let [before, after] = &said[..] else { panic!("{said:#?}") };
    assert_eq!((before.status, after.status), (ConditionStatus::True, ConditionStatus::False));
    assert!(before.last_transition_time < expires && after.last_transition_time >= expires, "{said:#?}");
    assert!(before.message.contains("no network") && before.message.contains(&format!("holds until {expires}")));
    assert_eq!(fs::read_to_string(files(&daemon, &session).join("token")).unwrap(), "planted-token-1");

    effects(&daemon, "planted-token-2", "one");
    session.wait_for("it is well again", |view| is_current(view, ConditionStatus::True, "Refreshed")).await;
    assert_eq!(agents(&session, "cat $A_FILE").await, "planted-token-2");
}

/// The milliseconds between the first refreshes, when there were so many.
async fn pauses(session: &Session, times: usize) -> Vec<i128> {
    until("it was asked often enough", || refreshes(session).len() >= times).await;
    let events = session.journal().into_iter();
    let times: Vec<_> =
        events.filter(|event| matches!(event.body, Body::EnvironmentRefreshed(_))).map(|event| event.time).collect();
    times.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_millis()).collect()
}

#[tokio::test]
async fn a_provider_whose_answer_holds_for_no_time_is_not_asked_in_a_loop() {
    let daemon = started(&[("corp", &holding(0))]).await;
    effects(&daemon, "planted-token-1", "one");
    let session = daemon.session(&spec(&daemon)).await;
    let pauses = pauses(&session, 4).await;
    assert!(pauses.iter().all(|pause| *pause >= 790), "{pauses:?}");
}

#[tokio::test]
async fn what_has_expired_when_it_comes_is_asked_for_after_pauses_that_double() {
    let short: &[Given<'_>] = &[("A_VALUE", Kind::Set(From::Text("x")), Some(1000))];
    let long: &[Given<'_>] = &[("ANOTHER", Kind::Set(From::Text("x")), Some(3_600_000))];
    let mut daemon = prepared(&[("corp", short), ("after", long)]);
    // The script runs between the two, and takes longer than the first answer holds.
    let step = |plugin: &str| format!("[[environment.providers]]\nplugin = \"{plugin}\"\n");
    let (slow, after) = (step("env-script"), step("after"));
    daemon.configure(|config| config.replace(&slow, "").replace(&after, &format!("{slow}{after}")));
    script(&daemon, "sleep 1.2\n");
    daemon.run().await;
    let session = daemon.session(&spec(&daemon)).await;
    let pauses = pauses(&session, 4).await;
    assert!(pauses[0] >= 1000 && pauses[1] >= 2000 && pauses[2] >= 4000, "{pauses:?}");
    let view = session.view().await;
    let current = condition(&view, ConditionType::EnvironmentCurrent).unwrap();
    assert_eq!((current.status, current.reason.as_str()), (ConditionStatus::False, "ExpiredOnArrival"));
    assert!(current.message.contains("A_VALUE of corp") && !current.message.contains("ANOTHER"), "{current:?}");
}

#[tokio::test]
async fn what_was_stored_is_not_given_again_beyond_its_time() {
    let daemon = started(&[("corp", &[("A_VALUE", Kind::Set(From::Variable("EFFECT_B")), Some(1000))])]).await;
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
    assert!(ready.message.contains("A_VALUE of corp holds no longer since 20"), "{ready:?}");
    assert_eq!(agents(&session, "printenv A_VALUE").await, "two\n");
}
