//! `agentd-keeper run`, with its result and with the processes and files that it must not leave behind.

use agentd_keeper::protocol::{RunOutcome, RunRequest, RunResult, Trace};

use super::*;
use crate::harness::digest::sha256;
use crate::harness::paths;
use crate::harness::quote::quoted;

pub(super) fn request(text: &str) -> RunRequest {
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
        whole_stdout: false,
        ..RunRequest::default()
    }
}

pub(super) fn start_run(request: &RunRequest) -> Child {
    let mut runner = Command::new(paths::keeper())
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

pub(super) fn end_run(mut runner: Child) -> RunResult {
    let result = frame::read(runner.stdout.as_mut().unwrap()).unwrap().unwrap();
    assert!(runner.wait().unwrap().success());
    result
}

pub(super) fn run(request: &RunRequest) -> RunResult {
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
        program: paths::keeper().into(),
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

/// Returns a shell command that takes a lock as pyenv's shims do. The lock is a directory, and a trap removes the
/// directory.
fn locking(lock: &std::path::Path) -> String {
    let lock = quoted(lock);
    format!("trap {} TERM; mkdir {lock}", quoted(format!("rmdir {lock}; exit 1")))
}

/// Returns a run of a shell that takes such a lock.
fn with_lock(lock: &std::path::Path, then: &str) -> RunRequest {
    RunRequest { program: "/bin/bash".into(), ..request(&format!("{}; {then}", locking(lock))) }
}

#[test]
fn a_shell_that_is_ended_at_its_deadline_or_because_nobody_waits_removes_its_lock_before() {
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join("lock");
    let begun = std::time::Instant::now();
    let result = run(&RunRequest { deadline_ms: 1000, ..with_lock(&lock, "echo locked; sleep 600") });
    assert_eq!((result.outcome, result.stdout), (RunOutcome::TimedOut, "locked\n".into()));
    assert!(!lock.exists(), "the lock was left");
    assert!(begun.elapsed() < std::time::Duration::from_secs(30));

    let mut runner = start_run(&with_lock(&lock, "sleep 600"));
    eventually("the shell holds the lock", || lock.exists().then_some(()));
    drop(runner.stdin.take());
    assert_eq!(end_run(runner).outcome, RunOutcome::Cancelled);
    assert!(!lock.exists(), "the lock was left");
}

#[test]
fn what_a_shell_leaves_in_the_background_removes_its_lock_too_and_whoever_hears_no_signal_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join("lock");
    let inner = quoted(format!("{}; echo $$; sleep 600", locking(&lock)));
    let text =
        format!("(trap '' TERM; exec sleep 601) & bash -c {inner} & until test -d {}; do :; done", quoted(&lock));
    let result = run(&RunRequest { environment: variables(&[("PATH", b"/usr/bin:/bin")]), ..request(&text) });
    assert_eq!(result.outcome, RunOutcome::Exited(0), "{result:?}");
    assert!(result.killed >= 2, "{result:?}");
    assert!(!lock.exists(), "the lock was left");
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
    let mut runner = start_run(&request(&format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600", quoted(&file))));
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

#[test]
fn more_of_stdout_than_is_kept_ends_a_run_that_wants_all_of_it() {
    let whole = |text| RunRequest { whole_stdout: true, max_output: 1000, ..request(text) };
    // The flood starts only after its pid is on stdout, so the pid is the first line.
    let result = run(&whole("sh -c 'echo $$; exec yes' & wait"));
    assert_eq!(result.outcome, RunOutcome::TooMuchOutput);
    let (first, _) = result.stdout.as_str().unwrap().split_once('\n').unwrap();
    assert!(!alive(first.parse().unwrap()));
    assert_eq!(run(&whole("head -c 1001 /dev/zero")).outcome, RunOutcome::TooMuchOutput);
    assert_eq!(run(&whole("head -c 1000 /dev/zero")).outcome, RunOutcome::Exited(0));
}

#[test]
fn a_run_reads_any_length_of_stdin_and_keeps_the_end_of_stderr_that_is_asked_for() {
    let text = "x".repeat(1 << 20);
    let given = RunRequest {
        stdin: Some(text.as_str().into()),
        ..request("sleep 0.1; wc -c; echo first >&2; yes | head -c 1000000 >&2")
    };
    let result = run(&RunRequest { first_of_stderr: Some(8), ..given.clone() });
    assert_eq!((result.outcome, result.stdout.display().trim()), (RunOutcome::Exited(0), "1048576"));
    assert_eq!(result.stderr, "first\ny\n".into());
    // A program that reads none of its stdin also ends normally.
    let result = run(&RunRequest { args: strings(&["-c", "exec 0<&-; echo done"]), ..given });
    assert_eq!((result.outcome, result.stdout), (RunOutcome::Exited(0), "done\n".into()));
}

#[test]
fn a_program_can_be_called_by_another_name() {
    let result = run(&RunRequest {
        arg0: Some("/usr/bin/other".into()),
        args: strings(&["-c", "cat /proc/$$/cmdline"]),
        ..request("")
    });
    assert!(result.stdout.0.starts_with(b"/usr/bin/other\0-c\0"), "{result:?}");
}

#[test]
fn a_program_that_closes_its_descriptors_answers_through_a_fifo_that_is_gone_afterwards() {
    let stdin = format!("{} dump-environment 1 > {{capture}}\n", quoted(paths::keeper()));
    let result =
        run(&RunRequest { capture_fifo: true, stdin: Some(stdin.into()), args: strings(&["-s"]), ..request("") });
    assert_eq!(result.outcome, RunOutcome::Exited(0), "{result:?}");
    assert!(result.captured.0.starts_with(b"PATH=/usr/bin:/bin\0"), "{result:?}");

    let left = RunRequest {
        capture_fifo: true,
        stdin: Some("echo {capture}\n".into()),
        args: strings(&["-s"]),
        ..request("")
    };
    let path = run(&left).stdout.display().trim().to_owned();
    assert!(path.ends_with("/capture"), "{path}");
    assert!(!std::path::Path::new(&path).parent().unwrap().exists(), "{path}");
}

#[test]
fn a_trace_gives_names_of_files_and_no_value_leaves_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("inner.sh");
    std::fs::write(&file, "export API_KEY=sek''rit\n").unwrap();
    let text = format!(". {}; echo said >&2; {} dump-environment 10", quoted(&file), quoted(paths::keeper()));
    let traced = RunRequest {
        program: "/bin/bash".into(),
        args: strings(&["-x", "-c", &text]),
        environment: variables(&[("PATH", b"/usr/bin:/bin"), ("BASH_XTRACEFD", b"11")]),
        capture_fd: Some(10),
        trace: Some(Trace::Bash),
        trace_fd: Some(11),
        ..request("")
    };
    let result = run(&traced);
    let sourced = result.sourced.clone().unwrap();
    assert_eq!((sourced.files, sourced.complete), (vec![file.as_os_str().into()], true));
    assert_eq!(result.stderr, "said\n".into());
    // Without its descriptor, the trace goes to stderr, and the result withholds stderr.
    let astray = RunRequest { environment: variables(&[("PATH", b"/usr/bin:/bin")]), ..traced };
    let result = run(&astray);
    assert!(result.captured.0.windows(6).any(|window| window == b"sekrit"));
    assert_eq!((result.stderr, result.sourced.unwrap().complete), ("".into(), false));
}

#[test]
fn who_may_stay_stays_and_is_counted_except_at_the_deadline() {
    let leaves = "sleep 600 & echo $!";
    let result = run(&RunRequest { leave: true, ..request(leaves) });
    let pid = result.stdout.display().trim().parse().unwrap();
    assert_eq!((result.left, result.killed), (1, 0));
    assert!(alive(pid));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    let result = run(&RunRequest { leave: true, deadline_ms: 500, ..request(&format!("{leaves}; sleep 600")) });
    assert_eq!((&result.outcome, result.left), (&RunOutcome::TimedOut, 0));
    assert!(!alive(result.stdout.display().trim().parse().unwrap()));
}

#[test]
fn a_run_whose_file_is_not_the_expected_one_does_not_begin_and_one_whose_file_changes_has_no_result() {
    use agentd_keeper::protocol::ExpectedFile;
    let directory = tempfile::tempdir().unwrap();
    let (script, canary) = (directory.path().join("s"), directory.path().join("canary"));
    let of = |text: &str| agentd_api::ByteString::from(text);
    // The digest of "echo out\n".
    let sha256 = "c385e57020ff86944410fa7a74f4d2d09d30fe4353f296312a2f74cdb262c004".to_owned();
    let run_script = |then: &str| {
        let expect = Some(ExpectedFile { path: script.as_os_str().into(), sha256: sha256.clone() });
        let text = format!(". {}; touch {}; {then}", quoted(&script), quoted(&canary));
        run(&RunRequest { expect, ..request(&text) })
    };
    std::fs::write(&script, "echo other\n").unwrap();
    assert_eq!(run_script("").outcome, RunOutcome::Changed);
    assert!(!canary.exists());
    std::fs::write(&script, "echo out\n").unwrap();
    let result = run_script("");
    assert_eq!((result.outcome, result.stdout), (RunOutcome::Exited(0), of("out\n")));
    let result = run_script(&format!("echo more >>{}", quoted(&script)));
    assert_eq!((result.outcome, result.stdout), (RunOutcome::Changed, of("")));
}

/// Runs `program` with a script that is approved with the content `text`. Calls `then` after the program has started.
/// Returns the result with the captured environment.
fn given(program: &str, args: &[&str], script: &std::path::Path, text: &str, then: impl FnOnce()) -> RunResult {
    use agentd_keeper::protocol::ExpectedFile;
    std::fs::write(script, text).unwrap();
    let expect = Some(ExpectedFile { path: script.as_os_str().into(), sha256: sha256(text) });
    let runner = start_run(&RunRequest { program: program.into(), args: strings(args), expect, ..request("") });
    then();
    end_run(runner)
}

#[test]
fn what_a_shell_reads_under_a_files_name_is_what_was_looked_at_whatever_lies_there_by_then() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    let (script, canary) = (directory.join("given script.sh"), directory.join("canary"));
    let (started, go) = (directory.join("started"), directory.join("go"));
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let evil = format!("touch {}\n", quoted(&canary));
    for shell in ["/bin/bash", "/bin/dash", "/bin/zsh", "/bin/ksh"] {
        if !std::path::Path::new(shell).exists() {
            continue;
        }
        let _ = std::fs::remove_file(&started);
        // The shell waits while another file replaces the approved script.
        let source = format!("echo >{}; read x <{}; . {}", quoted(&started), quoted(&go), quoted(&script));
        let args: &[&str] = if shell.ends_with("zsh") { &["-f", "-c", &source] } else { &["-c", &source] };
        let where_it_is = match shell {
            "/bin/bash" => "echo approved $BASH_SOURCE",
            "/bin/zsh" => "echo approved $0",
            "/bin/ksh" => "echo approved ${.sh.file}",
            _ => "echo approved",
        };
        let result = given(shell, args, &script, &format!("{where_it_is}\n"), || {
            eventually("the shell waits", || started.exists().then_some(()));
            let other = directory.join("other");
            std::fs::write(&other, &evil).unwrap();
            std::fs::rename(&other, &script).unwrap();
            std::fs::write(&go, "go\n").unwrap();
        });
        assert!(!canary.exists(), "{shell}: what was not approved ran");
        // The file changed during the run. The shell could have read other parts of the new file, so the run has no
        // result.
        assert_eq!(result.outcome, RunOutcome::Changed, "{shell}");
        let result = given(shell, args, &script, &format!("{where_it_is}\n"), || {
            std::fs::write(&go, "go\n").unwrap();
        });
        let named = if shell.ends_with("dash") { String::new() } else { format!(" {}", script.display()) };
        assert_eq!(
            (result.outcome, result.stdout.display().trim()),
            (RunOutcome::Exited(0), &*format!("approved{named}")),
            "{shell}"
        );
    }
}

#[test]
fn a_compiled_file_beside_a_script_of_zsh_is_not_taken_instead_of_it() {
    if !std::path::Path::new("/bin/zsh").exists() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    let (script, canary) = (directory.join("script.zsh"), directory.join("canary"));
    std::fs::write(&script, format!("touch {}\n", quoted(&canary))).unwrap();
    let compile = format!("zcompile {}", quoted(&script));
    assert!(Command::new("/bin/zsh").args(["-f", "-c", &compile]).status().unwrap().success());
    let compiled = directory.join("script.zsh.zwc");
    let later = std::time::SystemTime::now() + std::time::Duration::from_hours(1);
    std::fs::File::open(&compiled).unwrap().set_modified(later).unwrap();
    let source = format!(". {}", quoted(&script));
    // First shows that zsh by itself uses the compiled file.
    std::fs::write(&script, "echo approved\n").unwrap();
    std::fs::File::open(&compiled).unwrap().set_modified(later).unwrap();
    assert!(Command::new("/bin/zsh").args(["-f", "-c", &source]).status().unwrap().success());
    assert!(canary.exists(), "zsh takes no compiled file here, so this test shows nothing");
    std::fs::remove_file(&canary).unwrap();
    let result = given("/bin/zsh", &["-f", "-c", &source], &script, "echo approved\n", || {
        std::fs::File::open(&compiled).unwrap().set_modified(later).unwrap();
    });
    assert_eq!((result.outcome, result.stdout.display().trim()), (RunOutcome::Exited(0), "approved"));
    assert!(!canary.exists(), "the compiled file was not approved");
}

#[test]
fn a_script_that_is_swapped_in_a_loop_never_runs_unapproved() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    let (script, canary) = (directory.join("script.sh"), directory.join("canary"));
    let (approved, evil) = ("echo approved\n", format!("touch {}\n", quoted(&canary)));
    std::fs::write(&script, approved).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for text in [evil.as_str(), approved] {
                    std::fs::write(directory.join("next"), text).unwrap();
                    std::fs::rename(directory.join("next"), &script).unwrap();
                }
            }
        });
        let source = format!(". {}", quoted(&script));
        for _ in 0..60 {
            use agentd_keeper::protocol::ExpectedFile;
            let expect = Some(ExpectedFile { path: script.as_os_str().into(), sha256: sha256(approved) });
            let result = run(&RunRequest { program: "/bin/bash".into(), expect, ..request(&source) });
            match result.outcome {
                RunOutcome::Changed => {}
                RunOutcome::Exited(0) => assert_eq!(result.stdout.display().trim(), "approved"),
                other => panic!("{other:?}"),
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(!canary.exists(), "what was not approved ran");
}
