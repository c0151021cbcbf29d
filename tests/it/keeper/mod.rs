//! Tests of the keeper as a process, with its frames, its journal, and the processes and files after its end.

mod enter;
mod faults;
mod fixture;
mod limits;
mod line;
mod place;
mod placed;
mod replay;
mod run;
mod socket;
mod terminal;

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentd_api::event::AgentExited;
use agentd_api::{Body, ByteString, Event};
use agentd_journal::Reader;
use agentd_keeper::frame;
use agentd_keeper::protocol::{
    Append, FromKeeper, Hello, Hide, LaunchRecord, Mute, NewRecord, StopTimes, ToKeeper, Variable,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use serde_json::value::to_raw_value;

use crate::harness::paths;

/// Time limit of each wait, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Stop times that kill the agent without a delay.
const AT_ONCE: StopTimes = StopTimes { close_ms: 0, term_ms: 0 };
const PATIENT: StopTimes = StopTimes { close_ms: 20_000, term_ms: 20_000 };

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < give_up, "it did not come to pass that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

fn variables(pairs: &[(&str, &[u8])]) -> Vec<Variable> {
    pairs.iter().map(|(name, value)| Variable { name: (*name).into(), value: (*value).into() }).collect()
}

fn strings(words: &[&str]) -> Vec<ByteString> {
    words.iter().map(|word| (*word).into()).collect()
}

/// Returns the launch of an agent that is a shell script.
fn script(text: &str) -> LaunchRecord {
    LaunchRecord {
        launch: 1,
        program: "/bin/sh".into(),
        args: strings(&["-c", text]),
        environment: variables(&[("PATH", b"/usr/bin:/bin")]),
        directory: "/".into(),
        max_line: 64 << 20,
        ..LaunchRecord::default()
    }
}

struct Keeper {
    process: Child,
    state: tempfile::TempDir,
}

impl Keeper {
    fn start() -> Self {
        Self::start_by(Command::new(paths::keeper()))
    }

    /// Starts the keeper, and returns when it listens.
    fn start_by(command: Command) -> Self {
        Self::start_in(state(), command)
    }

    fn start_with(arguments: &[&str]) -> Self {
        let mut command = Command::new(paths::keeper());
        // The options follow the role, and may precede the role's own arguments.
        command.arg("hold").args(arguments);
        Self::start_in(state(), command)
    }

    fn start_in(state: tempfile::TempDir, command: Command) -> Self {
        let mut process = hold(command, &directory(&state)).spawn().unwrap();
        // The keeper closes stdout when it listens.
        process.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        Self { process, state }
    }

    fn directory(&self) -> PathBuf {
        directory(&self.state)
    }

    fn socket(&self) -> PathBuf {
        self.directory().join("k.sock")
    }

    fn connect(&self) -> (Daemon, Hello) {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut daemon = Daemon { stream };
        match daemon.receive() {
            Some(FromKeeper::Hello(hello)) => (daemon, hello),
            other => panic!("{other:?} in place of a greeting"),
        }
    }

    /// Starts a keeper with an agent, and returns the keeper and its daemon.
    fn with(record: LaunchRecord) -> (Self, Daemon) {
        let keeper = Self::start();
        let daemon = keeper.launch(record);
        (keeper, daemon)
    }

    fn launch(&self, record: LaunchRecord) -> Daemon {
        let (mut daemon, hello) = self.connect();
        assert_eq!((hello.session.as_str(), hello.launch, hello.agent_pid), ("s1", 1, None));
        let answer = daemon.call(&ToKeeper::Launch(Box::new(record)));
        assert!(matches!(answer, FromKeeper::Launched { .. }), "{answer:?}");
        daemon
    }

    /// Reads the whole journal, and asserts that it has no gap.
    fn journal(&self) -> Vec<Event> {
        events(&self.directory())
    }

    /// Returns the agent's JSON lines so far.
    fn out(&self) -> Vec<String> {
        self.texts(|body| if let Body::AgentOut(data) = body { Some(data.get().to_owned()) } else { None })
    }

    fn texts(&self, pick: impl Fn(&Body) -> Option<String>) -> Vec<String> {
        self.journal().iter().filter_map(|event| pick(&event.body)).collect()
    }

    fn wait_for_out(&self, count: usize) -> Vec<String> {
        eventually("the agent said so much", || Some(self.out()).filter(|lines| lines.len() >= count))
    }

    /// Waits until the keeper has ended. Returns the agent's end and the journal.
    fn ended(mut self) -> (AgentExited, Vec<Event>) {
        let status = eventually("the keeper ended", || self.process.try_wait().unwrap());
        assert!(status.success(), "{status}");
        assert!(!self.socket().exists());
        let journal = self.journal();
        let Some(Event { body: Body::AgentExited(exited), .. }) = journal.last() else {
            panic!("{:?}", journal.last())
        };
        (exited.clone(), journal)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            // A stop also ends the agent's processes. The keeper may already be ending.
            if let Ok(mut stream) = UnixStream::connect(self.socket()) {
                let _ = frame::write(&mut stream, &ToKeeper::Stop(AT_ONCE));
            }
            let give_up = Instant::now() + PATIENCE;
            while self.process.try_wait().unwrap().is_none() {
                if Instant::now() > give_up {
                    self.process.kill().unwrap();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

fn events(directory: &Path) -> Vec<Event> {
    let mut reader = Reader::open(directory, 0).unwrap();
    let mut events = Vec::new();
    while let Some(line) = reader.next().unwrap() {
        events.push(Event::parse(line.bytes).unwrap());
    }
    events
}

/// Creates a state directory with the directory of one session.
fn state() -> tempfile::TempDir {
    let state = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory(&state)).unwrap();
    state
}

fn directory(state: &tempfile::TempDir) -> PathBuf {
    state.path().join("sessions/s1")
}

fn hold(command: Command, directory: &Path) -> Command {
    hold_at(command, directory, &directory.join("k.sock"))
}

fn hold_at(mut command: Command, directory: &Path, socket: &Path) -> Command {
    if command.get_args().all(|argument| argument != "hold") {
        command.arg("hold");
    }
    command
        .args(["--session", "s1", "--launch", "1", "--state"])
        .arg(directory)
        .arg("--socket")
        .arg(socket)
        .env("PLANTED", "in the keeper")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

struct Daemon {
    stream: UnixStream,
}

impl Daemon {
    fn receive(&mut self) -> Option<FromKeeper> {
        frame::read(&mut self.stream).unwrap()
    }

    /// Sends one request and returns its answer.
    fn call(&mut self, request: &ToKeeper) -> FromKeeper {
        frame::write(&mut self.stream, request).unwrap();
        loop {
            match self.receive().expect("an answer") {
                FromKeeper::Grown(_) => {}
                answer => return answer,
            }
        }
    }

    /// Sends one line to the agent.
    fn say(&mut self, message: &serde_json::Value) -> FromKeeper {
        self.say_and(message, None)
    }

    fn say_and(&mut self, message: &serde_json::Value, mute: Option<Mute>) -> FromKeeper {
        let record = NewRecord {
            kind: "agent.in".to_owned(),
            data: to_raw_value(message).unwrap(),
            send: true,
            fill: false,
            contents: false,
        };
        self.call(&ToKeeper::Append(Append {
            request: 1,
            records: vec![record],
            durable: false,
            from_reserve: false,
            mute,
        }))
    }

    fn stop(&mut self, times: StopTimes) {
        assert!(matches!(self.call(&ToKeeper::Stop(times)), FromKeeper::Stopping));
    }
}

fn code(answer: FromKeeper) -> String {
    match answer {
        FromKeeper::Refused { code, .. } => code,
        other => panic!("{other:?} was not refused"),
    }
}

#[test]
fn an_agent_gets_exactly_its_environment() {
    let record = LaunchRecord {
        program: "/usr/bin/env".into(),
        args: Vec::new(),
        environment: variables(&[("A", b"x = y "), ("EMPTY", b""), ("BYTES", b"\xff\xfe")]),
        ..script("")
    };
    let (keeper, _daemon) = Keeper::with(record);
    let (exited, journal) = keeper.ended();
    assert_eq!((exited.status, exited.killed, exited.requested), (Some(0), 0, false));
    let mut lines: Vec<_> = journal
        .into_iter()
        .filter_map(|event| if let Body::AgentNoise(text) = event.body { Some(text.text.0) } else { None })
        .collect();
    lines.sort();
    assert_eq!(lines, [&b"A=x = y "[..], b"BYTES=\xff\xfe", b"EMPTY="]);
}

#[test]
#[cfg(target_os = "linux")]
fn an_agent_has_a_process_session_of_its_own_and_default_signals() {
    // nohup starts the keeper with SIGHUP ignored.
    let mut under_nohup = Command::new("/bin/sh");
    under_nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", paths::keeper()]);
    let keeper = Keeper::start_by(under_nohup);
    let _daemon = keeper.launch(script("cat /proc/$$/stat; kill -HUP $$; echo survived"));
    let (exited, journal) = keeper.ended();
    assert_eq!(exited.signal, Some(Signal::SIGHUP as i32), "{journal:?}");
    let line = journal.iter().find_map(|event| match &event.body {
        Body::AgentNoise(text) => text.text.as_str(),
        _ => None,
    });
    let words: Vec<_> = line.unwrap().split_whitespace().collect();
    // In /proc/PID/stat, word 4 is the process group, word 5 the session, and word 6 the terminal (proc(5)).
    assert_eq!(words[4..7], [words[0], words[0], "0"], "{words:?}");
}

#[test]
fn a_daemon_that_dies_loses_nothing_and_the_next_one_goes_on() {
    let (keeper, mut first) = Keeper::with(script(concat!(
        "i=0; while read line; do n=0; while [ $n -lt 500 ]; do ",
        r#"i=$((i+1)); n=$((n+1)); echo "{\"n\":$i}"; done; done"#,
    )));
    first.say(&json!("go"));
    drop(first);
    let (mut second, hello) = keeper.connect();
    assert!(hello.agent_pid.is_some() && hello.tail.seq >= 3, "{hello:?}");
    second.say(&json!("on"));
    let lines = keeper.wait_for_out(1000);
    let expected: Vec<_> = (1..=1000).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(lines, expected);
}

#[test]
fn a_new_connection_takes_the_place_of_the_old() {
    let (keeper, mut first) = Keeper::with(script("read x"));
    let (mut second, _) = keeper.connect();
    while first.receive().is_some() {}
    second.stop(PATIENT);
    let (exited, _) = keeper.ended();
    assert!(exited.requested);
}

#[test]
fn a_stop_leaves_nobody_however_they_hid() {
    let (keeper, mut daemon) = Keeper::with(script(
        r#"setsid sh -c 'echo "[$$]"; exec sleep 600' &
           (setsid sh -c '(sh -c "echo [\$\$]; trap : TERM; while :; do sleep 600; done" &)' &)
           read x"#,
    ));
    let pids: Vec<[i32; 1]> = keeper.wait_for_out(2).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    daemon.stop(PATIENT);
    let (exited, _) = keeper.ended();
    assert_eq!((exited.status, exited.requested), (Some(1), true));
    assert!(exited.killed >= 2, "{exited:?}");
    for [pid] in pids {
        assert!(!alive(pid), "{pid} is left");
    }
}

#[test]
fn a_launcher_may_go_before_the_agent() {
    let (keeper, mut daemon) =
        Keeper::with(script(r#"exec 3<&0; (while read line; do echo "$line"; done) <&3 & echo "[$$]"; exit 0"#));
    let [launcher]: [i32; 1] = serde_json::from_str(&keeper.wait_for_out(1)[0]).unwrap();
    eventually("the launcher is gone", || (!alive(launcher)).then_some(()));
    daemon.say(&json!({"still": "there"}));
    assert_eq!(keeper.wait_for_out(2)[1], r#"{"still":"there"}"#);
    // The launcher has ended. The agent ends because its stdin is closed; the agent was the last process with stdout
    // open.
    daemon.stop(PATIENT);
    let (exited, _) = keeper.ended();
    assert_eq!((exited.status, exited.requested), (Some(0), true));
}

#[test]
fn an_agent_that_obeys_nothing_is_killed() {
    let (keeper, mut daemon) = Keeper::with(script("trap '' TERM; echo 1; while :; do sleep 600; done"));
    keeper.wait_for_out(1);
    daemon.stop(StopTimes { close_ms: 20, term_ms: 20 });
    let (exited, _) = keeper.ended();
    assert_eq!((exited.signal, exited.killed, exited.requested), (Some(9), 1, true));
}

#[test]
fn a_sigterm_for_the_keeper_stops_the_agent_in_order() {
    let (keeper, _daemon) = Keeper::with(script("echo 1; read x; exit 7"));
    keeper.wait_for_out(1);
    kill(Pid::from_raw(i32::try_from(keeper.process.id()).unwrap()), Signal::SIGTERM).unwrap();
    let (exited, _) = keeper.ended();
    assert_eq!((exited.status, exited.requested), (Some(7), true));
}

#[test]
#[cfg(target_os = "linux")]
fn a_keeper_that_is_killed_does_not_leave_its_agent() {
    let (mut keeper, _daemon) = Keeper::with(script(r#"echo "[$$]"; exec sleep 600"#));
    let [agent]: [i32; 1] = serde_json::from_str(&keeper.wait_for_out(1)[0]).unwrap();
    keeper.process.kill().unwrap();
    keeper.process.wait().unwrap();
    eventually("the agent is gone", || (!alive(agent)).then_some(()));
}

#[test]
fn every_kind_of_output_is_kept() {
    let (keeper, _daemon) = Keeper::with(script(
        r#"echo "a banner"; printf '\377\n'; echo "to stderr" >&2; echo '{"a": 1.50}'
           printf '{"big":"'; head -c 20000000 /dev/zero | tr '\0' x; printf '"}\n'
           printf '{"a":1}'"#,
    ));
    let (_, journal) = keeper.ended();
    let (mut noise, mut out, mut stderr) = (Vec::new(), Vec::new(), Vec::new());
    for event in journal {
        match event.body {
            Body::AgentNoise(text) => noise.push(text.text.0),
            Body::AgentOut(data) => out.push(data.get().to_owned()),
            Body::AgentStderr(text) => stderr.push(text.text.0),
            _ => {}
        }
    }
    assert_eq!(noise, [&b"a banner"[..], b"\xff"]);
    assert_eq!(stderr, [b"to stderr"]);
    assert_eq!((out[0].as_str(), out[1].len(), out[2].as_str()), (r#"{"a": 1.50}"#, 20_000_010, r#"{"a":1}"#));
}

#[test]
fn a_line_over_the_limit_keeps_its_beginning() {
    let record = LaunchRecord {
        max_line: 1000,
        ..script("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo 1; printf partial")
    };
    let (keeper, _daemon) = Keeper::with(record);
    let (_, journal) = keeper.ended();
    let noise: Vec<_> = journal
        .into_iter()
        .filter_map(
            |event| if let Body::AgentNoise(text) = event.body { Some((text.text.0.len(), text.cut)) } else { None },
        )
        .collect();
    assert_eq!(noise, [(1000, 4_999_000), (7, 0)]);
}

#[test]
fn what_an_agent_repeats_of_its_secrets_is_masked() {
    let mut record = script(r#"echo "$S"; echo "{\"k\":\"pa\\\"ss\\u002fword\"}"; echo "$S" >&2; echo "[1,\"$T\"]""#);
    record.environment.extend(variables(&[("S", b"pa\"ss/word"), ("T", b"token-1")]));
    record.secrets = strings(&["pa\"ss/word", "token-1"]);
    let (keeper, _daemon) = Keeper::with(record);
    let path = keeper.directory().join(agentd_journal::JOURNAL);
    let text =
        eventually("all is said", || std::fs::read_to_string(&path).ok().filter(|text| text.contains("agent.exited")));
    assert_eq!(text.matches("‹secret›").count(), 4, "{text}");
    assert!(text.contains(r#""data":{"k":"‹secret›"}"#) && text.contains(r#""data":[1,"‹secret›"]"#), "{text}");
    assert!(!text.contains("ss/word") && !text.contains("token-1"), "{text}");
}

#[test]
fn what_an_agent_comes_by_later_is_masked_from_then_on() {
    let (keeper, mut daemon) = Keeper::with(script(
        r#"echo '{"n":"token-later"}'; read x; echo '{"k":"a token-later"}'; echo "a token-later" >&2"#,
    ));
    assert!(keeper.wait_for_out(1)[0].contains("token-later"), "nobody has said yet that it is one");
    let hide = Hide { secrets: strings(&["token-later"]) };
    assert!(!format!("{hide:?}").contains("token"), "{hide:?}");
    assert!(matches!(daemon.call(&ToKeeper::Hide(hide)), FromKeeper::Hidden));
    daemon.say(&json!({}));
    let (_, journal) = keeper.ended();
    let said = journal.iter().filter_map(|event| match &event.body {
        Body::AgentOut(data) => Some(data.get().to_owned()),
        Body::AgentStderr(text) => Some(text.text.display().into_owned()),
        _ => None,
    });
    let mut said: Vec<String> = said.skip(1).collect();
    said.sort();
    assert_eq!(said, ["a ‹secret›", r#"{"k":"a ‹secret›"}"#]);
}

#[test]
fn a_program_that_cannot_be_executed_is_said_and_ends_the_keeper() {
    for (program, directory, word) in [("/no/such", "/", "/no/such"), ("/bin/sh", "/no/dir", "/no/dir")] {
        let keeper = Keeper::start();
        let (mut daemon, _) = keeper.connect();
        let record = LaunchRecord { program: program.into(), directory: directory.into(), ..script("") };
        assert_eq!(code(daemon.call(&ToKeeper::Launch(Box::new(record)))), "not-executed");
        let (exited, _) = keeper.ended();
        assert!(exited.exec_error.as_ref().unwrap().contains(word), "{exited:?}");
    }
}

#[test]
fn an_agent_that_never_reads_blocks_nobody() {
    let (keeper, mut daemon) = Keeper::with(script("echo 1; exec sleep 600"));
    let much = json!("x".repeat(40 << 20));
    assert!(matches!(daemon.say(&much), FromKeeper::Appended(_)));
    let before = keeper.journal().len();
    assert_eq!(code(daemon.say(&much)), "agent-not-reading");
    assert_eq!(keeper.journal().len(), before);
    let record = NewRecord {
        kind: "note".to_owned(),
        data: to_raw_value(&1).unwrap(),
        send: false,
        fill: false,
        contents: false,
    };
    let append = Append { request: 9, records: vec![record], durable: true, from_reserve: false, mute: None };
    let FromKeeper::Appended(appended) = daemon.call(&ToKeeper::Append(append)) else { panic!("not appended") };
    assert_eq!((appended.request, appended.seq), (9, before as u64 + 1));
}

#[test]
fn a_request_that_is_not_known_is_refused_and_the_connection_stays() {
    let (_keeper, mut daemon) = Keeper::with(script("read x"));
    frame::write(&mut daemon.stream, &json!({"dance": {"tempo": 3}})).unwrap();
    let refused = loop {
        match daemon.receive().unwrap() {
            FromKeeper::Grown(_) => {}
            answer => break answer,
        }
    };
    assert_eq!(code(refused), "unknown-request");
    assert_eq!(code(daemon.call(&ToKeeper::Launch(Box::new(script(""))))), "already-launched");
    assert!(matches!(daemon.say(&json!(1)), FromKeeper::Appended(_)));
}

/// The test uses a limit on the length of files to simulate a full disk, and prlimit(1) removes that limit.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_stops_the_agent_and_loses_nothing() {
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -S -f 64; exec \"$0\" \"$@\"", paths::keeper()]);
    let keeper = Keeper::start_by(limited);
    let mut daemon =
        keeper.launch(script(r#"i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo "{\"n\":$i}"; done; read x"#));
    loop {
        match daemon.receive().unwrap() {
            FromKeeper::Grown(tail) if tail.blocked => break,
            _ => {}
        }
    }
    assert_eq!(code(daemon.say(&json!("no"))), "journal-blocked");
    let pid = keeper.process.id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status().unwrap();
    assert!(raised.success());
    let expected: Vec<_> = (1..=5000).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(keeper.wait_for_out(5000), expected);
    assert!(matches!(daemon.say(&json!("yes")), FromKeeper::Appended(_)));
}
