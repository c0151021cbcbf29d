//! What the tests of `tests/it` share: a real daemon, a client for it, a session at a time, processes to look for.
//!
//! Every wait is for a condition and bounded by [`LIMIT`]; nothing sleeps in the hope that something has happened. What a
//! test started is gone when its [`Daemon`] is dropped, whatever the test did.

pub(crate) mod client;
pub(crate) mod ctl;
pub(crate) mod daemon;
pub(crate) mod dead;
pub(crate) mod digest;
pub(crate) mod events;
pub(crate) mod journal;
pub(crate) mod lab;
#[path = "../agents/model_server.rs"]
pub(crate) mod model_server;
pub(crate) mod planted;
pub(crate) mod process;
pub(crate) mod quote;
pub(crate) mod random;
pub(crate) mod requests;
pub(crate) mod require;
pub(crate) mod session;
#[cfg(target_os = "linux")]
pub(crate) mod terminal;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use client::{Client, Response};
pub(crate) use daemon::Daemon;
pub(crate) use session::Session;

/// How long any one wait may take: far longer than it needs on a busy machine, and much shorter than a person's patience.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// Waits for `future`, and fails the test with what was awaited when it takes longer than [`LIMIT`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(LIMIT, future).await else {
        panic!("{what}: not within {} s", LIMIT.as_secs());
    };
    value
}

/// Looks again and again until `condition` holds, for what announces itself to nobody: a process's end, a file's growth.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The scripted agent (tests/agents/scripted.rs), an example of the package `agentd`.
pub(crate) fn scripted_agent() -> PathBuf {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_agentd")).with_file_name("examples").join("scripted-agent");
    assert!(
        path.exists(),
        "{} is missing: plain `cargo test` builds it, `cargo test --test it` does not; run `cargo build -p agentd --example scripted-agent`",
        path.display()
    );
    path
}
