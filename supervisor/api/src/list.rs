//! Lists of sessions: their items, their filters, the fields of an item, and the cursor between two pages.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use jiff::Timestamp;
use serde::de::value::Error as Refused;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};

use crate::doc::Named;
use crate::id::{SessionId, SessionName};
use crate::problem::{Code, Problem};
use crate::route::Value;
use crate::session::{
    Condition, ConditionStatus, ConditionType, Phase, SessionSpec, SessionStatus, SessionView, UnreadableSession,
};
use crate::staleness::UncheckedSession;

/// The response of `GET /v1/sessions`, in the order of creation. The items are whole views with `fields=*`, and have
/// the named fields with another value of `fields`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SessionList"))]
pub struct SessionList<T = SessionSummary> {
    /// The sessions.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<Item>"))]
    pub sessions: Vec<T>,
    /// Cursor of the next page, for the query key `after`. Absent if no further session follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Sessions that were skipped because their files could not be read. Only on the first page.
    #[serde(default = "Vec::<UnreadableSession>::new", skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableSession>,
    /// Sessions whose staleness could not be checked in time. Only with `stale=true`.
    #[serde(default = "Vec::<UncheckedSession>::new", skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<UncheckedSession>,
}

/// The forms of an item: for its schema only.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(untagged, inline)]
#[allow(dead_code, reason = "no value is made")]
enum Item {
    /// Without `fields`.
    Summary(SessionSummary),
    /// With `fields=*`.
    Whole(Box<SessionView>),
    /// With names of fields.
    Sparse(serde_json::Map<String, serde_json::Value>),
}

/// A list with `fields=*`.
pub type WholeList = SessionList<SessionView>;

/// A session in a list, without `fields`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionSummary {
    /// Id of the session.
    pub id: SessionId,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SessionName>,
    /// The requested agent: the name of a configured agent, or the file name of the session's own program.
    pub agent: String,
    /// Current phase.
    pub phase: Phase,
    /// Reason of the condition `NeedsAttention`. Absent if the session needs no person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// Title of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Working directory of the session.
    pub directory: PathBuf,
    /// Time at which the session was created.
    pub created: Timestamp,
    /// Time at which the last event was written.
    pub updated: Timestamp,
}

impl SessionSummary {
    /// Summarizes a session.
    pub fn of(view: &SessionView) -> Self {
        Self {
            id: view.id.clone(),
            name: view.spec.name.clone(),
            agent: agent_of(view),
            phase: view.status.phase,
            attention: attention_of(view).map(|condition| condition.reason.clone()),
            title: view.status.title.clone(),
            directory: view.spec.directory.clone(),
            created: view.created,
            updated: view.status.updated,
        }
    }
}

/// Returns the requested agent of a session: a configured agent, or the file name of the session's own program.
pub fn agent_of(view: &SessionView) -> String {
    if let Some(agent) = &view.spec.agent {
        return agent.to_string();
    }
    let program = view.spec.command.as_ref().and_then(|command| command.first());
    match program {
        Some(program) => std::path::Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned(),
        None => view.status.agent.as_ref().map_or_else(|| "(default)".to_owned(), |agent| agent.name.clone()),
    }
}

/// Returns the condition `NeedsAttention` of a session that needs a person.
pub fn attention_of(view: &SessionView) -> Option<&Condition> {
    let is_it = |condition: &&Condition| {
        condition.kind == ConditionType::NeedsAttention && condition.status == ConditionStatus::True
    };
    view.status.conditions.iter().find(is_it)
}

/// Parses a name as JSON has it; `None` for a name that this version does not know.
fn known<T: serde::de::DeserializeOwned + PartialEq>(name: &str, unknown: &T) -> Option<T> {
    serde_json::from_value(name.into()).ok().filter(|value| value != unknown)
}

/// Parses the parts of a list with commas; `None` if it has no part, or one part is not valid.
fn parts<T>(text: &str, part: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    text.split(',').map(|one| part(one.trim())).collect()
}

fn joined<T: fmt::Display>(parts: impl IntoIterator<Item = T>) -> String {
    parts.into_iter().map(|part| part.to_string()).collect::<Vec<_>>().join(",")
}

/// Phases of which a listed session has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phases(pub Vec<Phase>);

impl Value for Phases {
    fn describe() -> String {
        let names = Phase::ALL.iter().map(|phase| format!("`{}`", phase.as_str())).collect::<Vec<_>>();
        format!("one or several of these phases, with commas between: {}", names.join(", "))
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string", "examples": ["failed,stopped"] })
    }

    fn read(text: &str) -> Option<Self> {
        parts(text, |name| known(name, &Phase::Unknown)).map(Self)
    }

    fn write(&self) -> String {
        joined(self.0.iter().map(|phase| phase.as_str()))
    }
}

/// Requirements on the conditions of a listed session. Each must be met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Has(ConditionType, ConditionStatus),
    /// The condition is not true, or the session does not have it.
    NotTrue(ConditionType),
}

impl Conditions {
    /// Reports whether a session's conditions meet every requirement.
    pub fn matches(&self, conditions: &[Condition]) -> bool {
        let status = |kind| conditions.iter().find(|one| one.kind == kind).map(|one| one.status);
        self.0.iter().all(|requirement| match requirement {
            Requirement::Has(kind, wanted) => status(*kind) == Some(*wanted),
            Requirement::NotTrue(kind) => status(*kind) != Some(ConditionStatus::True),
        })
    }
}

impl FromStr for Requirement {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let kind = |name: &str| known(name, &ConditionType::Unknown).ok_or(());
        if let Some(name) = text.strip_prefix('!') {
            return kind(name).map(Self::NotTrue);
        }
        let (name, status) = text.split_once('=').unwrap_or((text, "True"));
        let status = match status.to_ascii_lowercase().as_str() {
            "true" => ConditionStatus::True,
            "false" => ConditionStatus::False,
            "unknown" => ConditionStatus::Unknown,
            _ => return Err(()),
        };
        kind(name).map(|kind| Self::Has(kind, status))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(kind, ConditionStatus::True) => write!(f, "{kind:?}"),
            Self::Has(kind, status) => write!(f, "{kind:?}={status:?}"),
            Self::NotTrue(kind) => write!(f, "!{kind:?}"),
        }
    }
}

impl Value for Conditions {
    fn describe() -> String {
        "`CONDITION` for a condition that is true, `!CONDITION` for a condition that is absent or not \
         true, or `CONDITION=STATUS`; several with commas between. The names are those of [Conditions](conditions.md)"
            .to_owned()
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string", "examples": ["NeedsAttention", "!Ready"] })
    }

    fn read(text: &str) -> Option<Self> {
        parts(text, |part| part.parse().ok()).map(Self)
    }

    fn write(&self) -> String {
        joined(&self.0)
    }
}

/// Place of a session in the order of creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// Time at which the session was created.
    pub created: Timestamp,
    /// Id of the session, which need not exist any more.
    pub id: SessionId,
}

impl Cursor {
    /// Reports whether a session comes after this place.
    pub fn is_before(&self, view: &SessionView) -> bool {
        (self.created, &self.id) < (view.created, &view.id)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.created.as_nanosecond(), self.id)
    }
}

impl Value for Cursor {
    fn describe() -> String {
        "the `next` of the page before, unchanged".to_owned()
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string" })
    }

    fn read(text: &str) -> Option<Self> {
        let (created, id) = text.split_once('.')?;
        let created = Timestamp::from_nanosecond(created.parse().ok()?).ok()?;
        Some(Self { created, id: id.parse().ok()? })
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// Value of the query key `fields`, which is not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields(pub Vec<String>);

impl Value for Fields {
    fn describe() -> String {
        "`*` for whole sessions, or names with commas between: a field of `SessionSummary`, `generation`, `parent`, \
         `spec`, `spec.NAME`, `status`, `status.NAME` or `status.conditions.CONDITION`"
            .to_owned()
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string", "examples": ["id,name,spec.labels", "*"] })
    }

    fn read(text: &str) -> Option<Self> {
        parts(text, |name| (!name.is_empty()).then(|| name.to_owned())).map(Self)
    }

    fn write(&self) -> String {
        joined(&self.0)
    }
}

/// Fields that an item of a list has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The whole view, as `GET` of one session returns it.
    Whole,
    /// These fields.
    Named(SelectedFields),
}

/// Fields of a sparse item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelectedFields {
    /// Fields of [`SessionSummary`], and `generation` and `parent` of the view.
    pub top: Vec<&'static str>,
    /// Fields of the specification.
    pub spec: Part,
    /// Fields of the status.
    pub status: Part,
    /// Conditions of the status. The item then has a list of these conditions, without those that the session lacks.
    pub conditions: Vec<ConditionType>,
}

/// Fields of a part of a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Part {
    /// The item does not have the part.
    #[default]
    None,
    /// All fields of the part.
    All,
    /// These fields of the part.
    Named(Vec<&'static str>),
}

impl Part {
    fn add(&mut self, name: &'static str) {
        match self {
            Self::None => *self = Self::Named(vec![name]),
            Self::Named(names) if !names.contains(&name) => names.push(name),
            Self::Named(_) | Self::All => {}
        }
    }
}

/// Fields of a view beside those of [`SessionSummary`].
const OF_VIEW: &[&str] = &["generation", "parent"];

impl Fields {
    /// Checks the names.
    ///
    /// # Errors
    ///
    /// A session has no such field.
    pub fn selection(&self) -> Result<Selection, Problem> {
        if self.0.iter().any(|name| name == "*") {
            return match self.0.as_slice() {
                [_] => Ok(Selection::Whole),
                _ => Err(Problem::new(Code::InvalidRequest, "`*` is given beside other fields")
                    .hint("`*` already names all fields: remove the others")),
            };
        }
        let mut selected = SelectedFields::default();
        for name in &self.0 {
            if !selected.add(name) {
                return Err(Problem::new(Code::InvalidRequest, format!("a session in a list has no field {name:?}"))
                    .hint(known_fields()));
            }
        }
        Ok(Selection::Named(selected))
    }
}

impl SelectedFields {
    /// Adds a field. Returns `false` for a name that no session has.
    fn add(&mut self, name: &str) -> bool {
        let of = |fields: &[&'static str], name: &str| fields.iter().copied().find(|field| *field == name);
        let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
        match (first, rest) {
            ("spec", None) => self.spec = Part::All,
            ("status", None) => self.status = Part::All,
            ("spec", Some(rest)) => match of(names::<SessionSpec>(), rest) {
                Some(field) => self.spec.add(field),
                None => return false,
            },
            ("status", Some(rest)) => match (of(names::<SessionStatus>(), rest), rest.strip_prefix("conditions.")) {
                (Some(field), _) => self.status.add(field),
                (None, Some(kind)) => match known(kind, &ConditionType::Unknown) {
                    Some(kind) => self.conditions.push(kind),
                    None => return false,
                },
                (None, None) => return false,
            },
            (first, None) => match of(names::<SessionSummary>(), first).or_else(|| of(OF_VIEW, first)) {
                Some(field) if !self.top.contains(&field) => self.top.push(field),
                Some(_) => {}
                None => return false,
            },
            (_, Some(_)) => return false,
        }
        true
    }
}

fn known_fields() -> String {
    let top: Vec<&str> = names::<SessionSummary>().iter().chain(OF_VIEW).copied().collect();
    let conditions: Vec<&str> = ConditionType::NAMES.iter().map(|Named { name, .. }| *name).collect();
    format!(
        "the fields are {}, spec, status; spec. with one of {}; status. with one of {}; status.conditions. with one \
         of {}; or * for all",
        top.join(", "),
        names::<SessionSpec>().join(", "),
        names::<SessionStatus>().join(", "),
        conditions.join(", ")
    )
}

/// Returns the names of a struct's fields in JSON, in the order of their declaration.
fn names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    // Fails by design, once the struct has named its fields.
    let _ = T::deserialize(FieldNames(&mut found));
    found
}

/// A deserializer that notes the fields for which a struct asks.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused::custom("it has no fields"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Refused> {
        *self.0 = fields;
        Err(Refused::custom("only the fields are wanted"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(text: &str) -> Result<Selection, Problem> {
        Fields::read(text).expect("the names can be read").selection()
    }

    #[test]
    fn phases_and_conditions_are_written_as_they_are_read() {
        assert_eq!(Phases::read("idle, backing-off"), Some(Phases(vec![Phase::Idle, Phase::BackingOff])));
        for text in ["idle,failed", "backing-off"] {
            assert_eq!(Phases::read(text).unwrap().write(), text);
        }
        for text in ["NeedsAttention", "!Ready,EnvironmentValid=False", "Degraded=Unknown"] {
            assert_eq!(Conditions::read(text).unwrap().write(), text);
        }
        for bad in ["", "idle,", "moon", "unknown", "Idle"] {
            assert_eq!(Phases::read(bad), None, "{bad}");
        }
        for bad in ["", "Ready,", "Moon", "!", "Ready=Maybe", "ready"] {
            assert_eq!(Conditions::read(bad), None, "{bad}");
        }
        for phase in Phase::ALL {
            assert_eq!(Phases::read(phase.as_str()), Some(Phases(vec![*phase])));
        }
    }

    #[test]
    fn a_requirement_distinguishes_false_from_absent() {
        let condition = |kind: &str, status: &str| -> Condition {
            let time = "2026-01-01T00:00:00Z";
            serde_json::from_value(serde_json::json!({
                "type": kind, "status": status, "reason": "R", "message": "", "observed_generation": 1,
                "last_transition_time": time,
            }))
            .unwrap()
        };
        let has = [condition("Ready", "True"), condition("EnvironmentValid", "False")];
        for (text, wanted) in [
            ("Ready", true),
            ("!Ready", false),
            ("EnvironmentValid=false", true),
            ("!EnvironmentValid", true),
            ("Degraded=False", false),
            ("!Degraded", true),
            ("Ready,!Degraded", true),
            ("Ready,Degraded", false),
        ] {
            assert_eq!(Conditions::read(text).unwrap().matches(&has), wanted, "{text}");
        }
    }

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        let cursor =
            Cursor { created: Timestamp::new(1_700_000_000, 123_456_789).unwrap(), id: "k3m".parse().unwrap() };
        assert_eq!(Cursor::read(&cursor.write()), Some(cursor));
        for bad in ["", "k3m", "1700000000", "x.k3m", "1.../etc", "1."] {
            assert_eq!(Cursor::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn fields_are_named_by_paths_and_others_are_refused_with_the_known_ones() {
        assert_eq!(selected("*"), Ok(Selection::Whole));
        let wanted = SelectedFields {
            top: vec!["id", "generation"],
            spec: Part::Named(vec!["labels"]),
            status: Part::All,
            conditions: vec![ConditionType::Ready],
        };
        let text = "id,generation,id,spec.labels,spec.labels,status,status.turn,status.conditions.Ready";
        assert_eq!(selected(text), Ok(Selection::Named(wanted)));
        for bad in ["moon", "spec.moon", "status.", "id.x", "spec.limits.memory", "status.conditions.Moon", "ID"] {
            let problem = selected(bad).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest, "{bad}");
            assert!(problem.detail.contains(bad), "{bad}: {}", problem.detail);
            let hint = problem.hint.unwrap_or_default();
            for known in ["attention", "initial_prompt", "last_seq", "NeedsAttention", "generation"] {
                assert!(hint.contains(known), "{bad}: {hint}");
            }
        }
        assert!(selected("*,id").is_err());
        assert_eq!(Fields::read("id,,name"), None);
    }
}
