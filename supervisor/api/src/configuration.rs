//! The configuration as the outside sees it: its mistakes, its values with their places, and when a changed key takes effect.
//!
//! `agentctl config` prints these documents with `--json`; `POST /v1/reload` and `/readyz` answer with parts of them.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One mistake in a configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistake {
    /// The file that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// From 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// From 1, in characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The dotted key; empty where the file is not TOML or cannot be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    pub message: String,
    /// The key that was probably meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
    #[serde(default)]
    pub consequence: Consequence,
}

/// What agentd does about a mistake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consequence {
    /// Only what the key names is left out.
    LeftOut,
    /// What the same owner's files said before stays in force.
    FormerInForce,
    /// Running sessions go on, and nothing is launched until the mistake is corrected.
    #[default]
    LaunchesRefused,
    #[serde(other)]
    Unknown,
}

impl Consequence {
    /// The consequence in words that follow a mistake.
    pub fn explained(self) -> &'static str {
        match self {
            Self::LeftOut => "it is left out",
            Self::FormerInForce => "the former configuration stays in force",
            Self::LaunchesRefused => "no session is launched until it is corrected",
            Self::Unknown => "see the daemon's log",
        }
    }
}

impl Mistake {
    /// The mistake's place as compilers print it: `FILE:LINE:COLUMN`.
    pub fn place(&self) -> String {
        let mut place = self.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        for number in [self.line, self.column].into_iter().flatten() {
            // To a string nothing can fail to be written.
            let _ = write!(place, ":{number}");
        }
        place
    }
}

/// `FILE:LINE:COLUMN: KEY: MESSAGE`, without the parts that are not known.
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        if !place.is_empty() {
            write!(f, "{place}: ")?;
        }
        // Most messages begin with the key that they are about.
        if !self.key.is_empty() && !self.message.contains(&self.key) {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, "; did you mean `{suggestion}`?"),
            None => Ok(()),
        }
    }
}

/// When a changed key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// At the reload, for running sessions too.
    Now,
    /// At each session's next launch; running agents keep what they were started with.
    NextLaunch,
    /// When agentd is started again.
    NextStart,
    #[serde(other)]
    Unknown,
}

/// A changed key, and when it takes effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Dotted.
    pub key: String,
    pub effect: Effect,
}

/// What `agentctl config check` finds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationCheck {
    /// The files that were read, first to last.
    pub files: Vec<PathBuf>,
    pub mistakes: Vec<Mistake>,
    /// What is no mistake and may still not be meant, as a directory that is not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Mistake>,
}

/// What `agentctl config show` prints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationShow {
    pub files: Vec<PathBuf>,
    /// Every key that a file sets, in alphabetical order. Defaults are not listed.
    pub values: Vec<ConfigurationValue>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
}

/// One key of the merged configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationValue {
    /// Dotted.
    pub key: String,
    /// As TOML; `"***"` where it may be a secret.
    pub value: String,
    /// The file that sets the value, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The line in that file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// What `agentctl config path` prints: where configuration files are looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationPaths {
    /// First to last; a later file's keys take the place of an earlier one's.
    pub paths: Vec<ConfigurationPath>,
}

/// A file or folder of configuration files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationPath {
    pub path: PathBuf,
    pub exists: bool,
    /// `administrator` or `user`.
    pub owner: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_printed_as_compilers_print_theirs() {
        let mut mistake = Mistake { message: "it is not TOML".to_owned(), ..Mistake::default() };
        assert_eq!(mistake.to_string(), "it is not TOML");
        mistake = Mistake { file: Some("/a.toml".into()), line: Some(3), column: Some(7), ..mistake };
        assert_eq!(mistake.to_string(), "/a.toml:3:7: it is not TOML");
        mistake.key = "limits.launchs".to_owned();
        mistake.suggestion = Some("launches".to_owned());
        assert_eq!(mistake.to_string(), "/a.toml:3:7: limits.launchs: it is not TOML; did you mean `launches`?");
    }
}
