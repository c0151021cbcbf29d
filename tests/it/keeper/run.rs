//! `agentd-keeper run`: what it gives back, and that nothing is left.

use agentd_keeper::protocol::{RunOutcome, RunRequest, RunResult};

use super::*;

fn request(text: &str) -> RunRequest {
    RunRequest {
        program: "/bin/sh".into(),
        args: strings(&["-c", text]),
        environment: variables(&[("PATH", b"/usr/bin:/bin")]),
        directory: "/".into(),
        deadline_ms: 60_000,
        capture_fd: None,
        capture_fifo: false,
        stdin: None,
        trace: None,
        trace_fd: None,
        leave: false,
        max_output: 100_000,
    }
}

fn start_run(request: &RunRequest) -> Child {
    let mut runner = Command::new(KEEPER)
        .arg("run")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .env("PLANTED", "x")
        .spawn()
        .unwrap();
    let stdin = runner.stdin.as_mut().unwrap();
    stdin.write_all(&frame::encode(request).unwrap()).unwrap();
    runner
}

fn end_run(mut runner: Child) -> RunResult {
    let result = frame::read(runner.stdout.as_mut().unwrap()).unwrap().unwrap();
    assert!(runner.wait().unwrap().success());
    result
}

fn run(request: &RunRequest) -> RunResult {
    end_run(start_run(request))
}

#[test]
fn a_run_tells_how_its_program_ended_and_what_it_printed() {
    let result = run(&request("echo out; echo err >&2; exit 3"));
    assert_eq!((result.outcome, result.killed), (RunOutcome::Exited(3), 0));
    assert_eq!((result.stdout, result.stderr), ("out\n".into(), "err\n".into()));
    assert_eq!(run(&request("kill -9 $$")).outcome, RunOutcome::Signalled(9));
    let missing = RunRequest { program: "/no/such".into(), ..request("") };
    assert!(matches!(run(&missing).outcome, RunOutcome::NotExecuted(why) if why.contains("/no/such")));
}

#[test]
fn a_run_of_an_environment_gives_back_every_byte() {
    let environment = [
        ("LINES_", &b"a\nb\n\nc=d "[..]),
        ("BYTES", b"\xff\x01"),
        ("EMPTY", b""),
        ("BASH_FUNC_f%%", b"() {  echo x\n}"),
    ];
    let dump = RunRequest {
        program: KEEPER.into(),
        args: strings(&["dump-environment", "10"]),
        environment: variables(&environment),
        capture_fd: Some(10),
        ..request("")
    };
    let captured = run(&dump).captured.0;
    let mut entries: Vec<_> = captured.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).collect();
    entries.sort_unstable();
    let mut expected: Vec<_> =
        environment.iter().map(|(name, value)| [name.as_bytes(), b"=", value].concat()).collect();
    expected.sort_unstable();
    assert_eq!(entries, expected);
}

#[test]
fn a_run_over_its_deadline_leaves_nothing_of_its_tree() {
    let text = "setsid sh -c 'echo $$; exec sleep 600' & (sh -c 'echo $$; exec sleep 600' &) ; echo $$; sleep 600";
    let result = run(&RunRequest { deadline_ms: 1000, ..request(text) });
    assert_eq!(result.outcome, RunOutcome::TimedOut);
    let pids: Vec<i32> = result.stdout.as_str().unwrap().lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 3);
    assert!(result.killed >= 3, "{result:?}");
    assert!(pids.iter().all(|pid| !alive(*pid)), "{pids:?}");
}

#[test]
fn a_background_child_that_holds_the_descriptors_does_not_delay_a_run() {
    let result = run(&RunRequest { capture_fd: Some(10), ..request("sleep 600 & echo $!; exit 0") });
    assert_eq!((&result.outcome, result.killed), (&RunOutcome::Exited(0), 1));
    assert!(!alive(result.stdout.as_str().unwrap().trim().parse().unwrap()));
}

#[test]
fn a_run_that_nobody_waits_for_is_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let mut runner =
        start_run(&request(&format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 600", file.display())));
    let pid = eventually("the program runs", || std::fs::read_to_string(&file).ok());
    drop(runner.stdin.take());
    assert_eq!(end_run(runner).outcome, RunOutcome::Cancelled);
    assert!(!alive(pid.trim().parse().unwrap()));
}

#[test]
fn a_capture_over_its_limit_ends_a_run_and_other_output_does_not() {
    let result = run(&RunRequest { capture_fd: Some(10), ..request("exec cat /dev/zero >/dev/fd/10") });
    assert_eq!((result.outcome, result.captured.0.len()), (RunOutcome::TooMuchOutput, 100_000));
    let result = run(&request(
        "head -c 1000000 /dev/zero | tr '\\0' x; head -c 1000000 /dev/zero | tr '\\0' x >&2; echo end >&2",
    ));
    assert_eq!((result.outcome, result.stdout.0.len()), (RunOutcome::Exited(0), 100_000));
    assert!(result.stderr.0.len() == 100_000 && result.stderr.0.ends_with(b"xend\n"));
}
