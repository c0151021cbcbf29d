//! A guarded session in its own unit, of an ordinary user.

use std::fs;

use crate::harness::lab::Lab;
use crate::harness::session::said;
use crate::harness::{require, until};

#[tokio::test]
async fn a_guarded_session_in_a_unit_sees_nothing_of_agentd_and_keeps_its_socket_over_a_restart_of_the_service() {
    let (Some(()), Some(())) = (require::systemd(), require::guard()) else { return };
    let lab = Lab::boot().await;
    let id = lab.session_in("/home/worker/project", &["--permissions", "allow", "--isolation", "guard"]);
    let view = lab.agentctl(&["show", id.as_str()]);
    assert_eq!(view["status"]["isolation"]["level"], "guard", "{view:#}");
    let look = "tool set -- $(ls -A ~/.config/agentd) $(ls -A ~/.local/state/agentd); echo found $#; \
                kill -CONT $PPID && echo child of the agent; kill -CONT $(cat keeper) 2>&1; touch made; id -u";
    lab.write("/home/worker/project/keeper", &view["status"]["keeper_pid"].to_string());
    lab.worker(&["agentctl", "prompt", id.as_str(), look]);
    let text: String = lab.journal(&id).iter().filter_map(said).collect();
    assert!(text.contains("found 0\n") && text.contains("child of the agent"), "{text}");
    assert!(text.contains("not permitted"), "its keeper: {text}");
    let uid = lab.worker(&["id", "-u"]);
    assert!(text.contains(&format!("\n{uid}")), "{text}");
    assert!(lab.path("/home/worker/project/made").exists());

    lab.systemctl(&["restart", "agentd.service"]);
    let socket = lab.path(&format!("/run/user/{}/agentd/{id}/guest/control.sock", uid.trim()));
    let inode = || fs::metadata(&socket).map(|socket| std::os::unix::fs::MetadataExt::ino(&socket)).ok();
    lab.agentctl(&["show", id.as_str()]);
    until("the socket is there", || inode().is_some()).await;
    lab.worker(&[
        "agentctl",
        "prompt",
        id.as_str(),
        &format!("tool ~/.local/bin/agentctl show {id} 2>&1; echo ended $?"),
    ]);
    let text: String = lab.journal(&id).iter().filter_map(said).collect();
    assert!(text.contains("isolation:     guard") && text.contains("ended 0"), "{text}");
    lab.worker(&["agentctl", "stop", id.as_str()]);
    until("the socket is removed", || inode().is_none()).await;
}

#[tokio::test]
async fn the_users_service_manager_starts_a_process_outside_for_a_session_without_isolation_and_none_for_a_guarded_one()
{
    let (Some(()), Some(())) = (require::systemd(), require::guard()) else { return };
    let lab = Lab::boot().await;
    let other = lab.session_in("/home/worker/project", &["--name", "other"]);
    let ask = format!(
        "tool export XDG_RUNTIME_DIR=/run/user/$(id -u); systemd-run --user --wait --quiet \
         -p StandardOutput=file:/home/worker/shown-$LEVEL \
         ~/.local/bin/agentctl show {other} 2>&1; echo ended $?; test -S $XDG_RUNTIME_DIR/bus && echo there"
    );
    let said_at = |level: &str| {
        let id = lab.session_in("/home/worker/project", &["--permissions", "allow", "--isolation", level]);
        lab.worker(&["agentctl", "prompt", id.as_str(), &ask.replace("$LEVEL", level)]);
        let text: String = lab.journal(&id).iter().filter_map(said).collect();
        (text, fs::read_to_string(lab.path(&format!("/home/worker/shown-{level}"))).unwrap_or_default())
    };
    // The service manager started this process outside the session, so agentd treats the process as the user.
    // docs/isolation.md describes such processes.
    let (text, shown) = said_at("none");
    assert!(text.contains("ended 0\n") && shown.contains("other"), "{text} {shown}");
    let (text, shown) = said_at("guard");
    assert!(text.contains("ended 1\n") && !text.contains("there") && shown.is_empty(), "{text} {shown}");
}
