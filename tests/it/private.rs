//! The memory of daemon and keeper is closed to other processes of their user. An agent has no such protection.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::{Daemon, process};

/// ID of an ordinary user without an account. The daemon runs as this user if the test runs as root, because root can
/// read all memory.
const USER: u32 = 60_124;

/// Gives the daemon's files to a user. Returns the prefix of a command that must run as this user.
pub(crate) fn as_user(daemon: &mut Daemon, user: u32) -> Vec<String> {
    if !nix::unistd::getuid().is_root() {
        return vec!["/usr/bin/env".to_owned()];
    }
    daemon.set_cache(daemon.root().join("cache"));
    let mut left = vec![daemon.root().to_owned()];
    while let Some(path) = left.pop() {
        std::os::unix::fs::chown(&path, Some(user), Some(user)).unwrap();
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    let user = user.to_string();
    ["/usr/bin/setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"].map(str::to_owned).to_vec()
}

/// Returns the limit of core files, soft and hard.
fn core_limit(limits: &str) -> String {
    limits.lines().find(|line| line.starts_with("Max core file size")).expect("each process has it").to_owned()
}

#[tokio::test]
async fn nobody_but_root_can_look_into_daemon_and_keeper_and_an_agent_is_as_its_user_has_it() {
    let mut daemon = Daemon::prepare();
    let user = as_user(&mut daemon, USER);
    // The user's limit allows core files of this size.
    let cores = ["/bin/sh", "-c", "ulimit -S -c 8 2>/dev/null; exec \"$@\"", "sh"].map(str::to_owned);
    daemon.enter(user.iter().cloned().chain(cores.clone()).collect());
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let status = session.view().await.status;
    let (keeper, agent) = (status.keeper_pid.unwrap(), status.agent_pid.unwrap());
    let opens = |pid: u32, file: &str| {
        let mut command = Command::new(&user[0]);
        command.args(&user[1..]).args(["/bin/sh", "-c", "exec 3<\"$0\"", &format!("/proc/{pid}/{file}")]);
        command.stderr(Stdio::null()).status().unwrap().success()
    };
    for (whose, pid) in [("the daemon's", daemon.pid()), ("the keeper's", keeper)] {
        for file in ["mem", "environ", "maps", "auxv"] {
            assert!(!opens(pid, file), "{whose} {file} was opened");
        }
    }
    // The system may protect the agent's memory (`kernel.yama.ptrace_scope`), so the test reads its environment.
    assert!(opens(agent, "environ"), "an agent is as dumpable as any program");

    let of = |pid: u32| core_limit(&fs::read_to_string(format!("/proc/{pid}/limits")).unwrap());
    let soft = |limit: &str| limit.split_whitespace().nth(4).unwrap().to_owned();
    assert_eq!([soft(&of(daemon.pid())), soft(&of(keeper))], ["0", "0"]);
    let expected = Command::new(&cores[0]).args(&cores[1..]).args(["cat", "/proc/self/limits"]).output().unwrap();
    assert_eq!(of(agent), core_limit(&String::from_utf8(expected.stdout).unwrap()));
    // If memory runs out, the kernel kills the agent before its keeper.
    let score =
        |pid: u32| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse::<i32>().unwrap();
    assert!(score(agent) > score(keeper), "{} {}", score(agent), score(keeper));
    session.stop().await;
    assert!(!process::is_alive(agent));
}
