//! What differs between operating systems in the daemon's own work.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
pub(crate) use linux::{activated_socket, kill_remains};
#[cfg(target_os = "macos")]
pub(crate) use macos::activated_socket;

/// There is no way to read another process's environment without privileges; what a lost keeper left is not found.
#[cfg(not(target_os = "linux"))]
pub(crate) async fn kill_remains(_session: &str) -> u32 {
    0
}
