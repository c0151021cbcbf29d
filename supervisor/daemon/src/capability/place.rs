//! What lies at the paths that sessions and their environments name: directories to work in, entries of a `PATH`, programs.
//!
//! Several are looked at in one process, one after the other; one that hangs costs half of the time that is left, and is ended alone.

use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_keeper::look::{Kind, Look, Looked, Why};
use agentd_plugins::{Failure, Mounted};

use super::look::{Eye, Glance, Lot, Subject};
use super::{Machine, before};
use crate::scarce;

/// What lies at a path, its links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// `usable`: this user may enter it.
    Directory {
        path: PathBuf,
        usable: bool,
    },
    /// `usable`: this user may execute it.
    File {
        path: PathBuf,
        usable: bool,
    },
    /// A device, a pipe, a socket.
    Other,
    Absent,
    /// It is not known, for the reason that is given.
    Closed(String),
    /// It could not be looked at for want of descriptors, processes or memory.
    Scarce(String),
    /// It did not answer, or was not asked because nobody answers there; in words.
    Silent(String),
}

impl Place {
    /// Where a directory is.
    pub fn into_directory(self) -> Option<PathBuf> {
        if let Self::Directory { path, .. } = self { Some(path) } else { None }
    }
}

/// File systems that a server has, or a program: all of one is silent when that is. Those that begin with `fuse` are too.
const SERVED: [&str; 9] = ["9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "smb3"];

impl Machine {
    /// What lies at these paths, in their order, up to the first of which that is `enough`.
    pub async fn places(
        &self,
        paths: impl IntoIterator<Item = PathBuf>,
        deadline: Instant,
        enough: impl Fn(&Place) -> bool,
    ) -> Vec<Place> {
        let mounts = self.mounted(deadline).await;
        let (mut eye, mut places) = (None, Vec::new());
        for path in paths {
            let subject = subject(&path, &mounts);
            let place = match self.looks.still(&subject) {
                Some(text) => Place::Silent(text),
                None => self.place(&mut eye, path, subject, deadline).await,
            };
            let is_enough = enough(&place);
            places.push(place);
            if is_enough {
                break;
            }
        }
        places
    }

    /// What of the machine is looked at with this path.
    pub(super) async fn subject(&self, path: &str, deadline: Instant) -> Subject {
        subject(Path::new(path), &self.mounted(deadline).await)
    }

    /// The mount table; where the system does not tell it, each path is on its own.
    async fn mounted(&self, deadline: Instant) -> Vec<Mounted> {
        self.mounts(deadline).await.unwrap_or_default()
    }

    async fn place(&self, eye: &mut Option<Eye>, path: PathBuf, subject: Subject, deadline: Instant) -> Place {
        let now = Instant::now();
        let until = before(now + deadline.saturating_duration_since(now) / 2);
        let open = match eye.take() {
            Some(mut open) => {
                open.turn(subject, until);
                Ok(open)
            }
            None => self.looks.open(Lot::Own, subject, until).await,
        };
        let asked = match open {
            Ok(mut open) => match open.ask(&Look::Place(path.as_os_str().into())).await {
                // One that hangs is ended here.
                Ok(Glance::Hangs(text)) => Err(Failure::TimedOut(text)),
                Ok(Glance::Looked(looked)) => {
                    *eye = Some(open);
                    Ok(looked)
                }
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        seen(asked)
    }
}

fn seen(asked: Result<Looked, Failure>) -> Place {
    match asked {
        Ok(Looked::Place { path, kind, usable }) => {
            let path = PathBuf::from(path.as_os_str());
            match kind {
                Kind::Directory => Place::Directory { path, usable },
                Kind::File => Place::File { path, usable },
                Kind::Other => Place::Other,
            }
        }
        Ok(Looked::Not { why: Why::NotFound, .. }) => Place::Absent,
        Ok(Looked::Not { text, .. }) => Place::Closed(text),
        Ok(_) => Place::Closed("who looked gave the answer to another question".to_owned()),
        Err(Failure::Failed(text)) if scarce::in_text(&text).is_some() => Place::Scarce(text),
        Err(Failure::TimedOut(text) | Failure::Unavailable(text)) => Place::Silent(text),
        Err(failure) => Place::Closed(failure.to_string()),
    }
}

/// Whether a file system of this kind is one that a server has, or a program.
pub(crate) fn is_served(kind: &str) -> bool {
    kind.starts_with("fuse") || SERVED.iter().any(|served| kind.starts_with(served))
}

/// A look at this path: of a file system that somebody serves all is silent, or nothing.
fn subject(path: &Path, mounts: &[Mounted]) -> Subject {
    // Of those on the same place the last hides the others.
    let of_path = mounts.iter().filter(|mounted| path.starts_with(&mounted.path));
    let mounted = of_path.max_by_key(|mounted| Path::new(&mounted.path).components().count());
    let what = format!("{:?}", path.to_string_lossy());
    match mounted.filter(|mounted| is_served(&mounted.kind)) {
        Some(mounted) => Subject::of(what, format!("the file system at {:?}", mounted.path)),
        None => what.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_served_file_system_is_silent_with_all_of_it() {
        let mounted = |path: &str, kind: &str| Mounted {
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
