//! Constructors of changes.

use std::time::Duration;

use crate::{Change, Effect, FileContent, PathEntry, Removal, SecretValue, Variable};

impl Change {
    /// Makes a change that sets the variable.
    pub fn set(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Effect::Set(Variable::new(name, value)).into()
    }

    /// Makes a change that removes the variable. If the environment does not have the variable, the change says
    /// that the plugin left it out of its capture.
    pub fn unset(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Effect::Unset(Removal { name: name.into(), reason: Some(reason.into()) }).into()
    }

    /// Makes a change that puts an entry at the front of a colon-separated list. An existing equal entry is
    /// moved.
    pub fn prepend(name: impl Into<String>, entry: impl Into<Vec<u8>>) -> Self {
        Effect::Prepend(PathEntry { name: name.into(), entry: entry.into() }).into()
    }

    /// Makes a change that puts an entry at the end of a colon-separated list. An existing equal entry is
    /// moved.
    pub fn append(name: impl Into<String>, entry: impl Into<Vec<u8>>) -> Self {
        Effect::Append(PathEntry { name: name.into(), entry: entry.into() }).into()
    }

    /// Makes a change that sets the variable to a secret of the configuration. The plugin never sees the value.
    /// The grant and the want are those of [`crate::secret::read`].
    pub fn secret(name: impl Into<String>, secret: impl Into<String>) -> Self {
        Effect::Secret(SecretValue { name: name.into(), secret: secret.into() }).into()
    }

    /// Makes a change that writes a file for the session and sets the variable to its path. The session's agent
    /// can read the file. `file_name` is 1 to 64 of `A-Z a-z 0-9 . _ -` and does not begin with a dot.
    pub fn file(name: impl Into<String>, file_name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Effect::File(FileContent { name: name.into(), file_name: file_name.into(), content: content.into() }).into()
    }

    /// Names the file that the change came from, for users who ask for the source of a value.
    #[must_use]
    pub fn from_file(mut self, path: impl Into<String>) -> Self {
        self.origin = Some(path.into());
        self
    }

    /// Sets how long the change is valid. The host uses at least one second. It calls the provider again before
    /// the time ends.
    #[must_use]
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Returns the name of the variable.
    pub fn name(&self) -> &str {
        match &self.effect {
            Effect::Set(variable) => &variable.name,
            Effect::Unset(removal) => &removal.name,
            Effect::Prepend(entry) | Effect::Append(entry) => &entry.name,
            Effect::Secret(secret) => &secret.name,
            Effect::File(file) => &file.name,
        }
    }
}

impl From<Effect> for Change {
    fn from(effect: Effect) -> Self {
        Self { effect, origin: None, valid_for: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_effect_names_its_variable_and_takes_an_origin_and_a_time() {
        let changes = [
            Change::set("A", "1"),
            Change::unset("A", "why"),
            Change::prepend("A", "/x"),
            Change::append("A", "/x"),
            Change::secret("A", "token"),
            Change::file("A", "a.json", "{}"),
        ];
        for change in changes {
            assert_eq!((change.name(), &change.origin, change.valid_for), ("A", &None, None));
            let change = change.from_file("/a").valid_for(Duration::from_mins(1));
            assert_eq!((change.origin.as_deref(), change.valid_for), (Some("/a"), Some(60_000)));
        }
    }
}
