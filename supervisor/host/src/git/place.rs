//! The place of a repository below the session's directory.

use std::path::{Path, PathBuf};

use agentd_api::ByteString;
use agentd_api::reason;
use async_recursion::async_recursion as boxed;

use super::{Git, GitError, ScriptFailure, Surroundings, failed};

/// Enters the directory, then each part of the path to the place, and creates missing parts. A link that leads out of
/// the directory is refused. Prints the path without links, then what is at the place.
const LOCATE: &str = r#"
cd -- "$1" || exit 10
shift
top=$(pwd -P)
top=${top%/}
while [ $# -gt 1 ]; do
  [ -d "./$1" ] || mkdir -- "./$1" || exit 10
  cd -- "./$1" || exit 10
  case "$(pwd -P)/" in "$top"/*) ;; *) exit 11 ;; esac
  shift
done
pwd -P
p=./$1
if [ -L "$p" ]; then echo other
elif [ -d "$p/.git" ] && [ ! -L "$p/.git" ]; then echo repository
elif [ -f "$p/.git" ] && [ ! -L "$p/.git" ]; then echo worktree
elif [ -d "$p" ]; then if [ -z "$(ls -A -- "$p")" ]; then echo empty; else echo other; fi
elif [ -e "$p" ]; then echo other
else echo nothing
fi
"#;

/// Removes a directory. It gets another name first, so that a kill leaves no half of it under the old name.
const REMOVE: &str = r#"
rm -rf -- "$2" || exit 1
[ -d "$1" ] || exit 0
mv -- "$1" "$2" && rm -rf -- "$2"
"#;

/// Contents of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or an empty directory.
    Nothing,
    /// A repository with its own `.git` directory.
    Repository,
    /// A worktree of another repository.
    Worktree,
    /// A file, a link or another directory.
    Other,
}

/// A place and its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Absolute path. No directory on the way to it is a link.
    pub place: PathBuf,
    pub found: Found,
}

impl Git<'_> {
    /// Finds the place `below` a directory, and creates missing directories on the way to it.
    #[boxed]
    pub async fn locate(&self, directory: &Path, below: &Path) -> Result<Located, GitError> {
        let parts = below.iter().map(ByteString::from);
        let args = std::iter::once(directory.as_os_str().into()).chain(parts).collect();
        let output = match self.script(LOCATE, args, &Surroundings::System { transport: "none" }).await? {
            Ok(output) => output,
            Err(ScriptFailure { status: 11, .. }) => {
                let message = format!("{} leads out of {} by a link", below.display(), directory.display());
                return Err(GitError::new(reason::PATH_TAKEN, message));
            }
            Err(failure) => {
                let what = format!("cannot enter the directory of {}", directory.join(below).display());
                return Err(failed(reason::PATH_TAKEN, &what, &failure));
            }
        };
        // The path may contain line ends, but the last line does not.
        let unexpected = || GitError::new(reason::INTERNAL, "the shell gave an unexpected answer");
        let (parent, found) = output.trim_end_matches('\n').rsplit_once('\n').ok_or_else(unexpected)?;
        let found = match found {
            "nothing" | "empty" => Found::Nothing,
            "repository" => Found::Repository,
            "worktree" => Found::Worktree,
            _ => Found::Other,
        };
        let name = below.file_name().ok_or_else(unexpected)?;
        Ok(Located { place: Path::new(parent).join(name), found })
    }

    /// Removes a directory under the temporary name `aside`, with what an earlier attempt left there.
    #[boxed]
    pub async fn remove(&self, place: &Path, aside: &Path) -> Result<(), GitError> {
        let args = vec![place.as_os_str().into(), aside.as_os_str().into()];
        match self.script(REMOVE, args, &Surroundings::System { transport: "none" }).await? {
            Ok(_) => Ok(()),
            Err(failure) => {
                let what = format!("cannot remove {}", place.display());
                Err(failed(reason::REPOSITORY_NOT_REMOVED, &what, &failure))
            }
        }
    }
}
