//! Whether others than its owner can write a file.
//!
//! Many systems give each user a group of the user's own name with nobody else in it, and a umask of 002: every file is writable by that
//! group, and by no other user. Such a group is no other. It is not enough where a file has an access control list: its entries
//! are hidden behind the bits of the group.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::{Gid, Group, User, getuid};

use crate::platform::has_access_list;

/// The owner, where it is neither we nor root.
pub(in crate::env) fn stranger(metadata: &Metadata) -> Option<u32> {
    let owner = metadata.uid();
    (owner != 0 && owner != getuid().as_raw()).then_some(owner)
}

/// Whether others than the owner can write what lies at the path.
pub(in crate::env) fn can_write(path: &Path, metadata: &Metadata) -> bool {
    let (by_all, by_group) = (metadata.mode() & 0o002 != 0, metadata.mode() & 0o020 != 0);
    by_all || (by_group && (has_access_list(path) || !is_own_group(metadata.gid())))
}

/// Whether the group is our own primary one, and has no other member.
fn is_own_group(gid: u32) -> bool {
    let Ok(Some(user)) = User::from_uid(getuid()) else { return false };
    if user.gid.as_raw() != gid {
        return false;
    }
    let Ok(Some(group)) = Group::from_gid(Gid::from_raw(gid)) else { return false };
    // A group that is somebody else's primary one does not name that user. Those of a directory service cannot be listed: the name decides.
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    is_private(&user.name, &group.name, &group.mem, gid, &users)
}

/// The rule; `users` is in the format of passwd(5).
fn is_private(user: &str, group: &str, members: &[String], gid: u32, users: &str) -> bool {
    let primary = gid.to_string();
    let others = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        fields.first() != Some(&user) && fields.get(3) == Some(&primary.as_str())
    };
    group == user && members.iter().all(|member| member == user) && !users.lines().any(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_private_that_has_the_users_name_and_nobody_else() {
        let users = "root:x:0:0:::\nann:x:1000:1000:::\nbob:x:1001:1001:::\n";
        let with_bob = "ann:x:1000:1000:::\nbob:x:1001:1000:::\n";
        for (group, members, users, private) in [
            ("ann", &[][..], users, true),
            ("ann", &["ann"], users, true),
            ("ann", &["ann", "bob"], users, false),
            ("ann", &["bob"], users, false),
            ("staff", &[], users, false),
            ("ann", &[], with_bob, false),
            ("ann", &[], "", true),
        ] {
            let members: Vec<String> = members.iter().map(|member| (*member).to_owned()).collect();
            assert_eq!(is_private("ann", group, &members, 1000, users), private, "{group} {members:?} {users:?}");
        }
    }
}
