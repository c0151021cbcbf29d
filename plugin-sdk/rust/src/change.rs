//! Writing a change.

use crate::{Assignment, Change, PathEntry, Removal};

impl Change {
    /// The variable gets this value.
    pub fn set(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self::Set(Assignment { name: name.into(), value: value.into(), origin: None })
    }

    /// The variable goes, or, where it is not in the environment so far, was left out of what the plugin captured.
    pub fn unset(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unset(Removal { name: name.into(), reason: Some(reason.into()), origin: None })
    }

    /// An entry at the front of a colon-separated list.
    pub fn prepend(name: impl Into<String>, entry: impl Into<Vec<u8>>) -> Self {
        Self::Prepend(PathEntry { name: name.into(), entry: entry.into() })
    }

    /// An entry at the end of a colon-separated list.
    pub fn append(name: impl Into<String>, entry: impl Into<Vec<u8>>) -> Self {
        Self::Append(PathEntry { name: name.into(), entry: entry.into() })
    }

    /// Names the file that a set or an unset came from.
    #[must_use]
    pub fn from_file(mut self, path: &str) -> Self {
        match &mut self {
            Self::Set(Assignment { origin, .. }) | Self::Unset(Removal { origin, .. }) => {
                *origin = Some(path.to_owned());
            }
            Self::Prepend(_) | Self::Append(_) => {}
        }
        self
    }

    /// The variable that is changed.
    pub fn name(&self) -> &str {
        match self {
            Self::Set(assignment) => &assignment.name,
            Self::Unset(removal) => &removal.name,
            Self::Prepend(entry) | Self::Append(entry) => &entry.name,
        }
    }
}
