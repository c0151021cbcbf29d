//! Splits a shell command line into all the simple commands that it contains.
//!
//! The parser is not made for a particular shell. It parses the common syntax of bash, dash and zsh, descends into
//! substitutions, subshells, loops and functions, and reports uncertainty. Every text gives a result, in time
//! proportional to its length and with a bounded depth. [`Script::undecided`] is set where shells differ, or if the
//! text is not a command line. [`super::programs`] interprets the commands.

use agentd_glob::HOLE;

mod expansions;

/// Maximum nesting depth of substitutions.
const MAX_DEPTH: usize = 24;

/// Keywords that can precede a command.
const KEYWORDS: &[&str] = &[
    "!", "and", "begin", "coproc", "do", "done", "elif", "else", "end", "esac", "fi", "if", "not", "or", "then",
    "until", "while", "{", "}",
];

/// A word of a command, with its quotes removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// Whether no part of the word was quoted.
    bare: bool,
    /// Whether the word may expand to no word or to several words: an unquoted substitution.
    pub(super) loose: bool,
}

impl Word {
    pub(super) fn literal(text: &str) -> Self {
        Self { text: text.to_owned(), bare: false, loose: false }
    }

    pub(super) fn unknown() -> Self {
        Self { text: HOLE.to_string(), bare: true, loose: true }
    }

    pub(super) fn is_known(&self) -> bool {
        !self.text.contains(HOLE)
    }
}

/// A program and its arguments.
#[derive(Debug, Clone, Default)]
pub(super) struct Simple {
    pub(super) words: Vec<Word>,
    /// Positions at which another shell would begin a new command: dash reads `a &>f b` as `a & >f b`.
    pub(super) breaks: Vec<usize>,
    /// Files that redirections write.
    pub(super) writes: Vec<String>,
    /// Files that redirections read.
    pub(super) reads: Vec<String>,
    /// Text on stdin, if the command line contains it.
    pub(super) input: Option<String>,
    heredocs: Vec<usize>,
}

/// The simple commands of a text.
#[derive(Debug, Clone, Default)]
pub(super) struct Script {
    pub(super) commands: Vec<Simple>,
    /// Whether a part could not be parsed, so that the text may contain more commands.
    pub(super) undecided: bool,
}

/// Splits a text into its simple commands.
pub(super) fn split(text: &str) -> Script {
    let mut reader = Reader {
        text: text.chars().collect(),
        at: 0,
        depth: 0,
        script: Script::default(),
        bodies: Vec::new(),
        due: Vec::new(),
    };
    reader.list(false);
    if !reader.due.is_empty() {
        reader.script.undecided = true;
    }
    let Reader { mut script, bodies, .. } = reader;
    for command in &mut script.commands {
        if let Some(last) = command.heredocs.last() {
            command.input.clone_from(&bodies[*last]);
        }
    }
    script
}

struct Reader {
    text: Vec<char>,
    at: usize,
    depth: usize,
    script: Script,
    /// Texts of the here-documents, in the order of their operators.
    bodies: Vec<Option<String>>,
    /// Here-documents that begin at the next line.
    due: Vec<HereDocument>,
}

struct HereDocument {
    number: usize,
    end: String,
    /// Whether leading tabs of its lines are removed.
    tabs: bool,
    /// Whether its text is used without substitutions.
    quoted: bool,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn looking_at(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(n, c)| self.text.get(self.at + n) == Some(&c))
    }

    fn give_up(&mut self) {
        self.script.undecided = true;
        self.at = self.text.len();
    }

    /// Parses commands up to the end, or with `closing` up to the `)` of the surrounding substitution.
    fn list(&mut self, closing: bool) {
        if self.depth == MAX_DEPTH {
            return self.give_up();
        }
        self.depth += 1;
        let (mut command, mut open, mut cases) = (Simple::default(), 0_usize, 0_usize);
        loop {
            match self.peek() {
                None => {
                    self.finish(&mut command, &mut cases);
                    self.script.undecided |= closing || open > 0;
                    break;
                }
                Some(' ' | '\t') => self.at += 1,
                Some('\\') if self.looking_at("\\\n") => self.at += 2,
                Some('\n') => {
                    self.finish(&mut command, &mut cases);
                    self.at += 1;
                    self.here_documents();
                }
                Some('#') => self.at += self.text[self.at..].iter().take_while(|c| **c != '\n').count(),
                Some('&') if self.looking_at("&>") => {
                    command.breaks.push(command.words.len());
                    self.at += 1;
                    self.redirection(&mut command);
                }
                Some(';' | '&' | '|') => {
                    self.finish(&mut command, &mut cases);
                    self.at += 1;
                }
                Some('(') => {
                    self.finish(&mut command, &mut cases);
                    if !self.arithmetic(self.at, self.at) {
                        open += 1;
                        self.at += 1;
                    }
                }
                Some(')') => {
                    self.finish(&mut command, &mut cases);
                    self.at += 1;
                    if open > 0 {
                        open -= 1;
                    } else if cases == 0 && closing {
                        break;
                    } else if cases == 0 {
                        self.script.undecided = true;
                    }
                }
                Some('<' | '>') if !self.is_process_substitution() => self.redirection(&mut command),
                Some(_) => {
                    let word = self.word();
                    let names_descriptor =
                        word.bare && !word.text.is_empty() && word.text.chars().all(|c| c.is_ascii_digit());
                    if !(names_descriptor && matches!(self.peek(), Some('<' | '>'))) {
                        command.words.push(word);
                    }
                }
            }
        }
        self.depth -= 1;
    }

    fn is_process_substitution(&self) -> bool {
        matches!(self.peek(), Some('<' | '>')) && self.text.get(self.at + 1) == Some(&'(')
    }

    /// Ends a command, and removes the shell's keywords from its start.
    fn finish(&mut self, command: &mut Simple, cases: &mut usize) {
        let mut command = std::mem::take(command);
        let mut gone = 0;
        while let Some(word) = command.words.get(gone).filter(|word| word.bare) {
            match word.text.as_str() {
                "case" => {
                    *cases += 1;
                    gone = command.words.len();
                }
                "esac" => {
                    *cases = cases.saturating_sub(1);
                    gone += 1;
                }
                "for" | "foreach" | "select" => {
                    // `for x do ...` is valid in zsh and POSIX shells.
                    let body = command.words[gone..].iter().position(|word| word.bare && word.text == "do");
                    gone = body.map_or(command.words.len(), |body| gone + body + 1);
                }
                "function" | "repeat" => gone = (gone + 2).min(command.words.len()),
                keyword if KEYWORDS.contains(&keyword) => gone += 1,
                _ => break,
            }
        }
        command.words.drain(..gone);
        command.breaks = command.breaks.iter().filter_map(|at| at.checked_sub(gone)).collect();
        if !command.words.is_empty() || !command.writes.is_empty() {
            self.script.commands.push(command);
        }
    }

    fn redirection(&mut self, command: &mut Simple) {
        if self.looking_at("<<<") {
            self.at += 3;
            if let Some(word) = self.operand() {
                command.input = Some(word.text);
                command.heredocs.clear();
            }
            return;
        }
        if self.looking_at("<<") {
            // In bash, `a[1<<2]=` is arithmetic, and no here-document follows.
            self.script.undecided |=
                command.words.last().is_some_and(|word| word.text.contains(['[', HOLE])) && self.is_attached();
            self.at += 2;
            let tabs = self.peek() == Some('-');
            self.at += usize::from(tabs);
            let Some(end) = self.operand() else { return };
            command.heredocs.push(self.bodies.len());
            self.due.push(HereDocument { number: self.bodies.len(), end: end.text, tabs, quoted: !end.bare });
            self.bodies.push(None);
            return;
        }
        let writes = self.peek() == Some('>') || self.looking_at("<>");
        self.at += 1;
        let doubles = matches!(self.peek(), Some('&'));
        if matches!(self.peek(), Some('>' | '&' | '|')) {
            self.at += 1;
        }
        let Some(target) = self.operand() else { return };
        let is_descriptor = doubles && target.text.trim_end_matches('-').chars().all(|c| c.is_ascii_digit());
        if !is_descriptor {
            if writes { command.writes.push(target.text) } else { command.reads.push(target.text) }
        }
    }

    /// Reports whether the operator directly follows a word.
    fn is_attached(&self) -> bool {
        self.at.checked_sub(1).is_some_and(|before| !matches!(self.text[before], ' ' | '\t' | '\n'))
    }

    /// Parses the operand of an operator.
    fn operand(&mut self) -> Option<Word> {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\\') if self.looking_at("\\\n") => self.at += 2,
                None | Some('\n' | ';' | '&' | '|' | '(' | ')') => {
                    self.script.undecided = true;
                    return None;
                }
                Some('<' | '>') if !self.is_process_substitution() => {
                    self.script.undecided = true;
                    return None;
                }
                Some(_) => return Some(self.word()),
            }
        }
    }

    fn here_documents(&mut self) {
        for document in std::mem::take(&mut self.due) {
            let mut body = String::new();
            loop {
                if self.at >= self.text.len() {
                    // A shell treats the end of the text as the end of the document, with a warning.
                    self.script.undecided = true;
                    break;
                }
                let length = self.text[self.at..].iter().take_while(|c| **c != '\n').count();
                let line: String = self.text[self.at..self.at + length].iter().collect();
                self.at = (self.at + length + 1).min(self.text.len());
                let line = if document.tabs { line.trim_start_matches('\t') } else { &line };
                if line == document.end {
                    break;
                }
                body.push_str(line);
                body.push('\n');
            }
            let body = if document.quoted { body } else { self.substituted(&body, true) };
            self.bodies[document.number] = Some(body);
        }
    }

    /// Returns a text with its substitutions replaced by holes, as between double quotes, where `"` is an ordinary
    /// character.
    fn substituted(&mut self, text: &str, escapes: bool) -> String {
        if self.depth == MAX_DEPTH {
            self.script.undecided = true;
            return HOLE.to_string();
        }
        let (outer, at) = (std::mem::replace(&mut self.text, text.chars().collect()), std::mem::take(&mut self.at));
        let due = std::mem::take(&mut self.due);
        self.depth += 1;
        let mut got = String::new();
        while let Some(c) = self.peek() {
            match c {
                '$' => self.dollar(&mut got, true),
                '`' => self.backticks(&mut got, false),
                '\\' if escapes => {
                    self.at += 1;
                    match self.peek() {
                        Some('\n') => {}
                        Some(next @ ('$' | '`' | '\\')) => got.push(next),
                        Some(next) => got.extend(['\\', next]),
                        None => got.push('\\'),
                    }
                    self.at += 1;
                }
                c => {
                    got.push(c);
                    self.at += 1;
                }
            }
        }
        self.depth -= 1;
        self.script.undecided |= !self.due.is_empty();
        (self.text, self.at, self.due) = (outer, at, due);
        got
    }

    fn word(&mut self) -> Word {
        let (mut text, mut bare, mut expansions) = (String::new(), true, 0);
        let (mut brace, start) = (None, self.at);
        while let Some(c) = self.peek() {
            match c {
                '<' | '>' if self.is_process_substitution() => {
                    self.at += 2;
                    self.list(true);
                    text.push(HOLE);
                }
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '\\' => {
                    self.at += 1;
                    match self.peek() {
                        Some('\n') => {}
                        Some(next) => {
                            bare = false;
                            text.push(next);
                        }
                        None => self.script.undecided = true,
                    }
                    self.at = (self.at + 1).min(self.text.len());
                }
                '\'' => {
                    bare = false;
                    self.at += 1;
                    self.single_quoted(&mut text);
                }
                '"' => {
                    bare = false;
                    self.at += 1;
                    self.double_quoted(&mut text);
                }
                '$' if self.looking_at("$'") => {
                    bare = false;
                    self.at += 2;
                    self.ansi_quoted(&mut text);
                }
                '$' if self.looking_at("$\"") => self.at += 1,
                '$' | '`' => {
                    let before = text.len();
                    if c == '$' {
                        self.dollar(&mut text, false);
                    } else {
                        self.backticks(&mut text, false);
                    }
                    expansions += usize::from(text[before..].contains(HOLE));
                }
                '*' | '?' => {
                    text.push(HOLE);
                    self.at += 1;
                }
                // `[` and `[[` are commands.
                '[' if !text.is_empty() && !text.ends_with('[')
                    || self.text.get(self.at + 1).is_some_and(|next| !" \t\n[".contains(*next)) =>
                {
                    text.push(HOLE);
                    self.at += 1;
                }
                '{' if self.looking_at("{}") => {
                    text.push_str("{}");
                    self.at += 2;
                }
                '{' if self.at > start
                    || self.text.get(self.at + 1).is_some_and(|next| !" \t\n;&|".contains(*next)) =>
                {
                    brace.get_or_insert(text.len());
                    text.push('{');
                    self.at += 1;
                }
                c => {
                    text.push(c);
                    self.at += 1;
                }
            }
        }
        if let Some(length) = brace {
            // `{git,push}` expands to several words.
            text.truncate(length);
            text.push(HOLE);
            expansions += 1;
        }
        let loose = bare && expansions > 0 && text.chars().all(|c| c == HOLE);
        Word { text, bare, loose }
    }
}
