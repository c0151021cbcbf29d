//! What is wrong with a session's environment before it is launched: `GET /v1/sessions/{id}/validation`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::id::SessionId;

/// What the next launch would warn of. Nothing here keeps a session from being launched by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationView {
    pub session: SessionId,
    /// The launch whose environment was looked at; absent where there was none, and then only scripts were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<u64>,
    /// The scripts that were looked at.
    pub scripts: Vec<PathBuf>,
    pub warnings: Vec<Warning>,
}

/// One thing that is probably not as it was meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// One CamelCase word for programs: `DirectoryGone`, `NotADirectory`, `DirectoryClosed`, `DirectorySilent`, `PathEntryMissing`, `VirtualEnvGone`, `ScriptUnreadable`, `ScriptNotApproved`,
    /// `ScriptSyntax`, `ScriptChanged`, `ScriptErrors`: at the last launch it printed an error, or its last command failed.
    /// `ModulesHalfLoaded`, `LicenceVariableDropped`, `ProjectFileNotHonoured`, `HomeDiffers`, `LimitsWithheld`.
    pub reason: String,
    /// What it is about: a script, a directory.
    pub path: PathBuf,
    /// For people; never a secret.
    pub message: String,
}
