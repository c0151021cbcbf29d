//! `agentctl attach` at a terminal: completion, questions, the status line, hostile text, and the ways out.

use agentd_api::session::{Phase, SessionSpec};
use nix::sys::signal::Signal;

use crate::harness::ctl::agentctl;
use crate::harness::terminal::Terminal;
use crate::harness::{Daemon, Session, until};

const CTRL_D: &str = "\u{4}";

async fn named(daemon: &Daemon, name: &str) -> Session {
    daemon.session(&SessionSpec { name: Some(name.parse().unwrap()), ..daemon.scripted(&[]) }).await
}

/// Attaches at a terminal, and waits until the session takes prompts.
async fn attached(daemon: &Daemon, arguments: &[&str]) -> Terminal {
    let terminal = Terminal::run(&agentctl(daemon, arguments), 100);
    terminal.shows("ready").await;
    terminal
}

#[tokio::test]
async fn tab_completes_a_command_of_the_agent_and_a_path() {
    let daemon = Daemon::start().await;
    named(&daemon, "fix").await;
    std::fs::write(daemon.work().join("notes.txt"), "").unwrap();
    let mut terminal = attached(&daemon, &["attach", "fix"]).await;
    let commands = r#"[{"name":"compact","description":"Shorten it"},{"name":"init","description":"Begin"}]"#;
    terminal.types(&format!(
        "update {{\"sessionUpdate\":\"available_commands_update\",\"availableCommands\":{commands}}}\r"
    ));
    terminal.shows("> update").await;
    terminal.types("say told\r");
    terminal.shows("told\r\n").await;
    terminal.types("/");
    terminal.shows("Shorten it").await;
    terminal.types("c\t@not\t");
    terminal.types("\r");
    terminal.shows("> /compact @notes.txt").await;
}

#[tokio::test]
async fn what_is_typed_during_an_answer_stays_below_it_and_is_sent_after_it() {
    let daemon = Daemon::start().await;
    let session = named(&daemon, "fix").await;
    let mut terminal = attached(&daemon, &["attach", "fix"]).await;
    terminal.types("count 40 10\r");
    session.wait_for_phase(Phase::Busy).await;
    terminal.types("say ");
    terminal.types("next\r");
    terminal.shows("next\r\n").await;
    let shown = terminal.shown();
    assert!((1..=40).all(|number| shown.contains(&format!("{number}\r\n"))), "each number ends its line");
}

#[tokio::test]
async fn one_key_answers_a_question_unless_it_was_typed_before() {
    let daemon = Daemon::start().await;
    named(&daemon, "fix").await;
    let mut terminal = attached(&daemon, &["attach", "fix"]).await;
    let call = r#"{"toolCallId":"1","title":"Tidy up","kind":"execute","rawInput":{"command":"rm -rf build"}}"#;
    // The second key is there before the question, and becomes text of the next prompt.
    terminal.types(&format!("ask-for {{\"call\":{call}}}\r2"));
    terminal.shows("$ rm -rf build").await;
    terminal.shows("press 1 to 2").await;
    terminal.types("1");
    terminal.shows("Yes: Tidy up").await;
    terminal.shows("chosen yes").await;
    assert!(!terminal.shown().contains("No: Tidy up"));
}

#[tokio::test]
async fn control_sequences_of_an_agent_do_nothing() {
    let daemon = Daemon::start().await;
    named(&daemon, "fix").await;
    let mut terminal = attached(&daemon, &["attach", "fix"]).await;
    let evil = r"\u001b]0;gotcha\u0007\u001b[2J\u009b31m";
    for update in [
        format!(r#""sessionUpdate":"session_info_update","title":"{evil}""#),
        format!(r#""sessionUpdate":"current_mode_update","currentModeId":"{evil}""#),
        format!(r#""sessionUpdate":"plan","entries":[{{"content":"{evil}","status":"pending"}}]"#),
        format!(r#""sessionUpdate":"tool_call","toolCallId":"1","title":"{evil}","kind":"{evil}""#),
    ] {
        terminal.types(&format!("update {{{update}}}\r"));
    }
    terminal.types(&format!("speak \"# {evil} &#27;]0;gotcha&#7; [x](http://x/{evil})\\n\"\r"));
    terminal.types("say the end\r");
    terminal.shows("the end\r\n").await;
    let shown = terminal.shown();
    assert!(!shown.contains("\u{1b}]") && !shown.contains('\u{7}') && !shown.contains('\u{9b}'), "{shown:?}");
    assert!(!shown.contains("\u{1b}[2J"), "{shown:?}");
}

#[tokio::test]
async fn every_way_out_gives_the_terminal_back() {
    let daemon = Daemon::start().await;
    named(&daemon, "fix").await;
    for signal in [None, Some(Signal::SIGTERM), Some(Signal::SIGHUP), Some(Signal::SIGINT)] {
        let mut terminal = attached(&daemon, &["attach", "fix"]).await;
        assert!(terminal.is_raw(), "{signal:?}");
        match signal {
            None => terminal.types(CTRL_D),
            Some(signal) => terminal.signal(signal),
        }
        terminal.ends().await;
        until("the terminal has its mode back", || !terminal.is_raw()).await;
        terminal.shows("\u{1b}[?2004l").await; // pastes are ordinary text again
    }
}

#[tokio::test]
async fn attach_without_a_name_goes_to_the_session_that_was_looked_at_last() {
    let daemon = Daemon::start().await;
    for name in ["one", "two"] {
        named(&daemon, name).await;
    }
    let mut terminal = attached(&daemon, &["attach", "one"]).await;
    terminal.types(CTRL_D);
    terminal.ends().await;
    let terminal = attached(&daemon, &["attach"]).await;
    terminal.shows("(one): agent").await;
}
