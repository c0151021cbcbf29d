//! Constructors of descriptions.

use crate::{Capability, CheckDescription, Description, Moment, SettingDescription, Want};

impl Description {
    /// Makes a description. `name` consists of `a-z 0-9 -`, and `summary` is one line.
    pub fn new(name: &str, version: &str, summary: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            summary: summary.to_owned(),
            settings: Vec::new(),
            wants: Vec::new(),
        }
    }

    /// Adds a setting with its effect, format and default. The host refuses settings that are not described.
    #[must_use]
    pub fn setting(self, key: &str, summary: &str) -> Self {
        self.described(key, summary, false)
    }

    /// Adds a setting without a default. The host refuses a configuration that lacks the setting.
    #[must_use]
    pub fn required_setting(self, key: &str, summary: &str) -> Self {
        self.described(key, summary, true)
    }

    /// Adds a want: a capability, patterns in the grammar of a grant, and a reason.
    ///
    /// The host refuses a call that no want covers, even if it is granted. It does not load a plugin that
    /// imports a capability without a want.
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

    /// Adds a want of the user's login shell, which has no patterns.
    #[must_use]
    pub fn wants_login_shell(self, reason: &str) -> Self {
        self.wants(Capability::ShellEnvironment, [""; 0], reason)
    }

    /// Makes the description of a prerequisite. `moment` applies unless the configuration sets another one.
    pub fn checked(self, moment: Moment) -> CheckDescription {
        CheckDescription { plugin: self, moment }
    }

    fn described(mut self, key: &str, summary: &str, required: bool) -> Self {
        self.settings.push(SettingDescription { key: key.to_owned(), summary: summary.to_owned(), required });
        self
    }
}
