//! One session that the editor has open: follows its journal, and does what the editor requests.
//!
//! ```text
//! opening ── the journal is read to its end, and the agent is ready ──> open ── close, end of stdin, deleted ──> gone
//!    │ failed launch                                                      │ failed launch: the prompts fail
//!    └──> gone                                                            └──> open
//! ```
//!
//! Ordering: the updates of a turn are sent before the answer to its prompt, and the replay of `session/load` before
//! its answer. Leaving stops nothing: the daemon and the agent do not notice.

use std::ops::ControlFlow::{self, Break, Continue};
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::event::TurnEnded;
use agentd_api::session::{
    ConditionStatus, ConditionType, PermissionOrigin, PermissionRequest, Phase, PromptRequest, SessionStatus,
};
use agentd_api::{Body, Code, Event, TurnId};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::command::{Command, Kind};
use super::history::{self, Mark};
use super::host::{Host, tell};
use super::permission::Permissions;
use super::requests::Requests;
use super::seen::Seen;
use super::settings::{self, Changed, PATIENCE, Settings};
use super::wire::{CANCELLED, INTERNAL_ERROR, Id, Message, NOT_FOUND, Refusal, raw};
use super::{content, outcome, refusal};
use crate::conversation::{Conversation, Item};
use crate::error::Error;
use crate::failure::Failure;
use crate::start::Starter;
use agentd_client::{Absence as _, Client, Error as ClientError, EventStream, Next, StreamStart, patiently};

/// Time after a failure in which an event may explain it.
const SETTLE: Duration = Duration::from_millis(300);

/// A request that opens the session and has no answer yet.
#[derive(Debug)]
struct Opening {
    id: Id,
    kind: Kind,
    /// Last record of the history.
    until: u64,
    /// State after the history.
    status: Option<Box<SessionStatus>>,
}

/// A prompt of this editor without an answer.
#[derive(Debug)]
struct Prompt {
    id: Id,
    turn: TurnId,
}

/// A change of an option that the agent has not set yet.
#[derive(Debug)]
struct Change {
    id: Id,
    changed: Changed,
    /// Time limit for the agent.
    until: Instant,
}

/// The running turn.
#[derive(Debug)]
struct Turn {
    /// Id of the daemon's request to the agent.
    rpc: u64,
    answer: Option<Result<Box<RawValue>, Box<RawValue>>>,
}

pub(super) struct Session {
    host: Host,
    client: Client,
    /// Id of the session, as the daemon knows it.
    id: String,
    /// Id of the session, as the editor named it.
    name: String,
    directory: PathBuf,
    stream: EventStream,
    /// Sequence number of the last event.
    seq: u64,
    conversation: Conversation,
    opening: Option<Opening>,
    prompts: Vec<Prompt>,
    turn: Option<Turn>,
    permissions: Permissions,
    requests: Requests,
    settings: Settings,
    changes: Vec<Change>,
    /// The agent's last list of its commands.
    commands: Option<Box<RawValue>>,
    /// Notifications for after the answer that opens the session, each with its method.
    held: Vec<(String, Box<RawValue>)>,
    /// A cancel was requested, and the turn has not ended.
    cancelling: bool,
    /// Time at which to ask the daemon whether the session has ended.
    settle: Option<Instant>,
    seen: Seen,
    /// Position of the editor when it opened the session.
    seen_before: u64,
    /// Last record that the editor has, by its own words. The replay begins after it.
    after: u64,
    /// Number of prompts, for their keys.
    count: u64,
}

/// A session to follow.
pub(super) struct Subject {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) directory: PathBuf,
    /// State of an existing session. Its journal is the history up to there.
    pub(super) status: Option<Box<SessionStatus>>,
    /// Last record that the editor has. The replay begins after it.
    pub(super) after: u64,
}

impl Session {
    /// Follows a session from its first record. `id` is the request that opens it.
    pub(super) fn new(mut host: Host, client: Client, subject: Subject, id: Id, kind: Kind) -> Self {
        let Subject { id: session, name, directory, status, after } = subject;
        host.out = host.out.of(&name);
        let until = status.as_ref().map_or(0, |status| status.last_seq);
        let starter = host.starter.clone();
        let seen = Seen::open(host.seen.as_deref(), &session);
        let permissions = Permissions::new(&name, host.shows);
        let requests = Requests::new(&name, host.offers);
        let reviver = starter.map(Starter::reviver);
        Self {
            stream: EventStream::follow(client.clone(), session.clone(), StreamStart::After(0), reviver),
            host,
            client,
            permissions,
            requests,
            id: session,
            name,
            directory,
            seq: 0,
            conversation: Conversation::default(),
            opening: Some(Opening { id, kind, until, status }),
            prompts: Vec::new(),
            turn: None,
            settings: Settings::default(),
            changes: Vec::new(),
            commands: None,
            held: Vec::new(),
            cancelling: false,
            settle: None,
            seen_before: seen.seq(),
            after,
            seen,
            count: 0,
        }
    }

    /// Serves the session until the editor leaves, or the session is gone.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            let settle = self.settle;
            let change = self.changes.iter().map(|change| change.until).min();
            let flow = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command).await,
                    None => Break(()), // the end of standard input
                },
                next = self.stream.next() => self.next(next).await,
                () = sleep_until(settle.unwrap_or_else(Instant::now)), if settle.is_some() => self.settled().await,
                () = sleep_until(change.unwrap_or_else(Instant::now)), if change.is_some() => {
                    self.refuse_changes(Instant::now()).await;
                    Continue(())
                }
            };
            if flow.is_break() {
                self.seen.store();
                return;
            }
        }
    }

    async fn next(&mut self, next: Option<Next>) -> ControlFlow<()> {
        match next {
            Some(Next::Record { seq, line }) => return self.record(seq, &line).await,
            Some(Next::Away) => tell(&self.name, "agentd is unreachable; the session continues"),
            Some(Next::Failed(error)) => {
                let error = Error::from(error);
                let is_away = error.is_absence()
                    || matches!(error, Error::Client(ClientError::Away { .. }) | Error::Managed { .. });
                self.fail(&refusal::of(&error)).await;
                if self.opening.is_some() || !is_away {
                    return self.give_up(refusal::of(&error)).await;
                }
                // The next daemon has the session again.
                let (client, id) = (self.client.clone(), self.id.clone());
                self.stream = EventStream::follow(client, id, StreamStart::After(self.seq), None);
            }
            Some(Next::Deleted) | None => {
                let refusal = Refusal::new(NOT_FOUND, format!("session {} was deleted", self.name));
                self.fail(&refusal).await;
                return self.give_up(refusal).await;
            }
        }
        Continue(())
    }

    /// Ends this attachment, and answers the requests that wait.
    async fn give_up(&mut self, refusal: Refusal) -> ControlFlow<()> {
        self.refuse_all_changes(&refusal.message).await;
        if let Some(opening) = self.opening.take() {
            self.host.out.answer(&opening.id, Err(refusal)).await;
        }
        self.permissions.clear(&self.host.out).await;
        self.requests.clear(&self.host.out).await;
        Break(())
    }

    /// Answers every prompt with this error.
    async fn fail(&mut self, refusal: &Refusal) {
        for prompt in std::mem::take(&mut self.prompts) {
            self.host.out.answer(&prompt.id, Err(refusal.clone())).await;
        }
    }

    async fn record(&mut self, seq: u64, line: &[u8]) -> ControlFlow<()> {
        self.seq = seq;
        self.host.out.reached(seq.saturating_sub(1));
        match Event::parse(line) {
            Ok(event) => self.event(&event).await,
            // A newer daemon may write what this version cannot read.
            Err(error) => tell(&self.name, &agentd_api::chain(&error)),
        }
        self.host.out.reached(seq);
        self.answer_changes().await;
        self.opened().await;
        if self.opening.is_none() {
            self.permissions.ask(&self.host.out).await;
            self.requests.ask(&self.host.out).await;
            self.seen.reached(seq);
        }
        self.settle = (!self.is_history() && self.conversation.down().is_some()).then(|| Instant::now() + SETTLE);
        Continue(())
    }

    /// Reports whether the last record is a part of the history.
    fn is_history(&self) -> bool {
        self.opening.as_ref().is_some_and(|opening| self.seq <= opening.until)
    }

    async fn event(&mut self, event: &Event) {
        let is_live = !self.is_history();
        let mark = if is_live { Mark::live(event) } else { Mark::replayed(event, self.seen_before) };
        match &event.body {
            Body::AgentIn(message) => {
                self.settings.sent(message);
                if let Ok(Message { id: Some(id), method: None, .. }) = serde_json::from_str(message.get()) {
                    self.requests.resolved(id, &self.host.out).await;
                }
            }
            Body::AgentOut(message) => self.agent_said(message, &mark).await,
            Body::TurnStarted(started) => self.turn = Some(Turn { rpc: started.rpc, answer: None }),
            Body::Condition(condition)
                if condition.kind == ConditionType::OptionsApplied && condition.status == ConditionStatus::False =>
            {
                self.answer_changes().await;
                self.refuse_all_changes(&condition.message).await;
            }
            Body::Condition(condition)
                if condition.kind == ConditionType::RateLimited
                    && condition.status == ConditionStatus::True
                    && is_live =>
            {
                self.update(&history::told(&condition.message), &mark).await;
            }
            Body::PermissionRequested(requested) => self.permissions.requested(requested),
            Body::PermissionResolved(resolved) => {
                self.permissions.resolved(&resolved.permission, &self.host.out).await;
            }
            Body::TitleChanged(changed) if is_live => {
                self.update(&history::title(changed.title.as_deref()), &mark).await;
            }
            _ => {}
        }
        for item in self.conversation.apply(event) {
            match item {
                Item::Prompt { turn, prompt } if self.prompts.iter().all(|own| own.turn != turn) => {
                    let mark = if is_live { mark.clone().other_client() } else { mark.clone() };
                    self.host.out.reached(self.seq);
                    self.update(&history::prompt(&prompt), &mark).await;
                }
                Item::TurnEnded(ended, failure) => {
                    for tool_call in &ended.interrupted_tool_calls {
                        self.update(&history::interrupted(tool_call), &mark).await;
                    }
                    self.turn_ended(&ended, failure).await;
                }
                Item::Warning(text) | Item::Progress(text) if is_live => tell(&self.name, &text),
                Item::Failed { failure, .. } if is_live => tell(&self.name, &failure.lines().join("\n")),
                _ => {}
            }
        }
        if self.conversation.down().is_some() {
            self.permissions.clear(&self.host.out).await;
            self.requests.clear(&self.host.out).await;
        }
    }

    async fn agent_said(&mut self, message: &RawValue, mark: &Mark) {
        let Ok(Message { id, method, params, result, error }) = serde_json::from_str(message.get()) else { return };
        match (method.as_deref(), id, params) {
            (Some("session/update"), _, Some(params)) => {
                let name = history::name(params).unwrap_or_default();
                self.settings.updated(&name, params);
                if let Some(params) = history::rewritten(params, &self.name, Some(mark)) {
                    if name == "available_commands_update" {
                        self.commands = history::rewritten(&params, &self.name, None);
                    }
                    self.host.out.reached(self.seq);
                    self.send(params).await;
                }
            }
            (Some("session/request_permission" | "elicitation/create"), Some(id), Some(params)) => {
                self.permissions.sent(id, params);
            }
            (Some(method), Some(id), Some(params)) => self.requests.sent(id, method, params),
            // Notifications of an extension are no part of the replay.
            (Some(method), None, params)
                if !self.is_history()
                    && (method.starts_with('_') || self.permissions.completes_shown(method, params)) =>
            {
                self.notify(method, history::addressed(params, &self.name)).await;
            }
            (None, Some(id), _) => {
                if let Some(update) = result.and_then(|result| self.settings.answered(id, result)) {
                    self.update(&update, mark).await;
                }
                if let Some(turn) = self.turn.as_mut().filter(|turn| id.get() == turn.rpc.to_string()) {
                    turn.answer =
                        error.map(|error| Err(error.to_owned())).or(result.map(|result| Ok(result.to_owned())));
                }
            }
            _ => {}
        }
    }

    /// Sends an update of agentd itself.
    async fn update(&mut self, update: &Value, mark: &Mark) {
        self.send(history::own(&self.name, update, mark)).await;
    }

    /// Sends an update.
    async fn send(&mut self, params: Box<RawValue>) {
        self.notify("session/update", params).await;
    }

    /// Sends a notification, unless the editor must not have it yet or at all.
    async fn notify(&mut self, method: &str, params: Box<RawValue>) {
        match self.opening.as_ref().map(|opening| opening.kind) {
            // A resumed session replays nothing.
            Some(Kind::Resume) if self.is_history() => {}
            Some(Kind::Load) if self.seq <= self.after => {}
            // The editor does not know the session before the answer.
            Some(Kind::New | Kind::Resume) => self.held.push((method.to_owned(), params)),
            Some(Kind::Load) | None => self.host.out.notify(method, &params).await,
        }
    }

    /// Answers the request that opens the session, once the history was read and the agent is ready.
    async fn opened(&mut self) {
        let Some(opening) = &mut self.opening else { return };
        if self.seq < opening.until {
            return;
        }
        if let Some(status) = opening.status.take() {
            self.conversation.adopt(&status);
            self.permissions.adopt(&status.permissions);
        }
        // A launch that waits for an answer gets it only from an open session.
        let is_question =
            |request: &PermissionRequest| request.origin == PermissionOrigin::Agentd || request.elicitation.is_some();
        let asks = self.conversation.permissions().iter().any(is_question);
        if !self.conversation.is_ready() && !asks {
            return;
        }
        let Some(opening) = self.opening.take() else { return };
        let session = (opening.kind == Kind::New).then_some(self.name.as_str());
        self.host.out.answer(&opening.id, Ok(raw(&self.settings.result(session)))).await;
        if opening.kind == Kind::Resume {
            let known = self.commands.iter().cloned().map(|params| ("session/update".to_owned(), params));
            self.held = known.chain(std::mem::take(&mut self.held)).collect();
        }
        for (method, params) in std::mem::take(&mut self.held) {
            self.host.out.notify(&method, &params).await;
        }
    }

    /// Answers the prompt of a turn that has ended.
    async fn turn_ended(&mut self, ended: &TurnEnded, failure: Option<Failure>) {
        let answer = self.turn.take().and_then(|turn| turn.answer);
        self.cancelling = false;
        let Some(at) = self.prompts.iter().position(|prompt| prompt.turn == ended.turn) else { return };
        let prompt = self.prompts.remove(at);
        // The agent's exit was reported as an event of its own.
        let failure = failure.or_else(|| self.conversation.failure().cloned());
        let outcome = outcome::of(ended, answer, failure.as_ref(), &self.name);
        self.host.out.answer(&prompt.id, outcome).await;
        self.seen.store();
    }

    /// Asks the daemon whether the session has ended. Called when no event has followed a failure.
    async fn settled(&mut self) -> ControlFlow<()> {
        self.settle = Some(Instant::now() + SETTLE);
        let Ok(view) = self.client.session(&self.id).await else { return Continue(()) };
        let view = view.value;
        if view.status.last_seq > self.seq || !view.status.phase.is_over() {
            return Continue(());
        }
        self.settle = None;
        if self.opening.is_none() && self.prompts.is_empty() {
            return Continue(());
        }
        let failure = match view.status.phase {
            Phase::Failed => self.conversation.failure().cloned().unwrap_or_else(|| Failure::of(&view)),
            phase => Failure {
                message: format!("session {} is {}: it was ended elsewhere", self.name, phase.as_str()),
                ..Failure::default()
            },
        };
        for prompt in &self.prompts {
            // A later launch must not run what the editor reports as failed.
            let _ = self.client.cancel_turn(&self.id, &prompt.turn).await;
        }
        let is_new = self.opening.as_ref().is_some_and(|opening| opening.kind == Kind::New);
        let refusal = if is_new {
            // The editor never had its id.
            let _ = self.client.delete(&self.id, true).await;
            refusal::of_failure(&failure, &self.remedy(&failure))
        } else {
            refusal::of_failure(&failure, &failure.remedy(&self.name, false))
        };
        self.fail(&refusal).await;
        if self.opening.is_some() { self.give_up(refusal).await } else { Continue(()) }
    }

    /// Returns the remedy for a new session that could not be launched.
    fn remedy(&self, failure: &Failure) -> String {
        let directory = agentd_api::doctor::shell_word(&self.directory.to_string_lossy());
        let look = format!("agentctl run --dir {directory} in a terminal shows the whole launch");
        if failure.is_degradable() {
            return format!("{look}; agentctl acp --degraded starts without it, and --wait waits for prerequisites");
        }
        look
    }

    async fn command(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Prompt { id, blocks } => self.prompt(id, &blocks).await,
            Command::Cancel => self.cancel().await,
            Command::Withdrawn(id) => return self.withdrawn(&id).await,
            Command::Answered { id, outcome } => self.answered(id, outcome).await,
            Command::Change { id, method, params } => {
                match settings::change(&self.client, &self.id, &method, &params).await {
                    Ok(changed) => self.changes.push(Change { id, changed, until: Instant::now() + PATIENCE }),
                    Err(refusal) => self.host.out.answer(&id, Err(refusal)).await,
                }
                self.answer_changes().await;
            }
            Command::Close(id) => {
                // The turn continues without this editor, for which it is over.
                let cancelled = json!({ "stopReason": "cancelled", "_meta": { "agentd": { "detached": true } } });
                for prompt in std::mem::take(&mut self.prompts) {
                    self.host.out.answer(&prompt.id, Ok(raw(&cancelled))).await;
                }
                let closed = Refusal::new(CANCELLED, "the session was closed");
                let flow = self.give_up(closed).await;
                if let Some(id) = id {
                    self.host.out.answer(&id, Ok(raw(&json!({})))).await;
                }
                return flow;
            }
        }
        Continue(())
    }

    /// Answers the changes that the agent has made.
    async fn answer_changes(&mut self) {
        let settings = &self.settings;
        for Change { id, .. } in self.changes.extract_if(.., |change| settings.has(&change.changed)) {
            self.host.out.answer(&id, Ok(raw(&settings.changed()))).await;
        }
    }

    /// Answers the changes whose time is over.
    async fn refuse_changes(&mut self, now: Instant) {
        for Change { id, changed, .. } in self.changes.extract_if(.., |change| change.until <= now) {
            let refusal = settings::unset(&self.client, &self.id, &changed).await;
            self.host.out.answer(&id, Err(refusal)).await;
        }
    }

    /// Answers all changes with the agent's refusal.
    async fn refuse_all_changes(&mut self, message: &str) {
        for Change { id, .. } in std::mem::take(&mut self.changes) {
            self.host.out.answer(&id, Err(Refusal::new(INTERNAL_ERROR, message.to_owned()))).await;
        }
    }

    async fn prompt(&mut self, id: Id, blocks: &[Value]) {
        let queued = match content::request(blocks) {
            Ok(request) => self.queue(&request).await.map_err(|error| refusal::of(&error)),
            Err(refusal) => Err(refusal),
        };
        match queued {
            Ok(turn) => self.prompts.push(Prompt { id, turn }),
            Err(refusal) => self.host.out.answer(&id, Err(refusal)).await,
        }
    }

    /// Sends a prompt to the daemon. A session that has ended is started again.
    async fn queue(&mut self, request: &PromptRequest) -> Result<TurnId, Error> {
        self.client = self.host.reach().await?;
        self.count += 1;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let key = format!("acp-{}-{}-{}", std::process::id(), now.as_nanos(), self.count);
        // With the key, a repeated request is one prompt.
        let send = async || patiently(|| self.client.prompt_once(&self.id, request, &key)).await;
        let accepted = match send().await {
            Err(error) if error.problem_code() == Some(Code::WrongPhase) => {
                self.host.woken(&self.client, &self.id).await?;
                send().await?
            }
            other => other?,
        };
        Ok(accepted.value.turn)
    }

    /// Cancels the prompts of this editor, the queued ones first; without any, the running turn.
    async fn cancel(&mut self) {
        self.cancelling = true;
        let cancelled = if self.prompts.is_empty() {
            patiently(|| self.client.cancel(&self.id)).await.map(drop)
        } else {
            let mut done = Ok(());
            for prompt in self.prompts.iter().rev() {
                done = patiently(|| self.client.cancel_turn(&self.id, &prompt.turn)).await.and(done);
            }
            done
        };
        self.report(cancelled.map_err(Error::from));
    }

    async fn withdrawn(&mut self, id: &str) -> ControlFlow<()> {
        if self.opening.as_ref().is_some_and(|opening| opening.id.get() == id) {
            if self.opening.as_ref().is_some_and(|opening| opening.kind == Kind::New) {
                let _ = self.client.delete(&self.id, true).await;
            }
            return self.give_up(Refusal::new(CANCELLED, "the request was cancelled")).await;
        }
        if let Some(prompt) = self.prompts.iter().find(|prompt| prompt.id.get() == id) {
            self.cancelling = true;
            let cancelled = patiently(|| self.client.cancel_turn(&self.id, &prompt.turn)).await;
            self.report(cancelled.map_err(Error::from));
        }
        Continue(())
    }

    async fn answered(&mut self, id: u64, outcome: Result<Value, Value>) {
        match self.permissions.answered(id, outcome.clone(), self.cancelling) {
            Some(Ok((permission, answer))) => {
                let answered = patiently(|| self.client.answer(&self.id, &permission, &answer)).await;
                self.report(answered.map(drop).map_err(Error::from));
            }
            Some(Err(why)) => tell(&self.name, &why),
            None => {}
        }
        if let Some(answer) = self.requests.answered(id, &outcome) {
            let answered = patiently(|| self.client.answer_request(&self.id, &answer)).await;
            self.report(answered.map_err(Error::from));
        }
    }

    /// Reports the error of a call whose request has no answer. Losing a race with another client is no error.
    fn report(&self, done: Result<(), Error>) {
        match done {
            Err(error)
                if matches!(
                    error.problem_code(),
                    Some(Code::PermissionAnswered | Code::NoSuchRequest | Code::WrongPhase | Code::NoSuchTurn)
                ) => {}
            Err(error) => tell(&self.name, &agentd_api::chain(&error)),
            Ok(()) => {}
        }
    }
}
