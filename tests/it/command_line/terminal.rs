//! Commands at a terminal, with the greeting, the ways to leave, Ctrl-C, a narrow window, and no colours.

use agentd_api::session::{Phase, SessionSpec, WholeList};

use crate::harness::Daemon;
use crate::harness::ctl::agentctl;
use crate::harness::terminal::Terminal;

const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";

#[tokio::test]
async fn run_greets_with_session_agent_and_directory_and_says_how_to_leave() {
    let daemon = Daemon::start().await;
    let mut terminal = Terminal::run(&agentctl(&daemon, &["run", "--agent", "scripted", "--name", "fix"]), 200);
    terminal.shows(&format!("(fix): agent scripted in {}", daemon.work().display())).await;
    terminal.shows("Ctrl-D leaves, and the session continues: agentctl attach fix").await;
    terminal.shows("> ").await;
    terminal.types("say hello there\n");
    terminal.shows("hello there\r\n").await;
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert!(terminal.shown().contains(list.sessions[0].id.as_str()), "{}", terminal.shown());
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends().await.code(), Some(0));
    terminal.shows("the session continues: agentctl attach fix").await;
}

#[tokio::test]
async fn nothing_greets_a_file_or_a_pipe() {
    let daemon = Daemon::start().await;
    let said = crate::harness::ctl::ctl(&daemon, &["run", "--agent", "scripted", "say hello there"]).await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), "hello there\n"), "{said:#?}");
    assert!(!said.err.contains("Ctrl-"), "{said:#?}");
}

#[tokio::test]
async fn ctrl_c_cancels_a_turn_and_a_second_one_leaves() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&SessionSpec { name: Some("fix".parse().unwrap()), ..daemon.scripted(&[]) }).await;
    let mut terminal = Terminal::run(&agentctl(&daemon, &["attach", "fix"]), 80);
    terminal.shows("> ").await;
    terminal.types("hang\n");
    session.wait_for_phase(Phase::Busy).await;
    terminal.types(CTRL_C);
    terminal.shows("cancelled").await;
    session.wait_for_phase(Phase::Idle).await;
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends().await.code(), Some(130));
    terminal.shows("agentctl attach fix").await;
    session.wait_for_phase(Phase::Idle).await;
}

#[tokio::test]
async fn no_color_takes_the_colours_away_and_leaves_the_words() {
    let daemon = Daemon::start().await;
    for (colours, value) in [(true, ""), (false, "1")] {
        let mut command = agentctl(&daemon, &["run", "--agent", "scripted", "say plain"]);
        command.env("NO_COLOR", value);
        let mut terminal = Terminal::run(&command, 80);
        assert_eq!(terminal.ends().await.code(), Some(0));
        terminal.shows("the session stays").await;
        assert_eq!(terminal.shown().contains("\u{1b}["), colours, "{:?}", terminal.shown());
    }
}
