//! The configuration as clients see it: mistakes, values with their sources, and when a changed key takes
//! effect.
//!
//! `agentctl config --json` prints these documents. `POST /v1/reload` and `/readyz` return parts of these documents.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One mistake in a configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mistake {
    /// The configuration file that contains the mistake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Line number, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column number in characters, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// Dotted path of the key. Empty if the file is not TOML or cannot be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Description of the mistake for people.
    pub message: String,
    /// The valid key that was probably meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
    /// Consequence of the mistake for the configuration.
    #[serde(default)]
    pub consequence: Consequence,
}

/// Consequence of a mistake for the configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Consequence {
    /// agentd ignores only what the key names.
    LeftOut,
    /// The previous configuration of the same owner (user or administrator) stays in force.
    FormerInForce,
    /// Running sessions continue. No session is launched until the mistake is corrected.
    #[default]
    LaunchesRefused,
    /// A consequence newer than this reader.
    #[serde(other)]
    Unknown,
}

impl Consequence {
    /// Returns the consequence as a clause to append to the mistake.
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
    /// Returns the mistake's position in the format of compilers: `FILE:LINE:COLUMN`.
    pub fn place(&self) -> String {
        let mut place = self.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        for number in [self.line, self.column].into_iter().flatten() {
            // Writing to a String cannot fail.
            let _ = write!(place, ":{number}");
        }
        place
    }
}

/// Formats `FILE:LINE:COLUMN: KEY: MESSAGE`, without the parts that are unknown.
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        if !place.is_empty() {
            write!(f, "{place}: ")?;
        }
        // Most messages already contain the key.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// At the reload, also for running sessions.
    Now,
    /// At each session's next launch. Running agents keep the value they were started with.
    NextLaunch,
    /// At the next start of the daemon.
    NextStart,
    /// A moment newer than this reader.
    #[serde(other)]
    Unknown,
}

/// A changed configuration key and when it takes effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// Dotted path of the key.
    pub key: String,
    /// When the new value takes effect.
    pub effect: Effect,
}

/// The result of `agentctl config check`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigurationCheck {
    /// The configuration files that were read, in the order of reading.
    pub files: Vec<PathBuf>,
    /// Mistakes in these files.
    pub mistakes: Vec<Mistake>,
    /// Valid settings that may not be intended, for example a directory that does not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Mistake>,
}

/// The output of `agentctl config show`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigurationShow {
    /// The configuration files that were read, in the order of reading.
    pub files: Vec<PathBuf>,
    /// Every key that a file sets, in alphabetical order. Defaults are not listed.
    pub values: Vec<ConfigurationValue>,
    /// Mistakes in these files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
}

/// One key of the merged configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigurationValue {
    /// Dotted path of the key.
    pub key: String,
    /// The value as TOML. `"***"` if the value may be a secret.
    pub value: String,
    /// Absolute path of the file that sets the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Line number in that file, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// The output of `agentctl config path`: the places where agentd looks for configuration files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigurationPaths {
    /// The places in the order of reading. A key in a later file overrides the same key in an earlier file.
    pub paths: Vec<ConfigurationPath>,
}

/// A configuration file, or a directory of configuration files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigurationPath {
    /// Absolute path of the file or directory.
    pub path: PathBuf,
    /// Whether the path exists.
    pub exists: bool,
    /// Owner of the path: `administrator` or `user`.
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
