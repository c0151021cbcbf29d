//! Settings against what a plugin says that it knows: a misspelt key is found when the plugin is loaded, and not when it was ignored for
//! a month.

use crate::call::{Setting, SettingDescription};
use crate::text::{line, shown};

/// What is wrong with a plugin's settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsProblem {
    #[error("there is no setting {}", shown(key))]
    Unknown { key: String, known: Vec<String> },
    /// `summary` is the plugin's own.
    #[error("the setting {} is missing", shown(key))]
    Missing { key: String, summary: String },
}

impl SettingsProblem {
    /// What the user can do.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { known, .. } if known.is_empty() => "it knows none".to_owned(),
            Self::Unknown { known, .. } => format!("it knows {}", line(&known.join(", "), 500)),
            Self::Missing { summary, .. } => summary.clone(),
        }
    }
}

/// Whether a described key is the setting's own, or that of a table around it.
fn covers(described: &str, key: &str) -> bool {
    key.strip_prefix(described).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The first thing that is wrong: a setting that nobody knows before one that is missing, since it may be that one misspelt.
pub(crate) fn check(described: &[SettingDescription], settings: &[Setting]) -> Result<(), SettingsProblem> {
    if let Some(unknown) = settings.iter().find(|setting| !described.iter().any(|d| covers(&d.key, &setting.key))) {
        let known = described.iter().map(|setting| setting.key.clone()).collect();
        return Err(SettingsProblem::Unknown { key: unknown.key.clone(), known });
    }
    let missing = |d: &&SettingDescription| d.required && !settings.iter().any(|s| covers(&d.key, &s.key));
    match described.iter().find(missing) {
        Some(missing) => Err(SettingsProblem::Missing { key: missing.key.clone(), summary: missing.summary.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(key: &str, required: bool) -> SettingDescription {
        SettingDescription { key: key.to_owned(), summary: format!("what {key} does"), required }
    }

    fn checked(keys: &[&str]) -> Result<(), String> {
        let described = [described("modules", true), described("servers", false), described("log.level", false)];
        let settings: Vec<Setting> =
            keys.iter().map(|&key| Setting { key: key.to_owned(), values: vec!["x".to_owned()] }).collect();
        check(&described, &settings).map_err(|problem| format!("{problem}; {}", problem.hint()))
    }

    #[test]
    fn a_setting_that_the_plugin_does_not_know_is_named_with_those_that_it_knows() {
        assert_eq!(checked(&["modules", "servers.main.host", "log.level"]), Ok(()));
        let unknown = |key| Err(format!("there is no setting \"{key}\"; it knows modules, servers, log.level"));
        assert_eq!(checked(&["module"]), unknown("module"));
        assert_eq!(checked(&["modules", "serversX"]), unknown("serversX"));
        assert_eq!(checked(&["modules", "log"]), unknown("log"));
    }

    #[test]
    fn a_setting_that_the_plugin_cannot_do_without_is_named_with_what_it_does() {
        assert_eq!(checked(&["servers"]), Err("the setting \"modules\" is missing; what modules does".to_owned()));
        assert_eq!(checked(&["modules.a"]), Ok(()));
    }
}
