//! The static program agentd-keeper, for containers and for machines with another C library.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::paths;

/// Builds the program if its sources have changed, and returns its path. An optimized caller gets an optimized program.
/// Cargo lets one build run at a time.
pub(crate) fn static_keeper() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let script = paths::checkout().join(".ci/static");
        let optimized = (!cfg!(debug_assertions)).then_some("--release");
        let output = Command::new(script).args(optimized).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.expect(".ci/static can be executed");
        assert!(output.status.success(), "agentd-keeper cannot be built as a static program");
        PathBuf::from(String::from_utf8(output.stdout).expect("it prints a path").trim_end())
    };
    BUILT.get_or_init(build).clone()
}
