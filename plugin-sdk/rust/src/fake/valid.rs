//! Checks of a plugin's results that the daemon makes too. A violation is a mistake in the plugin and fails the
//! test.

use super::grant;
use crate::{Change, Description, Effect, Report, Want};

/// Checks a plugin's description.
pub(super) fn description(description: &Description) {
    let Description { name, version, summary, .. } = description;
    let name_is_one =
        (1..=64).contains(&name.len()) && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    assert!(name_is_one, "the daemon refuses the name {name:?}: it must be 1 to 64 of a-z 0-9 -");
    assert!(version.len() <= 64, "the daemon refuses the version {version:?}: it has more than 64 bytes");
    assert!(summary.len() <= 500, "the daemon refuses the summary: it has more than 500 bytes");
    line("summary", summary);
    for setting in &description.settings {
        line("summary of a setting", &setting.summary);
    }
    for Want { capability, patterns, reason } in &description.wants {
        line("reason of a want", reason);
        for pattern in patterns {
            let is_one = grant::is_pattern(*capability, pattern);
            assert!(
                is_one,
                "the daemon refuses the want {capability:?} {pattern:?}: it is not a pattern of this capability"
            );
        }
    }
}

/// Checks the changes of a provider.
pub(super) fn changes(changes: &[Change]) {
    for change in changes {
        let name = change.name();
        let is_one = !name.is_empty() && !name.contains(['=', '\0']);
        assert!(is_one, "the daemon refuses the variable {name:?}: a name is not empty and has neither = nor NUL");
        match &change.effect {
            Effect::Set(variable) => {
                assert!(!variable.value.contains(&0), "the daemon refuses the value of {name}: it has a NUL");
            }
            Effect::Prepend(entry) | Effect::Append(entry) => {
                let is_one = !entry.entry.iter().any(|byte| matches!(byte, b':' | 0));
                assert!(is_one, "the daemon refuses the entry of {name}: it has a colon or a NUL");
            }
            Effect::File(file) => {
                let file_name = &file.file_name;
                let is_one = (1..=64).contains(&file_name.len())
                    && !file_name.starts_with('.')
                    && file_name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
                assert!(
                    is_one,
                    "the daemon refuses the file name {file_name:?}: it must be 1 to 64 of A-Z a-z 0-9 . _ -"
                );
                assert!(file.content.len() <= 1 << 20, "the daemon refuses the file {file_name}: it is over 1 MiB");
            }
            Effect::Unset(_) | Effect::Secret(_) => {}
        }
    }
}

/// Checks the report of a prerequisite.
pub(super) fn report(report: &Report) {
    line("summary", &report.summary);
    for fact in &report.facts {
        line("value of a fact", &fact.value);
    }
    if let Some(remedy) = &report.remedy {
        line("remedy", remedy);
    }
}

fn line(what: &str, text: &str) {
    assert!(!text.contains(char::is_control), "the daemon refuses the {what} {text:?}: it must be one line");
}
