//! Settings, from TOML to the flat list that plugins get. Whether a plugin knows them is the host's to say.

use std::collections::BTreeMap;

use agentd_plugins::Setting;

/// What no plugin can be given.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the setting {0:?} is neither a scalar, nor a list of scalars, nor a table of such")]
pub(crate) struct SettingError(String);

/// The settings of one use: the plugin's own, and key by key those of the use in their place.
pub(crate) fn combined(own: &toml::Table, of_use: &toml::Table) -> Result<Vec<Setting>, SettingError> {
    let mut flat = BTreeMap::new();
    for table in [own, of_use] {
        flatten("", table, &mut flat).map_err(SettingError)?;
    }
    Ok(flat.into_iter().map(|(key, values)| Setting { key, values }).collect())
}

/// A table's keys, nested ones joined by dots, a scalar as a list of one; or the key that is neither.
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
