//! The values that must not be in any message about an environment that is being built.
//!
//! It is told of whatever was seen on the way (what the login shell gave, what scripts gave, which scripts were run, which named secrets
//! were taken) and looks into it only when there is something to be said: a launch that succeeds pays for a copy and no more.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use agentd_keeper::mask::Mask;

use super::super::capture::Variables;
use super::super::secret;
use super::literal;

/// What one build has seen so far.
#[derive(Default)]
pub(crate) struct Hidden(Mutex<Vec<Seen>>);

enum Seen {
    Variables(Variables),
    Value(Vec<u8>),
    Script(PathBuf),
}

/// Of a script that failed this much is read, to find what it sets.
const SCRIPT: u64 = 1 << 20;

/// How much was seen: never what.
impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hidden({})", self.seen().len())
    }
}

impl Hidden {
    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Variables of which those that are secrets are to be hidden.
    pub(crate) fn variables(&self, variables: &Variables) {
        self.seen().push(Seen::Variables(variables.clone()));
    }

    /// A value that is a secret whatever it is called.
    pub(crate) fn value(&self, value: &[u8]) {
        self.seen().push(Seen::Value(value.to_vec()));
    }

    /// A script that is about to be run; should it fail, what it set by then is known from its text only.
    pub(crate) fn script(&self, path: PathBuf) {
        self.seen().push(Seen::Script(path));
    }

    /// Every value that was seen and is to be hidden.
    pub(crate) fn values(&self) -> BTreeSet<Vec<u8>> {
        let seen = self.seen();
        let (mut values, mut known) = (BTreeSet::new(), HashSet::new());
        for seen in seen.iter() {
            match seen {
                // A step changes little of what the one before gave: each variable is looked at once.
                Seen::Variables(variables) => {
                    let new = variables.iter().filter(|(name, value)| known.insert((name.as_str(), value.as_slice())));
                    values.extend(new.flat_map(|(name, value)| secret::values_of(name, value)));
                }
                Seen::Value(value) => values.extend(secret::parts_of(value)),
                Seen::Script(_) => {}
            }
        }
        values
    }

    /// The text with everything hidden that was seen, and everything that a script assigned or the text itself does.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut values = self.values();
        let scripts: Vec<PathBuf> = self
            .seen()
            .iter()
            .filter_map(|seen| if let Seen::Script(path) = seen { Some(path.clone()) } else { None })
            .collect();
        let texts = scripts.iter().filter_map(|path| read(path).ok()).chain([text.as_bytes().to_vec()]);
        for one in texts.flat_map(|text| literal::assigned(&text)) {
            values.extend(secret::values_of(&one.name, &one.value));
        }
        // As `set -x` writes it.
        let with_quotes = values.iter().filter(|value| value.contains(&b'\''));
        let quoted: Vec<Vec<u8>> = with_quotes.map(|value| escaped(value)).collect();
        values.extend(quoted);
        let redacted = literal::redacted(text.as_bytes());
        let masked = Mask::new(values.iter().map(Vec::as_slice)).text(&redacted, false).into_owned();
        String::from_utf8_lossy(&masked).into_owned()
    }
}

/// As it stands between single quotes in a shell's text.
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
    fn what_was_seen_on_the_way_is_hidden_in_what_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("s.sh");
        std::fs::write(&script, "export GITLAB_TOKEN='from a script'\n").unwrap();
        let hidden = Hidden::default();
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
