//! Runs `agentctl` like a user, in an environment with only the daemon's socket.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};

use super::{Daemon, paths, within};

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Returns the exit status, the standard output and the standard error.
    pub(crate) fn parts(self) -> (Option<i32>, String, String) {
        (self.status, self.out, self.err)
    }
}

/// Builds the command with pipes for its output and an empty standard input.
pub(crate) fn agentctl(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(paths::agentctl());
    command.env_clear().env("AGENTD_SOCKET", daemon.client.socket()).current_dir(daemon.work());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the command to its end.
pub(crate) async fn ctl(daemon: &Daemon, arguments: &[&str]) -> Said {
    end_of(agentctl(daemon, arguments).spawn().expect("it can be executed")).await
}

/// Runs the command to its end, with this text on its standard input, which is a pipe.
pub(crate) async fn ctl_with(daemon: &Daemon, arguments: &[&str], input: &str) -> Said {
    let mut child = agentctl(daemon, arguments).stdin(Stdio::piped()).spawn().expect("it can be executed");
    let mut pipe = child.stdin.take().expect("it is a pipe");
    // A command that ends early does not read the whole text.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    end_of(child).await
}

/// Waits for the command's end.
pub(crate) async fn end_of(child: Child) -> Said {
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    let Output { status, stdout, stderr } =
        within("agentctl ends", ended).await.expect("no panic").expect("it can be waited for");
    let text = |bytes| String::from_utf8(bytes).expect("it prints UTF-8");
    Said { status: status.code(), out: text(stdout), err: text(stderr) }
}
