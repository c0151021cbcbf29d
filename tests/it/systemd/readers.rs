//! The read-only socket that systemd creates for the administrator's agentd.

use std::process::Output;

use crate::harness::lab::Lab;
use crate::harness::{paths, require};

const SOCKET: &str = "/run/agentd-readers/worker.sock";
/// Users of the lab besides the owner: a member of the group, and one without it.
const MEMBER: &str = "4712";
const OTHER: &str = "4713";
const GROUP: &str = "4714";

/// Runs agentctl on the read-only socket as another user of the machine.
fn agentctl(lab: &Lab, user: &str, groups: &str, arguments: &[&str]) -> Output {
    let identity = ["setpriv", "--reuid", user, "--regid", user, "--groups", groups];
    let environment = ["env", "-i", &format!("AGENTD_SOCKET={SOCKET}"), "HOME=/", "/usr/local/bin/agentctl"];
    lab.command(identity.iter().chain(&environment).chain(arguments)).output().expect("nsenter can be executed")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn members_of_the_group_read_over_the_shipped_socket_and_others_do_not_connect() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let unit = "agentd-readers@.socket";
    let shipped = paths::checkout().join("units/systemd/system").join(unit);
    std::fs::copy(shipped, lab.path("/etc/systemd/system").join(unit)).expect("the unit can be copied");
    lab.root(&["groupadd", "--gid", GROUP, "agentd-readers"]);
    lab.administer();
    lab.root(&["systemctl", "stop", "agentd@worker.service"]);
    lab.root(&["systemctl", "enable", "--now", "agentd-readers@worker.socket"]);
    let verify = lab.command(["systemd-analyze", "verify", "agentd-readers@worker.socket"]).output();
    let verify = verify.expect("nsenter can be executed");
    assert!(verify.status.success() && verify.stderr.is_empty(), "{verify:?}");

    // A reader's request may be the first.
    let list = agentctl(&lab, MEMBER, GROUP, &["ls", "--json"]);
    assert!(list.status.success(), "{}", errors(&list));
    let id = lab.session();
    for restarted in [false, true] {
        if restarted {
            lab.root(&["systemctl", "restart", "agentd@worker.service"]);
        }
        let list = agentctl(&lab, MEMBER, GROUP, &["ls", "-q"]);
        assert_eq!(String::from_utf8_lossy(&list.stdout).trim(), id.as_str(), "{}", errors(&list));
        let stop = agentctl(&lab, MEMBER, GROUP, &["stop", id.as_str()]);
        assert!(!stop.status.success() && errors(&stop).contains("has the scope read"), "{}", errors(&stop));
        let other = agentctl(&lab, OTHER, OTHER, &["ls"]);
        assert!(!other.status.success() && errors(&other).contains("ermission denied"), "{}", errors(&other));
    }
    assert_eq!(lab.agentctl(&["show", id.as_str()])["status"]["phase"], "idle", "the owner's socket still serves");
}
