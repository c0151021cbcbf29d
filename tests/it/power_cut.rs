//! A power cut of the machine. Synced data is complete afterwards; other data may be cut at any byte or replaced by
//! other bytes. Every session comes back, no record that was acknowledged as durable is lost, and the next prompt is
//! not mistaken for an earlier prompt.
//!
//! `AGENTD_POWER_SEED` repeats a run with the seed that a failed run printed; `AGENTD_POWER_CUTS` is the number of
//! cuts.

use std::fs;

use agentd_api::session::{Phase, WholeList};
use agentd_api::{Body, Code, Event};

use crate::harness::random::Random;
use crate::harness::{Daemon, Session, process, until};

fn fold(session: &Session) -> Option<u64> {
    let document = fs::read(session.directory().join("session.json")).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    document["fold"]["state"]["seq"].as_u64()
}

/// Kills the daemon and all its processes at once.
fn power_off(daemon: &mut Daemon) {
    daemon.kill9();
    process::kill_all_of(daemon.root());
}

/// Returns each record of the current segment, with the offset of its end.
fn records(bytes: &[u8]) -> Vec<(usize, Event)> {
    let mut end = 0;
    let lines = bytes.split_inclusive(|&byte| byte == b'\n');
    lines
        .map(|line| {
            end += line.len();
            (end, Event::parse(&line[..line.len() - 1]).unwrap())
        })
        .collect()
}

/// Returns whether the daemon brings the record to the disk before it announces the record.
fn is_durable(event: &Event) -> bool {
    matches!(event.body, Body::SessionCreated(_) | Body::TurnEnded(_) | Body::LaunchFailed(_) | Body::StopRequested(_))
}

async fn comes_back(daemon: &mut Daemon, session: &Session, text: &str) {
    daemon.run().await;
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert!(list.unreadable.is_empty(), "{:?}", list.unreadable);
    let view = session.wait_for("at rest", |view| !view.status.phase.is_active()).await;
    let message = view.status.message.unwrap_or_default();
    assert!(!message.contains("cannot be read") && !message.contains("not a record"), "{message}");
    assert_eq!(session.resume().await.status.phase, Phase::Idle);
    assert_eq!(session.turn(&format!("say {text}")).await.text, text);
}

#[tokio::test]
async fn whatever_a_power_cut_leaves_of_what_was_not_on_the_disk_every_session_comes_back() {
    let mut random = Random::from_environment("AGENTD_POWER_SEED");
    let cuts = std::env::var("AGENTD_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(8);
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    for cut in 0..cuts {
        match random.below(3) {
            0 => drop(session.stop().await),
            1 => {
                // If the cut removes the prompt's start record, the daemon sends the prompt again. So the prompt must
                // have an end.
                session.prompt("count 400 3").await;
                session.wait_for("in its turn", |view| view.status.phase == Phase::Busy).await;
            }
            _ => drop(session.turn("say something").await),
        }
        power_off(&mut daemon);
        let path = session.directory().join("journal.jsonl");
        let bytes = fs::read(&path).unwrap();
        let known = records(&bytes);
        // The daemon syncs these records before it writes their state to session.json.
        let remembered = fold(&session).unwrap_or(0);
        let kept = known.iter().filter(|(_, event)| is_durable(event) || event.seq <= remembered);
        let kept = kept.map(|(end, _)| *end).max().unwrap_or(0);
        let at = kept + usize::try_from(random.below((bytes.len() - kept + 1) as u64)).unwrap();
        let mut left = bytes[..at].to_vec();
        match random.below(4) {
            0 => {}
            1 => left.extend([0; 4096]),
            2 => left.extend(b"\0\0\0\n{\"seq\":99999,\n\0\0"),
            _ => left.extend((0..3000).map(|_| u8::try_from(random.below(256)).unwrap())),
        }
        fs::write(&path, &left).unwrap();
        comes_back(&mut daemon, &session, &format!("back-{cut}")).await;
        let events = session.journal();
        for (end, event) in known.iter().filter(|(end, _)| *end <= kept) {
            let now = events.iter().find(|now| now.seq == event.seq).expect("it was on the disk");
            assert_eq!(now.body.to_data().get(), event.body.to_data().get(), "at byte {end} of {kept}");
        }
        // The daemon syncs each end of a turn before it announces the end, and one turn ended since the last cut.
        let ended = |event: &&Event| matches!(event.body, Body::TurnEnded(_));
        let (before, now) =
            (known.iter().filter(|(_, event)| ended(&event)).count(), events.iter().filter(ended).count());
        assert!(now > before, "an end that was acknowledged is lost: {before} before, {now} now");
    }
}

#[tokio::test]
async fn a_resume_behind_a_journal_that_ends_before_its_fold_is_not_swallowed() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say before").await;
    session.stop().await;
    daemon.terminate().await;
    let path = session.directory().join("journal.jsonl");
    let bytes = fs::read(&path).unwrap();
    let known = records(&bytes);
    assert_eq!(fold(&session), known.last().map(|(_, event)| event.seq));
    // An agentd that did not sync the end of a session would leave this state.
    let cut = known[known.len() - 3].0;
    fs::write(&path, &bytes[..cut]).unwrap();
    comes_back(&mut daemon, &session, "after").await;
    let repaired = session.journal().into_iter().find_map(|event| match event.body {
        Body::JournalRepaired(repaired) => Some(repaired),
        _ => None,
    });
    let repaired = repaired.expect("the journal says what was done");
    assert_eq!((repaired.lost_records, repaired.rebuilt), (2, true));
    assert!(daemon.last_words().contains("the end of the journal was lost"));
}

#[tokio::test]
async fn a_fold_whose_past_is_not_kept_any_more_is_kept_and_the_conversation_with_it() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + "\n[journal]\nrotate = 3000\nkeep_session = 3000\n");
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    for turn in 0..8 {
        session.turn(&format!("say {}", format!("{turn}").repeat(700))).await;
    }
    session.stop().await;
    daemon.terminate().await;
    let directory = session.directory();
    assert!(agentd_journal::first_seq(&directory).unwrap() > 1, "its beginning is removed");
    let path = directory.join("journal.jsonl");
    let bytes = fs::read(&path).unwrap();
    let known = records(&bytes);
    fs::write(&path, &bytes[..known[known.len() - 2].0]).unwrap();
    daemon.run().await;
    assert_eq!(session.resume().await.status.phase, Phase::Idle);
    let recalled = session.turn("remember").await.text;
    assert!(recalled.contains("say 7777"), "the conversation goes on: {recalled}");
    assert!(daemon.last_words().contains("the state of session.json was kept"), "the log says what was done");
}

#[tokio::test]
async fn nothing_is_remembered_ahead_of_the_journal_on_the_disk() {
    let mut daemon = Daemon::prepare();
    fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    // The first sync is for the session's creation, the second for its idle state.
    fs::write(daemon.state().join("faults/journal.sync.before"), "pause at 2").unwrap();
    let session = daemon.session(&daemon.scripted(&[])).await;
    let hit = daemon.state().join("faults/journal.sync.before.hit");
    until("the session comes to rest", || hit.exists()).await;
    assert_eq!(fold(&session), None);
    fs::remove_file(hit).unwrap();
    until("it is remembered when the disk has it", || fold(&session).is_some()).await;
}

#[tokio::test]
async fn a_session_that_does_not_get_to_the_disk_is_not_created() {
    let mut daemon = Daemon::prepare();
    fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    fs::write(daemon.state().join("faults/journal.sync.before"), "fail at 1").unwrap();
    let refused = daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await;
    assert_eq!((refused.status.as_u16(), refused.problem().code), (503, Code::JournalNotWritable));
    assert!(refused.problem().detail.contains("nothing was changed"), "{:?}", refused.problem());
    let list: WholeList = daemon.client.get("/v1/sessions").await.expect(200);
    assert!(list.sessions.is_empty(), "{list:?}");
    let left = fs::read_dir(daemon.state().join("sessions")).unwrap().count();
    assert_eq!(left, 0, "no directory is left");
    process::assert_only(&[daemon.pid()], daemon.root(), "after the refusal");
    daemon.session(&daemon.scripted(&[])).await;
}

#[tokio::test]
async fn a_journal_that_was_damaged_in_the_middle_is_left_as_it_is() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say something").await;
    session.stop().await;
    daemon.terminate().await;
    let path = session.directory().join("journal.jsonl");
    let mut bytes = fs::read(&path).unwrap();
    let known = records(&bytes);
    let middle = known.len() / 2;
    bytes[known[middle].0 + 1] = b'?';
    fs::write(&path, &bytes).unwrap();
    fs::remove_file(path.with_file_name("journal.torn")).ok();
    // Without the stored fold, the daemon must read the journal.
    let document = path.with_file_name("session.json");
    let mut stored: serde_json::Value = serde_json::from_slice(&fs::read(&document).unwrap()).unwrap();
    stored.as_object_mut().unwrap().remove("fold");
    fs::write(&document, stored.to_string()).unwrap();
    daemon.run().await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.is_some_and(|message| message.contains("not a record")));
    assert_eq!(fs::read(&path).unwrap(), bytes, "what follows is good, and nothing of it is cut");
}
