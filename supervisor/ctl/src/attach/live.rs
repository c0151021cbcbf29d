//! The interactive attachment: what is drawn at the bottom of the terminal, and what the user's keys mean.
//!
//! Not responsible for calls of the daemon: [`Live::key`] returns an [`Action`], which the attachment carries out. The
//! renderer writes into a [`Sink`]; finished lines of the sink go above the drawn rows.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::session::{PermissionAnswer, PermissionRequest};
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::time::Instant;

use super::complete::Completion;
use super::draft::{Draft, Key};
use super::facts::Facts;
use super::region::{Region, Rows};
use super::search::{Search, Transcript};
use super::status::{self, Work};
use super::tty::Tty;
use crate::asking::{PAUSE, Quiet, hint};
use crate::form::Filling;
use crate::input;
use crate::output::Sink;
use agentd_screen::painted;
use agentd_screen::terminal::{Screen, TextStyle};

/// Shortest time between two drawings.
const FRAME: Duration = Duration::from_millis(30);
/// Number of bytes after which a line without an end is finished.
const LONGEST_TAIL: usize = 32 << 10;
/// Rows of a question that is longer than the screen.
const SHORT_QUESTION: usize = 4;

/// Request of the user that a key makes to the attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Interrupt,
    /// Ctrl-D: leave.
    End,
    Answer(PermissionAnswer),
}

/// The question that the user sees.
#[derive(Debug)]
struct Asked {
    request: PermissionRequest,
    lines: Vec<String>,
    /// Whether the whole question is above, because it is longer than the screen.
    is_above: bool,
    quiet: Quiet,
    /// The form that the user fills in, and the text of the input before.
    filling: Option<(Filling, String)>,
}

/// State of the session that the attachment knows.
#[derive(Debug, Clone, Copy)]
pub(super) struct State {
    pub(super) ready: bool,
    pub(super) busy: bool,
    pub(super) queued: usize,
}

pub(super) struct Live {
    tty: Tty,
    region: Region<io::Stderr>,
    sink: Sink,
    screen: Screen,
    size: (usize, usize),
    /// End of the sink's output, without a newline yet.
    tail: String,
    draft: Draft,
    completion: Completion,
    search: Option<Search>,
    transcript: Transcript,
    asked: Option<Asked>,
    /// Prompts that wait until the session accepts them.
    pub(super) typed: VecDeque<String>,
    pub(super) facts: Facts,
    agent: String,
    directory: Option<PathBuf>,
    opened_at: Instant,
    drawn_at: Instant,
    dirty: bool,
}

impl Live {
    pub(super) fn open(sink: Sink, agent: String, directory: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self {
            tty: Tty::open()?,
            region: Region::new(io::stderr()),
            sink,
            screen: Screen::stderr(),
            size: Tty::size(),
            tail: String::new(),
            draft: Draft::new(),
            completion: Completion::default(),
            search: None,
            transcript: Transcript::default(),
            asked: None,
            typed: VecDeque::new(),
            facts: Facts::default(),
            agent,
            directory,
            opened_at: Instant::now(),
            drawn_at: Instant::now(),
            dirty: true,
        })
    }

    /// Returns the next key or change of size. Cancel-safe.
    pub(super) async fn event(&mut self) -> Option<io::Result<Event>> {
        self.tty.event().await
    }

    /// Returns the width of text. The last column stays empty: terminals differ in what follows a full row.
    pub(super) fn columns(&self) -> usize {
        self.size.0.saturating_sub(1).max(10)
    }

    /// Notes that what is drawn may have changed.
    pub(super) fn touch(&mut self) {
        self.dirty = true;
    }

    /// Returns the time of the next drawing, if one is due.
    pub(super) fn draw_at(&self, state: State) -> Option<Instant> {
        if self.dirty {
            return Some(self.drawn_at + FRAME);
        }
        // The hint changes when keys begin to answer.
        let hint = self.asked.as_ref().map(|asked| asked.quiet.over_at()).filter(|over| *over > self.drawn_at);
        let spins = state.busy || !state.ready;
        hint.into_iter().chain(spins.then(|| self.drawn_at + status::TICK)).min()
    }

    pub(super) fn remember_prompts(&mut self) {
        for prompt in std::mem::take(&mut self.facts.prompts) {
            self.draft.remember(prompt);
        }
    }

    /// Adds the facts and the prompts of events before those shown.
    pub(super) fn precede(&mut self, earlier: Facts) {
        let prompts = self.facts.precede(earlier);
        self.draft.remember_earlier(prompts);
        self.touch();
    }

    /// Shows a question. Returns whether the whole question must be printed above.
    pub(super) fn ask(&mut self, request: &PermissionRequest, lines: Vec<String>) -> bool {
        let rows: usize = lines.iter().map(|line| painted::rows(line, self.columns()).len()).sum();
        // The rows below are the hint, the input and the status.
        let is_above = rows + 4 > self.size.1;
        self.search = None;
        self.stop_filling();
        let quiet = Quiet::since(Instant::now());
        self.asked = Some(Asked { request: request.clone(), lines, is_above, quiet, filling: None });
        self.touch();
        is_above
    }

    /// Ends the question. Returns it, unless it was printed above.
    pub(super) fn end_question(&mut self) -> Option<PermissionRequest> {
        self.touch();
        self.stop_filling();
        self.asked.take().filter(|asked| !asked.is_above).map(|asked| asked.request)
    }

    /// Begins to fill in the form of the question. The text of the input waits meanwhile.
    fn start_filling(&mut self, filling: Filling) {
        if let Some(asked) = &mut self.asked {
            asked.filling = Some((filling, self.draft.text().to_owned()));
            self.draft.clear();
            self.completion.close();
        }
    }

    /// Puts the form aside, and the text of the input back.
    fn stop_filling(&mut self) {
        if let Some((_, draft)) = self.asked.as_mut().and_then(|asked| asked.filling.take()) {
            self.draft.replace(&draft);
        }
    }

    /// Acts on a key while a form is filled in.
    fn fill(&mut self, key: &Key) -> Option<Action> {
        let (filling, _) = self.asked.as_mut()?.filling.as_mut()?;
        match key {
            Key::Enter => {
                let line = self.draft.text().to_owned();
                self.draft.clear();
                let answer = filling.line(&line)?;
                self.stop_filling();
                return Some(Action::Answer(answer));
            }
            Key::Escape => self.stop_filling(),
            _ => {}
        }
        None
    }

    fn is_filling(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.filling.is_some())
    }

    /// Acts on a key, a paste or a change of size.
    pub(super) fn key(&mut self, event: Event) -> io::Result<Option<Action>> {
        self.touch();
        match &event {
            Event::Resize(..) => {
                self.size = Tty::size();
                self.region.resized(self.size.0);
                return Ok(None);
            }
            Event::Key(key) if key.kind == KeyEventKind::Release => return Ok(None),
            Event::Key(_) | Event::Paste(_) => {}
            _ => return Ok(None),
        }
        if let Some(asked) = &mut self.asked
            && asked.filling.is_none()
            && asked.quiet.key(Instant::now())
            && let Event::Key(key) = &event
            && let (KeyCode::Char(c), KeyModifiers::NONE | KeyModifiers::SHIFT) = (key.code, key.modifiers)
        {
            let answer = input::answer(&c.to_string(), &asked.request);
            if answer == Some(PermissionAnswer::Allow)
                && let Some(filling) = Filling::of(&asked.request)
            {
                self.start_filling(filling);
                return Ok(None);
            }
            return Ok(answer.map(Action::Answer));
        }
        if self.search.is_some() {
            return Ok(self.search_key(&event));
        }
        let before = self.draft.text().to_owned();
        let action = match self.draft.key(event) {
            Key::Interrupt => Some(Action::Interrupt),
            Key::End => Some(Action::End),
            Key::Suspend => {
                self.region.clear("")?;
                Tty::suspend()?;
                self.size = Tty::size();
                None
            }
            Key::ClearScreen => {
                self.region.clear_screen()?;
                None
            }
            key if self.is_filling() => self.fill(&key),
            key => {
                self.edit(&key);
                None
            }
        };
        if self.draft.text() != before && !self.is_filling() {
            self.complete();
        }
        Ok(action)
    }

    fn edit(&mut self, key: &Key) {
        match key {
            Key::Enter => {
                if let Some((start, text)) = self.completion.enter() {
                    self.draft.complete(start, &text);
                } else if !self.draft.continue_line() {
                    self.typed.push_back(self.draft.take());
                }
            }
            Key::Tab => {
                if let Some((start, text)) = self.completion.tab() {
                    self.draft.complete(start, &text);
                }
            }
            Key::BackTab => self.completion.select(false),
            Key::Up | Key::Down if self.completion.is_open() => self.completion.select(*key == Key::Down),
            Key::Up => self.draft.up(),
            Key::Down => self.draft.down(),
            Key::Escape => self.completion.close(),
            Key::Search => self.search = Some(Search::default()),
            _ => {}
        }
    }

    fn complete(&mut self) {
        let commands = self.facts.commands.as_deref().unwrap_or_default();
        self.completion.update(&self.draft.text()[..self.draft.cursor()], commands, self.directory.as_deref());
        if self.draft.is_recalled() {
            self.completion.close();
        }
    }

    fn search_key(&mut self, event: &Event) -> Option<Action> {
        let (Some(search), Event::Key(key)) = (&mut self.search, event) else { return None };
        match (key.code, key.modifiers) {
            (KeyCode::Char('r'), KeyModifiers::CONTROL) | (KeyCode::Up, _) => {
                search.go(true, &self.transcript, self.draft.history());
            }
            (KeyCode::Char('s'), KeyModifiers::CONTROL) | (KeyCode::Down, _) => {
                search.go(false, &self.transcript, self.draft.history());
            }
            (KeyCode::Char('c' | 'g'), KeyModifiers::CONTROL) | (KeyCode::Esc, _) => self.search = None,
            (KeyCode::Backspace, _) => search.pop(),
            (KeyCode::Enter, _) => {
                if let Some(prompt) = search.prompt(&self.transcript, self.draft.history()) {
                    self.draft.replace(&prompt);
                }
                self.search = None;
            }
            (KeyCode::Char(c), KeyModifiers::NONE | KeyModifiers::SHIFT) => search.push(c),
            _ => {}
        }
        None
    }

    /// Clears the text of the input. Reports whether there was any.
    pub(super) fn clear_draft(&mut self) -> bool {
        let had_text = !self.draft.text().is_empty();
        self.draft.clear();
        self.complete();
        had_text
    }

    /// Draws, if it is time. `preview` is the unfinished part of the answer.
    pub(super) fn draw(&mut self, preview: &str, state: State) -> io::Result<()> {
        let is_due = self.draw_at(state).is_some_and(|at| Instant::now() >= at);
        if !is_due {
            return Ok(());
        }
        let finished = self.finished();
        let rows = self.rows(preview, state);
        self.region.draw(&finished, rows)?;
        self.drawn_at = Instant::now();
        self.dirty = false;
        Ok(())
    }

    /// Removes the rows, and writes the rest of the output. Called at the end.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        let mut finished = self.finished();
        if !self.tail.is_empty() {
            finished.push_str(&self.tail);
            finished.push('\n');
            self.tail.clear();
        }
        self.region.clear(&finished)
    }

    /// Returns the finished lines of the sink, and keeps the rest.
    fn finished(&mut self) -> String {
        self.tail.push_str(&self.sink.take());
        let begun = self.tail.rfind('\n').map_or(0, |newline| newline + 1);
        if self.tail.len() - begun > LONGEST_TAIL {
            self.tail.push('\n');
        }
        let end = self.tail.rfind('\n').map_or(0, |newline| newline + 1);
        let rest = self.tail.split_off(end);
        let finished = std::mem::replace(&mut self.tail, rest);
        self.transcript.add(&finished);
        finished
    }

    fn rows(&self, preview: &str, state: State) -> Rows {
        let (width, height) = (self.columns(), self.size.1);
        let (mut below, mut cursor) = self.input_rows(width);
        let work = match (&self.asked, state.busy, state.ready) {
            (Some(_), ..) => Work::Asked,
            (None, true, _) => Work::Busy(self.elapsed()),
            (None, false, true) => Work::Idle,
            (None, false, false) => Work::NotReady,
        };
        let queued = state.queued + self.typed.len();
        let frame = self.opened_at.elapsed().as_millis() / status::TICK.as_millis();
        below.push(status::line(work, &self.facts, queued, &self.agent, frame, width, self.screen));
        // The newest rows of the unfinished text that fit.
        let room = height.saturating_sub(below.len() + 1);
        let text = format!("{preview}{}", self.tail);
        let mut above: Vec<String> = text.lines().flat_map(|line| painted::rows(line, width)).collect();
        above.drain(..above.len().saturating_sub(room));
        // An input that is higher than the screen keeps its end.
        let excess = below.len().saturating_sub(height.saturating_sub(1).max(1));
        below.drain(..excess);
        cursor.0 = cursor.0.saturating_sub(excess) + above.len();
        above.append(&mut below);
        Rows { rows: above, cursor }
    }

    /// Returns the rows of the question, the search or the input, and the cursor's place among them.
    fn input_rows(&self, width: usize) -> (Vec<String>, (usize, usize)) {
        let mut rows = Vec::new();
        if let Some(asked) = &self.asked {
            let lines = asked.lines.iter().flat_map(|line| painted::rows(line, width));
            if asked.is_above {
                let options = asked.request.options.len();
                let total = asked.lines.len();
                let above = "    … the whole question is above";
                rows.extend(lines.take(SHORT_QUESTION));
                rows.push(self.screen.paint(TextStyle::Dim, above));
                let options = asked.lines[total.saturating_sub(options)..].iter();
                rows.extend(options.map(|line| painted::clip(line, width)));
            } else {
                rows.extend(lines);
            }
            let hint = match &asked.filling {
                Some((filling, _)) => format!("Esc stops; {}", filling.mark()),
                None if asked.quiet.is_over(Instant::now()) => hint(&asked.request),
                None => PAUSE.to_owned(),
            };
            let hint = painted::clip(&hint, width);
            rows.push(self.screen.paint(TextStyle::Bold, &hint));
            if self.draft.text().is_empty() {
                let cursor = (rows.len() - 1, painted::width(&hint));
                return (rows, cursor);
            }
        }
        let (mut input, (mut row, column)) = match &self.search {
            Some(search) => search.rows(&self.transcript, self.draft.history(), width, self.screen),
            None => self.draft.rows(&self.screen.paint(TextStyle::Bold, "> "), width),
        };
        // A long input takes half of the screen, with the cursor in it.
        let room = (self.size.1 / 2).max(3);
        if self.search.is_none() && input.len() > room {
            let first = row.saturating_sub(room - 1);
            input = input.split_off(first);
            input.truncate(room);
            row -= first;
        }
        let cursor = (rows.len() + row, column);
        rows.extend(input);
        if self.search.is_none() {
            rows.extend(self.completion.rows(width, self.screen));
        }
        (rows, cursor)
    }

    fn elapsed(&self) -> Option<Duration> {
        let (_, began) = self.facts.began.as_ref()?;
        Some(Duration::try_from(jiff::Timestamp::now().duration_since(*began)).unwrap_or_default())
    }
}
