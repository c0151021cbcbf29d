//! launchd's side of socket activation, launchd.plist(5) `Sockets` and `launch_activate_socket(3)`; and what macOS does not tell of processes.
//!
//! Another process's environment cannot be read without privileges there, so what a lost keeper left behind is not found by its mark: the
//! keeper's own walk of the process tree is the only sweep.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// The key under `Sockets` in the job's property list.
const NAME: &std::ffi::CStr = c"control";

#[allow(unsafe_code, reason = "launchd hands sockets over by this C function only")]
unsafe extern "C" {
    fn launch_activate_socket(name: *const c_char, fds: *mut *mut c_int, count: *mut usize) -> c_int;
    fn free(pointer: *mut std::ffi::c_void);
}

/// The socket that launchd listens on for us; `None` where it did not start us.
#[allow(unsafe_code, reason = "launchd hands sockets over by this C function only")]
pub(crate) fn activated_socket() -> io::Result<Option<OwnedFd>> {
    let (mut fds, mut count): (*mut c_int, usize) = (std::ptr::null_mut(), 0);
    // SAFETY: the name ends with NUL, and both results point to places of ours that live through the call.
    let status = unsafe { launch_activate_socket(NAME.as_ptr(), &raw mut fds, &raw mut count) };
    match status {
        0 if count > 0 && !fds.is_null() => {
            // SAFETY: on success `fds` points to `count` descriptors, which are the caller's, in memory that is the caller's to free.
            let descriptor = unsafe {
                let first = *fds;
                free(fds.cast());
                OwnedFd::from_raw_fd(first)
            };
            Ok(Some(descriptor))
        }
        // ESRCH: not a job of launchd; ENOENT: the job has no socket of this name.
        0 | 3 | 2 => Ok(None),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Not told without privileges; the keeper's own word has to do.
pub(crate) fn start_time(_pid: u32) -> Option<u64> {
    None
}

/// There are no units.
pub(crate) fn unit_of(_pid: u32, _prefix: &str) -> Option<String> {
    None
}

/// SIGTERM.
pub(crate) fn terminate(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
    }
}

/// None that could be seen.
pub(crate) fn session_of(_pid: u32) -> Option<String> {
    None
}

/// None that could be seen.
pub(crate) fn marked_sessions() -> BTreeSet<String> {
    BTreeSet::new()
}

/// None that could be found.
pub(crate) async fn kill_remains(_session: &str) -> u32 {
    0
}
