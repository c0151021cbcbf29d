//! Tests of each fault point of the journal and the keeper, with a kill and with a failure.
//!
//! The agent echoes its messages, so the expected journal is known: each message once, and after each message its echo
//! once.

use std::sync::atomic::{AtomicBool, Ordering};

use agentd_fault::Point;
use agentd_journal::{Options, Writer};

use super::*;
use crate::harness::paths;

const MESSAGES: u64 = 12;

fn points() -> impl Iterator<Item = Point> {
    const { assert!(agentd_fault::COMPILED_IN) };
    Point::ALL
        .iter()
        .copied()
        .filter(|point| point.name().starts_with("journal.") || point.name().starts_with("keeper."))
}

/// Starts a keeper with short journal segments and one fault point set. The keeper may end before it listens.
fn start(state: &tempfile::TempDir, point: Point, action: &str) -> Child {
    let faults = state.path().join("faults");
    std::fs::create_dir_all(&faults).unwrap();
    std::fs::write(faults.join(point.name()), action).unwrap();
    spawn(state)
}

fn spawn(state: &tempfile::TempDir) -> Child {
    let mut command = Command::new(paths::keeper());
    command.args(["hold", "--rotate", "400"]);
    hold(command, &directory(state)).stderr(Stdio::null()).spawn().unwrap()
}

fn numbers(events: &[Event], pick: impl Fn(&Body) -> Option<u64>) -> Vec<u64> {
    events.iter().filter_map(|event| pick(&event.body)).collect()
}

fn said(body: &Body) -> Option<u64> {
    if let Body::AgentIn(data) = body { data.get().parse().ok() } else { None }
}

fn echoed(body: &Body) -> Option<u64> {
    let Body::AgentOut(data) = body else { return None };
    serde_json::from_str::<serde_json::Value>(data.get()).unwrap()["echo"].as_u64()
}

/// Talks to the keeper as a daemon that knows only the journal, over as many connections as needed. Returns when the
/// keeper has ended, or when `over` is true.
fn talk(directory: &Path, over: &AtomicBool) {
    let socket = directory.join("k.sock");
    let give_up = Instant::now() + PATIENCE;
    let mut met = false;
    while !over.load(Ordering::Acquire) {
        assert!(Instant::now() < give_up, "the keeper listens for ever");
        match UnixStream::connect(&socket) {
            Ok(stream) => {
                met = true;
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let _ = converse(stream, directory);
            }
            // The keeper has ended, or does not listen yet.
            Err(_) if met => return,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn ask(stream: &mut UnixStream, request: &ToKeeper) -> Option<FromKeeper> {
    frame::write(stream, request).ok()?;
    loop {
        match frame::read(stream).ok()?? {
            FromKeeper::Grown(_) => {}
            answer => return Some(answer),
        }
    }
}

fn converse(mut stream: UnixStream, directory: &Path) -> Option<()> {
    let FromKeeper::Hello(hello) = frame::read(&mut stream).ok()?? else { panic!("no greeting") };
    if hello.agent_pid.is_none() {
        let echo = script(r#"while read x; do echo "{\"echo\":$x}"; done"#);
        ask(&mut stream, &ToKeeper::Launch(Box::new(echo)))?;
    }
    let give_up = Instant::now() + PATIENCE;
    loop {
        let done = numbers(&events(directory), said).last().copied().unwrap_or(0);
        if done == MESSAGES {
            break;
        }
        let record = NewRecord {
            kind: "agent.in".to_owned(),
            data: to_raw_value(&(done + 1)).unwrap(),
            send: true,
            fill: false,
            contents: false,
        };
        let append = Append { request: done, records: vec![record], durable: true, from_reserve: false, mute: None };
        // A refused request changed nothing, so the loop sends it again.
        assert!(Instant::now() < give_up, "message {} is refused for ever", done + 1);
        ask(&mut stream, &ToKeeper::Append(append))?;
    }
    ask(&mut stream, &ToKeeper::Stop(PATIENT))?;
    while frame::read::<FromKeeper>(&mut stream).ok()?.is_some() {}
    Some(())
}

fn check(directory: &Path, point: Point) -> Vec<Event> {
    let events = events(directory);
    let (said, echoed) = (numbers(&events, said), numbers(&events, echoed));
    assert_eq!(said, (1..=said.len() as u64).collect::<Vec<_>>(), "{}", point.name());
    assert_eq!(echoed, (1..=echoed.len() as u64).collect::<Vec<_>>(), "{}", point.name());
    assert!(echoed.len() <= said.len(), "{}: an answer to what was not in the journal", point.name());
    events
}

#[test]
fn a_keeper_killed_at_any_point_leaves_a_prefix_and_the_next_goes_on_from_there() {
    for point in points() {
        let state = state();
        let directory = directory(&state);
        let mut keeper = start(&state, point, "pause");
        let hit = state.path().join("faults").join(format!("{}.hit", point.name()));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut talking = None;
            eventually(&format!("the keeper came to {}", point.name()), || {
                if talking.is_none() && directory.join("k.sock").exists() {
                    talking = Some(scope.spawn(|| talk(&directory, &over)));
                }
                hit.exists().then_some(())
            });
            keeper.kill().unwrap();
            keeper.wait().unwrap();
            over.store(true, Ordering::Release);
        });
        let (writer, _) = Writer::open(&directory, Options::default()).unwrap();
        let before = check(&directory, point);
        assert_eq!(before.last().map_or(0, |event| event.seq), writer.last_seq());
        drop(writer);

        let mut next = spawn(&state);
        next.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        let (told, mut stream) = (numbers(&before, said).len(), UnixStream::connect(directory.join("k.sock")).unwrap());
        frame::read::<FromKeeper>(&mut stream).unwrap();
        let launched = ask(&mut stream, &ToKeeper::Launch(Box::new(script("read x; echo '{}'; read x"))));
        assert!(matches!(launched, Some(FromKeeper::Launched { .. })), "{}: {launched:?}", point.name());
        ask(&mut stream, &ToKeeper::Stop(AT_ONCE)).unwrap();
        assert!(next.wait().unwrap().success());
        let after = events(&directory);
        assert!(after.len() > before.len() && numbers(&after, said).len() == told);
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(before, after)| before.seq == after.seq && before.body.kind() == after.body.kind()),
            "{}",
            point.name()
        );
        assert!(matches!(after.last().unwrap().body, Body::AgentExited(_)), "{}", point.name());
    }
}

#[test]
fn a_failure_at_any_point_is_survived_or_told() {
    for (point, at) in points().flat_map(|point| [(point, 1), (point, 4)]) {
        let name = point.name();
        let state = state();
        let directory = directory(&state);
        let mut keeper = start(&state, point, &format!("fail at {at}"));
        let hit = state.path().join("faults").join(format!("{name}.hit"));
        if matches!(point, Point::KeeperStartLocked | Point::KeeperStartListening) && at == 1 {
            assert_eq!(keeper.wait().unwrap().code(), Some(1), "{name}");
            assert!(hit.exists() && !directory.join("k.sock").exists(), "{name}");
            drop(Writer::open(&directory, Options::default()).unwrap());
            check(&directory, point);
            continue;
        }
        talk(&directory, &AtomicBool::new(false));
        assert!(keeper.wait().unwrap().success(), "{name}");
        let events = check(&directory, point);
        let ends = events.iter().filter_map(|event| match &event.body {
            Body::AgentExited(exited) => Some(exited),
            _ => None,
        });
        let ends: Vec<_> = ends.collect();
        let [exited] = ends[..] else { panic!("{name}: {events:?}") };
        if matches!(point, Point::KeeperLaunchBefore | Point::KeeperLaunchSpawned) && at == 1 {
            assert!(exited.exec_error.as_ref().unwrap().contains("was made to fail"), "{name}: {exited:?}");
            assert!(!events.iter().any(|event| matches!(event.body, Body::AgentStarted(_))), "{name}");
            continue;
        }
        // A point that occurs once in a keeper's life is never hit a fourth time.
        let once =
            ["keeper.start", "keeper.launch", "keeper.stop", "keeper.end"].iter().any(|once| name.starts_with(once));
        assert_eq!(hit.exists(), at == 1 || !once, "{name}");
        if point == Point::KeeperAppendJournalled {
            // The keeper closed the agent's stdin, and the agent ended for that reason.
            assert_eq!(exited.status, Some(0), "{name}");
            continue;
        }
        assert_eq!(numbers(&events, said).len() as u64, MESSAGES, "{name}");
        assert!(exited.requested, "{name}: {exited:?}");
        if point != Point::KeeperStopBefore {
            assert_eq!((numbers(&events, echoed).len() as u64, exited.status), (MESSAGES, Some(0)), "{name}");
        }
    }
}
