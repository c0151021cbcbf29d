//! The page is for people: an agent can neither open it nor use it.

use std::fs;

use super::Shown;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths};

#[tokio::test]
async fn an_agent_opens_no_page() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let (program, socket) = (quoted(paths::agentctl()), quoted(daemon.client.socket()));
    let text =
        session.turn(&format!("do {program} --socket {socket} ui --no-open 2>&1; echo \"status $?\"")).await.text;
    assert!(text.contains(&format!("from inside the session {}", session.id)) && text.contains("status 1"), "{text}");
    assert!(!text.contains("token="), "{text}");
    // Another machine takes the connection as its owner's, so the program itself refuses.
    let text =
        session.turn(&format!("do {program} --host nowhere.invalid ui --no-open 2>&1; echo \"status $?\"")).await;
    assert!(!text.text.contains("token=") && !text.text.contains("status 0"), "{}", text.text);
}

/// Returns the answers to an agent that connects with these lines in the head of its requests. The agent connects from
/// its own process, from another process session, and from a process whose parent has ended.
async fn visits(daemon: &Daemon, session: &Session, port: u16, lines: &str) -> String {
    let visit = daemon.root().join("visit");
    let request = format!("GET /ui/info HTTP/1.1\r\n{lines}connection: close\r\n\r\n").escape_default().to_string();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}\nprintf \"{}\" >&3\ncat <&3\n", request.replace('%', "%%"));
    fs::write(&visit, script).unwrap();
    let (visit, stray) = (quoted(&visit), quoted(daemon.root().join("stray")));
    let orphan = format!("(setsid bash {visit} >{stray}.new 2>&1; mv {stray}.new {stray}) >/dev/null 2>&1 &");
    let wait = format!("while [ ! -e {stray} ]; do sleep 0.01; done; cat {stray}");
    session.turn(&format!("do bash {visit} 2>&1; setsid --wait bash {visit} 2>&1; ({orphan}) ; {wait}")).await.text
}

#[tokio::test]
async fn an_agent_that_knows_the_cookie_gets_no_answer() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let shown = Shown::start(&daemon, &[]);
    let visitor = shown.sign_in().await;
    assert_eq!(visitor.get("/ui/info").await.status, 200);
    let said = visits(&daemon, &session, shown.port, &visitor.lines).await;
    assert_eq!(said.matches("HTTP/1.1 403").count(), 3, "{said}");
    assert_eq!(said.matches("ui.in_session").count(), 3, "{said}");
    assert!(!said.contains("expires"), "{said}");
    // The token was used already.
    assert_eq!(shown.log_in(&shown.token).await.code(), "ui.token_used");
    assert_eq!(visitor.get("/ui/info").await.status, 200);
}
