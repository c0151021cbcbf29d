//! The place of a repository below the session's directory.

use std::path::{Path, PathBuf};

use agentd_api::ByteString;
use agentd_api::reason;
use async_recursion::async_recursion as boxed;

use super::{DROP, Git, GitError, ScriptFailure, Surroundings, failed};

/// Enters the directory, then each part of the path to the place, and creates missing parts. A link that leads out of
/// the directory is refused. Prints the path without links, the contents of the place, and the session that made it.
const LOCATE: &str = r#"
cd -- "$1" || exit 10
shift
top=$(pwd -P && echo x)
top=${top%?x}
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
elif [ -d "$p/.git" ] && [ ! -L "$p/.git" ]; then
  echo repository
  "$0" config --file "$p/.git/config" --get agentd.session
elif [ -f "$p/.git" ] && [ ! -L "$p/.git" ]; then
  echo worktree
  own=$(sed -n 's/^gitdir: //p' "$p/.git")
  [ ! -f "$own/agentd-session" ] || head -n 1 "$own/agentd-session"
elif [ -d "$p" ]; then if [ -z "$(ls -A -- "$p")" ]; then echo empty; else echo other; fi
elif [ -e "$p" ]; then echo other
else echo nothing
fi
exit 0
"#;

/// Removes a directory. It gets another name first, so that a kill leaves no half of it under the old name.
const REMOVE: &str = r#"
drop "$2" || exit 1
[ -d "$1" ] || exit 0
mv -- "$1" "$2" && drop "$2"
"#;

/// Notes the session `$2` as the maker of the repository or worktree `$1`.
const HAND_OVER: &str = r#"
if [ -d "$1/.git" ]; then
  "$0" config --file "$1/.git/config" agentd.session "$2"
else
  own=$(sed -n 's/^gitdir: //p' "$1/.git") && printf '%s\n' "$2" > "$own/agentd-session"
fi
"#;

/// Lists the repositories below a directory with their relative paths, except for those at and below the places in the
/// arguments.
const REPOSITORIES: &str = r#"
cd -- "$1" || exit 10
shift
find . -name .git -prune -print | while IFS= read -r found; do
  found=${found#./}
  found=${found%.git}
  found=${found%/}
  is_known=
  for known in "$@"; do
    case "$found/" in "$known"/*) is_known=1 ;; esac
  done
  [ -n "$is_known" ] || printf '%s\n' "$found"
done
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
    /// Id of the session that made the repository.
    pub maker: Option<String>,
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
        let unexpected = || GitError::new(reason::INTERNAL, "the shell gave an unexpected answer");
        let (parent, found, maker) = parse(&output).ok_or_else(unexpected)?;
        let name = below.file_name().ok_or_else(unexpected)?;
        Ok(Located { place: Path::new(parent).join(name), found, maker })
    }

    /// Lists the repositories below a directory that are neither at nor below the `known` places.
    #[boxed]
    pub async fn others(&self, directory: &Path, known: &[PathBuf]) -> Result<Vec<String>, GitError> {
        let known = known.iter().map(|path| path.as_os_str().into());
        let args = std::iter::once(directory.as_os_str().into()).chain(known).collect();
        match self.script(REPOSITORIES, args, &Surroundings::System { transport: "none" }).await? {
            Ok(output) => Ok(output.lines().map(str::to_owned).collect()),
            Err(failure) => {
                let what = format!("cannot search {}", directory.display());
                Err(failed(reason::REPOSITORY_UNREADABLE, &what, &failure))
            }
        }
    }

    /// Notes that a repository or worktree belongs to another session from now on.
    #[boxed]
    pub async fn hand_over(&self, place: &Path, session: &str) -> Result<(), GitError> {
        let args = vec![place.as_os_str().into(), session.into()];
        match self.script(HAND_OVER, args, &Surroundings::System { transport: "none" }).await? {
            Ok(_) => Ok(()),
            Err(failure) => {
                let what = format!("cannot hand {} over", place.display());
                Err(failed(reason::REPOSITORY_UNREADABLE, &what, &failure))
            }
        }
    }

    /// Removes a directory under the temporary name `aside`, with what an earlier attempt left there.
    #[boxed]
    pub async fn remove(&self, place: &Path, aside: &Path) -> Result<(), GitError> {
        let args = vec![place.as_os_str().into(), aside.as_os_str().into()];
        match self.script(&format!("{DROP}{REMOVE}"), args, &Surroundings::System { transport: "none" }).await? {
            Ok(_) => Ok(()),
            Err(failure) => {
                let what = format!("cannot remove {}", place.display());
                Err(failed(reason::REPOSITORY_NOT_REMOVED, &what, &failure))
            }
        }
    }
}

/// Takes the output of [`LOCATE`] apart. Only the path may contain line ends.
fn parse(output: &str) -> Option<(&str, Found, Option<String>)> {
    let output = output.strip_suffix('\n')?;
    let (rest, last) = output.rsplit_once('\n')?;
    let of = |word: &str| match word {
        "nothing" | "empty" => Some(Found::Nothing),
        "repository" => Some(Found::Repository),
        "worktree" => Some(Found::Worktree),
        "other" => Some(Found::Other),
        _ => None,
    };
    if let Some(found) = of(last) {
        return Some((rest, found, None));
    }
    let (path, word) = rest.rsplit_once('\n')?;
    Some((path, of(word)?, Some(last.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_of_a_place_are_read() {
        assert_eq!(parse("/w\nempty\n"), Some(("/w", Found::Nothing, None)));
        assert_eq!(parse("/w\nx\nother\n"), Some(("/w\nx", Found::Other, None)));
        assert_eq!(parse("/w\nrepository\nk3m\n"), Some(("/w", Found::Repository, Some("k3m".to_owned()))));
        assert_eq!(parse("/w\n"), None);
        assert_eq!(parse("/w\nmoon\nk3m\n"), None);
    }
}
