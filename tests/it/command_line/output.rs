//! Commands whose output is no longer read, and commands whose output goes to a program.

use std::io::{BufRead as _, BufReader};

use crate::harness::ctl::{agentctl, ctl};
use crate::harness::{Daemon, within};

#[tokio::test]
async fn a_stream_that_nobody_reads_any_more_ends_though_nothing_happens_in_its_session() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let id = session.id.as_str();
    for arguments in [&["events", id][..], &["attach", id, "--json", "--from-start"]] {
        // The input stays open, like a terminal's.
        let mut child = agentctl(&daemon, arguments).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let _input = child.stdin.take();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let total = session.view().await.status.last_seq;
        let mut line = String::new();
        for _ in 0..total {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        assert!(line.contains(&format!("\"seq\":{total}")), "{line}");
        drop(reader);
        let ended = tokio::task::spawn_blocking(move || child.wait());
        let status = within("agentctl ends", ended).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(141), "{arguments:?}");
    }
    assert_eq!(session.view().await.status.launches, 1);
}

#[tokio::test]
async fn with_json_a_refusal_is_the_daemons_document_and_a_person_reads_it_too() {
    let daemon = Daemon::start().await;
    for arguments in [&["--json", "show", "none"][..], &["--json", "stop", "none"], &["rm", "none", "--json"]] {
        let said = ctl(&daemon, arguments).await;
        let document: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:#?}"));
        assert_eq!((said.status, &document["code"]), (Some(1), &"no-such-session".into()), "{said:#?}");
        assert!(said.err.starts_with("agentctl: "), "{said:#?}");
    }
    let said = ctl(&daemon, &["show", "none"]).await;
    assert_eq!(said.out, "", "{said:#?}");
}
