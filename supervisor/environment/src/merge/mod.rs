//! Builds the environment step by step from nothing, without I/O. Every variable records each step that touched it.
//!
//! A removed variable keeps its name, the step that removed it, and the reason. Its value is dropped at once, so
//! that unused values are stored nowhere. File contents stay here until they are written, and appear in no view.

mod drift;
mod entry;
pub(crate) mod functions;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use agentd_api::degraded::MissingPart;
use agentd_api::environment::{FileView, ScriptRun, VariableView};
use agentd_api::hex;
use agentd_keeper::protocol::Attributes;
use agentd_plugin_host::{Change, Effect};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

pub use drift::{drift, with_secrets};
use entry::{Entry, Step, StepEffect};
pub use view::without_secrets;

/// Step that gives variables the values of the beginning of the conversation. No provider can have such a name.
pub(crate) const CONVERSATION: &str = "env (conversation)";

/// A session's environment with its provenance. Names are sorted, so equal content has an equal digest.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    entries: BTreeMap<String, Entry>,
    /// Secrets of a stored environment that could not be restored.
    missing: BTreeMap<String, VariableView>,
    /// Directory of the session's files.
    directory: PathBuf,
    /// Contents of the session's files, by file name.
    files: BTreeMap<String, Content>,
    /// agentd's own steps. Their values count as the user's, and values of other steps count as a plugin's.
    own: Arc<BTreeSet<String>>,
    pub background: Background,
    /// Process attributes of the login shell that the agent inherits.
    pub attributes: Option<Attributes>,
    /// Sourced scripts, in order.
    pub scripts: Vec<ScriptRun>,
    /// Parts that a degraded launch left out.
    pub without: Vec<MissingPart>,
}

/// Numbers of background processes that the login shell and the scripts left, by their treatment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Background {
    pub killed: u32,
    pub left: u32,
}

/// Content of a file, its provider, and the variable that holds its path.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    provider: String,
    variable: String,
    bytes: Vec<u8>,
}

/// Shows names only, because values may be secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.pairs().map(|(name, _)| name)).finish()
    }
}

/// A change that no environment can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidChange {
    #[error("the variable name {name:?} is empty or has a `=` or NUL in it")]
    Name { name: String },
    #[error("the value of {name:?} has a NUL byte in it")]
    Value { name: String },
    #[error("invalid file name {file:?}: use 1 to {FILE_NAME} of A-Z a-z 0-9 . _ -, not starting with a dot")]
    FileName { file: String },
    #[error("the file {file:?} is given by {first:?} and by {second:?}; file names must be unique in a session")]
    FileTwice { file: String, first: String, second: String },
}

/// Maximum length of a file name, in bytes.
const FILE_NAME: usize = 64;

impl Environment {
    /// Returns the variables that have their values from the beginning of the conversation, and would have others.
    pub fn held(&self) -> Vec<String> {
        let is_held = |entry: &Entry| entry.last().is_some_and(|step| step.provider == CONVERSATION);
        self.entries.iter().filter(|(_, entry)| is_held(entry)).map(|(name, _)| name.clone()).collect()
    }

    /// Returns an empty environment whose files belong in `directory`.
    pub fn with_files_in(directory: PathBuf) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Sets the names of agentd's own steps.
    #[must_use]
    pub fn with_own_steps(self, own: Arc<BTreeSet<String>>) -> Self {
        Self { own, ..self }
    }

    fn is_own(&self, step: &str) -> bool {
        self.own.contains(step) || agentd_config::is_scope_step(step)
    }

    /// Returns the variables whose values plugins gave.
    pub fn foreign(&self) -> Vec<String> {
        let of_plugin = |entry: &Entry| entry.last().is_some_and(|step| !self.is_own(&step.provider));
        let entries = self.entries.iter().filter(|(_, entry)| entry.value().is_some() && of_plugin(entry));
        entries.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the value that a variable would have if no plugin had touched it.
    pub fn without_plugins(&self, name: &str) -> Option<&[u8]> {
        let mut steps = self.entries.get(name)?.history.iter().rev();
        steps.find(|step| self.is_own(&step.provider))?.effect.value()
    }

    /// Returns the variables for a plugin, without the secrets that are not granted to it.
    pub fn variables_for(&self, granted: impl Fn(&str) -> bool) -> Vec<(String, Vec<u8>)> {
        let hidden = |name: &str| !granted(name) && self.entries.get(name).is_some_and(|entry| entry.is_secret(name));
        let given = self.pairs().filter(|(name, _)| !hidden(name));
        given.map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }

    /// Applies changes without a time limit. Either all changes are applied or none.
    pub fn apply(&mut self, provider: &str, place: u32, changes: Vec<Change>) -> Result<(), InvalidChange> {
        self.apply_at(provider, place, changes, Timestamp::UNIX_EPOCH)
    }

    /// Applies changes. Either all changes are applied or none. A limited lifetime starts at `now`.
    pub fn apply_at(
        &mut self,
        provider: &str,
        place: u32,
        changes: Vec<Change>,
        now: Timestamp,
    ) -> Result<(), InvalidChange> {
        self.check(provider, &changes)?;
        for Change { effect, origin, valid_for } in changes {
            let own = valid_for.map(|span| now.saturating_add(span).unwrap_or(Timestamp::MAX));
            let (name, expires, effect) = match effect {
                Effect::Set { name, value } => (name, own, StepEffect::Set(value)),
                Effect::Unset { name, reason } => (name, own, StepEffect::Removed(reason)),
                Effect::Prepend { name, entry } => {
                    let list = self.list_without(&name, &entry);
                    let value = join(std::iter::once(entry).chain(list));
                    let expires = self.list_expiry(&name, own);
                    (name, expires, StepEffect::Set(value))
                }
                Effect::Append { name, entry } => {
                    let list = self.list_without(&name, &entry);
                    let value = join(list.into_iter().chain(std::iter::once(entry)));
                    let expires = self.list_expiry(&name, own);
                    (name, expires, StepEffect::Set(value))
                }
                Effect::Secret { name, secret } => (name, own, StepEffect::Secret { name: secret, value: None }),
                Effect::File { name, file_name, content } => {
                    let file = FileView {
                        size: content.len().try_into().unwrap_or(u64::MAX),
                        digest: hex(&Sha256::digest(&content)),
                    };
                    let path = self.directory.join(&file_name).into_os_string().into_vec();
                    let content = Content { provider: provider.to_owned(), variable: name.clone(), bytes: content };
                    self.files.insert(file_name, content);
                    (name, own, StepEffect::File { path, file })
                }
            };
            // The origin of a secret is its configured name.
            let origin = if let StepEffect::Secret { name, .. } = &effect { Some(name.clone()) } else { origin };
            let step =
                Step { provider: provider.to_owned(), place, origin: origin.map(PathBuf::from), expires, effect };
            self.missing.remove(&name);
            self.entries.entry(name).or_default().push(step);
        }
        Ok(())
    }

    fn check(&self, provider: &str, changes: &[Change]) -> Result<(), InvalidChange> {
        let mut given: Vec<&str> = Vec::new();
        for Change { effect, .. } in changes {
            let name = effect.name();
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(InvalidChange::Name { name: name.to_owned() });
            }
            let value: &[u8] = match effect {
                Effect::Set { value, .. } => value,
                Effect::Prepend { entry, .. } | Effect::Append { entry, .. } => entry,
                Effect::Unset { .. } | Effect::Secret { .. } | Effect::File { .. } => &[],
            };
            if value.contains(&0) {
                return Err(InvalidChange::Value { name: name.to_owned() });
            }
            if let Effect::File { file_name: file, .. } = effect {
                if !is_file_name(file) {
                    return Err(InvalidChange::FileName { file: file.clone() });
                }
                let earlier = self.files.get(file).map(|content| content.provider.as_str());
                let earlier = earlier.or_else(|| given.contains(&file.as_str()).then_some(provider));
                if let Some(first) = earlier {
                    let (first, second) = (first.to_owned(), provider.to_owned());
                    return Err(InvalidChange::FileTwice { file: file.clone(), first, second });
                }
                given.push(file);
            }
        }
        Ok(())
    }

    fn list_without(&self, name: &str, entry: &[u8]) -> Vec<Vec<u8>> {
        let Some(value) = self.get(name).filter(|value| !value.is_empty()) else { return Vec::new() };
        value.split(|&byte| byte == b':').filter(|part| *part != entry).map(<[u8]>::to_vec).collect()
    }

    /// Returns the earlier of two expiry times: a list expires with its first expiring part.
    fn list_expiry(&self, name: &str, own: Option<Timestamp>) -> Option<Timestamp> {
        own.into_iter().chain(self.entries.get(name).and_then(Entry::expires)).min()
    }

    /// Reports whether a variable that started with this value is still set, or was changed by a later step. A
    /// removed variable does not count, even if another step set it again. A function that is only withheld from
    /// the agent counts.
    pub fn has_kept(&self, name: &str, value: &[u8]) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.has_kept(value))
    }

    /// Returns every name that some step touched.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.entries.get(name).and_then(Entry::value)
    }

    /// Returns the number of variables that the environment sets.
    pub fn count(&self) -> usize {
        self.pairs().count()
    }

    /// Returns names and values, sorted by name.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.value()?)))
    }

    pub fn dropped(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(_, entry)| entry.value().is_none()).map(|(name, _)| name.as_str())
    }

    /// Returns names and values of the secrets.
    pub fn secret_pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries
            .iter()
            .filter(|(name, entry)| entry.is_secret(name))
            .filter_map(|(name, entry)| Some((name.as_str(), entry.value()?)))
    }

    /// Returns owned names and values, sorted by name.
    pub fn variables(&self) -> Vec<(String, Vec<u8>)> {
        self.pairs().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }

    /// Returns the configured secrets that providers named, with the provider's name. Their values must be filled
    /// in.
    pub fn named_secrets(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.values().filter_map(|entry| Some((entry.named()?, entry.last()?.provider.as_str())))
    }

    /// Sets the values of named secrets. A variable whose secret has no value is removed.
    pub fn fill<'a>(&mut self, value_of: impl Fn(&str) -> Option<&'a [u8]>) {
        for entry in self.entries.values_mut() {
            let value = entry.named().and_then(&value_of);
            entry.fill(value);
        }
    }

    /// Returns the files that a variable refers to: the variable, the file name and the content.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str, &[u8])> {
        let is_there = |name: &str, content: &Content| {
            let entry = self.entries.get(&content.variable).filter(|entry| entry.file().is_some());
            let path = self.directory.join(name).into_os_string().into_vec();
            entry.and_then(Entry::value) == Some(path.as_slice())
        };
        let files = self.files.iter().filter(move |(name, content)| is_there(name, content));
        files.map(|(name, content)| (content.variable.as_str(), name.as_str(), content.bytes.as_slice()))
    }

    /// Returns the number of variables with a limited lifetime, and the earliest expiry time.
    pub fn expiry(&self) -> Option<(usize, Timestamp)> {
        let times = || self.entries.values().filter_map(Entry::expires);
        times().min().map(|first| (times().count(), first))
    }
}

fn join(parts: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    parts.collect::<Vec<_>>().join(&b':')
}

fn is_file_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=FILE_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(fits)
}

#[cfg(test)]
mod tests;
