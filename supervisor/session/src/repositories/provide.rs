//! Makes one repository: clones it, resets the clone of an earlier session, adds a worktree, or keeps an existing one.

use std::path::Path;

use agentd_api::SessionId;
use agentd_api::facts::RepositoryFacts;
use agentd_api::reason;
use agentd_api::repository::{RepositoryAction, RepositoryChanged, RepositorySpec, RepositoryState};
use agentd_fault::Point;
use agentd_host::git::{Credential, Found, Git, GitError, Located, Remote, Reset, ResetOutcome, taken};
use agentd_host::repository::without_credentials;
use zeroize::Zeroizing;

use super::{Work, branch_of};
use agentd_decide::repositories::KnownRepository;

/// Failure of an action.
pub(super) type Failed = (RepositoryAction, GitError);

/// Passes a fault point.
pub(super) fn pass(point: Point) -> Result<(), GitError> {
    agentd_fault::at(point).map_err(|error| GitError { reason: reason::CLONE_FAILED, message: error.to_string() })
}

impl Work<'_> {
    /// Makes the repository as the specification requests it.
    pub(super) async fn provide(&self, spec: &RepositorySpec, known: Option<&KnownRepository>) -> Result<(), Failed> {
        let first = if spec.worktree { RepositoryAction::Worktree } else { RepositoryAction::Clone };
        let terminal = self.terminal().await;
        let fail = |error| (first, error);
        let located = self.git(terminal, &[]).locate(self.plan.root(), &spec.place()).await.map_err(fail)?;
        // Another session may have the same directory and the same repository.
        let _alone = self.plan.daemon.repositories.alone(&located.place).await;
        let located = self.git(terminal, &[]).locate(self.plan.root(), &spec.place()).await.map_err(fail)?;
        let credential = self.credential(spec, &located).await.map_err(fail)?;
        let hidden: Vec<Vec<u8>> = credential.iter().map(|(_, value)| value.to_vec()).collect();
        let credential = credential.as_ref().map(|(credential, _)| credential);
        let git = self.git(terminal, &hidden);
        let action = match (located.found, spec.worktree) {
            (Found::Nothing, _) => first,
            (Found::Repository, false) if self.is_to_be_reset(&located, known).await => RepositoryAction::Reset,
            (Found::Repository, false) | (Found::Worktree, true) => RepositoryAction::Keep,
            _ => return Err(fail(taken(&located.place))),
        };
        let done = match action {
            RepositoryAction::Keep => self.keep(&git, spec, known, &located).await,
            _ => self.make(&git, spec, (action, known), credential, &located.place).await,
        };
        done.map_err(|error| (action, error))
    }

    /// Reports whether a new session brings the clone to its branch: a session made the clone and is removed, or this
    /// session's own reset was cut. A clone that no session made is the user's.
    async fn is_to_be_reset(&self, located: &Located, known: Option<&KnownRepository>) -> bool {
        let is_done =
            |known: &KnownRepository| known.action != RepositoryAction::Reset || known.state == RepositoryState::Ready;
        if !self.plan.is_new || known.is_some_and(is_done) {
            return false;
        }
        match located.maker.as_deref().map(str::parse::<SessionId>) {
            Some(Ok(maker)) if maker == self.plan.id => known.is_some(),
            Some(Ok(maker)) => {
                let directory = self.plan.daemon.directories.session(&maker);
                agentd_host::work::blocking(move || !directory.exists()).await.unwrap_or(false)
            }
            Some(Err(_)) | None => false,
        }
    }

    /// Clones, resets or adds a worktree.
    async fn make(
        &self,
        git: &Git<'_>,
        spec: &RepositorySpec,
        (action, known): (RepositoryAction, Option<&KnownRepository>),
        credential: Option<&Credential>,
        place: &Path,
    ) -> Result<(), GitError> {
        let temporary = self.aside(place, spec);
        if action == RepositoryAction::Reset {
            self.compare(git, spec, place).await?;
        }
        let begun =
            RepositoryChanged { place: place.to_owned(), ..self.record(spec, None, action, RepositoryState::Working) };
        self.say(begun).await;
        pass(Point::DaemonRepositoryBegun)?;
        let message = match (action, spec.local()) {
            (RepositoryAction::Reset, _) => {
                let from = self.remote(spec, credential);
                let reset = Reset { from, temporary: &temporary, is_repeated: known.is_some() };
                put_aside(git.reset(place, &reset).await?, self.plan.id.as_str())
            }
            (_, Some(of)) => {
                let branch = branch_of(self.plan, spec);
                let _alone = self.plan.daemon.repositories.alone(of).await;
                let worktree = self.worktree(spec, of, &branch);
                git.add_worktree(&worktree, &temporary).await?;
                pass(Point::DaemonRepositoryMade)?;
                git.rename(&temporary, place).await?;
                git.repair_worktree(&worktree, place).await?;
                None
            }
            (_, None) => {
                git.clone_remote(&self.remote(spec, credential), &temporary).await?;
                pass(Point::DaemonRepositoryMade)?;
                git.rename(&temporary, place).await?;
                None
            }
        };
        pass(Point::DaemonRepositoryDone)?;
        let facts = git.facts(place).await?;
        self.ready(spec, action, place, facts, message).await;
        Ok(())
    }

    /// Keeps the repository at the place, with all its commits, branches and changes. Updates the remote's URL.
    async fn keep(
        &self,
        git: &Git<'_>,
        spec: &RepositorySpec,
        known: Option<&KnownRepository>,
        located: &Located,
    ) -> Result<(), GitError> {
        let place = &located.place;
        if let Some(of) = spec.local() {
            let branch = branch_of(self.plan, spec);
            let worktree = self.worktree(spec, of, &branch);
            git.belongs(&worktree, place).await?;
            if known.is_some_and(|known| known.state == RepositoryState::Working) {
                // The daemon may have ended before it told the repository about the tree's final path.
                let _alone = self.plan.daemon.repositories.alone(of).await;
                git.repair_worktree(&worktree, place).await?;
            }
        } else if !known.is_some_and(|known| known.is_accepted) {
            self.compare(git, spec, place).await?;
        }
        let facts = git.facts(place).await?;
        if known.is_some_and(|known| known.state == RepositoryState::Ready && known.spec == *spec) {
            return Ok(());
        }
        if let Some(url) = &spec.url {
            git.set_url(place, url).await?;
        }
        // A failure after the clone, or a kill before its record, must not hide that the session made it.
        let is_own = located.maker.as_deref() == Some(self.plan.id.as_str());
        let made = known.filter(|known| is_own && !known.is_accepted);
        let action = made.map_or(RepositoryAction::Keep, |known| known.action);
        let message = match (&spec.branch, &facts.branch) {
            (Some(wanted), present) if Some(wanted) != present.as_ref() => {
                Some(format!("it stays on {}", present.as_deref().unwrap_or("its commit")))
            }
            _ if !is_own => Some("another one made it, so it stays at a removal".to_owned()),
            _ => None,
        };
        self.ready(spec, action, place, facts, message).await;
        Ok(())
    }

    /// Refuses a repository at the place that has another remote.
    async fn compare(&self, git: &Git<'_>, spec: &RepositorySpec, place: &Path) -> Result<(), GitError> {
        let facts = git.facts(place).await?;
        let same = |url: &String| spec.url.as_ref().is_some_and(|wanted| is_same_address(wanted, url));
        match facts.remotes.get("origin") {
            Some(urls) if urls.iter().any(same) => Ok(()),
            _ => Err(taken(place)),
        }
    }

    /// Records that the repository is there.
    async fn ready(
        &self,
        spec: &RepositorySpec,
        action: RepositoryAction,
        place: &Path,
        facts: RepositoryFacts,
        message: Option<String>,
    ) {
        let changed = RepositoryChanged {
            place: place.to_owned(),
            branch: facts.branch,
            commit: facts.head,
            message,
            ..self.record(spec, None, action, RepositoryState::Ready)
        };
        self.say(changed).await;
    }

    fn remote<'b>(&'b self, spec: &'b RepositorySpec, credential: Option<&'b Credential>) -> Remote<'b> {
        let settings = &self.plan.repository_settings;
        Remote {
            url: spec.url.as_deref().unwrap_or_default(),
            branch: spec.branch.as_deref(),
            depth: spec.depth,
            session: self.plan.id.as_str(),
            user: (settings.user_name.as_deref(), settings.user_email.as_deref()),
            credential,
        }
    }

    /// Reads the named secret for the server. Also returns its value, which messages must not contain.
    async fn credential(
        &self,
        spec: &RepositorySpec,
        located: &Located,
    ) -> Result<Option<(Credential, Zeroizing<Vec<u8>>)>, GitError> {
        let (Some(name), Some(url)) = (&spec.secret, &spec.url) else { return Ok(None) };
        let unavailable = |message: String| GitError { reason: reason::SECRET_UNAVAILABLE, message };
        let login = async { Ok(self.terminal().await.clone()) };
        // The directory of the session, without links.
        let directory = located.place.ancestors().nth(spec.place().iter().count());
        let taken = self.plan.secrets.read(name, &self.plan.agent, directory, login).await;
        let taken = taken.ok_or_else(|| {
            unavailable(format!("the configuration does not give the secret {name:?} to this session"))
        })?;
        let value = taken.map_err(|missing| unavailable(missing.to_string()))?.value;
        let credential = Credential::new(url, &value);
        Ok(credential.map(|credential| (credential, value)))
    }
}

/// Describes the work that a reset has put aside.
fn put_aside(outcome: ResetOutcome, session: &str) -> Option<String> {
    let files = outcome.stashed.then(|| "changed files are in a stash (`git stash list`)".to_owned());
    let commits = outcome.kept_commits.then(|| format!("commits are kept as refs/agentd/before/{session}/COMMIT"));
    let parts: Vec<String> = files.into_iter().chain(commits).collect();
    (!parts.is_empty()).then(|| format!("before the reset: {}", parts.join("; ")))
}

/// Reports whether two addresses name one repository, apart from the user and the notation.
fn is_same_address(one: &str, other: &str) -> bool {
    let plain = |url: &str| {
        let url = without_credentials(url);
        let url = url.strip_prefix("file://").unwrap_or(&url).trim_end_matches('/');
        url.strip_suffix(".git").unwrap_or(url).trim_end_matches('/').to_owned()
    };
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_compared_without_its_user_and_its_ending() {
        for (one, other, is_same) in [
            ("https://kim@host/r.git", "https://host/r", true),
            ("/srv/r.git/", "file:///srv/r", true),
            ("git@host:o/r.git", "git@host:o/r", true),
            ("https://host/r", "https://host/s", false),
            ("https://host/r", "ssh://host/r", false),
        ] {
            assert_eq!(is_same_address(one, other), is_same, "{one} {other}");
        }
    }

    #[test]
    fn the_message_of_a_reset_says_where_the_work_is() {
        let of = |stashed, kept_commits| put_aside(ResetOutcome { stashed, kept_commits }, "s1");
        assert_eq!(of(false, false), None);
        let both = of(true, true).unwrap();
        assert!(both.contains("git stash list") && both.contains("refs/agentd/before/s1/COMMIT"), "{both}");
    }
}
