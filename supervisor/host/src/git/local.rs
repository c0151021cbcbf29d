//! Commands in a repository that is there already. They run no program that its configuration names, except filters of
//! the files that a reset writes.

use std::path::Path;

use agentd_api::facts::{Repository, RepositoryFacts};
use agentd_api::reason;
use async_recursion::async_recursion as boxed;

use super::remote::{Remote, taken};
use super::{Git, GitError, ScriptFailure, Surroundings, failed};
use crate::repository::RepositoryReader;

/// Enters the working tree `$1`, which must be the top of its repository. A repository's configuration could name
/// another tree.
const ENTER: &str = r#"
cd -- "$1" || exit 21
top=$("$0" rev-parse --show-toplevel) || exit 20
[ "$top" -ef . ] || exit 21
shift
"#;

/// Prints the work that a removal would lose besides changed files: the number of commits that no remote has, then
/// words. In a worktree (`$1` is `worktree`), commits of branches stay, and stashes belong to the local repository.
const UNSAVED: &str = r#"
if [ "$1" = worktree ]; then
  "$0" rev-list --count HEAD --not --branches --remotes --tags -- 2>/dev/null || echo 0
else
  "$0" rev-list --count --branches $("$0" rev-parse -q --verify HEAD) --not --remotes -- || exit 20
  if "$0" rev-parse -q --verify refs/stash >/dev/null; then echo stash; fi
fi
own=$("$0" rev-parse --git-dir) || exit 20
if [ -d "$own/modules" ] && [ -n "$(ls -A "$own/modules")" ]; then echo submodules; fi
new=$("$0" ls-files --others --exclude-standard --directory --no-empty-directory | head -c 1) || exit 20
if [ -n "$new" ]; then echo new; fi
"#;

/// Sets the URL of the remote if it differs.
const SET_URL: &str = r#"
old=$("$0" config --local --get remote.origin.url) || exit 0
[ "$old" = "$1" ] || "$0" remote set-url origin "$1"
"#;

/// Resets the tree to the branch of the bare repository `$1`. `$2` is the requested branch, or empty for the remote's
/// default branch. Earlier work is kept: changed and new files as a stash with the message `$4`, commits under
/// `refs/agentd/before/$3`. Prints a word for each that is there.
const RESET: &str = r#"
bare=$1 branch=$2 id=$3 message=$4
if [ -z "$branch" ]; then branch=$("$0" --git-dir="$bare" symbolic-ref --short HEAD) || exit 20; fi
new=$("$0" --git-dir="$bare" rev-parse -q --verify "refs/heads/$branch^{commit}") || exit 23
own=$("$0" rev-parse --git-dir) || exit 20
for state in MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD rebase-merge rebase-apply; do
  if [ -e "$own/$state" ]; then exit 22; fi
done
"$0" fetch --quiet --no-tags --no-write-fetch-head --update-shallow --no-recurse-submodules \
  --upload-pack=git-upload-pack "$bare" "+refs/heads/$branch:refs/remotes/origin/$branch" || exit 20
[ "$("$0" rev-parse -q --verify "refs/remotes/origin/$branch^{commit}")" = "$new" ] || exit 20
keep() {
  [ -n "$2" ] || return 0
  [ "$("$0" rev-list --count --max-count=1 "$2" --not --remotes -- || echo 1)" = 0 ] && return 0
  "$0" update-ref "refs/agentd/before/$id/$1" "$2" || exit 20
}
old=$("$0" rev-parse -q --verify HEAD)
"$0" symbolic-ref -q HEAD >/dev/null || keep detached "$old"
keep "$branch" "$("$0" rev-parse -q --verify "refs/heads/$branch")"
changed=$("$0" status --porcelain --untracked-files=normal --ignore-submodules=dirty | head -c 1) || exit 20
if [ -n "$changed" ]; then
  if [ -n "$old" ]; then
    "$0" stash push --quiet --include-untracked --message "$message" || exit 22
  else
    exit 22
  fi
fi
"$0" checkout --quiet --force --no-track -B "$branch" "refs/remotes/origin/$branch" || exit 20
"$0" config "branch.$branch.remote" origin && "$0" config "branch.$branch.merge" "refs/heads/$branch" || exit 20
# A clone of one branch fetches no other.
"$0" rev-parse -q --verify "$branch@{upstream}" >/dev/null 2>&1 || "$0" remote set-branches --add origin "$branch"
# An attempt before this one may have put the work aside.
if "$0" stash list --format=%s | grep -qF "$message"; then echo files; fi
if [ -n "$("$0" for-each-ref --count=1 "refs/agentd/before/$id")" ]; then echo commits; fi
"#;

/// A reset of a repository that an earlier session left.
#[derive(Debug, Clone, Copy)]
pub struct Reset<'a> {
    pub from: Remote<'a>,
    /// Path for a temporary bare repository.
    pub temporary: &'a Path,
    /// Id of the session, which names the references of kept commits.
    pub session: &'a str,
}

/// Work that a reset has put aside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResetOutcome {
    /// Changed and new files are in a stash.
    pub stashed: bool,
    /// Commits that no remote branch has are kept under `refs/agentd/before/SESSION`.
    pub kept_commits: bool,
}

/// The head of a repository, and the work that a removal would lose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepositoryWork {
    pub facts: RepositoryFacts,
    /// Number of commits that no branch of a remote has; in a worktree, commits that are in no branch at all.
    pub ahead: u64,
    /// Whether files are changed or new. `true` if that cannot be determined.
    pub dirty: bool,
    /// Stashes and submodules.
    pub other: Vec<String>,
}

impl RepositoryWork {
    /// Describes the work that a removal would lose; `None` if it would lose nothing.
    pub fn unsaved(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.dirty {
            parts.push("uncommitted changes".to_owned());
        }
        match self.ahead {
            0 => {}
            1 => parts.push("1 commit that is not pushed".to_owned()),
            many => parts.push(format!("{many} commits that are not pushed")),
        }
        parts.extend(self.other.iter().map(|other| match other.as_str() {
            "stash" => "a stash".to_owned(),
            _ => "submodules, which agentd does not examine".to_owned(),
        }));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

impl Git<'_> {
    /// Reads the head of the working tree at `place`, and the work that a removal would lose.
    #[boxed]
    pub async fn work(&self, place: &Path, is_worktree: bool) -> Result<RepositoryWork, GitError> {
        let facts = self.facts(place).await?;
        let script = format!("{ENTER}{UNSAVED}");
        let kind = if is_worktree { "worktree" } else { "clone" };
        let args = vec![place.as_os_str().into(), kind.into()];
        let output = match self.script(&script, args, &Surroundings::System { transport: "none" }).await? {
            Ok(output) => output,
            Err(failure) => return Err(unreadable(place, &failure)),
        };
        let mut lines = output.lines();
        // A repository without a commit has no count.
        let ahead = lines.next().and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        let words: Vec<&str> = lines.collect();
        let dirty = facts.dirty.unwrap_or(true) || words.contains(&"new");
        let other = words.into_iter().filter(|word| *word != "new").map(str::to_owned).collect();
        Ok(RepositoryWork { facts, ahead, dirty, other })
    }

    /// Reads the branch, the commit and the remotes of the working tree at `place`.
    #[boxed]
    pub async fn facts(&self, place: &Path) -> Result<RepositoryFacts, GitError> {
        let reader = RepositoryReader { machine: self.machine, keeper: self.keeper, home: self.home };
        match reader.read(place, self.deadline).await {
            Repository::Found(facts) if facts.root == place => Ok(facts),
            Repository::Found(_) | Repository::None | Repository::Unknown => Err(taken(place)),
            Repository::Unread(unread) => {
                let message = format!("cannot read the repository {}: {}", place.display(), unread.message);
                Err(GitError::new(reason::REPOSITORY_UNREADABLE, message))
            }
        }
    }

    /// Sets the URL of the remote `origin`, if the repository has this remote.
    #[boxed]
    pub async fn set_url(&self, place: &Path, url: &str) -> Result<(), GitError> {
        let script = format!("{ENTER}{SET_URL}");
        let args = vec![place.as_os_str().into(), url.into()];
        match self.script(&script, args, &Surroundings::System { transport: "none" }).await? {
            Ok(_) => Ok(()),
            Err(failure) => Err(unreadable(place, &failure)),
        }
    }

    /// Fetches the branch and resets the working tree at `place` to it. Earlier work is put aside.
    #[boxed]
    pub async fn reset(&self, place: &Path, reset: &Reset<'_>) -> Result<ResetOutcome, GitError> {
        self.fetch_aside(&reset.from, place, reset.temporary).await?;
        let script = format!("{ENTER}{RESET}");
        let message = format!("agentd: before session {}", reset.session);
        let args = [reset.temporary.as_os_str().into(), reset.from.branch.unwrap_or_default().into()];
        let args = std::iter::once(place.as_os_str().into())
            .chain(args)
            .chain([reset.session.into(), message.into()])
            .collect();
        let done = self.script(&script, args, &Surroundings::System { transport: "file" }).await?;
        self.remove(reset.temporary, reset.temporary).await?;
        match done {
            Ok(output) => {
                let has = |word| output.lines().any(|line| line == word);
                Ok(ResetOutcome { stashed: has("files"), kept_commits: has("commits") })
            }
            Err(ScriptFailure { status: 22, stderr }) => {
                let message = format!(
                    "{} has a merge, a rebase or changes that cannot be put aside; finish or undo them: {stderr}",
                    place.display()
                );
                Err(GitError::new(reason::REPOSITORY_BUSY, message.trim_end_matches([' ', ':'])))
            }
            Err(failure) if failure.status == 21 => Err(taken(place)),
            Err(failure) => Err(failed(reason::RESET_FAILED, &format!("cannot reset {}", place.display()), &failure)),
        }
    }
}

/// Returns the failure for a repository that cannot be entered or read.
fn unreadable(place: &Path, failure: &ScriptFailure) -> GitError {
    if failure.status == 21 {
        return taken(place);
    }
    failed(reason::REPOSITORY_UNREADABLE, &format!("cannot read the repository {}", place.display()), failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsaved_work_is_named() {
        let of = |ahead, dirty, other: &[&str]| {
            let other = other.iter().map(|word| (*word).to_owned()).collect();
            RepositoryWork { ahead, dirty, other, ..RepositoryWork::default() }.unsaved()
        };
        assert_eq!(of(0, false, &[]), None);
        assert_eq!(of(1, false, &[]).as_deref(), Some("1 commit that is not pushed"));
        let all =
            "uncommitted changes, 2 commits that are not pushed, a stash, submodules, which agentd does not examine";
        assert_eq!(of(2, true, &["stash", "submodules"]).as_deref(), Some(all));
    }
}
