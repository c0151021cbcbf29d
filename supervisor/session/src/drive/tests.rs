//! Drives a driver with a keeper that is no process: it writes the journal in place, and plays the agent.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use agentd_api::event::{AgentExited, AgentStarted, Cause, KeeperStarted};
use agentd_api::facts::{Repository, SessionFacts};
use agentd_api::isolation::Isolated;
use agentd_api::session::{PermissionAnswer, SessionSpec, SessionView};
use agentd_api::workflow::WorkflowSpec;
use agentd_config::{Loaded, Sources};
use agentd_decide::repositories::RepositoryWork;
use agentd_decide::rules::LaunchTerms;
use agentd_environment::Trust;
use agentd_host::directories::Directories;
use agentd_journal::{Record, Writer};
use agentd_keeper::protocol::{Appended, FromKeeper, Hello, HoldArgs, LaunchRecord, PROTOCOL, Tail, ToKeeper};
use async_trait::async_trait;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::bringup::{Prepared, Progress};
use crate::creation;
use crate::daemon::{Daemon, Programs};
use crate::generation::Generation;
use crate::journal_port::Journal;
use crate::launch::{Connection, KeeperLimits, LaunchError, LinkError, Reservation};
use crate::launch_plan::LaunchPlan;
use crate::workflow::Examined;

/// Process id of the keeper and of its agent. No process of the machine has it.
const NO_PROCESS: u32 = u32::MAX / 2;

/// An outside without processes. Its keepers listen on no socket.
#[derive(Debug)]
struct NoProcesses;

#[async_trait]
impl Outside for NoProcesses {
    fn bring_up(&self, plan: Arc<LaunchPlan>, report: mpsc::Sender<Progress>) -> JoinHandle<()> {
        tokio::spawn(async move {
            let record = LaunchRecord { launch: plan.launch, ..LaunchRecord::default() };
            report.send(Progress::Ready(Box::new(Prepared { record, files: Vec::new(), keeper: None }))).await.unwrap();
        })
    }

    fn repository(&self, _: Arc<LaunchPlan>, _: RepositoryWork, _: mpsc::Sender<Progress>) -> JoinHandle<()> {
        tokio::spawn(std::future::pending())
    }

    fn workflow(&self, _: Arc<LaunchPlan>, _: WorkflowSpec, _: oneshot::Sender<Examined>) -> JoinHandle<()> {
        tokio::spawn(std::future::pending())
    }

    async fn facts(&self, _: Arc<Generation>, _: PathBuf) -> SessionFacts {
        SessionFacts { read_at: Timestamp::now(), directory: None, repository: Repository::None }
    }

    async fn start(&self, plan: &LaunchPlan, _: Option<Reservation>) -> Result<Box<dyn Connection>, LaunchError> {
        Ok(Box::new(FakeKeeper::start(&plan.id, &plan.keeper)))
    }

    async fn connect(&self, socket: &Path, _: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError> {
        Err(LinkError::NoHello { socket: socket.to_owned() })
    }

    async fn introduced(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError> {
        self.connect(socket, patience).await
    }
}

/// A keeper that holds the journal and whose agent answers at once.
#[derive(Debug)]
struct FakeKeeper {
    hello: Hello,
    /// The held journal, until the end of the agent.
    held: Mutex<Option<Held>>,
    tail: watch::Receiver<Tail>,
    /// The agent's request to which a prompt is still unanswered.
    prompt: Option<Value>,
}

#[derive(Debug)]
struct Held {
    writer: Writer,
    announce: watch::Sender<Tail>,
}

impl Held {
    fn record(&mut self, kind: &str, data: &RawValue) -> u64 {
        let seq = self.writer.append(Timestamp::now(), &[Record { kind, data }]).unwrap();
        self.announce.send_replace(tail(seq));
        seq
    }
}

fn tail(seq: u64) -> Tail {
    Tail { seq, blocked: false, errno: None, ended: false, output: None }
}

impl FakeKeeper {
    fn start(id: &SessionId, args: &HoldArgs) -> Self {
        let (writer, _) = Writer::open(&args.state, args.journal).unwrap();
        let (announce, tail_of) = watch::channel(tail(writer.last_seq()));
        let hello = Hello {
            protocol: PROTOCOL,
            version: "0".to_owned(),
            session: id.to_string(),
            launch: args.launch,
            pid: NO_PROCESS,
            start_time: 1,
            agent_pid: None,
            tail: tail(writer.last_seq()),
        };
        let keeper = Self { hello, held: Mutex::new(Some(Held { writer, announce })), tail: tail_of, prompt: None };
        keeper.record(&Body::KeeperStarted(KeeperStarted {
            pid: NO_PROCESS,
            start_time: 1,
            version: "0".to_owned(),
            protocol: PROTOCOL,
            fills_contents: true,
            launch: args.launch,
        }));
        keeper
    }

    fn record(&self, body: &Body) -> u64 {
        self.record_as(body.kind(), &body.to_data())
    }

    fn record_as(&self, kind: &str, data: &RawValue) -> u64 {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_mut().expect("the agent runs").record(kind, data)
    }

    fn says(&self, line: &Value) {
        self.record_as("agent.out", &serde_json::value::to_raw_value(line).unwrap());
    }

    /// Lets the agent hear a line. The agent asks for a permission before it answers a prompt.
    fn hears(&mut self, line: &RawValue) {
        let line: Value = serde_json::from_str(line.get()).unwrap();
        let answer = |id: &Value, result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
        match line["method"].as_str() {
            Some("initialize") => {
                self.says(&answer(&line["id"], json!({"protocolVersion": 1, "agentCapabilities": {}})));
            }
            Some("session/new") => self.says(&answer(&line["id"], json!({"sessionId": "c1"}))),
            Some("session/prompt") => {
                self.prompt = Some(line["id"].clone());
                self.says(&json!({"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": {
                    "sessionId": "c1", "toolCall": {"toolCallId": "x", "title": "rm"}, "options": [
                        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
                        {"optionId": "no", "name": "No", "kind": "reject_once"}]}}));
            }
            Some(other) => panic!("the agent hears {other}"),
            None => {
                assert_eq!((&line["id"], &line["result"]["outcome"]["optionId"]), (&json!(7), &json!("yes")));
                let id = self.prompt.take().expect("a prompt is unanswered");
                self.says(&answer(&id, json!({"stopReason": "end_turn"})));
            }
        }
    }
}

#[async_trait]
impl Connection for FakeKeeper {
    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn peer(&self) -> Option<u32> {
        None
    }

    async fn call(&mut self, request: &ToKeeper) -> Result<FromKeeper, LinkError> {
        if self.held.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(LinkError::Lost);
        }
        match request {
            ToKeeper::Launch(record) => {
                self.record(&Body::AgentStarted(AgentStarted {
                    launch: record.launch,
                    pid: NO_PROCESS,
                    start_time: 1,
                    command: vec!["agent".to_owned()],
                    isolation: Isolated::default(),
                    warm: false,
                    place: None,
                    resident: false,
                }));
                Ok(FromKeeper::Launched { pid: NO_PROCESS })
            }
            ToKeeper::Append(append) => {
                let mut seq = 0;
                for record in &append.records {
                    seq = self.record_as(&record.kind, &record.data);
                }
                for record in append.records.iter().filter(|record| record.send) {
                    self.hears(&record.data);
                }
                Ok(FromKeeper::Appended(Appended { request: append.request, seq }))
            }
            ToKeeper::Hide(_) => Ok(FromKeeper::Hidden),
            ToKeeper::Stop(_) => {
                self.record(&Body::AgentExited(AgentExited {
                    launch: self.hello.launch,
                    status: Some(0),
                    signal: None,
                    exec_error: None,
                    killed: 0,
                    requested: true,
                    reason: None,
                    exceeded: None,
                }));
                // The keeper releases the journal and closes the connection.
                *self.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Ok(FromKeeper::Stopping)
            }
        }
    }

    fn reach(&self) -> u64 {
        self.tail().seq
    }

    fn tail(&self) -> Tail {
        *self.tail.borrow()
    }

    async fn grown(&mut self) -> Result<Tail, LinkError> {
        self.tail.changed().await.map_err(|_| LinkError::Lost)?;
        Ok(*self.tail.borrow_and_update())
    }
}

fn sources(root: &Path) -> Sources {
    Sources { system: root.join("system"), user: root.join("config/agentd.toml"), named: false }
}

fn generations(root: &Path) -> Generations {
    let below = |name: &str| root.join(name);
    let directories = Directories {
        runtime: below("run"),
        state: below("state"),
        cache: below("cache"),
        config: below("config"),
        system_config: below("system"),
    };
    std::fs::create_dir_all(&directories.config).unwrap();
    std::fs::write(sources(root).user, "[launch]\nmanager = \"detached\"\n").unwrap();
    let Loaded { config, read } = agentd_config::load(&sources(root));
    let trust = Trust::begin(&directories.state);
    let none = || below("no-program");
    let programs = Programs { daemon: none(), keeper: none(), ctl: none() };
    let daemon = Daemon::new(&config, read, directories, trust, programs, Arc::new(agentd_metrics::Metrics::new("0")));
    Generations::new(Generation::first(config, Arc::new(daemon)).unwrap())
}

/// Sends a command to the driver.
async fn ask(inbox: &mpsc::Sender<Box<Request>>, command: Command) -> Result<CommandResult, Problem> {
    let (reply, answer) = oneshot::channel();
    inbox.send(Box::new(Request::Command { command, span: tracing::Span::none(), reply })).await.unwrap();
    answer.await.unwrap()
}

/// Asks the driver to give up the session.
async fn release(inbox: &mpsc::Sender<Box<Request>>, seen: Option<u64>) -> Result<(), Problem> {
    let (reply, answer) = oneshot::channel();
    inbox.send(Box::new(Request::Release { seen, reply })).await.unwrap();
    answer.await.unwrap()
}

/// Waits until the published view is as wanted.
async fn until_view(
    published: &mut watch::Receiver<Arc<Published>>,
    wanted: impl Fn(&SessionView) -> bool,
) -> Arc<SessionView> {
    published.wait_for(|published| wanted(&published.view)).await.unwrap().view.clone()
}

#[tokio::test]
async fn a_reload_changes_the_next_launch_and_no_launch_that_has_begun() {
    let root = tempfile::tempdir().unwrap();
    let generations = generations(root.path());
    let document = Document::new(SessionId::random(), Timestamp::now(), SessionSpec::new(root.path()), None);
    let state = State::new(document.created);
    let plan = || LaunchPlan::of(&generations.now(), &document, &state, 1);
    let begun = plan();
    let mut loaded = agentd_config::load(&sources(root.path()));
    (loaded.config.limits.line, loaded.config.limits.memory) = (4321, Some(1 << 30));
    generations.replace(generations.now().next(loaded));
    assert_ne!(begun.max_line, 4321);
    assert_eq!((begun.limits.memory_bytes, begun.unit.memory), (None, None));
    let next = plan();
    assert_eq!((next.max_line, next.limits.memory_bytes, next.unit.memory), (4321, Some(1 << 30), Some(1 << 30)));
}

#[tokio::test]
async fn a_driver_starts_prompts_answers_and_stops_without_a_process() {
    let root = tempfile::tempdir().unwrap();
    let generations = generations(root.path());
    let generation = generations.now();
    let document = Document::new(SessionId::random(), Timestamp::now(), SessionSpec::new(root.path()), None);
    let directory = generation.daemon.directories.session(&document.id);
    let journal = Journal { directory: directory.with_extension("new"), options: generation.config.journal.options() };
    creation::create_files(&journal, &directory, &document, None, LaunchTerms::default()).unwrap();
    let state = State::new(document.created);
    let first = Published::new(crate::view(&document, &state, (state.phase(), None)), &document, &state, 0, false);
    let (publish, mut published) = watch::channel(Arc::new(first));
    let (inbox, receiver) = mpsc::channel(1);
    let driver =
        Driver::new(&generations, document, receiver, state, publish, SessionOrigin::Created, Arc::new(NoProcesses));
    let driver = tokio::spawn(Box::new(driver).run());

    let idle = until_view(&mut published, |view| view.status.phase == Phase::Idle).await;
    assert_eq!((idle.status.agent_pid, idle.status.keeper_pid), (Some(NO_PROCESS), Some(NO_PROCESS)));
    assert_eq!((idle.status.conversation.as_deref(), idle.status.launches), (Some("c1"), 1));
    let refused = release(&inbox, Some(idle.status.last_seq)).await.unwrap_err();
    assert_eq!((refused.code, refused.hint.is_some()), (Code::WrongPhase, true), "an active session is not released");

    let done = ask(
        &inbox,
        Command::Prompt { text: "hi".to_owned(), parts: Vec::new(), schema: None, key: None, requester: None },
    )
    .await
    .unwrap();
    assert_eq!(done.turn, Some(TurnId::numbered(1)));
    let asked = until_view(&mut published, |view| !view.status.permissions.is_empty()).await;
    assert_eq!(asked.status.phase, Phase::Busy);

    let permission = asked.status.permissions[0].id.clone();
    let answer = Command::Answer { permission, answer: PermissionAnswer::Allow, cause: Cause::default() };
    ask(&inbox, answer).await.unwrap();
    let answered = until_view(&mut published, |view| view.status.phase == Phase::Idle).await;
    assert_eq!((answered.status.turn.as_ref(), answered.status.permissions.len()), (None, 0));

    let stop = Command::Stop { reason: "test".to_owned(), cause: Cause::default() };
    ask(&inbox, stop).await.unwrap();
    let stopped = until_view(&mut published, |view| view.status.phase == Phase::Stopped).await;
    assert_eq!(stopped.status.agent_pid, None);
    // The driver needs no keeper to write the journal again.
    assert!(!agentd_journal::is_held(&directory).unwrap());
    assert_eq!(agentd_journal::last_seq(&directory).unwrap(), stopped.status.last_seq);

    // A session is released for its removal only if the caller has seen its last event.
    let refused = release(&inbox, Some(stopped.status.last_seq - 1)).await.unwrap_err();
    assert!(refused.code == Code::WrongPhase && refused.detail.contains("has changed"), "{refused:?}");
    release(&inbox, Some(stopped.status.last_seq)).await.unwrap();
    driver.await.unwrap();
}
