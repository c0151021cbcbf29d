//! The environment as it grows, step by step, from nothing; every variable knows each step that touched it: pure.
//!
//! What a step took away stays known by its name, with who did it and why; its value is forgotten at once, since what nobody gets
//! is to be kept nowhere. The contents of files are here until they are written, and in no view.

mod entry;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use agentd_api::environment::{FileView, ScriptRun, VariableView};
use agentd_keeper::protocol::Attributes;
use agentd_plugins::{Change, Effect};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::scope;
use entry::{Entry, Step, What};
pub(crate) use view::without_secrets;

/// A session's environment with its provenance. Names are in order, so that the same content is the same digest.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    entries: BTreeMap<String, Entry>,
    /// Secrets that a stored environment had and that could not be had again.
    missing: BTreeMap<String, VariableView>,
    /// Where the session's files are.
    directory: PathBuf,
    /// The files that were given, by name.
    files: BTreeMap<String, Content>,
    /// The steps that are agentd's own: what they gave is the user's, and what any other gave is a plugin's.
    own: Arc<BTreeSet<String>>,
    pub(crate) background: Background,
    /// What the agent inherits besides the variables, of the login shell.
    pub(crate) attributes: Option<Attributes>,
    /// The scripts that were sourced for it, in order.
    pub(crate) scripts: Vec<ScriptRun>,
}

/// What the login shell and the scripts had started in the background when they ended, and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Background {
    pub(crate) killed: u32,
    pub(crate) left: u32,
}

/// A file's content, who gave it, and the variable that has its path.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    provider: String,
    variable: String,
    bytes: Vec<u8>,
}

/// Names only: values may be secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.pairs().map(|(name, _)| name)).finish()
    }
}

/// A change that no environment can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidChange {
    #[error("the variable name {name:?} is empty or has a `=` or NUL in it")]
    Name { name: String },
    #[error("the value of {name:?} has a NUL byte in it")]
    Value { name: String },
    #[error("{file:?} is no name of a file: 1 to {FILE_NAME} of A-Z a-z 0-9 . _ -, not beginning with a dot")]
    FileName { file: String },
    #[error("the file {file:?} is given by {first:?} and by {second:?}, and a session has one file of a name")]
    FileTwice { file: String, first: String, second: String },
}

/// The longest name of a file.
const FILE_NAME: usize = 64;

impl Environment {
    /// One whose files are to lie in this directory.
    pub(crate) fn with_files_in(directory: PathBuf) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Says which steps are agentd's own.
    pub(crate) fn with_own_steps(self, own: Arc<BTreeSet<String>>) -> Self {
        Self { own, ..self }
    }

    fn is_own(&self, step: &str) -> bool {
        self.own.contains(step) || scope::is_step(step)
    }

    /// The variables whose values plugins gave.
    pub(crate) fn foreign(&self) -> Vec<String> {
        let of_plugin = |entry: &Entry| entry.last().is_some_and(|step| !self.is_own(&step.provider));
        let entries = self.entries.iter().filter(|(_, entry)| entry.value().is_some() && of_plugin(entry));
        entries.map(|(name, _)| name.clone()).collect()
    }

    /// What a variable would be if no plugin had touched it.
    pub(crate) fn without_plugins(&self, name: &str) -> Option<&[u8]> {
        let mut steps = self.entries.get(name)?.history.iter().rev();
        steps.find(|step| self.is_own(&step.provider))?.what.value()
    }

    /// Names and values for a plugin: without the secrets that it is not granted.
    pub(crate) fn variables_for(&self, granted: impl Fn(&str) -> bool) -> Vec<(String, Vec<u8>)> {
        let hidden = |name: &str| self.entries.get(name).is_some_and(|entry| entry.is_secret(name)) && !granted(name);
        let given = self.pairs().filter(|(name, _)| !hidden(name));
        given.map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }

    /// Applies changes that hold without a limit, all or none.
    pub(crate) fn apply(&mut self, provider: &str, place: u32, changes: Vec<Change>) -> Result<(), InvalidChange> {
        self.apply_at(provider, place, changes, Timestamp::UNIX_EPOCH)
    }

    /// Applies changes, all or none. What holds for a limited time does so from `now`.
    pub(crate) fn apply_at(
        &mut self,
        provider: &str,
        place: u32,
        changes: Vec<Change>,
        now: Timestamp,
    ) -> Result<(), InvalidChange> {
        self.check(provider, &changes)?;
        for Change { effect, origin, valid_for } in changes {
            let own = valid_for.map(|span| now.saturating_add(span).unwrap_or(Timestamp::MAX));
            let (name, expires, what) = match effect {
                Effect::Set { name, value } => (name, own, What::Set(value)),
                Effect::Unset { name, reason } => (name, own, What::Removed(reason)),
                Effect::Prepend { name, entry } => {
                    let list = self.list_without(&name, &entry);
                    let value = join(std::iter::once(entry).chain(list));
                    let expires = self.sooner(&name, own);
                    (name, expires, What::Set(value))
                }
                Effect::Append { name, entry } => {
                    let list = self.list_without(&name, &entry);
                    let value = join(list.into_iter().chain(std::iter::once(entry)));
                    let expires = self.sooner(&name, own);
                    (name, expires, What::Set(value))
                }
                Effect::Secret { name, secret } => (name, own, What::Secret { name: secret, value: None }),
                Effect::File { name, file_name, content } => {
                    let file = FileView {
                        size: content.len().try_into().unwrap_or(u64::MAX),
                        digest: hex(&Sha256::digest(&content)),
                    };
                    let path = self.directory.join(&file_name).into_os_string().into_vec();
                    let content = Content { provider: provider.to_owned(), variable: name.clone(), bytes: content };
                    self.files.insert(file_name, content);
                    (name, own, What::File { path, file })
                }
            };
            // Of a secret its name says where it is from.
            let origin = if let What::Secret { name, .. } = &what { Some(name.clone()) } else { origin };
            let step = Step { provider: provider.to_owned(), place, origin: origin.map(PathBuf::from), expires, what };
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

    /// A list holds no longer than what it was made of.
    fn sooner(&self, name: &str, own: Option<Timestamp>) -> Option<Timestamp> {
        own.into_iter().chain(self.entries.get(name).and_then(Entry::expires)).min()
    }

    /// Whether a variable that began with this value is still there, or a later step made something of it. One that a step took away is
    /// not, even where another step set it again. A function counts that only the agent is not given.
    pub(crate) fn has_kept(&self, name: &str, value: &[u8]) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.has_kept(value))
    }

    /// Every name that some step touched.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.entries.get(name).and_then(Entry::value)
    }

    pub(crate) fn len(&self) -> usize {
        self.pairs().count()
    }

    /// Names and values, by name.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.value()?)))
    }

    pub(crate) fn dropped(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(_, entry)| entry.value().is_none()).map(|(name, _)| name.as_str())
    }

    /// Names and values of the secrets.
    pub(crate) fn secret_pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries
            .iter()
            .filter(|(name, entry)| entry.is_secret(name))
            .filter_map(|(name, entry)| Some((name.as_str(), entry.value()?)))
    }

    /// The same, to be kept.
    pub(crate) fn variables(&self) -> Vec<(String, Vec<u8>)> {
        self.pairs().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }

    /// The secrets of the configuration that providers gave, with who did: their values are to be filled in.
    pub(crate) fn named_secrets(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.values().filter_map(|entry| Some((entry.named()?, entry.last()?.provider.as_str())))
    }

    /// Gives named secrets their values; a variable whose secret has none goes.
    pub(crate) fn fill<'a>(&mut self, value_of: impl Fn(&str) -> Option<&'a [u8]>) {
        for entry in self.entries.values_mut() {
            let value = entry.named().and_then(&value_of);
            entry.fill(value);
        }
    }

    /// The files that a variable has the path of: that variable, their names, their contents.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str, &[u8])> {
        let is_there = |name: &str, content: &Content| {
            let entry = self.entries.get(&content.variable).filter(|entry| entry.file().is_some());
            let path = self.directory.join(name).into_os_string().into_vec();
            entry.and_then(Entry::value) == Some(path.as_slice())
        };
        let files = self.files.iter().filter(move |(name, content)| is_there(name, content));
        files.map(|(name, content)| (content.variable.as_str(), name.as_str(), content.bytes.as_slice()))
    }

    /// How many variables hold for a limited time, and until when the first of them does.
    pub(crate) fn expiry(&self) -> Option<(usize, Timestamp)> {
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

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

#[cfg(test)]
mod tests;
