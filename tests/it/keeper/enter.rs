//! `agentd-keeper enter`: the far side of a place, with the bytes of its line written by hand.
//!
//! The numbers of the frames are part of the format between two processes of one version.

use std::process::{ChildStdin, ChildStdout};

use agentd_keeper::protocol::PlacedProgram;
use serde_json::Value;

use super::place::shell;
use super::*;

const HELLO: u8 = 0x10;
const RUNNING: u8 = 0x11;
const REFUSED: u8 = 0x12;
const EXITED: u8 = 0x13;
const BEAT: u8 = 0x14;
const BEGIN: u8 = 0x15;
const SIGNAL: u8 = 0x16;
const IN: u8 = 0x20;
const OUT: u8 = 0x21;
const ERR: u8 = 0x22;
const IN_END: u8 = 0x30;
const OUT_END: u8 = 0x31;
const ERR_END: u8 = 0x32;
const TAKEN_OUT: u8 = 0x41;

/// Times of the program's end in milliseconds.
#[derive(Clone, Copy)]
struct Times {
    silence: u64,
    grace: u64,
    close: u64,
    term: u64,
}

const TIMES: Times = Times { silence: 20_000, grace: 0, close: 150, term: 150 };

struct Far {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

impl Far {
    fn start() -> Self {
        let mut process = Command::new(paths::keeper())
            .arg("enter")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let mut far = Self { process, stdin, stdout };
        let mut marker = [0; 16];
        far.stdout.as_mut().unwrap().read_exact(&mut marker).unwrap();
        assert_eq!(&marker, b"\x01agentd-enter 1\n");
        let (kind, hello) = far.frame().unwrap();
        let hello: Value = serde_json::from_slice(&hello).unwrap();
        assert_eq!((kind, &hello["protocol"]), (HELLO, &json!(1)));
        assert_eq!(hello["version"], env!("CARGO_PKG_VERSION"));
        far
    }

    fn with(times: Times, program: &PlacedProgram) -> Self {
        let mut far = Self::start();
        far.begin(times, program);
        let (kind, running) = far.frame().unwrap();
        assert_eq!(kind, RUNNING, "{}", String::from_utf8_lossy(&running));
        far
    }

    fn begin(&mut self, times: Times, program: &PlacedProgram) {
        let Times { silence, grace, close, term } = times;
        let begin = json!({
            "program": program, "silence_ms": silence, "grace_ms": grace, "close_ms": close, "term_ms": term,
        });
        self.say(BEGIN, begin.to_string().as_bytes());
    }

    fn say(&mut self, kind: u8, content: &[u8]) {
        let mut bytes = vec![kind];
        bytes.extend(u32::try_from(content.len()).unwrap().to_le_bytes());
        bytes.extend(content);
        self.stdin.as_mut().unwrap().write_all(&bytes).unwrap();
    }

    /// Reports bytes of stdout as taken. The far side may have ended behind its last frame.
    fn taken(&mut self, bytes: usize) {
        let [a, b, c, d] = u32::try_from(bytes).unwrap().to_le_bytes();
        let _ = self.stdin.as_mut().unwrap().write_all(&[TAKEN_OUT, 4, 0, 0, 0, a, b, c, d]);
    }

    /// Returns the next frame that is not a beat.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let (mut header, stdout) = ([b'\n', 0, 0, 0, 0], self.stdout.as_mut().unwrap());
            // Line ends follow frames, because some engines pass on whole lines only.
            while header[0] == b'\n' {
                if stdout.read(&mut header[..1]).unwrap() == 0 {
                    return None;
                }
            }
            stdout.read_exact(&mut header[1..]).unwrap();
            let mut content = vec![0; u32::from_le_bytes(header[1..].try_into().unwrap()) as usize];
            stdout.read_exact(&mut content).unwrap();
            if header[0] != BEAT {
                return Some((header[0], content));
            }
        }
    }

    /// Reads a line of the program's stdout with process ids.
    fn pids(&mut self) -> Vec<i32> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let (kind, content) = self.frame().unwrap();
            assert_eq!(kind, OUT);
            line.extend(content);
        }
        serde_json::from_slice(&line).unwrap()
    }

    /// Reads all frames. Returns stdout, and the content of the last frame, which has the exit status.
    fn rest(&mut self) -> (String, Value) {
        let (mut stdout, mut kinds, mut last) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((kind, content)) = self.frame() {
            if kind == OUT {
                stdout.extend(&content);
            }
            kinds.push(kind);
            last = content;
        }
        assert_eq!(kinds.last(), Some(&EXITED), "{kinds:?}");
        let exited: Value = serde_json::from_slice(&last).unwrap();
        let position = |wanted| kinds.iter().rposition(|kind| *kind == wanted);
        let is_whole = position(OUT) < position(OUT_END) && position(ERR) < position(ERR_END);
        assert_eq!(is_whole, exited["cut"] == false, "{kinds:?}");
        (String::from_utf8_lossy(&stdout).into_owned(), exited)
    }

    fn status(&mut self) -> i32 {
        let status = eventually("the far side ended", || self.process.try_wait().unwrap());
        status.code().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Script that reports the steps of its end in a file, and obeys none but the kill.
fn steps(file: &Path) -> String {
    format!(
        "exec 3>{}; trap 'echo term >&3' TERM; echo \"[$$]\"; while read x; do :; done; echo closed >&3; \
         while :; do sleep 0.02; done",
        crate::harness::quote::quoted(file)
    )
}

#[test]
fn the_streams_of_a_program_pass_and_its_exit_is_the_last_frame() {
    let mut far = Far::with(TIMES, &shell("cat; echo err >&2; exit 3"));
    far.say(IN, b"in");
    far.say(IN, b"");
    far.say(BEAT, b"");
    far.say(IN, b"put");
    far.say(IN_END, b"");
    let (stdout, exited) = far.rest();
    assert_eq!(stdout, "input");
    assert_eq!(exited, json!({ "status": 3, "signal": null, "killed": 0, "cut": false }));
    assert_eq!(far.status(), 3);
}

#[test]
fn the_last_frame_comes_through_although_stdin_is_broken() {
    let mut far = Far::with(Times { grace: 60_000, ..TIMES }, &shell("echo one; sleep 0.3; echo two; exit 3"));
    far.stdin = None;
    let (stdout, exited) = far.rest();
    assert_eq!((stdout.as_str(), &exited["status"], &exited["cut"]), ("one\ntwo\n", &json!(3), &json!(false)));
}

#[test]
fn a_lost_line_ends_the_program_in_order() {
    // Stdin ends, or the reader of stdout is gone, or the line is silent.
    let losses: [fn(&mut Far); 3] = [|far| far.stdin = None, |far| far.stdout = None, |_| {}];
    for loss in losses {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("steps");
        let mut far = Far::with(Times { silence: 600, close: 300, term: 1000, ..TIMES }, &shell(&steps(&file)));
        let pids = far.pids();
        let begun = Instant::now();
        loss(&mut far);
        eventually("the program is killed", || (!alive(pids[0])).then_some(()));
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(1300) && took < Duration::from_secs(10), "{took:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "closed\nterm\n");
        assert_eq!(far.status(), 128 + 9);
    }
}

#[test]
fn a_program_continues_for_the_grace_and_its_output_does_not_block_it() {
    let text = "echo \"[$$]\"; until [ -e \"$D/go\" ]; do sleep 0.02; done; head -c 5000000 /dev/zero; >\"$D/done\"; \
                while :; do sleep 0.02; done";
    for breaks_stdout in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let mut text = shell(text);
        text.environment.extend(variables(&[("D", directory.path().to_str().unwrap().as_bytes())]));
        let mut far = Far::with(Times { grace: 4000, ..TIMES }, &text);
        let pids = far.pids();
        let begun = Instant::now();
        far.stdin = None;
        if breaks_stdout {
            far.stdout = None;
        }
        std::fs::write(directory.path().join("go"), "").unwrap();
        eventually("all is printed", || directory.path().join("done").exists().then_some(()));
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        eventually("the program is ended", || (!alive(pids[0])).then_some(()));
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(10), "{took:?}");
        if !breaks_stdout {
            // No process read, so a part of the output is missing, and the last frame tells it.
            let (stdout, exited) = far.rest();
            assert!(stdout.len() < 5_000_000, "{}", stdout.len());
            assert_eq!((&exited["cut"], &exited["signal"]), (&json!(true), &json!(15)));
        }
    }
}

#[test]
fn a_line_that_speaks_again_within_the_grace_is_not_lost() {
    let mut far = Far::with(Times { silence: 300, grace: 1200, ..TIMES }, &shell("echo \"[$$]\"; read x; echo \"$x\""));
    far.pids();
    std::thread::sleep(Duration::from_millis(700));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        far.say(BEAT, b"");
        std::thread::sleep(Duration::from_millis(50));
    }
    far.say(IN, b"again\n");
    let (stdout, exited) = far.rest();
    assert_eq!((stdout.as_str(), &exited["status"]), ("again\n", &json!(0)));
}

#[test]
fn a_signal_of_the_near_side_reaches_the_group_and_ends_the_grace() {
    let mut far = Far::with(
        Times { grace: 600_000, ..TIMES },
        &shell(
            "sh -c 'trap \"echo inner\" USR1; echo \"[$$]\"; \
         read x; while :; do sleep 0.02; done' & trap 'echo outer' USR1; while :; do wait; done",
        ),
    );
    let pids = far.pids();
    far.say(SIGNAL, &(Signal::SIGUSR1 as u32).to_le_bytes());
    let mut said = String::new();
    while !(said.contains("inner") && said.contains("outer")) {
        // A shell reports a child that the signal ended on stderr.
        said += std::str::from_utf8(&far.frame().unwrap().1).unwrap();
    }
    far.stdin = None;
    eventually("the tree is killed", || (!alive(pids[0])).then_some(()));
    let (_, exited) = far.rest();
    assert_eq!(exited["signal"], 9);
    assert!(exited["killed"].as_u64().unwrap() >= 1, "{exited}");
}

#[test]
fn a_signal_for_the_far_side_ends_the_program_with_sigterm() {
    let times = Times { term: 10_000, ..TIMES };
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut far =
            Far::with(times, &shell("trap 'echo stopping; exit 6' TERM; echo '[]'; while :; do sleep 0.02; done"));
        far.pids();
        far.signal(signal);
        let (stdout, exited) = far.rest();
        assert_eq!((stdout.as_str(), &exited["status"]), ("stopping\n", &json!(6)), "{signal}");
        assert_eq!(far.status(), 6);
    }
    let mut far = Far::with(TIMES, &shell("trap '' TERM; echo \"[$$]\"; while :; do sleep 0.02; done"));
    far.pids();
    // An engine announces the end of a job with a signal of the user's choice.
    far.signal(Signal::SIGUSR1);
    far.say(BEAT, b"");
    far.signal(Signal::SIGTERM);
    assert_eq!(far.rest().1["signal"], 9);
}

#[test]
fn output_waits_for_the_reader_and_none_is_lost() {
    let mut far = Far::with(TIMES, &shell("head -c 3000000 /dev/zero; echo end"));
    let (mut length, mut ended) = (0, false);
    while !ended {
        let (kind, content) = far.frame().unwrap();
        match kind {
            OUT => {
                length += content.len();
                assert!(length <= 3_000_004);
                far.taken(content.len());
            }
            OUT_END => ended = true,
            _ => {}
        }
    }
    assert_eq!(length, 3_000_004);
    // Without a report of taken bytes, only a window is sent.
    let mut far = Far::with(TIMES, &shell("head -c 3000000 /dev/zero"));
    let mut length = 0;
    while length < 1 << 20 {
        length += far.frame().unwrap().1.len();
    }
    assert_eq!(length, 1 << 20);
    far.taken(100);
    assert_eq!(far.frame().unwrap().1.len(), 100);
}

#[test]
fn an_agent_whose_launcher_exits_lives_while_its_pipes_are_held() {
    let launcher = r#"exec 3<&0; (while read line; do echo "$line"; done; echo over) <&3 & echo "[$$]"; exit 4"#;
    let agent = PlacedProgram { session: Some("s1".to_owned()), ..shell(launcher) };
    let mut far = Far::with(TIMES, &agent);
    let pids = far.pids();
    eventually("the launcher is gone", || (!alive(pids[0])).then_some(()));
    far.say(IN, b"there\n");
    assert_eq!(far.frame().unwrap(), (OUT, b"there\n".to_vec()));
    far.say(IN_END, b"");
    let (stdout, exited) = far.rest();
    assert_eq!((stdout.as_str(), &exited["status"]), ("over\n", &json!(4)));
    // The line of such an agent can be lost, too.
    let mut far = Far::with(TIMES, &agent);
    far.pids();
    far.stdin = None;
    assert_eq!(far.rest().1["status"], 4);
    // Other programs end with their first process.
    let mut far = Far::with(TIMES, &shell(launcher));
    let (_, exited) = far.rest();
    assert_eq!((&exited["status"], &exited["killed"]), (&json!(4), &json!(1)));
}

#[test]
fn a_refusal_is_the_last_frame() {
    let mut far = Far::start();
    far.begin(TIMES, &PlacedProgram { directory: "/no/such".into(), ..shell("") });
    let (kind, content) = far.frame().unwrap();
    let refused: Value = serde_json::from_slice(&content).unwrap();
    assert_eq!((kind, &refused["code"]), (REFUSED, &json!("directory")));
    assert_eq!((far.frame(), far.status()), (None, 126));
}

#[test]
fn a_line_without_a_program_ends_the_far_side() {
    let mut far = Far::start();
    far.stdin = None;
    assert_eq!((far.frame(), far.status()), (None, 1));
    let mut far = Far::start();
    far.stdin.as_mut().unwrap().write_all(b"hello there\n").unwrap();
    assert_eq!((far.frame(), far.status()), (None, 1));
    let mut stderr = String::new();
    far.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "agentd-keeper: the connection is damaged: byte 0x68 is not the kind of a frame\n");
    let far = Far::start();
    far.signal(Signal::SIGTERM);
    let mut far = far;
    assert_eq!(far.status(), 128 + 15);
}

#[test]
fn a_program_ends_when_its_line_is_damaged() {
    let mut far = Far::with(TIMES, &shell("echo \"[$$]\"; read x; exit 2"));
    far.pids();
    far.stdin.as_mut().unwrap().write_all(b"hello there\n").unwrap();
    let (_, exited) = far.rest();
    assert_eq!(exited["status"], 2);
}
