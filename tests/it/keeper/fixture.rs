//! Messages between the keeper of the first release and its daemon (`tests/fixtures/keeper-protocol-1`), replayed to
//! the current code.
//!
//! The files were recorded once and must never change, because a new daemon adopts the keepers of all releases of this
//! protocol. A failure of these tests means that a keeper and a daemon of different releases would not understand each
//! other.

use serde_json::Value;

use super::*;

const DAEMON: &[u8] = include_bytes!("../../fixtures/keeper-protocol-1/daemon.frames");
const KEEPERS: &[u8] = include_bytes!("../../fixtures/keeper-protocol-1/keeper.frames");
const JOURNAL: &str = include_str!("../../fixtures/keeper-protocol-1/journal.jsonl");

fn bodies(mut bytes: &[u8]) -> Vec<Value> {
    std::iter::from_fn(|| frame::read(&mut bytes).unwrap()).collect()
}

/// Adds unknown fields to every object of a message, except the outermost object, which names the message, and the
/// agent's own messages.
fn from_the_future(message: &Value) -> Value {
    let mut message = message.clone();
    for content in message.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
        add_fields(content);
    }
    message
}

fn add_fields(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(add_fields),
        Value::Object(fields) if !fields.contains_key("base64") => {
            fields.iter_mut().filter(|(name, _)| *name != "data").for_each(|(_, inner)| add_fields(inner));
            fields.insert("not_known_yet".to_owned(), json!({"deep": [1, null]}));
        }
        _ => {}
    }
}

/// Returns the part of an answer that does not depend on the time.
fn gist(answer: &FromKeeper) -> Option<String> {
    match answer {
        FromKeeper::Grown(_) => None,
        FromKeeper::Hello(hello) => Some(format!("hello {} {} {}", hello.protocol, hello.session, hello.launch)),
        FromKeeper::Launched { .. } => Some("launched".to_owned()),
        FromKeeper::Appended(appended) => Some(format!("appended {}", appended.request)),
        FromKeeper::Hidden => Some("hidden".to_owned()),
        FromKeeper::Warm => Some("warm".to_owned()),
        FromKeeper::Stopping => Some("stopping".to_owned()),
        FromKeeper::Refused { code, .. } => Some(format!("refused {code}")),
    }
}

const ANSWERS: [&str; 9] = [
    "hello 1 s1 1",
    "refused wrong-launch",
    "launched",
    "refused already-launched",
    "appended 1",
    "refused bad-record",
    "refused unknown-request",
    "appended 3",
    "stopping",
];

#[test]
fn todays_daemon_understands_the_keeper_of_the_first_release() {
    for change in [Value::clone, from_the_future] {
        let said: Vec<FromKeeper> =
            bodies(KEEPERS).iter().map(|body| serde_json::from_value(change(body)).unwrap()).collect();
        assert_eq!(said.iter().filter_map(gist).collect::<Vec<_>>(), ANSWERS);
        let seqs: Vec<_> = said
            .iter()
            .filter_map(|said| if let FromKeeper::Grown(tail) = said { Some(tail.seq) } else { None })
            .collect();
        assert!(seqs.is_sorted() && seqs.last() == Some(&10), "{seqs:?}");
    }
}

#[test]
fn todays_keeper_understands_the_daemon_of_the_first_release() {
    for change in [Value::clone, from_the_future] {
        let keeper = Keeper::start();
        let (mut daemon, hello) = keeper.connect();
        let mut answers = vec![gist(&FromKeeper::Hello(hello)).unwrap()];
        for (n, body) in bodies(DAEMON).iter().enumerate() {
            // The point of this message is a line break, which a new encoding would not keep. The test sends the
            // recorded bytes.
            let changed = if n == 4 { raw(n) } else { frame::encode(&change(body)).unwrap() };
            daemon.stream.write_all(&changed).unwrap();
            answers.push(std::iter::from_fn(|| daemon.receive()).find_map(|answer| gist(&answer)).unwrap());
            if n == 3 {
                // As in the recording, the replay ends before the next message.
                keeper.wait_for_out(1);
            }
        }
        assert_eq!(answers, ANSWERS);
        let (exited, journal) = keeper.ended();
        assert_eq!((exited.status, exited.requested), (Some(0), true));
        let kinds = |events: &[Event]| {
            let mut kinds: Vec<_> = events.iter().map(|event| event.body.kind().to_owned()).collect();
            // The order of records from stdout and stderr is not fixed, and a replay ends when the agent is quiet.
            kinds.sort();
            kinds
        };
        let then: Vec<_> = JOURNAL.lines().map(|line| Event::parse(line.as_bytes()).unwrap()).collect();
        assert_eq!(kinds(&journal), kinds(&then));
    }
}

/// Returns the n-th frame as recorded.
fn raw(n: usize) -> Vec<u8> {
    let mut rest = DAEMON;
    for at in 0.. {
        let length = 4 + u32::from_le_bytes(*rest.first_chunk().unwrap()) as usize;
        if at == n {
            return rest[..length].to_vec();
        }
        rest = &rest[length..];
    }
    unreachable!("there are as many frames as numbers");
}
