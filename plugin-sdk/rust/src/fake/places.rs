//! The directories that replace the placeholders of paths.

/// The directories for `{cwd}`, `{session}`, `{config}` and `{home}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The session's working directory.
    pub cwd: String,
    /// The session's state directory.
    pub session: String,
    /// The user's configuration directory of agentd.
    pub config: String,
    /// The user's home directory.
    pub home: String,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            cwd: "/work".to_owned(),
            session: "/home/demo/.local/state/agentd/sessions/s1".to_owned(),
            config: "/home/demo/.config/agentd".to_owned(),
            home: "/home/demo".to_owned(),
        }
    }
}

impl Places {
    /// Replaces the placeholder of a path or of a pattern of paths.
    pub(crate) fn resolve(&self, path: &str) -> String {
        let places =
            [("{cwd}", &self.cwd), ("{session}", &self.session), ("{config}", &self.config), ("{home}", &self.home)];
        let found = places.iter().find_map(|(placeholder, place)| Some((place, path.strip_prefix(placeholder)?)));
        match found {
            Some((place, rest)) if rest.is_empty() || rest.starts_with('/') => format!("{place}{rest}"),
            _ => path.to_owned(),
        }
    }
}
