//! The names of a launch on its place.

use std::path::{Path, PathBuf};

/// Beginning of the names of launches, jobs, containers and pods.
pub const PREFIX: &str = "agentd-";

/// Names and facts of one launch.
#[derive(Debug, Clone, Copy)]
pub struct LaunchNames<'a> {
    /// Id of the session, or a word for a check of the place.
    pub session: &'a str,
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// Working directory of the session. Only the kind `command` uses it.
    pub directory: &'a Path,
    /// Content of the file [`Place::template`](crate::Place::template), for a place with a template.
    pub template: Option<&'a str>,
    /// Content of the file [`Place::keeper_file`](crate::Place::keeper_file), for a place that sends it.
    pub keeper: Option<&'a KeeperCopy>,
}

/// Content of a file with agentd-keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperCopy {
    /// SHA-256 of the content in hexadecimal digits.
    pub sha256: String,
    /// Size in bytes.
    pub bytes: u64,
}

impl<'a> LaunchNames<'a> {
    /// Makes the names of a launch that runs already. Its directory and its files are not known.
    pub fn new(session: &'a str, launch: u64) -> Self {
        Self { session, launch, directory: Path::new("/"), template: None, keeper: None }
    }
}

impl LaunchNames<'_> {
    /// Returns the name of the launch at its engine.
    pub fn name(&self) -> String {
        format!("{PREFIX}{}-{}", self.session, self.launch)
    }
}

/// Splits the name of a launch into the session and the number of the launch. Returns `None` for other names.
pub fn session_and_launch(name: &str) -> Option<(&str, u64)> {
    let (session, launch) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
    let is_number = launch.bytes().all(|byte| byte.is_ascii_digit()) && !launch.starts_with('0');
    (!session.is_empty() && is_number).then(|| Some((session, launch.parse().ok()?)))?
}

/// Reason why no client can be built for a launch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The template of a pod was not read.
    #[error("the template {0:?} of the pod was not read")]
    NoTemplate(PathBuf),
    /// The template of a pod is no pod.
    #[error("the template {path:?} is no pod: {detail}")]
    Template {
        /// Path of the template.
        path: PathBuf,
        /// Mistake of the template.
        detail: String,
    },
    /// The directory contains bytes that are no UTF-8.
    #[error("the directory {0:?} is not UTF-8, and the client of the place gets it as an argument")]
    Directory(PathBuf),
    /// The file with agentd-keeper was not read.
    #[error("the file {0:?} with agentd-keeper was not read")]
    NoKeeper(PathBuf),
}

#[cfg(test)]
pub(crate) fn launch_1() -> LaunchNames<'static> {
    LaunchNames { directory: Path::new("/work/a b"), ..LaunchNames::new("k1-x", 3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_back_its_session_and_its_launch() {
        let name = launch_1().name();
        assert_eq!(name, "agentd-k1-x-3");
        assert_eq!(session_and_launch(&name), Some(("k1-x", 3)));
        for other in ["agentd-k1", "agentd--1", "agentd-k1-01", "agentd-k1-", "agentd-k1-x", "k1-3", "agentd-k1-+1", ""]
        {
            assert_eq!(session_and_launch(other), None, "{other}");
        }
    }
}
