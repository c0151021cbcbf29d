//! Prerequisites in the output of agentctl: `check`, `ls`, and launches that are refused, wait, or are forced.

use std::io::{BufRead as _, BufReader};

use agentd_api::prerequisite::{Outcome, PrerequisiteList};
use agentd_api::session::Phase;

use crate::harness::ctl::{agentctl, ctl, end_of};
use crate::harness::within;
use crate::prerequisites::{ALL, with, world};

/// A line as words with one space between them.
pub(crate) fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_check_says_what_is_missing_and_what_to_do_and_a_launch_is_refused_waits_or_is_forced() {
    let vpn = format!("{ALL}\nremedy = \"connect the VPN\"\ninterval = \"200ms\"");
    let daemon = with(&[("vpn", &vpn), ("lab", ALL), ("licence", "moment = \"after-environment\"")]).await;
    world(&daemon, "vpn", "fail: no route");
    world(&daemon, "lab", "pass: it answers");

    let (status, table, told) = ctl(&daemon, &["check"]).await.parts();
    assert_eq!(status, Some(1), "{table}{told}");
    let lines: Vec<String> = table.lines().map(words).collect();
    assert_eq!(lines[0], "NAME OUTCOME CHECKED TOOK SUMMARY");
    assert!(lines[1].starts_with("lab pass ") && lines[1].ends_with("ms pass: it answers"), "{table}");
    assert_eq!(lines[2], "licence - - -");
    assert!(lines[3].starts_with("vpn fail ") && lines[3].ends_with("ms fail: no route"), "{table}");
    assert_eq!(lines[4..], ["", "vpn (fail): fail: no route", "remedy: connect the VPN"]);
    assert!(told.contains("licence: agentctl check --session S"), "{told}");
    assert_eq!(ctl(&daemon, &["check", "lab"]).await.status, Some(0));
    let (status, _, told) = ctl(&daemon, &["check", "gone"]).await.parts();
    assert!(status == Some(1) && told.contains("no prerequisite \"gone\""), "{status:?} {told}");
    let (status, document, _) = ctl(&daemon, &["check", "vpn", "--json"]).await.parts();
    let list: PrerequisiteList = serde_json::from_str(&document).unwrap();
    let outcome = list.prerequisites[0].report.as_ref().map(|report| report.outcome);
    assert_eq!((status, list.prerequisites.len(), outcome), (Some(1), 1, Some(Outcome::Fail)));

    let command = daemon.scripted(&[]).command.unwrap();
    let mut new = vec!["new", "--name", "fix", "--ready", "60", "--require", "licence", "--tag", "fpga", "--"];
    new.extend(command.iter().map(String::as_str));
    let (status, id, told) = ctl(&daemon, &new).await.parts();
    assert!(status == Some(1) && told.contains("agentctl check --session fix"), "{status:?} {told}");
    let view = daemon.client.get(&format!("/v1/sessions/{}", id.trim())).await;
    let view: agentd_api::session::SessionView = view.expect(200);
    let declared = (vec!["licence".to_owned()], vec!["fpga".to_owned()]);
    assert_eq!((&view.spec.requires, &view.spec.tags), (&declared.0, &declared.1));

    let (status, _, told) = ctl(&daemon, &["resume", "fix"]).await.parts();
    assert_eq!(status, Some(4), "{told}");
    let refusal =
        "agentctl: prerequisites of the session are not met\nvpn (fail): fail: no route\n  remedy: connect the VPN\n";
    assert!(told.starts_with(refusal) && told.contains("--wait"), "{told}");

    // It waits for one thing after the other, and is ready when the last of them is there.
    let resume = ["resume", "fix", "--wait=60s"];
    let waiting = agentctl(&daemon, &resume).spawn().unwrap();
    let row = async |wanted: &str| {
        within(wanted, async {
            loop {
                let (_, table, _) = ctl(&daemon, &["ls"]).await.parts();
                let row = words(table.lines().nth(1).unwrap_or_default());
                if row.contains(wanted) {
                    return (row, words(table.lines().next().unwrap_or_default()));
                }
            }
        })
        .await
    };
    let (waits, head) = row(" waiting ").await;
    assert!(
        waits.contains(" waiting ")
            && waits.contains(" vpn (fail): fail: no route; connect the VPN; ")
            && head.ends_with(" MISSING"),
        "{waits}"
    );
    world(&daemon, "licence", "pass");
    world(&daemon, "vpn", "pass");
    let (status, _, told) = end_of(waiting).await.parts();
    assert_eq!(status, Some(0), "{told}");
    assert!(told.contains("waiting: vpn (fail): fail: no route; connect the VPN; waiting until 20"), "{told}");
    assert_eq!(ctl(&daemon, &["check", "--session", "fix"]).await.status, Some(0));

    world(&daemon, "vpn", "fail: it dropped");
    let (dropped, _) = row("it dropped").await;
    assert!(
        dropped.contains(" idle ") && dropped.ends_with("vpn (fail): fail: it dropped; connect the VPN"),
        "{dropped}"
    );

    assert_eq!(ctl(&daemon, &["stop", "fix"]).await.status, Some(0));
    assert_eq!(ctl(&daemon, &["resume", "fix"]).await.status, Some(4));
    let (status, _, told) = ctl(&daemon, &["resume", "fix", "--force"]).await.parts();
    assert_eq!(status, Some(0), "{told}");
    let (status, _, told) = ctl(&daemon, &["new", "--require", "gone"]).await.parts();
    assert!(status == Some(1) && told.contains("\"gone\""), "{status:?} {told}");
}

#[tokio::test]
async fn what_is_watched_is_told_when_it_changes() {
    let daemon = with(&[("vpn", ALL)]).await;
    world(&daemon, "vpn", "pass: it is up");
    let mut child = agentctl(&daemon, &["check", "--watch"]).spawn().unwrap();
    let (sender, mut lines) = tokio::sync::mpsc::channel(16);
    let output = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.blocking_send(line)));
    assert!(within("the table's head", lines.recv()).await.unwrap().starts_with("NAME "));
    let row = within("the row", lines.recv()).await.unwrap();
    assert!(row.contains("pass: it is up"), "{row}");
    world(&daemon, "vpn", "fail: it is down");
    let change = within("the change", lines.recv()).await.unwrap();
    assert!(change.ends_with("Z vpn (fail): fail: it is down"), "{change}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn who_waits_at_a_terminal_waits_on_when_the_daemon_is_replaced() {
    let mut daemon = with(&[("vpn", ALL), ("lab", ALL)]).await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    session.wait_for_phase(Phase::Failed).await;
    let resume = ["resume", session.id.as_str(), "--wait=60s"];
    let mut child = agentctl(&daemon, &resume).spawn().unwrap();
    let (sender, mut lines) = tokio::sync::mpsc::channel(16);
    let told = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || told.lines().map_while(Result::ok).try_for_each(|line| sender.blocking_send(line)));
    let mut line = async |what: &str| within(what, lines.recv()).await.expect(what);
    for name in ["lab", "vpn"] {
        let waits = line("what it waits for").await;
        assert!(waits.contains(&format!("waiting: {name} (fail)")) && waits.matches("(fail)").count() == 1, "{waits}");
    }
    daemon.kill9();
    let away = line("that the daemon is away").await;
    assert!(away.contains("agentd is unreachable"), "{away}");
    world(&daemon, "lab", "pass");
    daemon.run().await;
    let waits = line("what it waits for still").await;
    assert!(waits.contains("waiting: vpn (fail)"), "{waits}");
    world(&daemon, "vpn", "pass");
    assert_eq!(end_of(child).await.status, Some(0));
    assert_eq!(session.view().await.status.phase, Phase::Idle);
}
