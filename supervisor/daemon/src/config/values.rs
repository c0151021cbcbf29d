//! The merged configuration, key by key, with each value's place; what may be a secret is masked.

use agentd_api::configuration::ConfigurationValue;
use agentd_secret_names::{is_secret_name, is_secret_value, password};

use super::assemble::Read;
use super::written::{Key, dotted};

/// What is shown in the place of a secret.
const MASK: &str = "***";

impl Read {
    /// Every key that a file has, in alphabetical order, with the file whose value holds.
    pub(crate) fn values(&self) -> Vec<ConfigurationValue> {
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
                    let value = masked(name, value).to_string();
                    values.push(ConfigurationValue { key: dotted(around), value, file, line });
                }
            }
            around.pop();
        }
    }
}

/// The value of a key, without what may be a secret: by the key's name, by its own look, or by the name that it is given to.
fn masked(name: &str, value: &toml::Value) -> toml::Value {
    let mask = || toml::Value::String(MASK.to_owned());
    match value {
        toml::Value::String(text) => toml::Value::String(masked_text(name, text)),
        toml::Value::Array(elements) => {
            let mut before = name.to_owned();
            let each = elements.iter().map(|element| {
                let masked = masked(&before, element);
                // `--token VALUE` are two elements.
                let is_option = |text: &&str| text.starts_with('-') && !text.contains('=');
                element.as_str().filter(is_option).unwrap_or(name).clone_into(&mut before);
                masked
            });
            toml::Value::Array(each.collect())
        }
        toml::Value::Table(inner) => {
            toml::Value::Table(inner.iter().map(|(name, value)| (name.clone(), masked(name, value))).collect())
        }
        _ if is_secret_key(name) => mask(),
        other => other.clone(),
    }
}

fn masked_text(name: &str, text: &str) -> String {
    if is_secret_key(name) || is_secret_value(text.as_bytes()) || password(text.as_bytes()).is_some() {
        return MASK.to_owned();
    }
    match text.split_once('=') {
        Some((name, value)) if is_secret_key(name) || is_secret_value(value.as_bytes()) => format!("{name}={MASK}"),
        _ => text.to_owned(),
    }
}

/// A name as options and settings have them, by the rule for variables. Names of files that hold secrets are none.
fn is_secret_key(name: &str) -> bool {
    let name = name.trim_start_matches('-').replace(['-', '.'], "_");
    !name.is_empty() && is_secret_name(&name.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::super::assemble::of_texts;

    #[test]
    fn each_value_has_the_place_of_the_file_that_has_it_last_and_secrets_are_masked() {
        let system = "[limits]\nbody = 1\nturn = \"1h\"\n";
        let user = "[limits]\nbody = 2\n[agents.a]\ncommand = [\"a\", \"--api-key\", \"hunter2\", \"--token=hunter2\", \"x\"]\n\
            [plugins.snapshot.settings]\npassword = \"hunter2\"\nurl = \"https://kim:hunter2@host/\"\nplain = [1, 2]\n\
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
        assert!(shown("permissions").0.contains("git *"));
        assert!(!values.iter().any(|value| value.value.contains("hunter2")), "{values:?}");
    }
}
