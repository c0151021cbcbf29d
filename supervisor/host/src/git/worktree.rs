//! Worktrees of local repositories (git-worktree(1)).
//!
//! The local repository belongs to the user, so its hooks and filters run as in a terminal.

use std::path::Path;

use agentd_api::reason;
use async_recursion::async_recursion as boxed;

use super::remote::taken;
use super::{DROP, Git, GitError, ScriptFailure, Surroundings, failed};

/// Adds a worktree of the repository `$1` at the temporary path `$2`, on the branch `$3`, and notes the session `$4` in
/// it. Removes what an earlier attempt left there.
const ADD: &str = r#"
cd -- "$1" || exit 21
"$0" rev-parse --git-dir >/dev/null || exit 21
"$0" worktree remove --force --force -- "$2" 2>/dev/null
rm -rf -- "$2" || exit 20
if "$0" rev-parse -q --verify "refs/heads/$3" >/dev/null; then
  "$0" worktree add --quiet -- "$2" "$3" >/dev/null || exit 20
else
  "$0" rev-parse -q --verify HEAD >/dev/null || exit 24
  "$0" worktree add --quiet --no-track -b "$3" -- "$2" >/dev/null || exit 20
fi
own=$("$0" -C "$2" rev-parse --absolute-git-dir) && printf '%s\n' "$4" > "$own/agentd-session"
"#;

/// Tells the repository `$1` that its worktree is at `$2` now.
const REPAIR: &str = r#"
cd -- "$1" || exit 21
"$0" worktree repair -- "$2" >/dev/null
"#;

/// Reports by its status whether the tree `$2` is a worktree of the repository `$1`.
const BELONGS: &str = r#"
cd -- "$1" || exit 21
own=$("$0" rev-parse --path-format=absolute --git-common-dir) || exit 21
cd -- "$2" || exit 25
other=$("$0" rev-parse --path-format=absolute --git-common-dir) || exit 25
[ "$own" -ef "$other" ] || exit 25
"#;

/// Function of a script that removes a branch if another branch has its commits.
const DROP_BRANCH: &str = r#"
drop_branch() {
  tip=$("$0" rev-parse -q --verify "refs/heads/$1") || return 0
  others=$("$0" for-each-ref --contains "$tip" --format=x refs/heads refs/remotes | wc -l)
  if [ "$others" -gt 1 ]; then "$0" branch --quiet -D -- "$1" >/dev/null 2>&1; fi
}
"#;

/// Removes what an attempt left at the temporary path `$2` for a worktree of the repository `$1`. With `$4`, the branch
/// `$3` is removed too.
const DISCARD: &str = r#"
if cd -- "$1"; then
  "$0" worktree remove --force --force -- "$2" 2>/dev/null
  [ -z "$4" ] || drop_branch "$3"
fi
drop "$2"
"#;

/// Removes the worktree `$2` of the repository `$1`. It gets the name `$5` first, so that a kill leaves no half tree.
/// With `$4`, the branch `$3` is removed too.
const REMOVE: &str = r#"
cd -- "$1" || exit 21
# A cut attempt to add the worktree.
"$0" worktree remove --force --force -- "$5" 2>/dev/null
if [ -d "$2" ]; then
  drop "$5" && mv -- "$2" "$5" || exit 20
fi
if ! "$0" worktree remove --force -- "$2" && "$0" worktree list --porcelain | grep -qxF "worktree $2"; then
  [ ! -d "$5" ] || mv -- "$5" "$2"
  exit 20
fi
drop "$5" || exit 20
[ -z "$4" ] || drop_branch "$3"
exit 0
"#;

/// A worktree and its local repository.
#[derive(Debug, Clone, Copy)]
pub struct Worktree<'a> {
    /// Path of the local repository.
    pub of: &'a Path,
    pub branch: &'a str,
    /// Whether agentd chose the branch. Its removal is then agentd's task.
    pub is_own_branch: bool,
    /// Id of the session, which is noted in the worktree.
    pub session: &'a str,
}

impl Worktree<'_> {
    fn own(&self) -> &'static str {
        if self.is_own_branch { "own" } else { "" }
    }
}

impl Git<'_> {
    /// Adds the worktree at a temporary path. Creates its branch if it does not exist.
    #[boxed]
    pub async fn add_worktree(&self, worktree: &Worktree<'_>, temporary: &Path) -> Result<(), GitError> {
        let Worktree { of, branch, session, .. } = worktree;
        let args = vec![of.as_os_str().into(), temporary.as_os_str().into(), (*branch).into(), (*session).into()];
        match self.script(ADD, args, &Surroundings::Terminal(None)).await? {
            Ok(_) => Ok(()),
            Err(ScriptFailure { status: 21, stderr }) => Err(no_repository(of, &stderr)),
            Err(ScriptFailure { status: 24, .. }) => {
                let message = format!("the repository {} has no commit for a new branch", of.display());
                Err(GitError::new(reason::WORKTREE_FAILED, message))
            }
            Err(failure) => {
                let what = format!("cannot add a worktree of {} on the branch {branch:?}", of.display());
                Err(failed(reason::WORKTREE_FAILED, &what, &failure))
            }
        }
    }

    /// Tells the local repository where the renamed worktree is.
    #[boxed]
    pub async fn repair_worktree(&self, worktree: &Worktree<'_>, place: &Path) -> Result<(), GitError> {
        let args = vec![worktree.of.as_os_str().into(), place.as_os_str().into()];
        match self.script(REPAIR, args, &Surroundings::Terminal(None)).await? {
            Ok(_) => Ok(()),
            Err(ScriptFailure { status: 21, stderr }) => Err(no_repository(worktree.of, &stderr)),
            Err(failure) => {
                Err(failed(reason::WORKTREE_FAILED, &format!("cannot repair {}", place.display()), &failure))
            }
        }
    }

    /// Checks that the tree at `place` is a worktree of the local repository.
    #[boxed]
    pub async fn belongs(&self, worktree: &Worktree<'_>, place: &Path) -> Result<(), GitError> {
        let args = vec![worktree.of.as_os_str().into(), place.as_os_str().into()];
        match self.script(BELONGS, args, &Surroundings::Terminal(None)).await? {
            Ok(_) => Ok(()),
            Err(ScriptFailure { status: 21, stderr }) => Err(no_repository(worktree.of, &stderr)),
            Err(_) => Err(taken(place)),
        }
    }

    /// Removes what an attempt to add a worktree left at its temporary path.
    #[boxed]
    pub async fn discard_worktree(&self, worktree: &Worktree<'_>, temporary: &Path) -> Result<(), GitError> {
        let (of, branch) = (worktree.of.as_os_str(), worktree.branch);
        let args = vec![of.into(), temporary.as_os_str().into(), branch.into(), worktree.own().into()];
        match self.script(&format!("{DROP}{DROP_BRANCH}{DISCARD}"), args, &Surroundings::Terminal(None)).await? {
            Ok(_) => Ok(()),
            Err(failure) => {
                let what = format!("cannot remove {}", temporary.display());
                Err(failed(reason::REPOSITORY_NOT_REMOVED, &what, &failure))
            }
        }
    }

    /// Removes the worktree at `place` with its uncommitted changes, under the temporary name `aside`. A branch that
    /// agentd chose is removed as well, if another branch has its commits.
    #[boxed]
    pub async fn remove_worktree(&self, worktree: &Worktree<'_>, place: &Path, aside: &Path) -> Result<(), GitError> {
        let (of, at) = (worktree.of.as_os_str(), place.as_os_str());
        let args = vec![of.into(), at.into(), worktree.branch.into(), worktree.own().into(), aside.as_os_str().into()];
        match self.script(&format!("{DROP}{DROP_BRANCH}{REMOVE}"), args, &Surroundings::Terminal(None)).await? {
            Ok(_) => Ok(()),
            Err(ScriptFailure { status: 21, stderr }) => Err(no_repository(worktree.of, &stderr)),
            Err(failure) => {
                let what = format!("cannot remove the worktree {}", place.display());
                Err(failed(reason::REPOSITORY_NOT_REMOVED, &what, &failure))
            }
        }
    }
}

fn no_repository(path: &Path, words: &str) -> GitError {
    let message = format!("{} is no git repository that can be used: {words}", path.display());
    GitError::new(reason::NO_SUCH_REPOSITORY, message.trim_end_matches([' ', ':']))
}
