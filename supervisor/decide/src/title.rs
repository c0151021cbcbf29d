//! The title of a session.

use serde::{Deserialize, Serialize};

/// Sources of a session's title.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Title {
    /// The title that a caller set.
    pub set: Option<String>,
    /// The title that the agent reported (ACP `session_info_update`).
    pub agent: Option<String>,
    /// The beginning of the session's first prompt.
    pub prompt: Option<String>,
}

impl Title {
    /// Maximum number of characters of a title that is taken from elsewhere.
    const LONGEST: usize = 80;

    /// Returns the title of the first source that has one.
    pub fn shown(&self) -> Option<&str> {
        [&self.set, &self.agent, &self.prompt].into_iter().find_map(Option::as_deref)
    }

    /// Returns the first line of a text as a title: without control characters, and shortened.
    pub(crate) fn of(text: &str) -> Option<String> {
        let line = text.trim().lines().next().unwrap_or_default();
        let words = line.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
        let line = words.collect::<Vec<_>>().join(" ");
        let cut = line.char_indices().nth(Self::LONGEST).map(|(end, _)| end);
        let title = cut.map_or(line.clone(), |end| format!("{}…", line[..end].trim_end()));
        (!title.is_empty()).then_some(title)
    }
}
