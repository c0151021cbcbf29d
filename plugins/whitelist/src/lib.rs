//! `whitelist`: keeps what an agent may have of the environment so far, and drops the rest.
//!
//! Kept is what the preset lists, what the agent's own documentation names ([`agents`]) and what the administrator allows. A secret,
//! by the look of its name or of its value, is kept only if it is named exactly, by the agent's list or by the administrator, and
//! one by its value by the preset too (a proxy's URL with a password in it): a pattern never lets a secret through.
//! Everything that goes is named with the rule it fell to. Exported bash functions pass: who gets them is the host's affair.

mod agents;
mod names;

use agentd_plugin_sdk::pattern::{is_pattern, matches};
use agentd_plugin_sdk::secret_names::{is_secret_name, is_secret_value};
use agentd_plugin_sdk::{Change, Description, Failure, Provider, Request, Variable, export_provider, log};
use names::Preset;

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
            essentials: agents::essentials(&request.session.agent, |name| request.variable(name)),
        };
        let changes = policy.changes(&request.environment);
        log::debug(format!("{} of {} variables dropped", changes.len(), request.environment.len()));
        Ok(changes)
    }
}

export_provider!(Whitelist);

/// What the names of exported bash functions look like.
const FUNCTION: &str = "BASH_FUNC_*%%";

struct Policy<'a> {
    preset: Preset,
    allow: &'a [String],
    essentials: Vec<&'static str>,
}

impl Policy<'_> {
    /// A removal of each variable that is not kept.
    fn changes(&self, environment: &[Variable]) -> Vec<Change> {
        let dropped = |variable: &Variable| {
            let reason = self.reason_to_drop(&variable.name, &variable.value)?;
            Some(Change::unset(variable.name.as_str(), reason))
        };
        environment.iter().filter_map(dropped).collect()
    }

    fn reason_to_drop(&self, name: &str, value: &[u8]) -> Option<String> {
        let named = self.allow.iter().any(|allowed| allowed == name) || self.essentials.contains(&name);
        if named || matches(FUNCTION, name) {
            return None;
        }
        if is_secret_name(name) {
            return Some("looks like a secret; the setting \"allow\" keeps it by its exact name".to_owned());
        }
        let allowed = self.allow.iter().any(|allowed| is_pattern(allowed) && matches(allowed, name));
        if !allowed && !self.preset.keeps(name) {
            return Some(format!("not in the {} list and not in the setting \"allow\"", self.preset.as_str()));
        }
        (is_secret_value(value) && !self.preset.names(name))
            .then(|| "its value looks like a secret; the setting \"allow\" keeps it by its exact name".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::Effect;
    use agentd_plugin_sdk::fake::Host;

    fn kept_of(preset: Preset, allow: &[&str], agent: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let host = Host::new().agent(agent).setting("preset", [preset.as_str()]);
        let host = host.setting("allow", allow.iter().copied());
        let host = variables.iter().fold(host, |host, (name, value)| host.variable(name, *value));
        let changes = host.provide::<Whitelist>().unwrap();
        let dropped: Vec<String> = changes.iter().map(|change| change.name().to_owned()).collect();
        variables.iter().map(|(name, _)| (*name).to_owned()).filter(|name| !dropped.contains(name)).collect()
    }

    fn kept(preset: Preset, allow: &[&str], agent: &str, names: &[&str]) -> Vec<String> {
        let variables: Vec<(&str, &str)> = names.iter().map(|&name| (name, "1")).collect();
        kept_of(preset, allow, agent, &variables)
    }

    fn reason(name: &str, value: &str) -> String {
        let policy = Policy { preset: Preset::Standard, allow: &["*".to_owned()], essentials: Vec::new() };
        policy.reason_to_drop(name, value.as_bytes()).unwrap_or_default()
    }

    #[test]
    fn the_standard_list_is_kept_and_the_rest_is_dropped_with_its_rule() {
        assert_eq!(
            kept(Preset::Standard, &[], "demo", &["PATH", "LC_ALL", "JAVA_HOME", "DISPLAY"]),
            ["PATH", "LC_ALL"]
        );
        let changes = Host::new().variable("JAVA_HOME", "/").provide::<Whitelist>().unwrap();
        let Effect::Unset(removal) = &changes[0].effect else { panic!("{changes:?}") };
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
    fn a_secret_value_passes_no_pattern_either_and_a_proxy_passes_with_its_password() {
        assert!(reason("MY_REMOTE", "https://user:hunter22@example.com").contains("value"));
        assert!(reason("XDG_SOMETHING", "ghp_0123456789abcdefghij").contains("value"));
        assert_eq!(reason("MY_REMOTE", "https://example.com"), "");
        assert_eq!(reason("HTTPS_PROXY", "http://user:hunter22@proxy:3128"), "");
    }

    #[test]
    fn an_agent_gets_its_own_key_and_not_that_of_another() {
        let names = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"];
        assert_eq!(kept(Preset::Standard, &[], "claude", &names), ["ANTHROPIC_API_KEY"]);
        assert_eq!(kept(Preset::Standard, &[], "codex", &names), ["OPENAI_API_KEY"]);
        assert_eq!(kept(Preset::Standard, &[], "demo", &names), [""; 0]);
        assert_eq!(kept(Preset::Standard, &[], "claude-agent", &names), [""; 0]);
    }

    #[test]
    fn a_clouds_keys_are_given_with_the_switch_that_asks_for_them() {
        let keys = ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS"].map(|name| (name, "x"));
        let with = |switch: (&'static str, &'static str)| {
            kept_of(Preset::Standard, &[], "claude", &[&keys[..], &[switch]].concat())
        };
        assert_eq!(with(("LANG", "C")), ["LANG"]);
        assert_eq!(
            with(("CLAUDE_CODE_USE_BEDROCK", "1")),
            ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "CLAUDE_CODE_USE_BEDROCK"]
        );
        assert_eq!(with(("CLAUDE_CODE_USE_BEDROCK", "0")), ["CLAUDE_CODE_USE_BEDROCK"]);
        assert_eq!(
            with(("CLAUDE_CODE_USE_VERTEX", "true")),
            ["GOOGLE_APPLICATION_CREDENTIALS", "CLAUDE_CODE_USE_VERTEX"]
        );
    }

    #[test]
    fn an_agents_names_are_exact() {
        for name in agents::all() {
            assert!(!is_pattern(name), "{name}");
        }
    }

    #[test]
    fn a_function_that_the_host_gave_passes() {
        assert_eq!(kept(Preset::Minimal, &[], "demo", &["BASH_FUNC_module%%", "BASH_ENV"]), ["BASH_FUNC_module%%"]);
    }
}
