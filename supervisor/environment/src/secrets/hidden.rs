//! Collects the values to hide in messages about an environment that is being built.
//!
//! The sources of values are the login shell, scripts, and named secrets. The values are evaluated only when a
//! message is written. A successful launch pays only for a copy.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use agentd_keeper::mask::Mask;

use super::{literal, plain};
use crate::lock::locked;
use crate::login::capture::Variables;
use agentd_config::secret;

/// Values and scripts that one build has used so far.
#[derive(Default)]
pub struct HiddenValues(Mutex<Vec<Entry>>);

enum Entry {
    Variables(Arc<Variables>),
    Value(Vec<u8>),
    Script(PathBuf),
}

/// Maximum number of bytes of a failed script that are searched for assigned values.
const SCRIPT: u64 = 1 << 20;

/// Shows the number of entries without their content.
impl std::fmt::Debug for HiddenValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HiddenValues({})", self.seen().len())
    }
}

impl HiddenValues {
    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        locked(&self.0)
    }

    /// Adds variables. Their secrets are hidden.
    pub fn variables(&self, variables: &Variables) {
        self.shared(Arc::new(variables.clone()));
    }

    /// Adds variables without a copy. Their secrets are hidden.
    pub(crate) fn shared(&self, variables: Arc<Variables>) {
        self.seen().push(Entry::Variables(variables));
    }

    /// Adds a value that is hidden under any name.
    pub fn value(&self, value: &[u8]) {
        self.seen().push(Entry::Value(value.to_vec()));
    }

    /// Adds a script that is about to run. If it fails, the values that it set are known only from its text.
    pub fn script(&self, path: PathBuf) {
        self.seen().push(Entry::Script(path));
    }

    /// Returns all values to hide.
    pub fn values(&self) -> BTreeSet<Vec<u8>> {
        let seen = self.seen();
        let (mut values, mut known) = (BTreeSet::new(), HashSet::new());
        for seen in seen.iter() {
            match seen {
                // A step changes few variables, so each distinct variable is evaluated once.
                Entry::Variables(variables) => {
                    let new = variables.iter().filter(|(name, value)| known.insert((name.as_str(), value.as_slice())));
                    values.extend(new.flat_map(|(name, value)| plain::values_of(name, value)));
                }
                Entry::Value(value) => values.extend(secret::parts_of(value)),
                Entry::Script(_) => {}
            }
        }
        values
    }

    /// Hides all collected values in the text. Also hides values that a collected script or the text itself
    /// assigns.
    pub fn text(&self, text: &str) -> String {
        let mut values = self.values();
        let scripts: Vec<PathBuf> = self
            .seen()
            .iter()
            .filter_map(|seen| if let Entry::Script(path) = seen { Some(path.clone()) } else { None })
            .collect();
        let texts = scripts.iter().filter_map(|path| read(path).ok()).chain([text.as_bytes().to_vec()]);
        for one in texts.flat_map(|text| literal::assigned(&text)) {
            values.extend(secret::values_of(&one.name, &one.value));
        }
        // `set -x` writes quotes in this form.
        let with_quotes = values.iter().filter(|value| value.contains(&b'\''));
        let quoted: Vec<Vec<u8>> = with_quotes.map(|value| escaped(value)).collect();
        values.extend(quoted);
        let redacted = literal::redacted(text.as_bytes());
        let masked = Mask::new(values.iter().map(Vec::as_slice)).text(&redacted, false).into_owned();
        String::from_utf8_lossy(&masked).into_owned()
    }
}

/// Escapes single quotes as in a single-quoted shell string.
fn escaped(value: &[u8]) -> Vec<u8> {
    value.split(|byte| *byte == b'\'').collect::<Vec<_>>().join(&br"'\''"[..])
}

fn read(path: &std::path::Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(SCRIPT).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_values_are_hidden_in_messages() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("s.sh");
        std::fs::write(&script, "export GITLAB_TOKEN='from a script'\n").unwrap();
        let hidden = HiddenValues::default();
        let variable = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        hidden.variables(&vec![variable("API_KEY", "hunter22"), variable("EDITOR", "vim-is-it")]);
        hidden.variables(&vec![variable("DATABASE", "postgres://me:pa%73sword@db/x")]);
        hidden.value(b"a named one");
        hidden.value(b"it's one");
        hidden.script(script);
        let said = "hunter22 vim-is-it a named one, from a script; pa%73sword password\n\
                    + export NPM_TOKEN=printed\n+ echo 'it'\\''s one'";
        assert_eq!(
            hidden.text(said),
            "‹secret› vim-is-it ‹secret›, ‹secret›; ‹secret› ‹secret›\n+ export NPM_TOKEN=‹secret›\n+ echo '‹secret›'"
        );
    }
}
