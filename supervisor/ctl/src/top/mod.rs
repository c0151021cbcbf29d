//! `agentctl top`: a live view of all sessions at a terminal, with the conversation of the selected one.
//!
//! [`Top`] owns the state. It takes in the feed ([`feed`]), the records of one conversation ([`follow`]), keys, and the
//! results of calls. It draws at most once in [`FRAME`] ([`draw`]). Every action of the user is a call of the public
//! HTTP interface. Attaching is not done here: [`Top::show`] gives the terminal back and names the session.

mod draw;
mod feed;
mod follow;
mod groups;
mod keys;
mod paint;
mod sessions;
mod terminal;
mod transcript;

use std::future::pending;
use std::io;
use std::time::Duration;

use agentd_api::session::{PermissionAnswer, PermissionRequest};
use agentd_api::{PermissionId, SessionId};
use agentd_client::{Client, Error as ClientError, Terms};
use agentd_screen::terminal::Screen;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::feed::Update;
use self::follow::{Followed, News};
use self::keys::Command;
use self::sessions::{Filter, Sessions, label};
use self::terminal::Terminal;
use crate::asking::Quiet;
use crate::error::{Error, exit};
use crate::form::Filling;
use crate::input;
use crate::start::Starter;

pub(crate) use self::terminal::check;

/// Shortest time between two drawings.
const FRAME: Duration = Duration::from_millis(50);
/// Time after which the view is drawn without news: it shows the time since the daemon's last sign.
const TICK: Duration = Duration::from_secs(1);
/// Time for which the result of a call is shown.
const SHOWN: Duration = Duration::from_secs(8);

/// Reason for the end of the view.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The user quits, with this exit status.
    Quit(u8),
    /// A signal ends the process.
    Signalled(i32),
    /// The user attaches to this session.
    Attach(SessionId),
}

/// Connection to the daemon.
#[derive(Debug)]
enum Link {
    Connecting,
    /// The daemon gave its last sign at this time.
    Live {
        sign: Instant,
    },
    Away {
        since: Instant,
        reason: String,
    },
}

/// Meaning of the keys.
#[derive(Debug)]
enum Mode {
    List,
    /// The user types a filter.
    Filter(String),
    Help,
    /// The user is asked whether to stop this session.
    Stop(SessionId, String),
}

/// Question on the screen.
#[derive(Debug)]
struct Asked {
    id: PermissionId,
    quiet: Quiet,
    /// First row that is shown of a long question.
    first_row: usize,
    /// Whether the user has seen its last row.
    is_seen: bool,
}

/// Text about the last call.
#[derive(Debug)]
struct Message {
    text: String,
    is_error: bool,
    at: Instant,
}

/// Result of a call.
#[derive(Debug)]
struct Done {
    session: SessionId,
    /// The question that was answered.
    question: Option<PermissionId>,
    said: String,
    result: Result<(), ClientError>,
}

/// State of the view.
pub(crate) struct Top {
    client: Client,
    starter: Option<Starter>,
    screen: Screen,
    updates: mpsc::Receiver<Update>,
    link: Link,
    /// Why events may be delayed, in the daemon's words.
    trouble: Option<String>,
    sessions: Sessions,
    followed: Option<Followed>,
    asked: Option<Asked>,
    mode: Mode,
    message: Option<Message>,
    calls: JoinSet<Done>,
    /// First row of the list on the screen.
    list_row: usize,
    dirty: bool,
}

impl Top {
    /// Begins to follow the sessions. `filter` has words and labels.
    pub(crate) fn new(client: Client, starter: Option<Starter>, filter: &str) -> Self {
        let updates = feed::follow(client.clone());
        Self::with(client, starter, Screen::stdout(), updates, Filter::of(filter))
    }

    fn with(
        client: Client,
        starter: Option<Starter>,
        screen: Screen,
        updates: mpsc::Receiver<Update>,
        filter: Filter,
    ) -> Self {
        Self {
            client,
            starter,
            screen,
            updates,
            link: Link::Connecting,
            trouble: None,
            sessions: Sessions::new(filter),
            followed: None,
            asked: None,
            mode: Mode::List,
            message: None,
            calls: JoinSet::new(),
            list_row: 0,
            dirty: true,
        }
    }

    /// Shows the view until the user leaves it, and gives the terminal back.
    pub(crate) async fn show(&mut self) -> Result<Outcome, Error> {
        let mut terminal = Terminal::open().map_err(Error::Setup)?;
        let mut signals = Signals::new().map_err(Error::Setup)?;
        self.dirty = true;
        let mut drawn = Instant::now().checked_sub(FRAME).unwrap_or_else(Instant::now);
        loop {
            self.settle();
            let due = if self.dirty { drawn + FRAME } else { drawn + TICK };
            if Instant::now() >= due {
                self.dirty = false;
                terminal.draw(|frame| draw::draw(frame, self)).map_err(Error::Output)?;
                drawn = Instant::now();
                continue; // the drawing may have asked for an earlier page
            }
            let outcome = tokio::select! {
                Some(update) = self.updates.recv() => {
                    self.update(update);
                    None
                }
                news = news(&mut self.followed) => {
                    self.news(news);
                    None
                }
                event = terminal.event() => match event {
                    None => Some(Outcome::Quit(exit::HUNG_UP)),
                    Some(event) => self.event(&event.map_err(Error::Input)?, &mut terminal)?,
                },
                Some(done) = self.calls.join_next() => {
                    self.done(done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
                    None
                }
                outcome = signals.next() => Some(outcome),
                () = sleep_until(due) => None,
            };
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
    }

    /// Shows the error of an attachment that could not begin.
    pub(crate) fn report(&mut self, error: &Error) {
        self.tell(one_line(error), true);
    }

    fn tell(&mut self, text: String, is_error: bool) {
        self.message = Some(Message { text, is_error, at: Instant::now() });
        self.dirty = true;
    }

    /// Sorts the list, and follows the selected session.
    fn settle(&mut self) {
        self.sessions.settle();
        let selected = self.sessions.selected().map(|brief| &brief.id);
        if self.followed.as_ref().map(|followed| &followed.id) != selected {
            let open =
                |id: &SessionId| Followed::open(self.client.clone(), self.starter.clone(), self.screen, id.clone());
            self.followed = selected.map(open);
        }
        let question = self.followed.as_ref().and_then(Followed::question).map(|request| &request.id);
        if self.asked.as_ref().map(|asked| &asked.id) != question {
            let quiet = Quiet::since(Instant::now());
            self.asked = question.map(|id| Asked { id: id.clone(), quiet, first_row: 0, is_seen: false });
        }
        self.message.take_if(|message| message.at.elapsed() >= SHOWN);
    }

    fn update(&mut self, update: Update) {
        self.dirty = true;
        if !matches!(update, Update::Away { .. }) {
            self.link = Link::Live { sign: Instant::now() };
        }
        match update {
            Update::Connected { again } => {
                // The connection of the conversation may be as dead as that of the feed was.
                if again && let Some(followed) = &mut self.followed {
                    followed.reconnect();
                }
            }
            Update::All(sessions) => self.sessions.replace(sessions),
            Update::Changed(brief) => self.sessions.change(*brief),
            Update::Removed(id) => self.sessions.remove(&id),
            Update::Alive { trouble } => self.trouble = trouble,
            Update::Away { reason } => {
                let since = if let Link::Away { since, .. } = self.link { since } else { Instant::now() };
                self.link = Link::Away { since, reason };
            }
        }
    }

    fn news(&mut self, news: News) {
        self.dirty = true;
        if let Some(followed) = &mut self.followed {
            followed.take(news);
        }
    }

    fn done(&mut self, done: Done) {
        match done.result {
            Ok(()) => self.tell(done.said, false),
            Err(error) => {
                let followed = self.followed.as_mut().filter(|followed| followed.id == done.session);
                if let (Some(followed), Some(id)) = (followed, &done.question) {
                    followed.show_question(id);
                }
                self.tell(one_line(&error.into()), true);
            }
        }
    }

    fn event(&mut self, event: &Event, terminal: &mut Terminal) -> Result<Option<Outcome>, Error> {
        self.dirty = true;
        let &Event::Key(key) = event else { return Ok(None) };
        if key.kind == KeyEventKind::Release {
            return Ok(None);
        }
        match self.key(key) {
            Reaction::Nothing => Ok(None),
            Reaction::Leave(outcome) => Ok(Some(outcome)),
            Reaction::Suspend => terminal.suspend().map(|()| None).map_err(Error::Output),
            Reaction::Redraw => terminal.clear().map(|()| None).map_err(Error::Output),
        }
    }

    /// Acts on a key.
    fn key(&mut self, key: KeyEvent) -> Reaction {
        self.settle();
        self.message = None;
        let answers = self.asked.as_mut().is_some_and(|asked| asked.quiet.key(Instant::now()));
        let command = Command::of(key);
        match command {
            // These work everywhere.
            Some(Command::Suspend) => return Reaction::Suspend,
            Some(Command::Redraw) => return Reaction::Redraw,
            Some(Command::Quit) if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Reaction::Leave(Outcome::Quit(exit::CANCELLED));
            }
            _ => {}
        }
        match std::mem::replace(&mut self.mode, Mode::List) {
            Mode::Help => {}
            Mode::Filter(text) => self.type_filter(text, key),
            Mode::Stop(id, label) => {
                if key.code == KeyCode::Char('y') {
                    self.stop(id, &label);
                }
            }
            Mode::List => {
                if let Some(command) = command {
                    return self.command(command, answers);
                }
            }
        }
        Reaction::Nothing
    }

    /// Changes the filter as the user types, so that its effect is seen at once.
    fn type_filter(&mut self, mut text: String, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => return,
            KeyCode::Esc => text.clear(),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => text.clear(),
            KeyCode::Char(c) if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => text.push(c),
            _ => {}
        }
        self.sessions.set_filter(Filter::of(&text));
        if key.code != KeyCode::Esc {
            self.mode = Mode::Filter(text);
        }
    }

    fn command(&mut self, command: Command, answers: bool) -> Reaction {
        match command {
            Command::Quit => return Reaction::Leave(Outcome::Quit(0)),
            Command::Suspend => return Reaction::Suspend,
            Command::Redraw => return Reaction::Redraw,
            Command::Help => self.mode = Mode::Help,
            Command::Step(places) => self.sessions.step(places),
            Command::NextInNeed => self.sessions.next_in_need(),
            Command::Page(pages) => self.page(pages),
            Command::Row(rows) => self.scroll(|followed| followed.transcript().scroll(rows)),
            Command::Top => self.scroll(|followed| followed.transcript().go_to_top()),
            Command::End => self.scroll(Followed::go_to_end),
            Command::Filter => self.mode = Mode::Filter(self.sessions.filter().text().to_owned()),
            Command::ClearFilter => self.sessions.set_filter(Filter::default()),
            Command::Attach => return self.attach(),
            Command::Cancel => self.cancel(),
            Command::Stop => {
                let selected = self.sessions.selected();
                self.mode = selected.map_or(Mode::List, |brief| Mode::Stop(brief.id.clone(), label(brief)));
            }
            Command::Resume => self.resume(),
            Command::Answer(c) => self.answer(c, answers),
        }
        Reaction::Nothing
    }

    fn scroll(&mut self, scroll: impl FnOnce(&mut Followed)) {
        if let Some(followed) = &mut self.followed {
            scroll(followed);
        }
    }

    /// Scrolls a question that does not fit on the screen, else the conversation.
    fn page(&mut self, pages: isize) {
        match &mut self.asked {
            Some(asked) if !asked.is_seen || asked.first_row > 0 => {
                // The drawing limits the row.
                asked.first_row = asked.first_row.saturating_add_signed(pages.saturating_mul(draw::QUESTION_STEP));
            }
            _ => self.scroll(|followed| {
                followed.transcript().page(pages);
                if pages > 0 && followed.transcript().is_at_end() {
                    followed.go_to_end();
                }
            }),
        }
    }

    fn attach(&mut self) -> Reaction {
        match self.sessions.selected() {
            None => {}
            Some(brief) if brief.phase.is_over() => {
                let text = format!("{} is {}: r resumes it", label(brief), brief.phase.as_str());
                self.tell(text, true);
            }
            Some(brief) => return Reaction::Leave(Outcome::Attach(brief.id.clone())),
        }
        Reaction::Nothing
    }

    /// Answers the question on the screen, if the user had the time to read the whole question.
    fn answer(&mut self, c: char, answers: bool) {
        let Some((request, asked)) = self.question() else { return };
        if !answers {
            return;
        }
        if !asked.is_seen {
            return self.tell("PgDn shows the rest of the question; keys answer it then".to_owned(), true);
        }
        let Some(answer) = input::answer(&c.to_string(), request) else { return };
        if answer == PermissionAnswer::Allow && Filling::of(request).is_some() {
            return self.tell("a attaches to the session, where the form can be filled in".to_owned(), true);
        }
        let (question, title) = (request.id.clone(), paint::one(&request.title));
        let Some(followed) = &mut self.followed else { return };
        followed.hide_question(question.clone());
        let (client, session) = (self.client.clone(), followed.id.clone());
        self.calls.spawn(async move {
            let result = client.answer(session.as_str(), &question, &answer).await.map(drop);
            Done { session, question: Some(question), said: format!("answered: {title}"), result }
        });
    }

    /// Returns the question on the screen.
    fn question(&self) -> Option<(&PermissionRequest, &Asked)> {
        let request = self.followed.as_ref()?.question()?;
        Some((request, self.asked.as_ref().filter(|asked| asked.id == request.id)?))
    }

    fn cancel(&mut self) {
        let Some(brief) = self.sessions.selected() else { return };
        let (client, session, said) = (self.client.clone(), brief.id.clone(), format!("cancelling {}", label(brief)));
        self.calls.spawn(async move {
            let result = client.cancel(session.as_str()).await.map(drop);
            Done { session, question: None, said, result }
        });
    }

    fn stop(&mut self, session: SessionId, label: &str) {
        let (client, said) = (self.client.clone(), format!("stopping {label}"));
        self.calls.spawn(async move {
            let result = client.stop(session.as_str(), None).await.map(drop);
            Done { session, question: None, said, result }
        });
    }

    fn resume(&mut self) {
        let Some(brief) = self.sessions.selected() else { return };
        let (client, session, said) = (self.client.clone(), brief.id.clone(), format!("resuming {}", label(brief)));
        self.calls.spawn(async move {
            let result = client.resume(session.as_str(), None, false, Terms::default()).await.map(drop);
            Done { session, question: None, said, result }
        });
    }
}

/// Request of a key to the terminal.
#[derive(Debug)]
enum Reaction {
    Nothing,
    Leave(Outcome),
    Suspend,
    Redraw,
}

/// Signals that end the process.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Outcome {
        tokio::select! {
            _ = self.interrupt.recv() => Outcome::Quit(exit::CANCELLED),
            _ = self.terminate.recv() => Outcome::Signalled(nix::libc::SIGTERM),
            _ = self.hang_up.recv() => Outcome::Signalled(nix::libc::SIGHUP),
        }
    }
}

async fn news(followed: &mut Option<Followed>) -> News {
    match followed {
        Some(followed) => followed.news().await,
        None => pending().await,
    }
}

/// Returns an error and its hint on one line, safe for the screen.
fn one_line(error: &Error) -> String {
    let text = error.report_text();
    let lines: Vec<&str> = text.trim_start_matches("agentctl: ").lines().map(str::trim).collect();
    paint::one(&lines.join("; "))
}

#[cfg(test)]
mod tests;
