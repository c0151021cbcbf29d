//! Programs that plugins run. A program receives only the given environment and descriptors, and leaves no process.

use std::sync::Mutex;

use agentd_plugin_host::{ERRORS, Failure, Invocation, ProgramEnding, ProgramResult};

use super::*;
use crate::harness::until;

/// Starts processes that leave the process tree in each known way, and ignores all signals that can be ignored.
const HYDRA: &str = "trap '' TERM HUP INT
    setsid sh -c 'trap \"\" TERM; while :; do sleep 600; done' hydra \"$0\" &
    (setsid sh -c 'sh -c \"sleep 600\" hydra \"$0\" & exec sleep 0' \"$0\" &) &
    ( (sleep 600 & sleep 600) & )
";

fn shell(text: &str, here: &Here) -> Invocation {
    Invocation {
        program: "/bin/sh".to_owned(),
        arguments: ["-c", text, &here.name("")].map(str::to_owned).to_vec(),
        environment: vec![("PATH".to_owned(), b"/usr/bin:/bin".to_vec())],
        directory: Some("{cwd}".to_owned()),
        input: Vec::new(),
    }
}

impl Here {
    async fn run(&self, invocation: Invocation, deadline: Instant) -> Result<ProgramResult, Failure> {
        self.machine.run(invocation, &self.places, &anything, deadline).await
    }

    async fn sh(&self, text: &str) -> Result<ProgramResult, Failure> {
        self.run(shell(text, self), later()).await
    }

    fn nothing_is_left(&self) {
        process::assert_only(&[], self.path(), "of a program of a plugin");
    }
}

#[tokio::test]
async fn a_program_has_exactly_what_it_was_given() {
    let here = Here::new();
    let environment = vec![("A".to_owned(), b"1\n2".to_vec()), ("B".to_owned(), b"\xff".to_vec())];
    let env = Invocation {
        program: "env".to_owned(),
        arguments: vec!["-0".to_owned()],
        environment,
        directory: None,
        input: Vec::new(),
    };
    assert_eq!(here.run(env, later()).await.unwrap().output, b"A=1\n2\0B=\xff\0");

    let text = "pwd; wc -c; ls /proc/self/fd | tr '\\n' ' '; tty <&1; (: </dev/tty) 2>/dev/null || echo none";
    let input = Invocation { input: vec![b'x'; 300_000], ..shell(text, &here) };
    let completed = here.run(input, later()).await.unwrap();
    let output = String::from_utf8(completed.output).unwrap();
    // Descriptor 3 is the directory that `ls` lists.
    assert_eq!(output, format!("{}\n300000\n0 1 2 3 not a tty\nnone\n", here.path().display()));
    let root = Invocation { directory: None, ..shell("pwd", &here) };
    assert_eq!(here.run(root, later()).await.unwrap().output, b"/\n");
}

#[tokio::test]
async fn how_a_program_ended_is_told_and_is_no_failure() {
    let here = Here::new();
    let completed = here.sh("echo out; echo err >&2; exit 200").await.unwrap();
    let expected =
        ProgramResult { ending: ProgramEnding::Exited(200), output: b"out\n".to_vec(), errors: b"err\n".to_vec() };
    assert_eq!(completed, expected);
    assert_eq!(here.sh("kill -TERM $$").await.unwrap().ending, ProgramEnding::Signalled(15));
    let errors = here.sh("echo first >&2; yes | head -c 1000000 >&2").await.unwrap().errors;
    assert!(errors.len() == ERRORS && errors.starts_with(b"first\ny\n"), "{}", errors.len());
}

#[tokio::test]
async fn a_program_that_hangs_is_ended_at_its_deadline_with_all_that_ever_came_of_it() {
    let here = Here::new();
    let begun = Instant::now();
    let failure =
        here.run(shell(&format!("{HYDRA} touch begun; while :; do sleep 600; done"), &here), within(2_000)).await;
    assert!(here.at("begun").exists());
    assert!(matches!(&failure, Err(Failure::TimedOut(text)) if text.contains("\"/bin/sh\"")), "{failure:?}");
    assert!(begun.elapsed() > Duration::from_millis(1_500), "it had its time: {:?}", begun.elapsed());
    // The answer comes at the deadline. A process that ignores SIGTERM is killed two seconds later.
    until("nothing is left", || process::of(here.path()).is_empty()).await;
}

#[tokio::test]
async fn a_program_that_nobody_waits_for_is_ended_with_all_that_ever_came_of_it() {
    let here = Here::new();
    let run = here.run(shell(&format!("{HYDRA} touch begun; sleep 600"), &here), later());
    let begun = until("the program runs", || here.at("begun").exists());
    tokio::select! {
        ended = run => panic!("{ended:?}"),
        () = begun => {}
    }
    until("nothing is left", || process::of(here.path()).is_empty()).await;
}

#[tokio::test]
async fn what_a_program_leaves_behind_is_ended_and_does_not_keep_its_result() {
    let here = Here::new();
    let completed = here.sh(&format!("{HYDRA} echo done")).await.unwrap();
    assert_eq!((completed.ending, completed.output.as_slice()), (ProgramEnding::Exited(0), &b"done\n"[..]));
    here.nothing_is_left();
}

#[tokio::test]
async fn a_program_that_prints_without_end_is_ended() {
    let here = Here::new();
    let failure = here.sh(&format!("{HYDRA} exec yes")).await;
    assert!(matches!(failure, Err(Failure::TooLarge(_))), "{failure:?}");
    here.nothing_is_left();
    let most = here.sh("head -c 1048576 /dev/zero").await.unwrap();
    assert_eq!(most.output.len(), 1 << 20);
    assert!(matches!(here.sh("head -c 1048577 /dev/zero").await, Err(Failure::TooLarge(_))));
    // Large output on stderr does not end the program.
    assert_eq!(here.sh("yes | head -c 3000000 >&2").await.unwrap().ending, ProgramEnding::Exited(0));
}

#[tokio::test]
async fn a_program_is_refused_by_what_it_resolves_to_and_run_by_what_it_was_called() {
    let here = Here::new();
    std::os::unix::fs::symlink("/bin/sh", here.at("other")).unwrap();
    let shown = Mutex::new(Vec::new());
    let link = Invocation { program: here.name("other"), ..shell("tr '\\0' ' ' </proc/$$/cmdline", &here) };
    let seen = |program: &str| {
        shown.lock().unwrap().push(program.to_owned());
        true
    };
    let completed = here.machine.run(link.clone(), &here.places, &seen, later()).await.unwrap();
    let real = Path::new("/bin/sh").canonicalize().unwrap().display().to_string();
    assert_eq!(*shown.lock().unwrap(), std::slice::from_ref(&real));
    assert!(completed.output.starts_with(here.name("other -c").as_bytes()), "{completed:?}");
    let only_here = |program: &str| Path::new(program).starts_with(here.path());
    let refused = here.machine.run(link, &here.places, &only_here, later()).await;
    assert!(matches!(&refused, Err(Failure::NotGranted(text)) if text.contains(&real)), "{refused:?}");
}

#[tokio::test]
async fn a_program_that_cannot_be_run_is_told_apart_and_no_argument_is_told() {
    let here = Here::new();
    std::fs::write(here.at("text"), "no program").unwrap();
    std::fs::write(here.at("broken"), "#!/no/such/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(here.at("broken"), mode).unwrap();
    let invocation = |program: &str| Invocation { program: program.to_owned(), ..shell("sekrit", &here) };
    let run = async |program: &str| {
        let failure = here.run(invocation(program), later()).await.unwrap_err();
        assert!(!failure.to_string().contains("sekrit"), "{failure}");
        failure
    };
    assert!(matches!(run("no-such-program").await, Failure::NotFound(_)));
    assert!(matches!(run(&here.name("none")).await, Failure::NotFound(_)));
    assert!(matches!(run(&here.name("text")).await, Failure::Unavailable(_)));
    assert!(matches!(run(&here.name("broken")).await, Failure::Unavailable(_)));
    assert!(matches!(run(&here.name("")).await, Failure::Unavailable(_)));
    assert!(matches!(run("bin/sh").await, Failure::Failed(_)));
    assert!(matches!(run("/bin/../bin/sh").await, Failure::NotGranted(_)));
    let refused = here.machine.run(invocation("/no/such"), &here.places, &|_: &str| false, later()).await;
    assert!(matches!(refused, Err(Failure::NotGranted(_))), "what is not granted is not looked for: {refused:?}");
    for environment in ["", "A=B", "A\0"].map(|name| vec![(name.to_owned(), b"sekrit".to_vec())]) {
        let wrong = Invocation { environment, ..shell("", &here) };
        assert!(matches!(here.run(wrong, later()).await, Err(Failure::Failed(_))));
    }
    for elsewhere in ["/", "/tmp", "{cwd}/x", "{home}", "bin"] {
        let wrong = Invocation { directory: Some(elsewhere.to_owned()), ..shell("", &here) };
        assert!(matches!(here.run(wrong, later()).await, Err(Failure::Failed(_))), "{elsewhere}");
    }
    let nowhere = Invocation { directory: Some("{session}".to_owned()), ..shell("", &here) };
    assert!(matches!(here.run(nowhere, later()).await, Err(Failure::NotFound(_))));
}
