//! How much the environment that a login shell gave can be trusted to be what its user's terminal has.

use std::fmt;

/// The quality of a captured environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Quality {
    /// The shell was run as a terminal runs it.
    #[default]
    Good,
    /// The shell gave nothing that way, and a weaker attempt was taken.
    Degraded(Degraded),
}

/// Why an environment is weaker than a terminal's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Degraded {
    /// The attempt that gave the environment, in a few words: `without the interactive start-up files`.
    pub(crate) attempt: &'static str,
    /// Why the attempt before it failed.
    pub(crate) why: String,
    /// The last lines that the shell printed in the attempt that failed. They may hold secrets until they are masked.
    pub(crate) last_words: String,
}

impl Quality {
    /// Why it is not good; empty where it is.
    pub(crate) fn words(&self) -> String {
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
