//! Process attributes that a child of the login shell inherits beside variables: umask, limits and nice value. Covers
//! which agents get them, how long the daemon keeps them, and the reports on attributes that agents cannot get.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use agentd_api::environment::{Refresh, SnapshotSource};
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::snapshot::SnapshotList;
use agentd_api::validation::ValidationView;

use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session};

const PROFILE: &str = "umask 027\nulimit -S -n 333\nrenice -n 3 -p $$ >/dev/null\nexport EDITOR=ed\n";
/// Attributes of a child after [`PROFILE`], in the format of [`WRITE`] and [`of_agent`].
const LEFT: &str = "0027 333 3";
const WRITE: &str = "echo \"$(umask) $(ulimit -S -n) $(nice)\" >";

fn profile(daemon: &Daemon, text: &str) {
    fs::write(daemon.home().join(".profile"), text).unwrap();
}

/// Reads umask, soft limit of open files and nice value of the session's agent from /proc.
async fn of_agent(session: &Session) -> String {
    let process = PathBuf::from(format!("/proc/{}", session.view().await.status.agent_pid.unwrap()));
    let text = |file: &str| fs::read_to_string(process.join(file)).unwrap();
    let (status, limits, stat) = (text("status"), text("limits"), text("stat"));
    let of = |text: &str, prefix: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(prefix)).unwrap().to_owned();
        line.split_whitespace().next().unwrap().to_owned()
    };
    let nice = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().to_owned();
    format!("{} {} {nice}", of(&status, "Umask:"), of(&limits, "Max open files"))
}

#[tokio::test]
async fn scripts_have_what_the_agent_has_of_it() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, PROFILE);
    daemon.configure(|config| {
        let providers =
            ["snapshot", "env-script"].map(|name| format!("\n[[environment.providers]]\nplugin = \"{name}\"\n"));
        config + &providers.concat()
    });
    daemon.run().await;
    let (seen, spec) = (daemon.root().join("seen"), daemon.scripted(&[]));
    let script = format!("{WRITE} {}", quoted(&seen));
    let session = daemon.session(&SessionSpec { env_setup: Some(script), ..spec }).await;
    assert_eq!(of_agent(&session).await, LEFT);
    assert_eq!(fs::read_to_string(seen).unwrap().trim(), LEFT);
}

#[tokio::test]
async fn an_environment_that_is_given_again_has_them_after_a_restart_too() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, PROFILE);
    daemon.run().await;
    let mut again = daemon.scripted(&[]);
    again.environment.refresh = Some(Refresh::Stored);
    let mut stored = daemon.scripted(&[]);
    stored.environment.source = Some(SnapshotSource::Stored);
    let sessions = [daemon.session(&again).await, daemon.session(&stored).await];
    for session in &sessions {
        assert_eq!(of_agent(session).await, LEFT);
        session.stop().await;
    }
    profile(&daemon, "export EDITOR=another\n");
    for restarted in [false, true] {
        if restarted {
            daemon.terminate().await;
            daemon.run().await;
        }
        for session in &sessions {
            session.resume().await;
            assert_eq!(of_agent(session).await, LEFT, "restarted: {restarted}");
            session.stop().await;
        }
    }
}

#[tokio::test]
async fn a_login_shell_that_fails_after_a_restart_leaves_what_it_had_before() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, PROFILE);
    daemon.run().await;
    daemon.session(&daemon.scripted(&[])).await.stop().await;
    profile(&daemon, "exit 1\n");
    daemon.terminate().await;
    daemon.run().await;
    assert_eq!(of_agent(&daemon.session(&daemon.scripted(&[])).await).await, LEFT);
}

#[tokio::test]
async fn a_limit_that_may_not_be_given_is_said_of_the_session_and_of_the_snapshot() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, "ulimit -S -n 333\n");
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    let (pid, limit) = (daemon.pid().to_string(), "--nofile=300:300");
    assert!(Command::new("prlimit").args(["--pid", &pid, limit]).status().unwrap().success());
    session.resume().await;
    assert_eq!(of_agent(&session).await.split(' ').nth(1), Some("300"));
    let view = session.view().await;
    let is_it = |kind: &ConditionType| *kind == ConditionType::EnvironmentValid;
    let condition = view.status.conditions.iter().find(|condition| is_it(&condition.kind)).unwrap();
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "LimitsWithheld"));
    assert!(condition.message.contains("nofile 333 ") && condition.message.contains("LimitNOFILE="), "{condition:?}");
    let found: ValidationView = daemon.client.get(&session.path("/validation")).await.expect(200);
    assert_eq!(found.warnings.iter().filter(|warning| warning.reason == "LimitsWithheld").count(), 1, "{found:?}");
    let list: SnapshotList = daemon.client.get("/v1/snapshots").await.expect(200);
    let [withheld] = &list.login_shells[0].withheld[..] else { panic!("{list:#?}") };
    assert!(withheld.starts_with("nofile 333 "), "{withheld}");
}
