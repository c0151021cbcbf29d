//! The compiler process: it inherits nothing from the host, and ends within its limits with all its child processes.

use std::error::Error as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use agentd_plugin_host::{CompileLimits, CompiledError, LoadError};
use tempfile::TempDir;

use crate::bench::{Bench, compiler, source};
use crate::guest::Guest;
use crate::quote::quoted;

/// Writes a shell script that acts as the compiler. Each run adds a line to the file `compiler.log`.
pub(crate) fn script(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("compiler");
    fs::write(&path, format!("#!/bin/sh\necho run >> {}\n{text}\n", quoted(path.with_extension("log")))).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

pub(crate) fn runs(compiler: &Path) -> usize {
    fs::read_to_string(compiler.with_extension("log")).map_or(0, |log| log.lines().count())
}

/// Returns a host whose compiler is this script, and the error of its first load.
async fn refusal(text: &str, limits: CompileLimits) -> (Bench, CompiledError) {
    let directory = TempDir::new().unwrap();
    let compiler = script(directory.path(), text);
    let bench = Bench::with(|options| {
        options.compiler = compiler;
        options.compile_limits = limits;
    });
    match bench.load(source("snapshot"), &agentd_plugin_host::builtin()[0].grant()).await {
        Err(LoadError::Compile { plugin, source }) => {
            assert_eq!(plugin, "snapshot");
            assert!(bench.compiled().is_empty(), "left behind: {:?}", bench.compiled());
            (bench, source)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_compiler_that_makes_no_progress_is_ended() {
    let limits = CompileLimits { stall: Duration::from_millis(300), ..CompileLimits::default() };
    let start = Instant::now();
    let (_bench, error) = refusal("exec sleep 1000", limits).await;
    assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
    assert_eq!(error.to_string(), "the compiler made no progress for 300 ms");
    assert!(error.is_temporary());
}

#[tokio::test]
async fn a_compiler_that_makes_progress_may_take_as_long_as_the_machine_lets_it() {
    let directory = TempDir::new().unwrap();
    let slow = "for step in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do sleep 0.5; printf '\\0' >&2; done";
    let compiler = script(directory.path(), &format!("{slow}\nexec {} \"$@\"", quoted(compiler())));
    // The time limit is twelve times the script's pause between two signs of progress.
    let stall = Duration::from_secs(6);
    let bench = Bench::with(|options| {
        options.compiler = compiler;
        // The limit is in processor time. The script sleeps, so it uses almost none during these seconds.
        options.compile_limits = CompileLimits { stall, ..CompileLimits::default() };
    });
    let start = Instant::now();
    bench.still_works().await;
    assert!(start.elapsed() > stall, "{:?}", start.elapsed());
}

/// Returns a component that takes seconds to compile.
fn large() -> Vec<u8> {
    use std::fmt::Write as _;
    let mut fields = String::new();
    for function in 0..3000 {
        write!(fields, "(func $f{function} (param i64) (result i64) (local.get 0)").unwrap();
        for step in 0..700 {
            write!(fields, "(i64.mul (i64.const {step})) (i64.add (local.get 0))").unwrap();
        }
        fields.push(')');
    }
    Guest { fields: &fields, ..Guest::default() }.provider()
}

#[test]
fn a_compiler_ends_by_its_own_processor_time_and_says_that_it_makes_progress_until_then() {
    use std::io::{Seek as _, Write as _};
    use std::os::unix::process::ExitStatusExt as _;
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(&large()).unwrap();
    input.rewind().unwrap();
    let output = tempfile::tempfile().unwrap();
    let ended = Command::new(compiler())
        .args(["compile", "--code", "native"])
        .env("AGENTD_COMPILE_SECONDS", "3")
        .env("RAYON_NUM_THREADS", "1") // so that three seconds of it are three by the clock, or more
        .stdin(input)
        .stdout(output.try_clone().unwrap())
        .output()
        .unwrap();
    assert_eq!(ended.status.signal(), Some(24), "SIGXCPU: {ended:?}");
    assert!(!ended.stderr.is_empty() && ended.stderr.iter().all(|byte| *byte == 0), "{ended:?}");
    assert_eq!(output.metadata().unwrap().len(), 0);
}

#[tokio::test]
async fn a_compiler_that_was_killed_is_run_again_and_one_that_refused_the_component_is_not() {
    let directory = TempDir::new().unwrap();
    let first = directory.path().join("first");
    let text = format!("[ -e {0} ] || {{ : > {0}; kill -9 $$; }}\nexec {1} \"$@\"", quoted(&first), quoted(compiler()));
    let compiler = script(directory.path(), &text);
    let options = || agentd_plugin_host::HostOptions::new(directory.path().join("cache"), &compiler);
    let bench = Bench::with(|own| *own = options());
    let grant = agentd_plugin_host::builtin()[0].grant();
    let error = bench.load(source("snapshot"), &grant).await.unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
    assert_eq!(error.source().unwrap().to_string(), "the compiler failed: signal: 9 (SIGKILL)");
    bench.still_works().await;
    assert_eq!(runs(&compiler), 2);

    let broken = b"\0asm\x0d\0\x01\0\x07 no such section";
    for _ in 0..3 {
        let error = bench.load_bytes("broken", broken, &grant).await.unwrap_err();
        assert!(!error.is_temporary(), "{error:?}");
        let text = error.source().unwrap().to_string();
        assert!(text.starts_with("the compiler refused the component: invalid or unsupported component"), "{text}");
    }
    assert_eq!(runs(&compiler), 3, "the same bytes were compiled again");
    bench.load_bytes("broken", &[&broken[..], b"more"].concat(), &grant).await.unwrap_err();
    assert_eq!(runs(&compiler), 4, "the file was changed");
}

#[tokio::test]
async fn a_compiler_out_of_memory_says_so() {
    let limits = CompileLimits { memory: 8 << 20, ..CompileLimits::default() };
    let (_bench, error) = refusal(&format!("exec {} \"$@\"", quoted(compiler())), limits).await;
    assert_eq!(error.to_string(), "compiling used more than its 8 MiB of memory");
}

#[tokio::test]
async fn a_compiler_gets_nothing_of_our_environment_and_its_words_are_passed_on_up_to_a_bound() {
    // The shell itself sets PWD, `_` and SHLVL.
    let (_bench, error) =
        refusal("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | sort >&2; exit 3", CompileLimits::default()).await;
    let CompiledError::Failed(words) = error else { panic!("{error:?}") };
    let names: Vec<_> = words.lines().filter_map(|line| line.split('=').next()).collect();
    assert_eq!(names, ["AGENTD_COMPILE_MEMORY", "AGENTD_COMPILE_OUTPUT", "AGENTD_COMPILE_SECONDS"]);

    let (_bench, error) = refusal("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 3", CompileLimits::default()).await;
    let CompiledError::Failed(words) = error else { panic!("{error:?}") };
    assert_eq!(words.len(), 16 << 10);
}

#[tokio::test]
async fn a_compiler_that_is_not_there_is_named() {
    let bench = Bench::with(|options| options.compiler = "/nonexistent/agentd".into());
    let error = bench.load(source("whitelist"), &agentd_plugin_host::Grant::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin \"whitelist\" could not be compiled");
    assert_eq!(error.source().unwrap().to_string(), "could not run the compiler /nonexistent/agentd");
}

/// Returns whether a process with this ID exists and is not a zombie.
fn lives(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

async fn ends(pid: &str) {
    let start = Instant::now();
    while lives(pid) {
        assert!(start.elapsed() < Duration::from_secs(10), "{pid} still lives");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_a_compiler_has_started_ends_with_it_however_it_ends() {
    let directory = TempDir::new().unwrap();
    let pids = directory.path().join("pids");
    // The child ignores the signals that can be ignored, and keeps the pipe of the compiler's error output open.
    let start = format!("(trap '' TERM HUP INT PIPE; exec sleep 1000) & echo $! >> {}", quoted(&pids));
    let quick = CompileLimits { stall: Duration::from_millis(500), ..CompileLimits::default() };
    let (_bench, error) = refusal(&format!("{start}; exec sleep 1000"), quick).await;
    assert!(matches!(error, CompiledError::Stalled(_)), "{error:?}");
    let begun = Instant::now();
    let (_bench, error) = refusal(&format!("{start}; echo no >&2; exit 3"), CompileLimits::default()).await;
    assert_eq!(error.to_string(), "the compiler failed: no");
    assert!(begun.elapsed() < Duration::from_secs(30), "it was waited for who held the pipe: {:?}", begun.elapsed());
    let pids = fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().count(), 2);
    for pid in pids.lines() {
        ends(pid).await;
    }
}

#[tokio::test]
async fn a_compiler_that_nobody_waits_for_any_more_is_ended_with_what_it_has_started() {
    let directory = TempDir::new().unwrap();
    let pids = directory.path().join("pids");
    let text = format!("sleep 1000 & echo $! $$ > {0}.new; mv {0}.new {0}; wait", quoted(&pids));
    let compiler = script(directory.path(), &text);
    let bench = Bench::with(|options| options.compiler = compiler);
    let grant = agentd_plugin_host::builtin()[0].grant();
    let started = async {
        while !pids.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        loaded = bench.load(source("snapshot"), &grant) => panic!("{loaded:?}"),
        () = started => {}
    }
    // A cancelled compilation leaves no file, because a file gets its name only after it is complete.
    assert_eq!(bench.compiled(), [] as [PathBuf; 0]);
    for pid in fs::read_to_string(pids).unwrap().split_whitespace() {
        ends(pid).await;
    }
}

#[tokio::test]
async fn a_compiler_that_says_more_than_is_read_is_not_held_up() {
    let flood = format!("head -c 50000000 /dev/zero >&2; exec {} \"$@\"", quoted(compiler()));
    let directory = TempDir::new().unwrap();
    let compiler = script(directory.path(), &flood);
    Bench::with(|options| options.compiler = compiler).still_works().await;
}

#[tokio::test]
async fn a_compiler_whose_code_is_larger_than_allowed_is_ended_and_leaves_nothing() {
    for code in ["native", "interpreted"] {
        let limits = CompileLimits { output: 64 << 10, ..CompileLimits::default() };
        let compile = format!("shift 2; exec {} compile --code {code} \"$@\"", quoted(compiler()));
        let (_bench, error) = refusal(&format!("shift; {compile}"), limits).await;
        assert_eq!(error.to_string(), "the compiled code is more than its 64 KiB");
    }
}

#[tokio::test]
async fn a_full_disk_is_named_and_the_component_compiled_when_there_is_room() {
    let directory = TempDir::new().unwrap();
    let (room, program) = (directory.path().join("room"), compiler());
    let text = format!("[ -e {} ] || exec > /dev/full\nexec {} \"$@\"", quoted(&room), quoted(program));
    let compiler = script(directory.path(), &text);
    let bench = Bench::with(|options| options.compiler = compiler.clone());
    let error = bench.load(source("snapshot"), &agentd_plugin_host::builtin()[0].grant()).await.unwrap_err();
    let text = error.source().unwrap().to_string();
    let expected = "the compiler failed: could not write the compiled code: No space left on device (os error 28)";
    assert_eq!(text, expected);
    assert_eq!(bench.compiled(), [] as [PathBuf; 0]);
    fs::write(room, "").unwrap();
    bench.still_works().await;
    assert_eq!(runs(&compiler), 2, "it was compiled when there was room again");
}

#[tokio::test]
async fn a_compiler_that_writes_nothing_or_something_else_is_refused() {
    for text in ["exit 0", "echo nonsense"] {
        let (_bench, error) = refusal(text, CompileLimits::default()).await;
        assert!(matches!(error, CompiledError::Load(_) | CompiledError::File { .. }), "{text}: {error:?}");
    }
}

/// Lists the number and target of each descriptor of this process that its children inherit.
fn inheritable() -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let number = entry.file_name().into_string().unwrap();
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0");
        if i64::from_str_radix(flags.trim(), 8).unwrap() & i64::from(nix::fcntl::OFlag::O_CLOEXEC.bits()) == 0 {
            found.push(format!("{number} {}", target.display()));
        }
    }
    found
}

#[tokio::test]
async fn a_compiler_inherits_no_descriptor_of_ours() {
    let held = tempfile::tempfile().unwrap();
    let list = "find /proc/self/fd -type l -printf '%f %l\\n' >&2; exit 3";
    let (_bench, error) = refusal(list, CompileLimits::default()).await;
    drop(held);
    let CompiledError::Failed(words) = error else { panic!("{error:?}") };
    let (given, here) = (inheritable(), std::env::current_dir().unwrap());
    let strangers: Vec<_> = words
        .lines()
        // Excludes the standard streams, and the descriptors that find opens: its working directory and `/proc`.
        .filter(|line| !["0 ", "1 ", "2 "].iter().any(|own| line.starts_with(own)))
        .filter(|line| !line.contains(" /proc/") && !line.ends_with(&format!(" {}", here.display())))
        .filter(|line| !given.iter().any(|ours| ours == line))
        .collect();
    assert!(words.contains("2 pipe:") && strangers.is_empty(), "{words}\n{given:?}");
}
