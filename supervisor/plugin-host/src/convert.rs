//! Conversions between the types of the WIT interface and those of this crate.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bindings::prerequisite::exports::agentd::plugin::prerequisite_check;
use crate::bindings::provider::agentd::plugin::types;
use crate::bindings::provider::exports::agentd::plugin::environment_provider;
use crate::call::{
    Change, CheckMoment, CheckOutcome, Description, Effect, Report, SessionFacts, Setting, SettingDescription,
};
use crate::grant::{Capability, Want};
use crate::services::CONTENT;
use crate::text::{is_line, line, shown};

/// Minimum validity of a change. An environment that expires at once would be useless.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum validity of a change or report, to stay within the clock's range.
const LONGEST: Duration = Duration::from_hours(24 * 365);
/// Maximum number of settings in a description.
const SETTINGS: usize = 256;
/// Maximum length of a setting's key in bytes.
const KEY: usize = 256;
/// Maximum length of a one-line text in bytes.
const SUMMARY: usize = 500;
/// Maximum length of a longer text in bytes.
const TEXT: usize = 4096;
/// Maximum number of facts in a report.
const FACTS: usize = 256;

pub(crate) fn session(session: SessionFacts) -> types::Session {
    let SessionFacts { id, name, agent, directory, launch } = session;
    types::Session { id, name, agent, directory, launch }
}

pub(crate) fn settings(settings: Vec<Setting>) -> Vec<types::Setting> {
    settings.into_iter().map(|s| types::Setting { key: s.key, values: s.values }).collect()
}

/// Describes why a change is invalid: no environment or session could hold its result. Returns `None` for a
/// valid change.
pub(crate) fn flaw(change: &Change) -> Option<String> {
    let name = change.name();
    if name.is_empty() || name.contains(['=', '\0']) {
        return Some(format!("a variable named {}", shown(name)));
    }
    let value = match &change.effect {
        Effect::Set { value, .. } => value,
        Effect::Prepend { entry, .. } | Effect::Append { entry, .. } => entry,
        Effect::File { file_name, content, .. } => return misnamed(file_name, content.len()),
        Effect::Unset { .. } | Effect::Secret { .. } => return None,
    };
    if value.contains(&0) {
        return Some(format!("a value of {} that contains a NUL byte", shown(name)));
    }
    let entry = matches!(change.effect, Effect::Prepend { .. } | Effect::Append { .. });
    (entry && value.contains(&b':'))
        .then(|| format!("an entry of {} that contains a colon, which separates entries", shown(name)))
}

/// Describes why a file's name or size is invalid.
fn misnamed(file_name: &str, size: usize) -> Option<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let fits = (1..=64).contains(&file_name.len()) && file_name.bytes().all(plain) && !file_name.starts_with('.');
    if !fits {
        let name = shown(file_name);
        return Some(format!(
            "a file named {name}; a name is 1 to 64 of A-Z a-z 0-9 . _ - and does not begin with a dot"
        ));
    }
    (size > CONTENT).then(|| format!("a file {file_name:?} of more than {CONTENT} bytes"))
}

/// Describes a file that two changes give different contents. A session has one file of each name.
pub(crate) fn repeated(changes: &[Change]) -> Option<String> {
    let mut files = BTreeMap::new();
    changes.iter().find_map(|change| match &change.effect {
        Effect::File { file_name, content, .. } => {
            let before = files.insert(file_name, content);
            let differs = before.is_some_and(|before| before != content);
            differs.then(|| format!("two different files named {file_name:?}"))
        }
        _ => None,
    })
}

/// Describes what is invalid in a plugin's description.
pub(crate) fn misdescribed(description: &Description) -> Option<String> {
    let Description { name, version, summary, settings, wants, moment: _ } = description;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Some(format!("the name {} in its description; a name is of a-z, 0-9 and -, at most 64", shown(name)));
    }
    if version.is_empty() || version.len() > 64 || !is_line(version) {
        return Some(format!("the version {} in its description", shown(version)));
    }
    if summary.contains('\n') || summary.len() > SUMMARY {
        return Some("a summary in its description that is more than one line of 500 bytes".to_owned());
    }
    if settings.len() > SETTINGS {
        return Some(format!("more than {SETTINGS} settings in its description"));
    }
    // Patterns are shown verbatim to the person who grants them.
    if let Some(pattern) =
        wants.iter().flat_map(|want| &want.patterns).find(|pattern| !is_line(pattern) && !pattern.contains('\0'))
    {
        return Some(format!("the pattern {} in its description; a pattern is one line", shown(pattern)));
    }
    let unfit = |setting: &&SettingDescription| {
        let key = &setting.key;
        key.is_empty() || key.len() > KEY || !is_line(key)
    };
    let unfit = settings.iter().find(unfit)?;
    Some(format!("the setting {} in its description; a key is one line of 1 to {KEY} bytes", shown(&unfit.key)))
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
        let setting = |s: types::SettingDescription| SettingDescription {
            key: s.key,
            summary: line(&s.summary, TEXT),
            required: s.required,
        };
        let want = |want: types::Want| Want {
            capability: want.capability.into(),
            patterns: want.patterns,
            reason: line(&want.reason, SUMMARY),
        };
        // [`misdescribed`] refuses a summary of several lines. This replaces other characters that disturb a
        // terminal.
        let summary = if summary.contains('\n') || summary.len() > SUMMARY { summary } else { line(&summary, SUMMARY) };
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
            prerequisite_check::Moment::BeforeEnvironment => CheckMoment::BeforeEnvironment,
            prerequisite_check::Moment::AfterEnvironment => CheckMoment::AfterEnvironment,
        };
        Self { moment: Some(moment), ..description.plugin.into() }
    }
}

impl From<environment_provider::Change> for Change {
    fn from(change: environment_provider::Change) -> Self {
        use environment_provider::Effect as Theirs;
        let effect = match change.effect {
            Theirs::Set(variable) => Effect::Set { name: variable.name, value: variable.value },
            Theirs::Unset(removal) => {
                Effect::Unset { name: removal.name, reason: removal.reason.map(|reason| line(&reason, SUMMARY)) }
            }
            Theirs::Prepend(entry) => Effect::Prepend { name: entry.name, entry: entry.entry },
            Theirs::Append(entry) => Effect::Append { name: entry.name, entry: entry.entry },
            Theirs::Secret(value) => Effect::Secret { name: value.name, secret: value.secret },
            Theirs::File(file) => Effect::File { name: file.name, file_name: file.file_name, content: file.content },
        };
        let valid_for = change.valid_for.map(|time| Duration::from_millis(time).clamp(SHORTEST, LONGEST));
        Self { effect, origin: change.origin.map(|origin| line(&origin, TEXT)), valid_for }
    }
}

impl From<prerequisite_check::Report> for Report {
    fn from(report: prerequisite_check::Report) -> Self {
        use prerequisite_check::Outcome as Theirs;
        let fact = |fact: prerequisite_check::Fact| (line(&fact.name, SUMMARY), line(&fact.value, TEXT));
        Self {
            outcome: match report.outcome {
                Theirs::Pass => CheckOutcome::Pass,
                Theirs::Warn => CheckOutcome::Warn,
                Theirs::Fail => CheckOutcome::Fail,
                Theirs::Unknown => CheckOutcome::Unknown,
            },
            summary: line(&report.summary, TEXT),
            facts: report.facts.into_iter().take(FACTS).map(fact).collect(),
            remedy: report.remedy.map(|remedy| line(&remedy, TEXT)),
            valid_for: report.valid_for.map(|time| Duration::from_millis(time).min(LONGEST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_environment_and_no_session_can_hold_is_told() {
        let file = |file_name: &str, size: usize| Effect::File {
            name: "F".to_owned(),
            file_name: file_name.to_owned(),
            content: vec![b'x'; size],
        };
        let entry = |entry: &[u8]| Effect::Append { name: "PATH".to_owned(), entry: entry.to_owned() };
        let set = |name: &str, value: &[u8]| Effect::Set { name: name.to_owned(), value: value.to_owned() };
        for (effect, words) in [
            (set("", b""), "a variable named \"\""),
            (set("A=B", b""), "a variable named"),
            (set("A", b"a\0"), "a NUL byte"),
            (entry(b"/a:/b"), "an entry of \"PATH\" that contains a colon"),
            (entry(b"/a\0"), "a NUL byte"),
            (file("", 1), "a file named \"\""),
            (file(".netrc", 1), "a file named"),
            (file("..", 1), "a file named"),
            (file("a/b", 1), "a file named"),
            (file("a b", 1), "a file named"),
            (file("ä", 1), "a file named"),
            (file(&"a".repeat(65), 1), "a file named"),
            (file("a", CONTENT + 1), "of more than 1048576 bytes"),
        ] {
            let flaw = flaw(&effect.into()).unwrap();
            assert!(flaw.contains(words), "{flaw:?} has no {words:?}");
        }
        let name = format!("{}.0_-Z", "a".repeat(59));
        for effect in [set("A", b""), entry(b"/a"), entry(b""), file(&name, CONTENT), file("a..b", 0)] {
            assert_eq!(flaw(&effect.into()), None);
        }
    }

    #[test]
    fn a_session_has_one_file_of_a_name() {
        let file = |name: &str, content: &str| -> Change {
            let (name, file_name) = (name.to_owned(), "token.json".to_owned());
            Effect::File { name, file_name, content: content.as_bytes().to_owned() }.into()
        };
        assert_eq!(repeated(&[file("A", "x"), file("B", "x")]), None);
        let two = repeated(&[file("A", "x"), Change::set("C", "x"), file("B", "y")]);
        assert_eq!(two.as_deref(), Some("two different files named \"token.json\""));
    }

    #[test]
    fn what_is_said_to_people_is_one_line_and_time_has_its_bounds() {
        let change = environment_provider::Change {
            effect: environment_provider::Effect::Unset(environment_provider::Removal {
                name: "A".to_owned(),
                reason: Some("not\nhere\x1b[2J".to_owned()),
            }),
            origin: Some("/a\nb".to_owned()),
            valid_for: Some(0),
        };
        let change = Change::from(change);
        let reason = Some("not here\u{fffd}[2J".to_owned());
        assert_eq!(change.effect, Effect::Unset { name: "A".to_owned(), reason });
        assert_eq!((change.origin.as_deref(), change.valid_for), (Some("/a b"), Some(SHORTEST)));
        let fact = prerequisite_check::Fact { name: "n\nn".to_owned(), value: "v\tv".to_owned() };
        let report = Report::from(prerequisite_check::Report {
            outcome: prerequisite_check::Outcome::Pass,
            summary: "a\nb".to_owned(),
            facts: vec![fact; FACTS + 1],
            remedy: Some("\u{202e}x".to_owned()),
            valid_for: Some(u64::MAX),
        });
        assert_eq!((report.summary.as_str(), report.remedy.as_deref()), ("a b", Some("\u{fffd}x")));
        assert_eq!((report.facts.len(), report.valid_for), (FACTS, Some(LONGEST)));
        assert_eq!(report.facts[0], ("n n".to_owned(), "v v".to_owned()));
    }
}
