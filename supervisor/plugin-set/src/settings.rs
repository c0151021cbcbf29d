//! Converts settings from TOML to the flat list that plugins receive. The plugin host checks whether the plugin knows
//! them.

use std::collections::BTreeMap;

use agentd_plugin_host::Setting;

/// Error for a setting that cannot be passed to a plugin.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the setting {0:?} must be a scalar, a list of scalars or a table of these")]
pub struct SettingError(String);

/// Returns the settings of one use: the plugin's own settings, overridden key by key by those of the use.
pub fn combined(own: &toml::Table, of_use: &toml::Table) -> Result<Vec<Setting>, SettingError> {
    let mut flat = BTreeMap::new();
    for table in [own, of_use] {
        flatten("", table, &mut flat).map_err(SettingError)?;
    }
    Ok(flat.into_iter().map(|(key, values)| Setting { key, values }).collect())
}

/// Flattens a table: nested keys are joined by dots, and a scalar becomes a list of one. An error contains the key of
/// an unsupported value.
fn flatten(prefix: &str, table: &toml::Table, into: &mut BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(inner) => flatten(&key, inner, into)?,
            toml::Value::Array(items) => {
                let values =
                    items.iter().map(|item| scalar(item).ok_or_else(|| key.clone())).collect::<Result<_, _>>()?;
                into.insert(key, values);
            }
            other => {
                let value = scalar(other).ok_or_else(|| key.clone())?;
                into.insert(key, vec![value]);
            }
        }
    }
    Ok(())
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) | toml::Value::Datetime(_) => {
            Some(value.to_string())
        }
        toml::Value::Array(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(own: &str, of_use: &str) -> Result<String, SettingError> {
        let (own, of_use) = (toml::from_str(own).unwrap(), toml::from_str(of_use).unwrap());
        let settings = combined(&own, &of_use)?;
        Ok(settings.iter().map(|s| format!("{}={}", s.key, s.values.join("|"))).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn settings_are_flattened_as_the_interface_says() {
        let nested = "b = [\"x\", \"y\"]\na = 1\n[servers.main]\nhost = \"h\"\non = true";
        assert_eq!(flat(nested, "").unwrap(), "a=1 b=x|y servers.main.host=h servers.main.on=true");
        assert_eq!(flat("", "[t]\na = [[1]]"), Err(SettingError("t.a".to_owned())));
    }

    #[test]
    fn a_use_says_otherwise_key_by_key() {
        let own = "a = 1\nb = [1, 2]\n[c]\nd = 1\ne = 1";
        assert_eq!(flat(own, "b = []\n[c]\nd = 2").unwrap(), "a=1 b= c.d=2 c.e=1");
    }
}
