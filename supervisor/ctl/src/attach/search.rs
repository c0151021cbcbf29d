//! Searches the conversation backwards: the lines that were shown, and the prompts of the session.

use std::collections::VecDeque;

use agentd_screen::painted;
use agentd_screen::terminal::{Screen, TextStyle};

/// Maximum number of lines that are kept.
const KEPT: usize = 100_000;

/// Lines shown so far, oldest first, without styles.
#[derive(Debug, Default)]
pub(super) struct Transcript(VecDeque<String>);

impl Transcript {
    /// Adds finished lines.
    pub(super) fn add(&mut self, lines: &str) {
        self.0.extend(lines.lines().map(painted::plain));
        let excess = self.0.len().saturating_sub(KEPT);
        self.0.drain(..excess);
    }
}

/// A search that the user types.
#[derive(Debug, Default)]
pub(super) struct Search {
    query: String,
    /// Number of matches that are newer than the present one.
    skipped: usize,
}

/// A match: a line that was shown, or an earlier prompt.
enum Found<'a> {
    Line(usize),
    Prompt(&'a str),
}

impl Search {
    pub(super) fn push(&mut self, c: char) {
        self.query.push(c);
        self.skipped = 0;
    }

    pub(super) fn pop(&mut self) {
        self.query.pop();
        self.skipped = 0;
    }

    /// Goes to an older match, or to a newer one.
    pub(super) fn go(&mut self, older: bool, transcript: &Transcript, prompts: &[String]) {
        let next = if older { self.skipped + 1 } else { self.skipped.saturating_sub(1) };
        let before = std::mem::replace(&mut self.skipped, next);
        if self.found(transcript, prompts).is_none() {
            self.skipped = before;
        }
    }

    /// Returns the prompt of the match, if the match is in one.
    pub(super) fn prompt(&self, transcript: &Transcript, prompts: &[String]) -> Option<String> {
        match self.found(transcript, prompts)? {
            Found::Prompt(prompt) => Some(prompt.to_owned()),
            Found::Line(at) => {
                let line = transcript.0.get(at)?.strip_prefix("> ")?;
                prompts.iter().rev().find(|prompt| prompt.lines().any(|part| part.trim() == line)).cloned()
            }
        }
    }

    fn found<'a>(&self, transcript: &'a Transcript, prompts: &'a [String]) -> Option<Found<'a>> {
        if self.query.is_empty() {
            return None;
        }
        // Small letters match both, as in less and in editors.
        let exact = self.query.chars().any(char::is_uppercase);
        let fits = |text: &str| {
            if exact { text.contains(&self.query) } else { text.to_lowercase().contains(&self.query) }
        };
        let lines = transcript.0.iter().enumerate().rev().filter(|(_, line)| fits(line)).map(|(at, _)| Found::Line(at));
        let shown = |prompt: &&String| {
            prompt
                .lines()
                .next()
                .is_some_and(|first| transcript.0.iter().any(|line| line.strip_prefix("> ") == Some(first)))
        };
        let earlier = prompts.iter().rev().filter(|prompt| fits(prompt) && !shown(prompt));
        lines.chain(earlier.map(|prompt| Found::Prompt(prompt))).nth(self.skipped)
    }

    /// Returns the rows of the search, with the cursor's place.
    pub(super) fn rows(
        &self,
        transcript: &Transcript,
        prompts: &[String],
        columns: usize,
        screen: Screen,
    ) -> (Vec<String>, (usize, usize)) {
        let mut rows = Vec::new();
        let dim = |line: &str| screen.paint(TextStyle::Dim, &painted::clip(&screen.line(line), columns - 2));
        match self.found(transcript, prompts) {
            Some(Found::Line(at)) => {
                for near in at.saturating_sub(2)..(at + 3).min(transcript.0.len()) {
                    let line = &transcript.0[near];
                    if near == at {
                        let line = painted::clip(&screen.line(line), columns - 2);
                        rows.push(format!("› {}", screen.paint(TextStyle::Bold, &line)));
                    } else {
                        rows.push(format!("  {}", dim(line)));
                    }
                }
            }
            Some(Found::Prompt(prompt)) => rows.push(format!("› {}", dim(&format!("> {prompt}")))),
            None if self.query.is_empty() => {}
            None => rows.push(dim("  nothing found")),
        }
        let input = painted::clip(&format!("search backwards: {}", screen.line(&self.query)), columns);
        let cursor = (rows.len(), painted::width(&input));
        rows.push(input);
        rows.push(dim("Ctrl-R older, Ctrl-S newer, Enter takes a prompt, Esc ends the search"));
        (rows, cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { terminal: true, colour: false };

    fn search(query: &str) -> Search {
        Search { query: query.into(), skipped: 0 }
    }

    #[test]
    fn the_newest_match_comes_first_and_each_further_one_is_older() {
        let mut transcript = Transcript::default();
        transcript.add("> fix the bug\n\x1b[1mThe bug\x1b[0m is here\nand there\n");
        let prompts = ["an old Bug".to_owned(), "fix the bug\nplease".to_owned()];
        let mut search = search("bug");
        let rows = |search: &Search| search.rows(&transcript, &prompts, 40, SCREEN).0;
        assert_eq!(rows(&search)[1], "› The bug is here");
        assert_eq!(search.prompt(&transcript, &prompts), None);
        search.go(true, &transcript, &prompts);
        assert_eq!(rows(&search)[0], "› > fix the bug");
        assert_eq!(search.prompt(&transcript, &prompts).as_deref(), Some("fix the bug\nplease"));
        search.go(true, &transcript, &prompts);
        assert_eq!(search.prompt(&transcript, &prompts).as_deref(), Some("an old Bug"));
        search.go(true, &transcript, &prompts); // there is no older one
        assert_eq!(search.prompt(&transcript, &prompts).as_deref(), Some("an old Bug"));
        search.go(false, &transcript, &prompts);
        assert_eq!(rows(&search)[0], "› > fix the bug");
    }

    #[test]
    fn a_capital_letter_must_match_and_nothing_found_is_said() {
        let mut transcript = Transcript::default();
        transcript.add("the bug\n");
        assert_eq!(search("Bug").rows(&transcript, &[], 80, SCREEN).0[0], "nothing found");
        assert!(search("x").prompt(&transcript, &[]).is_none());
    }
}
