//! Parses the inner syntax of a word: quotes, substitutions and arithmetic.

use super::{MAX_DEPTH, Reader};
use agentd_glob::HOLE;

/// Maximum number of characters that are searched for the end of an arithmetic expression.
const MAX_ARITHMETIC: usize = 1024;

impl Reader {
    pub(super) fn single_quoted(&mut self, text: &mut String) {
        while let Some(c) = self.peek() {
            self.at += 1;
            if c == '\'' {
                return;
            }
            text.push(c);
        }
        self.script.undecided = true;
    }

    pub(super) fn double_quoted(&mut self, text: &mut String) {
        while let Some(c) = self.peek() {
            match c {
                '"' => {
                    self.at += 1;
                    return;
                }
                '$' => self.dollar(text, true),
                '`' => self.backticks(text, true),
                '\\' => {
                    self.at += 1;
                    match self.peek() {
                        Some('\n') => {}
                        Some(next @ ('$' | '`' | '"' | '\\')) => text.push(next),
                        Some(next) => text.extend(['\\', next]),
                        None => break,
                    }
                    self.at += 1;
                }
                c => {
                    text.push(c);
                    self.at += 1;
                }
            }
        }
        self.script.undecided = true;
    }

    /// Parses `$'...'` as bash, ksh and zsh do.
    pub(super) fn ansi_quoted(&mut self, text: &mut String) {
        while let Some(c) = self.peek() {
            self.at += 1;
            match c {
                '\'' => return,
                '\\' => {
                    let Some(escape) = self.peek() else { break };
                    self.at += 1;
                    match escape {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        'e' | 'E' => text.push('\u{1b}'),
                        'a' => text.push('\u{7}'),
                        'b' => text.push('\u{8}'),
                        'f' => text.push('\u{c}'),
                        'v' => text.push('\u{b}'),
                        'x' => self.code(text, 16, 2),
                        'u' => self.code(text, 16, 4),
                        'U' => self.code(text, 16, 8),
                        '0'..='7' => {
                            self.at -= 1;
                            self.code(text, 8, 3);
                        }
                        'c' => {
                            self.at += 1;
                            text.push(HOLE);
                        }
                        other => text.push(other),
                    }
                }
                c => text.push(c),
            }
        }
        self.script.undecided = true;
    }

    fn code(&mut self, text: &mut String, radix: u32, most: usize) {
        let (mut code, mut digits) = (0_u32, 0);
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(radix)).filter(|_| digits < most) {
            code = code.wrapping_mul(radix).wrapping_add(digit);
            digits += 1;
            self.at += 1;
        }
        // A byte that is not a character by itself, or the end of the string in bash: unknown text.
        let known = char::from_u32(code).filter(|c| digits > 0 && *c != '\0' && (c.is_ascii() || most > 3));
        text.push(known.unwrap_or(HOLE));
    }

    pub(super) fn dollar(&mut self, text: &mut String, quoted: bool) {
        let next = self.text.get(self.at + 1).copied();
        match next {
            Some('(') => {
                if !self.arithmetic(self.at + 1, self.at + 1) {
                    self.at += 2;
                    self.list(true);
                }
                text.push(HOLE);
            }
            Some('{') => {
                self.at += 2;
                self.braces(quoted);
                text.push(HOLE);
            }
            Some('[') => {
                let length = self.text[self.at..].iter().take_while(|c| **c != ']').count();
                let inner: String =
                    self.text[self.at + 2..(self.at + length).max(self.at + 2).min(self.text.len())].iter().collect();
                self.at = (self.at + length + 1).min(self.text.len());
                self.substituted(&inner, false);
                text.push(HOLE);
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                self.at += 1;
                while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
                    self.at += 1;
                }
                // In zsh, a subscript or a modifier may follow.
                text.push(HOLE);
            }
            Some(c) if c.is_ascii_digit() || "@*#?-$!".contains(c) => {
                self.at += 2;
                text.push(HOLE);
            }
            _ => {
                text.push('$');
                self.at += 1;
            }
        }
    }

    /// Parses the rest of a `${` expansion up to its `}`.
    fn braces(&mut self, quoted: bool) {
        if self.depth == MAX_DEPTH {
            return self.give_up();
        }
        self.depth += 1;
        loop {
            match self.peek() {
                None => {
                    self.script.undecided = true;
                    break;
                }
                Some('}') => {
                    self.at += 1;
                    break;
                }
                Some('\\') => self.at = (self.at + 2).min(self.text.len()),
                // The meaning of these quotes depends on the context and on the shell.
                Some('\'' | '"') => {
                    self.script.undecided = true;
                    self.at += 1;
                }
                Some('$') => self.dollar(&mut String::new(), quoted),
                Some('`') => self.backticks(&mut String::new(), quoted),
                Some(_) => self.at += 1,
            }
        }
        self.depth -= 1;
    }

    pub(super) fn backticks(&mut self, text: &mut String, quoted: bool) {
        self.at += 1;
        let (mut inner, mut closed) = (String::new(), false);
        while let Some(c) = self.peek() {
            self.at += 1;
            match c {
                '`' => {
                    closed = true;
                    break;
                }
                '\\' => match self.peek() {
                    Some(next) if "$`\\".contains(next) || quoted && next == '"' => {
                        inner.push(next);
                        self.at += 1;
                    }
                    _ => inner.push('\\'),
                },
                c => inner.push(c),
            }
        }
        self.script.undecided |= !closed;
        text.push(HOLE);
        if self.depth == MAX_DEPTH {
            return self.give_up();
        }
        let (outer, at) = (std::mem::replace(&mut self.text, inner.chars().collect()), std::mem::take(&mut self.at));
        let due = std::mem::take(&mut self.due);
        self.list(false);
        self.script.undecided |= !self.due.is_empty();
        (self.text, self.at, self.due) = (outer, at, due);
    }

    /// Parses `((...))`, which begins at `open`, if it exists. A shell reads `((` as arithmetic if its two closing
    /// parentheses are adjacent.
    pub(super) fn arithmetic(&mut self, open: usize, from: usize) -> bool {
        if self.text.get(open + 1) != Some(&'(') || self.text.get(open) != Some(&'(') {
            return false;
        }
        let (mut depth, mut end, mut shifts) = (0_usize, None, false);
        for (at, c) in self.text.iter().enumerate().skip(from).take(MAX_ARITHMETIC) {
            match c {
                '(' => depth += 1,
                ')' => {
                    depth -= 1;
                    if depth == 1 {
                        end = Some(at);
                        break;
                    }
                }
                '<' => shifts |= self.text.get(at + 1) == Some(&'<'),
                _ => {}
            }
        }
        let Some(end) = end.filter(|end| self.text.get(end + 1) == Some(&')')) else {
            // A shift and a here-document have the same syntax.
            self.script.undecided |= shifts;
            return false;
        };
        let inner: String = self.text[open + 2..end].iter().collect();
        let is_arithmetic = |c: char| c.is_ascii_alphanumeric() || " \t\n_+-*/%<>=!&|^~?:,[]().$@#`{}".contains(c);
        let is_name = |word: &str| word.starts_with(|c: char| c.is_ascii_alphabetic());
        let words: Vec<&str> = inner.split_whitespace().collect();
        self.script.undecided |=
            !inner.chars().all(is_arithmetic) || words.windows(2).any(|two| two.iter().all(|word| is_name(word)));
        self.at = end + 2;
        self.substituted(&inner, false);
        true
    }
}
