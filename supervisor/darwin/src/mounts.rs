//! The mount table: getfsstat(2), as the kernel has it, without asking any file system, so that one that does not answer keeps nobody waiting.

use std::ffi::c_int;
use std::io;
use std::mem;

use crate::process::text;

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub path: Vec<u8>,
    /// A device, or a share as its server calls it.
    pub source: Vec<u8>,
    /// Such as `apfs`, `nfs`, `smbfs`.
    pub kind: Vec<u8>,
    /// `MNT_...` of `sys/mount.h`.
    pub flags: u32,
    /// What stat(2) says as the device of what is on it.
    pub device: i32,
}

/// What is mounted.
#[allow(unsafe_code, reason = "a C call")]
pub fn mounts() -> io::Result<Vec<Mount>> {
    loop {
        // SAFETY: a null buffer asks for the number of mounts.
        let count = told(unsafe { libc::getfsstat(std::ptr::null_mut(), 0, libc::MNT_NOWAIT) })?;
        // SAFETY: all-zero is a value of this struct of numbers.
        let mut list: Vec<libc::statfs> = (0..=count).map(|_| unsafe { mem::zeroed() }).collect();
        let bytes = c_int::try_from(list.len() * mem::size_of::<libc::statfs>()).map_err(io::Error::other)?;
        // SAFETY: the buffer is of that many bytes.
        let count = told(unsafe { libc::getfsstat(list.as_mut_ptr(), bytes, libc::MNT_NOWAIT) })?;
        // Where it is full there may be more.
        if count < list.len() {
            return Ok(list[..count].iter().map(mount).collect());
        }
    }
}

#[allow(unsafe_code, reason = "the crate libc keeps the two numbers of an fsid to itself")]
fn mount(of: &libc::statfs) -> Mount {
    // SAFETY: a `fsid_t` is `struct { int32_t val[2]; }` (`sys/_types/_fsid_t.h`), and the crate's is laid out as C does it.
    let [device, _] = unsafe { mem::transmute::<libc::fsid_t, [i32; 2]>(of.f_fsid) };
    let (path, source, kind) = (text(&of.f_mntonname), text(&of.f_mntfromname), text(&of.f_fstypename));
    Mount { path, source, kind, flags: of.f_flags, device }
}

fn told(count: c_int) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
