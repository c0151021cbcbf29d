//! What the host does for plugins on the machine: programs, files, the network, mounts, processes.
//!
//! Whether a plugin may is decided by who calls this: where a name means what the file system makes of it, everything is resolved first,
//! then [`agentd_plugins::Allowed`] is asked, and what is used afterwards is what was resolved. Every call ends by its deadline, a little before it where
//! there is something to tell; a call that is dropped ends what it started. Nothing here blocks a thread of the daemon on something that
//! may not answer: that is asked in a process of its own (`look`), which is killed.
//!
//! Not its job: sessions, the environment, and what a grant means.

mod called;
mod command;
mod exchange;
mod file;
mod look;
mod mount;
mod network;
mod place;
mod process;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_plugins::{Failure, Places};

pub use called::{OnMachine, Patience};
use look::Looks;
pub use place::Place;
pub(crate) use place::is_served;

/// What is done on this machine for plugins; one for the daemon.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The program `agentd-keeper`.
    keeper: PathBuf,
    looks: Looks,
}

impl Machine {
    pub fn new(keeper: PathBuf) -> Self {
        Self { looks: Looks::new(keeper.clone()), keeper }
    }
}

/// The path with its place put in; one with `..` in it is refused, whatever it would come to.
fn absolute(path: &str, places: &Places) -> Result<String, Failure> {
    let found = match path.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        None => path.to_owned(),
        Some((name, below)) => {
            let place = match name {
                "cwd" => &places.cwd,
                "session" => &places.session,
                "config" => &places.config,
                "home" => &places.home,
                _ => return Err(Failure::Failed(format!("the path {path:?} begins with a place that there is not"))),
            };
            let place = place.as_ref().ok_or_else(|| {
                Failure::NotFound(format!("the path {path:?} begins with a place that this call does not have"))
            })?;
            if !below.is_empty() && !below.starts_with('/') {
                return Err(Failure::Failed(format!("the path {path:?} has no / behind its place")));
            }
            format!("{place}{below}")
        }
    };
    if !found.starts_with('/') || path.contains('\0') {
        let text = format!("the path {path:?} is neither absolute nor begins with {{cwd}}, {{session}} or {{config}}");
        return Err(Failure::Failed(text));
    }
    if path.split('/').any(|name| name == "..") {
        return Err(Failure::NotGranted(format!("the path {path:?} has \"..\" in it")));
    }
    Ok(found)
}

/// A path as the interface has it: text.
fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::Failed(format!("the path {} is not UTF-8", path.display())))
}

/// A little before a deadline, so that whoever set it still gets to hear what happened by then.
fn before(deadline: Instant) -> Instant {
    let margin = (deadline.saturating_duration_since(Instant::now()) / 10).min(Duration::from_millis(50));
    deadline.checked_sub(margin).unwrap_or(deadline)
}

/// What the kernel tells of itself, which it does without waiting for anybody else.
async fn blocking<T: Send + 'static>(
    action: &'static str,
    deadline: Instant,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let begun = Instant::now();
    let done = tokio::time::timeout_at(before(deadline).into(), tokio::task::spawn_blocking(work)).await;
    let late = |_| Failure::TimedOut(format!("to {action} took longer than {}", seconds(begun, deadline)));
    let done = done.map_err(late)?.map_err(|error| Failure::Failed(format!("cannot {action}: {error}")))?;
    done.map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => Failure::Unavailable(format!("agentd cannot {action} on this system")),
        _ => Failure::Failed(format!("cannot {action}: {error}")),
    })
}

/// How long it was until the deadline, for a message.
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
