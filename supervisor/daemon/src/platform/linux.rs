//! Processes, as proc(5) shows them, and systemd's side of socket activation.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::env::SESSION_VARIABLE;

/// How often the processes are looked through; each time those found before are gone.
const ROUNDS: u32 = 50;

/// The socket that systemd listens on for us, `sd_listen_fds(3)`; `None` where there is none.
pub(crate) fn activated_socket() -> io::Result<Option<OwnedFd>> {
    let first = sd_notify::listen_fds()?.next();
    // SAFETY: the descriptors from 3 on are ours alone; the variables name this process, and nobody else in it asks for them.
    #[allow(unsafe_code, reason = "a descriptor that was handed over is a number until it is owned")]
    let owned = first.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok(owned)
}

/// Kills every process that carries the session's mark in its environment; how many there were. For a session whose keeper is gone:
/// whoever has the mark was started by that session's agent, and has nobody to answer to.
pub(crate) async fn kill_remains(session: &str) -> u32 {
    let mark = format!("{SESSION_VARIABLE}={session}");
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let mark = mark.clone();
        let round = tokio::task::spawn_blocking(move || kill_once(&mark)).await.unwrap_or(0);
        if round == 0 {
            break;
        }
        killed += round;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    killed
}

fn kill_once(mark: &str) -> u32 {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let own = std::process::id();
    let mut killed = 0;
    for pid in processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()) {
        // Another user's environment cannot be read, and a zombie's is empty.
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { continue };
        let marked = environment.split(|&byte| byte == 0).any(|entry| entry == mark.as_bytes());
        if marked && pid != own {
            let Ok(pid) = i32::try_from(pid) else { continue };
            if kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok() {
                killed += 1;
            }
        }
    }
    killed
}
