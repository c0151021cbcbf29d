//! The line between both sides of a place: each way in which it fails or is ended, and the processes after that.

use agentd_keeper::protocol::{PlaceLine, PlaceReport};

use super::place::*;
use super::*;
use crate::harness::quote::quoted;

/// The far side consists of two processes, and a client may be a further one. The test kills each process, and the
/// near side.
#[test]
#[cfg(target_os = "linux")]
fn nothing_is_left_whichever_process_is_killed() {
    let wrapped = || through("\"$KEEPER\" enter; exit $?");
    let cases: [(&str, PlaceLine, Choice<i32>); 6] = [
        ("near", direct(), Near::pid),
        ("outer", direct(), |near| children(near.pid())[0]),
        ("inner", direct(), |near| children(children(near.pid())[0])[0]),
        ("near of a shell", wrapped(), Near::pid),
        ("shell", wrapped(), |near| children(near.pid())[0]),
        ("inner of a shell", wrapped(), |near| children(children(children(near.pid())[0])[0])[0]),
    ];
    for (name, line, victim) in cases {
        let mut near = Near::start(line, shell(TREE));
        near.running();
        let mut pids = near.pids();
        let mut next = vec![near.pid()];
        while let Some(pid) = next.pop() {
            let below = children(pid);
            pids.extend(&below);
            next.extend(below);
        }
        let killed = Instant::now();
        kill(Pid::from_raw(victim(&near)), Signal::SIGKILL).unwrap();
        if name.starts_with("near") {
            near.process.wait().unwrap();
        } else {
            let (report, status, _) = near.end();
            match report {
                PlaceReport::Ended { signal, .. } => assert_eq!(signal, Some(9), "{name}"),
                report => assert_eq!((lost(report).is_empty(), status.code()), (false, Some(255)), "{name}"),
            }
        }
        gone(&pids);
        assert!(killed.elapsed() < Duration::from_secs(5), "{name}: {:?}", killed.elapsed());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_program_that_reads_nothing_ends_with_its_line() {
    let mut near = Near::start(direct(), shell("echo \"[$$]\"; exec sleep 600"));
    near.running();
    let pids = near.pids();
    let mut stdin = near.process.stdin.take().unwrap();
    let writer = std::thread::spawn(move || while stdin.write_all(&vec![b'x'; 64 << 10]).is_ok() {});
    let far = children(near.pid())[0];
    eventually("the far side holds much", || {
        // proc(5): the second number is the resident memory in pages.
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", children(far)[0])).unwrap();
        (statm.split(' ').nth(1)?.parse::<usize>().unwrap() * 4096 > 4 << 20).then_some(())
    });
    let killed = Instant::now();
    kill(Pid::from_raw(far), Signal::SIGKILL).unwrap();
    gone(&pids);
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    near.end();
    writer.join().unwrap();
}

/// Returns a way that waits forever in a queue, and cancels by writing a file.
fn queued(directory: &Path) -> PlaceLine {
    let cancel = format!("echo \"$JOB\" >{}; echo cancelling >&2", quoted(directory.join("cancelled")));
    PlaceLine {
        client: strings(&["/bin/sleep", "1000"]),
        environment: variables(&[("JOB", b"job 7")]),
        cancel: Some(strings(&["/bin/sh", "-c", &cancel])),
        enter_ms: None,
        ..direct()
    }
}

#[test]
fn a_stop_in_the_queue_runs_the_command_that_cancels() {
    let stops: [fn(&mut Near); 3] = [
        |near| near.signal(Signal::SIGTERM),
        |near| near.process.stdin = None,
        |near| {
            // The end of stdin counts behind bytes that no process reads before the program runs.
            let mut stdin = near.process.stdin.take().unwrap();
            let write = std::thread::spawn(move || stdin.write_all(&vec![b'x'; 310 << 10]));
            write.join().unwrap().unwrap();
        },
    ];
    for stop in stops {
        let directory = tempfile::tempdir().unwrap();
        let mut near = Near::start(queued(directory.path()), shell("echo never"));
        #[cfg(target_os = "linux")]
        eventually("the client runs", || (!children(near.pid()).is_empty()).then_some(()));
        stop(&mut near);
        let (report, status, stdout) = near.end();
        let (code, message) = refused(report);
        assert_eq!((code.as_str(), status.code(), stdout.len()), ("cancelled", Some(126), 0), "{message}");
        assert_eq!(std::fs::read_to_string(directory.path().join("cancelled")).unwrap(), "job 7\n");
        assert_eq!(near.stderr(), "cancelling\n");
    }
}

#[test]
fn a_command_that_cannot_cancel_is_part_of_the_message() {
    let failing = strings(&["/bin/sh", "-c", "echo no such job >&2; exit 3"]);
    let line = PlaceLine { cancel: Some(failing), ..through("echo >&2 'queue is closed'; exit 9") };
    let (code, message) = refused(run(line.clone(), shell("")).0);
    assert_eq!(code, "client-failed");
    assert_eq!(
        message,
        "place \"lab\" was not reached: its client ended with status 9: queue is closed; the command that cancels it \
         ended with status 3: no such job"
    );
    let line = PlaceLine { cancel: Some(strings(&["/no/such"])), ..line };
    let (_, message) = refused(run(line, shell("")).0);
    assert!(message.contains("the command that cancels it failed: cannot execute \"/no/such\""), "{message}");
}

#[test]
fn a_client_that_fails_is_named_with_its_words() {
    let missing = PlaceLine { client: strings(&["/no/ssh", "host"]), ..direct() };
    let (code, message) = refused(run(missing, shell("")).0);
    assert_eq!(code, "client-failed");
    assert!(
        message.starts_with("the client of place \"lab\" cannot be started: cannot execute \"/no/ssh\""),
        "{message}"
    );
    let printing = through("echo 'bash: agentd-keeper: command not found'; exit 127");
    let (_, message) = refused(run(printing, shell("")).0);
    assert!(message.ends_with("ended with status 127: bash: agentd-keeper: command not found"), "{message}");
    let silent = PlaceLine { enter_ms: Some(300), ..through("echo a prompt; exec sleep 1000") };
    let (code, message) = refused(run(silent, shell("")).0);
    assert_eq!(code, "no-answer");
    assert_eq!(message, "place \"lab\" was not reached: agentd-keeper did not answer within 0.3 s: a prompt");
}

#[test]
fn another_version_is_refused_with_both_and_the_remedy() {
    let hello = |protocol: u32, version: &str| {
        let body = json!({ "protocol": protocol, "version": version, "host": { "new": [1] } }).to_string();
        let [a, b, ..] = u32::try_from(body.len()).unwrap().to_le_bytes();
        let frame = format!("\\001agentd-enter 1\\n\\020\\{a:03o}\\{b:03o}\\000\\000{}", body.replace('"', "\\042"));
        through(&format!("printf '{frame}'; read x"))
    };
    let own = env!("CARGO_PKG_VERSION");
    for (protocol, version) in [(1, "9.9.9"), (2, own)] {
        let (code, message) = refused(run(hello(protocol, version), shell("")).0);
        assert_eq!(code, "version");
        for words in [format!("agentd-keeper {version}"), format!("agentd is {own}"), "install".to_owned()] {
            assert!(message.contains(&words), "{message}");
        }
    }
}

#[test]
fn a_damaged_line_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let go = quoted(directory.path().join("go"));
    let line = through(&format!(
        "(until [ -e {go} ]; do sleep 0.02; done; echo 'job 7 will be preempted') & exec \"$KEEPER\" enter"
    ));
    let mut near = Near::start(line, shell(&format!("read x; touch {go}; read x")));
    near.running();
    near.say(b"go\n");
    let (report, status, _) = near.end();
    let message = lost(report);
    assert!(message.contains("another program writes") && message.contains("byte 0x6a"), "{message}");
    assert_eq!(status.code(), Some(255));
    // A terminal adds a carriage return to each newline.
    let line = PlaceLine { enter_ms: Some(500), ..through("\"$KEEPER\" enter | sed -u 's/$/\\r/'") };
    let (code, message) = refused(run(line, shell("")).0);
    assert_eq!(code, "no-answer");
    assert!(message.ends_with("let it use no terminal"), "{message}");
}

#[test]
fn a_stop_reaches_a_program_that_runs() {
    let mut near =
        Near::start(direct(), shell("trap 'echo stopping; exit 5' TERM; echo '[]'; while :; do read x; done"));
    near.running();
    near.pids();
    near.signal(Signal::SIGTERM);
    let (report, status, stdout) = near.end();
    assert_eq!(report, PlaceReport::Ended { status: Some(5), signal: None, killed: 0 });
    assert_eq!((status.code(), stdout.as_slice()), (Some(5), &b"stopping\n"[..]));
}

#[test]
fn a_program_that_obeys_nothing_ends_with_the_near_side_and_without_a_grace() {
    let line = PlaceLine { grace_ms: 600_000, close_ms: 600_000, term_ms: 600_000, ..direct() };
    let obstinate = "trap '' TERM HUP; (trap '' TERM HUP; while :; do sleep 600; done) & echo \"[$$,$!]\"; wait";
    let mut near = Near::start(line, shell(&format!("{obstinate}; while :; do sleep 600; done")));
    near.running();
    let pids = near.pids();
    near.process.stdin = None;
    near.signal(Signal::SIGTERM);
    // The near side cannot show that it has sent the frame. Its parent waits for this long, too.
    std::thread::sleep(Duration::from_millis(500));
    assert!(pids.iter().all(|pid| alive(*pid)));
    near.process.kill().unwrap();
    gone(&pids);
}

#[test]
#[cfg(target_os = "linux")]
fn a_silent_side_is_lost() {
    let silent = |line| PlaceLine { silence_ms: 700, ..line };
    // The inner process of the far side is stopped, or the client that passes the bytes on.
    let relay = r#"mkfifo "$D/a"; exec 3<&0; cat <&3 >"$D/a" & exec 3<&-; "$KEEPER" enter <"$D/a" | cat"#;
    let directory = tempfile::tempdir().unwrap();
    let mut relayed = through(relay);
    relayed.environment.extend(variables(&[("D", directory.path().to_str().unwrap().as_bytes())]));
    let cases: [(PlaceLine, Choice<Vec<i32>>); 2] = [
        (direct(), |near| children(children(near.pid())[0])),
        (relayed, |near| children(children(near.pid())[0]).into_iter().filter(|pid| name(*pid) == "cat").collect()),
    ];
    for (line, victims) in cases {
        let mut near = Near::start(silent(line), shell(TREE));
        near.running();
        let pids = near.pids();
        let victims = victims(&near);
        assert!(!victims.is_empty());
        for victim in victims {
            kill(Pid::from_raw(victim), Signal::SIGSTOP).unwrap();
        }
        let (report, status, _) = near.end();
        assert_eq!((lost(report).as_str(), status.code()), ("nothing was received for 0.7 s", Some(255)));
        gone(&pids);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_pause_of_a_side_is_no_loss_if_the_other_side_has_spoken() {
    let line = PlaceLine { silence_ms: 1500, ..direct() };
    let mut near = Near::start(line, shell("read x; echo \"$x\"; exit 3"));
    near.running();
    // A stopped near side has its bytes in the pipe when it continues.
    near.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(1));
    near.signal(Signal::SIGCONT);
    std::thread::sleep(Duration::from_secs(1));
    near.say(b"still there\n");
    let (report, _, stdout) = near.end();
    assert_eq!(report, PlaceReport::Ended { status: Some(3), signal: None, killed: 0 });
    assert_eq!(stdout, b"still there\n");
}
