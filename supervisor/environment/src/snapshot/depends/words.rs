//! Splits a start-up file into commands and words, for the texts of all shells, without I/O. The effect of a
//! command is not interpreted here.

use super::text::SOURCE;

#[derive(Debug, Default)]
pub(super) struct Word {
    /// The word without its quotes.
    pub(super) text: String,
    /// Whether the word follows a `<`.
    pub(super) is_input: bool,
}

/// Use of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputUse {
    Nothing,
    /// The output is substituted, in `$(...)`, in backticks, or in `(...)` of fish and nushell.
    Substitution,
    /// The shell evaluates the output: `eval "$(...)"`, `. <(...)`, `... | source`.
    Evaluated,
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) words: Vec<Word>,
    pub(super) output: OutputUse,
}

/// An open substitution.
struct OpenSubstitution {
    by: char,
    /// The quote around the substitution.
    quote: Option<char>,
    /// Use of the output of the commands inside.
    output: OutputUse,
}

/// Returns the commands of a text, including those in `$(...)` and backticks.
pub(super) fn commands(text: &str) -> Vec<Command> {
    let mut commands = Commands::default();
    for line in text.replace("\\\n", " ").lines() {
        commands.line(line);
        commands.end(OutputUse::Nothing);
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
    /// Set directly after a substitution. The following characters belong to a name that only the shell knows.
    is_tail: bool,
}

impl Commands {
    fn line(&mut self, line: &str) {
        // The substitutions that are open.
        let (mut quote, mut around) = (None, Vec::<OpenSubstitution>::new());
        let mut characters = line.chars().peekable();
        while let Some(c) = characters.next() {
            match c {
                '\\' if quote != Some('\'') => {
                    if let Some(next) = characters.next() {
                        // `\.` and `\builtin` have the same meaning without the backslash.
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
                // A substitution holds its own commands, inside quotes too.
                '`' | '(' if quote != Some('\'') && !self.is_qualifier(c) => {
                    // `plugins=(git)` is a list, but `version=$(git version)` is not.
                    let is_list = c == '(' && self.word.as_ref().is_some_and(|word| word.text.ends_with('='));
                    if self.word.as_ref().is_some_and(|word| word.text.ends_with('$')) {
                        self.word.as_mut().map(|word| word.text.pop());
                    }
                    let output = around.last().map_or(OutputUse::Nothing, |opened| opened.output);
                    let inner = if is_list { OutputUse::Nothing } else { self.opened(output) };
                    self.end(output);
                    if c == '`' && around.last().is_some_and(|opened| opened.by == '`') {
                        quote = around.pop().and_then(|opened| opened.quote);
                        self.is_tail = true;
                    } else {
                        around.push(OpenSubstitution { by: c, quote: quote.take(), output: inner });
                    }
                }
                ')' if quote.is_none() => {
                    self.end(around.last().map_or(OutputUse::Nothing, |opened| opened.output));
                    self.is_tail = true;
                    quote = around.pop().and_then(|opened| opened.quote);
                }
                '#' if quote.is_none() && self.word.is_none() => break,
                ';' | '|' | '&' if quote.is_none() => {
                    self.end(around.last().map_or(OutputUse::Nothing, |opened| opened.output));
                }
                '<' if quote.is_none() => {
                    self.end_word();
                    self.is_input = true;
                    // The text of a here-document or here-string is no file.
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

    /// Returns the use of the output of a substitution that is opened inside `outer`.
    fn opened(&self, outer: OutputUse) -> OutputUse {
        let is_evaluated = self.command.iter().any(|word| word.text == "eval")
            || self.command.first().is_some_and(|word| SOURCE.contains(&word.text.as_str()));
        if is_evaluated || outer == OutputUse::Evaluated { OutputUse::Evaluated } else { OutputUse::Substitution }
    }

    /// Reports whether `(` opens a zsh qualifier such as `(N)` after a pattern.
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

    fn end(&mut self, output: OutputUse) {
        self.end_word();
        (self.is_input, self.is_output) = (false, false);
        if !self.command.is_empty() {
            self.all.push(Command { words: std::mem::take(&mut self.command), output });
        }
    }
}
