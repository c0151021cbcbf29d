//! The specification of a session: what a client requests, and when a change of each field takes effect.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::completion::CostLimit;
use crate::environment::EnvironmentSpec;
use crate::id::{AgentName, SessionName};
use crate::isolation::Isolation;
use crate::label::Labels;
use crate::mcp::McpChoice;
use crate::prerequisite::Requester;
use crate::quantity;
use crate::repository::RepositorySpec;
use crate::session::SessionView;
use crate::workflow::WorkflowSpec;
pub use crate::workspace::Workspace;

/// The specification of a session: the body of `POST /v1/sessions`, and a part of `session.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SessionSpec {
    /// Name of the session, unique among all sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SessionName>,
    /// Labels by which clients choose sessions, with the syntax of Kubernetes labels. agentd gives them no meaning.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Name of an agent in the configuration; `demo` is built in. Without `agent` and `command`, the configured
    /// default applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// A program and its arguments that speak ACP on stdio, instead of a configured agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Mode in which the agent works: one that the agent offers, or a part of its name that no other mode has. The
    /// configured mode if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Model of the agent, in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Values of other options of the agent, by the option's id. `true` and `false` for an option that is on or off.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// MCP servers of the agent, by name: `true` or `false` for a configured one, or a server of the session's own. The
    /// configuration chooses the rest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp: BTreeMap<String, McpChoice>,
    /// Working directory of the session. Absolute, except in the request for a workspace of the session's own: there it
    /// is relative to the workspace, and can be left out.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub directory: PathBuf,
    /// Absolute paths of additional directories that the agent works in. An agent that takes none works without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<PathBuf>,
    /// Requests a workspace: a directory of the session's own, which contains its repositories and `artifacts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// The session whose conversation and workspace this session continues: an id, or a name in a request. Agent,
    /// directory and workspace are those of that session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionName>,
    /// A conversation that the agent has already, by the agent's own id. The session continues it in the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Git repositories below the workspace, or else below the directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repos: Vec<RepositorySpec>,
    /// The workflow that the agent follows. It is used only with an approved description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<WorkflowSpec>,
    /// The first prompt. Sent once in the session's life, as soon as the conversation is ready. A session with a parent
    /// keeps it, but does not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_prompt: Option<String>,
    /// A JSON Schema that the answer to the first prompt must satisfy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_schema: Option<Value>,
    /// Whether the session waits for further prompts. If not, the session completes when its prompts are done, and is
    /// interactive from then on.
    #[serde(default = "is_interactive", skip_serializing_if = "Clone::clone")]
    pub interactive: bool,
    /// Text of the session's own script (`env-setup.sh`), which is sourced after the global and the directory's
    /// scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_setup: Option<String>,
    /// Source of the answers to the agent's permission requests.
    #[serde(default)]
    pub permissions: PermissionPolicy,
    /// Whether a crashed agent is restarted. Configured value if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPolicy>,
    /// Limits of the session.
    #[serde(default, skip_serializing_if = "SessionLimits::is_default")]
    pub limits: SessionLimits,
    /// Requested changes to the session's environment.
    #[serde(default, skip_serializing_if = "EnvironmentSpec::is_default")]
    pub environment: EnvironmentSpec,
    /// Extent of the note before the first prompt after a resume. Configured value if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_note: Option<ResumeNote>,
    /// Names of prerequisites that the session needs, in addition to those that the configuration requires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Tags, for prerequisites that the configuration requires by tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Isolation of the agent. It can only be stricter than the agent's configured level, which applies if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Name of the place in the configuration on which the agent runs, or `here` for this machine. The place of the
    /// agent or of the directory in the configuration if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

fn is_interactive() -> bool {
    true
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// Extent of the note that an agent receives before the first prompt after a resume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ResumeNote {
    /// No note.
    Off,
    /// A summary of losses and changes, if there are any.
    #[default]
    Brief,
    /// The full list of losses and changes, after each start of the agent's process.
    Full,
}

/// Whether agentd restarts an agent that crashes after its conversation was open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// The session fails and waits for a resume.
    Never,
    /// agentd restarts the agent after a growing pause and continues the conversation. After several crashes
    /// the session fails.
    OnFailure,
}

/// Limits of one session. A limit that is left out has its configured value.
///
/// A size or duration may be a number or a text such as `"2G"` or `"10m"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SessionLimits {
    /// Memory of the agent and all its descendants, in bytes.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_size")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Size>"))]
    pub memory: Option<u64>,
    /// Number of processes and threads of the agent and all its descendants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// Share of the CPU relative to other sessions while all are busy. Requires that sessions run as systemd
    /// units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<CpuWeight>,
    /// Maximum rate at which the agent's output is read, in bytes per second. A faster agent is slowed down,
    /// and no output is lost.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_size")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Size>"))]
    pub output_rate: Option<u64>,
    /// Seconds without a turn after which the session stops. 0 means never.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_seconds")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Seconds>"))]
    pub idle_seconds: Option<u64>,
    /// Maximum duration of a turn in seconds. 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_seconds")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Seconds>"))]
    pub turn_seconds: Option<u64>,
    /// Seconds after which an unanswered permission request is rejected. 0 means never.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_seconds")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Seconds>"))]
    pub permission_seconds: Option<u64>,
    /// Maximum time in seconds in which the session may be active, over all its launches. Time in phase `idle` does not
    /// count. 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_seconds")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Seconds>"))]
    pub session_seconds: Option<u64>,
    /// Maximum cost of the session, where the agent reports its cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostLimit>,
}

/// A share of the CPU from 1 to 10000. The default is 100 (systemd.resource-control(5), `CPUWeight=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct CpuWeight(u16);

/// Error for a number that is not a valid CPU weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a CPU weight is a number from 1 to 10000")]
pub struct InvalidCpuWeight;

impl TryFrom<u16> for CpuWeight {
    type Error = InvalidCpuWeight;

    fn try_from(weight: u16) -> Result<Self, InvalidCpuWeight> {
        if (1..=10_000).contains(&weight) { Ok(Self(weight)) } else { Err(InvalidCpuWeight) }
    }
}

impl From<CpuWeight> for u16 {
    fn from(weight: CpuWeight) -> Self {
        weight.0
    }
}

impl std::str::FromStr for CpuWeight {
    type Err = InvalidCpuWeight;

    fn from_str(text: &str) -> Result<Self, InvalidCpuWeight> {
        text.parse::<u16>().map_err(|_| InvalidCpuWeight)?.try_into()
    }
}

impl SessionLimits {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl SessionSpec {
    /// Returns the session's directory and the additional ones.
    pub fn all_directories(&self) -> Vec<PathBuf> {
        std::iter::once(&self.directory).chain(&self.directories).cloned().collect()
    }

    /// Makes the specification of a session in this directory, with configured values for everything else.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            name: None,
            labels: Labels::new(),
            agent: None,
            command: None,
            mode: None,
            model: None,
            options: BTreeMap::new(),
            mcp: BTreeMap::new(),
            directory: directory.into(),
            directories: Vec::new(),
            workspace: None,
            parent: None,
            conversation: None,
            repos: Vec::new(),
            workflow: None,
            initial_prompt: None,
            answer_schema: None,
            interactive: true,
            env_setup: None,
            permissions: PermissionPolicy::default(),
            restart: None,
            limits: SessionLimits::default(),
            environment: EnvironmentSpec::default(),
            resume_note: None,
            requires: Vec::new(),
            tags: Vec::new(),
            isolation: None,
            place: None,
        }
    }

    /// Returns the requested repository with this name.
    pub fn repository(&self, name: &str) -> Option<&RepositorySpec> {
        self.repos.iter().find(|repository| repository.name() == name)
    }
}

/// Source of the answers to the agent's permission requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PermissionPolicy {
    /// A client.
    #[default]
    Ask,
    /// agentd allows each request.
    Allow,
    /// agentd rejects each request.
    Deny,
}

/// When a change of a field of the specification takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "SpecEffect"))]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// At once, also for the running agent.
    Live,
    /// With the next turn.
    NextTurn,
    /// With the next launch. A launch that has not started its agent yet begins again with the change.
    NextLaunch,
    /// Never: the change is refused.
    Never,
    /// A value newer than this reader.
    #[serde(other)]
    Unknown,
}

impl Effect {
    /// Completes a sentence such as "the change takes effect …".
    pub fn describe(self) -> &'static str {
        match self {
            Self::Live => "at once",
            Self::NextTurn => "with the next turn",
            Self::NextLaunch => "with the next launch",
            Self::Never => "never",
            Self::Unknown => "at a time that this version does not know",
        }
    }
}

/// How a person writes the value of a field in `KEY=VALUE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notation {
    /// The text itself.
    Text,
    /// A number, size or duration, as in `2G` or `10m`.
    Quantity,
    /// Texts with commas between them.
    List,
    /// Words with the quoting of a POSIX shell.
    Words,
    /// A JSON object.
    Object,
    /// Texts, each with its own key behind the field's name: `labels.team=web`. A JSON object works too.
    Texts,
    /// A JSON array of objects.
    Objects,
    /// `true` or `false`.
    Flag,
}

/// A field of the specification, as clients change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecField {
    /// The field's name, with the name of the containing object before a dot.
    pub name: &'static str,
    /// When a change takes effect.
    pub effect: Effect,
    /// How a person writes its value.
    pub notation: Notation,
    /// Details of the effect.
    pub detail: &'static str,
}

impl SpecField {
    /// Returns the field's value in a specification as JSON; `null` if the specification does not have the field.
    pub fn value<'a>(&self, spec: &'a Value) -> &'a Value {
        self.name.split('.').try_fold(spec, |value, part| value.get(part)).unwrap_or(&Value::Null)
    }
}

const fn field(name: &'static str, effect: Effect, notation: Notation, detail: &'static str) -> SpecField {
    SpecField { name, effect, notation, detail }
}

/// Detail of the fields for the agent's options.
const OPTION: &str = "The condition `OptionsApplied` names what the agent does not take.";

/// All fields of the specification. A change of `environment`, `labels`, `mcp`, `options` or `workflow` is one change,
/// whatever it contains.
pub const FIELDS: [SpecField; 36] = [
    field("name", Effect::Live, Notation::Text, ""),
    field("labels", Effect::Live, Notation::Texts, ""),
    field("agent", Effect::Never, Notation::Text, "The conversation belongs to the agent."),
    field("command", Effect::NextLaunch, Notation::Words, ""),
    field("mode", Effect::Live, Notation::Text, OPTION),
    field("model", Effect::Live, Notation::Text, OPTION),
    field("options", Effect::Live, Notation::Texts, OPTION),
    field("mcp", Effect::NextLaunch, Notation::Object, ""),
    field("directory", Effect::Never, Notation::Text, "The conversation belongs to the directory."),
    field(
        "directories",
        Effect::NextLaunch,
        Notation::List,
        "The condition `DirectoriesGiven` names those that the agent does not take.",
    ),
    field("workspace", Effect::Never, Notation::Text, "The conversation belongs to the directory."),
    field("parent", Effect::Never, Notation::Text, "The conversation is continued once, at the creation."),
    field("conversation", Effect::Never, Notation::Text, "The conversation is continued once, at the creation."),
    field("repos", Effect::NextTurn, Notation::Objects, "A launch makes the requested repositories too."),
    field(
        "workflow",
        Effect::NextTurn,
        Notation::Object,
        "The agent is started again with its conversation, once the workflow's description is approved.",
    ),
    field("initial_prompt", Effect::Never, Notation::Text, "The initial prompt is sent once in a session's life."),
    field("answer_schema", Effect::Never, Notation::Object, "It belongs to the initial prompt."),
    field(
        "interactive",
        Effect::Live,
        Notation::Flag,
        "A session that becomes non-interactive completes after its next turn.",
    ),
    field(
        "env_setup",
        Effect::NextLaunch,
        Notation::Text,
        "A renewal of expiring variables uses the new script at once.",
    ),
    field("permissions", Effect::Live, Notation::Text, "Requests that are open already are not answered by it."),
    field("restart", Effect::Live, Notation::Text, ""),
    field("limits.memory", Effect::NextLaunch, Notation::Quantity, ""),
    field("limits.tasks", Effect::NextLaunch, Notation::Quantity, ""),
    field("limits.cpu_weight", Effect::NextLaunch, Notation::Quantity, ""),
    field("limits.output_rate", Effect::NextLaunch, Notation::Quantity, ""),
    field("limits.idle_seconds", Effect::Live, Notation::Quantity, ""),
    field("limits.turn_seconds", Effect::Live, Notation::Quantity, "The time of a running turn counts."),
    field("limits.permission_seconds", Effect::Live, Notation::Quantity, "The time of an open request counts."),
    field("limits.session_seconds", Effect::Live, Notation::Quantity, "The time before the change counts."),
    field("limits.cost", Effect::Live, Notation::Object, "The cost before the change counts."),
    field("environment", Effect::NextLaunch, Notation::Object, ""),
    field("resume_note", Effect::NextTurn, Notation::Text, "The next prompt after a start of the agent has the note."),
    field("requires", Effect::Live, Notation::List, "A missing prerequisite ends no running agent."),
    field("tags", Effect::Live, Notation::List, "A missing prerequisite ends no running agent."),
    field("isolation", Effect::NextLaunch, Notation::Text, ""),
    field(
        "place",
        Effect::NextLaunch,
        Notation::Text,
        "The conversation is loaded only if the places share its files.",
    ),
];

/// A field that a change of the specification has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangedField {
    /// The field's name, with the name of the containing object before a dot.
    pub field: String,
    /// When the change takes effect.
    pub effect: Effect,
    /// The value before the change; absent for a default.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub from: Value,
}

/// How a change treats the session's repositories.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepositoryTerms {
    /// Whether they are changed also while a turn runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
    /// Names of the repositories that are removed with uncommitted and unpushed work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<String>,
}

impl RepositoryTerms {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Data of the record `spec.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpecChanged {
    /// Generation of the new specification. The specification of `session.created` has generation 1.
    pub generation: u64,
    /// The whole new specification.
    pub spec: SessionSpec,
    /// The fields that differ from the specification before.
    pub changes: Vec<ChangedField>,
    /// How the repositories are changed.
    #[serde(default, skip_serializing_if = "RepositoryTerms::is_default")]
    pub repositories: RepositoryTerms,
    /// The process that requested the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// The response of `PATCH /v1/sessions/{session}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpecChangeView {
    /// The changed fields, each with the time of its effect. Empty if the request changed nothing; the generation
    /// is then unchanged.
    pub changes: Vec<ChangedField>,
    /// The session after the change.
    pub session: SessionView,
}

/// The body of `PATCH /v1/sessions/{session}`: a JSON merge patch of the specification (RFC 7396). A field with the
/// value `null` gets its default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpecPatch(pub serde_json::Map<String, Value>);

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields whose objects are one value each.
    const WHOLE: [&str; 7] = ["answer_schema", "environment", "labels", "limits.cost", "mcp", "options", "workflow"];

    /// Names of the values in a JSON document.
    fn names(prefix: &str, value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) if !WHOLE.contains(&prefix) => {
                for (name, value) in fields {
                    let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                    names(&name, value, found);
                }
            }
            _ => found.push(prefix.to_owned()),
        }
    }

    #[test]
    fn the_table_has_each_field() {
        // All fields are named, so that a new field does not compile here.
        let spec = SessionSpec {
            name: Some("n".parse().unwrap()),
            labels: Labels::from([("l".to_owned(), "v".to_owned())]),
            agent: Some("a".parse().unwrap()),
            command: Some(vec!["c".to_owned()]),
            mode: Some("m".to_owned()),
            model: Some("m".to_owned()),
            options: BTreeMap::from([("o".to_owned(), "v".to_owned())]),
            mcp: BTreeMap::from([("s".to_owned(), McpChoice::Configured(true))]),
            directory: "/d".into(),
            directories: vec!["/e".into()],
            workspace: Some(Workspace::New),
            parent: Some("p".parse().unwrap()),
            conversation: Some("c".to_owned()),
            repos: vec![RepositorySpec::clone_of("/r")],
            workflow: Some(WorkflowSpec { url: Some("/w".to_owned()), ..WorkflowSpec::default() }),
            initial_prompt: Some("p".to_owned()),
            answer_schema: Some(serde_json::json!({ "type": "object" })),
            interactive: false,
            env_setup: Some("s".to_owned()),
            permissions: PermissionPolicy::Deny,
            restart: Some(RestartPolicy::Never),
            limits: SessionLimits {
                memory: Some(1),
                tasks: Some(1),
                cpu_weight: Some(CpuWeight(1)),
                output_rate: Some(1),
                idle_seconds: Some(1),
                turn_seconds: Some(1),
                permission_seconds: Some(1),
                session_seconds: Some(1),
                cost: Some("1 USD".parse().unwrap()),
            },
            environment: EnvironmentSpec { shared: Some(true), ..EnvironmentSpec::default() },
            resume_note: Some(ResumeNote::Off),
            requires: vec!["r".to_owned()],
            tags: vec!["t".to_owned()],
            isolation: Some(Isolation::Guard),
            place: Some("farm".to_owned()),
        };
        let json = serde_json::to_value(&spec).unwrap();
        let mut found = Vec::new();
        names("", &json, &mut found);
        found.sort();
        let mut known: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
        known.sort_unstable();
        assert_eq!(found, known);
        assert!(FIELDS.iter().all(|field| !field.value(&json).is_null()));
    }
}
