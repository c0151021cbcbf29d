//! `whitelist`: keeps the variables that an agent may have, and drops the rest.
//!
//! It keeps variables from these sources:
//!
//! - the preset and its families ([`names`], [`families`])
//! - the list of the agent's own variables ([`agents`])
//! - the administrator's setting `allow`
//!
//! A variable whose name or value looks like a secret is kept only if the agent's list or the administrator
//! names it exactly. A pattern never keeps a secret. Proxy URLs with a password are kept, because their list
//! names them.
//!
//! Each dropped variable is reported with the rule that dropped it. Exported bash functions pass; the host
//! decides which of them it gives.

mod agents;
mod families;
mod names;

use agentd_plugin_sdk::pattern::{is_pattern, matches};
use agentd_plugin_sdk::secret_names::{is_secret_name, is_secret_value};
use agentd_plugin_sdk::{Change, Description, Failure, Provider, Request, Variable, export_provider, log};
use families::{FAMILIES, Family};
use names::Preset;

struct Whitelist;

/// The settings that the plugin accepts.
const SETTINGS: &[&str] = &["preset", "families", "without", "allow", "drop", "identity"];

impl Provider for Whitelist {
    fn describe() -> Description {
        Description::new(
            "whitelist",
            env!("CARGO_PKG_VERSION"),
            "keeps the variables an agent may have and drops the rest",
        )
        .setting(
            "preset",
            "minimal, toolchains, desktop, or standard (an older list): how much is kept by default; \
             default: toolchains",
        )
        .setting("families", "the only families that toolchains and desktop keep; default: all")
        .setting("without", "families that toolchains and desktop leave out, such as cloud; default: []")
        .setting(
            "allow",
            "a list of names and patterns (* and ?) to keep in addition; a secret only by its exact name; default: []",
        )
        .setting("drop", "a list of names and patterns to drop, unless \"allow\" has the exact name; default: []")
        .setting("identity", "the kind of agent, such as claude; agentd sets it; default: the agent's configured name")
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        request.only_settings(SETTINGS)?;
        let preset = request.setting("preset")?.map_or(Ok(Preset::Toolchains), Preset::parse)?;
        let only = request.settings("families");
        let without = request.settings("without").unwrap_or_default();
        if let Some(setting) = only.map(|_| "families").or((!without.is_empty()).then_some("without"))
            && !preset.has_families()
        {
            let message = format!("the preset {} has no families; only toolchains and desktop have", preset.as_str());
            return Err(Failure::configuration(setting, message));
        }
        let chosen = families::chosen(only, without)?;
        let agent = request.setting("identity")?.unwrap_or(&request.session.agent);
        let policy = Policy {
            preset,
            families: if preset.has_families() { chosen } else { Vec::new() },
            allow: request.settings("allow").unwrap_or_default(),
            drop: request.settings("drop").unwrap_or_default(),
            essentials: agents::essentials(agent, |name| request.variable(name)),
            loaded: request.variable(LOADED).unwrap_or_default(),
        };
        let changes = policy.changes(&request.environment);
        log::debug(format!("{} of {} variables dropped", changes.len(), request.environment.len()));
        Ok(changes)
    }
}

export_provider!(Whitelist);

/// Pattern of exported bash functions.
const FUNCTION: &str = "BASH_FUNC_*%%";
/// Variable that lists the loaded modules (module(1), Lmod).
const LOADED: &str = "LOADEDMODULES";

struct Policy<'a> {
    preset: Preset,
    families: Vec<&'static Family>,
    allow: &'a [String],
    drop: &'a [String],
    essentials: Vec<&'static str>,
    /// Value of `LOADEDMODULES` in the environment.
    loaded: &'a [u8],
}

impl Policy<'_> {
    /// Returns a removal for each variable that is not kept.
    fn changes(&self, environment: &[Variable]) -> Vec<Change> {
        let reasons = environment.iter().map(|variable| self.reason_to_drop(&variable.name, &variable.value));
        let mut reasons: Vec<Option<String>> = reasons.collect();
        self.drop_state(environment, &mut reasons);
        let dropped = environment.iter().zip(reasons);
        dropped.filter_map(|(variable, reason)| Some(Change::unset(variable.name.as_str(), reason?))).collect()
    }

    /// Drops the variables that say that modules are loaded, if a variable that the modules set is dropped.
    fn drop_state(&self, environment: &[Variable], reasons: &mut [Option<String>]) {
        for family in FAMILIES.iter().filter(|family| !family.state.is_empty()) {
            let is_part = |name: &str| family.state_with.contains(&name);
            let mut dropped = environment.iter().zip(&*reasons).filter(|(_, reason)| reason.is_some());
            let Some((gone, _)) = dropped.find(|(variable, _)| is_part(&variable.name)) else { continue };
            let why = format!("says that modules are loaded, and {} is dropped, which they set", gone.name);
            for (variable, reason) in environment.iter().zip(reasons.iter_mut()) {
                let is_state = family.state.iter().any(|pattern| matches(pattern, &variable.name));
                if is_state && reason.is_none() && !self.is_allowed_exactly(&variable.name) {
                    *reason = Some(why.clone());
                }
            }
        }
    }

    fn is_allowed_exactly(&self, name: &str) -> bool {
        self.allow.iter().any(|allowed| allowed == name)
    }

    fn reason_to_drop(&self, name: &str, value: &[u8]) -> Option<String> {
        if self.is_allowed_exactly(name) {
            return None;
        }
        if let Some(pattern) = self.drop.iter().find(|pattern| matches(pattern, name)) {
            return Some(format!("matches {pattern:?} of the setting \"drop\""));
        }
        if self.essentials.contains(&name) || matches(FUNCTION, name) {
            return None;
        }
        if is_secret_name(name) {
            return Some("looks like a secret; the setting \"allow\" keeps it by its exact name".to_owned());
        }
        let allowed = self.allow.iter().any(|allowed| is_pattern(allowed) && matches(allowed, name));
        if !allowed && !self.is_listed(name) {
            return Some(self.reason_not_listed(name));
        }
        (is_secret_value(value) && !self.may_have_password(name))
            .then(|| "its value looks like a secret; the setting \"allow\" keeps it by its exact name".to_owned())
    }

    fn is_listed(&self, name: &str) -> bool {
        self.preset.keeps(name) || self.families.iter().any(|family| family.has(name)) || self.is_modules(name)
    }

    /// Reports whether a loaded module probably set the variable, if the variables of modules are kept.
    fn is_modules(&self, name: &str) -> bool {
        self.families.iter().any(|family| !family.state.is_empty())
            && !families::RUNS_CODE.contains(&name)
            && families::is_of_loaded_module(self.loaded, name)
    }

    /// Reports whether a list names the variable and its URL may contain a password.
    fn may_have_password(&self, name: &str) -> bool {
        self.preset.names(name) || self.families.iter().any(|family| family.passwords.contains(&name))
    }

    /// Returns why the variable is not on a list. Names the family if the settings leave it out.
    fn reason_not_listed(&self, name: &str) -> String {
        let family = FAMILIES.iter().find(|family| family.has(name));
        match family.filter(|_| self.preset.has_families()) {
            Some(family) => {
                format!("of the family {:?}, which the settings leave out, and not in \"allow\"", family.id)
            }
            None => format!("not in the {} list and not in the setting \"allow\"", self.preset.as_str()),
        }
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
        let policy = Policy {
            preset: Preset::Toolchains,
            families: families::chosen(None, &[]).unwrap(),
            allow: &["*".to_owned()],
            drop: &[],
            essentials: Vec::new(),
            loaded: b"",
        };
        policy.reason_to_drop(name, value.as_bytes()).unwrap_or_default()
    }

    #[test]
    fn the_standard_list_is_kept_and_the_rest_is_dropped_with_its_rule() {
        assert_eq!(
            kept(Preset::Standard, &[], "demo", &["PATH", "LC_ALL", "JAVA_HOME", "DISPLAY"]),
            ["PATH", "LC_ALL"]
        );
    }

    /// Returns the reason for which these settings drop a variable.
    fn dropped(settings: &[(&str, &[&str])], name: &str) -> Option<String> {
        let settings = settings.iter();
        let host = settings.fold(Host::new(), |host, (key, values)| host.setting(key, values.iter().copied()));
        let mut changes = host.variable(name, "1").provide::<Whitelist>().unwrap();
        let Effect::Unset(removal) = changes.pop()?.effect else { panic!("{name}") };
        removal.reason
    }

    #[test]
    fn toolchains_are_kept_by_default_and_a_family_goes_as_a_whole_with_its_name_as_the_reason() {
        for name in ["JAVA_HOME", "LD_LIBRARY_PATH", "ACME_LICENSE_FILE", "AWS_PROFILE", "XDG_CONFIG_HOME", "LC_ALL"] {
            assert_eq!(dropped(&[], name), None, "{name}");
        }
        let reason = |settings: &[(&str, &[&str])], name: &str| dropped(settings, name).unwrap_or_default();
        for name in ["AWS_PROFILE", "AZURE_TENANT_ID"] {
            assert!(reason(&[("without", &["cloud"])], name).contains("family \"cloud\""), "{name}");
            assert!(reason(&[("families", &["gpu"])], name).contains("family \"cloud\""), "{name}");
        }
        assert_eq!(dropped(&[("without", &["cloud"])], "JAVA_HOME"), None);
        assert_eq!(dropped(&[("without", &["cloud"]), ("allow", &["AWS_*"])], "AWS_PROFILE"), None);
        assert!(reason(&[], "ACME_COLOUR").contains("not in the toolchains list"));
        assert!(reason(&[("preset", &["standard"])], "JAVA_HOME").contains("not in the standard list"));
        assert!(reason(&[], "DISPLAY").contains("not in the toolchains list"));
        assert_eq!(dropped(&[("preset", &["desktop"])], "DISPLAY"), None);
        assert_eq!(dropped(&[("preset", &["desktop"])], "JAVA_HOME"), None);
    }

    #[test]
    fn a_preset_without_families_takes_no_word_about_them() {
        for (setting, preset) in [("families", "minimal"), ("without", "standard")] {
            let host = Host::new().setting("preset", [preset]).setting(setting, ["cloud"]);
            let refused = host.provide::<Whitelist>();
            assert!(matches!(refused, Err(Failure::Configuration(error)) if error.key == setting), "{setting}");
        }
    }

    #[test]
    fn what_is_dropped_goes_whatever_lists_it_but_an_exact_name_that_is_allowed() {
        let settings: &[(&str, &[&str])] = &[("drop", &["AWS_*", "JAVA_HOME"]), ("allow", &["AWS_PROFILE", "JAVA_*"])];
        assert!(dropped(settings, "AWS_REGION").is_some_and(|reason| reason.contains("\"AWS_*\"")));
        assert!(dropped(settings, "JAVA_HOME").is_some());
        assert_eq!(dropped(settings, "AWS_PROFILE"), None);
        assert_eq!(dropped(settings, "JAVA_OPTS"), None);
        let host = Host::new().agent("claude").setting("drop", ["ANTHROPIC_*"]).variable("ANTHROPIC_API_KEY", "x");
        assert_eq!(host.provide::<Whitelist>().unwrap().len(), 1, "an agent's own is dropped too");
    }

    /// Returns the names that are left of an environment in which `gcc` and `acme` are loaded.
    fn left_of_modules(settings: &[(&str, &[&str])]) -> Vec<String> {
        let variables = [
            ("LOADEDMODULES", "gcc/13:acme/1.2"),
            ("_LMFILES_", "/m/gcc/13:/m/acme/1.2"),
            ("_ModuleTable001_", "x"),
            ("MODULEPATH", "/m"),
            ("LD_LIBRARY_PATH", "/gcc/lib"),
            ("ACME_COLOUR", "red"),
            ("ACME_TOKEN", "x"),
        ];
        let host = settings.iter().fold(Host::new(), |host, (key, values)| host.setting(key, values.iter().copied()));
        let host = variables.iter().fold(host, |host, (name, value)| host.variable(name, *value));
        let gone: Vec<String> =
            host.provide::<Whitelist>().unwrap().iter().map(|change| change.name().to_owned()).collect();
        variables.iter().map(|(name, _)| (*name).to_owned()).filter(|name| !gone.contains(name)).collect()
    }

    #[test]
    fn modules_are_loaded_whole_or_not_at_all() {
        let whole = ["LOADEDMODULES", "_LMFILES_", "_ModuleTable001_", "MODULEPATH", "LD_LIBRARY_PATH", "ACME_COLOUR"];
        assert_eq!(left_of_modules(&[]), whole);
        assert_eq!(left_of_modules(&[("without", &["libraries"])]), ["MODULEPATH", "ACME_COLOUR"]);
        assert_eq!(left_of_modules(&[("drop", &["LD_LIBRARY_PATH"])]), ["MODULEPATH", "ACME_COLOUR"]);
        assert_eq!(left_of_modules(&[("without", &["modules"])]), ["LD_LIBRARY_PATH"]);
        assert_eq!(left_of_modules(&[("preset", &["standard"])]), ["MODULEPATH"]);
    }

    #[test]
    fn a_module_gives_no_variable_that_runs_code_in_every_program() {
        let host = Host::new().variable("LOADEDMODULES", "git/2:node/20").variable("GIT_SSH_COMMAND", "x");
        let changes = host.variable("NODE_OPTIONS", "x").variable("NODE_VERSION", "x").provide::<Whitelist>().unwrap();
        let names: Vec<&str> = changes.iter().map(Change::name).collect();
        assert_eq!(names, ["GIT_SSH_COMMAND", "NODE_OPTIONS"]);
    }

    #[test]
    fn the_identity_says_what_the_agent_is_and_its_name_where_there_is_none() {
        let own = |host: Host| host.variable("ANTHROPIC_API_KEY", "x").provide::<Whitelist>().unwrap().is_empty();
        assert!(own(Host::new().agent("my-agent").setting("identity", ["claude"])));
        assert!(own(Host::new().agent("claude")));
        assert!(!own(Host::new().agent("claude").setting("identity", ["codex"])));
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
        assert!(reason("PIP_INDEX_URL", "https://user:hunter22@example.com/simple").contains("value"));
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
