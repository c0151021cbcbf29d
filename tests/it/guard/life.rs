//! Real tools and a real agent in a guarded session. `it/opencode.rs` lists the steps that the agent must complete.

use std::fs;
use std::path::{Path, PathBuf};

use agentd_api::isolation::Isolation;

use super::at;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, require};

/// Returns a shell line that uses git, cargo and node, if each is installed, and prints `all of it worked`.
pub(crate) fn use_of_tools(directory: &Path) -> String {
    let cargo = PathBuf::from(env!("CARGO"));
    let mut lines = vec![format!("set -e; mkdir -p {0}; cd {0}", quoted(directory))];
    let is_there = |program: &str| ["/usr/bin", "/usr/local/bin"].iter().any(|at| Path::new(at).join(program).exists());
    if is_there("git") {
        let user = "-c user.name=A -c user.email=a@example.com";
        lines.push(format!("git init -q .; echo x > f; git add f; git {user} commit -qm one; git log --oneline >log"));
    }
    if is_there("node") {
        lines.push("node -e \"require('fs').writeFileSync('n', String(6*7))\"; test $(cat n) = 42".to_owned());
    }
    if is_there("cc") && fs::metadata(&cargo).is_ok() {
        let bin = cargo.parent().expect("a program is in a directory");
        lines.push("mkdir -p empty/src; echo 'fn main() {}' > empty/src/main.rs".to_owned());
        lines.push(
            "printf '[package]\\nname = \"empty\"\\nedition = \"2024\"\\n[workspace]\\n' > empty/Cargo.toml".to_owned(),
        );
        let rustc = quoted(bin.join("rustc"));
        lines.push(format!("cd empty; RUSTC={rustc} {} build -q --offline; ./target/debug/empty", quoted(&cargo)));
    }
    lines.push("echo all of it worked".to_owned());
    lines.join("; ")
}

#[tokio::test]
async fn git_cargo_and_node_work_inside() {
    let Some(()) = require::guard() else { return };
    let daemon = Daemon::start().await;
    let session = daemon.session(&at(&daemon, Isolation::Guard)).await;
    let turn = session.turn(&format!("tool {} 2>&1", use_of_tools(&daemon.work().join("tools")))).await;
    assert!(turn.text.trim_end().ends_with("all of it worked"), "{}", turn.text);
}
