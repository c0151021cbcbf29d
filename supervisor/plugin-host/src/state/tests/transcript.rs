//! Tests the repetition of a call's requests.

use super::*;
use crate::state::HostCall;

fn call() -> Case {
    case(&everything(), &Grant::default(), Machine::default())
}

/// Makes the requests of a plugin. Returns the names of the variables of the login shell.
async fn run(state: &mut CallState, level: log::Level) -> Vec<String> {
    log::Host::write(state, level, "begins".to_owned()).await.unwrap();
    let login = shell_environment::Host::login(state).await.unwrap().unwrap();
    let names = login.iter().map(|variable| variable.name.clone()).collect();
    script::Host::locate(state, vec!["/s".to_owned()]).await.unwrap().unwrap();
    script::Host::source(state, "/s".to_owned(), login).await.unwrap().unwrap();
    names
}

async fn recorded(case: &mut Case, level: log::Level) -> Option<Vec<HostCall>> {
    case.state.transcript.record();
    run(&mut case.state, level).await;
    case.state.transcript.repeatable()
}

#[tokio::test]
async fn a_call_is_repeated_with_the_same_requests_and_the_same_log() {
    let mut first = call();
    let calls = recorded(&mut first, log::Level::Debug).await.unwrap();
    let asked = first.asked();
    assert_eq!(asked, ["Debug begins", "login", "locate /s", "source /s"]);
    let mut again = call();
    assert!(again.state.repeat(&calls).await.unwrap());
    assert_eq!(again.asked(), asked);
}

#[tokio::test]
async fn after_another_answer_the_plugin_runs_and_no_request_is_made_twice() {
    let calls = recorded(&mut call(), log::Level::Debug).await.unwrap();
    let mut other = call();
    *other.machine.login.lock().unwrap() = vec![("A".to_owned(), b"2".to_vec())];
    assert!(!other.state.repeat(&calls).await.unwrap());
    assert_eq!(other.asked(), ["Debug begins", "login"]);
    other.state.transcript.record();
    assert_eq!(run(&mut other.state, log::Level::Debug).await, ["A"]);
    assert_eq!(other.asked(), ["locate /s", "source /s"]);
    let calls = other.state.transcript.repeatable().unwrap();
    assert!(other.state.repeat(&calls).await.unwrap(), "the new answers are recorded");
    assert!(!call().state.repeat(&calls).await.unwrap());
}

#[tokio::test]
async fn a_call_with_a_warning_or_a_refusal_is_not_repeated() {
    assert!(recorded(&mut call(), log::Level::Warn).await.is_none());
    let mut refused = case(&Grant::default(), &Grant::default(), Machine::default());
    refused.state.transcript.record();
    shell_environment::Host::login(&mut refused.state).await.unwrap().unwrap_err();
    assert!(refused.state.transcript.repeatable().is_none());
}

#[tokio::test]
async fn a_grant_that_no_longer_covers_a_request_is_another_answer() {
    let calls = recorded(&mut call(), log::Level::Debug).await.unwrap();
    let denied = Grant { script: list(&["/s"]), ..Grant::default() };
    let mut case = case(&everything(), &denied, Machine::default());
    assert!(!case.state.repeat(&calls).await.unwrap());
    assert_eq!(case.asked(), ["Debug begins", "login"]);
}
