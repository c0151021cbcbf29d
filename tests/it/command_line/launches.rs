//! Failed launches. Each command that waits for a launch reports the reason and the remedy once, with an exit status.

use agentd_api::session::{SessionSpec, SessionView};

use crate::harness::ctl::{Said, agentctl, ctl};
use crate::harness::{Daemon, scripted_agent};
use crate::prerequisites::{ALL, with, world};

/// A cause of a failed launch, and the expected messages.
struct Row {
    /// Arguments after `--`, which are flags of the scripted agent or a whole command.
    agent: Vec<String>,
    /// The reason, which the output contains once.
    reason: &'static str,
    /// Words of the remedy. `NAME` means the session's name.
    remedy: &'static str,
}

fn scripted(flags: &[&str]) -> Vec<String> {
    let program = scripted_agent().display().to_string();
    std::iter::once(program).chain(flags.iter().map(|&flag| flag.to_owned())).collect()
}

/// Returns the causes. Some agents ignore the end of their input, so their sessions stay in the phase `stopping` for a
/// while.
fn rows() -> Vec<Row> {
    let loud = "\x1b[31mone\x1b[0m\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n\x1b]0;title\x07nine";
    let row = |agent, reason, remedy| Row { agent, reason, remedy };
    vec![
        row(
            scripted(&["--complain", loud, "--exit", "3"]),
            "the agent exited with status 3",
            "agentctl resume NAME starts the agent again",
        ),
        row(vec!["/nonexistent/agent".into()], "/nonexistent/agent", "agentctl agents"),
        row(
            scripted(&[
                "--complain",
                loud,
                "--refuse",
                "session/new",
                "-32000",
                "Authentication required",
                "--ignore-eof",
            ]),
            "Authentication required",
            "log in with the agent's own program (it offers: Use an API key)",
        ),
        row(
            scripted(&["--refuse", "initialize", "-32603", "no such client", "--ignore-eof"]),
            "initialize failed: ",
            "agentctl events NAME --no-follow shows the whole exchange",
        ),
        row(
            scripted(&["--protocol", "2", "--ignore-eof"]),
            "version 2 of the Agent Client Protocol",
            "install a release of the agent that speaks version 1",
        ),
    ]
}

/// Starts a daemon with this time limit for an agent's answer to `initialize`.
async fn hasty(limit: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[limits]\ninitialize = {limit:?}\n"));
    daemon.run().await;
    daemon
}

/// Asserts that the output contains the reason and the remedy once, and only a few harmless lines of the agent's
/// stderr.
fn assert_told(said: &Said, row: &Row, name: &str, what: &str) {
    let remedy = row.remedy.replace("NAME", name);
    for text in [row.reason, &remedy] {
        assert_eq!(said.err.matches(text).count(), 1, "{what}: {text:?} is to stand there once:\n{}", said.err);
    }
    let quoted = said.err.lines().filter(|line| line.starts_with("  | ")).count();
    assert!(quoted <= 8 && said.err.lines().count() <= quoted + 3, "{what}: too many lines:\n{}", said.err);
    assert!(!said.err.contains("is stopped") && !said.err.contains("still"), "{what}: {}", said.err);
    assert!(!said.err.contains(['\x1b', '\x07']), "{what}: {:?}", said.err);
    assert_eq!(said.err.contains("  | nine") || said.err.contains("title␇nine"), row.agent.len() > 3 && quoted > 0);
}

#[tokio::test]
async fn a_launch_that_fails_ends_every_command_with_status_1_and_is_told_once() {
    told_once(&Daemon::start().await, &rows()).await;
}

#[tokio::test]
async fn an_agent_that_never_answers_initialize_fails_after_the_limit_and_is_told_once() {
    let agent = scripted(&["--slow-init", "600000"]);
    let row = Row { agent, reason: "did not answer initialize within 0.3 s", remedy: "a flag for it, such as --acp" };
    told_once(&hasty("300ms").await, &[row]).await;
}

async fn told_once(daemon: &Daemon, rows: &[Row]) {
    for (number, row) in rows.iter().enumerate() {
        let agent: Vec<&str> = row.agent.iter().map(String::as_str).collect();
        let name = format!("run-{number}");
        let said = ctl(daemon, &[&["run", "--name", &name, "--prompt", "hello", "--"], &agent[..]].concat()).await;
        assert_eq!((said.status, said.out.as_str()), (Some(1), ""), "{said:#?}");
        assert_told(&said, row, &name, "run --prompt");

        let said = ctl(daemon, &["resume", &name]).await;
        assert_eq!(said.status, Some(1), "{said:#?}");
        assert_told(&said, row, &name, "resume");

        let said = ctl(daemon, &["attach", &name, "--last", "0"]).await;
        assert_eq!(said.status, Some(1), "{said:#?}");
        assert_eq!(said.err.matches(row.reason).count(), 1, "{said:#?}");

        let name = format!("new-{number}");
        let said = ctl(daemon, &[&["new", "--name", &name, "--ready", "60", "--"], &agent[..]].concat()).await;
        assert_eq!((said.status, said.out.lines().count()), (Some(1), 1), "{said:#?}");
        assert_told(&said, row, &name, "new --ready");

        // The JSON document contains the reason, with the same exit status.
        let said = ctl(daemon, &["resume", &name, "--json"]).await;
        let view: SessionView = serde_json::from_str(&said.out).expect("it is one document");
        assert_eq!((said.status, view.status.phase.as_str()), (Some(1), "failed"), "{said:#?}");
        assert!(view.status.message.is_some_and(|message| message.contains(row.reason)), "{said:#?}");
    }
}

#[tokio::test]
async fn an_agent_that_asks_for_a_login_at_the_first_prompt_fails_the_turn_and_says_what_to_do() {
    let daemon = Daemon::start().await;
    let agent = scripted(&["--refuse", "session/prompt", "-32000", "Authentication required"]);
    let agent: Vec<&str> = agent.iter().map(String::as_str).collect();
    let said = ctl(&daemon, &[&["run", "--name", "fix", "--prompt", "hello", "--"], &agent[..]].concat()).await;
    assert_eq!((said.status, said.out.as_str()), (Some(1), ""), "{said:#?}");
    for text in [
        "the agent refused the prompt for lack of a login: Authentication required (-32000); log in with the agent's \
         own program (it offers: Use an API key), or give its key as a secret in agentd.toml",
        "hint: once you are logged in: agentctl stop fix && agentctl resume fix",
    ] {
        assert_eq!(said.err.matches(text).count(), 1, "{text:?}: {said:#?}");
    }
    let said = ctl(&daemon, &["prompt", "fix", "again"]).await;
    assert_eq!((said.status, said.err.lines().count()), (Some(1), 2), "{said:#?}");
    assert!(said.err.contains("once you are logged in: agentctl stop fix && agentctl resume fix"), "{said:#?}");
}

#[tokio::test]
async fn a_conversation_that_is_lost_ends_a_resume_with_status_1_and_the_command_that_begins_another() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { name: Some("fix".parse().unwrap()), ..daemon.scripted(&["--load-fails", "--ignore-eof"]) };
    let session = daemon.session(&spec).await;
    session.stop().await;
    let said = ctl(&daemon, &["resume", "fix"]).await;
    assert_eq!(said.status, Some(1), "{said:#?}");
    for text in ["could not restore the conversation", "agentctl resume --new-conversation"] {
        assert_eq!(said.err.matches(text).count(), 1, "{text:?}: {said:#?}");
    }
    assert!(!said.err.contains("still"), "{said:#?}");
    assert_eq!(ctl(&daemon, &["resume", "--new-conversation", "fix"]).await.status, Some(0));
}

#[tokio::test]
async fn an_agent_that_crashes_in_a_turn_is_told_once_with_the_status_of_a_failure() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { name: Some("fix".parse().unwrap()), ..daemon.scripted(&[]) };
    daemon.session(&spec).await;
    let said = ctl(&daemon, &["prompt", "fix", "say half\nstderr because\nexit 3"]).await;
    assert_eq!((said.status, said.out.as_str()), (Some(1), "half\n"), "{said:#?}");
    for text in ["the agent exited with status 3", "  | because", "agentctl resume fix starts the agent again"] {
        assert_eq!(said.err.matches(text).count(), 1, "{text:?}: {said:#?}");
    }
    assert_eq!(said.err.lines().count(), 3, "{said:#?}");
    let said = ctl(&daemon, &["prompt", "fix", "hello"]).await;
    assert_eq!(said.status, Some(4), "{said:#?}");
    assert!(said.err.contains("agentctl resume"), "{said:#?}");
}

#[tokio::test]
async fn a_launch_that_lacks_what_it_needs_says_what_and_how_to_go_on_once() {
    let daemon = with(&[("vpn", ALL)]).await;
    world(&daemon, "vpn", "fail: no route");
    let agent = scripted(&[]);
    let agent: Vec<&str> = agent.iter().map(String::as_str).collect();
    for command in ["run", "new"] {
        let how = if command == "run" { ["--prompt", "hello"] } else { ["--ready", "60"] };
        let arguments = [&[command, "--name", command, how[0], how[1], "--"], &agent[..]].concat();
        let said = ctl(&daemon, &arguments).await;
        assert_eq!(said.status, Some(1), "{said:#?}");
        assert_eq!(said.err.matches("no route").count(), 1, "{said:#?}");
        let remedy = format!("agentctl check --session {command}, then agentctl resume {command}");
        assert_eq!(said.err.matches(&remedy).count(), 1, "{said:#?}");
    }
    let said = ctl(&daemon, &["resume", "run"]).await;
    assert_eq!((said.status, said.err.matches("no route").count()), (Some(4), 1), "{said:#?}");
    assert!(agentctl(&daemon, &["check"]).output().unwrap().status.code() == Some(1));
}
