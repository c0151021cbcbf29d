//! Operating system interface: the only module of this crate with code for a particular system.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod linux_tcp;
#[cfg(any(target_os = "macos", test))]
mod lsof;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
pub use linux::program;
#[cfg(target_os = "linux")]
pub(crate) use linux::{Peer, cgroups, relative};
#[cfg(target_os = "linux")]
pub(crate) use linux_tcp::{holders, still_holds};
#[cfg(target_os = "macos")]
pub(crate) use lsof::{holders, still_holds};
#[cfg(target_os = "macos")]
pub use macos::program;
#[cfg(target_os = "macos")]
pub(crate) use macos::{Peer, cgroups, relative};

/// Process with its parent and its process name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relative {
    pub(crate) pid: i32,
    /// Process id of the parent; 0 if the parent is not visible from here.
    pub(crate) parent: i32,
    pub(crate) start_time: u64,
    /// First 15 bytes of its program's name, unless the process set another name.
    pub(crate) name: Vec<u8>,
}

/// The processes that may hold the other end of a TCP connection of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holders {
    /// User who made the socket.
    pub(crate) uid: u32,
    /// Number of the socket, where the system has such numbers.
    pub(crate) inode: u64,
    /// Processes that hold the socket.
    pub(crate) pids: Vec<i32>,
    /// Processes of that user whose descriptors this process may not read.
    pub(crate) hidden: Vec<i32>,
}
