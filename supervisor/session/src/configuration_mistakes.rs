//! The mistakes of the configuration files as last read, and the refusal of launches that they cause.
//!
//! The config crate finds the mistakes; the session registry and the drivers refuse launches.

use std::sync::{Mutex, PoisonError};

use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::hint;
use agentd_api::{Code, Problem};

/// Mistakes that the last reading of the files found, also when that reading did not come into force.
#[derive(Debug, Default)]
pub struct ConfigurationMistakes {
    mistakes: Mutex<Vec<Mistake>>,
}

impl ConfigurationMistakes {
    pub fn set(&self, mistakes: Vec<Mistake>) {
        *self.mistakes.lock().unwrap_or_else(PoisonError::into_inner) = mistakes;
    }

    pub fn mistakes(&self) -> Vec<Mistake> {
        self.mistakes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns one phrase for the status line, if there are mistakes.
    pub fn line(&self) -> Option<String> {
        let mistakes = self.mistakes();
        let worst = mistakes.iter().max_by_key(|mistake| severity(mistake.consequence))?;
        let more = match mistakes.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let place = if worst.file.is_some() { worst.place() } else { worst.key.clone() };
        Some(format!("configuration wrong at {place}{more}: {}", worst.consequence.explained()))
    }
}

fn severity(consequence: Consequence) -> u8 {
    match consequence {
        Consequence::LeftOut => 0,
        Consequence::Unknown => 1,
        Consequence::FormerInForce => 2,
        Consequence::LaunchesRefused => 3,
    }
}

/// Returns the refusal of a launch that these mistakes prevent.
pub fn refusal(mistakes: &[Mistake]) -> Problem {
    let refusing = mistakes.iter().filter(|mistake| mistake.consequence == Consequence::LaunchesRefused);
    problem(refusing.cloned().collect()).hint(hint::RELOAD_TO_LAUNCH)
}

/// Returns the mistakes as a problem.
pub fn problem(mistakes: Vec<Mistake>) -> Problem {
    let each: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    let mut problem = Problem::new(Code::ConfigurationInvalid, each.join("; "));
    problem.particulars.mistakes = mistakes;
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_names_the_worst_mistake_and_how_many_more_there_are() {
        let standing = ConfigurationMistakes::default();
        assert_eq!(standing.line(), None);
        let mistake = |line, consequence| Mistake {
            file: Some("/a.toml".into()),
            line: Some(line),
            consequence,
            ..Mistake::default()
        };
        standing.set(vec![mistake(1, Consequence::LeftOut), mistake(2, Consequence::LaunchesRefused)]);
        let line = standing.line().unwrap();
        assert_eq!(line, "configuration wrong at /a.toml:2 (and 1 more): no session is launched until it is corrected");
    }
}
