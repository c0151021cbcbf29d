//! Checks settings against those that a plugin accepts. A misspelt key is reported when the plugin is loaded,
//! instead of being ignored.

use crate::call::{Setting, SettingDescription};
use crate::text::{line, shown};

/// A mistake in a plugin's settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsProblem {
    /// The plugin does not accept the setting. `known` lists the settings that it accepts.
    #[error("unknown setting {}", shown(key))]
    Unknown { key: String, known: Vec<String> },
    /// A required setting is missing. `summary` is the plugin's description of the setting.
    #[error("the setting {} is missing", shown(key))]
    Missing { key: String, summary: String },
}

impl SettingsProblem {
    /// Returns what the user can do about the mistake.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { known, .. } if known.is_empty() => "the plugin has no settings".to_owned(),
            Self::Unknown { known, .. } => format!("known settings: {}", line(&known.join(", "), 500)),
            Self::Missing { summary, .. } => summary.clone(),
        }
    }
}

/// Reports whether a described key is the setting's key or that of a table that contains it.
fn covers(described: &str, key: &str) -> bool {
    key.strip_prefix(described).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the first mistake. An unknown setting comes before a missing one, because it may be the missing one
/// misspelt.
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
        let unknown = |key| Err(format!("unknown setting \"{key}\"; known settings: modules, servers, log.level"));
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
