//! Safe wrappers of C functions of macOS. All such calls of agentd are in this crate.
//!
//! The crate only returns the system's answers. `agentd-keeper` and the daemon's `platform` module interpret
//! them, as on Linux.
//!
//! On other systems only the modules without C calls are compiled, so that their tests run there too.
//!
//! Existing crates are not used for these reasons:
//!
//! - `raunch` wraps the same function of launchd, but returns raw descriptor numbers. Without a socket it makes
//!   a slice of a null pointer.
//! - `libproc` runs bindgen, which needs libclang. It also trusts any type that claims to be one of the
//!   system's.
//! - `sysinfo` has no process groups, and its start times are whole seconds.

pub mod family;
#[cfg(target_os = "macos")]
pub mod launchd;
#[cfg(target_os = "macos")]
pub mod mounts;
#[cfg(target_os = "macos")]
pub mod process;
pub mod strings;
