//! The commands of a start-up file and their words, for the texts of all shells. Pure.
//!
//! Not responsible for what a command does.

use super::text::SOURCE;

#[derive(Debug, Default)]
pub(super) struct Word {
    /// Without its quotes.
    pub(super) text: String,
    /// It stands behind a `<`.
    pub(super) is_input: bool,
}

/// What becomes of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    Nothing,
    /// It stands in `$(...)`, in backticks, or in `(...)` of fish and nushell.
    Substitution,
    /// The shell evaluates it: `eval "$(...)"`, `. <(...)`, `... | source`.
    Evaluated,
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) words: Vec<Word>,
    pub(super) within: Within,
}

/// What a substitution is opened by.
struct Opened {
    by: char,
    /// The quote around it.
    quote: Option<char>,
    /// What its commands are in.
    within: Within,
}

/// The commands of a text, those in `$(...)` and backticks among them.
pub(super) fn commands(text: &str) -> Vec<Command> {
    let mut commands = Commands::default();
    for line in text.replace("\\\n", " ").lines() {
        commands.line(line);
        commands.end(Within::Nothing);
    }
    commands.all
}

#[derive(Default)]
struct Commands {
    all: Vec<Command>,
    command: Vec<Word>,
    word: Option<Word>,
    is_input: bool,
    is_output: bool,
    /// What stands directly behind a substitution is a part of a name that only the shell knows.
    is_tail: bool,
}

impl Commands {
    fn line(&mut self, line: &str) {
        // The substitutions that are open.
        let (mut quote, mut around) = (None, Vec::<Opened>::new());
        let mut characters = line.chars().peekable();
        while let Some(c) = characters.next() {
            match c {
                '\\' if quote != Some('\'') => {
                    if let Some(next) = characters.next() {
                        // `\.` and `\builtin` are what they are without it.
                        self.push(next);
                    }
                }
                '\'' | '"' if quote.is_none() => quote = Some(c),
                '\'' | '"' if quote == Some(c) => quote = None,
                '$' if characters.peek() == Some(&'{') => {
                    self.push(c);
                    for c in characters.by_ref() {
                        self.push(c);
                        if c == '}' {
                            break;
                        }
                    }
                }
                // What is in a substitution is a command of its own, in quotes too.
                '`' | '(' if quote != Some('\'') && !self.is_qualifier(c) => {
                    // `plugins=(git)` is a list, and `version=$(git version)` none.
                    let is_list = c == '(' && self.word.as_ref().is_some_and(|word| word.text.ends_with('='));
                    if self.word.as_ref().is_some_and(|word| word.text.ends_with('$')) {
                        self.word.as_mut().map(|word| word.text.pop());
                    }
                    let within = around.last().map_or(Within::Nothing, |opened| opened.within);
                    let inner = if is_list { Within::Nothing } else { self.opened(within) };
                    self.end(within);
                    if c == '`' && around.last().is_some_and(|opened| opened.by == '`') {
                        quote = around.pop().and_then(|opened| opened.quote);
                        self.is_tail = true;
                    } else {
                        around.push(Opened { by: c, quote: quote.take(), within: inner });
                    }
                }
                ')' if quote.is_none() => {
                    self.end(around.last().map_or(Within::Nothing, |opened| opened.within));
                    self.is_tail = true;
                    quote = around.pop().and_then(|opened| opened.quote);
                }
                '#' if quote.is_none() && self.word.is_none() => break,
                ';' | '|' | '&' if quote.is_none() => {
                    self.end(around.last().map_or(Within::Nothing, |opened| opened.within));
                }
                '<' if quote.is_none() => {
                    self.end_word();
                    self.is_input = true;
                    // A text that stands here is no file.
                    if characters.next_if_eq(&'<').is_some() {
                        (self.is_input, self.is_output) = (false, true);
                        while characters.next_if(|c| "<-".contains(*c)).is_some() {}
                    }
                }
                '>' if quote.is_none() => {
                    self.end_word();
                    self.is_output = true;
                }
                c if c.is_whitespace() && quote.is_none() => self.end_word(),
                c => self.push(c),
            }
        }
    }

    /// What the commands of a substitution are in that is opened here, inside `outer`.
    fn opened(&self, outer: Within) -> Within {
        let is_evaluated = self.command.iter().any(|word| word.text == "eval")
            || self.command.first().is_some_and(|word| SOURCE.contains(&word.text.as_str()));
        if is_evaluated || outer == Within::Evaluated { Within::Evaluated } else { Within::Substitution }
    }

    /// `(N)` behind a pattern of zsh.
    fn is_qualifier(&self, c: char) -> bool {
        c == '(' && self.word.as_ref().is_some_and(|word| word.text.contains('*') && word.text.contains('/'))
    }

    fn push(&mut self, c: char) {
        if self.is_tail {
            return;
        }
        let is_input = self.is_input;
        self.word.get_or_insert_with(|| Word { is_input, ..Word::default() }).text.push(c);
    }

    fn end_word(&mut self) {
        self.is_tail = false;
        let Some(word) = self.word.take() else { return };
        self.is_input = false;
        if !std::mem::take(&mut self.is_output) && !word.text.is_empty() {
            self.command.push(word);
        }
    }

    fn end(&mut self, within: Within) {
        self.end_word();
        (self.is_input, self.is_output) = (false, false);
        if !self.command.is_empty() {
            self.all.push(Command { words: std::mem::take(&mut self.command), within });
        }
    }
}
