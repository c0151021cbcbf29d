//! Writes items to the two outputs. Only the agent's answer goes to standard output, so `agentctl run --prompt
//! ... > file` leaves the answer in the file. Everything else goes to standard error.

use std::io::{self, Write};

use agentd_api::elicitation::Elicitation;
use agentd_api::event::TurnEnded;
use agentd_api::session::{PermissionOrigin, PermissionRequest};

use crate::conversation::Item;
use crate::error::Error;
use crate::failure::Failure;
use crate::form::Filling;
use agentd_screen::change::{Change, Side};
use agentd_screen::markdown::Markdown;
use agentd_screen::terminal::{Screen, TextStyle};

/// Maximum number of lines of a note to the agent, unless `--verbose` is given.
const NOTE_LINES: usize = 8;

/// Writer to standard output and standard error.
pub(crate) struct Renderer<O, E> {
    out: O,
    err: E,
    out_screen: Screen,
    err_screen: Screen,
    verbose: bool,
    /// Kind of text before the cursor.
    at: At,
    /// Whether standard output ends in the middle of a line.
    out_open: bool,
    /// Whether the agent acted since its last answer. The next answer then begins a paragraph, in a file too.
    acted: bool,
    /// The answer, if it is rendered as Markdown.
    markdown: Option<Markdown>,
    /// The thought, if it is rendered as Markdown.
    thought: Option<Markdown>,
    /// Width for Markdown.
    columns: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    LineStart,
    Answer,
    Thought,
    ToolOutput,
    /// Input mark at which the user types.
    Prompt,
}

/// Output of a renderer that is chosen at run time.
pub(crate) type Output = Box<dyn Write + Send>;

impl Renderer<Output, Output> {
    pub(crate) fn new(verbose: bool) -> Self {
        Self::with(Box::new(io::stdout()), Box::new(io::stderr()), Screen::stdout(), Screen::stderr(), verbose)
    }

    /// Writes everything to one output of an interactive terminal, with the answer as Markdown.
    pub(crate) fn interactive(out: impl Write + Clone + Send + 'static, columns: usize, verbose: bool) -> Self {
        let screen = Screen::stderr();
        let renderer = Self::with(Box::new(out.clone()), Box::new(out), screen, screen, verbose);
        let (markdown, thought) = (Markdown::new(screen.colour), Markdown::dim(screen.colour));
        Self { markdown: Some(markdown), thought: Some(thought), columns, ..renderer }
    }
}

impl<O: Write, E: Write> Renderer<O, E> {
    /// Writes to these outputs, in the way of these screens.
    pub(crate) fn with(out: O, err: E, out_screen: Screen, err_screen: Screen, verbose: bool) -> Self {
        Self {
            out,
            err,
            out_screen,
            err_screen,
            verbose,
            at: At::LineStart,
            out_open: false,
            acted: false,
            markdown: None,
            thought: None,
            columns: 0,
        }
    }

    pub(crate) fn set_columns(&mut self, columns: usize) {
        self.columns = columns;
    }

    /// Writes the complete blocks of the answer or the thought.
    pub(crate) fn write_ready(&mut self) -> Result<(), Error> {
        let columns = self.columns;
        let ready = self.open_markdown().map(|markdown| markdown.ready(columns)).unwrap_or_default();
        self.out(ready.as_bytes())
    }

    /// Returns the text that is not complete: the answer or the thought.
    fn open_markdown(&mut self) -> Option<&mut Markdown> {
        match self.at {
            At::Answer => self.markdown.as_mut(),
            At::Thought => self.thought.as_mut(),
            _ => None,
        }
    }

    /// Returns the lines of the incomplete part of the answer or the thought.
    pub(crate) fn preview(&mut self) -> String {
        let columns = self.columns;
        self.open_markdown().map(|markdown| markdown.preview(columns)).unwrap_or_default()
    }

    /// Shows an item. `mine` states that the prompt was typed at this terminal, which already shows it.
    pub(crate) fn item(&mut self, item: &Item, mine: bool) -> Result<(), Error> {
        match item {
            Item::Prompt { prompt, .. } | Item::Earlier(prompt) => {
                self.paragraph()?;
                if self.markdown.is_some() {
                    self.err("\n")?;
                }
                for line in prompt.lines().filter(|_| !mine) {
                    let line = self.err_screen.line(line);
                    self.err_line(TextStyle::Bold, &format!("> {line}"))?;
                }
                Ok(())
            }
            Item::Answer(text) => self.answer(text),
            Item::Thought(text) => {
                if self.at != At::Thought {
                    self.break_line()?;
                }
                if let Some(thought) = &mut self.thought {
                    thought.push(&self.err_screen.text(text));
                    self.at = At::Thought;
                    return Ok(());
                }
                let text = self.err_screen.text(text).into_owned();
                let ends = text.ends_with('\n');
                let painted = self.err_screen.paint(TextStyle::Dim, text.trim_end_matches('\n'));
                self.err(&if ends { format!("{painted}\n") } else { painted })?;
                self.at = if ends { At::LineStart } else { At::Thought };
                Ok(())
            }
            Item::ToolBegan { title, kind } => {
                self.paragraph()?;
                let kind = kind.as_ref().map(|kind| format!(" ({kind})")).unwrap_or_default();
                let text = self.err_screen.line(&format!("{title}{kind}"));
                self.err_line(TextStyle::Bold, &format!("* {text}"))
            }
            Item::ToolOutput(text) => self.tool_output(text),
            Item::ToolChange(change) => self.change(change),
            Item::ToolEnded { title, status } => {
                self.break_line()?;
                let look = if status == "completed" { TextStyle::Good } else { TextStyle::Bad };
                let text = self.err_screen.line(&format!("{status}: {title}"));
                self.err_line(look, &format!("  {text}"))
            }
            Item::Plan(entries) => {
                self.break_line()?;
                self.err_line(TextStyle::Dim, "plan:")?;
                for entry in entries {
                    let mark = match entry.status.as_str() {
                        "completed" => 'x',
                        "in_progress" => '>',
                        _ => ' ',
                    };
                    let text = self.err_screen.line(&entry.text);
                    self.err_line(TextStyle::Dim, &format!("  [{mark}] {text}"))?;
                }
                Ok(())
            }
            Item::Answered { title, how } => {
                self.break_line()?;
                let text = self.err_screen.line(&format!("{how}: {title}"));
                self.err_line(TextStyle::Dim, &format!("  {text}"))
            }
            Item::TurnEnded(ended, failure) => self.turn_ended(ended, failure.as_ref()),
            Item::Warning(text) => self.warning(text),
            Item::Progress(text) => self.note(text),
            Item::Note { note, .. } => self.note_to_agent(note),
            Item::Failed { failure, starting } => {
                let before = if *starting { "the session could not start: " } else { "" };
                self.failure(before, failure)
            }
            Item::Detail(text) if self.verbose => self.note(text),
            Item::Detail(_) => Ok(()),
        }
    }

    fn answer(&mut self, text: &str) -> Result<(), Error> {
        if self.at == At::Thought && self.markdown.is_some() {
            self.acted = true;
        }
        if self.at != At::Answer {
            self.break_line()?;
        }
        let acted = std::mem::take(&mut self.acted);
        if acted && self.markdown.is_some() {
            self.err("\n")?;
        }
        if let Some(markdown) = &mut self.markdown {
            markdown.push(&self.out_screen.text(text));
            self.at = At::Answer;
            return Ok(());
        }
        if acted && self.out_open {
            self.out(b"\n")?;
        }
        let text = self.out_screen.text(text).into_owned();
        self.out(text.as_bytes())?;
        self.out_open = !text.ends_with('\n');
        self.at = if self.out_open { At::Answer } else { At::LineStart };
        Ok(())
    }

    fn tool_output(&mut self, text: &str) -> Result<(), Error> {
        if self.at != At::ToolOutput {
            self.break_line()?;
        }
        let mut shown = String::new();
        for line in text.split_inclusive('\n') {
            if self.at != At::ToolOutput {
                shown.push_str(&self.err_screen.paint(TextStyle::Dim, "  | "));
            }
            shown.push_str(&self.err_screen.text(line));
            self.at = if line.ends_with('\n') { At::LineStart } else { At::ToolOutput };
        }
        self.err(&shown)
    }

    /// Shows a change of a file: on an interactive terminal with the numbers of the lines.
    fn change(&mut self, change: &Change) -> Result<(), Error> {
        if self.markdown.is_none() {
            return self.tool_output(&change.plain());
        }
        self.break_line()?;
        let mark = self.err_screen.paint(TextStyle::Dim, "  | ");
        let path = self.err_screen.paint(TextStyle::Bold, &self.err_screen.line(change.path()));
        self.err(&format!("{mark}{path}\n"))?;
        for (number, side, line) in change.numbered() {
            let (sign, look) = match side {
                Side::Equal => (' ', TextStyle::Dim),
                Side::Removed => ('-', TextStyle::Bad),
                Side::Added => ('+', TextStyle::Good),
            };
            let line = self.err_screen.text(line).replace('\t', "    ");
            let text = self.err_screen.paint(look, &format!("{number:>5} {sign} {line}"));
            self.err(&format!("{mark}{text}\n"))?;
        }
        Ok(())
    }

    /// Ends the answer with a newline, in a file too.
    fn close_answer(&mut self) -> Result<(), Error> {
        self.finish_markdown()?;
        if self.out_open {
            self.out(b"\n")?;
            self.out_open = false;
            if self.at == At::Answer {
                self.at = At::LineStart;
            }
        }
        Ok(())
    }

    fn finish_markdown(&mut self) -> Result<(), Error> {
        let columns = self.columns;
        if let Some(markdown) = self.open_markdown() {
            let rest = markdown.finish(columns);
            self.at = At::LineStart;
            return self.out(rest.as_bytes());
        }
        Ok(())
    }

    /// Shows a failure. The end of the agent's stderr is left out if `--verbose` showed it already.
    pub(crate) fn failure(&mut self, before: &str, failure: &Failure) -> Result<(), Error> {
        self.break_line()?;
        let stderr = if self.verbose { Vec::new() } else { failure.stderr.clone() };
        let failure = Failure { message: format!("{before}{}", failure.message), stderr, ..failure.clone() };
        failure.lines().iter().try_for_each(|line| self.err_line(TextStyle::Bad, line))
    }

    fn turn_ended(&mut self, ended: &TurnEnded, failure: Option<&Failure>) -> Result<(), Error> {
        self.close_answer()?;
        self.break_line()?;
        match (&ended.synthetic, ended.stop_reason.as_deref()) {
            (Some(_), _) => {
                if let Some(failure) = failure {
                    self.failure("", failure)?;
                }
                for tool in &ended.interrupted_tool_calls {
                    self.warning(&format!("  tool call {tool} was interrupted; its progress is unknown"))?;
                }
                Ok(())
            }
            (None, Some("end_turn")) => Ok(()),
            (None, Some("cancelled")) => self.note("cancelled"),
            (None, Some(reason)) => self.warning(&format!("the agent stopped: {reason}")),
            (None, None) => self.warning("the agent stopped without a reason"),
        }
    }

    /// Returns the lines of a permission request: the question, its details and the options.
    pub(crate) fn question_lines(&self, request: &PermissionRequest) -> Vec<String> {
        let kind = request.tool_kind.as_ref().map(|kind| format!(" ({kind})")).unwrap_or_default();
        let asker = match request.origin {
            _ if request.elicitation.is_some() => "the agent asks:",
            PermissionOrigin::Agentd => "agentd asks whether to",
            PermissionOrigin::Agent | PermissionOrigin::Unknown => "the agent asks to:",
        };
        // The text of a question may have several lines.
        let (first, rest) = request.title.split_once('\n').unwrap_or((&request.title, ""));
        let title = self.err_screen.line(&format!("{first}{kind}"));
        let mut lines = vec![self.err_screen.paint(TextStyle::Ask, &format!("? {asker} {title}"))];
        for line in rest.lines() {
            lines.push(self.err_screen.paint(TextStyle::Ask, &format!("    {}", self.err_screen.line(line))));
        }
        for line in crate::details::lines(request, self.err_screen) {
            lines.push(self.err_screen.paint(TextStyle::Bold, &format!("    {line}")));
        }
        // The choices of a form with one choice have the numbers.
        let options = if crate::form::choices(request).is_some() { &[][..] } else { &request.options };
        for (number, option) in options.iter().enumerate() {
            let name = self.err_screen.line(&option.name);
            lines.push(self.err_screen.paint(TextStyle::Ask, &format!("  {}) {name}", number + 1)));
        }
        lines
    }

    /// Prints a permission request.
    pub(crate) fn print_question(&mut self, request: &PermissionRequest) -> Result<(), Error> {
        self.paragraph()?;
        let lines = self.question_lines(request);
        lines.iter().try_for_each(|line| self.err(&format!("{line}\n")))
    }

    /// Shows a permission request. If `typed`, the answer is typed at this terminal; otherwise another client
    /// answers.
    pub(crate) fn question(&mut self, request: &PermissionRequest, session: &str, typed: bool) -> Result<(), Error> {
        self.print_question(request)?;
        if typed {
            self.prompt(mark(request))
        } else {
            let answers = answers(request);
            self.note(&format!("waiting; answer with: agentctl answer {session} {} {answers}", request.id))
        }
    }

    /// Shows the input mark.
    pub(crate) fn prompt(&mut self, mark: &str) -> Result<(), Error> {
        self.break_line()?;
        let mark = self.err_screen.paint(TextStyle::Bold, mark);
        self.err(&mark)?;
        self.at = At::Prompt;
        Ok(())
    }

    /// Notes that the user pressed return: the cursor is at the beginning of a line.
    pub(crate) fn typed(&mut self) {
        self.at = At::LineStart;
    }

    pub(crate) fn note(&mut self, text: &str) -> Result<(), Error> {
        self.break_line()?;
        let text = self.err_screen.text(text).into_owned();
        self.err_line(TextStyle::Dim, &text)
    }

    /// Shows the note that precedes a prompt. A long one is cut, unless `--verbose` is given.
    fn note_to_agent(&mut self, note: &str) -> Result<(), Error> {
        let lines: Vec<&str> = note.lines().collect();
        let shown = if self.verbose || lines.len() <= NOTE_LINES { lines.len() } else { NOTE_LINES - 1 };
        for (number, line) in lines[..shown].iter().enumerate() {
            let before = if number == 0 { "note to the agent: " } else { "  " };
            self.note(&format!("{before}{line}"))?;
        }
        match lines.len() - shown {
            0 => Ok(()),
            more => self.note(&format!("  and {more} more lines, shown with --verbose")),
        }
    }

    pub(crate) fn warning(&mut self, text: &str) -> Result<(), Error> {
        self.break_line()?;
        let text = self.err_screen.text(text).into_owned();
        self.err_line(TextStyle::Bad, &text)
    }

    /// Ends the current line before other text than the agent's answer, if the outputs share a terminal.
    fn break_line(&mut self) -> Result<(), Error> {
        self.finish_markdown()?;
        match self.at {
            At::Answer if self.out_screen.terminal => {
                self.out(b"\n")?;
                self.out_open = false;
            }
            At::LineStart | At::Answer => {}
            // The typed text disappears with the mark. The terminal still delivers it with the next line.
            At::Prompt if self.err_screen.colour => self.err("\r\x1b[K")?,
            At::Thought | At::ToolOutput | At::Prompt => self.err("\n")?,
        }
        self.at = At::LineStart;
        Ok(())
    }

    fn paragraph(&mut self) -> Result<(), Error> {
        self.acted = true;
        self.break_line()
    }

    /// Ends the current line on both outputs, including an unfinished answer.
    pub(crate) fn leave(&mut self) -> Result<(), Error> {
        self.close_answer()?;
        self.break_line()
    }

    pub(crate) fn is_at_prompt(&self) -> bool {
        self.at == At::Prompt
    }

    fn err_line(&mut self, look: TextStyle, text: &str) -> Result<(), Error> {
        let line = format!("{}\n", self.err_screen.paint(look, text));
        self.err(&line)
    }

    fn out(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).and_then(|()| self.out.flush()).map_err(Error::Output)
    }

    fn err(&mut self, text: &str) -> Result<(), Error> {
        self.err.write_all(text.as_bytes()).map_err(Error::Output)
    }
}

/// Returns the possible answers to a question. A question without options can only be denied (ACP has no other
/// answer).
pub(crate) fn answers(request: &PermissionRequest) -> &'static str {
    match &request.elicitation {
        Some(Elicitation::Form { .. }) => "--field NAME=VALUE|deny",
        Some(Elicitation::Unknown) => "deny",
        None if request.options.is_empty() => "deny",
        Some(Elicitation::Url { .. }) | None => "allow|deny",
    }
}

/// Returns the input mark for the answer to a question.
pub(crate) fn mark(request: &PermissionRequest) -> &'static str {
    if crate::form::choices(request).is_some() {
        "type a number, or deny: "
    } else if Filling::of(request).is_some() {
        "type allow to fill in the form, or deny: "
    } else if request.options.is_empty() {
        "the agent offers no options; type deny: "
    } else {
        "type a number, allow or deny: "
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Screen = Screen { terminal: false, colour: false };
    const TERMINAL: Screen = Screen { terminal: true, colour: false };

    fn show(items: &[Item], out: Screen, err: Screen) -> (String, String) {
        let mut renderer = Renderer::with(Vec::new(), Vec::new(), out, err, false);
        for item in items {
            renderer.item(item, false).unwrap();
        }
        (String::from_utf8(renderer.out).unwrap(), String::from_utf8(renderer.err).unwrap())
    }

    fn ended(reason: &str) -> Item {
        let ended = serde_json::json!({ "turn": "t1", "stop_reason": reason });
        Item::TurnEnded(serde_json::from_value(ended).unwrap(), None)
    }

    fn answer(text: &str) -> Item {
        Item::Answer(text.into())
    }

    #[test]
    fn only_the_agents_words_go_to_standard_output() {
        let tool = Item::ToolBegan { title: "ls".into(), kind: Some("execute".into()) };
        let items = [
            Item::Prompt { turn: "t1".parse().unwrap(), prompt: "list".into() },
            Item::Thought("hm".into()),
            answer("I "),
            answer("look."),
            tool,
            Item::ToolOutput("a\nb\n".into()),
            Item::ToolEnded { title: "ls".into(), status: "completed".into() },
            answer("Two \x1b[1mfiles"),
            ended("end_turn"),
        ];
        let (out, err) = show(&items, FILE, FILE);
        assert_eq!(out, "I look.\nTwo \x1b[1mfiles\n");
        assert_eq!(err, "> list\nhm\n* ls (execute)\n  | a\n  | b\n  completed: ls\n");
    }

    #[test]
    fn a_note_in_the_middle_of_a_word_does_not_break_it_in_a_file_but_does_on_a_terminal() {
        let shown = |screen| {
            let mut renderer = Renderer::with(Vec::new(), Vec::new(), screen, screen, false);
            renderer.item(&answer("he"), false).unwrap();
            renderer.note("agentd is away").unwrap();
            renderer.item(&answer("llo"), false).unwrap();
            String::from_utf8(renderer.out).unwrap()
        };
        assert_eq!(shown(FILE), "hello");
        assert_eq!(shown(TERMINAL), "he\nllo");
    }

    #[test]
    fn a_note_to_the_agent_is_shown_once_and_a_long_one_is_cut_without_verbose() {
        let note = |lines: usize| {
            let lines: Vec<String> = (1..=lines).map(|line| format!("line {line}\x1b[2J")).collect();
            Item::Note { turn: "t1".parse().unwrap(), note: lines.join("\n") }
        };
        let (out, err) = show(&[note(1)], TERMINAL, TERMINAL);
        assert_eq!(out, "");
        assert!(err.starts_with("note to the agent: line 1") && !err.contains('\x1b'), "{err:?}");
        assert_eq!(show(&[note(NOTE_LINES)], FILE, FILE).1.lines().count(), NOTE_LINES);
        let (_, err) = show(&[note(30)], FILE, FILE);
        assert_eq!(err.lines().count(), NOTE_LINES);
        assert!(err.ends_with("  and 23 more lines, shown with --verbose\n"), "{err}");
        let mut renderer = Renderer::with(Vec::new(), Vec::new(), FILE, FILE, true);
        renderer.item(&note(30), false).unwrap();
        assert_eq!(String::from_utf8(renderer.err).unwrap().lines().count(), 30);
    }

    #[test]
    fn what_an_agent_or_a_tool_says_does_nothing_to_a_terminal() {
        let bad = "\x1b]0;gotcha\x07";
        let items = [
            answer(bad),
            Item::Thought(bad.into()),
            Item::ToolBegan { title: bad.into(), kind: Some(bad.into()) },
            Item::ToolOutput(bad.into()),
            Item::ToolEnded { title: bad.into(), status: bad.into() },
            Item::Plan(vec![crate::acp::PlanEntry { text: bad.into(), status: bad.into() }]),
            Item::Prompt { turn: "t1".parse().unwrap(), prompt: bad.into() },
            Item::Answered { title: bad.into(), how: bad.into() },
            Item::Warning(bad.into()),
            Item::Failed {
                failure: Failure { message: bad.into(), stderr: vec![bad.into()], ..Failure::default() },
                starting: true,
            },
            ended(bad),
        ];
        let (out, err) = show(&items, TERMINAL, TERMINAL);
        assert!(!format!("{out}{err}").contains(['\x1b', '\x07']), "{out}{err}");
    }

    #[test]
    fn an_answer_that_is_left_in_the_middle_ends_with_a_newline_and_a_whole_one_gets_no_other() {
        for (said, screen) in [("half", FILE), ("half", TERMINAL), ("whole\n", FILE), ("whole\n", TERMINAL)] {
            let mut renderer = Renderer::with(Vec::new(), Vec::new(), screen, screen, false);
            renderer.item(&answer(said), false).unwrap();
            renderer.leave().unwrap();
            assert_eq!(String::from_utf8(renderer.out).unwrap(), format!("{}\n", said.trim_end()));
        }
    }

    #[test]
    fn stderr_that_was_shown_as_it_came_is_not_shown_again_with_the_failure() {
        let failure = Failure { message: "it failed".into(), stderr: vec!["why".into()], ..Failure::default() };
        for (verbose, shown) in [(false, "it failed\n  | why\n"), (true, "it failed\n")] {
            let mut renderer = Renderer::with(Vec::new(), Vec::new(), FILE, FILE, verbose);
            renderer.item(&Item::Failed { failure: failure.clone(), starting: false }, false).unwrap();
            assert_eq!(String::from_utf8(renderer.err).unwrap(), shown);
        }
    }

    #[test]
    fn a_turn_that_did_not_end_well_says_so() {
        for (item, said) in [(ended("end_turn"), ""), (ended("refusal"), "the agent stopped: refusal\n")] {
            assert_eq!(show(&[item], FILE, FILE), (String::new(), said.to_owned()));
        }
    }
}
