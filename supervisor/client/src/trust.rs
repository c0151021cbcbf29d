//! Decides whether a daemon may receive requests, which can contain a terminal's environment or the token.
//!
//! Any user can create `/tmp/agentd-UID` before its owner does. So the directory of a socket must belong to
//! this user or to root, and no other user may have write access. The listening process must belong to one of
//! these two users. The user root also reaches the agentd of a user in a directory that root made for that user
//! (`/run/agentd/kim`). The token is sent to this machine only.
//!
//! The read-only socket of another user is used for reads ([`reader_of`]). Nothing else is sent there.

use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::unistd::{AccessFlags, access, geteuid};

/// Reason why nothing is sent to an address.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    #[error(
        "{} is not used: its directory {directory} belongs to user {owner}, not to you (user {uid}) or root",
        socket.display()
    )]
    Directory { socket: Box<Path>, directory: String, owner: u32, uid: u32 },
    #[error(
        "{} is not used: users other than its owner (user {owner}) can write to its directory {directory} \
         (mode {mode:04o})",
        socket.display()
    )]
    Writable { socket: Box<Path>, directory: String, owner: u32, mode: u32 },
    #[error("{} is not used: user {owner} listens there, not you (user {uid}) or root", socket.display())]
    Listener { socket: Box<Path>, owner: u32, uid: u32 },
    #[error("the token is not sent to {authority}, which is not this machine")]
    Far { authority: String },
}

impl Distrust {
    pub fn hint(&self) -> String {
        match self {
            Self::Directory { directory, .. } => format!(
                "find its owner: ls -ld {directory}; remove it as root, or set XDG_RUNTIME_DIR to a directory \
                     of your own"
            ),
            Self::Writable { directory, .. } => {
                format!("chmod go-w {directory}, if it is yours and no other user needs it")
            }
            Self::Listener { socket, .. } => format!("find its owner: ls -l {}", socket.display()),
            Self::Far { .. } => {
                "give http://127.0.0.1:PORT; to reach another machine, forward a port with ssh -L".into()
            }
        }
    }
}

/// Returns the other user whose read-only socket this is, if this user belongs to its group.
///
/// The socket has mode 0660 and a group of this user. Each directory above belongs to the socket's owner or root, and
/// no other user can write there. So only these two can have made the socket, and a socket below `/tmp` does not count.
pub(crate) fn reader_of(socket: &Path) -> Option<u32> {
    let metadata = std::fs::symlink_metadata(socket).ok()?;
    let (owner, uid) = (metadata.uid(), geteuid().as_raw());
    let is_for_group = metadata.file_type().is_socket() && metadata.mode() & 0o777 == 0o660;
    if !is_for_group || owner == uid || owner == 0 || uid == 0 {
        return None;
    }
    // Only members of the group may connect, which needs the permission to write (unix(7)).
    let is_member = access(socket, AccessFlags::W_OK).is_ok();
    let directory = socket.parent()?.canonicalize().ok()?;
    let is_safe = |above: &Path| {
        std::fs::metadata(above).is_ok_and(|above| [0, owner].contains(&above.uid()) && above.mode() & 0o022 == 0)
    };
    (is_member && directory.ancestors().all(is_safe)).then_some(owner)
}

/// Checks the directory of a socket. Returns its owner, who may listen there besides this user and root. A
/// missing directory is not an error: the connection reports it.
pub(crate) fn check_directory(socket: &Path) -> Result<Option<u32>, Distrust> {
    if let Some(owner) = reader_of(socket) {
        return Ok(Some(owner));
    }
    let directory = socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let Ok(metadata) = std::fs::metadata(directory) else { return Ok(None) };
    let (owner, uid) = (metadata.uid(), geteuid().as_raw());
    let given = uid == 0 && is_given_by_root(directory);
    judge(socket, directory, (owner, given), metadata.mode() & 0o7777, uid)?;
    Ok(Some(owner))
}

/// Reports whether only root can have put the directory there: each directory above belongs to root, and no
/// other user can write to it.
fn is_given_by_root(directory: &Path) -> bool {
    let Ok(directory) = directory.canonicalize() else { return false };
    directory
        .ancestors()
        .skip(1)
        .all(|above| std::fs::metadata(above).is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0))
}

/// Judges a directory by its owner and mode. `given` states that root made the directory for its owner, and
/// that this user is root.
fn judge(socket: &Path, directory: &Path, (owner, given): (u32, bool), mode: u32, uid: u32) -> Result<(), Distrust> {
    let (socket, directory) = (socket.into(), directory.display().to_string());
    if owner != uid && owner != 0 && !given {
        return Err(Distrust::Directory { socket, directory, owner, uid });
    }
    if mode & 0o022 != 0 {
        return Err(Distrust::Writable { socket, directory, owner, mode });
    }
    Ok(())
}

/// Checks the user of the listening process, which the kernel reports. `of_directory` is the result of
/// [`check_directory`].
pub(crate) fn check_listener(socket: &Path, owner: u32, of_directory: Option<u32>) -> Result<(), Distrust> {
    let uid = geteuid().as_raw();
    if owner == uid || owner == 0 || Some(owner) == of_directory {
        Ok(())
    } else {
        Err(Distrust::Listener { socket: socket.into(), owner, uid })
    }
}

/// Returns the addresses of an authority that belong to this machine.
pub(crate) fn near(authority: &str, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, Distrust> {
    let near: Vec<SocketAddr> = found.filter(|address| address.ip().to_canonical().is_loopback()).collect();
    if near.is_empty() { Err(Distrust::Far { authority: authority.to_owned() }) } else { Ok(near) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_trusted_where_nobody_but_its_user_and_root_can_put_a_socket_into_it() {
        let (socket, directory) = (Path::new("/tmp/agentd-1000/control.sock"), Path::new("/tmp/agentd-1000"));
        let judge = |owner, mode| judge(socket, directory, (owner, false), mode, 1000);
        assert!(super::judge(socket, directory, (1001, true), 0o755, 0).is_ok(), "root made it for that user");
        assert!(super::judge(socket, directory, (1001, true), 0o777, 0).is_err());
        for (owner, mode) in [(1000, 0o700), (1000, 0o755), (0, 0o755), (0, 0o711)] {
            assert!(judge(owner, mode).is_ok(), "{owner} {mode:o}");
        }
        for (owner, mode) in [(1001, 0o700), (1000, 0o770), (1000, 0o702), (0, 0o1777)] {
            let error = judge(owner, mode).unwrap_err();
            assert!(error.to_string().contains("/tmp/agentd-1000/control.sock is not used"), "{error}");
            assert!(
                error.to_string().contains(&owner.to_string()) && error.hint().contains("/tmp/agentd-1000"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_token_goes_to_this_machine_alone() {
        let addresses =
            |text: &[&str]| text.iter().map(|one| one.parse().unwrap()).collect::<Vec<SocketAddr>>().into_iter();
        let found =
            near("both:1", addresses(&["192.0.2.1:1", "127.0.0.1:1", "[::ffff:127.0.0.1]:1", "[::1]:1"])).unwrap();
        assert_eq!(found.len(), 3);
        for far in [&["192.0.2.1:1"][..], &["[2001:db8::1]:1", "0.0.0.0:1", "[::]:1"], &[]] {
            assert!(matches!(near("far:1", addresses(far)), Err(Distrust::Far { .. })), "{far:?}");
        }
    }
}
