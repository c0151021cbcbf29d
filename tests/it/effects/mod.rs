//! Results of a provider other than plain variables, which are configured secrets, files, and values that expire.
//!
//! The test contains the provider's component as text. The component takes its changing values from the environment so
//! far, which the user's script sets. A test therefore chooses the next answer when it writes that script.

mod refresh;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use agentd_api::environment::{EnvironmentView, Refresh, VariableView};
use agentd_api::session::{
    Condition, ConditionStatus, ConditionType, PermissionPolicy, Phase, SessionSpec, SessionView,
};

use crate::guest::Guest;
use crate::harness::digest::sha256;
use crate::harness::{Daemon, Session};

/// Source of a value.
#[derive(Clone, Copy)]
pub(crate) enum ValueSource<'a> {
    Text(&'a str),
    /// The variable of the environment so far with this name, which has eight bytes.
    Variable(&'a str),
}

#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    Set(ValueSource<'a>),
    Unset,
    Prepend(ValueSource<'a>),
    Secret(&'a str),
    File(&'a str, ValueSource<'a>),
}

/// One change: the variable, its value, and its validity in milliseconds.
pub(crate) type GivenChange<'a> = (&'a str, Kind<'a>, Option<u64>);

/// Address of the changes in the guest's memory, and the size of one change.
const CHANGES: usize = 8192;
const CHANGE: usize = 56;

/// The guest's memory while the test builds it.
struct Memory {
    strings: Vec<u8>,
    changes: Vec<u8>,
    /// Calls that copy a value from the environment so far.
    fetch: String,
}

impl Memory {
    /// Adds a text, and writes its address and length to the change at `at`.
    fn text(&mut self, at: usize, text: &str) {
        let place = 1024 + self.strings.len();
        self.strings.extend_from_slice(text.as_bytes());
        self.word(at, place);
        self.word(at + 4, text.len());
    }

    fn word(&mut self, at: usize, word: usize) {
        self.changes[at..at + 4].copy_from_slice(&u32::try_from(word).unwrap().to_le_bytes());
    }

    fn value(&mut self, at: usize, value: ValueSource<'_>) {
        match value {
            ValueSource::Text(text) => self.text(at, text),
            ValueSource::Variable(name) => {
                let name = u64::from_le_bytes(name.as_bytes().try_into().expect("a name of eight bytes"));
                let into = CHANGES + at;
                write!(self.fetch, "(call $find (local.get 10) (local.get 11) (i64.const {name}) (i32.const {into}))")
                    .unwrap();
            }
        }
    }
}

/// Searches a list of variables for a name, and stores the address of its value.
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

/// Returns a component that returns these changes in each call.
pub(crate) fn component(given: &[GivenChange<'_>]) -> Vec<u8> {
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
    // The component wants any secret. The want is at 768, and its only pattern is at 800.
    let want: Vec<u8> = [7_u32, 800, 1, 142, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    let fields = format!(
        "(data (i32.const 48) \"{}\") (data (i32.const 768) \"{}\") \
         (data (i32.const 800) \"{}\") (data (i32.const 816) \"*\")
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

/// Returns a daemon whose pipeline ends with these providers. Each provider has a name.
fn prepared(providers: &[(&str, &[GivenChange<'_>])]) -> Daemon {
    let daemon = Daemon::prepare();
    let mut text = String::new();
    for plugin in ["snapshot", "whitelist", "env-script"] {
        writeln!(text, "[[environment.providers]]\nplugin = \"{plugin}\"").unwrap();
    }
    for (name, given) in providers {
        let component = component(given);
        let file = daemon.root().join(format!("config/{name}.wasm"));
        fs::write(&file, &component).unwrap();
        let pin = sha256(&component);
        writeln!(
            text,
            "[[environment.providers]]\nplugin = \"{name}\"\n\
             [plugins.{name}]\nfile = '{}'\nsha256 = \"{pin}\"\n\
             grant = {{ secret = [\"*\"], variables = [\"*\", \"PATH\"] }}",
            file.display()
        )
        .unwrap();
    }
    daemon.configure(|config| format!("{config}\n{text}"));
    daemon
}

async fn started(providers: &[(&str, &[GivenChange<'_>])]) -> Daemon {
    let mut daemon = prepared(providers);
    daemon.run().await;
    daemon
}

/// Sets the contents of the user's script.
fn script(daemon: &Daemon, text: &str) {
    fs::write(daemon.root().join("config/env-setup.sh"), text).expect("the script is written");
}

fn spec(daemon: &Daemon) -> SessionSpec {
    SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) }
}

/// Returns the output of a command that the agent runs. The output goes through a file, because the daemon masks the
/// agent's messages.
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

/// Returns the directory of the session's files.
fn files(daemon: &Daemon, session: &Session) -> PathBuf {
    daemon.root().join("run").join(session.id.as_str()).join("files")
}

const NOWHERE: [PathBuf; 0] = [];

/// Declares a secret in a file of this name. Without a value, the file does not exist.
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
        ("corp", &[("WITH_KEY", Kind::Secret("corp"), None), ("GIVEN", Kind::Set(ValueSource::Text("x")), None)]),
        ("after", &[("SEEN", Kind::Set(ValueSource::Variable("WITH_KEY")), None)]),
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
    // The following provider does not receive the value, because it has no grant for it.
    assert_eq!(variable(&view, "SEEN").value.as_ref().unwrap().display(), "");
    session.turn("env").await;
    assert_eq!(daemon.holders("planted-one-value"), NOWHERE);

    // Another daemon asks the provider again, and the session receives the current value.
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
    let give: &[GivenChange<'_>] = &[("WITH_KEY", Kind::Secret("corp"), None)];
    for (declared, expected) in [
        (None, "names the secret \"corp\", which the configuration does not declare"),
        (Some("agents = [\"another\"]"), "which the configuration does not give to this agent"),
        (Some(""), "cannot read the secret \"corp\" from the file"),
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
        &[("NPM_TOKEN_FILE", Kind::File("npmrc", ValueSource::Text(content)), None), ("KEPT", Kind::Unset, None)],
    )])
    .await;
    let session = daemon.session(&spec(&daemon)).await;
    let path = files(&daemon, &session).join("npmrc");
    assert_eq!(agents(&session, "printenv NPM_TOKEN_FILE").await, format!("{}\n", path.display()));
    assert_eq!(agents(&session, "cat \"$NPM_TOKEN_FILE\"").await, content);
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&files(&daemon, &session)), mode(&path)), (0o700, 0o600));

    let view = environment(&daemon, &session).await;
    let file = variable(&view, "NPM_TOKEN_FILE");
    assert_eq!(file.value.as_ref().unwrap().display(), path.display().to_string(), "a path is no secret");
    assert_eq!(file.file.as_ref().unwrap().size, content.len() as u64);
    assert!(!file.secret);
    // The daemon masks each line of the file in the agent's messages.
    session.turn("tool cat \"$NPM_TOKEN_FILE\"; tail -1 \"$NPM_TOKEN_FILE\"").await;
    let shown = fs::read_to_string(crate::harness::journal::path(&daemon.state(), &session.id)).unwrap();
    assert!(shown.contains("‹secret›"), "{shown}");
    assert_eq!(daemon.holders("planted-token-1"), NOWHERE);

    session.stop().await;
    assert!(!files(&daemon, &session).exists(), "they are gone when the session is shown as stopped");
    session.resume().await;
    assert_eq!(agents(&session, "cat \"$NPM_TOKEN_FILE\"").await, content);
    session.turn("exit 1").await;
    session.wait_for_phase(Phase::Failed).await;
    assert!(!files(&daemon, &session).exists(), "a crash is an end too");
}

#[tokio::test]
async fn two_providers_that_give_one_file_are_both_named() {
    let give: &[GivenChange<'_>] = &[("A_FILE", Kind::File("token", ValueSource::Text("x")), None)];
    let daemon = started(&[("first", give), ("second", give)]).await;
    let session = daemon.create(&spec(&daemon)).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let ready = condition(&view, ConditionType::EnvironmentReady).unwrap();
    assert_eq!(ready.reason, "ProviderAnswerInvalid");
    assert!(ready.message.contains("the file \"token\" is given by \"first\" and by \"second\""), "{ready:?}");
}
