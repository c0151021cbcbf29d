//! The control socket of a service after the removal of its file or directory.

use super::*;

#[tokio::test]
async fn a_service_whose_socket_or_runtime_directory_is_removed_is_reached_again_and_keeps_its_sessions() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let id = lab.session();
    let status = |property: &str| lab.agentctl(&["show", id.as_str()])["status"][property].clone();
    let (agent, keeper) = (status("agent_pid"), status("keeper_pid"));
    let service =
        |property: &str| lab.systemctl(&["show", "--value", "-p", property, "agentd.service"]).trim().to_owned();
    let pid = service("MainPID");
    // With `--socket`, agentctl uses only this socket and starts no service.
    let asked = "exec agentctl --socket $XDG_RUNTIME_DIR/agentd/control.sock version";
    let is_reached = || lab.try_worker(&["sh", "-c", asked]).status.success();
    assert!(is_reached());
    for lost in ["agentd/control.sock", "agentd"] {
        lab.worker(&["sh", "-c", &format!("rm -r $XDG_RUNTIME_DIR/{lost}")]);
        until("the service is reached again", is_reached).await;
        assert_eq!(service("MainPID"), pid, "the same daemon");
    }
    until("the status line says what to do", || {
        service("StatusText").contains("systemctl --user restart agentd.socket agentd.service")
    })
    .await;

    // The next daemon receives systemd's socket, but the socket's file no longer exists.
    lab.systemctl(&["restart", "agentd.service"]);
    until("the service is reached again", is_reached).await;
    assert_ne!(service("MainPID"), pid);
    assert_eq!((status("agent_pid"), status("keeper_pid")), (agent.clone(), keeper.clone()));

    // The commands of the status line recreate the path through systemd.
    lab.systemctl(&["restart", "agentd.socket", "agentd.service"]);
    until("the service is reached again", is_reached).await;
    until("nothing ails it any more", || !service("StatusText").contains("control socket")).await;
    lab.systemctl(&["stop", "agentd.service"]);
    until("the first request starts the service", is_reached).await;
    assert_eq!((status("agent_pid"), status("keeper_pid")), (agent, keeper), "no agent was ended for it");
}
