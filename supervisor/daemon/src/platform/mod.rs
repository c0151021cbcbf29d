//! What differs between operating systems in the daemon's own work.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod linux_facts;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
mod macos_facts;

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    SOCKET_PATH_MAX, activated_socket, is_answered_by, is_running, is_stopped, keepers_of, kill_now, kill_remains,
    kill_tree, lock_holder, marked_sessions, name_of, own_unit, owner_of, session_of, start_time, terminate, unit_of,
};
#[cfg(target_os = "linux")]
pub(crate) use linux_facts::{mounts, processes, routes};
#[cfg(target_os = "macos")]
pub(crate) use macos::{
    SOCKET_PATH_MAX, activated_socket, is_answered_by, is_running, is_stopped, keepers_of, kill_now, kill_remains,
    kill_tree, lock_holder, marked_sessions, name_of, own_unit, owner_of, session_of, start_time, terminate, unit_of,
};
#[cfg(target_os = "macos")]
pub(crate) use macos_facts::{mounts, processes, routes};
