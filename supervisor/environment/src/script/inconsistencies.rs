//! Detects inconsistent environments: modules that are loaded by name without their variables, and licence checks
//! without theirs.
//!
//! The rules do no I/O. They use the environment of the last launch and the variables that its steps dropped.

use std::path::Path;

use agentd_api::ByteString;
use agentd_api::doctor::shell_word;
use agentd_api::environment::{DroppedView, EnvironmentView};
use agentd_api::reason;
use agentd_api::validation::Warning;
use agentd_glob::matches as glob;

use super::validate::warning;
use agentd_config::Prerequisite;

/// Variables that any implementation of environment modules sets.
const OF_MODULES: [&str; 12] = [
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "LD_RUN_PATH",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "MANPATH",
    "INFOPATH",
    "PKG_CONFIG_PATH",
    "CMAKE_PREFIX_PATH",
    "ACLOCAL_PATH",
    "XLOCALEDIR",
];
/// Variables that the licence server check uses by default.
const OF_LICENCES: [&str; 3] = ["*_LICENSE_FILE", "CDS_LIC_FILE", "RLM_LICENSE"];
/// Name of the built-in check of licence servers.
const LICENCE_SERVER: &str = "license-server";

fn value<'a>(view: &'a EnvironmentView, name: &str) -> Option<&'a [u8]> {
    let variable = view.variables.iter().find(|variable| variable.name == name)?;
    variable.value.as_ref().map(ByteString::as_bytes).filter(|value| !value.is_empty())
}

/// Returns the providers that dropped these variables, and the command that keeps the variables.
fn dropped_by(dropped: &[&DroppedView]) -> (String, String) {
    let mut providers: Vec<&str> = dropped.iter().map(|dropped| dropped.provider.as_str()).collect();
    providers.dedup();
    let names: Vec<String> = dropped.iter().map(|dropped| shell_word(&dropped.name).clone()).collect();
    (providers.join(" and "), format!("`agentctl env keep {}`", names.join(" ")))
}

/// Warns about modules that `LOADEDMODULES` names but whose variables are gone: `module load` then does nothing.
pub fn modules(view: &EnvironmentView, directory: &Path) -> Option<Warning> {
    let loaded = String::from_utf8_lossy(value(view, "LOADEDMODULES")?).replace(':', ", ");
    // Lmod and Environment Modules count the references to their variables, each under its own names.
    let names = view.variables.iter().map(|variable| &variable.name).chain(view.dropped.iter().map(|one| &one.name));
    let counted: Vec<&str> = names
        .filter_map(|name| {
            let of_lmod = name.strip_prefix("__LMOD_REF_COUNT_").or_else(|| name.strip_prefix("__MODULES_SHARE_"));
            of_lmod.or_else(|| name.strip_suffix("_modshare"))
        })
        .collect();
    let is_of_modules =
        |name: &str| OF_MODULES.contains(&name) || counted.contains(&name) || name.starts_with("EBROOT");
    let lost: Vec<&DroppedView> =
        view.dropped.iter().filter(|one| one.origin.is_none() && is_of_modules(&one.name)).collect();
    if !lost.is_empty() {
        let names: Vec<&str> = lost.iter().map(|one| one.name.as_str()).collect();
        let (by, keep) = dropped_by(&lost);
        let message = format!(
            "LOADEDMODULES lists {loaded} as loaded, but {} was dropped by {by}: `module load` then does nothing; \
             {keep} keeps it",
            names.join(", ")
        );
        return Some(warning(reason::MODULES_HALF_LOADED, directory, message));
    }
    let counted = value(view, "__LMOD_REF_COUNT_PATH")?;
    let path: Vec<&[u8]> = value(view, "PATH").unwrap_or_default().split(|byte| *byte == b':').collect();
    let entries = counted.split(|byte| *byte == b';').filter_map(|entry| entry.rsplitn(2, |byte| *byte == b':').nth(1));
    let gone: Vec<String> = entries
        .filter(|entry| !path.contains(entry))
        .map(|entry| String::from_utf8_lossy(entry).into_owned())
        .collect();
    (!gone.is_empty()).then(|| {
        let message = format!(
            "LOADEDMODULES lists {loaded} as loaded, but PATH has lost {}; \
             `module purge` and `module load` in .agentd-env.sh load it again",
            gone.join(", ")
        );
        warning(reason::MODULES_HALF_LOADED, directory, message)
    })
}

/// Warns about a licence server check that cannot pass, because a step dropped the variable that names the server.
pub fn licence(view: &EnvironmentView, name: &str, check: &Prerequisite, directory: &Path) -> Option<Warning> {
    if check.plugin != LICENCE_SERVER || check.settings.contains_key("servers") {
        return None;
    }
    let patterns: Vec<&str> = match check.settings.get("variables") {
        Some(toml::Value::Array(names)) => names.iter().filter_map(toml::Value::as_str).collect(),
        Some(toml::Value::String(name)) => vec![name],
        _ => OF_LICENCES.to_vec(),
    };
    let is_looked_at = |variable: &str| patterns.iter().any(|pattern| glob(pattern, variable));
    let is_there = view.variables.iter().any(|variable| is_looked_at(&variable.name));
    let lost: Vec<&DroppedView> = view.dropped.iter().filter(|one| is_looked_at(&one.name)).collect();
    if lost.is_empty() || (is_there && !lost.iter().any(|one| patterns.contains(&one.name.as_str()))) {
        return None;
    }
    let names: Vec<&str> = lost.iter().map(|one| one.name.as_str()).collect();
    let (by, keep) = dropped_by(&lost);
    let message = format!(
        "the check \"{name}\" cannot pass: {}, which names its licence server, was dropped by {by}; {keep} keeps it",
        names.join(", ")
    );
    Some(warning(reason::LICENCE_VARIABLE_DROPPED, directory, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(variables: &[(&str, &str)], dropped: &[&str]) -> EnvironmentView {
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| serde_json::json!({ "name": name, "value": value, "provider": "snapshot", "step": 1 }))
            .collect();
        let dropped: Vec<_> = dropped
            .iter()
            .map(|name| {
                let reason = "not in the list";
                serde_json::json!({ "name": name, "provider": "whitelist", "step": 2, "reason": reason })
            })
            .collect();
        let view = serde_json::json!({ "captured": "2026-01-01T00:00:00Z", "launch": 1, "digest": "",
                                       "variables": variables, "dropped": dropped });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn modules_without_their_variables_are_reported_with_the_command_that_keeps_them() {
        let of = |variables: &[(&str, &str)], dropped: &[&str]| modules(&view(variables, dropped), Path::new("/w"));
        let loaded = ("LOADEDMODULES", "gcc/13.2:openmpi/5");
        let message = of(&[loaded], &["LD_LIBRARY_PATH", "EDITOR"]).unwrap().message;
        assert!(message.contains("gcc/13.2, openmpi/5") && message.contains("dropped by whitelist"), "{message}");
        assert!(message.contains("`agentctl env keep LD_LIBRARY_PATH`"), "{message}");
        assert!(of(&[loaded, ("__LMOD_REF_COUNT_CORP_PATH", "/a:1")], &["CORP_PATH"]).is_some());
        assert_eq!(of(&[], &["LD_LIBRARY_PATH"]), None, "no module is loaded");
        assert_eq!(of(&[loaded], &["EDITOR"]), None);
        let counted = ("__LMOD_REF_COUNT_PATH", "/opt/gcc/bin:1;/usr/bin:1");
        let lost = of(&[loaded, counted, ("PATH", "/usr/bin")], &[]).unwrap();
        assert!(lost.message.contains("PATH has lost /opt/gcc/bin"), "{lost:?}");
        assert_eq!(of(&[loaded, counted, ("PATH", "/opt/gcc/bin:/usr/bin")], &[]), None);
    }

    #[test]
    fn a_licence_check_without_its_variable_is_reported() {
        let check = |settings: &str| -> Prerequisite {
            toml::from_str(&format!("plugin = \"license-server\"\nsettings = {settings}\n")).unwrap()
        };
        let of = |settings: &str, variables: &[(&str, &str)], dropped: &[&str]| {
            licence(&view(variables, dropped), "flexlm", &check(settings), Path::new("/w")).map(|one| one.message)
        };
        let message = of("{}", &[], &["XILINXD_LICENSE_FILE"]).unwrap();
        assert!(
            message.contains("\"flexlm\" cannot pass") && message.contains("env keep XILINXD_LICENSE_FILE"),
            "{message}"
        );
        assert_eq!(of("{}", &[("LM_LICENSE_FILE", "1@h")], &["XILINXD_LICENSE_FILE"]), None, "another names a server");
        let own = "{ variables = [\"CORP_LIC\"] }";
        assert!(of(own, &[], &["CORP_LIC"]).is_some());
        assert_eq!(of(own, &[], &["LM_LICENSE_FILE"]), None);
        assert_eq!(of("{ servers = [\"1@h\"] }", &[], &["LM_LICENSE_FILE"]), None);
    }
}
