//! Git repositories of a session: the requested ones, and the state of each.

use std::num::NonZeroU32;
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A repository that a session needs below its directory: a clone of a remote, or a worktree of a local repository
/// (git-worktree(1)).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RepositorySpec {
    /// Address to clone: an absolute path, `user@host:path`, or a URL with `https`, `http`, `ssh`, `git` or `file`
    /// (git-clone(1), "GIT URLS"). Never contains a password. Absent for a worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Branch that is checked out. Default: the default branch of the remote, or a new branch `agentd/SESSION` of a
    /// worktree. A worktree's branch is created if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Name, unique in the session. Default: the last part of `url`, or of `path` for a worktree, without `.git`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// For a clone: its path relative to the session's directory. Default: the name. For a worktree: the absolute path
    /// of the local repository, whose tree is created at the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Whether the repository is a worktree of a local repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub worktree: bool,
    /// Number of commits of the history that are cloned. Default: all. A clone that is there already keeps its history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<NonZeroU32>,
    /// Named secret with the password or token for an `https` or `http` address: `[secrets.NAME]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Reason why a requested repository is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRepository {
    /// Neither a remote nor a local repository is named, or both are.
    #[error("a repository has either a `url`, or `worktree` and the `path` of a local repository")]
    Source,
    /// The address is of a kind that agentd does not clone.
    #[error(
        "cannot clone from {0:?}: an address is an absolute path, user@host:path, or a URL with https, http, ssh, git \
         or file"
    )]
    Url(String),
    /// The address contains a password. The text never does.
    #[error(
        "the address of the repository {0:?} contains a password, which would be stored in clear; use a credential \
         helper of git, or `secret` with the name of a declared secret"
    )]
    Password(String),
    /// The name cannot be a directory's name.
    #[error(
        "the repository name {0:?} is not valid: it has 1 to 100 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`, \
         and begins with a letter, a digit or `_`"
    )]
    Name(String),
    /// The path of a clone leads out of the session's directory, or is this directory.
    #[error("the path {0:?} of a clone must be relative to the session's directory and lead below it")]
    Place(PathBuf),
    /// The path of a worktree's repository is not absolute.
    #[error("the path {0:?} of a worktree's repository must be absolute")]
    Local(PathBuf),
    /// The branch has a form that no branch has.
    #[error("{0:?} is not the name of a branch")]
    Branch(String),
    /// A field does not fit the kind of repository.
    #[error("`{0}` is for repositories that are cloned")]
    ForClone(&'static str),
    /// The address names a user, which may be a token.
    #[error(
        "the address of the repository at {0:?} names a user, which can be a token and would be stored in clear; leave \
         the user out: a credential helper of git, or `secret`, has the login"
    )]
    User(String),
    /// A text contains a control character.
    #[error("the `{0}` of a repository contains a control character")]
    Control(&'static str),
    /// A secret can only be sent to a server.
    #[error("`secret` is for addresses with https or http")]
    Secret,
    /// Two repositories have one name or one place.
    #[error("two repositories of the session have the {what} {text:?}; give one of them a `name` or a `path`")]
    Twice { what: &'static str, text: String },
}

/// Maximum number of bytes of a repository's name.
const LONGEST_NAME: usize = 100;
/// Users of web addresses that are no secrets: servers expect them beside a token.
const USERS: [&str; 5] = ["git", "oauth2", "token", "x-access-token", "x-token-auth"];
/// Schemes of the addresses that are cloned.
const SCHEMES: [&str; 5] = ["https", "http", "ssh", "git", "file"];

impl RepositorySpec {
    /// Makes the specification of a clone.
    pub fn clone_of(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::default() }
    }

    /// Makes the specification of a worktree of a local repository.
    pub fn worktree_of(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), worktree: true, ..Self::default() }
    }

    /// Returns the name: the given one, or the last part of the source.
    pub fn name(&self) -> String {
        let source = || match &self.url {
            Some(url) => url.clone(),
            None => self.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        };
        self.name.clone().unwrap_or_else(|| {
            let source = source();
            let source = source.trim_end_matches('/');
            let source = source.strip_suffix("/.git").unwrap_or(source);
            let last = source.rsplit(['/', ':']).next().unwrap_or_default();
            last.strip_suffix(".git").unwrap_or(last).to_owned()
        })
    }

    /// Returns the place below the session's directory.
    pub fn place(&self) -> PathBuf {
        match &self.path {
            Some(path) if !self.worktree => path.components().filter(|part| *part != Component::CurDir).collect(),
            _ => self.name().into(),
        }
    }

    /// Returns the local repository of a worktree.
    pub fn local(&self) -> Option<&Path> {
        self.path.as_deref().filter(|_| self.worktree)
    }

    /// Checks this repository alone.
    ///
    /// # Errors
    ///
    /// The first field that is not valid.
    pub fn check(&self) -> Result<(), InvalidRepository> {
        match (&self.url, self.worktree, &self.path) {
            (Some(url), false, _) => check_url(url, self.secret.is_some())?,
            (None, true, Some(path)) if !path.is_absolute() => return Err(InvalidRepository::Local(path.clone())),
            (None, true, Some(_)) => {
                let given = [("depth", self.depth.is_some()), ("secret", self.secret.is_some())];
                if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
                    return Err(InvalidRepository::ForClone(field));
                }
            }
            _ => return Err(InvalidRepository::Source),
        }
        let has_control = |text: &str| text.chars().any(char::is_control);
        if self.path.as_ref().is_some_and(|path| path.to_str().is_none_or(has_control)) {
            return Err(InvalidRepository::Control("path"));
        }
        let name = self.name();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !first || name.len() > LONGEST_NAME || !name.bytes().all(is_plain) {
            return Err(InvalidRepository::Name(name));
        }
        let place = self.place();
        let is_below = place.components().all(|part| matches!(part, Component::Normal(name) if name != ".git"));
        if place.as_os_str().is_empty() || !is_below {
            return Err(InvalidRepository::Place(place));
        }
        match &self.branch {
            Some(branch) if !is_branch(branch) => Err(InvalidRepository::Branch(branch.clone())),
            _ => Ok(()),
        }
    }
}

/// Checks all repositories of a session.
///
/// # Errors
///
/// The first repository that is not valid, or has the name or the place of another.
pub fn check(repositories: &[RepositorySpec]) -> Result<(), InvalidRepository> {
    for (at, repository) in repositories.iter().enumerate() {
        repository.check()?;
        let (name, place) = (repository.name(), repository.place());
        for other in &repositories[..at] {
            if other.name() == name {
                return Err(InvalidRepository::Twice { what: "name", text: name });
            }
            let other = other.place();
            if other.starts_with(&place) || place.starts_with(&other) {
                return Err(InvalidRepository::Twice { what: "place", text: place.display().to_string() });
            }
        }
    }
    Ok(())
}

fn check_url(url: &str, has_secret: bool) -> Result<(), InvalidRepository> {
    // A path may contain spaces.
    let is_local = url.starts_with('/') || url.starts_with("file://");
    let is_odd = |char: char| char.is_control() || (char == ' ' && !is_local);
    let is_plain = !url.starts_with('-') && !url.contains(is_odd);
    // An unreadable address is not quoted, since it may contain a password.
    let shown = || url.split(['@', '?', '#']).next().filter(|_| !url.contains('@')).unwrap_or("(hidden)").to_owned();
    if !is_plain || url.len() > 2000 {
        return Err(InvalidRepository::Url(shown()));
    }
    let (scheme, authority) = match url.split_once("://") {
        Some((scheme, rest)) => (scheme, rest.split(['/', '?', '#']).next().unwrap_or_default()),
        // In `user:password@host:path` the colon of the host comes after the `@`.
        None => match url.split_once('@') {
            Some((user, rest)) if user.contains(':') && rest.contains(':') => ("", &url[..=user.len()]),
            _ => ("", url.split_once(':').map_or("", |(host, _)| host)),
        },
    };
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    // A password may contain an unescaped slash, so a port that is no number is taken for one.
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    let is_bracketed = authority.ends_with(']');
    let odd_port = !user.contains(':') && !is_bracketed && port.bytes().any(|byte| !byte.is_ascii_digit());
    let is_web = ["https", "http"].contains(&scheme);
    if user.contains(':') || (is_web && (url.contains(['?', '#']) || odd_port)) {
        let host = url.rsplit('@').next().unwrap_or_default().split(['?', '#']).next().unwrap_or_default();
        return Err(InvalidRepository::Password(host.to_owned()));
    }
    if is_web && !user.is_empty() && !USERS.contains(&user) {
        return Err(InvalidRepository::User(authority.rsplit('@').next().unwrap_or_default().to_owned()));
    }
    let is_known = if scheme.is_empty() {
        // `host:path`; a colon after a slash belongs to a path, and `helper::address` names a program.
        let (host, path) = url.split_once(':').unwrap_or_default();
        url.starts_with('/') || (!host.is_empty() && !host.contains('/') && !path.is_empty() && !path.starts_with(':'))
    } else {
        SCHEMES.contains(&scheme) && !url.ends_with("://")
    };
    match is_known {
        false => Err(InvalidRepository::Url(shown())),
        true if has_secret && !is_web => Err(InvalidRepository::Secret),
        true => Ok(()),
    }
}

/// Reports whether a branch may have this name (git-check-ref-format(1)).
fn is_branch(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_lock = Path::new(part).extension().is_some_and(|extension| extension == "lock");
        !part.is_empty() && !part.starts_with('.') && !part.ends_with('.') && !is_lock
    };
    let is_odd = |char: char| char.is_control() || " ~^:?*[\\\u{7f}".contains(char);
    name.len() <= 244
        && !name.starts_with('-')
        && name != "@"
        && name != "HEAD"
        && !name.starts_with("refs/")
        && !name.contains(is_odd)
        && !name.contains("..")
        && !name.contains("@{")
        && name.split('/').all(is_part)
}

/// Action on a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RepositoryAction {
    /// Clones the remote.
    Clone,
    /// Fetches, and resets a clone of an earlier session to the branch.
    Reset,
    /// Keeps everything that is there, and updates the remote's URL.
    Keep,
    /// Creates a worktree of a local repository.
    Worktree,
    /// Removes the clone or the worktree.
    Remove,
    /// An action newer than this reader.
    #[serde(other)]
    Unknown,
}

/// State of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RepositoryState {
    /// agentd has not begun with it, or is about to try again.
    Pending,
    /// The action is in progress.
    Working,
    /// The repository is there.
    Ready,
    /// The action failed. agentd tries again after a pause, and at the next launch.
    Failed,
    /// The repository was to be removed and has uncommitted or unpushed work, so it stays.
    Retained,
    /// The repository is removed.
    Removed,
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

impl RepositoryState {
    /// Returns the state's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Working => "working",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Retained => "retained",
            Self::Removed => "removed",
            Self::Unknown => "unknown",
        }
    }
}

/// Data of the record `repository.changed`. The first record of an action has the state `working` and is written before
/// the action begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepositoryChanged {
    /// The repository as the specification has it, with its name.
    pub repository: RepositorySpec,
    /// Absolute path of its working tree.
    pub place: PathBuf,
    /// The action.
    pub action: RepositoryAction,
    /// Progress of the action.
    pub state: RepositoryState,
    /// Branch that is checked out. Absent for a detached head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Commit that is checked out, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// One CamelCase word for a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Description of the result for people. Never contains a credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A repository of a session, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepositoryView {
    /// Name, unique in the session.
    pub name: String,
    /// Absolute path of its working tree.
    pub place: PathBuf,
    /// Address that it is cloned from. Absent for a worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The local repository of a worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree_of: Option<PathBuf>,
    /// State.
    pub state: RepositoryState,
    /// The last action. Absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<RepositoryAction>,
    /// Branch that is checked out; before the clone, the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Commit that is checked out, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Time at which this session cloned, reset or created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_at: Option<Timestamp>,
    /// Number of commits that are in no branch of a remote; of a worktree, commits that are in no branch at all. Only
    /// from `GET …/repos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// Whether files are changed or new without a commit. Only from `GET …/repos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
    /// Description of the work that a removal would lose. Only from `GET …/repos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<String>,
    /// Why the last action failed, or what happened to earlier work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The response of `GET /v1/sessions/{session}/repos`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepositoryList {
    /// The repositories, in the order of the specification; those that are to be removed come last.
    pub repos: Vec<RepositoryView>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_last_part_of_the_source() {
        for (url, name) in [
            ("https://github.com/o/web.git", "web"),
            ("https://github.com/o/web/", "web"),
            ("git@github.com:o/web.git", "web"),
            ("host:web", "web"),
            ("/srv/git/web", "web"),
            ("/srv/my git/web", "web"),
            ("/srv/web/.git", "web"),
            ("file:///srv/web.git/", "web"),
        ] {
            let repository = RepositorySpec::clone_of(url);
            assert_eq!((repository.check(), repository.name().as_str()), (Ok(()), name), "{url}");
            assert_eq!(repository.place(), Path::new(name));
        }
        let tree = RepositorySpec::worktree_of("/src/app");
        assert_eq!((tree.check(), tree.name().as_str(), tree.place()), (Ok(()), "app", "app".into()));
    }

    #[test]
    fn an_address_that_runs_a_program_or_contains_a_password_is_refused() {
        for url in [
            "ext::sh -c id",
            "fd::3",
            "https::x",
            "-u/x",
            "relative/path",
            "ftp://host/x",
            "https://",
            "",
            "host:",
            ":path",
            "a b",
        ] {
            let refused = RepositorySpec { name: Some("x".to_owned()), ..RepositorySpec::clone_of(url) }.check();
            assert!(matches!(refused, Err(InvalidRepository::Url(_))), "{url}: {refused:?}");
        }
        for url in [
            "https://kim:hunter2@host/x",
            "https://kim:hun/ter2@host/x",
            "https://host/x?private_token=hunter2",
            "ssh://kim:hunter2@host/x",
            "kim:hunter2@host:x",
        ] {
            let refused = RepositorySpec::clone_of(url).check().unwrap_err().to_string();
            assert!(!refused.contains("hunter2") && !refused.contains("ter2"), "{url}: {refused}");
        }
        let user = RepositorySpec::clone_of("https://sometoken12345@host:8443/x").check();
        assert_eq!(user, Err(InvalidRepository::User("host:8443".to_owned())));
        for url in ["https://git@host:8443/x", "ssh://git@[::1]:22/x", "https://[::1]:80/x", "git@host:o/x"] {
            assert_eq!(RepositorySpec::clone_of(url).check(), Ok(()), "{url}");
        }
    }

    #[test]
    fn fields_are_checked_against_the_kind() {
        let clone = RepositorySpec::clone_of("/srv/web");
        let tree = RepositorySpec::worktree_of("/src/app");
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(RepositorySpec { worktree: true, ..clone.clone() }.check(), Err(InvalidRepository::Source));
        assert_eq!(RepositorySpec::default().check(), Err(InvalidRepository::Source));
        assert_eq!(RepositorySpec::worktree_of("app").check(), Err(InvalidRepository::Local("app".into())));
        let deep = RepositorySpec { depth: NonZeroU32::new(1), ..tree.clone() };
        assert_eq!(deep.check(), Err(InvalidRepository::ForClone("depth")));
        assert_eq!(RepositorySpec { secret: name("x"), ..clone.clone() }.check(), Err(InvalidRepository::Secret));
        for wrong in ["", "..", ".hidden", "-x", "a/b", "a b"] {
            let named = RepositorySpec { name: name(wrong), ..tree.clone() };
            assert_eq!(named.check(), Err(InvalidRepository::Name(wrong.to_owned())));
        }
        for path in ["", ".", "..", "../x", "/x", "a/../../x", "a/.git"] {
            let placed = RepositorySpec { path: Some(path.into()), ..clone.clone() };
            assert!(matches!(placed.check(), Err(InvalidRepository::Place(_))), "{path}");
        }
        assert_eq!(RepositorySpec { path: Some("./a/b".into()), ..clone.clone() }.place(), Path::new("a/b"));
        for branch in ["-x", "a..b", "a b", "a~", "/a", "a/", "a.lock", ".a", "@", "HEAD", "refs/heads/a", "a@{1}"] {
            let of = RepositorySpec { branch: name(branch), ..clone.clone() };
            assert_eq!(of.check(), Err(InvalidRepository::Branch(branch.to_owned())));
        }
        assert_eq!(RepositorySpec { branch: name("feature/a-1"), ..clone }.check(), Ok(()));
    }

    #[test]
    fn names_and_places_are_unique() {
        let at = |name: &str, path: &str| RepositorySpec {
            name: Some(name.to_owned()),
            path: Some(path.into()),
            ..RepositorySpec::clone_of("/srv/web")
        };
        assert_eq!(check(&[at("a", "x"), at("b", "y")]), Ok(()));
        let twice = |what, text: &str| Err(InvalidRepository::Twice { what, text: text.to_owned() });
        assert_eq!(check(&[at("a", "x"), at("a", "y")]), twice("name", "a"));
        assert_eq!(check(&[at("a", "x"), at("b", "x/y")]), twice("place", "x/y"));
        assert_eq!(check(&[at("a", "xy"), at("b", "x")]), Ok(()));
    }
}
