//! The fault matrix: each kind of fault strikes at each named point of daemon, keeper and journal. Afterwards nothing
//! is lost, doubled or left half done.
//!
//! The test reads the points from the binary (`agentd fault-points`). For each combination, a separate daemon goes
//! through one scenario that passes every point. A session is created, runs a turn that counts, and gets a prompt
//! during the turn. In mid-turn the specification gets changes and a repository, and the daemon is restarted. The
//! session is stopped and resumed, and another session is removed. For the points of a completion, the other session is
//! not interactive. The client repeats each unanswered request with the idempotency key of the first attempt, as a
//! client should. A point that the scenario does not pass fails the test.
//!
//! All combinations run by default and in CI; `AGENTD_FAULTS=NAME` runs those whose `POINT/FAULT` contains NAME.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::repository::RepositoryState;
use agentd_api::session::{ConditionType, Phase, SessionSpec, SessionView, WholeList};
use agentd_api::workflow::WorkflowSpec;
use agentd_api::{Body, Event, SessionId, TurnId};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use tokio::sync::{Mutex, Semaphore};

use crate::harness::session::said;
use crate::harness::{Client, Daemon, LIMIT, journal, paths, process, until};
use crate::staleness::git;
use crate::workflow::describe;

/// Number of values that a turn counts. With [`ROTATE`] the journal has several segments at the end.
const COUNT: u64 = 30;
const ROTATE: &str = "4096";
/// The session's script after a change of its specification.
const SCRIPT: &str = "export CHANGED=1\n";
/// Time limit of a keeper's answer, and duration for which a keeper hangs.
const ANSWER: &str = "1s";
const HANGS: Duration = Duration::from_millis(1500);
/// Duration for which a disk is full.
const FULL: Duration = Duration::from_millis(600);
/// Combinations at once: most of their time is waiting.
const AT_ONCE: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillDaemon,
    KillKeeper,
    KillAgent,
    Fail,
    Delay,
    /// The keeper is stopped for longer than the time limit of its answer.
    HangKeeper,
    /// The whole runtime directory is removed, with the daemon's socket and the keeper's.
    LoseRuntime,
    /// The daemon and the keeper can write no journal and no file for a while. The reserve for last records is used up
    /// too.
    FullDisk,
}

impl Fault {
    const ALL: [Self; 8] = [
        Self::KillDaemon,
        Self::KillKeeper,
        Self::KillAgent,
        Self::Fail,
        Self::Delay,
        Self::HangKeeper,
        Self::LoseRuntime,
        Self::FullDisk,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::KillDaemon => "kill-daemon",
            Self::KillKeeper => "kill-keeper",
            Self::KillAgent => "kill-agent",
            Self::Fail => "fail",
            Self::Delay => "delay",
            Self::HangKeeper => "hang-keeper",
            Self::LoseRuntime => "lose-runtime",
            Self::FullDisk => "full-disk",
        }
    }

    /// Returns the content of the point's file in the `faults` directory.
    fn order(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Delay => "delay 200",
            _ => "pause",
        }
    }
}

/// One fault at one point, and the daemon that it happens to.
struct Case {
    point: String,
    fault: Fault,
    client: Client,
    root: PathBuf,
    state: PathBuf,
    /// Both the scenario and the fault can restart the daemon.
    daemon: Mutex<Daemon>,
}

impl Case {
    fn file(&self) -> PathBuf {
        self.state.join("faults").join(&self.point)
    }

    fn arm(&self) {
        set(&self.file(), self.fault.order());
    }

    /// Waits until a process reaches the point, causes the fault there, and lets a process that waits there continue.
    async fn strike(&self) {
        let hit = self.state.join("faults").join(format!("{}.hit", self.point));
        // The scenario limits this wait, because each of its steps has a time limit.
        while !hit.exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        match self.fault {
            Fault::KillDaemon => {
                let mut daemon = self.daemon.lock().await;
                daemon.kill9();
                std::fs::remove_file(&hit).ok();
                daemon.spawn();
                return;
            }
            // If no keeper runs yet or no longer, there is nothing to kill. The point was passed nevertheless.
            Fault::KillKeeper => send(&process::running(&self.root, "agentd-keeper", Some("hold")), Signal::SIGKILL),
            Fault::KillAgent => {
                send(&process::running(&self.root, "scripted-agent", Some("--pidfile")), Signal::SIGKILL);
            }
            Fault::HangKeeper => {
                let keepers = process::running(&self.root, "agentd-keeper", Some("hold"));
                send(&keepers, Signal::SIGSTOP);
                std::fs::remove_file(&hit).ok();
                // This sleep is the fault itself: the keeper hangs for longer than the daemon waits for an answer.
                tokio::time::sleep(HANGS).await;
                send(&keepers, Signal::SIGCONT);
                return;
            }
            Fault::LoseRuntime => {
                let runtime = self.root.join("run");
                // A process may create a file in the directory during its removal.
                while runtime.exists() {
                    std::fs::remove_dir_all(&runtime).ok();
                }
            }
            Fault::FullDisk => {
                let writes = ["journal.append.before", "daemon.file.before-rename"];
                let writes = writes.map(|point| self.state.join("faults").join(point));
                for write in &writes {
                    set(write, &format!("refuse {}", Errno::ENOSPC as i32));
                }
                std::fs::remove_file(&hit).ok();
                // This sleep is the fault itself: it is longer than daemon and keeper wait before they try again.
                tokio::time::sleep(FULL).await;
                for write in &writes {
                    std::fs::remove_file(write).expect("the fault can be ended");
                }
                return;
            }
            Fault::Fail | Fault::Delay => {}
        }
        std::fs::remove_file(&hit).ok();
    }

    /// Kills the daemon and starts it again, as a service manager would.
    async fn restart_daemon(&self) {
        let mut daemon = self.daemon.lock().await;
        daemon.kill9();
        daemon.spawn();
    }

    /// Repeats the request until the answer has one of these statuses. Resumes a session that lost its agent and waits
    /// for a person.
    async fn ask(&self, method: &str, path: &str, body: &str, key: Option<&str>, good: &[u16]) {
        let mut last = None;
        let asking = async {
            loop {
                self.daemon.lock().await.assert_running();
                // A daemon that is paused at a point answers after the pause.
                let answer = self.client.attempt(method, path, body.to_owned(), key).await;
                if answer.as_ref().is_some_and(|answer| good.contains(&answer.status.as_u16())) {
                    return;
                }
                if let Some(session) = path.strip_suffix("/prompt").filter(|_| answer.is_some()) {
                    self.client.attempt("POST", &format!("{session}/resume"), "", None).await;
                }
                last = answer.or(last.take());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(LIMIT, asking).await.is_ok();
        assert!(in_time, "{method} {path}: not one of {good:?} in time; last {last:?}");
    }

    async fn view(&self, name: &str) -> Option<SessionView> {
        let answer = self.client.attempt("GET", &format!("/v1/sessions/{name}"), "", None).await?;
        (answer.status == 200).then(|| answer.json())
    }

    /// Waits until the session has this state. Resumes a session that lost its agent and waits for a person.
    async fn see(&self, name: &str, what: &str, good: impl Fn(&SessionView) -> bool) -> SessionView {
        let mut last = None;
        let looking = async {
            loop {
                self.daemon.lock().await.assert_running();
                if let Some(view) = self.view(name).await {
                    if good(&view) {
                        return view;
                    }
                    if view.status.phase == Phase::Failed {
                        self.client.attempt("POST", &format!("/v1/sessions/{name}/resume"), "", None).await;
                    }
                    last = Some(view);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let seen = tokio::time::timeout(LIMIT, looking).await.ok();
        seen.unwrap_or_else(|| panic!("{name}: {what}: not in time; last {last:#?}"))
    }

    async fn create(&self, spec: &SessionSpec, name: &str) {
        let mut spec = spec.clone();
        spec.name = Some(name.parse().expect("it is a name"));
        let body = serde_json::to_string(&spec).expect("a spec is JSON");
        // A failed create may have left the session. The name is then taken by this session.
        self.ask("POST", "/v1/sessions", &body, Some(name), &[202, 409]).await;
        self.see(name, "ready", |view| view.status.phase == Phase::Idle).await;
    }

    async fn prompt(&self, name: &str, prompt: &str, key: &str) {
        let body = json!({ "prompt": prompt }).to_string();
        self.ask("POST", &format!("/v1/sessions/{name}/prompt"), &body, Some(key), &[202]).await;
    }

    async fn stop(&self, name: &str) {
        let stopping = async {
            loop {
                if self.view(name).await.is_some_and(|view| view.status.phase.is_over()) {
                    return;
                }
                self.client.attempt("POST", &format!("/v1/sessions/{name}/stop"), "", None).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, stopping).await.is_ok(), "{name} was not stopped in time");
    }

    /// Repeats the request until the session is launching. With a full disk, a session is shown as stopped before the
    /// record of its stop is written, and cannot be resumed until then.
    async fn resume(&self, name: &str) {
        let resuming = async {
            loop {
                self.client.attempt("POST", &format!("/v1/sessions/{name}/resume"), "", None).await;
                let view = self.view(name).await;
                if view.is_some_and(|view| !matches!(view.status.phase, Phase::Stopped | Phase::Failed)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, resuming).await.is_ok(), "{name} was not resumed in time");
    }

    /// Has a schedule create a session by a run, and removes the schedule.
    async fn create_by_schedule(&self, spec: &SessionSpec, name: &str) {
        let spec = SessionSpec { name: Some(name.parse().expect("it is a name")), ..spec.clone() };
        let schedule = json!({ "name": "nightly", "at": "2199-01-01T00:00:00Z", "session": spec });
        self.ask("POST", "/v1/schedules", &schedule.to_string(), None, &[201, 409]).await;
        self.ask("POST", "/v1/schedules/nightly/run", "", Some("run"), &[200]).await;
        self.see(name, "ready", |view| view.status.phase == Phase::Idle).await;
        let one = || async {
            let view = self.client.attempt("GET", "/v1/schedules/nightly", "", None).await?;
            let view: agentd_api::schedule::ScheduleView = view.json();
            // The killed process may be that of this session, which is then not active.
            let is_active = view.active == 1 || matches!(self.fault, Fault::KillKeeper | Fault::KillAgent);
            (is_active && view.history.len() == 1 && view.history[0].session.is_some()).then_some(())
        };
        let recorded = async {
            while one().await.is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, recorded).await.is_ok(), "the run is not recorded once");
        self.ask("DELETE", "/v1/schedules/nightly", "", None, &[204, 404]).await;
    }

    /// Creates a session that is not interactive, and waits for its result.
    async fn complete(&self, spec: &SessionSpec, name: &str) {
        let name_of = Some(name.parse().expect("it is a name"));
        let prompt = Some("say done".to_owned());
        let spec = SessionSpec { name: name_of, interactive: false, initial_prompt: prompt, ..spec.clone() };
        let body = serde_json::to_string(&spec).expect("a spec is JSON");
        self.ask("POST", "/v1/sessions", &body, Some(name), &[202, 409]).await;
        let is_done = |view: &SessionView| view.status.phase.is_over() && view.status.completion.is_some();
        let view = self.see(name, "at its end", is_done).await;
        let ends = self.journal(&view.id).iter().filter(|one| matches!(one.body, Body::SessionCompleted(_))).count();
        assert_eq!(ends, 1, "the result is there once");
    }

    /// Returns the specification with a workflow that is approved.
    async fn following(&self, spec: &SessionSpec) -> SessionSpec {
        let directory = self.root.join("flow");
        let file = describe(&directory, "name = \"flow\"\nstartup_prompt = \"say done\"\n");
        self.ask("POST", "/v1/scripts/allow", &json!({ "directory": file }).to_string(), None, &[200]).await;
        let workflow = WorkflowSpec { directory: Some(directory), ..WorkflowSpec::default() };
        SessionSpec { workflow: Some(workflow), ..spec.clone() }
    }

    /// Returns the repository that the session clones.
    fn remote(&self) -> PathBuf {
        self.root.join("remote")
    }

    fn journal(&self, id: &SessionId) -> Vec<Event> {
        // The check waits while the journal is incomplete. It must not block the other tasks on this thread.
        tokio::task::block_in_place(|| journal::checked(&self.state, id))
    }

    /// Runs the scenario, which passes every point.
    async fn scenario(&self, spec: &SessionSpec) {
        if is_passed_by_a_launch(&self.point) {
            self.arm();
        }
        self.create(spec, "kept").await;
        if !is_passed_by_a_launch(&self.point) {
            self.arm();
        }
        self.prompt("kept", &format!("count {COUNT} 5"), "first").await;
        self.prompt("kept", "say second", "second").await;
        let id = self.see("kept", "there", |_| true).await.id;
        let speaks = || {
            let mut journal = self.journal(&id).into_iter();
            journal.any(|event| said(&event).is_some() || matches!(event.body, Body::TurnEnded(_)))
        };
        self.see("kept", "in a turn that has said something, or is over", |_| speaks()).await;
        let path = "/v1/sessions/kept";
        // A repeated patch without an answer changes nothing more.
        let repos = json!([{ "url": self.remote(), "name": "web" }]);
        let change = json!({ "env_setup": SCRIPT, "tags": ["changed"], "repos": repos });
        self.ask("PATCH", path, &change.to_string(), None, &[200]).await;
        self.restart_daemon().await;
        // The test reads the journal instead of a view: the end of an agent can cut the turns, which continue after a
        // resume.
        let over = || self.journal(&id).iter().filter(|event| matches!(event.body, Body::TurnEnded(_))).count() == 2;
        self.see("kept", "through its two turns", |_| over()).await;
        self.stop("kept").await;
        self.resume("kept").await;
        self.see("kept", "resumed", |view| view.status.phase == Phase::Idle).await;

        if self.point.starts_with("daemon.schedule.") {
            self.create_by_schedule(spec, "removed").await;
        } else if self.point.starts_with("daemon.complete.") {
            self.complete(spec, "removed").await;
        } else if self.point.starts_with("daemon.workflow.") {
            self.create(&self.following(spec).await, "removed").await;
        } else {
            self.create(spec, "removed").await;
        }
        self.stop("removed").await;
        self.ask("DELETE", "/v1/sessions/removed?force=true", "", None, &[204, 404]).await;
    }

    /// Asserts that nothing is lost, doubled or left half done.
    async fn check(&self) {
        self.restart_daemon().await;
        self.daemon.lock().await.ready().await;
        let view = self.see("kept", "alive", |view| view.status.phase == Phase::Idle).await;
        self.prompt("kept", "say alive", "last").await;
        let answered = |journal: &[Event]| journal.iter().filter_map(said).any(|text| text == "alive");
        until("the session answers", || answered(&self.journal(&view.id))).await;
        // The daemon's view follows the journal. Until the daemon has read the turn's start, it shows the session as
        // idle.
        let is_over =
            |event: &Event| matches!(&event.body, Body::TurnEnded(ended) if ended.turn == TurnId::numbered(3));
        until("the last turn ends", || self.journal(&view.id).iter().any(is_over)).await;
        let view = self.see("kept", "at rest", |view| view.status.phase == Phase::Idle).await;

        let list: WholeList = self.client.get("/v1/sessions?fields=*").await.expect(200);
        assert!(list.unreadable.is_empty(), "{:?}", list.unreadable);
        assert_eq!(list.sessions.iter().map(|view| &view.id).collect::<Vec<_>>(), [&view.id], "one session, once");
        let daemon = self.daemon.lock().await.pid();
        let (keeper, agent) = (view.status.keeper_pid.expect("a keeper"), view.status.agent_pid.expect("an agent"));
        // The daemon ends leftover processes in the background after its start, and it starts readers after a turn.
        let expected = BTreeSet::from([daemon, keeper, agent]);
        until("what is no session's ends", || BTreeSet::from_iter(process::of(&self.root)) == expected).await;
        until("what is half written is cleared away", || half_written(&self.state).is_empty()).await;
        let sessions = std::fs::read_dir(self.state.join("sessions")).unwrap().flatten();
        assert_eq!(sessions.map(|entry| entry.file_name()).collect::<Vec<_>>(), [view.id.as_str()]);

        self.check_journal(&self.journal(&view.id));
        assert_eq!((view.generation, view.spec.tags.as_slice()), (2, &["changed".to_owned()][..]));
        assert!(view.status.conditions.iter().all(|condition| condition.kind != ConditionType::SpecApplied));
        let is_cloned = |view: &SessionView| view.status.repos[0].state == RepositoryState::Ready;
        self.see("kept", "with its repository", is_cloned).await;
        assert_eq!(std::fs::read_to_string(self.root.join("work/web/file")).unwrap(), "1\n");
        assert_eq!(half_written(&self.root.join("work/web")), [self.root.join("work/web/.git")]);
        assert_eq!(std::fs::read_dir(self.root.join("work")).unwrap().count(), 1, "nothing half cloned is left");
        let script = self.state.join("sessions").join(view.id.as_str()).join("env-setup.sh");
        assert_eq!(std::fs::read_to_string(script).unwrap(), SCRIPT);
    }

    /// Checks turns and values, which [`journal::checked`] does not check.
    fn check_journal(&self, journal: &[Event]) {
        let mut turns: Vec<(&str, TurnId)> = Vec::new();
        for event in journal {
            match &event.body {
                Body::TurnStarted(turn) => turns.push(("started", turn.turn.clone())),
                Body::TurnEnded(turn) => turns.push(("ended", turn.turn.clone())),
                _ => {}
            }
        }
        let changes = journal.iter().filter(|event| matches!(event.body, Body::SpecChanged(_))).count();
        assert_eq!(changes, 1, "the specification is changed once; {}", excerpt(journal));
        let turn = |n| [("started", TurnId::numbered(n)), ("ended", TurnId::numbered(n))];
        let whole: Vec<(&str, TurnId)> = (1..=3).flat_map(turn).collect();
        assert_eq!(turns, whole, "three turns, each begun once with an agent, and ended once; {}", excerpt(journal));
        let values: Vec<u64> = journal.iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect();
        let counted = u64::try_from(values.len()).expect("it fits");
        assert_eq!(values, (1..=counted).collect::<Vec<_>>(), "a value is missing, double or out of order");
        let first = journal.iter().find_map(|event| match &event.body {
            Body::TurnEnded(ended) => Some(ended),
            _ => None,
        });
        let first = first.expect("it was found above");
        if first.stop_reason.as_deref() == Some("end_turn") {
            assert_eq!(counted, COUNT, "the turn ended, and not all it said is there");
        }
        let spared = !matches!(self.fault, Fault::KillKeeper | Fault::KillAgent | Fault::Fail);
        assert!(!spared || first.synthetic.is_none(), "nobody harmed the agent, and its turn was cut: {first:?}");
    }
}

/// Sets a fault in one step. A program that reads the file before its text is there would take it for another fault.
pub(crate) fn set(file: &Path, order: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, order).and_then(|()| std::fs::rename(new, file)).expect("the fault can be set");
}

/// Waits until a program waits at the point. Returns the file whose removal lets the program continue.
pub(crate) async fn passed(daemon: &Daemon, point: &str) -> PathBuf {
    let hit = daemon.state().join("faults").join(format!("{point}.hit"));
    until(point, || hit.exists()).await;
    hit
}

/// Returns whether a launch passes the point. The other points are set afterwards, so that a turn or its end passes
/// them.
fn is_passed_by_a_launch(point: &str) -> bool {
    ["daemon.create.", "daemon.bring-up.", "daemon.launch.", "keeper.start.", "keeper.launch."]
        .iter()
        .any(|part| point.starts_with(part))
}

/// Returns the journal without records of launches, one line for each record.
fn excerpt(journal: &[Event]) -> String {
    let told = journal.iter().filter(|event| !matches!(event.body, Body::Condition(_) | Body::EnvironmentBuilt(_)));
    let line = |event: &Event| {
        let data = event.body.to_data();
        format!("{} {} {}", event.seq, event.body.kind(), data.get().chars().take(150).collect::<String>())
    };
    told.map(line).collect::<Vec<_>>().join("\n")
}

fn send(pids: &[u32], signal: Signal) {
    for &pid in pids {
        // The end of a process can end the next process too.
        kill(process::pid(pid), signal).ok();
    }
}

/// Files that were begun under a temporary name.
fn half_written(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            found.push(entry.path());
        } else if entry.path().is_dir() {
            found.extend(half_written(&entry.path()));
        }
    }
    found
}

fn points() -> Vec<String> {
    let output = Command::new(paths::agentd()).arg("fault-points").output().expect("agentd can be executed");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("names are text").lines().map(str::to_owned).collect()
}

async fn run(point: String, fault: Fault) {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        let config = match fault {
            // Without this fault the time limit stays long, so that a slow keeper does not count as hung.
            Fault::HangKeeper => config.replace("[launch]\n", &format!("[launch]\nkeeper_answer = \"{ANSWER}\"\n")),
            _ => config,
        };
        config + &format!("\n[journal]\nrotate = {ROTATE}\n")
    });
    std::fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    let (spec, remote) = (daemon.scripted(&[]), daemon.root().join("remote"));
    std::fs::create_dir(&remote).unwrap();
    git(&remote, &["init", "-q"]);
    std::fs::write(remote.join("file"), "1\n").unwrap();
    git(&remote, &["add", "."]);
    git(&remote, &["commit", "-qm", "first"]);
    let (client, root, state) = (daemon.client.clone(), daemon.root().to_owned(), daemon.state());
    let case = Arc::new(Case { point, fault, client, root, state, daemon: Mutex::new(daemon) });
    // The fault strikes in a separate task: the scenario may read the journal while the journal's writer waits at the
    // point.
    let strike = tokio::spawn({
        let case = Arc::clone(&case);
        async move { case.strike().await }
    });
    case.scenario(&spec).await;
    assert!(strike.is_finished() || !case.file().exists(), "the scenario does not pass this point");
    strike.await.expect("a fault strikes");
    case.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_at_whatever_point_no_session_is_lost_or_doubled_and_nothing_is_left_half_done() {
    let only = std::env::var("AGENTD_FAULTS").unwrap_or_default();
    let gate = Arc::new(Semaphore::new(AT_ONCE));
    let mut cases = Vec::new();
    for point in points() {
        for fault in Fault::ALL {
            let name = format!("{point}/{}", fault.name());
            if name.contains(&only) {
                let (gate, point) = (Arc::clone(&gate), point.clone());
                let case = async move {
                    let _permit = gate.acquire_owned().await.expect("the gate is never closed");
                    run(point, fault).await;
                };
                cases.push((name, tokio::spawn(case)));
            }
        }
    }
    assert!(!cases.is_empty(), "no point has {only:?} in its name");
    let all = cases.len();
    let mut failed = Vec::new();
    for (name, case) in cases {
        if let Err(error) = case.await {
            let panic = error.into_panic();
            let message = panic.downcast_ref::<String>().cloned();
            failed.push(format!(
                "{name}: {}",
                message.or(panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default()
            ));
        }
    }
    assert!(failed.is_empty(), "{} of {all} combinations failed:\n\n{}", failed.len(), failed.join("\n\n"));
}
