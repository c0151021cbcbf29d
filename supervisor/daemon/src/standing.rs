//! What is wrong with the configuration: in the files as they were last read, and why nothing is launched if that is so.
//!
//! Not its job: finding the mistakes (`config`), and what is refused for them (`session`).

use std::sync::{Mutex, PoisonError};

use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::{Code, Problem};

/// One daemon's. What was found when the files were last read, also where nothing of them came into force.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    mistakes: Mutex<Vec<Mistake>>,
}

impl Standing {
    pub(crate) fn set(&self, mistakes: Vec<Mistake>) {
        *self.mistakes.lock().unwrap_or_else(PoisonError::into_inner) = mistakes;
    }

    pub(crate) fn mistakes(&self) -> Vec<Mistake> {
        self.mistakes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One phrase for the status line, if anything is wrong.
    pub(crate) fn line(&self) -> Option<String> {
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

/// The answer to whoever asks for a launch that these mistakes do not allow.
pub(crate) fn refusal(mistakes: &[Mistake]) -> Problem {
    let refusing = mistakes.iter().filter(|mistake| mistake.consequence == Consequence::LaunchesRefused);
    problem(refusing.cloned().collect())
        .hint("sessions that run go on, and nothing is launched; correct the file, then run `agentctl reload`")
}

/// The mistakes as a problem.
pub(crate) fn problem(mistakes: Vec<Mistake>) -> Problem {
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
        let standing = Standing::default();
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
