//! Implements the host services that plugins call: programs, files, the network, mounts and processes.
//!
//! The caller decides whether a plugin may use a service. For names that depend on the file system, a path is
//! resolved first, then [`agentd_plugin_host::PathFilter`] is asked, and the resolved path is used. Every call ends by
//! its deadline, or a little earlier if it has a result to report. Dropping a call ends the processes that it started.
//! Nothing here blocks a thread of the daemon: operations that may hang run in a separate process (`look`), which is
//! killed. The daemon itself looks only at files of file systems that cannot hang (`local`).
//!
//! This module does not know sessions or environments, and it does not interpret grants.

mod call_machine;
mod command;
mod directory;
mod exchange;
mod file;
mod identity;
mod local;
mod look;
mod mount;
mod network;
mod path_state;
mod process;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use agentd_plugin_host::{Failure, Places};

pub use call_machine::{CallMachine, CallTime};
pub use command::DIRECTORIES as PROGRAM_DIRECTORIES;
pub use directory::Subdirectories;
pub use identity::ExaminedDirectory;
pub use local::{LocalFiles, Mounts};
use look::Lookers;

use crate::KeeperProgram;
pub use path_state::{IsEnough, PathState, is_served};

/// Services of this machine for plugins. The daemon has one instance. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The program `agentd-keeper`.
    keeper: KeeperProgram,
    lookers: Lookers,
    mounts: Mounts,
}

impl Machine {
    /// Creates the services of the machine on which the program `agentd-keeper` runs.
    pub fn new(keeper: impl Into<KeeperProgram>) -> Self {
        let keeper = keeper.into();
        let mounts = if keeper.place().is_some() { Mounts::elsewhere() } else { Mounts::default() };
        Self { lookers: Lookers::new(keeper.clone()), keeper, mounts }
    }

    /// Reports whether the services are those of a place, and not of this machine.
    pub fn is_elsewhere(&self) -> bool {
        self.keeper.place().is_some()
    }

    /// Refuses a query of the kernel on a place, for which agentd-keeper has no role.
    fn only_here(&self, action: &str) -> Result<(), Failure> {
        match self.keeper.place() {
            None => Ok(()),
            Some(place) => Err(Failure::Unavailable(format!("agentd cannot {action} on place {place:?}"))),
        }
    }

    /// Returns the mount table that the services keep.
    pub fn mount_table(&self) -> &Mounts {
        &self.mounts
    }
}

/// Replaces the place at the start of a path. A path with `..` is refused, whatever it resolves to.
fn absolute(path: &str, places: &Places) -> Result<String, Failure> {
    let found = match path.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        None => path.to_owned(),
        Some((name, below)) => {
            let place = match name {
                "cwd" => &places.cwd,
                "session" => &places.session,
                "config" => &places.config,
                "home" => &places.home,
                _ => return Err(Failure::Failed(format!("the path {path:?} begins with an unknown place"))),
            };
            let place = place.as_ref().ok_or_else(|| {
                Failure::NotFound(format!("the path {path:?} begins with a place that this call does not have"))
            })?;
            if !below.is_empty() && !below.starts_with('/') {
                return Err(Failure::Failed(format!("the path {path:?} has no / after its place")));
            }
            format!("{place}{below}")
        }
    };
    if !found.starts_with('/') || path.contains('\0') {
        let text = format!("the path {path:?} is neither absolute nor begins with {{cwd}}, {{session}} or {{config}}");
        return Err(Failure::Failed(text));
    }
    if path.split('/').any(|name| name == "..") {
        return Err(Failure::NotGranted(format!("the path {path:?} contains \"..\"")));
    }
    Ok(found)
}

/// Converts a path to text, as the plugin interface requires.
fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::Failed(format!("the path {} is not UTF-8", path.display())))
}

/// Returns a time a little before a deadline, so that the caller can still receive a report.
fn before(deadline: Instant) -> Instant {
    let margin = (deadline.saturating_duration_since(Instant::now()) / 10).min(Duration::from_millis(50));
    deadline.checked_sub(margin).unwrap_or(deadline)
}

/// Runs a kernel query that does not wait for other systems on a blocking thread.
async fn blocking<T: Send + 'static>(
    action: &'static str,
    deadline: Instant,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let begun = Instant::now();
    let done = tokio::time::timeout_at(before(deadline).into(), crate::work::blocking(work)).await;
    let late = |_| Failure::TimedOut(format!("cannot {action} within {}", seconds(begun, deadline)));
    let done = done.map_err(late)?.map_err(|error| Failure::Failed(format!("cannot {action}: {error}")))?;
    done.map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => Failure::Unavailable(format!("agentd cannot {action} on this system")),
        _ => Failure::Failed(format!("cannot {action}: {error}")),
    })
}

/// Formats the time from `since` to the deadline for a message.
fn seconds(since: Instant, deadline: Instant) -> String {
    format!("{:.1} s", deadline.saturating_duration_since(since).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_with_a_place_that_there_is_and_does_not_lead_out() {
        let places = Places { cwd: Some("/w".to_owned()), home: Some("/h".to_owned()), ..Places::default() };
        for (path, is) in [
            ("{cwd}/a/b", "/w/a/b"),
            ("{cwd}//etc", "/w//etc"),
            ("{cwd}", "/w"),
            ("{home}/.x", "/h/.x"),
            ("/etc/a..b", "/etc/a..b"),
        ] {
            assert_eq!(absolute(path, &places).as_deref(), Ok(is));
        }
        for outside in ["{cwd}/../x", "/etc/..", "/../etc"] {
            assert!(matches!(absolute(outside, &places), Err(Failure::NotGranted(_))), "{outside}");
        }
        for wrong in ["", "a", "{cwd}x", "{other}/x", "{cwd", "/a\0b"] {
            assert!(matches!(absolute(wrong, &places), Err(Failure::Failed(_))), "{wrong:?}");
        }
        assert!(matches!(absolute("{session}/x", &places), Err(Failure::NotFound(_))));
    }
}
