//! Sockets that launchd opened for its job: `Sockets` of launchd.plist(5).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

#[allow(unsafe_code, reason = "launchd hands over sockets only through this C function")]
unsafe extern "C" {
    /// The function of launch(3) in libSystem. The crate `libc` does not declare this function.
    fn launch_activate_socket(name: *const c_char, fds: *mut *mut c_int, count: *mut usize) -> c_int;
}

/// Returns the sockets of this name from the job's property list. launchd hands them over only once.
///
/// The list is empty if this process is not a launchd job, or if its job has no sockets of this name.
#[allow(unsafe_code, reason = "launchd hands over sockets only through this C function")]
pub fn sockets(name: &CStr) -> io::Result<Vec<OwnedFd>> {
    let (mut fds, mut count): (*mut c_int, usize) = (std::ptr::null_mut(), 0);
    // SAFETY: the name ends with NUL, and both result pointers point to local variables that outlive the call.
    let status = unsafe { launch_activate_socket(name.as_ptr(), &raw mut fds, &raw mut count) };
    match status {
        0 => {}
        libc::ESRCH | libc::ENOENT => return Ok(Vec::new()),
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    if fds.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: on success `fds` points to `count` open descriptors that the caller now owns exclusively.
    let sockets = (0..count).map(|at| unsafe { OwnedFd::from_raw_fd(*fds.add(at)) }).collect();
    // SAFETY: the caller owns the list and does not use it afterwards.
    unsafe { libc::free(fds.cast::<c_void>()) };
    Ok(sockets)
}
