//! From the words of the interface to those of this crate, and back.

use std::time::Duration;

use crate::bindings::prerequisite::exports::agentd::plugin::prerequisite_check;
use crate::bindings::provider::agentd::plugin::types;
use crate::bindings::provider::exports::agentd::plugin::environment_provider;
use crate::call::{
    Change, Description, Effect, Moment, Outcome, Report, SessionFacts, Setting, SettingDescription, Want,
};
use crate::grant::Capability;

/// What holds for less than this holds for this long: an environment that is always out of date is none.
const SHORTEST: Duration = Duration::from_secs(1);

pub(crate) fn session(session: SessionFacts) -> types::Session {
    let SessionFacts { id, name, agent, directory, launch } = session;
    types::Session { id, name, agent, directory, launch }
}

pub(crate) fn settings(settings: Vec<Setting>) -> Vec<types::Setting> {
    settings.into_iter().map(|s| types::Setting { key: s.key, values: s.values }).collect()
}

/// What no environment can hold.
pub(crate) fn flaw(change: &Change) -> Option<String> {
    let name = change.name();
    if name.is_empty() || name.contains(['=', '\0']) {
        return Some(format!("a variable of the name {name:?}"));
    }
    let value = match &change.effect {
        Effect::Set { value, .. } => value,
        Effect::Prepend { entry, .. } | Effect::Append { entry, .. } => entry,
        Effect::Unset { .. } | Effect::Secret { .. } | Effect::File { .. } => return None,
    };
    value.contains(&0).then(|| format!("a value of {name:?} that has a NUL byte"))
}

/// What is wrong with a description.
pub(crate) fn misdescribed(description: &Description) -> Option<String> {
    let Description { name, version, summary, settings: _, wants: _, moment: _ } = description;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Some(format!("the name {name:?} in its description; a name is of a-z, 0-9 and -, at most 64"));
    }
    if version.is_empty() || version.len() > 64 || version.chars().any(char::is_control) {
        return Some(format!("the version {version:?} in its description"));
    }
    (summary.contains('\n') || summary.len() > 500)
        .then(|| "a summary in its description that is more than one line of 500 bytes".to_owned())
}

impl From<types::Capability> for Capability {
    fn from(capability: types::Capability) -> Self {
        match capability {
            types::Capability::ShellEnvironment => Self::ShellEnvironment,
            types::Capability::Script => Self::Script,
            types::Capability::Command => Self::Command,
            types::Capability::File => Self::File,
            types::Capability::Network => Self::Network,
            types::Capability::Mount => Self::Mount,
            types::Capability::Process => Self::Process,
            types::Capability::Secret => Self::Secret,
        }
    }
}

impl From<types::Description> for Description {
    fn from(description: types::Description) -> Self {
        let types::Description { name, version, summary, settings, wants } = description;
        let setting =
            |s: types::SettingDescription| SettingDescription { key: s.key, summary: s.summary, required: s.required };
        let want = |want: types::Want| Want {
            capability: want.capability.into(),
            patterns: want.patterns,
            reason: want.reason,
        };
        Self {
            name,
            version,
            summary,
            settings: settings.into_iter().map(setting).collect(),
            wants: wants.into_iter().map(want).collect(),
            moment: None,
        }
    }
}

impl From<prerequisite_check::CheckDescription> for Description {
    fn from(description: prerequisite_check::CheckDescription) -> Self {
        let moment = match description.moment {
            prerequisite_check::Moment::BeforeEnvironment => Moment::BeforeEnvironment,
            prerequisite_check::Moment::AfterEnvironment => Moment::AfterEnvironment,
        };
        Self { moment: Some(moment), ..description.plugin.into() }
    }
}

impl From<environment_provider::Change> for Change {
    fn from(change: environment_provider::Change) -> Self {
        use environment_provider::Effect as Theirs;
        let effect = match change.effect {
            Theirs::Set(variable) => Effect::Set { name: variable.name, value: variable.value },
            Theirs::Unset(removal) => Effect::Unset { name: removal.name, reason: removal.reason },
            Theirs::Prepend(entry) => Effect::Prepend { name: entry.name, entry: entry.entry },
            Theirs::Append(entry) => Effect::Append { name: entry.name, entry: entry.entry },
            Theirs::Secret(value) => Effect::Secret { name: value.name, secret: value.secret },
            Theirs::File(file) => Effect::File { name: file.name, file_name: file.file_name, content: file.content },
        };
        let valid_for = change.valid_for.map(|time| Duration::from_millis(time).max(SHORTEST));
        Self { effect, origin: change.origin, valid_for }
    }
}

impl From<prerequisite_check::Report> for Report {
    fn from(report: prerequisite_check::Report) -> Self {
        use prerequisite_check::Outcome as Theirs;
        Self {
            outcome: match report.outcome {
                Theirs::Pass => Outcome::Pass,
                Theirs::Warn => Outcome::Warn,
                Theirs::Fail => Outcome::Fail,
                Theirs::Unknown => Outcome::Unknown,
            },
            summary: report.summary,
            facts: report.facts.into_iter().map(|fact| (fact.name, fact.value)).collect(),
            remedy: report.remedy,
            valid_for: report.valid_for.map(Duration::from_millis),
        }
    }
}
