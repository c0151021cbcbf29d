//! Sockets that launchd listens on for its job: launchd.plist(5) `Sockets`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

#[allow(unsafe_code, reason = "launchd hands sockets over by this C function only")]
unsafe extern "C" {
    /// launch(3), of libSystem; the crate `libc` does not have it.
    fn launch_activate_socket(name: *const c_char, fds: *mut *mut c_int, count: *mut usize) -> c_int;
}

/// The sockets of this name in the job's property list, which can be had once; none where this process is no job of launchd's, or its job has
/// none of this name.
#[allow(unsafe_code, reason = "launchd hands sockets over by this C function only")]
pub fn sockets(name: &CStr) -> io::Result<Vec<OwnedFd>> {
    let (mut fds, mut count): (*mut c_int, usize) = (std::ptr::null_mut(), 0);
    // SAFETY: the name ends with NUL, and both results point to places of ours that live through the call.
    let status = unsafe { launch_activate_socket(name.as_ptr(), &raw mut fds, &raw mut count) };
    match status {
        0 => {}
        libc::ESRCH | libc::ENOENT => return Ok(Vec::new()),
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    if fds.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: on success `fds` points to `count` open descriptors, which are the caller's from here on and nobody else's.
    let sockets = (0..count).map(|at| unsafe { OwnedFd::from_raw_fd(*fds.add(at)) }).collect();
    // SAFETY: the list is the caller's to free, and is not looked at again.
    unsafe { libc::free(fds.cast::<c_void>()) };
    Ok(sockets)
}
