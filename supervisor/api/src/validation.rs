//! Problems in a session's environment that the next launch would report: `GET /v1/sessions/{id}/validation`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::id::SessionId;

/// Warnings that the next launch would report. A warning alone does not prevent a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ValidationView {
    /// Id of the session.
    pub session: SessionId,
    /// Number of the launch whose environment was examined. Absent before the first launch; then only scripts
    /// are examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<u64>,
    /// The scripts that were examined.
    pub scripts: Vec<PathBuf>,
    /// The warnings.
    pub warnings: Vec<Warning>,
}

/// One setting or file that is probably not as intended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Warning {
    /// One CamelCase word for programs:
    ///
    /// - `DirectoryGone`, `NotADirectory`, `DirectoryClosed`, `DirectorySilent`
    /// - `PathEntryMissing`, `VirtualEnvGone`
    /// - `ScriptUnreadable`, `ScriptNotApproved`, `ScriptSyntax`, `ScriptChanged`
    /// - `ScriptErrors`: at the last launch the script printed an error, or its last command failed
    /// - `ModulesHalfLoaded`, `LicenceVariableDropped`, `ProjectFileNotHonoured`, `HomeDiffers`,
    ///   `LimitsWithheld`
    pub reason: String,
    /// The script or directory that the warning is about.
    pub path: PathBuf,
    /// Description for people. Never contains a secret.
    pub message: String,
}
