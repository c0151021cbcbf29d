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

/// Prints the work that a removal would lose besides changed files: the number of commits that would be in no branch,
/// then words. In a worktree, commits of branches stay, and stashes belong to the local repository. In a clone, a
/// commit is safe if a branch of the remote has it, or a tag that the clone came with.
const UNSAVED: &str = r#"
own=$("$0" rev-parse --git-dir) || exit 20
if [ -f .git ]; then
  if "$0" rev-parse -q --verify HEAD >/dev/null; then
    "$0" rev-list --count HEAD --not --branches --remotes --tags -- || exit 20
  else
    echo 0
  fi
else
  tags=
  if [ -f "$own/agentd-tags" ]; then
    tags=$("$0" for-each-ref refs/tags) || exit 20
    tags=$(printf '%s\n' "$tags" | grep -vxFf "$own/agentd-tags" | cut -d ' ' -f 1)
  fi
  head=$("$0" rev-parse -q --verify HEAD)
  "$0" rev-list --count --branches --glob=refs/agentd/before $head $tags --not --remotes -- || exit 20
  if "$0" rev-parse -q --verify refs/stash >/dev/null; then echo stash; fi
  if [ -d "$own/worktrees" ] && [ -n "$(ls -A "$own/worktrees")" ]; then echo worktrees; fi
fi
if [ -d "$own/modules" ] && [ -n "$(ls -A "$own/modules")" ]; then echo submodules; fi
"$0" ls-files --stage | sed -n 's/^160000 [^	]*	//p' | while IFS= read -r path; do
  [ ! -e "./$path/.git" ] || echo submodules
done
new=$("$0" ls-files --others --exclude-standard --directory --no-empty-directory) || exit 20
if [ -n "$new" ]; then echo new; fi
"#;

/// Sets the URL of the remote if it differs.
const SET_URL: &str = r#"
old=$("$0" config --local --get remote.origin.url) || exit 0
[ "$old" = "$1" ] || "$0" remote set-url origin "$1"
"#;

/// Resets the tree to the branch of the bare repository `$1`. `$2` is the requested branch, or empty for the remote's
/// default branch. Earlier work is kept: changed and new files as a stash with the message `$4`, commits as
/// `refs/agentd/before/$3/COMMIT`. Other work prevents the reset. `$5` tells that an attempt was cut. Prints a word for
/// each kind of work that is put aside.
const RESET: &str = r#"
bare=$1 branch=$2 id=$3 message=$4
own=$("$0" rev-parse --git-dir) || exit 20
# A git that was killed leaves its lock. A young lock may be that of the user's git.
if [ -n "$5" ]; then find "$own/index.lock" -mmin +5 -delete 2>/dev/null; fi
if "$0" config --local --includes --get-regexp '^filter\.' >/dev/null; then exit 24; fi
for state in MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD BISECT_LOG rebase-merge rebase-apply; do
  if [ -e "$own/$state" ]; then exit 22; fi
done
inside=$("$0" ls-files --stage | sed -n 's/^160000 [^	]*	//p' | while IFS= read -r path; do
  [ ! -e "./$path/.git" ] || echo inside
done)
if [ -n "$inside" ]; then exit 25; fi
if [ -z "$("$0" --git-dir="$bare" for-each-ref --count=1)" ]; then exit 0; fi
if [ -z "$branch" ]; then branch=$("$0" --git-dir="$bare" symbolic-ref --short HEAD) || exit 23; fi
new=$("$0" --git-dir="$bare" rev-parse -q --verify "refs/heads/$branch^{commit}") || exit 23
# References of branches that the remote no longer has can be in the way.
above=$branch
while [ "$above" != "${above%/*}" ]; do
  above=${above%/*}
  "$0" update-ref -d "refs/remotes/origin/$above" 2>/dev/null
done
"$0" for-each-ref --format='delete %(refname)' "refs/remotes/origin/$branch/" | "$0" update-ref --stdin || exit 20
"$0" fetch --quiet --no-tags --no-write-fetch-head --update-shallow --no-recurse-submodules \
  --upload-pack=git-upload-pack "$bare" "+refs/heads/$branch:refs/remotes/origin/$branch" || exit 20
[ "$("$0" rev-parse -q --verify "refs/remotes/origin/$branch^{commit}")" = "$new" ] || exit 20
keep() {
  [ -n "$1" ] || return 0
  count=$("$0" rev-list --count --max-count=1 "$1" --not --remotes --) || exit 20
  [ "$count" = 0 ] || "$0" update-ref "refs/agentd/before/$id/$1" "$1" || exit 20
}
old=$("$0" rev-parse -q --verify HEAD)
"$0" symbolic-ref -q HEAD >/dev/null || keep "$old"
keep "$("$0" rev-parse -q --verify "refs/heads/$branch")"
changed=$("$0" status --porcelain --untracked-files=normal --ignore-submodules=dirty) || exit 20
if [ -n "$changed" ]; then
  [ -n "$old" ] || exit 22
  "$0" stash push --quiet --include-untracked --message "$message" || exit 22
fi
# git refuses to overwrite what the stash does not have: ignored files and repositories inside.
"$0" checkout --quiet --no-overwrite-ignore --no-track -B "$branch" "refs/remotes/origin/$branch" || exit 22
"$0" config "branch.$branch.remote" origin && "$0" config "branch.$branch.merge" "refs/heads/$branch" || exit 20
# A clone of one branch fetches no other.
"$0" rev-parse -q --verify "$branch@{upstream}" >/dev/null 2>&1 || "$0" remote set-branches --add origin "$branch"
"$0" for-each-ref refs/tags > "$own/agentd-tags" && "$0" config agentd.session "$id" || exit 20
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
    /// Whether the session has tried before, and the attempt was cut or failed.
    pub is_repeated: bool,
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
    /// Stashes, submodules and further worktrees.
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
            "worktrees" => "further worktrees".to_owned(),
            _ => "submodules, which agentd does not examine".to_owned(),
        }));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

impl Git<'_> {
    /// Reads the head of the working tree at `place`, and the work that a removal would lose.
    #[boxed]
    pub async fn work(&self, place: &Path) -> Result<RepositoryWork, GitError> {
        let facts = self.facts(place).await?;
        let script = format!("{ENTER}{UNSAVED}");
        let args = vec![place.as_os_str().into()];
        let output = match self.script(&script, args, &Surroundings::System { transport: "none" }).await? {
            Ok(output) => output,
            Err(failure) => return Err(unreadable(place, &failure)),
        };
        let mut lines = output.lines();
        // A repository without a commit has no count.
        let ahead = lines.next().and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        let words: Vec<&str> = lines.collect();
        let dirty = facts.dirty.unwrap_or(true) || words.contains(&"new");
        let mut other: Vec<String> = words.into_iter().filter(|word| *word != "new").map(str::to_owned).collect();
        other.dedup();
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
        let message = format!("agentd: before session {}", reset.from.session);
        let args = [reset.temporary.as_os_str().into(), reset.from.branch.unwrap_or_default().into()];
        let args = std::iter::once(place.as_os_str().into())
            .chain(args)
            .chain([reset.from.session.into(), message.into()])
            .chain([if reset.is_repeated { "repeated" } else { "" }.into()])
            .collect();
        let done = self.script(&script, args, &Surroundings::System { transport: "file" }).await?;
        self.remove(reset.temporary, reset.temporary).await?;
        match done {
            Ok(output) => {
                let has = |word| output.lines().any(|line| line == word);
                Ok(ResetOutcome { stashed: has("files"), kept_commits: has("commits") })
            }
            Err(ScriptFailure { status: 22, stderr }) => {
                let why = "it has a merge or rebase in progress, or files that git cannot put aside";
                Err(busy(place, why, &stderr))
            }
            Err(ScriptFailure { status: 23, .. }) => {
                let branch = reset.from.branch.unwrap_or("of its HEAD");
                let message = format!("{} has no branch {branch:?}", reset.from.url);
                Err(GitError::new(reason::NO_SUCH_BRANCH, message))
            }
            Err(ScriptFailure { status: 24, .. }) => {
                Err(busy(place, "its own configuration has filters, which are programs", ""))
            }
            Err(ScriptFailure { status: 25, .. }) => Err(busy(place, "it has submodules", "")),
            Err(failure) if failure.status == 21 => Err(taken(place)),
            Err(failure) => Err(failed(reason::RESET_FAILED, &format!("cannot reset {}", place.display()), &failure)),
        }
    }
}

/// Returns the failure for a repository that agentd does not reset.
fn busy(place: &Path, why: &str, words: &str) -> GitError {
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    let message = format!("cannot reset {}: {why}{words}; finish or undo that, or move it away", place.display());
    GitError::new(reason::REPOSITORY_BUSY, message)
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
