//! Hooks of a real daemon: commands and addresses, order and repetition, receivers that fail, and what people see.

mod desktop;
mod encrypted;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agentd_api::Code;
use agentd_api::doctor::DoctorView;
use agentd_api::hook::{HookFault, HookList, HookMessage, HookOutcome, HookState, HookTestView, HookView};
use agentd_api::plugin::ReloadView;
use agentd_api::prerequisite::Outcome;
use agentd_api::session::{Phase, SessionSpec};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::ctl::ctl;
use crate::harness::{Daemon, LIMIT, Session, openmetrics, require, until, within};

/// A request that a receiver got.
#[derive(Debug, Clone)]
struct Got {
    head: String,
    body: Vec<u8>,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    fn message(&self) -> HookMessage {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A receiver of hooks on this machine. It answers each request with the present answer; an empty one never comes.
#[derive(Debug)]
struct Receiver {
    port: u16,
    got: Arc<Mutex<Vec<Got>>>,
    answer: Arc<Mutex<Vec<u8>>>,
    task: tokio::task::JoinHandle<()>,
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap()
}

fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}

impl Receiver {
    async fn start(first: Vec<u8>) -> Self {
        Self::at(0, first).await
    }

    async fn at(port: u16, first: Vec<u8>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a port of the loopback interface");
        let port = listener.local_addr().unwrap().port();
        let (got, answer) = (Arc::<Mutex<Vec<Got>>>::default(), Arc::new(Mutex::new(first)));
        let (seen, present) = (Arc::clone(&got), Arc::clone(&answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&seen), Arc::clone(&present)));
            }
        });
        Self { port, got, answer, task }
    }

    fn set(&self, next: Vec<u8>) {
        *lock(&self.answer) = next;
    }

    fn all(&self) -> Vec<Got> {
        lock(&self.got).clone()
    }

    async fn wait(&self, what: &str, count: usize) -> Vec<Got> {
        until(what, || lock(&self.got).len() >= count).await;
        self.all()
    }

    /// Declares a hook with this receiver.
    fn hook(&self, name: &str, on: &str, more: &str) -> String {
        format!(
            "\n[[hooks]]\nname = \"{name}\"\non = [{on}]\nurl = \"http://127.0.0.1:{}/{name}\"\n{QUICK}{more}",
            self.port
        )
    }
}

/// Short pauses between attempts.
const QUICK: &str = "retry_first = \"50ms\"\nretry_longest = \"200ms\"\n";

async fn serve(mut stream: TcpStream, got: Arc<Mutex<Vec<Got>>>, answer: Arc<Mutex<Vec<u8>>>) {
    let mut bytes = Vec::new();
    let (head, length) = loop {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        bytes.drain(..end + 4);
        let request = Got { head: head.clone(), body: Vec::new() };
        break (head, request.header("content-length").map_or(0, |length| length.parse::<usize>().unwrap()));
    };
    while bytes.len() < length {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
    lock(&got).push(Got { head, body: bytes });
    let answer = lock(&answer).clone();
    if answer.is_empty() {
        std::future::pending::<()>().await;
    }
    let _ = stream.write_all(&answer).await;
}

fn ok() -> Vec<u8> {
    answer("200 OK", "", "thanks")
}

/// Returns a daemon whose configuration ends with these hooks.
async fn with(hooks: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + hooks);
    daemon.run().await;
    // The position of each hook is stored from now on.
    for hook in &list(&daemon).await.hooks {
        let file = daemon.state().join(format!("hooks/{}.json", hook.name));
        until("each hook has its position", || file.exists()).await;
    }
    daemon
}

async fn list(daemon: &Daemon) -> HookList {
    let mut last = HookList::default();
    let wanted = fs::read_to_string(daemon.root().join("config/agentd.toml")).unwrap().matches("[[hooks]]").count();
    let listing = async {
        loop {
            last = daemon.client.get("/v1/hooks").await.expect(200);
            // The hooks are started just after the endpoint.
            if last.hooks.len() == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, listing).await.expect("the hooks are started");
    last
}

/// Waits until the hook has this state.
async fn see(daemon: &Daemon, name: &str, what: &str, good: impl Fn(&HookView) -> bool) -> HookView {
    let mut last = None;
    let seeing = async {
        loop {
            let found = list(daemon).await.hooks.into_iter().find(|view| view.name == name);
            if let Some(view) = found.clone().filter(|view| good(view)) {
                return view;
            }
            last = found;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let seen = tokio::time::timeout(LIMIT, seeing).await.ok();
    seen.unwrap_or_else(|| panic!("{name}: {what}: not in time; last {last:#?}"))
}

async fn reload(daemon: &Daemon) -> ReloadView {
    daemon.client.call("POST", "/v1/reload", "").await.expect(200)
}

fn named(daemon: &Daemon, name: &str) -> SessionSpec {
    SessionSpec { name: Some(name.parse().unwrap()), ..daemon.scripted(&[]) }
}

/// Returns the messages without repetitions, by the id that the receiver sees.
fn once(got: &[Got]) -> Vec<HookMessage> {
    let mut seen = BTreeSet::new();
    got.iter().filter(|one| seen.insert(one.header("webhook-id").unwrap().to_owned())).map(Got::message).collect()
}

/// HMAC-SHA256 (RFC 2104), written independently of the daemon.
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    assert!(key.len() <= 64);
    let pad = |byte: u8| -> Vec<u8> { (0..64).map(|at| key.get(at).copied().unwrap_or(0) ^ byte).collect() };
    let inner = Sha256::digest([pad(0x36), text.to_vec()].concat());
    Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

#[tokio::test]
async fn a_command_gets_the_question_on_stdin_and_in_a_clean_environment() {
    let mut daemon = Daemon::prepare();
    let place = daemon.root().join("told");
    fs::create_dir(&place).unwrap();
    let script =
        format!("cd '{}' && env > env.new && cat > event.new && mv env.new env && mv event.new event", place.display());
    daemon.configure(|config| {
        config
            + &format!(
                "\n[[hooks]]\nname = \"tell\"\non = [\"permission.requested\"]\ncommand = {:?}\n",
                ["/bin/sh", "-c", &script]
            )
    });
    daemon.run().await;
    until("the hook has its position", || daemon.state().join("hooks/tell.json").exists()).await;
    let session = daemon.session(&named(&daemon, "fix")).await;
    session.prompt("ask").await;
    until("the command was run", || place.join("event").exists()).await;
    let message: HookMessage = serde_json::from_slice(&fs::read(place.join("event")).unwrap()).unwrap();
    let question = session.view().await.status.permissions.remove(0);
    let data = &message.data;
    assert_eq!((message.kind.as_str(), data.hook.as_str()), ("permission.requested", "tell"));
    assert_eq!(data.session.as_ref().map(|session| session.id.clone()), Some(session.id.clone()));
    assert_eq!(data.session.as_ref().and_then(|session| session.agent.as_deref()), Some("scripted-agent"));
    assert_eq!((data.message.as_ref(), data.permission.as_ref()), (Some(&question.title), Some(&question.id)));
    let command = data.command.clone().unwrap();
    assert_eq!(command, format!("agentctl answer fix {} allow", question.id));
    let environment = fs::read_to_string(place.join("env")).unwrap();
    let names: BTreeSet<&str> = environment.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let foreign: Vec<_> = names
        .iter()
        .filter(|name| {
            !name.starts_with("AGENTD_HOOK_") && !["PATH", "HOME", "USER", "PWD", "OLDPWD", "SHLVL", "_"].contains(name)
        })
        .collect();
    assert!(foreign.is_empty() && names.contains("AGENTD_HOOK_SESSION_NAME"), "{environment}");
    assert!(environment.contains(&format!("AGENTD_HOOK_COMMAND={command}\n")), "{environment}");
    // The command of the message answers the question.
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    assert_eq!(ctl(&daemon, &words).await.parts().0, Some(0));
    session.wait_for("the question is answered", |view| view.status.permissions.is_empty()).await;
    let view = see(&daemon, "tell", "it has delivered", |view| view.delivered == 1).await;
    assert_eq!((view.state, view.last.unwrap().status), (HookState::Working, Some(0)));
}

#[tokio::test]
async fn a_request_is_signed_and_names_no_prompt() {
    let receiver = Receiver::start(ok()).await;
    let mut daemon = Daemon::prepare();
    let (secret, key) = (daemon.root().join("secret"), b"a key of twenty-four b.");
    fs::write(&secret, format!("whsec_{}\n", STANDARD.encode(key))).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let more = format!("secret = {{ file = {:?} }}\n", secret.display().to_string());
    daemon.configure(|config| config + &receiver.hook("signed", "\"turn.ended\"", &more));
    daemon.run().await;
    until("the hook has its position", || daemon.state().join("hooks/signed.json").exists()).await;
    let session = daemon.session(&named(&daemon, "fix")).await;
    session.turn("say hunter2-of-the-prompt").await;
    let got = receiver.wait("the event arrives", 1).await.remove(0);
    assert!(got.head.starts_with("POST /signed HTTP/1.1\r\n"), "{}", got.head);
    let (id, time) = (got.header("webhook-id").unwrap(), got.header("webhook-timestamp").unwrap());
    let signed = [format!("{id}.{time}.").into_bytes(), got.body.clone()].concat();
    let expected = format!("v1,{}", STANDARD.encode(hmac(key, &signed)));
    assert_eq!(got.header("webhook-signature"), Some(expected.as_str()));
    assert_eq!(got.message().data.id, id);
    assert_eq!(got.message().data.reason.as_deref(), Some("end_turn"));
    assert!(!String::from_utf8_lossy(&got.body).contains("hunter2"), "{got:?}");
    // A secret that others can read is refused, and the refusal is visible.
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    session.turn("say more").await;
    let failed = see(&daemon, "signed", "it fails", |view| view.state == HookState::Failing).await;
    assert_eq!(failed.last.unwrap().code, Some(HookFault::HookSecretInvalid));
    assert_eq!(receiver.all().len(), 1);
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    receiver.wait("it is delivered with the secret", 2).await;
}

#[tokio::test]
async fn every_event_comes_in_order_while_the_receiver_is_down_and_the_daemon_is_killed() {
    let receiver = Receiver::start(answer("500 No", "", "")).await;
    let mut daemon = with(&receiver.hook("all", "\"turn.ended\"", "")).await;
    let session = daemon.session(&named(&daemon, "fix")).await;
    let mut turns = Vec::new();
    for _ in 0..3 {
        turns.push(session.turn("say x").await.ended.turn);
    }
    receiver.wait("the first event is tried again", 3).await;
    let ids: BTreeSet<String> = receiver.all().iter().map(|got| got.header("webhook-id").unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 1, "a repetition has the same id");
    let port = receiver.port;
    receiver.task.abort();
    drop(receiver);
    let down = |view: &HookView| view.last.as_ref().and_then(|last| last.code) == Some(HookFault::HookUnreachable);
    see(&daemon, "all", "the receiver is down", down).await;
    daemon.kill9();
    daemon.run().await;
    let session = Session::new(session.id.clone(), daemon.client.clone(), daemon.state());
    turns.push(session.turn("say y").await.ended.turn);
    let receiver = Receiver::at(port, ok()).await;
    until("events arrive", || !lock(&receiver.got).is_empty()).await;
    // The daemon is killed in the middle of its work, so an event may come twice, with the same id.
    daemon.kill9();
    daemon.run().await;
    turns.push(session.turn("say z").await.ended.turn);
    until("all events arrive", || once(&lock(&receiver.got)).len() >= turns.len()).await;
    let messages = once(&receiver.all());
    let told: Vec<_> = messages.iter().map(|message| message.data.turn.clone().unwrap()).collect();
    assert_eq!(told, turns);
    let all: Vec<u64> = receiver.all().iter().map(|got| got.message().data.cursor).collect();
    assert!(all.is_sorted(), "{all:?}");
    assert_eq!(ids.into_iter().next().as_ref(), Some(&messages[0].data.id), "the id survives a restart");
}

#[tokio::test]
async fn receivers_that_hang_delay_neither_sessions_nor_other_hooks() {
    let (silent, prompt) = (Receiver::start(Vec::new()).await, Receiver::start(ok()).await);
    let more = "timeout = \"60s\"\n";
    let hooks = [
        silent.hook("silent", "\"turn.ended\"", more),
        format!("\n[[hooks]]\nname = \"sleeper\"\non = [\"turn.ended\"]\ncommand = [\"/bin/sleep\", \"1000\"]\n{more}"),
        prompt.hook("prompt", "\"turn.ended\"", ""),
    ];
    let mut daemon = with(&hooks.concat()).await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    for _ in 0..5 {
        session.turn("say x").await;
    }
    assert_eq!(once(&prompt.wait("the other hook gets all", 5).await).len(), 5);
    silent.wait("the receiver was asked", 1).await;
    assert_eq!(silent.all().len(), 1, "one attempt at a time");
    // The end of the daemon does not wait for them.
    within("the daemon ends", daemon.terminate()).await;
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_with_its_processes() {
    let hook = "\n[[hooks]]\nname = \"slow\"\non = [\"turn.ended\"]\ntimeout = \"200ms\"\n\
                command = [\"/bin/sh\", \"-c\", \"sleep 4711 & wait\"]\n";
    let daemon = with(hook).await;
    let tested: HookTestView = daemon.client.call("POST", "/v1/hooks/slow/test", "").await.expect(200);
    assert_eq!((tested.attempt.outcome, tested.attempt.code), (HookOutcome::Failed, Some(HookFault::HookTimeout)));
    let commands =
        || fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    until("its processes are gone", || !commands().any(|command| command == b"sleep\x004711\0")).await;
}

#[tokio::test]
async fn odd_answers_are_bounded_and_each_failure_has_its_code() {
    let (receiver, other) = (Receiver::start(ok()).await, Receiver::start(ok()).await);
    let daemon = with(&receiver.hook("odd", "\"turn.ended\"", "")).await;
    let test = async || -> HookTestView { daemon.client.call("POST", "/v1/hooks/odd/test", "").await.expect(200) };
    receiver.set(answer("200 OK", "", &"x".repeat(10 << 20)));
    let big = test().await;
    assert_eq!((big.attempt.outcome, big.attempt.status, big.answer.len()), (HookOutcome::Delivered, Some(200), 4096));
    // A body that never ends does not keep the event from being delivered.
    receiver.set(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nbegin".to_vec());
    let cut = test().await;
    assert_eq!((cut.attempt.outcome, cut.answer.as_str()), (HookOutcome::Delivered, "begin"));
    receiver.set(answer("302 Found", &format!("location: http://127.0.0.1:{}/x\r\n", other.port), ""));
    let redirected = test().await;
    assert_eq!((redirected.attempt.code, redirected.attempt.status), (Some(HookFault::HookRedirected), Some(302)));
    assert!(other.all().is_empty(), "the redirect was followed");
    receiver.set(answer("403 Forbidden", "", "no such channel"));
    let refused = test().await;
    assert_eq!(refused.attempt.code, Some(HookFault::HookRefused));
    assert!(refused.attempt.detail.unwrap().contains("no such channel"));
    receiver.set(b"not HTTP\r\n\r\n".to_vec());
    assert_eq!(test().await.attempt.code, Some(HookFault::HookUnreachable));
    let problem = daemon.client.call("POST", "/v1/hooks/none/test", "").await.problem();
    assert_eq!(problem.code, Code::NoSuchHook);
    assert!(receiver.all().iter().all(|got| got.message().kind == "hook.test"));
    assert_eq!(list(&daemon).await.hooks[0].delivered, 0, "a test is no event");
}

#[tokio::test]
async fn a_receiver_can_ask_for_a_pause_and_410_disables_until_the_next_reload() {
    let receiver = Receiver::start(answer("503 Busy", "retry-after: 3000\r\n", "")).await;
    let daemon = with(&receiver.hook("busy", "\"turn.ended\"", "")).await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say x").await;
    let waiting = see(&daemon, "busy", "it waits", |view| view.next_attempt.is_some()).await;
    let pause = waiting.next_attempt.unwrap().duration_since(waiting.last.unwrap().time).as_secs();
    assert!((2900..=3000).contains(&pause), "{pause}");
    receiver.set(answer("410 Gone", "", ""));
    // A reload starts waiting hooks again.
    reload(&daemon).await;
    let disabled = see(&daemon, "busy", "it is disabled", |view| view.state == HookState::Disabled).await;
    assert_eq!(disabled.last.unwrap().code, Some(HookFault::HookGone));
    let asked = receiver.all().len();
    session.turn("say y").await;
    receiver.set(ok());
    reload(&daemon).await;
    let got = receiver.wait("both events arrive", asked + 2).await;
    assert_eq!(once(&got).len(), 2);
    assert_eq!(see(&daemon, "busy", "it works", |view| view.delivered == 2).await.state, HookState::Working);
}

#[tokio::test]
async fn a_need_and_a_failure_are_told_once_each() {
    let receiver = Receiver::start(ok()).await;
    let daemon = with(&receiver.hook("needs", "\"NeedsAttention\", \"session.failed\"", "")).await;
    let session = daemon.session(&named(&daemon, "fix")).await;
    for number in 1..=2 {
        let turn = session.prompt("ask").await;
        let view = session.wait_for("it asks", |view| !view.status.permissions.is_empty()).await;
        receiver.wait("the need is told", number).await;
        let question = &view.status.permissions[0];
        let path = format!("/permissions/{}", question.id);
        assert!(session.post(&path, &json!({ "option": question.options[0].id })).await.status.is_success());
        session.end_of(&turn).await;
    }
    session.prompt("exit 3").await;
    session.wait_for_phase(Phase::Failed).await;
    receiver.wait("the failure is told", 4).await;
    // A later event of another session shows that nothing else was delivered.
    let other = daemon.session(&named(&daemon, "other")).await;
    other.prompt("ask").await;
    let messages: Vec<HookMessage> =
        receiver.wait("the other need is told", 5).await.iter().map(Got::message).collect();
    let told: Vec<(&str, &str)> = messages
        .iter()
        .map(|message| (message.kind.as_str(), message.data.reason.as_deref().unwrap_or_default()))
        .collect();
    let asked = ("NeedsAttention", "PermissionRequested");
    let failed = [("NeedsAttention", "Failed"), ("session.failed", "Failed")];
    assert_eq!(told, [asked, asked, failed[0], failed[1], asked], "{messages:#?}");
    let command = messages[0].data.command.as_deref().unwrap();
    assert!(command.starts_with("agentctl answer fix p1 allow") || command == "agentctl show fix", "{command}");
    assert_eq!(messages[3].data.command.as_deref(), Some("agentctl show fix"));
}

#[tokio::test]
async fn a_hook_gets_only_the_sessions_that_it_selects() {
    let receiver = Receiver::start(ok()).await;
    let mut daemon = Daemon::prepare();
    let inner = daemon.work().join("inner");
    fs::create_dir(&inner).unwrap();
    let on = "\"turn.ended\"";
    let below = format!("directory = {:?}\n", inner.display().to_string());
    let hooks = [
        receiver.hook("by-label", on, "label = \"team=web\"\n"),
        receiver.hook("by-directory", on, &below),
        receiver.hook("by-agent", on, "agent = \"another\"\n"),
        receiver.hook("all", on, "agent = \"scripted-agent\"\n"),
    ];
    daemon.configure(|config| config + &hooks.concat());
    daemon.run().await;
    list(&daemon).await;
    let web = SessionSpec { labels: [("team".to_owned(), "web".to_owned())].into(), ..named(&daemon, "web") };
    let below = SessionSpec { directory: inner, ..named(&daemon, "below") };
    for spec in [web, below, named(&daemon, "last")] {
        daemon.session(&spec).await.turn("say x").await;
    }
    for (name, delivered) in [("by-label", 1), ("by-directory", 1), ("all", 3)] {
        see(&daemon, name, "all are told", |view| view.delivered >= delivered).await;
    }
    see(&daemon, "by-agent", "it has looked at everything", |view| view.lag == 0).await;
    let mut told: Vec<(String, String)> = receiver
        .all()
        .iter()
        .map(|got| got.message().data)
        .map(|data| (data.hook, data.session.unwrap().name.unwrap().to_string()))
        .filter(|(hook, _)| hook != "all")
        .collect();
    told.sort();
    let expected = [("by-directory", "below"), ("by-label", "web")];
    assert_eq!(told, expected.map(|(hook, session)| (hook.to_owned(), session.to_owned())));
}

#[tokio::test]
async fn events_that_the_feed_lost_become_one_event_of_the_gap() {
    let receiver = Receiver::start(answer("500 No", "", "")).await;
    let mut daemon = Daemon::prepare();
    let hook = receiver.hook("gap", "\"turn.ended\", \"NeedsAttention\"", "");
    daemon.configure(|config| format!("{config}\n[journal]\nkeep_feed = \"64K\"\n{hook}"));
    daemon.run().await;
    list(&daemon).await;
    let session = daemon.session(&named(&daemon, "fix")).await;
    session.turn("say x").await;
    receiver.wait("the first event is tried", 1).await;
    let first = receiver.all()[0].message().data.cursor;
    for _ in 0..4 {
        session.turn("count 1500 0").await;
    }
    session.prompt("ask").await;
    session.wait_for("it asks", |view| !view.status.permissions.is_empty()).await;
    let oldest = async || -> u64 {
        let answer = daemon.client.get("/v1/events?follow=false&after=0").await;
        let line = String::from_utf8(answer.body.to_vec()).unwrap();
        serde_json::from_str::<serde_json::Value>(line.lines().next().unwrap()).unwrap()["cursor"].as_u64().unwrap()
    };
    assert!(oldest().await > first + 1, "the feed still has everything");
    receiver.set(ok());
    let is_told = |got: &Vec<Got>| once(got).iter().any(|message| message.kind == "NeedsAttention");
    until("the need after the gap is told", || is_told(&lock(&receiver.got))).await;
    let messages = once(&receiver.all());
    let kinds: Vec<&str> = messages.iter().map(|message| message.kind.as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "feed.gone").count(), 1, "{kinds:?}");
    assert_eq!((kinds[0], kinds[1]), ("turn.ended", "feed.gone"), "{kinds:?}");
}

#[tokio::test]
async fn a_reload_starts_changes_and_stops_hooks_and_refuses_unknown_events() {
    let (first, second) = (Receiver::start(ok()).await, Receiver::start(ok()).await);
    let daemon = Daemon::start().await;
    let file = daemon.root().join("config/agentd.toml");
    let plain = fs::read_to_string(&file).unwrap();
    let session = daemon.session(&named(&daemon, "fix")).await;
    session.turn("say before").await;
    let put = |hooks: &str| fs::write(&file, format!("{plain}{hooks}")).unwrap();
    put(&first.hook("told", "\"turn.ended\"", ""));
    reload(&daemon).await;
    let one = session.turn("say one").await.ended.turn;
    let got = first.wait("the new hook is told", 1).await;
    assert_eq!(got[0].message().data.turn, Some(one), "a new hook begins with new events");
    // The receiver is down while another takes its place. The position stays.
    first.set(answer("500 No", "", ""));
    let two = session.turn("say two").await.ended.turn;
    first.wait("the second event is tried", 2).await;
    put(&second.hook("told", "\"turn.ended\"", ""));
    reload(&daemon).await;
    let got = second.wait("the second receiver is told", 1).await;
    assert_eq!(got[0].message().data.turn, Some(two));
    // A mistake leaves the hook and its position unchanged.
    put(&second.hook("told", "\"turn.end\"", ""));
    let view = reload(&daemon).await;
    assert!(view.mistakes[0].message.contains("the closest names are turn.ended"), "{:?}", view.mistakes);
    let three = session.turn("say three").await.ended.turn;
    let got = second.wait("the former hook is in force", 2).await;
    assert_eq!(got[1].message().data.turn, Some(three));
    // Without the hook nothing is delivered, and a later hook of this name is a new one.
    put("");
    reload(&daemon).await;
    assert!(list(&daemon).await.hooks.is_empty());
    assert!(!daemon.state().join("hooks/told.json").exists());
    session.turn("say four").await;
    put(&second.hook("told", "\"turn.ended\"", ""));
    reload(&daemon).await;
    let last = session.turn("say five").await.ended.turn;
    let got = second.wait("the hook is told again", 3).await;
    assert_eq!(got[2].message().data.turn, Some(last));
}

#[tokio::test]
async fn a_hook_that_fails_is_seen_in_the_doctor_the_metrics_and_the_list() {
    let receiver = Receiver::start(answer("500 No", "", "out of order")).await;
    let more = "max_age = \"1s\"\n";
    let daemon = with(&receiver.hook("phone", "\"turn.ended\"", more)).await;
    let session = daemon.session(&named(&daemon, "fix")).await;
    session.turn("say x").await;
    let check = async || {
        let view: DoctorView = daemon.client.get("/v1/doctor").await.expect(200);
        view.checks.into_iter().find(|check| check.name == "hooks").unwrap()
    };
    let failing = see(&daemon, "phone", "it fails", |view| view.state == HookState::Failing).await;
    assert!(failing.last.unwrap().detail.is_some());
    let found = check().await;
    assert_eq!(found.outcome, Outcome::Warn, "{found:?}");
    assert!(found.run.iter().any(|command| command.line == "agentctl hooks test phone"), "{found:?}");
    let dropped = see(&daemon, "phone", "the event is dropped", |view| view.dropped == 1).await;
    assert_eq!(dropped.last.unwrap().code, Some(HookFault::HookEventDropped));
    let found = check().await;
    assert!(found.summary.contains("hook-event-dropped") && found.remedy.is_some(), "{found:?}");
    let page = openmetrics::page_with(&daemon.client, "the attempts are counted", |page| {
        page.value("agentd_hook_deliveries_total{hook=\"phone\",outcome=\"dropped\"}") == Some(1.0)
    })
    .await;
    assert!(page.value("agentd_hook_deliveries_total{hook=\"phone\",outcome=\"failed\"}").unwrap() >= 1.0);
    openmetrics::page_with(&daemon.client, "the lag is shown", |page| {
        page.value("agentd_hook_lag{hook=\"phone\"}").is_some()
    })
    .await;
    let (status, out, _) = ctl(&daemon, &["hooks"]).await.parts();
    assert!(status == Some(0) && out.contains("phone") && out.contains("hook-event-dropped"), "{out}");
    assert!(!out.contains("/phone"), "the path of an address may be a token: {out}");
    let (status, out, error) = ctl(&daemon, &["hooks", "test", "phone"]).await.parts();
    assert!(status == Some(1) && out.contains("out of order"), "{out}{error}");
    assert!(error.contains("hook-refused") && error.contains("status 500"), "{error}");
    receiver.set(ok());
    let (status, out, error) = ctl(&daemon, &["hooks", "test", "phone"]).await.parts();
    assert!(status == Some(0) && out.contains("thanks"), "{out}{error}");
    session.turn("say y").await;
    see(&daemon, "phone", "it delivers again", |view| view.state == HookState::Working && view.delivered == 1).await;
    let log = daemon.words();
    assert!(log.contains("hook-refused") && log.contains("dropped an event"), "{log}");
}
