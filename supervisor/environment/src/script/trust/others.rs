//! Determines whether users other than the owner can write a file.
//!
//! Many systems give each user a private group of the same name and a umask of 002. Every file is then
//! group-writable, but for no other user, so such a group is harmless. With an access control list this is not
//! certain, because the group bits hide the list's entries.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::{Gid, Group, User, getuid};

use agentd_host::platform::has_access_list;

/// Returns the owner, if it is neither the current user nor root.
pub(crate) fn foreign_owner(metadata: &Metadata) -> Option<u32> {
    let owner = metadata.uid();
    (owner != 0 && owner != getuid().as_raw()).then_some(owner)
}

/// Reports whether users other than the owner can write the file at the path.
pub(crate) fn can_write(path: &Path, metadata: &Metadata) -> bool {
    let (by_all, by_group) = (metadata.mode() & 0o002 != 0, metadata.mode() & 0o020 != 0);
    by_all || (by_group && (has_access_list(path) || !is_own_group(metadata.gid())))
}

/// Reports whether the group is the user's own primary group and has no other member.
fn is_own_group(gid: u32) -> bool {
    let Ok(Some(user)) = User::from_uid(getuid()) else { return false };
    if user.gid.as_raw() != gid {
        return false;
    }
    let Ok(Some(group)) = Group::from_gid(Gid::from_raw(gid)) else { return false };
    // A group's member list omits users whose primary group it is. Users of a directory service cannot be listed,
    // so the group's name decides.
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    is_private(&user.name, &group.name, &group.mem, gid, &users)
}

/// Applies the rule for private groups. `users` is in the format of passwd(5).
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
    fn a_group_is_private_if_it_has_the_users_name_and_no_other_member() {
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
