//! Examines the paths of sessions and their environments: working directories, entries of a `PATH`, programs.
//!
//! The daemon itself examines the paths that cannot hang, all of them in one step. One process examines the others one
//! after the other. A path that hangs costs half of the remaining time, and only its process is killed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use agentd_keeper::look::{FailureReason, Kind, LookupAnswer, LookupRequest};
use agentd_plugin_host::{Failure, MountEntry};
use async_recursion::async_recursion as boxed;

use super::look::{Looker, LookupResult, Purpose, Subject};
use super::{Machine, before, blocking};
use crate::exhausted;

/// Result of examining a path, with its links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathState {
    /// A directory. `usable` means that this user may enter it.
    Directory { path: PathBuf, usable: bool },
    /// A regular file. `usable` means that this user may execute it.
    File { path: PathBuf, usable: bool },
    /// A device, a pipe or a socket.
    Other,
    /// The path does not exist.
    Absent,
    /// The path cannot be examined, for the given reason.
    Closed(String),
    /// The path could not be examined, because descriptors, processes or memory are exhausted.
    Exhausted(String),
    /// The path did not answer, or was not examined because its file system hangs; with a message.
    Silent(String),
}

impl PathState {
    /// Returns the path if it is a directory.
    pub fn into_directory(self) -> Option<PathBuf> {
        if let Self::Directory { path, .. } = self { Some(path) } else { None }
    }
}

/// Reports whether the examination ends with a path in this state.
pub type IsEnough = fn(&PathState) -> bool;

/// Types of file systems on a server or in a program, which hang as a whole. Types that begin with `fuse` count too.
const SERVED_TYPES: [&str; 9] = ["9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "smb3"];

impl Machine {
    /// Examines the paths in order and stops after the first result that is `enough`.
    #[boxed]
    pub async fn path_states(&self, paths: Vec<PathBuf>, deadline: Instant, enough: IsEnough) -> Vec<PathState> {
        let (mounts, here) = self.local_states(paths.clone(), deadline, enough).await;
        let (mut looker, mut places) = (None, Vec::new());
        for (path, here) in paths.into_iter().zip(here.into_iter().chain(std::iter::repeat(None))) {
            let subject = subject(&path, &mounts);
            let place = match (here, self.lookers.hanging_message(&subject)) {
                (Some(place), _) => place,
                (None, Some(text)) => PathState::Silent(text),
                (None, None) => self.place(&mut looker, path, subject, deadline).await,
            };
            let is_enough = enough(&place);
            places.push(place);
            if is_enough {
                break;
            }
        }
        places
    }

    /// Describes the path and the part of the machine that hangs together with it.
    pub(super) async fn subject(&self, path: &str, deadline: Instant) -> Subject {
        subject(Path::new(path), &self.mounted(deadline).await)
    }

    /// Returns the mount table. If it is not available, each path counts as a part of its own.
    pub(super) async fn mounted(&self, deadline: Instant) -> Arc<Vec<MountEntry>> {
        self.local_states(Vec::new(), deadline, |_| false).await.0
    }

    /// Returns the mount table, and the states of the paths that cannot hang, up to the first that is `enough`.
    async fn local_states(
        &self,
        paths: Vec<PathBuf>,
        deadline: Instant,
        enough: IsEnough,
    ) -> (Arc<Vec<MountEntry>>, Vec<Option<PathState>>) {
        let mounts = self.mounts.clone();
        let look = move || {
            let files = mounts.local_files();
            let mut states = Vec::with_capacity(paths.len());
            for path in &paths {
                let state = files.state(path);
                let is_last = state.as_ref().is_some_and(enough);
                states.push(state);
                if is_last {
                    break;
                }
            }
            Ok((files.0, states))
        };
        blocking("examine paths", deadline, look).await.unwrap_or_default()
    }

    async fn place(
        &self,
        looker: &mut Option<Looker>,
        path: PathBuf,
        subject: Subject,
        deadline: Instant,
    ) -> PathState {
        let now = Instant::now();
        let until = before(now + deadline.saturating_duration_since(now) / 2);
        let open = match looker.take() {
            Some(mut open) => {
                open.set_subject(subject, until);
                Ok(open)
            }
            None => self.lookers.open(Purpose::Session, subject, until).await,
        };
        let asked = match open {
            Ok(mut open) => match open.ask(&LookupRequest::Place(path.as_os_str().into())).await {
                // A lookup that hangs ends here.
                Ok(LookupResult::TimedOut(text)) => Err(Failure::TimedOut(text)),
                Ok(LookupResult::Answer(answer)) => {
                    *looker = Some(open);
                    Ok(answer)
                }
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        seen(asked)
    }
}

fn seen(asked: Result<LookupAnswer, Failure>) -> PathState {
    match asked {
        Ok(LookupAnswer::Place { path, kind, usable }) => {
            let path = PathBuf::from(path.as_os_str());
            match kind {
                Kind::Directory => PathState::Directory { path, usable },
                Kind::File => PathState::File { path, usable },
                Kind::Other => PathState::Other,
            }
        }
        Ok(LookupAnswer::Not { why: FailureReason::NotFound, .. }) => PathState::Absent,
        Ok(LookupAnswer::Not { text, .. }) => PathState::Closed(text),
        Ok(_) => PathState::Closed("internal error: the answer belongs to another request".to_owned()),
        Err(Failure::Failed(text)) if exhausted::in_text(&text).is_some() => PathState::Exhausted(text),
        Err(Failure::TimedOut(text) | Failure::Unavailable(text)) => PathState::Silent(text),
        Err(failure) => PathState::Closed(failure.to_string()),
    }
}

/// Reports whether file systems of this type depend on a server or a program.
pub fn is_served(kind: &str) -> bool {
    kind.starts_with("fuse") || SERVED_TYPES.iter().any(|served| kind.starts_with(served))
}

/// Returns the mount that contains a path.
pub(super) fn mount_of<'a>(path: &Path, mounts: &'a [MountEntry]) -> Option<&'a MountEntry> {
    // Of several mounts at one path, the last one hides the others.
    let of_path = mounts.iter().filter(|mounted| path.starts_with(&mounted.path));
    of_path.max_by_key(|mounted| Path::new(&mounted.path).components().count())
}

/// Describes the lookup of a path. All paths of a file system on a server hang together.
pub(super) fn subject(path: &Path, mounts: &[MountEntry]) -> Subject {
    let what = format!("{:?}", path.to_string_lossy());
    match mount_of(path, mounts).filter(|mounted| is_served(&mounted.kind)) {
        Some(mounted) => Subject::of(what, format!("the file system at {:?}", mounted.path)),
        None => what.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_served_file_system_is_silent_with_all_of_it() {
        let mounted = |path: &str, kind: &str| MountEntry {
            path: path.to_owned(),
            source: String::new(),
            kind: kind.to_owned(),
            options: Vec::new(),
            device: String::new(),
        };
        let mounts =
            [("/", "ext4"), ("/net", "nfs4"), ("/net/local", "tmpfs"), ("/home", "ext4"), ("/home", "fuse.sshfs")]
                .map(|(path, kind)| mounted(path, kind));
        for (path, part) in [
            ("/work", "\"/work\""),
            ("/net/a/b", "the file system at \"/net\""),
            ("/network", "\"/network\""),
            ("/net/local/x", "\"/net/local/x\""),
            ("/home/kim", "the file system at \"/home\""),
        ] {
            let what = format!("{path:?}");
            assert_eq!(subject(Path::new(path), &mounts), Subject::of(what, part.to_owned()));
        }
        assert_eq!(subject(Path::new("/net"), &[]), "\"/net\"".to_owned().into());
    }
}
