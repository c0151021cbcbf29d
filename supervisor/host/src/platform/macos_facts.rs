//! Facts about the machine from macOS: mounts and names of processes.
//!
//! The routing table is available only through a routing socket with undocumented messages, so it is reported as
//! unsupported.

use std::io;
use std::path::Path;

use agentd_darwin::mounts::Mount;
use agentd_darwin::process;
use agentd_plugin_host::{MountEntry, Route};
use nix::libc;

/// Returns an error, because the routing table is not available.
pub fn routes() -> io::Result<Vec<Route>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the device number of stat(2) for a device of the mount table: `makedev` of `sys/types.h`.
pub fn device(major: u64, minor: u64) -> u64 {
    (major << 24) | minor
}

/// Returns `false`: access control lists of macOS are separate from the mode bits and do not change their meaning.
pub fn has_access_list(_path: &Path) -> bool {
    false
}

/// Returns the mount table.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(agentd_darwin::mounts::mounts()?.into_iter().map(mounted).collect())
}

/// Mount flags and their names in mount(8).
const OPTIONS: [(libc::c_int, &str); 8] = [
    (libc::MNT_NOSUID, "nosuid"),
    (libc::MNT_NODEV, "nodev"),
    (libc::MNT_NOEXEC, "noexec"),
    (libc::MNT_NOATIME, "noatime"),
    (libc::MNT_SYNCHRONOUS, "sync"),
    (libc::MNT_ASYNC, "async"),
    (libc::MNT_LOCAL, "local"),
    (libc::MNT_JOURNALED, "journaled"),
];

fn mounted(mount: Mount) -> MountEntry {
    let has = |flag: libc::c_int| mount.flags & flag.cast_unsigned() != 0;
    let access = if has(libc::MNT_RDONLY) { "ro" } else { "rw" };
    let others = OPTIONS.iter().filter(|(flag, _)| has(*flag)).map(|(_, word)| *word);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    // `major` and `minor` of `sys/types.h`.
    let device = mount.device.cast_unsigned();
    MountEntry {
        options: [access].into_iter().chain(others).map(str::to_owned).collect(),
        device: format!("{}:{}", device >> 24, device & 0x00ff_ffff),
        path: text(mount.path),
        source: text(mount.source),
        kind: text(mount.kind),
    }
}

/// Returns the number of processes whose executable file or kernel name has this name.
pub fn processes(name: &str) -> io::Result<u32> {
    let is_named = |pid: i32| {
        let file = process::program(pid).ok();
        let file = file.as_deref().and_then(|file| file.file_name());
        file.is_some_and(|file| file == name) || process::name(pid).is_ok_and(|called| called == name.as_bytes())
    };
    let count = process::pids()?.into_iter().filter(|pid| is_named(*pid)).count();
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}
