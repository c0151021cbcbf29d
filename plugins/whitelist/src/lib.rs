//! `whitelist`: keeps what an agent may have of the environment so far, and drops the rest.
//!
//! Kept is what the preset lists, what the agent's own documentation names ([`agents`]) and what the administrator allows. A name
//! that looks like a secret is kept only if it is named exactly, by the agent's list or by the administrator: a pattern
//! never lets a secret through. Everything that goes is named with the rule it fell to.

mod agents;
mod names;

use agentd_plugin_sdk::pattern::{is_pattern, matches};
use agentd_plugin_sdk::{Change, Description, Failure, Provider, Request, export_provider, log};
use names::{Preset, looks_secret};

struct Whitelist;

impl Provider for Whitelist {
    fn describe() -> Description {
        Description::new(
            "whitelist",
            env!("CARGO_PKG_VERSION"),
            "keeps the variables an agent may have and drops the rest",
        )
        .setting("preset", "minimal, standard or desktop: how much is kept without being named; default: standard")
        .setting(
            "allow",
            "a list of names and patterns (* and ?) to keep besides; a secret only by its exact name; default: []",
        )
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        request.only_settings(&["preset", "allow"])?;
        let policy = Policy {
            preset: request.setting("preset")?.map_or(Ok(Preset::Standard), Preset::parse)?,
            allow: request.settings("allow").unwrap_or_default(),
            essentials: agents::essentials(&request.session.agent),
        };
        let changes = policy.changes(request.environment.iter().map(|variable| variable.name.as_str()));
        log::debug(format!("{} of {} variables dropped", changes.len(), request.environment.len()));
        Ok(changes)
    }
}

export_provider!(Whitelist);

struct Policy<'a> {
    preset: Preset,
    allow: &'a [String],
    essentials: &'static [&'static str],
}

impl Policy<'_> {
    /// A removal of each name that is not kept.
    fn changes<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<Change> {
        names.filter_map(|name| self.reason_to_drop(name).map(|reason| Change::unset(name, reason))).collect()
    }

    fn reason_to_drop(&self, name: &str) -> Option<String> {
        if self.allow.iter().any(|allowed| allowed == name) || self.essentials.contains(&name) {
            return None;
        }
        if looks_secret(name) {
            return Some("looks like a secret; the setting \"allow\" keeps it by its exact name".to_owned());
        }
        let allowed = self.allow.iter().any(|allowed| is_pattern(allowed) && matches(allowed, name));
        if allowed || self.preset.keeps(name) {
            return None;
        }
        Some(format!("not in the {} list and not in the setting \"allow\"", self.preset.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(preset: Preset, allow: &[&str], agent: &str, names: &[&str]) -> Vec<String> {
        let allow: Vec<String> = allow.iter().map(|&a| a.to_owned()).collect();
        let policy = Policy { preset, allow: &allow, essentials: agents::essentials(agent) };
        let dropped: Vec<String> = policy.changes(names.iter().copied()).iter().map(|c| c.name().to_owned()).collect();
        names.iter().map(|&n| n.to_owned()).filter(|name| !dropped.contains(name)).collect()
    }

    #[test]
    fn the_standard_list_is_kept_and_the_rest_is_dropped_with_its_rule() {
        assert_eq!(
            kept(Preset::Standard, &[], "demo", &["PATH", "LC_ALL", "JAVA_HOME", "DISPLAY"]),
            ["PATH", "LC_ALL"]
        );
        let policy = Policy { preset: Preset::Standard, allow: &[], essentials: &[] };
        let [Change::Unset(removal)] = &policy.changes(["JAVA_HOME"].into_iter())[..] else { panic!() };
        assert!(removal.reason.as_deref().is_some_and(|reason| reason.contains("standard")));
    }

    #[test]
    fn the_administrator_allows_by_name_and_by_pattern() {
        assert_eq!(kept(Preset::Minimal, &["JAVA_*", "X"], "demo", &["JAVA_HOME", "X", "XY"]), ["JAVA_HOME", "X"]);
    }

    #[test]
    fn a_secret_passes_by_its_exact_name_only() {
        let names = ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_USER"];
        assert_eq!(kept(Preset::Standard, &["GITHUB_*", "*"], "demo", &names), ["GITHUB_USER"]);
        assert_eq!(kept(Preset::Standard, &["GITHUB_TOKEN"], "demo", &names), ["GITHUB_TOKEN"]);
    }

    #[test]
    fn an_agent_gets_its_own_key_and_not_that_of_another() {
        let names = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"];
        assert_eq!(kept(Preset::Standard, &[], "claude", &names), ["ANTHROPIC_API_KEY"]);
        assert_eq!(kept(Preset::Standard, &[], "codex", &names), ["OPENAI_API_KEY"]);
        assert_eq!(kept(Preset::Standard, &[], "demo", &names), [""; 0]);
    }
}
