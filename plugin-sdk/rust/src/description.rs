//! Writing a description.

use crate::{Capability, CheckDescription, Description, Moment, SettingDescription, Want};

impl Description {
    /// `name` is of `a-z 0-9 -`, `summary` one line.
    pub fn new(name: &str, version: &str, summary: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            summary: summary.to_owned(),
            settings: Vec::new(),
            wants: Vec::new(),
        }
    }

    /// A setting the plugin knows: what it does, its form, and its default. The host refuses every setting that is not described.
    #[must_use]
    pub fn setting(self, key: &str, summary: &str) -> Self {
        self.described(key, summary, false)
    }

    /// A setting without a default: the host refuses a configuration that does not have it.
    #[must_use]
    pub fn required_setting(self, key: &str, summary: &str) -> Self {
        self.described(key, summary, true)
    }

    /// A capability that the plugin uses, how far, in the grammar of a grant, and what for. A call that no want covers is refused,
    /// granted or not; an import without a want keeps the plugin from being loaded.
    #[must_use]
    pub fn wants<P: Into<String>>(
        mut self,
        capability: Capability,
        patterns: impl IntoIterator<Item = P>,
        reason: &str,
    ) -> Self {
        let patterns = patterns.into_iter().map(Into::into).collect();
        self.wants.push(Want { capability, patterns, reason: reason.to_owned() });
        self
    }

    /// The user's login shell, which has no patterns.
    #[must_use]
    pub fn wants_login_shell(self, reason: &str) -> Self {
        self.wants(Capability::ShellEnvironment, [""; 0], reason)
    }

    /// Of a prerequisite: when it is checked where the configuration does not say.
    pub fn checked(self, moment: Moment) -> CheckDescription {
        CheckDescription { plugin: self, moment }
    }

    fn described(mut self, key: &str, summary: &str, required: bool) -> Self {
        self.settings.push(SettingDescription { key: key.to_owned(), summary: summary.to_owned(), required });
        self
    }
}
