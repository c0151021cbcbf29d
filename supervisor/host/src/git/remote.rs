//! Commands that contact a remote.

use std::num::NonZeroU32;
use std::path::Path;

use agentd_api::ByteString;
use agentd_api::reason;
use async_recursion::async_recursion as boxed;
use zeroize::Zeroizing;

use super::{Git, GitError, ScriptFailure, Surroundings, failed, late};
use crate::work;

/// Variable with the password for git's credential helper. Only the processes of one clone have it.
pub(super) const PASSWORD: &str = "AGENTD_GIT_PASSWORD";

/// Clones `$2` into the temporary directory `$1`. The rest are options. Notes the tags, so that later tags are known as
/// local work.
const CLONE: &str = r#"
temp=$1 url=$2
shift 2
rm -rf -- "$temp" || exit 1
"$0" clone --quiet "$@" -- "$url" "$temp"
status=$?
if [ $status = 0 ] && [ -d "$temp/.git" ]; then
  "$0" -C "$temp" for-each-ref refs/tags > "$temp/.git/agentd-tags"
  status=$?
fi
[ $status = 0 ] || rm -rf -- "$temp"
exit $status
"#;

/// Password or token for the server of one address.
pub struct Credential {
    /// Scheme, host and port: `https://host:8443`.
    server: String,
    user: String,
    password: Zeroizing<Vec<u8>>,
}

/// Shows everything except the password.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.user, self.server)
    }
}

impl Credential {
    /// Makes the credential for an `https` or `http` address. The address may name the user; servers ignore the user
    /// `git` of a token.
    pub fn new(url: &str, password: &[u8]) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let authority = rest.split('/').next()?;
        let (user, host) = authority.rsplit_once('@').unwrap_or(("git", authority));
        let password = Zeroizing::new(password.trim_ascii().to_vec());
        Some(Self { server: format!("{scheme}://{host}"), user: user.to_owned(), password })
    }

    pub(super) fn value(&self) -> Vec<u8> {
        self.password.to_vec()
    }

    /// Returns the settings that let git take the password from the environment, for this server alone. An empty helper
    /// switches off all others, which git would ask to store the password (gitcredentials(7)).
    pub(super) fn settings(&self) -> [(String, String); 3] {
        let helper = format!("!f() {{ test \"$1\" = get && printf 'password=%s\\n' \"${PASSWORD}\"; }}; f");
        [
            ("credential.helper".to_owned(), String::new()),
            (format!("credential.{}.username", self.server), self.user.clone()),
            (format!("credential.{}.helper", self.server), helper),
        ]
    }
}

/// A remote to clone.
#[derive(Debug, Clone, Copy)]
pub struct Remote<'a> {
    pub url: &'a str,
    pub branch: Option<&'a str>,
    pub depth: Option<NonZeroU32>,
    /// Id of the session, which is noted in the clone.
    pub session: &'a str,
    /// Author of commits, as `user.name` and `user.email` of the clone.
    pub user: (Option<&'a str>, Option<&'a str>),
    pub credential: Option<&'a Credential>,
}

impl Remote<'_> {
    /// Returns the address for git. git copies a path, and copies always have the whole history.
    fn address(&self) -> ByteString {
        match self.depth {
            Some(_) if self.url.starts_with('/') => format!("file://{}", self.url).into(),
            _ => self.url.into(),
        }
    }

    fn options(&self) -> Vec<ByteString> {
        let branch = self.branch.map(|branch| format!("--branch={branch}"));
        let depth = self.depth.map(|depth| format!("--depth={depth}"));
        branch.into_iter().chain(depth).map(ByteString::from).collect()
    }
}

impl Git<'_> {
    /// Clones a remote into a temporary directory, which a failure leaves empty.
    #[boxed]
    pub async fn clone_remote(&self, remote: &Remote<'_>, temporary: &Path) -> Result<(), GitError> {
        let (name, email) = remote.user;
        let user = [("agentd.session", Some(remote.session)), ("user.name", name), ("user.email", email)];
        let user = user.into_iter().filter_map(|(key, value)| Some(format!("--config={key}={}", value?).into()));
        let args = [temporary.as_os_str().into(), remote.address(), "--origin=origin".into()];
        let args = args.into_iter().chain(remote.options()).chain(user).collect();
        match self.script(CLONE, args, &Surroundings::Terminal(remote.credential)).await? {
            Ok(_) => Ok(()),
            Err(failure) => Err(refused(remote, &failure)),
        }
    }

    /// Clones one branch of a remote, with its whole history, into a temporary bare repository. Objects of `place` are
    /// used and not fetched again. The configuration of `place` is not read.
    pub(super) async fn fetch_aside(
        &self,
        remote: &Remote<'_>,
        place: &Path,
        temporary: &Path,
    ) -> Result<(), GitError> {
        let remote = &Remote { depth: None, ..*remote };
        let reference = [ByteString::from("--reference-if-able"), place.as_os_str().into()];
        let args = [temporary.as_os_str().into(), remote.address(), "--bare".into(), "--single-branch".into()];
        let args = args.into_iter().chain(remote.options()).chain(reference).collect();
        match self.script(CLONE, args, &Surroundings::Terminal(remote.credential)).await? {
            Ok(_) => Ok(()),
            Err(failure) => Err(refused(remote, &failure)),
        }
    }

    /// Gives a temporary directory its final name, which an empty directory may have. Otherwise removes the temporary
    /// directory.
    #[boxed]
    pub async fn rename(&self, temporary: &Path, place: &Path) -> Result<(), GitError> {
        // rename(2) replaces only an empty directory, and does that in one step.
        let (from, to) = (temporary.to_owned(), place.to_owned());
        let renaming = tokio::time::timeout_at(self.deadline.into(), work::blocking(move || std::fs::rename(from, to)));
        let error = match renaming.await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(error))) if is_taken(&error) => taken(place),
            Ok(Ok(Err(error))) => {
                GitError::new(reason::CLONE_FAILED, format!("cannot create {}: {error}", place.display()))
            }
            Ok(Err(_)) | Err(_) => late(),
        };
        // The first failure is the one to report.
        let _ = self.remove(temporary, temporary).await;
        Err(error)
    }
}

/// Reports whether something else has the name (rename(2)).
fn is_taken(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory)
}

/// Returns the failure for a place that something else has.
pub fn taken(place: &Path) -> GitError {
    let message = format!(
        "{} exists already and is not this repository; move it away, or give the repository another path",
        place.display()
    );
    GitError::new(reason::PATH_TAKEN, message)
}

/// Interprets the failure of a command that contacted the remote.
fn refused(remote: &Remote<'_>, failure: &ScriptFailure) -> GitError {
    let says = |texts: &[&str]| texts.iter().any(|text| failure.stderr.contains(text));
    if says(&[
        "could not read Username",
        "could not read Password",
        "Authentication failed",
        "terminal prompts disabled",
    ]) {
        let message = format!(
            "the server requires a login for {}: set up a credential helper of git, or name a declared secret in \
             `secret`: {}",
            remote.url, failure.stderr
        );
        return GitError::new(reason::REPOSITORY_LOGIN, message);
    }
    if says(&["Permission denied", "Host key verification failed"]) {
        let message =
            format!("the ssh login for {} failed; try `git ls-remote` in a terminal: {}", remote.url, failure.stderr);
        return GitError::new(reason::REPOSITORY_LOGIN, message);
    }
    if let Some(branch) = remote.branch.filter(|_| says(&["Remote branch"])) {
        let message = format!("{} has no branch {branch:?}", remote.url);
        return GitError::new(reason::NO_SUCH_BRANCH, message);
    }
    failed(reason::CLONE_FAILED, &format!("cannot clone {}", remote.url), failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_for_its_server_alone() {
        let of = |url| Credential::new(url, b"pw\n").unwrap();
        let credential = of("https://kim@host:8443/o/r");
        assert_eq!((credential.server.as_str(), credential.user.as_str()), ("https://host:8443", "kim"));
        assert_eq!(credential.value(), b"pw");
        let [(first, value), _, (key, helper)] = of("http://host/r").settings();
        assert_eq!((first.as_str(), value.as_str()), ("credential.helper", ""));
        assert_eq!(key, "credential.http://host.helper");
        assert!(!helper.contains("pw"), "{helper}");
        assert!(!format!("{credential:?}").contains("pw"));
    }

    #[test]
    fn a_failure_has_the_reason_that_git_names() {
        let remote = Remote {
            session: "s",
            url: "https://host/r",
            branch: Some("b"),
            depth: None,
            user: (None, None),
            credential: None,
        };
        let of = |stderr: &str| refused(&remote, &ScriptFailure { status: 128, stderr: stderr.to_owned() }).reason;
        let prompt = "fatal: could not read Username for 'https://host': terminal prompts disabled";
        assert_eq!(of(prompt), "RepositoryLogin");
        assert_eq!(of("git@host: Permission denied (publickey)."), "RepositoryLogin");
        assert_eq!(of("fatal: Remote branch b not found in upstream origin"), "NoSuchBranch");
        assert_eq!(of("fatal: unable to access 'https://host/r/': Could not resolve host: host"), "CloneFailed");
    }

    #[test]
    fn a_path_with_a_depth_is_cloned_by_git_and_not_copied() {
        let of = |url, depth| {
            Remote { session: "s", url, branch: None, depth, user: (None, None), credential: None }.address()
        };
        assert_eq!(of("/srv/r", NonZeroU32::new(1)), ByteString::from("file:///srv/r"));
        assert_eq!(of("/srv/r", None), ByteString::from("/srv/r"));
    }
}
