//! What macOS tells by C calls alone, with safe covers: the one place of agentd that makes such calls for it.
//!
//! Not its job: what is made of the answers. `agentd-keeper` and the daemon's `platform` do that, as they do for Linux.
//!
//! On other systems only the parts that call nothing are there, so that they are tested there too.
//!
//! Why not a crate of others: `raunch` covers the same one function of launchd, hands out bare numbers, and makes a slice of a null pointer
//! where there is no socket; `libproc` runs bindgen, which wants libclang, and gives any type that says it is one of the system's; `sysinfo`
//! has no process groups, and start times in whole seconds.

pub mod family;
#[cfg(target_os = "macos")]
pub mod launchd;
#[cfg(target_os = "macos")]
pub mod mounts;
#[cfg(target_os = "macos")]
pub mod process;
pub mod strings;
