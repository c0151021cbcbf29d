//! Determines from the settings of `env-script` which scripts it sources, without I/O.

use agentd_plugin_host::Setting;

use agentd_config as config;

/// Returns the configured scripts, as the plugin reads its settings. `scripts` names every script, and
/// `directory_names` names those of the directory.
pub(crate) fn configured(settings: &[Setting]) -> Vec<String> {
    let set = |key: &str| settings.iter().find(|setting| setting.key == key).map(|setting| &setting.values);
    let [global, directory, session] = config::SCRIPTS.map(str::to_owned);
    match (set("scripts"), set("directory_names")) {
        (Some(scripts), _) => scripts.clone(),
        (None, Some(names)) => {
            let names = names.iter().map(|name| format!("{{cwd}}/{name}"));
            std::iter::once(global).chain(names).chain([session]).collect()
        }
        (None, None) => vec![global, directory, session],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn scripts_are_looked_for_where_the_plugin_looks_for_them() {
        let scripts = |settings: &str| {
            let table: BTreeMap<String, Vec<String>> = toml::from_str(settings).unwrap();
            let flat: Vec<Setting> = table.into_iter().map(|(key, values)| Setting { key, values }).collect();
            configured(&flat)
        };
        assert_eq!(scripts(""), config::SCRIPTS);
        assert_eq!(scripts("scripts = [\"/x\"]"), ["/x"]);
        let named = ["{config}/env-setup.sh", "{cwd}/.a.sh", "{cwd}/.b.sh", "{session}/env-setup.sh"];
        assert_eq!(scripts("directory_names = [\".a.sh\", \".b.sh\"]"), named);
    }
}
