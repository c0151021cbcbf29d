//! The mount table, from getfsstat(2). The kernel answers without contacting a file system, so a file system
//! that does not respond blocks nothing.

use std::ffi::c_int;
use std::io;
use std::mem;

use crate::process::text;

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Mount point.
    pub path: Vec<u8>,
    /// A device, or a share as its server names it.
    pub source: Vec<u8>,
    /// Type of the file system, for example `apfs`, `nfs` or `smbfs`.
    pub kind: Vec<u8>,
    /// Flags `MNT_...` of `sys/mount.h`.
    pub flags: u32,
    /// Device number that stat(2) returns for files on the mount.
    pub device: i32,
}

/// Returns all mounts.
#[allow(unsafe_code, reason = "a C call")]
pub fn mounts() -> io::Result<Vec<Mount>> {
    loop {
        // SAFETY: a null buffer asks for the number of mounts.
        let count = counted(unsafe { libc::getfsstat(std::ptr::null_mut(), 0, libc::MNT_NOWAIT) })?;
        // SAFETY: all-zero is a value of this struct of numbers.
        let mut list: Vec<libc::statfs> = (0..=count).map(|_| unsafe { mem::zeroed() }).collect();
        let bytes = c_int::try_from(list.len() * mem::size_of::<libc::statfs>()).map_err(io::Error::other)?;
        // SAFETY: the buffer is of that many bytes.
        let count = counted(unsafe { libc::getfsstat(list.as_mut_ptr(), bytes, libc::MNT_NOWAIT) })?;
        // If the buffer is full, there may be more mounts.
        if count < list.len() {
            return Ok(list[..count].iter().map(mount).collect());
        }
    }
}

#[allow(unsafe_code, reason = "the two numbers of an fsid are private in the crate libc")]
fn mount(of: &libc::statfs) -> Mount {
    // SAFETY: a `fsid_t` is `struct { int32_t val[2]; }` (`sys/_types/_fsid_t.h`), and the crate's type is `repr(C)`.
    let [device, _] = unsafe { mem::transmute::<libc::fsid_t, [i32; 2]>(of.f_fsid) };
    let (path, source, kind) = (text(&of.f_mntonname), text(&of.f_mntfromname), text(&of.f_fstypename));
    Mount { path, source, kind, flags: of.f_flags, device }
}

/// Converts the result of getfsstat(2) into a count or an error.
fn counted(count: c_int) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
