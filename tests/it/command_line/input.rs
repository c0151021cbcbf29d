//! Prompts from a pipe. Each prompt is sent, or the exit status reports the failure.

use agentd_api::session::{Phase, SessionSpec};

use crate::harness::Daemon;
use crate::harness::ctl::{ctl, ctl_with};

async fn named(daemon: &Daemon, name: &str) -> crate::harness::Session {
    daemon.session(&SessionSpec { name: Some(name.parse().unwrap()), ..daemon.scripted(&[]) }).await
}

#[tokio::test]
async fn lines_of_a_pipe_are_turns_and_the_first_that_does_not_end_well_is_the_status() {
    let daemon = Daemon::start().await;
    named(&daemon, "fix").await;
    let said = ctl_with(&daemon, &["attach", "fix", "--last", "0"], "say one\n\nsay two\n").await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), "one\ntwo\n"), "{said:#?}");
    let said = ctl_with(&daemon, &["attach", "fix", "--last", "0"], "error\nsay three\n").await;
    assert_eq!((said.status, said.out.as_str()), (Some(1), "three\n"), "{said:#?}");
    assert_eq!(said.err.matches("as you asked: an error").count(), 1, "{said:#?}");
}

#[tokio::test]
async fn a_pipe_into_a_session_that_takes_no_prompt_is_an_error_and_an_empty_one_is_not() {
    let daemon = Daemon::start().await;
    let session = named(&daemon, "fix").await;
    session.stop().await;
    let said = ctl_with(&daemon, &["attach", "fix"], "\nsay lost\n").await;
    assert_eq!(said.status, Some(4), "{said:#?}");
    assert!(said.err.contains("standard input was not sent") && said.err.contains("agentctl resume fix"), "{said:#?}");
    let said = ctl_with(&daemon, &["attach", "fix"], "\n").await;
    assert_eq!((said.status, said.err.contains("was not sent")), (Some(0), false), "{said:#?}");
    let said = ctl_with(&daemon, &["prompt", "fix", "-"], "say lost").await;
    assert_eq!(said.status, Some(4), "{said:#?}");

    session.resume().await;
    let said = ctl_with(&daemon, &["attach", "fix", "--last", "0"], "exit 3\nsay lost\nsay lost too\n").await;
    assert_eq!((said.status, said.out.as_str()), (Some(1), ""), "{said:#?}");
    assert!(said.err.contains("standard input was not sent"), "{said:#?}");
    session.wait_for_phase(Phase::Failed).await;
}

#[tokio::test]
async fn a_prompt_for_which_the_queue_has_no_room_is_refused_with_a_status_of_its_own() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[limits]\nqueued_turns = 1\n"));
    daemon.run().await;
    let session = named(&daemon, "fix").await;
    session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    session.prompt("say next").await;
    let said = ctl(&daemon, &["prompt", "fix", "say lost"]).await;
    assert_eq!(said.status, Some(4), "{said:#?}");
    assert!(said.err.contains("queued already"), "{said:#?}");
}
