//! Implements the demo agent's answers to prompts.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use super::store::Entry;
use super::{Agent, Woken, text_update};

const HELP: &str = "I am the demo agent. I understand:\n\
    - show your environment\n\
    - run COMMAND\n\
    - what did I say\n\
    - count to N [slowly]\n\
    - think\n";

/// Pause between two numbers of a slow count, long enough for an action on the supervisor in between.
const SLOW: Duration = Duration::from_millis(100);
const COUNT_LIMIT: u64 = 100_000;
/// Number of variables in one chunk of an answer.
const VARIABLES_PER_CHUNK: usize = 8;

/// Parsed prompt.
#[derive(Debug, PartialEq, Eq)]
enum Wish<'a> {
    ShowEnvironment,
    Run(&'a str),
    Remember,
    Count { to: u64, slowly: bool },
    Think,
    Other,
}

fn understand(prompt: &str) -> Wish<'_> {
    let prompt = prompt.trim();
    if let Some(command) = strip_word(prompt, "run") {
        return Wish::Run(command);
    }
    let lower = prompt.to_lowercase();
    let plain = lower.trim_end_matches(['.', '!', '?']);
    if plain.contains("your environment") {
        return Wish::ShowEnvironment;
    }
    if plain.contains("what did i say") || plain.split_whitespace().any(|word| word == "remember") {
        return Wish::Remember;
    }
    if let Some(rest) = strip_word(plain, "count to") {
        let mut words = rest.split_whitespace();
        let to = words.next().and_then(|number| number.parse().ok());
        match (to, words.next(), words.next()) {
            (Some(to), None, None) => return Wish::Count { to, slowly: false },
            (Some(to), Some("slowly"), None) => return Wish::Count { to, slowly: true },
            _ => {}
        }
    }
    if plain == "think" { Wish::Think } else { Wish::Other }
}

/// Returns the text after `word` and a space, or `None`.
fn strip_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(word.len())?;
    (head.eq_ignore_ascii_case(word) && rest.starts_with(char::is_whitespace)).then(|| rest.trim())
}

impl<W: Write> Agent<W> {
    /// Answers a prompt in the running turn. Returns early when the turn is cancelled.
    pub(super) fn answer(&mut self, prompt: &str, earlier: &[Entry]) -> io::Result<()> {
        match understand(prompt) {
            Wish::ShowEnvironment => self.show_environment(),
            Wish::Run(command) => self.run_command(command),
            Wish::Remember => self.remember(earlier),
            Wish::Count { to, .. } if to > COUNT_LIMIT => {
                self.say(&format!("I count to {COUNT_LIMIT} at most.\n")).map(drop)
            }
            Wish::Count { to, slowly } => self.count(to, slowly),
            Wish::Think => self.think(),
            Wish::Other => {
                let said = if prompt.trim().is_empty() { String::new() } else { format!("You said: {prompt}\n\n") };
                self.say(&format!("{said}{HELP}")).map(drop)
            }
        }
    }

    fn show_environment(&mut self) -> io::Result<()> {
        let mut variables: Vec<String> = self
            .settings
            .environment
            .iter()
            .map(|(name, value)| format!("{}={}\n", name.to_string_lossy(), value.to_string_lossy()))
            .collect();
        variables.sort();
        if !self.say(&format!("directory: {}\n\n", self.settings.directory.display()))? {
            return Ok(());
        }
        for chunk in variables.chunks(VARIABLES_PER_CHUNK) {
            if !self.say(&chunk.concat())? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn remember(&mut self, earlier: &[Entry]) -> io::Result<()> {
        let said: Vec<&Entry> = earlier.iter().filter(|entry| entry.is_user()).collect();
        if said.is_empty() {
            return self.say("You have said nothing before this.\n").map(drop);
        }
        let lines = said.iter().enumerate().map(|(at, entry)| format!("{}. {}\n", at + 1, entry.text));
        self.say(&std::iter::once("You said:\n".to_owned()).chain(lines).collect::<String>()).map(drop)
    }

    fn count(&mut self, to: u64, slowly: bool) -> io::Result<()> {
        for number in 1..=to {
            if !self.say(&format!("{number}\n"))? || (slowly && number < to && !self.pause(SLOW)?) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn think(&mut self) -> io::Result<()> {
        let steps = ["Read the question", "Think it over", "Answer"];
        let plan = |done: usize| {
            let entries: Vec<_> = steps
                .iter()
                .enumerate()
                .map(|(at, step)| {
                    let status = match at.cmp(&done) {
                        std::cmp::Ordering::Less => "completed",
                        std::cmp::Ordering::Equal => "in_progress",
                        std::cmp::Ordering::Greater => "pending",
                    };
                    json!({ "content": step, "priority": "medium", "status": status })
                })
                .collect();
            json!({ "sessionUpdate": "plan", "entries": entries })
        };
        self.tell(&plan(0))?;
        for thought in ["Let me think. ", "What is asked is that I think, ", "and that is what I do.\n"] {
            self.tell(&text_update("agent_thought_chunk", thought))?;
            if !self.pause(SLOW * 2)? {
                return Ok(());
            }
        }
        self.tell(&plan(2))?;
        self.say("I have thought about it.\n")?;
        self.tell(&plan(3))
    }

    /// Pauses the turn. Returns `false` if the turn was cancelled meanwhile.
    fn pause(&mut self, time: Duration) -> io::Result<bool> {
        let end = Instant::now() + time;
        loop {
            match self.wait_until(end)? {
                Woken::Time => return Ok(true),
                Woken::Cancelled => return Ok(false),
                Woken::Something | Woken::Output(..) | Woken::OutputEnd(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_understood_in_any_case_and_with_a_full_stop() {
        for (prompt, wish) in [
            ("Show your environment.", Wish::ShowEnvironment),
            ("  RUN  echo Hi; ls ", Wish::Run("echo Hi; ls")),
            ("What did I say?", Wish::Remember),
            ("count to 5", Wish::Count { to: 5, slowly: false }),
            ("Count to 5 slowly!", Wish::Count { to: 5, slowly: true }),
            ("count to five", Wish::Other),
            ("think", Wish::Think),
            ("running", Wish::Other),
            ("run", Wish::Other),
            ("ru€", Wish::Other),
        ] {
            assert_eq!(understand(prompt), wish, "{prompt:?}");
        }
    }
}
