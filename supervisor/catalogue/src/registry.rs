//! An agent in the form of the public registry: `agent.json` (github.com/agentclientprotocol/registry, FORMAT.md and
//! agent.schema.json).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An entry of the registry. Unknown keys are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Id of the agent: lower-case letters, digits and hyphens.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Version of the agent that the entry describes. The registry requires it; agentd's own entries lack it where no
    /// version was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Description of the agent.
    pub description: String,
    /// Address of the source code or of the documentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Authors of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authors: Vec<String>,
    /// SPDX identifier of the licence, or `proprietary`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Ways to get and start the agent. The registry requires at least one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
}

/// Ways to get and start an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// An npm package, started by `npx`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub npx: Option<Package>,
    /// A Python package, started by `uvx`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uvx: Option<Package>,
    /// An archive with the program for each platform, such as `linux-x86_64`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binary: BTreeMap<String, Archive>,
}

/// A package of npm or `PyPI`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Name of the package, with its version or without.
    pub package: String,
    /// Arguments of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables of the program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// An archive with a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    /// Address of the archive.
    pub archive: String,
    /// Path of the program in the archive.
    pub cmd: String,
    /// Arguments of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables of the program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// How an entry of the registry is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Address from which the program is to be installed first.
    pub archive: Option<String>,
}

/// Reason why an entry cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The document is not an entry.
    #[error("this is not an agent.json of the registry: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The id breaks the registry's rule.
    #[error("the id {0:?} does not begin with a lower-case letter, or has other characters than a-z, 0-9 and -")]
    Id(String),
    /// The entry has no program for this platform.
    #[error("the entry has no distribution for {platform}; it has: {}", known.join(", "))]
    Platform { platform: String, known: Vec<String> },
}

impl Entry {
    /// Reads the document of an `agent.json`.
    ///
    /// # Errors
    ///
    /// A required key is missing, or the id breaks the registry's rule.
    pub fn of(document: serde_json::Value) -> Result<Self, ImportError> {
        let entry: Self = serde_json::from_value(document)?;
        let mut characters = entry.id.chars();
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !characters.next().is_some_and(|c| c.is_ascii_lowercase()) || !characters.all(fits) {
            return Err(ImportError::Id(entry.id));
        }
        Ok(entry)
    }

    /// Returns how the agent is started on a platform, such as `linux-x86_64`: a package through its runner, else the
    /// program of the archive.
    ///
    /// # Errors
    ///
    /// The entry has no distribution for the platform.
    pub fn launch(&self, platform: &str) -> Result<Launch, ImportError> {
        let package = |runner: &[&str], package: &Package| Launch {
            command: runner
                .iter()
                .map(|&word| word.to_owned())
                .chain([package.package.clone()])
                .chain(package.args.clone())
                .collect(),
            env: package.env.clone(),
            archive: None,
        };
        let distribution = self.distribution.as_ref();
        if let Some(npm) = distribution.and_then(|ways| ways.npx.as_ref()) {
            return Ok(package(&["npx", "--yes"], npm));
        }
        if let Some(python) = distribution.and_then(|ways| ways.uvx.as_ref()) {
            return Ok(package(&["uvx"], python));
        }
        let Some(found) = distribution.and_then(|ways| ways.binary.get(platform)) else {
            let known = distribution.map(|ways| ways.binary.keys().cloned().collect()).unwrap_or_default();
            return Err(ImportError::Platform { platform: platform.to_owned(), known });
        };
        let program = found.cmd.rsplit('/').next().unwrap_or(&found.cmd).to_owned();
        Ok(Launch {
            command: [program].into_iter().chain(found.args.clone()).collect(),
            env: found.env.clone(),
            archive: Some(found.archive.clone()),
        })
    }
}

/// Returns the registry's name of this platform.
pub fn platform() -> String {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    };
    format!("{system}-{}", std::env::consts::ARCH)
}
