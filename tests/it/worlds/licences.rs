//! `license-server` with three servers, of which the test starts none to three.

use std::time::Duration;

use agentd_api::prerequisite::Outcome;
use agentd_api::session::{Phase, SessionSpec};

use super::stage::{Stage, assert_told, declared, fact};
use super::world::LICENCES;

const TIME: Duration = Duration::from_secs(2);
const BEFORE: &str = "moment = \"before-environment\"\ntime = \"3s\"";

fn list(separator: &str) -> String {
    LICENCES.map(|host| format!("27000@{host}")).join(separator)
}

fn servers(list: &str) -> String {
    format!("servers = \"{list}\", timeout = \"2s\"")
}

/// Returns the expected outcomes with `up` servers: of a list, which needs one server, and of a triad, which needs two.
fn expected(up: usize) -> [Outcome; 2] {
    match up {
        0 => [Outcome::Fail, Outcome::Fail],
        1 => [Outcome::Warn, Outcome::Fail],
        2 => [Outcome::Warn, Outcome::Warn],
        _ => [Outcome::Pass, Outcome::Pass],
    }
}

#[tokio::test]
async fn of_three_licence_servers_a_list_needs_one_and_a_triad_two_wherever_it_is_written() {
    let stage = Stage::new(|world| {
        let lines = LICENCES.map(|host| format!("SERVER {host} ANY 27000\n")).concat();
        let file = world.file("corp.lic", &format!("{lines}VENDOR corpd\nUSE_SERVER\n"));
        [("list", list(":")), ("triad", list(",")), ("file", file.display().to_string())]
            .map(|(name, servers_of)| declared(name, "license-server", &servers(&servers_of), BEFORE))
            .concat()
    });
    let Some(stage) = stage.await else { return };
    let file = stage.world.files().join("corp.lic").display().to_string();
    for up in 0..=3 {
        let running = stage.world.licence_servers(up);
        let [list, triad] = expected(up);
        for (name, outcome, of) in
            [("list", list, "the settings"), ("triad", triad, "the settings"), ("file", triad, file.as_str())]
        {
            let report = stage.check(name, TIME).await;
            assert_eq!(report.outcome, outcome, "{up} are up: {report:#?}");
            let begins = match outcome {
                Outcome::Pass => "the licence servers of the settings answer",
                Outcome::Warn => "licence servers of the settings answer, and not all of them: ",
                _ => "no licence server of the settings answers: ",
            };
            assert!(report.summary.starts_with(begins), "{report:#?}");
            for (at, host) in LICENCES.iter().enumerate() {
                let label = format!("27000@{host} ({of})");
                let answers = format!("answers at 10.99.1.1{} port 27000", at + 1);
                let told = if at < up { answers.as_str() } else { "refuses the connection" };
                assert_eq!(fact(&report, &label), told, "{report:#?}");
            }
            if name != "list" {
                assert_eq!(fact(&report, &format!("triad ({of})")), format!("{up} of 3 answer; 2 must"));
            }
            assert_eq!(report.remedy.is_some(), outcome != Outcome::Pass);
        }
        // Each check connects to each server once.
        assert!(running.iter().all(|server| server.accepted() == 3), "{up}");
        for server in running {
            server.close().await;
        }
    }
    stage.pulse.judge();
}

#[tokio::test]
async fn the_licence_servers_of_a_sessions_own_environment_are_those_that_are_asked() {
    let settings = "variables = [\"LM_LICENSE_FILE\"], timeout = \"2s\"";
    let keys = "required_by = \"all\"\ninterval = \"0s\"\ncache = \"0s\"\ntime = \"3s\"";
    let config = declared("licences", "license-server", settings, keys);
    let Some(stage) = Stage::new(|_| config).await else { return };
    let spec = |separator: &str| SessionSpec {
        env_setup: Some(format!("export LM_LICENSE_FILE={}", list(separator))),
        ..stage.daemon.scripted(&[])
    };
    let running = stage.world.licence_servers(3);
    let sessions = [stage.daemon.session(&spec(":")).await, stage.daemon.session(&spec(",")).await];
    for server in running {
        server.close().await;
    }
    for up in 0..=3 {
        let running = stage.world.licence_servers(up);
        for (session, outcome) in sessions.iter().zip(expected(up)) {
            let report = stage.check_for("licences", session, TIME).await;
            assert_eq!(report.outcome, outcome, "{up} are up: {report:#?}");
            let first = fact(&report, "27000@lic1.corp.test (LM_LICENSE_FILE)");
            let answers = "answers at 10.99.1.11 port 27000";
            assert_eq!(first, if up == 0 { "refuses the connection" } else { answers }, "{report:#?}");
        }
        for server in running {
            server.close().await;
        }
    }

    // A launch has the same result as a check: a triad with one server is not available.
    let running = stage.world.licence_servers(1);
    let refused = stage.daemon.create(&spec(",")).await;
    let view = refused.wait_for_phase(Phase::Failed).await;
    let message = view.status.message.unwrap_or_default();
    let told = "licences (fail): no licence server of LM_LICENSE_FILE answers: 27000@lic2.corp.test \
        (LM_LICENSE_FILE) refuses the connection; ";
    assert!(
        message.starts_with(told) && message.contains("connect to the network of the licence servers"),
        "{message}"
    );
    stage.daemon.session(&spec(":")).await;
    for server in running {
        server.close().await;
    }
    // Servers that do not answer take at most the check's time. Without the variable, the check has no result.
    for address in ["10.99.1.11", "10.99.1.12", "10.99.1.13"] {
        stage.world.inside.run(&format!("ip addr del {address}/32 dev lo"));
        stage.world.ip(&format!("neigh replace {address} lladdr 02:00:00:00:00:09 dev vpn0 nud permanent"));
    }
    let report = stage.check_for("licences", &sessions[0], TIME).await;
    assert_eq!(report.outcome, Outcome::Fail, "{report:#?}");
    assert!(
        fact(&report, "27000@lic3.corp.test (LM_LICENSE_FILE)").starts_with("does not answer within"),
        "{report:#?}"
    );
    assert_eq!(fact(&report, "route to 10.99.1.11"), "through vpn0, from 10.99.0.2");
    let without = stage.daemon.create(&stage.daemon.scripted(&[])).await;
    without.wait_for_phase(Phase::Failed).await;
    let report = stage.check_for("licences", &without, TIME).await;
    let none = "no variable of the session names a licence server";
    assert_told(&report, Outcome::Unknown, none, &[("looked for", "LM_LICENSE_FILE")]);
    stage.pulse.judge();
}
