//! `agentd-keeper place`: a program on a place is like a program of this machine, and the loss of its line ends it.
//!
//! The client of the tests is `agentd-keeper enter` itself, or a shell that starts it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use agentd_api::event::PlaceHost;
use agentd_keeper::protocol::{
    Attributes, Limit, PlaceLine, PlaceReport, PlaceRun, PlacedProgram, RunOutcome, RunResult,
};

use super::*;
use crate::harness::digest::sha256;

/// Returns the way to a far side without a client in between.
pub(super) fn direct() -> PlaceLine {
    way(&["/usr/bin/env", "-i", paths::keeper(), "enter"])
}

/// Returns the way through a shell script, whose `$KEEPER` is the far side's program.
pub(super) fn through(script: &str) -> PlaceLine {
    let environment = variables(&[("PATH", b"/usr/bin:/bin"), ("KEEPER", paths::keeper().as_bytes())]);
    PlaceLine { environment, ..way(&["/bin/sh", "-c", script]) }
}

pub(super) fn way(client: &[&str]) -> PlaceLine {
    PlaceLine {
        place: "lab".to_owned(),
        client: strings(client),
        environment: Vec::new(),
        cancel: None,
        enter_ms: Some(20_000),
        silence_ms: 20_000,
        grace_ms: 0,
        close_ms: 200,
        term_ms: 200,
        resident: None,
        sha256: None,
        keeper: None,
    }
}

pub(super) fn shell(text: &str) -> PlacedProgram {
    PlacedProgram {
        program: "/bin/sh".into(),
        args: strings(&["-c", text]),
        environment: variables(&[("PATH", b"/usr/bin:/bin")]),
        directory: "/".into(),
        ..PlacedProgram::default()
    }
}

/// A near side. Its stderr is a file, because its reports come through the pipe.
pub(super) struct Near {
    pub(super) process: Child,
    directory: tempfile::TempDir,
}

impl Near {
    pub(super) fn start(line: PlaceLine, program: PlacedProgram) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut process = Command::new("/bin/sh")
            .args(["-c", "exec env -i \"$0\" place 3 3>&2 2>\"$1\"", paths::keeper()])
            .arg(directory.path().join("stderr"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let first = frame::encode(&PlaceRun { line, program }).unwrap();
        process.stdin.as_mut().unwrap().write_all(&first).unwrap();
        Self { process, directory }
    }

    pub(super) fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }

    pub(super) fn report(&mut self) -> Option<PlaceReport> {
        frame::read(self.process.stderr.as_mut().unwrap()).unwrap()
    }

    pub(super) fn running(&mut self) -> PlaceHost {
        match self.report() {
            Some(PlaceReport::Running(host)) => host,
            other => panic!("{other:?}, with {:?}", self.stderr()),
        }
    }

    pub(super) fn stderr(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("stderr")).unwrap_or_default()
    }

    pub(super) fn say(&mut self, text: &[u8]) {
        self.process.stdin.as_mut().unwrap().write_all(text).unwrap();
    }

    /// Reads a line of stdout that is a list of process ids.
    pub(super) fn pids(&mut self) -> Vec<i32> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            self.process.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        serde_json::from_slice(&line).unwrap()
    }

    /// Waits for the end. Returns the last report, the exit status, and the rest of stdout.
    pub(super) fn end(&mut self) -> (PlaceReport, ExitStatus, Vec<u8>) {
        let mut stdout = Vec::new();
        self.process.stdout.as_mut().unwrap().read_to_end(&mut stdout).unwrap();
        let mut last = None;
        while let Some(report) = self.report() {
            last = Some(report);
        }
        let status = self.process.wait().unwrap();
        (last.unwrap_or_else(|| panic!("no report, {status}: {:?}", self.stderr())), status, stdout)
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a program on a place to its end.
pub(super) fn run(line: PlaceLine, program: PlacedProgram) -> (PlaceReport, ExitStatus, Vec<u8>) {
    Near::start(line, program).end()
}

pub(super) fn refused(report: PlaceReport) -> (String, String) {
    match report {
        PlaceReport::Refused { code, message } => (code, message),
        other => panic!("{other:?} was not refused"),
    }
}

pub(super) fn lost(report: PlaceReport) -> String {
    match report {
        PlaceReport::Lost { message } => message,
        other => panic!("{other:?} in place of a lost line"),
    }
}

/// Chooses processes to signal.
#[cfg(target_os = "linux")]
pub(super) type Choice<T> = fn(&Near) -> T;

/// Returns the children of a process, in the order of their start.
#[cfg(target_os = "linux")]
pub(super) fn children(pid: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[cfg(target_os = "linux")]
pub(super) fn name(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

pub(super) fn gone(pids: &[i32]) {
    for pid in pids {
        eventually("a process is gone", || (!alive(*pid)).then_some(()));
    }
}

/// Script of a program with a child and a daemon, which prints their process ids.
pub(super) const TREE: &str = r#"sh -c 'trap : TERM HUP; while :; do sleep 600; done' & child=$!
    exec 3>&1; daemon=$( (setsid sh -c 'echo $$; exec >/dev/null 2>&1 3>&-; sleep 600; :' &) )
    echo "[$$,$child,$daemon]"; exec 3>&-; while read x; do :; done; exit 5"#;

#[test]
fn a_program_on_a_place_is_like_one_of_this_machine() {
    let mut near = Near::start(direct(), shell("echo to-stderr >&2; read x; echo \"got $x\"; cat; exit 7"));
    let host = near.running();
    let uname = |option: &str| {
        let output = Command::new("uname").arg(option).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!((host.host, host.system, host.architecture), (uname("-n"), uname("-s"), uname("-m")));
    assert_eq!((host.uid, host.version.as_str()), (nix::unistd::geteuid().as_raw(), env!("CARGO_PKG_VERSION")));
    assert!(host.home.is_some_and(|home| home.is_absolute()) && !host.user.is_empty());
    assert!(alive(i32::try_from(host.agent_pid.unwrap()).unwrap()));
    near.say(b"a line\nand ");
    near.say(b"the rest");
    near.process.stdin = None;
    let (report, status, stdout) = near.end();
    assert_eq!(String::from_utf8(stdout).unwrap(), "got a line\nand the rest");
    assert_eq!(report, PlaceReport::Ended { status: Some(7), signal: None, killed: 0 });
    assert_eq!((status.code(), near.stderr().as_str()), (Some(7), "to-stderr\n"));
}

#[test]
fn a_program_on_a_place_ends_with_the_status_or_the_signal_of_a_local_one() {
    for status in [0, 1, 126, 255] {
        let (report, ended, _) = run(direct(), shell(&format!("exit {status}")));
        assert_eq!(report, PlaceReport::Ended { status: Some(status), signal: None, killed: 0 });
        assert_eq!(ended.code(), Some(status));
    }
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGABRT, Signal::SIGHUP] {
        let number = signal as i32;
        let (report, ended, _) = run(direct(), shell(&format!("ulimit -c unlimited; kill -{number} $$")));
        assert_eq!(report, PlaceReport::Ended { status: None, signal: Some(number), killed: 0 });
        assert_eq!((ended.signal(), ended.core_dumped()), (Some(number), false));
    }
}

#[test]
fn the_noise_of_a_login_shell_is_skipped() {
    let noisy = "echo motd; printf '\\001agentd-enter 1\\nmore'; head -c 100000 /dev/zero; exec \"$KEEPER\" enter";
    let (report, _, stdout) = run(through(noisy), shell("echo clean"));
    assert_eq!(report, PlaceReport::Ended { status: Some(0), signal: None, killed: 0 });
    assert_eq!(stdout, b"clean\n");

    let endless = PlaceLine { enter_ms: None, ..through("yes 'you have mail'") };
    let (code, message) = refused(run(endless, shell("")).0);
    assert_eq!(code, "client-failed");
    // The last line may be cut.
    assert!(message.contains("printed 1 MiB") && message.contains("you have mail"), "{message}");
}

#[test]
fn a_program_that_cannot_be_started_there_is_refused() {
    for (code, words, program) in [
        ("directory", "/no/such: No such file", PlacedProgram { directory: "/no/such".into(), ..shell("") }),
        ("directory", "/etc/passwd", PlacedProgram { directory: "/etc/passwd".into(), ..shell("") }),
        ("directory", "not an absolute path", PlacedProgram { directory: "tmp".into(), ..shell("") }),
        ("not-executed", "no-such-program", PlacedProgram { program: "no-such-program".into(), ..shell("") }),
        ("not-executed", "/no/program", PlacedProgram { program: "/no/program".into(), ..shell("") }),
        ("not-executed", "too long", {
            let huge = vec![b'x'; 10 << 20];
            PlacedProgram { environment: variables(&[("HUGE", &huge)]), ..shell("") }
        }),
    ] {
        let (report, status, stdout) = run(direct(), program);
        let (got, message) = refused(report);
        assert_eq!(got, code);
        assert!(message.contains("place \"lab\"") && message.replace('"', "").contains(words), "{message}");
        assert_eq!((status.code(), stdout.len()), (Some(126), 0));
    }
    let found = PlacedProgram { program: "sh".into(), ..shell("echo $0") };
    assert_eq!(run(direct(), found).2, b"sh\n");
}

#[test]
fn a_program_gets_exactly_its_environment_its_directory_and_its_attributes() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let program = PlacedProgram {
        program: "env".into(),
        args: Vec::new(),
        environment: variables(&[("PATH", b"/usr/bin:/bin"), ("A", b"x = y "), ("EMPTY", b""), ("BYTES", b"\xff\xfe")]),
        ..shell("")
    };
    let (_, _, stdout) = run(through("export PLANTED=x; exec \"$KEEPER\" enter"), program);
    let mut lines: Vec<_> = stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    assert_eq!(lines, [&b"A=x = y "[..], b"BYTES=\xff\xfe", b"EMPTY=", b"PATH=/usr/bin:/bin"]);

    let limit = Limit { name: "nofile".to_owned(), soft: Some(77), hard: Some(88) };
    let program = PlacedProgram {
        directory: place.clone().into_os_string().into(),
        attributes: Some(Attributes { umask: 0o27, nice: None, limits: vec![limit] }),
        ..shell("pwd; umask; ulimit -S -n; ulimit -H -n; ps -o pgid= -p $$ | tr -d ' '; echo $$")
    };
    let (_, _, stdout) = run(direct(), program);
    let stdout = String::from_utf8(stdout).unwrap();
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[..4], [place.to_str().unwrap(), "0027", "77", "88"]);
    assert_eq!(lines[4], lines[5], "the program leads a process group");
}

/// Returns bytes without a pattern.
fn random(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length / 8).flat_map(|_| next()).collect()
}

#[test]
fn many_bytes_pass_whole_in_both_directions_however_slow_the_reader_is() {
    const LENGTH: usize = 64 << 20;
    let mut near = Near::start(direct(), shell("cat; echo done >&2"));
    near.running();
    let bytes = random(LENGTH);
    let (mut stdin, mut stdout) = (near.process.stdin.take().unwrap(), near.process.stdout.take().unwrap());
    let written = std::sync::atomic::AtomicUsize::new(0);
    let load = || written.load(std::sync::atomic::Ordering::Relaxed);
    let got = std::thread::scope(|scope| {
        scope.spawn(|| {
            for piece in bytes.chunks(8 << 10) {
                stdin.write_all(piece).unwrap();
                written.fetch_add(piece.len(), std::sync::atomic::Ordering::Relaxed);
            }
            drop(stdin);
        });
        // Nothing is read until the writer is blocked.
        let mut before = usize::MAX;
        eventually("the writer is blocked", || {
            std::thread::sleep(Duration::from_millis(200));
            let now = load();
            (std::mem::replace(&mut before, now) == now && now > 0).then_some(())
        });
        assert!(load() < 8 << 20, "{} bytes wait on the way", load());
        let mut got = Vec::with_capacity(LENGTH);
        stdout.read_to_end(&mut got).unwrap();
        got
    });
    assert_eq!((got.len(), sha256(&got)), (LENGTH, sha256(&bytes)));
    let mut reports = Vec::new();
    while let Some(report) = near.report() {
        reports.push(report);
    }
    assert_eq!(reports, [PlaceReport::Ended { status: Some(0), signal: None, killed: 0 }]);
    assert_eq!(near.stderr(), "done\n");
}

#[test]
fn a_full_stdout_blocks_neither_stderr_nor_signals() {
    let text =
        "trap 'exit 6' TERM; (yes | head -c 30000000) & wait; read x; head -c 3000000 /dev/zero >&2; echo >&2 end";
    let mut near = Near::start(direct(), shell(&text.replace("wait; ", "")));
    near.running();
    near.say(b"go\n");
    eventually("stderr is whole", || near.stderr().ends_with("end\n").then_some(()));
    let mut near = Near::start(direct(), shell("trap 'exit 6' TERM; yes & echo >&2 ready; wait"));
    near.running();
    eventually("the trap is set", || near.stderr().ends_with("ready\n").then_some(()));
    near.signal(Signal::SIGTERM);
    let (report, _, _) = near.end();
    assert!(matches!(report, PlaceReport::Ended { status: Some(6), .. }), "{report:?}");
}

#[test]
fn a_program_that_closes_its_stdout_continues() {
    let mut near = Near::start(direct(), shell("echo last; exec >&-; read x; exit 4"));
    near.running();
    let mut stdout = String::new();
    near.process.stdout.as_mut().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(stdout, "last\n");
    near.say(b"go\n");
    assert_eq!(near.end().0, PlaceReport::Ended { status: Some(4), signal: None, killed: 0 });
}

#[test]
fn processes_that_a_program_leaves_are_killed_with_it() {
    let mut near = Near::start(direct(), shell(TREE));
    near.running();
    let pids = near.pids();
    near.say(b"x\n");
    near.process.stdin = None;
    let (report, _, _) = near.end();
    let PlaceReport::Ended { status: Some(5), killed, .. } = report else { panic!("{report:?}") };
    assert!(killed >= 2, "{killed}");
    gone(&pids);
}

#[test]
fn the_roles_of_the_keeper_work_on_a_place() {
    let own = |args: &[&str]| PlacedProgram { program: "".into(), args: strings(args), ..shell("") };
    let mut near = Near::start(direct(), own(&["run"]));
    let request = super::run::request("echo out; echo err >&2; exit 3");
    near.say(&frame::encode(&request).unwrap());
    let result: RunResult = frame::read(near.process.stdout.as_mut().unwrap()).unwrap().unwrap();
    assert_eq!((result.outcome, result.stdout.as_str()), (RunOutcome::Exited(3), Some("out\n")));
    let (report, ..) = near.end();
    assert_eq!(report, PlaceReport::Ended { status: Some(0), signal: None, killed: 0 });
    // The end of stdin cancels a run, as it does on this machine.
    let mut near = Near::start(direct(), own(&["run"]));
    near.running();
    near.say(&frame::encode(&super::run::request("exec sleep 600")).unwrap());
    near.process.stdin = None;
    let result: RunResult = frame::read(near.process.stdout.as_mut().unwrap()).unwrap().unwrap();
    assert_eq!(result.outcome, RunOutcome::Cancelled);
    near.end();
    let (_, _, stdout) = run(direct(), own(&["--version"]));
    assert_eq!(stdout, format!("agentd-keeper {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
}

#[test]
#[cfg(target_os = "linux")]
fn a_secret_is_in_the_environment_of_the_program_alone() {
    let secret = "hunter2-on-the-place";
    let mut program = shell("echo \"[$$]\"; read x");
    program.environment.extend(variables(&[("TOKEN", secret.as_bytes())]));
    program.args.push(format!("--token={secret}").into());
    let mut near = Near::start(through("\"$KEEPER\" enter; exit $?"), program);
    near.running();
    let [agent] = near.pids()[..] else { panic!("one process id") };
    let (mut way, mut pid) = (Vec::new(), near.pid());
    while pid != agent {
        way.push(pid);
        pid = children(pid)[0];
    }
    assert_eq!(way.len(), 4, "near side, shell, and both processes of the far side");
    let has = |pid: i32| {
        ["cmdline", "environ"].map(|file| {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            String::from_utf8_lossy(&bytes).contains(secret)
        })
    };
    assert_eq!(has(agent), [true, true]);
    for pid in way {
        assert_eq!(has(pid), [false, false], "{}", name(pid));
    }
}

#[test]
fn a_request_that_is_cut_is_refused() {
    let place = |bytes: &[u8]| {
        let mut process =
            Command::new(paths::keeper()).arg("place").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        process.stdin.take().unwrap().write_all(bytes).unwrap();
        let output = process.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (bytes, words) in [(&b""[..], "stdin ended before it"), (b"\x09\0\0\0{", "cannot read the request")] {
        let (status, stderr) = place(bytes);
        assert_eq!(status, Some(1));
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn each_of_many_programs_in_a_row_is_whole() {
    for n in 0..60 {
        let (report, status, stdout) = run(direct(), shell(&format!("echo {n}; exit {n}")));
        assert_eq!(report, PlaceReport::Ended { status: Some(n), signal: None, killed: 0 });
        assert_eq!((status.code(), stdout), (Some(n), format!("{n}\n").into_bytes()));
    }
}
