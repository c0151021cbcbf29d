//! Writing a description.

use crate::{Description, SettingDescription};

impl Description {
    /// `name` is of `a-z 0-9 -`, `summary` one line.
    pub fn new(name: &str, version: &str, summary: &str) -> Self {
        Self { name: name.to_owned(), version: version.to_owned(), summary: summary.to_owned(), settings: Vec::new() }
    }

    /// A setting the plugin knows: what it does, its form, and its default.
    #[must_use]
    pub fn setting(mut self, key: &str, summary: &str) -> Self {
        self.settings.push(SettingDescription { key: key.to_owned(), summary: summary.to_owned() });
        self
    }
}
