//! Being attached to a session: its events, a person's lines and Ctrl-C, in one loop.
//!
//! It decides nothing about the session: the rules of what is shown are in `conversation.rs`, the look is in `render.rs`, and
//! everything a person does here is a call anybody could make.

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use agentd_api::event::TurnEnded;
use agentd_api::session::{PermissionRequest, Phase, SessionView};
use agentd_api::{Body, Event, PermissionId, TurnId};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::Client;
use crate::commands::count_of_terminal;
use crate::conversation::{Conversation, Down, Item, exit_of};
use crate::error::Error;
use crate::failure::Failure;
use crate::input::{self, Input};
use crate::output::Reader;
use crate::render::Renderer;
use crate::start::Starter;
use crate::stream::{EventStream, From, Next};

/// Two Ctrl-C within this time leave.
const TWICE: Duration = Duration::from_secs(2);
/// How long after the agent's end the daemon is asked whether that was the session's end: it may be about to say so itself.
const SETTLE: Duration = Duration::from_millis(300);

/// How long a question is left alone before a person is bothered with it: the session's policy may be about to answer it.
const GRACE: Duration = Duration::from_millis(100);

/// How long a file or a pipe is listened to when the session has ended, to know whether it has something that was not sent.
const UNSENT: Duration = Duration::from_secs(1);

/// What to attach to, and until when.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) id: String,
    /// How a person calls the session.
    pub(crate) label: String,
    /// The first event is the one after this.
    pub(crate) after: u64,
    /// The session as it was; its `last_seq` is where history ends. Without it everything is live.
    pub(crate) view: Option<SessionView>,
    pub(crate) goal: Goal,
    pub(crate) json: bool,
    pub(crate) verbose: bool,
    /// Say how many variables of this terminal the launch dropped.
    pub(crate) count_dropped: bool,
    pub(crate) starter: Option<Starter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The end of this turn; of the session's first one where it has no number yet.
    Turn(Option<TurnId>),
    /// As long as the person likes.
    Talk,
}

/// What came of being attached.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    /// The failure that was shown last and is not repaired: of the session, or of the turn.
    pub(crate) failure: Option<Failure>,
    /// Lines of a file or a pipe were not sent, because the session could not take them.
    pub(crate) unsent: bool,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The turn ended; this is the exit status for it.
    Turn(u8),
    /// There was no more input. The exit status is that of the first turn that did not end well, where the input was no terminal.
    InputEnded(u8),
    /// The person left.
    Left,
    Down(Down),
    Deleted,
}

/// Attaches until the goal is reached.
pub(crate) async fn attach(client: &Client, attachment: Attachment) -> Result<Outcome, Error> {
    let after = From::After(attachment.after);
    let mut stream = EventStream::follow(client.clone(), attachment.id.clone(), after, attachment.starter.clone());
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Setup)?;
    let mut attached = Attached::new(client, attachment)?;
    let end = attached.run(&mut stream, &mut interrupt).await;
    attached.renderer.leave()?;
    let end = end?;
    let unsent = matches!(end, End::Down(_) | End::Deleted) && attached.has_unsent_input().await;
    let failure = attached.conversation.failure().cloned().or(attached.turn_failure);
    Ok(Outcome { end, failure, unsent })
}

impl Attached<'_> {
    async fn run(&mut self, stream: &mut EventStream, interrupt: &mut Signal) -> Result<End, Error> {
        let mut reader = Reader::of_stdout()?;
        loop {
            self.ask()?;
            let wants_line = self.wants_line();
            let (settle, ask) = (self.settle, self.ask_at);
            let end = tokio::select! {
                next = stream.next() => self.next(next)?,
                line = line(&mut self.input), if wants_line => self.line(line).await?,
                () = interrupted(interrupt) => self.interrupted().await?,
                () = until(settle), if settle.is_some() => self.settled().await?,
                () = until(ask), if ask.is_some() => None,
                gone = reader.gone(), if self.attachment.json => return Err(gone),
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }
}

async fn line(input: &mut Option<Input>) -> Option<io::Result<String>> {
    match input {
        Some(input) => input.line().await,
        None => std::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    sleep_until(time.unwrap_or_else(Instant::now)).await;
}

async fn interrupted(interrupt: &mut Signal) {
    interrupt.recv().await;
}

struct Attached<'a> {
    client: &'a Client,
    attachment: Attachment,
    conversation: Conversation,
    renderer: Renderer<io::Stdout, io::Stderr>,
    input: Option<Input>,
    /// Of the last event.
    seen: u64,
    live: bool,
    /// The turns whose prompts were typed here.
    mine: HashSet<TurnId>,
    /// The last of them, until it ends.
    outstanding: Option<TurnId>,
    /// The question that is put to the person, or is about to be.
    asked: Option<PermissionId>,
    /// When it will be.
    ask_at: Option<Instant>,
    /// Questions that were answered here; the event that says so may be still to come.
    answered: HashSet<PermissionId>,
    last_interrupt: Option<Instant>,
    /// When to ask whether the session is at its end.
    settle: Option<Instant>,
    /// The exit status of the first turn of a file or a pipe that did not end well.
    status: u8,
    /// Why the last turn failed that failed by itself.
    turn_failure: Option<Failure>,
}

impl<'a> Attached<'a> {
    fn new(client: &'a Client, attachment: Attachment) -> Result<Self, Error> {
        let talk = attachment.goal == Goal::Talk;
        let mut attached = Self {
            client,
            conversation: Conversation::default(),
            renderer: Renderer::new(attachment.verbose),
            input: if talk { Some(Input::open().map_err(Error::Setup)?) } else { None },
            seen: attachment.after,
            live: false,
            mine: HashSet::new(),
            outstanding: None,
            asked: None,
            ask_at: None,
            answered: HashSet::new(),
            last_interrupt: None,
            settle: None,
            status: 0,
            turn_failure: None,
            attachment,
        };
        attached.go_live();
        Ok(attached)
    }

    /// History is over once all of it that the view knew of was seen.
    fn go_live(&mut self) {
        if self.live {
            return;
        }
        match &self.attachment.view {
            Some(view) if self.seen < view.status.last_seq => return,
            Some(view) => self.conversation.adopt(&view.status),
            None => {}
        }
        self.live = true;
        self.watch_for_end();
    }

    fn watch_for_end(&mut self) {
        self.settle = (self.live && self.conversation.down().is_some()).then(|| Instant::now() + SETTLE);
    }

    fn next(&mut self, next: Option<Next>) -> Result<Option<End>, Error> {
        match next {
            Some(Next::Record { seq, line }) => self.record(seq, &line),
            Some(Next::Away) => {
                self.renderer
                    .note("agentd is away; the session goes on, and so does this as soon as agentd is back")?;
                Ok(None)
            }
            Some(Next::Failed(error)) => Err(error),
            Some(Next::Deleted) | None => {
                self.renderer.warning("the session was deleted")?;
                Ok(Some(End::Deleted))
            }
        }
    }

    fn record(&mut self, seq: u64, line: &[u8]) -> Result<Option<End>, Error> {
        self.seen = seq;
        let event = Event::parse(line)?;
        let before = self.conversation.running().cloned();
        let items = self.conversation.apply(&event);
        if self.attachment.json {
            let mut out = io::stdout();
            out.write_all(line)
                .and_then(|()| out.write_all(b"\n"))
                .and_then(|()| out.flush())
                .map_err(Error::Output)?;
        } else {
            let running = before.as_ref().or(self.conversation.running());
            let concerned = match &self.attachment.goal {
                Goal::Turn(Some(turn)) => running == Some(turn),
                Goal::Turn(None) | Goal::Talk => true,
            };
            for item in &items {
                self.show(item, concerned)?;
            }
            self.count_dropped(&event)?;
        }
        if let Goal::Turn(turn @ None) = &mut self.attachment.goal {
            *turn = self.conversation.first_turn().cloned();
        }
        self.go_live();
        self.watch_for_end();
        Ok(items.iter().find_map(|item| match item {
            Item::TurnEnded(ended, failure) => self.turn_ended(ended, failure.as_ref()),
            _ => None,
        }))
    }

    /// Says once how many variables the launch dropped that this terminal has, and where to look.
    fn count_dropped(&mut self, event: &Event) -> Result<(), Error> {
        let Body::EnvironmentBuilt(built) = &event.body else { return Ok(()) };
        if !std::mem::take(&mut self.attachment.count_dropped) {
            return Ok(());
        }
        let count = count_of_terminal(&built.dropped);
        if count == 0 {
            return Ok(());
        }
        let (variables, were) = if count == 1 { ("variable", "was") } else { ("variables", "were") };
        let label = &self.attachment.label;
        self.renderer
            .note(&format!("{count} {variables} of this terminal {were} dropped: agentctl env {label} --diff terminal"))
    }

    fn show(&mut self, item: &Item, concerned: bool) -> Result<(), Error> {
        let talk = self.attachment.goal == Goal::Talk;
        match item {
            Item::Warning(_) | Item::Progress(_) | Item::Failed { .. } | Item::Detail(_) => {
                self.renderer.item(item, false)
            }
            Item::TurnEnded(ended, _) if self.is_goal(&ended.turn) => self.renderer.item(item, true),
            // The person who asks one thing knows what was asked.
            Item::Prompt { turn, .. } => self.renderer.item(item, !talk || self.mine.contains(turn)),
            _ if concerned => self.renderer.item(item, false),
            _ => Ok(()),
        }
    }

    fn is_goal(&self, turn: &TurnId) -> bool {
        match &self.attachment.goal {
            Goal::Turn(goal) => goal.as_ref() == Some(turn),
            Goal::Talk => false,
        }
    }

    fn turn_ended(&mut self, ended: &TurnEnded, failure: Option<&Failure>) -> Option<End> {
        self.outstanding.take_if(|turn| *turn == ended.turn);
        if self.is_goal(&ended.turn) || self.mine.contains(&ended.turn) {
            self.turn_failure = failure.cloned();
        }
        if self.mine.contains(&ended.turn) && self.status == 0 {
            self.status = exit_of(ended);
        }
        self.is_goal(&ended.turn).then(|| End::Turn(exit_of(ended)))
    }

    /// The question to ask, if there is one.
    fn question(&self) -> Option<&PermissionRequest> {
        let concerned = match &self.attachment.goal {
            Goal::Turn(turn) => turn.as_ref() == self.conversation.running(),
            Goal::Talk => true,
        };
        let mut open = self.conversation.permissions().iter().filter(|request| !self.answered.contains(&request.id));
        open.next().filter(|_| self.live && concerned && !self.attachment.json)
    }

    /// Shows the question or the mark at which to type, once.
    fn ask(&mut self) -> Result<(), Error> {
        let Some(request) = self.question().cloned() else {
            (self.asked, self.ask_at) = (None, None);
            let terminal = !self.attachment.json && self.input.as_ref().is_some_and(|input| input.terminal);
            let idle = self.outstanding.is_none() && !self.conversation.has_work();
            if terminal && idle && self.wants_line() && !self.renderer.is_at_prompt() {
                self.renderer.prompt("> ")?;
            }
            return Ok(());
        };
        let typed = io::stdin().is_terminal() && io::stderr().is_terminal();
        if self.asked.as_ref() != Some(&request.id) {
            self.asked = Some(request.id.clone());
            self.ask_at = Some(Instant::now() + GRACE);
        }
        if let Some(at) = self.ask_at {
            if Instant::now() < at {
                return Ok(());
            }
            self.ask_at = None;
            if typed && self.input.is_none() {
                self.input = Some(Input::open().map_err(Error::Setup)?);
            }
            if let Some(input) = &mut self.input {
                input.forget_typed();
            }
            return self.renderer.question(&request, &self.attachment.label, typed);
        }
        if typed && self.input.is_some() && !self.renderer.is_at_prompt() {
            self.renderer.prompt(crate::render::mark(&request))?;
        }
        Ok(())
    }

    fn wants_line(&self) -> bool {
        let Some(input) = &self.input else { return false };
        if self.question().is_some() {
            return input.terminal && self.ask_at.is_none();
        }
        let open = self.attachment.goal == Goal::Talk && self.live && self.conversation.is_ready();
        // A person may type ahead, the turns wait in the daemon. Lines of a file or a pipe come one after another, so that
        // their end comes after the last answer.
        open && (input.terminal || (self.outstanding.is_none() && !self.conversation.has_work()))
    }

    async fn line(&mut self, line: Option<io::Result<String>>) -> Result<Option<End>, Error> {
        self.renderer.typed();
        let Some(line) = line else {
            let status = if self.input.take().is_some_and(|input| input.terminal) { 0 } else { self.status };
            return Ok((self.attachment.goal == Goal::Talk).then_some(End::InputEnded(status)));
        };
        let line = line.map_err(Error::Input)?;
        let id = &self.attachment.id;
        let done = if let Some(request) = self.question() {
            let Some(answer) = input::answer(&line, request) else { return Ok(None) };
            let permission = request.id.clone();
            self.client.answer(id, &permission, &answer).await.map(|_| {
                self.answered.insert(permission);
            })
        } else if line.trim().is_empty() {
            Ok(())
        } else {
            self.client.prompt(id, &line).await.map(|accepted| {
                self.mine.insert(accepted.value.turn.clone());
                self.outstanding = Some(accepted.value.turn);
            })
        };
        // A person sees that the line was refused and types another; nobody looks at a pipe.
        if self.input.as_ref().is_some_and(|input| !input.terminal) {
            done?;
        } else {
            self.survive(done)?;
        }
        Ok(None)
    }

    /// Whether a file or a pipe has a line still that is no blank one.
    async fn has_unsent_input(&mut self) -> bool {
        let Some(input) = self.input.as_mut().filter(|input| !input.terminal) else { return false };
        let until = Instant::now() + UNSENT;
        while let Ok(Some(Ok(line))) = timeout_at(until, input.line()).await {
            if !line.trim().is_empty() {
                return true;
            }
        }
        false
    }

    async fn interrupted(&mut self) -> Result<Option<End>, Error> {
        let again = self.last_interrupt.replace(Instant::now()).is_some_and(|at| at.elapsed() < TWICE);
        let id = &self.attachment.id;
        let cancelled = match &self.attachment.goal {
            _ if again => return Ok(Some(End::Left)),
            Goal::Turn(Some(turn)) => self.client.cancel_turn(id, turn).await,
            // What was typed last, though the event that begins its turn may be still to come.
            Goal::Talk if self.outstanding.is_some() => match &self.outstanding {
                Some(turn) => self.client.cancel_turn(id, turn).await,
                None => Ok(()),
            },
            Goal::Talk if self.conversation.running().is_some() => self.client.cancel(id).await.map(drop),
            Goal::Turn(None) | Goal::Talk => return Ok(Some(End::Left)),
        };
        if cancelled.is_ok() {
            self.renderer.note("cancelling; Ctrl-C again leaves the session to itself")?;
        }
        self.survive(cancelled)?;
        Ok(None)
    }

    /// A call that a person made here and that failed is reported, and the person stays attached.
    fn survive(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        match result {
            Err(error @ Error::Output(_)) => Err(error),
            Err(error) => {
                self.renderer.note("")?;
                error.report(self.attachment.json);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// The agent has ended a moment ago and nothing followed: is that the session's end?
    async fn settled(&mut self) -> Result<Option<End>, Error> {
        self.settle = Some(Instant::now() + SETTLE);
        let Ok(view) = self.client.session(&self.attachment.id).await else {
            return Ok(None); // the stream knows better when to give up
        };
        let view = view.value;
        if view.status.last_seq > self.seen || !view.status.phase.is_over() {
            return Ok(None);
        }
        let failed = view.status.phase == Phase::Failed;
        if failed && self.conversation.failure().is_none() {
            // It failed before the first event that was read here.
            let failure = Failure::of(&view);
            self.renderer.failure("", &failure)?;
            self.turn_failure = Some(failure);
        }
        let down = if failed { Down::Failed } else { Down::Stopped };
        Ok(self.conversation.down().map(|_| End::Down(down)))
    }
}

#[cfg(test)]
mod tests;
