//! The memory of a session beside its conversation: context sets, the environment hint, the title and the progress.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::prerequisite::Requester;

/// Maximum number of items of one context set.
pub const SET_ITEMS: usize = 10;
/// Maximum number of items of all context sets of a session.
pub const ALL_ITEMS: usize = 50;
/// Maximum length of one item in bytes. Linux allows paths of this length (`PATH_MAX` in limits.h).
pub const ITEM_BYTES: usize = 4096;
/// Maximum length of a set's name in bytes.
pub const NAME_BYTES: usize = 64;
/// Maximum length of an environment hint in bytes.
pub const HINT_BYTES: usize = 4096;
/// Maximum length of a title in bytes.
pub const TITLE_BYTES: usize = 200;
/// Maximum length of a progress message in bytes.
pub const PROGRESS_BYTES: usize = 1000;

/// Set of absolute paths of files that the session works on.
pub const FILES: &str = "files";
/// Set with the last applet that was open beside the conversation: its slug, then its parameters as `key=value`.
pub const APPLET: &str = "applet";
/// Set of URLs of interfaces that the session uses.
pub const ENDPOINTS: &str = "endpoints";
/// Set of TCP ports that the session uses.
pub const PORTS: &str = "ports";
/// The sets whose items agentd checks. Any other name is accepted with a warning.
pub const KNOWN_SETS: [&str; 4] = [FILES, APPLET, ENDPOINTS, PORTS];

/// The context of a session: what mattered when work paused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Context {
    /// Items of each set, in the order in which they were added. No set is empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sets: BTreeMap<String, Vec<String>>,
    /// URL that opens the applet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applet_url: Option<String>,
}

impl Context {
    /// Reports whether the context has neither items nor a URL.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.applet_url.is_none()
    }
}

/// Whether the items of a change join the set or replace it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ContextMode {
    /// New items are added behind the items of the set. An applet replaces another applet; the parameters of one
    /// applet are merged by their keys.
    #[default]
    Merge,
    /// The items replace the items of the set. An empty list removes the set.
    Replace,
}

/// The body of `PATCH /v1/sessions/{id}/context`. Sets that it does not name stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ContextChange {
    /// Whether the items join the sets or replace them.
    #[serde(default)]
    pub mode: ContextMode,
    /// Items by the name of their set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sets: BTreeMap<String, Vec<String>>,
    /// URL that opens the applet. Requires the set `applet` in the change or in the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applet_url: Option<String>,
}

/// The context of a session, as `GET /v1/sessions/{id}/context` returns it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContextView {
    /// Items of each set, in the order in which they were added.
    pub sets: BTreeMap<String, Vec<ContextItem>>,
    /// URL that opens the applet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applet_url: Option<String>,
    /// Warnings about the change that led to this answer, for example an unknown name of a set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// One item of a context set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContextItem {
    /// The item.
    pub value: String,
    /// Whether the item is a file that does not exist. Such a file stays in its set and is left out of the note.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
}

impl ContextView {
    /// Makes the view of a context. `missing` lists the files that do not exist.
    pub fn new(context: &Context, missing: &[String]) -> Self {
        let item = |name: &str, value: &String| ContextItem {
            value: value.clone(),
            missing: name == FILES && missing.contains(value),
        };
        let sets = context.sets.iter();
        Self {
            sets: sets
                .map(|(name, items)| (name.clone(), items.iter().map(|value| item(name, value)).collect()))
                .collect(),
            applet_url: context.applet_url.clone(),
            warnings: Vec::new(),
        }
    }
}

impl From<&ContextView> for Context {
    fn from(view: &ContextView) -> Self {
        let values = |items: &[ContextItem]| items.iter().map(|item| item.value.clone()).collect();
        let sets = view.sets.iter().map(|(name, items)| (name.clone(), values(items)));
        Self { sets: sets.collect(), applet_url: view.applet_url.clone() }
    }
}

/// Why the context was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ContextReason {
    /// A launch loaded the context for a new agent process.
    Load,
    /// A launch that resumes the session loaded the context.
    Resume,
    /// A caller changed the context.
    Changed,
    /// A reason newer than this reader.
    #[serde(other)]
    Unknown,
}

/// Data of the record `context.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContextChanged {
    /// Always `changed`.
    pub reason: ContextReason,
    /// The whole context after the change.
    pub context: Context,
    /// The process that requested the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// Data of the record `context.loaded`. Written at each launch of a session whose context has items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContextLoaded {
    /// `load` or `resume`.
    pub reason: ContextReason,
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// The context.
    pub context: Context,
    /// Files of the context that do not exist at this launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// The body of `PUT /v1/sessions/{id}/hint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["hint"])))]
#[serde(deny_unknown_fields)]
pub struct HintRequest {
    /// The environment hint: what the session needs to work. `null` removes the hint. A body without the key is
    /// refused.
    #[serde(deserialize_with = "Option::deserialize")]
    pub hint: Option<String>,
}

/// Data of the record `hint.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HintChanged {
    /// The environment hint. Absent if the hint was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The process that requested the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// The body of `PUT /v1/sessions/{id}/title`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["title"])))]
#[serde(deny_unknown_fields)]
pub struct TitleRequest {
    /// The title, one line. `null` removes a title that was set, so that the derived title shows again. A body
    /// without the key is refused.
    #[serde(deserialize_with = "Option::deserialize")]
    pub title: Option<String>,
}

/// Data of the record `title.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TitleChanged {
    /// The title. Absent if the title was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The process that requested the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// The body of `PUT /v1/sessions/{id}/progress`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgressRequest {
    /// Description of the present work, one line.
    pub message: String,
    /// Completed share of the work, from 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
}

/// Data of the record `progress.reported`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgressReported {
    /// Description of the present work.
    pub message: String,
    /// Completed share of the work, from 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// The process that reported the progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// The last reported progress of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    /// Description of the present work.
    pub message: String,
    /// Completed share of the work, from 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Time of the report.
    pub at: Timestamp,
}

/// Data of the record `session.observed`: a person looked at the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionObserved {
    /// The process through which the person looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}
