//! Attaches a terminal to a session: events, typed lines and Ctrl-C in one loop.
//!
//! Not responsible for the rules of display (`conversation.rs`) or for the format (`render.rs`). Every action
//! of the user is a call of the public HTTP interface.
//!
//! A person at a terminal gets an input, a status line and questions at the bottom of the screen (`live.rs`). Without a
//! terminal, or with `TERM=dumb`, lines are read from standard input and printed plainly ([`Input`]).

mod complete;
mod draft;
mod earlier;
mod facts;
mod interactive;
mod live;
mod region;
mod search;
mod status;
mod tty;

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::event::TurnEnded;
use agentd_api::session::{PermissionAnswer, PermissionRequest, Phase, PromptRequest, SessionView};
use agentd_api::{Body, Event, PermissionId, TurnId};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout_at};

use self::interactive::{Interactive, happened};
use crate::content;
use crate::conversation::{Conversation, Down, Item, exit_of};
use crate::document::DocumentForm;
use crate::error::Error;
use crate::failure::Failure;
use crate::form::Filling;
use crate::input::{self, Input};
use crate::output::Reader;
use crate::render::{Output, Renderer};
use crate::start::Starter;
use crate::terminal_variables::count_of_terminal;
use agentd_client::{Client, StreamStart};
use agentd_client::{EventStream, Next};

/// A second Ctrl-C within this time leaves the session.
const TWICE: Duration = Duration::from_secs(2);
/// Delay between the agent's end and the question to the daemon whether the session ended: the event may still
/// arrive.
const SETTLE: Duration = Duration::from_millis(300);

/// Delay before the user sees a question: the session's policy may be about to answer it.
const GRACE: Duration = Duration::from_millis(100);

/// Time to wait for a further line of a file or a pipe after the session's end, to detect input that was not sent.
const UNSENT: Duration = Duration::from_secs(1);

/// Session to attach to, and the condition for the end.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) id: String,
    /// Name of the session for the user.
    pub(crate) label: String,
    /// Sequence number; the first event shown is the next one.
    pub(crate) after: u64,
    /// Earlier view of the session; its `last_seq` is the end of the history. Without a view every event is live.
    pub(crate) view: Option<SessionView>,
    /// Name of the agent for the user.
    pub(crate) agent: String,
    /// The session's directory, for paths in prompts. `None` if it is on another machine.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) goal: Goal,
    pub(crate) json: bool,
    pub(crate) verbose: bool,
    /// Report the number of this terminal's variables that the launch dropped.
    pub(crate) count_dropped: bool,
    pub(crate) starter: Option<Starter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Until the end of this turn; `None` is the session's first turn, whose id is not known yet.
    Turn(Option<TurnId>),
    /// Until the user leaves.
    Talk,
}

/// Result of an attachment.
#[derive(Debug)]
pub(crate) struct AttachmentResult {
    pub(crate) end: End,
    /// Last failure shown of the session or the turn, unless it was repaired.
    pub(crate) failure: Option<Failure>,
    /// The session ended before all lines of the file or pipe were sent.
    pub(crate) unsent: bool,
}

/// Reason for the end of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The turn ended, with this exit status.
    Turn(u8),
    /// The input ended. Unless it was a terminal, the exit status is that of the first turn that did not end well.
    InputEnded(u8),
    /// The user left.
    Left,
    /// A signal ends the process.
    Signalled(i32),
    Down(Down),
    Deleted,
}

/// Attaches to a session until the goal is reached.
pub(crate) async fn attach(client: &Client, attachment: Attachment) -> Result<AttachmentResult, Error> {
    let after = StreamStart::After(attachment.after);
    let mut stream = EventStream::follow(
        client.clone(),
        attachment.id.clone(),
        after,
        attachment.starter.clone().map(Starter::reviver),
    );
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Setup)?;
    let mut attached = Attached::new(client, attachment)?;
    let end = attached.run(&mut stream, &mut interrupt).await;
    let left = attached.leave();
    let end = end?;
    left?;
    if let End::Signalled(number) = end {
        signal_hook::low_level::emulate_default_handler(number).map_err(Error::Setup)?;
    }
    let unsent = matches!(end, End::Down(_) | End::Deleted) && attached.has_unsent_input().await;
    let failure = attached.conversation.failure().cloned().or(attached.turn_failure);
    Ok(AttachmentResult { end, failure, unsent })
}

impl Attached<'_> {
    async fn run(&mut self, stream: &mut EventStream, interrupt: &mut Signal) -> Result<End, Error> {
        let mut reader = Reader::of_stdout()?;
        loop {
            self.ask()?;
            self.send_typed().await?;
            self.draw()?;
            let wants_line = self.wants_line();
            let (settle, ask, draw) = (self.settle, self.ask_at, self.draw_at());
            let end = tokio::select! {
                next = stream.next() => self.next(next)?,
                line = line(&mut self.input), if wants_line => self.line(line).await?,
                happened = happened(&mut self.interactive) => self.react(happened).await?,
                () = interrupted(interrupt) => self.interrupted().await?,
                () = until(settle), if settle.is_some() => self.settled().await?,
                () = until(ask), if ask.is_some() => None,
                () = until(draw), if draw.is_some() => None,
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
    renderer: Renderer<Output, Output>,
    /// The terminal of a person. Without it, `input` has the lines.
    interactive: Option<Interactive>,
    input: Option<Input>,
    /// Sequence number of the last event.
    seen: u64,
    live: bool,
    /// Turns whose prompts were typed at this terminal.
    mine: HashSet<TurnId>,
    /// Last turn in `mine`, until that turn ends.
    outstanding: Option<TurnId>,
    /// Question that the user sees, or will see at `ask_at`.
    asked: Option<PermissionId>,
    /// Time at which to show the question `asked`.
    ask_at: Option<Instant>,
    /// The form of that question, which the user fills in line by line.
    filling: Option<Filling>,
    /// Questions that were answered at this terminal; the events of the answers may still arrive.
    answered: HashSet<PermissionId>,
    last_interrupt: Option<Instant>,
    /// Time at which to ask the daemon whether the session has ended.
    settle: Option<Instant>,
    /// Exit status of the first turn of a file or a pipe that did not end well.
    status: u8,
    /// Failure of the last turn that was shown as failed.
    turn_failure: Option<Failure>,
}

impl<'a> Attached<'a> {
    fn new(client: &'a Client, attachment: Attachment) -> Result<Self, Error> {
        let opened = Interactive::open(client, &attachment).map_err(Error::Setup)?;
        let reads_lines = attachment.goal == Goal::Talk && opened.is_none();
        let (interactive, renderer) = match opened {
            Some((interactive, renderer)) => (Some(interactive), renderer),
            None => (None, Renderer::new(attachment.verbose)),
        };
        let mut attached = Self {
            client,
            conversation: Conversation::default(),
            renderer,
            interactive,
            input: if reads_lines { Some(Input::open().map_err(Error::Setup)?) } else { None },
            seen: attachment.after,
            live: false,
            mine: HashSet::new(),
            outstanding: None,
            asked: None,
            ask_at: None,
            filling: None,
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

    /// Switches to live events once every event up to the view's `last_seq` was applied.
    fn go_live(&mut self) {
        if self.live {
            return;
        }
        match &self.attachment.view {
            Some(view) if self.seen < view.status.last_seq => return,
            Some(view) => {
                self.conversation.adopt(&view.status);
                if let Some(interactive) = &mut self.interactive {
                    interactive.live.facts.adopt(&view.status);
                }
            }
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
                self.renderer.note(
                    "agentd is unreachable; the session continues, and agentctl reconnects when agentd is back",
                )?;
                Ok(None)
            }
            Some(Next::Failed(error)) => Err(error.into()),
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
        self.observe(&event)?;
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

    /// Reports once the number of this terminal's variables that the launch dropped, and the command that lists
    /// them.
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
            Item::Note { turn, .. } if talk || self.is_goal(turn) => self.renderer.item(item, false),
            Item::Note { .. } => Ok(()),
            // A user who runs a single turn knows its prompt.
            Item::Prompt { turn, .. } => {
                let is_on_screen = self.interactive.is_none() && self.mine.contains(turn);
                self.renderer.item(item, !talk || is_on_screen)
            }
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

    /// Returns the question to ask, or `None`.
    fn question(&self) -> Option<&PermissionRequest> {
        let concerned = match &self.attachment.goal {
            Goal::Turn(turn) => turn.as_ref() == self.conversation.running(),
            Goal::Talk => true,
        };
        let mut open = self.conversation.permissions().iter().filter(|request| !self.answered.contains(&request.id));
        open.next().filter(|_| self.live && concerned && !self.attachment.json)
    }

    /// Shows the open question or the input mark, once.
    fn ask(&mut self) -> Result<(), Error> {
        let Some(request) = self.question().cloned() else {
            self.filling = None;
            if self.asked.take().is_some()
                && let Some(interactive) = &mut self.interactive
            {
                interactive.live.end_question();
            }
            self.ask_at = None;
            let terminal = !self.attachment.json && self.input.as_ref().is_some_and(|input| input.terminal);
            let idle = self.outstanding.is_none() && !self.conversation.has_work();
            if terminal && idle && self.wants_line() && !self.renderer.is_at_prompt() {
                self.renderer.prompt("> ")?;
            }
            return Ok(());
        };
        let typed = io::stdin().is_terminal() && io::stderr().is_terminal();
        if self.asked.as_ref() != Some(&request.id) {
            (self.asked, self.filling) = (Some(request.id.clone()), None);
            self.ask_at = Some(Instant::now() + GRACE);
        }
        if let Some(at) = self.ask_at {
            if Instant::now() < at {
                return Ok(());
            }
            self.ask_at = None;
            if let Some(interactive) = &mut self.interactive {
                if interactive.live.ask(&request, self.renderer.question_lines(&request)) {
                    self.renderer.print_question(&request)?;
                }
                return Ok(());
            }
            if typed && self.input.is_none() {
                self.input = Some(Input::open().map_err(Error::Setup)?);
            }
            if let Some(input) = &mut self.input {
                input.forget_typed();
            }
            return self.renderer.question(&request, &self.attachment.label, typed);
        }
        if typed && self.input.is_some() && !self.renderer.is_at_prompt() {
            let filling = self.filling.as_ref().map(Filling::mark);
            self.renderer.prompt(filling.as_deref().unwrap_or_else(|| crate::render::mark(&request)))?;
        }
        Ok(())
    }

    fn wants_line(&self) -> bool {
        let Some(input) = &self.input else { return false };
        if self.question().is_some() {
            return input.terminal && self.ask_at.is_none();
        }
        let open = self.attachment.goal == Goal::Talk && self.live && self.conversation.is_ready();
        // At a terminal the user may type ahead: the daemon queues the turns. Lines of a file or a pipe are
        // sent one after another. The end of the input therefore follows the last answer.
        open && (input.terminal || (self.outstanding.is_none() && !self.conversation.has_work()))
    }

    async fn line(&mut self, line: Option<io::Result<String>>) -> Result<Option<End>, Error> {
        self.renderer.typed();
        let Some(line) = line else {
            let status = if self.input.take().is_some_and(|input| input.terminal) { 0 } else { self.status };
            return Ok((self.attachment.goal == Goal::Talk).then_some(End::InputEnded(status)));
        };
        let line = line.map_err(Error::Input)?;
        let done = if let Some(request) = self.question().cloned() {
            let answer = match &mut self.filling {
                Some(filling) => filling.line(&line),
                None => input::answer(&line, &request),
            };
            if answer == Some(PermissionAnswer::Allow)
                && let Some(filling) = Filling::of(&request)
            {
                self.filling = Some(filling);
                return Ok(None);
            }
            let Some(answer) = answer else { return Ok(None) };
            self.send_answer(&request.id, &answer).await
        } else if line.trim().is_empty() {
            Ok(())
        } else {
            self.send_prompt(&line).await
        };
        // At a terminal the user sees the refusal and can type another line. For a pipe the refusal ends the
        // command.
        if self.input.as_ref().is_some_and(|input| !input.terminal) {
            done?;
        } else {
            self.survive(done)?;
        }
        Ok(None)
    }

    async fn send_answer(&mut self, permission: &PermissionId, answer: &PermissionAnswer) -> Result<(), Error> {
        self.client.answer(&self.attachment.id, permission, answer).await?;
        self.answered.insert(permission.clone());
        Ok(())
    }

    async fn send_prompt(&mut self, prompt: &str) -> Result<(), Error> {
        // A line of a pipe names no files: its writer may not know the directory.
        let is_typed = self.interactive.is_some();
        let directory = self.attachment.directory.as_ref().filter(|_| is_typed);
        let parts = directory.map(|directory| content::mentioned(prompt, directory)).unwrap_or_default();
        let request = PromptRequest { prompt: prompt.to_owned(), parts, schema: None };
        let accepted = self.client.prompt(&self.attachment.id, &request).await?;
        self.mine.insert(accepted.value.turn.clone());
        self.outstanding = Some(accepted.value.turn);
        Ok(())
    }

    /// Ends the output, and gives the terminal back.
    fn leave(&mut self) -> Result<(), Error> {
        let left = self.renderer.leave();
        let drawn = self.interactive.take().map_or(Ok(()), |mut interactive| interactive.live.leave());
        left.and(drawn.map_err(Error::Output))
    }

    /// Reports whether a file or a pipe has a further line that is not blank.
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
            Goal::Turn(None) => return Ok(Some(End::Left)),
            // The running turn, or the last typed prompt if the event that begins its turn has not arrived.
            Goal::Talk => match (self.conversation.running(), &self.outstanding) {
                (Some(turn), _) | (None, Some(turn)) => self.client.cancel_turn(id, turn).await,
                (None, None) => return Ok(Some(End::Left)),
            },
        };
        if cancelled.is_ok() {
            self.renderer.note("cancelling; Ctrl-C again leaves the session to itself")?;
        }
        self.survive(cancelled.map_err(Error::from))?;
        Ok(None)
    }

    /// Reports the error of a user's call and stays attached. Errors of the output end the attachment.
    fn survive(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        match result {
            Err(error @ Error::Output(_)) => Err(error),
            Err(error) if self.interactive.is_some() => self.renderer.warning(error.report_text().trim_end()),
            Err(error) => {
                self.renderer.note("")?;
                error.report(self.attachment.json.then_some(DocumentForm::Json));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Asks the daemon whether the session has ended. Called when the agent ended and no event followed.
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
            // The session failed before the first event that this process read.
            let failure = Failure::of(&view);
            self.renderer.failure("", &failure)?;
            self.turn_failure = Some(failure);
        }
        let down = match view.status.phase {
            Phase::Failed => Down::Failed,
            Phase::Completed => Down::Completed,
            _ => Down::Stopped,
        };
        Ok(self.conversation.down().map(|_| End::Down(down)))
    }
}

#[cfg(test)]
mod tests;
