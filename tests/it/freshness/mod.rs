//! Changes that invalidate a login snapshot. Each kind of change in a real home takes effect at the next launch.
//! Without a change, no shell runs.
//!
//! The rows are data ([`rows`]), and the test makes the table of `docs/snapshot-freshness.md` from them. With
//! `AGENTD_TEST_REWRITE` set, the test writes the table.

mod rows;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use agentd_api::session::SessionView;
use agentd_api::snapshot::{LoginSnapshotView, SnapshotList};

use crate::conformance::{Environment, daemon, of_agent};
use crate::harness::Daemon;
use rows::{HOMES, Home, Row, Seen};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/snapshot-freshness.md");
const BEGIN: &str = "<!-- tests/it/freshness.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

async fn snapshot(daemon: &Daemon) -> LoginSnapshotView {
    let mut list: SnapshotList = daemon.client.get("/v1/snapshots").await.expect(200);
    assert_eq!(list.login_shells.len(), 1, "{list:#?}");
    list.login_shells.remove(0)
}

/// Launches a session. Returns the agent's environment and the number of login shell runs so far.
async fn launch(daemon: &Daemon) -> (Environment, u64) {
    let session = daemon.create(&daemon.scripted(&[])).await;
    let environment = of_agent(&session).await;
    let view: SessionView = session.view().await;
    assert!(view.status.agent_pid.is_some());
    session.stop().await;
    (environment, snapshot(daemon).await.captures)
}

/// Makes each change in a home of this kind. Returns the rows whose change had another effect, or `None` if the shell
/// is not installed.
async fn wrong(home: &Home) -> Option<Vec<String>> {
    let program = home.shell.program()?;
    let mut daemon = daemon(&program);
    for (path, text) in home.files {
        rows::put(&daemon.home(), path, text);
    }
    (home.prepare)(&daemon.home());
    daemon.run().await;
    // A file that a shell writes at its first run is not a change by the user.
    launch(&daemon).await;
    let (_, mut before) = launch(&daemon).await;
    let mut wrong = Vec::new();
    for Row { what, change, seen } in home.rows {
        change(&daemon.home());
        let (environment, after) = launch(&daemon).await;
        let ran = after > before;
        before = after;
        let is_right = match seen {
            Seen::Value(name, value) => {
                ran && environment.get(*name).map(Vec::as_slice) == (!value.is_empty()).then_some(value.as_bytes())
            }
            Seen::Run => ran,
            Seen::Nothing => !ran,
        };
        if !is_right {
            let view = snapshot(&daemon).await;
            let got = if let Seen::Value(name, _) = seen { environment.get(*name) } else { None };
            let got = got.map(|value| String::from_utf8_lossy(value).into_owned());
            wrong.push(format!("{}: {what}: the shell was run: {ran}; {got:?}; {view:#?}", home.shell.name));
        }
    }
    Some(wrong)
}

/// Asserts that each change of a home has its effect. Does nothing if the home's shell is not installed.
async fn holds(home: &Home) {
    let Some(wrong) = wrong(home).await else { return };
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn home(name: &str) -> &'static Home {
    HOMES.iter().find(|home| home.shell.name == name).expect("there is such a home")
}

#[tokio::test]
async fn each_change_of_a_home_with_bash_is_seen_at_the_next_launch_and_nothing_else() {
    holds(home("bash")).await;
}

#[tokio::test]
async fn each_change_of_a_home_with_zsh_is_seen_at_the_next_launch_and_nothing_else() {
    holds(home("zsh")).await;
}

#[tokio::test]
async fn each_change_of_a_home_with_fish_is_seen_at_the_next_launch_and_nothing_else() {
    holds(home("fish")).await;
}

#[tokio::test]
async fn each_change_of_a_home_with_tcsh_is_seen_at_the_next_launch_and_nothing_else() {
    holds(home("tcsh")).await;
}

#[tokio::test]
async fn each_change_of_a_home_with_nushell_is_seen_at_the_next_launch_and_nothing_else() {
    holds(home("nu")).await;
}

fn table() -> String {
    let mut text = String::new();
    for (title, is_change) in [("a change, seen at the next launch", true), ("no change: no shell is run", false)] {
        let mut kinds: Vec<(&str, Vec<&str>)> = Vec::new();
        for home in HOMES {
            for row in home.rows.iter().filter(|row| (row.seen != Seen::Nothing) == is_change) {
                match kinds.iter_mut().find(|(what, _)| *what == row.what) {
                    Some((_, shells)) => shells.push(home.shell.name),
                    None => kinds.push((row.what, vec![home.shell.name])),
                }
            }
        }
        writeln!(text, "| {title} | shown with |\n|---|---|").unwrap();
        for (what, shells) in kinds {
            writeln!(text, "| {what} | {} |", shells.join(", ")).unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_table_of_the_page_has_the_rows_that_are_shown() {
    let page = fs::read_to_string(Path::new(PAGE)).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the table's beginning");
    let (committed, after) = rest.split_once(END).expect("the page has the table's end");
    let table = table();
    if std::env::var_os("AGENTD_TEST_REWRITE").is_some() {
        fs::write(PAGE, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(table, committed, "run it with AGENTD_TEST_REWRITE=1");
    }
    let rows = |is_change: bool| {
        let all = HOMES.iter().flat_map(|home| home.rows).filter(|row| (row.seen != Seen::Nothing) == is_change);
        all.map(|row| row.what).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert!(rows(true) >= 25 && rows(false) >= 10, "{} and {}", rows(true), rows(false));
}
