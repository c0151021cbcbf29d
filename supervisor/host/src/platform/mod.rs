//! The parts of the daemon's work that differ between operating systems.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod linux_facts;
#[cfg(target_os = "linux")]
mod linux_load;
#[cfg(target_os = "linux")]
mod linux_mounts;
mod load;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
mod macos_facts;
#[cfg(target_os = "macos")]
mod macos_load;
#[cfg(target_os = "macos")]
mod macos_mounts;

#[cfg(target_os = "linux")]
pub use linux::{
    ActivatedSockets, NOTIFIER, SOCKET_PATH_MAX, activated_sockets, arguments, is_answered_by, is_of_systemd,
    is_running, is_stopped, keepers_of, kill_remains, kill_tree, lock_holder, marked_sessions, name_of, own_unit,
    owner_of, start_time, unit_of,
};
#[cfg(target_os = "linux")]
pub use linux_facts::{device, has_access_list, mounts, processes, routes};
#[cfg(target_os = "linux")]
pub use linux_load::loads;
#[cfg(target_os = "linux")]
pub use linux_mounts::{MountWatch, open_without_links};
pub use load::TreeLoad;
#[cfg(target_os = "macos")]
pub use macos::{
    ActivatedSockets, NOTIFIER, SOCKET_PATH_MAX, activated_sockets, arguments, is_answered_by, is_of_systemd,
    is_running, is_stopped, keepers_of, kill_remains, kill_tree, lock_holder, marked_sessions, name_of, own_unit,
    owner_of, start_time, unit_of,
};
#[cfg(target_os = "macos")]
pub use macos_facts::{device, has_access_list, mounts, processes, routes};
#[cfg(target_os = "macos")]
pub use macos_load::loads;
#[cfg(target_os = "macos")]
pub use macos_mounts::{MountWatch, open_without_links};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Sends SIGKILL to the process.
pub fn kill_now(pid: u32) {
    send(pid, Signal::SIGKILL);
}

/// Sends SIGTERM to the process.
pub fn terminate(pid: u32) {
    send(pid, Signal::SIGTERM);
}

fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        // A process that has just exited needs no signal.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
