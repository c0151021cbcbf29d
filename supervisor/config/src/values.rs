//! Lists the merged configuration key by key, with the position of each value. Possible secrets are masked.

use agentd_api::configuration::ConfigurationValue;

use super::assemble::Origins;
use super::hidden::{MASK, is_secret, secret_part};
use super::parsed::{Key, dotted};

impl Origins {
    /// Returns every key of the files in alphabetical order, with its value in force and the file that contains the
    /// value.
    pub fn values(&self) -> Vec<ConfigurationValue> {
        let mut values = Vec::new();
        self.collect(&mut Vec::new(), self.merged(), &mut values);
        values
    }

    fn collect(&self, around: &mut Key, table: &toml::Table, values: &mut Vec<ConfigurationValue>) {
        for (name, value) in table {
            around.push(name.clone());
            match value {
                toml::Value::Table(inner) if !inner.is_empty() => self.collect(around, inner, values),
                value => {
                    let (file, line) = self.place(around).unzip();
                    let value = masked(around, None, value).to_string();
                    values.push(ConfigurationValue { key: dotted(around), value, file, line });
                }
            }
            around.pop();
        }
    }
}

/// Returns the value of a key with possible secrets masked.
fn masked(key: &mut Key, option: Option<&str>, value: &toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) => match secret_part(key, option, text) {
            // The secret is the whole text or its end.
            Some(secret) => toml::Value::String(format!("{}{MASK}", &text[..text.len() - secret.len()])),
            None => value.clone(),
        },
        toml::Value::Array(elements) => {
            let each = elements.iter().enumerate().map(|(index, element)| {
                key.push(format!("[{index}]"));
                let before = index.checked_sub(1).and_then(|before| elements[before].as_str());
                let masked = masked(key, before, element);
                key.pop();
                masked
            });
            toml::Value::Array(each.collect())
        }
        toml::Value::Table(inner) => {
            let each = inner.iter().map(|(name, value)| {
                key.push(name.clone());
                let masked = masked(key, None, value);
                key.pop();
                (name.clone(), masked)
            });
            toml::Value::Table(each.collect())
        }
        _ if is_secret(key) => toml::Value::String(MASK.to_owned()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::assemble::of_texts;

    #[test]
    fn each_value_has_the_place_of_the_file_that_has_it_last_and_secrets_are_masked() {
        let system = "[limits]\nbody = 1\nturn = \"1h\"\n";
        let user = "[limits]\nbody = 2\n\
            [agents.a]\ncommand = [\"a\", \"--api-key\", \"hunter2\", \"--token=hunter2\", \"x\"]\n\
            [plugins.snapshot.settings]\npassword = \"hunter2\"\nurl = \"https://kim:hunter2@host/\"\nplain = [1, 2]\n\
            [plugins.nested]\nsha256 = \"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\"\n\
            [plugins.nested.settings]\npassword.value = \"hunter2\"\nhttp.headers.x-custom = \"hunter2\"\n\
            credentials.file = \"/run/credentials\"\nlist = [{ tokens.first = \"hunter2\" }]\n\
            [environment]\nproviders = [{ plugin = \"snapshot\", settings = { password = { pin = \"hunter2\" } } }]\n\
            [[permissions]]\ntitle = \"git *\"\nanswer = \"ask\"\n";
        let values = of_texts(&[system], &[user]).unwrap().read.values();
        let shown = |key: &str| {
            let value = values.iter().find(|value| value.key == key).unwrap_or_else(|| panic!("{key}: {values:?}"));
            (value.value.as_str(), value.file.as_ref().unwrap().to_str().unwrap(), value.line.unwrap())
        };
        assert_eq!(shown("limits.body"), ("2", "/home/kim/0.toml", 2));
        assert_eq!(shown("limits.turn"), ("\"1h\"", "/etc/agentd/0.toml", 3));
        let command = "[\"a\", \"--api-key\", \"***\", \"--token=***\", \"x\"]";
        assert_eq!(shown("agents.a.command"), (command, "/home/kim/0.toml", 4));
        assert_eq!(shown("plugins.snapshot.settings.password"), ("\"***\"", "/home/kim/0.toml", 6));
        assert_eq!(shown("plugins.snapshot.settings.plain").0, "[1, 2]");
        for nested in ["password.value", "http.headers.x-custom", "list"] {
            assert!(!shown(&format!("plugins.nested.settings.{nested}")).0.contains("hunter2"), "{values:?}");
        }
        assert_eq!(shown("plugins.nested.settings.credentials.file").0, "\"/run/credentials\"");
        let providers = shown("environment.providers").0;
        assert!(providers.contains("pin = \"***\""), "{providers}");
        assert!(shown("permissions").0.contains("git *"));
        assert!(!values.iter().any(|value| value.value.contains("hunter2")), "{values:?}");
    }
}
