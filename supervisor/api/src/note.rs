//! The note that an agent receives before the first prompt after a resume or a restart, and its preview:
//! `GET /v1/sessions/{id}/note`.
//!
//! The fields of [`NoteVariables`] are the variables of a note's template (docs/guide/note.md). They hold names and
//! never the value of an environment variable. Every text is one line of limited length. A name or a text with
//! unusual characters is in double quotes, and its control characters and invisible characters are escaped.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::id::SessionId;
use crate::session::ResumeNote;

/// The note that a session's agent would receive with the next prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoteView {
    /// Id of the session.
    pub session: SessionId,
    /// The note. Absent if the next prompt is sent without a note.
    pub note: Option<String>,
    /// Extent of the session's notes.
    pub mode: ResumeNote,
    /// Whether the note is that of a resume at this moment. Otherwise the session's agent runs or starts, and the
    /// note follows from the records.
    pub resumed_now: bool,
    /// File of the configured template. Absent if the note has the built-in template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PathBuf>,
    /// Why the configured template could not be used, so that the note has the built-in template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Facts that could not be determined for the preview, each in one line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undetermined: Vec<String>,
    /// The variables of the template. Absent if the session needs no note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<NoteVariables>,
}

/// The variables of a note's template. A list without entries is empty, and an absent text is `none`.
#[allow(clippy::struct_excessive_bools, reason = "each is a variable of a template")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NoteVariables {
    /// Extent of the note: `brief` or `full`.
    pub mode: ResumeNote,
    /// Whether a client resumed the session.
    pub resumed: bool,
    /// Whether agentd restarted the agent after a crash. Neither is true for the first launch, which has a note only
    /// if it is degraded.
    pub restarted: bool,
    /// How the agent's former process ended, if no client requested the end: `the agent exited with status 1`.
    pub crash: Option<String>,
    /// Time since the end of the last turn, in words: `3 days`. Absent if the time is unknown.
    pub away: Option<String>,
    /// The same time in seconds.
    pub away_seconds: Option<u64>,
    /// Whether any list below that names a change has an entry, or the conversation is new.
    pub changed: bool,
    /// Whether background processes, shell variables and the like are gone. False only for a first launch.
    pub shell_state_lost: bool,
    /// Whether the agent has a new conversation without the earlier messages.
    pub new_conversation: bool,
    /// Working directory of the session.
    pub directory: String,
    /// The environment hint of the session, in quotes.
    pub hint: Option<String>,
    /// The context sets of the session. Items that no longer exist are left out.
    pub context: Vec<NoteContextSet>,
    /// Variables of the environment that changed since the last turn.
    pub environment: Vec<NoteVariableChange>,
    /// Prerequisites that warn, fail or could not be checked.
    pub prerequisites: Vec<NotePrerequisite>,
    /// The caller that forced the launch despite these prerequisites: `user 1000`.
    pub forced_by: Option<String>,
    /// Scripts of the environment that changed since the last turn.
    pub scripts: Vec<NoteScript>,
    /// Tool calls of the last turn that began and did not end.
    pub tool_calls: Vec<NoteToolCall>,
    /// Changes of the repository that contains the working directory.
    pub repository: Vec<NoteRepositoryChange>,
    /// Other findings about a session that may be out of date.
    pub findings: Vec<NoteFinding>,
    /// Failed parts that a degraded launch lacks.
    pub missing: Vec<NoteMissing>,
    /// The caller that allowed the degraded launch: `user 1000`.
    pub degraded_by: Option<String>,
    /// Items that the agent should look at before it works, the most important first.
    pub check_first: Vec<String>,
}

/// One context set in a note.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NoteContextSet {
    /// Name of the set: `files`.
    pub name: String,
    /// The items that exist.
    pub items: Vec<String>,
    /// The set in words: `files: /work/a.c, /work/b.c`.
    pub text: String,
}

/// One changed variable in a note.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NoteVariableChange {
    /// Name of the variable.
    pub name: String,
    /// `added`, `changed` or `removed`.
    pub change: String,
    /// Provider that set the variable before.
    pub before: Option<String>,
    /// Provider that sets or removes the variable now.
    pub after: Option<String>,
    /// The change in words: `PATH changed by env-script`.
    pub text: String,
}

/// One unmet prerequisite in a note, without the text of its check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NotePrerequisite {
    /// Name of the prerequisite.
    pub name: String,
    /// `warn`, `fail` or `unknown`.
    pub outcome: String,
    /// The result in words: `vpn (fail)`.
    pub text: String,
}

/// One changed script in a note.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NoteScript {
    /// Path of the script.
    pub path: String,
    /// `changed`, `new` or `gone`.
    pub change: String,
    /// The change in words: `/work/.agentd-env.sh (changed)`.
    pub text: String,
}

/// One interrupted tool call in a note.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NoteToolCall {
    /// Title that the agent gave the call, in quotes. Its id if it had no title.
    pub title: String,
    /// Kind of the call: `execute`.
    pub kind: Option<String>,
    /// The call in words: `"make test" (execute)`.
    pub text: String,
}

/// One change of the repository in a note.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NoteRepositoryChange {
    /// Kind of the change: `branch`, `head`, `repository` or `directory`.
    pub what: String,
    /// Former state, if it is known.
    pub before: Option<String>,
    /// Present state. Absent without a present state.
    pub now: Option<String>,
    /// The change in words: `the branch was main and is topic`.
    pub text: String,
}

/// One other finding in a note.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NoteFinding {
    /// Kind of the finding: `unused`.
    pub kind: String,
    /// The finding in words.
    pub text: String,
}

/// One part that a launch lacks, in a note.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NoteMissing {
    /// `provider`, `script`, `prerequisite` or `secret`.
    pub kind: String,
    /// Name of the part.
    pub name: String,
    /// The part in words: `the provider modules`.
    pub text: String,
}
