//! Describes how closely a captured environment matches that of the user's terminal.

use std::fmt;

/// The quality of a captured environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Quality {
    /// The shell was run as a terminal runs it.
    #[default]
    Good,
    /// The shell gave nothing that way, and a weaker attempt was taken.
    Degraded(Degraded),
}

/// Why an environment is weaker than a terminal's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// The attempt that gave the environment, in a few words: `without the interactive start-up files`.
    pub attempt: &'static str,
    /// Why the attempt before it failed.
    pub why: String,
    /// The last lines that the shell printed in the attempt that failed. They may hold secrets until they are masked.
    pub last_words: String,
}

impl Quality {
    /// Describes why the quality is not good. Empty if the quality is good.
    pub fn words(&self) -> String {
        match self {
            Self::Good => String::new(),
            Self::Degraded(degraded) => degraded.to_string(),
        }
    }
}

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "captured {}: {}", self.attempt, self.why)?;
        if self.last_words.is_empty() { Ok(()) } else { write!(f, "; its last lines were: {}", self.last_words) }
    }
}
