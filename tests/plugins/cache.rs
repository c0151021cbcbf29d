//! Compiled code: made once, never trusted for being there, and made within limits.

use std::error::Error as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use agentd_plugins::{CompileLimits, CompiledError, HostOptions, LoadError};
use sha2::Digest as _;
use tempfile::TempDir;

use crate::bench::{Bench, compiler, source};
use crate::guest::Guest;

/// A compiler that is a shell script; `$0.log` gets a line each time it runs.
fn script(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("compiler");
    fs::write(&path, format!("#!/bin/sh\necho run >> {}\n{text}\n", path.with_extension("log").display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn runs(compiler: &Path) -> usize {
    fs::read_to_string(compiler.with_extension("log")).map_or(0, |log| log.lines().count())
}

/// A host with a script for its compiler, and the error of its first load.
async fn refusal(text: &str, limits: CompileLimits) -> (Bench, CompiledError) {
    let directory = TempDir::new().unwrap();
    let compiler = script(directory.path(), text);
    let bench = Bench::with(|options| {
        options.compiler = compiler;
        options.compile_limits = limits;
    });
    match bench.load(source("snapshot"), &agentd_plugins::builtin()[0].grant()).await {
        Err(LoadError::Compile { plugin, source }) => {
            assert_eq!(plugin, "snapshot");
            assert!(bench.compiled().is_empty(), "left behind: {:?}", bench.compiled());
            (bench, source)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn two_loads_at_once_compile_once_and_a_later_host_does_not_compile_at_all() {
    let directory = TempDir::new().unwrap();
    let compiler = script(directory.path(), &format!("exec {} \"$@\"", compiler().display()));
    let cache = directory.path().join("cache");
    let options = || HostOptions::new(&cache, &compiler);
    let bench = Bench::with(|own| *own = options());
    tokio::join!(bench.load_built_in("snapshot"), bench.load_built_in("snapshot"), bench.load_built_in("snapshot"));
    assert_eq!(runs(&compiler), 1);
    Bench::with(|own| *own = options()).still_works().await;
    assert_eq!(runs(&compiler), 1);
}

#[tokio::test]
async fn the_directory_is_made_private_and_one_that_is_open_is_closed() {
    let bench = Bench::new();
    assert_eq!(fs::metadata(bench.cache()).unwrap().permissions().mode() & 0o777, 0o700);
    let directory = TempDir::new().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let _bench = Bench::with(|options| options.cache = directory.path().to_owned());
    assert_eq!(fs::metadata(directory.path()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn what_a_killed_compilation_left_is_swept_up_and_what_is_young_or_compiled_is_not() {
    let bench = Bench::new();
    bench.still_works().await;
    let compiled = bench.compiled();
    for (name, age) in [("young.new", 60), ("old.new", 7200), ("old.wasm", 7200)] {
        let file = fs::File::create(bench.cache().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    fs::File::open(&compiled[0]).unwrap().set_modified(SystemTime::now() - Duration::from_hours(9000)).unwrap();
    let cache = bench.cache();
    let _second = Bench::with(|options| options.cache = cache);
    assert_eq!(bench.compiled(), [&compiled[..], &[bench.cache().join("young.new")]].concat());
}

#[tokio::test]
async fn damaged_compiled_code_is_compiled_again_and_never_run() {
    let bench = Bench::new();
    bench.still_works().await;
    let [file] = &bench.compiled()[..] else { panic!("{:?}", bench.compiled()) };
    let whole = fs::read(file).unwrap();
    let mut damages: Vec<Vec<u8>> = vec![Vec::new(), whole[..whole.len() / 2].to_vec(), [&whole[..], b"more"].concat()];
    for place in (0..whole.len()).step_by(whole.len() / 24) {
        let mut flipped = whole.clone();
        flipped[place] ^= 1 << (place % 8);
        damages.push(flipped);
    }
    for damage in damages {
        fs::write(file, &damage).unwrap();
        bench.still_works().await;
        let [again] = &bench.compiled()[..] else { panic!("{:?}", bench.compiled()) };
        assert_ne!(fs::read(again).unwrap(), damage, "the damaged file was taken");
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    sha2::Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[tokio::test]
async fn a_file_whose_name_is_right_and_that_wasmtime_refuses_is_compiled_again() {
    let bench = Bench::new();
    bench.still_works().await;
    let [file] = &bench.compiled()[..] else { panic!() };
    let component = file.file_name().unwrap().to_str().unwrap().split('-').next().unwrap().to_owned();
    fs::remove_file(file).unwrap();
    let foreign = b"\x7fELF of another version";
    let hash = hex(foreign);
    let planted = bench.cache().join(format!("{component}-{hash}.cwasm"));
    fs::write(&planted, foreign).unwrap();
    bench.still_works().await;
    assert!(!planted.exists());
    assert_eq!(bench.compiled(), std::slice::from_ref(file));
}

#[tokio::test]
async fn a_compiler_that_does_not_end_is_ended_at_its_limit() {
    let limits = CompileLimits { time: Duration::from_millis(300), ..CompileLimits::default() };
    let start = Instant::now();
    let (_bench, error) = refusal("exec sleep 1000", limits).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(error.to_string(), "compiling took longer than its 300 ms");
}

#[test]
fn a_compiler_whose_parent_is_gone_is_ended_by_its_own_processor_time() {
    use std::fmt::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    let mut fields = String::new();
    for function in 0..3000 {
        write!(fields, "(func $f{function} (param i64) (result i64) (local.get 0)").unwrap();
        for step in 0..400 {
            write!(fields, "(i64.mul (i64.const {step})) (i64.add (local.get 0))").unwrap();
        }
        fields.push(')');
    }
    let directory = TempDir::new().unwrap();
    let (input, output) = (directory.path().join("in.wasm"), directory.path().join("out.cwasm"));
    fs::write(&input, Guest { fields: &fields, ..Guest::default() }.provider()).unwrap();
    let status = Command::new(compiler())
        .args([Path::new("compile"), &input, &output])
        .env("AGENTD_COMPILE_SECONDS", "1")
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(24), "SIGXCPU: {status}");
    assert!(!output.exists());
}

#[tokio::test]
async fn a_compiler_out_of_memory_says_so() {
    let limits = CompileLimits { memory: 8 << 20, ..CompileLimits::default() };
    let (_bench, error) = refusal(&format!("exec {} \"$@\"", compiler().display()), limits).await;
    assert_eq!(error.to_string(), "compiling used more than its 8 MiB of memory");
}

#[tokio::test]
async fn a_compiler_gets_nothing_of_our_environment_and_its_words_are_passed_on_up_to_a_bound() {
    // sh itself puts PWD there.
    let (_bench, error) =
        refusal("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | sort >&2; exit 3", CompileLimits::default()).await;
    let CompiledError::Refused(words) = error else { panic!("{error:?}") };
    let names: Vec<_> = words.lines().filter_map(|line| line.split('=').next()).collect();
    assert_eq!(names, ["AGENTD_COMPILE_MEMORY", "AGENTD_COMPILE_SECONDS"]);

    let (_bench, error) = refusal("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 3", CompileLimits::default()).await;
    let CompiledError::Refused(words) = error else { panic!("{error:?}") };
    assert_eq!(words.len(), 16 << 10);
}

#[tokio::test]
async fn a_compiler_that_is_not_there_is_named() {
    let bench = Bench::with(|options| options.compiler = "/nonexistent/agentd".into());
    let error = bench.load(source("whitelist"), &agentd_plugins::Grant::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin \"whitelist\" could not be compiled");
    assert_eq!(error.source().unwrap().to_string(), "could not run the compiler /nonexistent/agentd");
}
