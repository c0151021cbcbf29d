//! Shared parts of the tests in `tests/it`: a real daemon, a client, sessions, and access to processes.
//!
//! Every wait is for a condition and bounded by [`LIMIT`]; no test sleeps for a guessed time. All processes of a test
//! end when its [`Daemon`] is dropped.

pub(crate) mod client;
#[cfg(target_os = "linux")]
pub(crate) mod container;
pub(crate) mod ctl;
pub(crate) mod daemon;
pub(crate) mod dead;
pub(crate) mod digest;
pub(crate) mod events;
pub(crate) mod home;
pub(crate) mod journal;
pub(crate) mod lab;
pub(crate) mod machine;
#[path = "../agents/model_server.rs"]
pub(crate) mod model_server;
pub(crate) mod openmetrics;
pub(crate) mod paths;
pub(crate) mod planted;
pub(crate) mod process;
pub(crate) mod quote;
pub(crate) mod random;
pub(crate) mod reached;
pub(crate) mod requests;
pub(crate) mod require;
pub(crate) mod session;
#[cfg(target_os = "linux")]
pub(crate) mod slurm;
pub(crate) mod sshd;
#[cfg(target_os = "linux")]
pub(crate) mod static_keeper;
#[cfg(target_os = "linux")]
pub(crate) mod terminal;
#[cfg(target_os = "linux")]
pub(crate) mod tmux;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use client::{Client, Response};
pub(crate) use daemon::Daemon;
pub(crate) use session::Session;

/// Maximum duration of one wait: far longer than needed on a machine with a busy processor and a busy
/// disk, and short enough for a person.
pub(crate) const LIMIT: Duration = Duration::from_mins(3);

/// Waits for `future`. Fails the test with the description `what` after [`LIMIT`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(LIMIT, future).await else {
        panic!("{what}: not within {} s", LIMIT.as_secs());
    };
    value
}

/// Polls until `condition` holds, for changes without a notification: a process's end, or a file's growth.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Returns the path of the scripted agent (tests/agents/scripted.rs), an example of the package `agentd`.
pub(crate) fn scripted_agent() -> PathBuf {
    let path = paths::programs().join("examples").join("scripted-agent");
    assert!(
        path.exists(),
        "{} is missing: plain `cargo test` builds it, `cargo test --test it` does not; \
         run `cargo build -p agentd --example scripted-agent`",
        path.display()
    );
    path
}
