//! The cache of compiled code: one compilation for each component, a check before each use, and removal of old files.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use agentd_plugin_host::{Code, Host, HostOptions};
use sha2::Digest as _;
use tempfile::TempDir;

use crate::bench::{Bench, compiler};
use crate::compiler::{runs, script};
use crate::quote::quoted;
use crate::random::{Random, flipped, truncated, with_a_flip};

#[tokio::test]
async fn two_loads_at_once_compile_once_and_a_later_host_does_not_compile_at_all() {
    let directory = TempDir::new().unwrap();
    let compiler = script(directory.path(), &format!("exec {} \"$@\"", quoted(compiler())));
    let cache = directory.path().join("cache");
    let options = || HostOptions::new(&cache, &compiler);
    let bench = Bench::with(|own| *own = options());
    tokio::join!(bench.load_built_in("snapshot"), bench.load_built_in("snapshot"), bench.load_built_in("snapshot"));
    assert_eq!(runs(&compiler), 1);
    Bench::with(|own| *own = options()).still_works().await;
    assert_eq!(runs(&compiler), 1);
}

#[tokio::test]
async fn what_another_process_has_compiled_meanwhile_is_taken_and_not_replaced() {
    let other = Bench::new();
    other.still_works().await;
    let file = other.compiled().remove(0);
    let directory = TempDir::new().unwrap();
    let cache = directory.path().join("cache");
    // The other process puts its file into the cache just before this process does.
    let link = format!("ln {} {}", quoted(&file), quoted(&cache));
    let compiler = script(directory.path(), &format!("{} \"$@\" && {link}", quoted(compiler())));
    let bench = Bench::with(|options| (options.cache, options.compiler) = (cache.clone(), compiler.clone()));
    bench.still_works().await;
    assert_eq!(runs(&compiler), 1);
    let here = cache.join(file.file_name().unwrap());
    assert_eq!(fs::metadata(&here).unwrap().ino(), fs::metadata(&file).unwrap().ino());
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
}

/// Environment variable of the child process in which the test below opens all descriptors. The other tests need
/// free descriptors, so the test runs in its own process.
const ALONE: &str = "AGENTD_TEST_WITHOUT_DESCRIPTORS";

#[tokio::test]
async fn without_descriptors_nothing_is_final_and_no_good_file_is_removed() {
    if std::env::var_os(ALONE).is_none() {
        let name = "cache::without_descriptors_nothing_is_final_and_no_good_file_is_removed";
        let run = std::process::Command::new("/bin/sh")
            .args(["-c", r#"ulimit -n 100 && exec "$0" --exact "$1" 2>&1"#])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(ALONE, "1")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && printed.contains("test result: ok. 1 passed"), "{printed}");
        return;
    }
    let directory = TempDir::new().unwrap();
    let compiler = script(directory.path(), &format!("exec {} \"$@\"", quoted(compiler())));
    let bench = Bench::with(|options| options.compiler = compiler.clone());
    bench.still_works().await;
    let component = directory.path().join("copy.wasm");
    fs::write(&component, agentd_plugin_host::builtin().iter().find(|one| one.name == "snapshot").unwrap().bytes)
        .unwrap();
    let mut failures = 0;
    for left in 0..6 {
        let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        taken.truncate(taken.len() - left);
        let source = agentd_plugin_host::Source::File { path: component.clone(), sha256: None };
        let result = bench.load(source, &agentd_plugin_host::builtin()[0].grant()).await;
        drop(taken);
        if let Err(error) = result {
            assert!(error.is_temporary(), "{left}: {error:?}");
            failures += 1;
        }
        assert_eq!(bench.compiled().len(), 1, "{left}");
    }
    assert!((2..6).contains(&failures), "{failures}");
    bench.still_works().await;
    assert_eq!(runs(&compiler), 1, "a good file was compiled again");
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

#[test]
fn a_directory_that_is_a_link_is_not_followed() {
    let directory = TempDir::new().unwrap();
    let link = directory.path().join("cache");
    symlink(directory.path(), &link).unwrap();
    let error = Host::new(HostOptions::new(&link, compiler())).unwrap_err();
    assert_eq!(error.to_string(), format!("could not use {} for compiled plugins", link.display()));
}

#[tokio::test]
async fn a_directory_that_was_emptied_is_filled_again() {
    let bench = Bench::new();
    bench.still_works().await;
    fs::remove_dir_all(bench.cache()).unwrap();
    bench.still_works().await;
    assert_eq!(bench.compiled().len(), 1);
    assert_eq!(fs::metadata(bench.cache()).unwrap().permissions().mode() & 0o777, 0o700);
}

/// Creates a sparse file with this name, length and time since its last use in the cache.
fn plant(bench: &Bench, name: &str, length: u64, age: Duration) -> PathBuf {
    let path = bench.cache().join(name);
    let file = File::create(&path).unwrap();
    file.set_len(length).unwrap(); // nothing of it is on the disk
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
    path
}

fn age(file: &PathBuf, age: Duration) {
    File::open(file).unwrap().set_modified(SystemTime::now() - age).unwrap();
}

/// Starts and ends another host that uses the same directory.
fn another_host(bench: &Bench) {
    let cache = bench.cache();
    drop(Bench::with(|options| options.cache = cache));
}

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn what_a_killed_compilation_left_is_swept_up_and_what_is_young_is_not() {
    let bench = Bench::new();
    let young = plant(&bench, "young.new", 10, HOUR / 2);
    plant(&bench, "old.new", 10, HOUR * 2);
    plant(&bench, "old.wasm", 10, HOUR * 2);
    another_host(&bench);
    assert_eq!(bench.compiled(), [young]);
}

#[tokio::test]
async fn code_that_nobody_loads_for_a_month_goes_and_code_in_use_never() {
    let bench = Bench::new();
    let in_use = bench.load_built_in("snapshot").await;
    let [file] = &bench.compiled()[..] else { panic!("{:?}", bench.compiled()) };
    age(file, DAY * 400);
    let month = plant(&bench, "nearly-a-month.cwasm", 10, DAY * 29);
    plant(&bench, "more-than-a-month.cwasm", 10, DAY * 31);
    plant(&bench, "more-than-a-month.pulley", 10, DAY * 31);
    another_host(&bench);
    let mut left = vec![file.clone(), month.clone()];
    left.sort();
    assert_eq!(bench.compiled(), left);
    drop(in_use);
    another_host(&bench);
    assert_eq!(bench.compiled(), [month]);
}

#[tokio::test]
async fn a_file_that_is_loaded_again_is_young_again() {
    let bench = Bench::new();
    bench.still_works().await;
    let file = bench.compiled().remove(0);
    age(&file, DAY * 29);
    bench.still_works().await;
    assert!(fs::metadata(file).unwrap().modified().unwrap().elapsed().unwrap() < HOUR);
}

#[tokio::test]
async fn of_more_code_than_there_is_room_for_the_longest_unused_goes_as_soon_as_more_is_compiled() {
    let bench = Bench::new();
    let half = 1 << 29;
    plant(&bench, "oldest.cwasm", half, DAY * 3);
    plant(&bench, "older.pulley", half, DAY * 2);
    let old = plant(&bench, "old.cwasm", half, DAY);
    bench.still_works().await;
    let left = bench.compiled();
    assert!(left.len() == 2 && left.contains(&old), "{left:?}");
}

#[tokio::test]
async fn native_code_and_code_for_the_interpreter_lie_side_by_side() {
    let native = Bench::new();
    assert_eq!(native.host.code(), Code::Native);
    native.still_works().await;
    let cache = native.cache();
    let interpreted = Bench::with(|options| (options.cache, options.code) = (cache, Some(Code::Interpreted)));
    assert_eq!(interpreted.host.code(), Code::Interpreted);
    interpreted.still_works().await;
    let both = native.compiled();
    // The names contain hashes, and the hash of native code differs between processors. The test sorts by extension.
    let mut ends: Vec<_> = both.iter().map(|file| file.extension().unwrap().to_str().unwrap()).collect();
    ends.sort_unstable();
    assert_eq!(ends, ["cwasm", "pulley"]);
    let made = |file: &PathBuf| fs::metadata(file).unwrap().ino();
    let before: Vec<_> = both.iter().map(made).collect();
    native.still_works().await;
    interpreted.still_works().await;
    assert_eq!(native.compiled().iter().map(made).collect::<Vec<_>>(), before, "one was made again");
}

#[tokio::test]
async fn damaged_compiled_code_is_compiled_again_and_never_run() {
    let mut random = Random::from_environment("AGENTD_DAMAGE_SEED");
    for code in [Code::Native, Code::Interpreted] {
        let bench = Bench::with(|options| options.code = Some(code));
        bench.still_works().await;
        let [file] = &bench.compiled()[..] else { panic!("{:?}", bench.compiled()) };
        let whole = fs::read(file).unwrap();
        let mut damages: Vec<Vec<u8>> = vec![Vec::new(), [&whole[..], b"more"].concat(), vec![0; whole.len()]];
        damages.extend((0..6).map(|_| truncated(&whole, &mut random)));
        // The first bits, the last bit, and random bits.
        damages.extend((0..4).chain([whole.len() * 8 - 1]).map(|bit| with_a_flip(&whole, bit)));
        damages.extend((0..20).map(|_| flipped(&whole, &mut random)));
        for damage in damages {
            fs::write(file, &damage).unwrap();
            bench.still_works().await;
            let [again] = &bench.compiled()[..] else { panic!("{:?}", bench.compiled()) };
            assert_ne!(fs::read(again).unwrap(), damage, "the damaged file was taken");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    sha2::Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Replaces the compiled file with changed content, under the name that fits the content's hash. Asserts that the
/// host removes the planted file and compiles the component again.
async fn refused_and_replaced(code: Code, change: impl Fn(&[u8]) -> Vec<u8>) {
    let bench = Bench::with(|options| options.code = Some(code));
    bench.still_works().await;
    let [file] = &bench.compiled()[..] else { panic!("{:?}", bench.compiled()) };
    let content = change(&fs::read(file).unwrap());
    let name = file.file_name().unwrap().to_str().unwrap();
    let (component, _) = name.split_once('-').unwrap();
    let extension = file.extension().unwrap().to_str().unwrap();
    let planted = bench.cache().join(format!("{component}-{}.{extension}", hex(&content)));
    assert_ne!(&planted, file, "nothing was changed");
    fs::remove_file(file).unwrap();
    fs::write(&planted, content).unwrap();
    bench.still_works().await;
    assert_eq!(bench.compiled(), std::slice::from_ref(file));
}

#[tokio::test]
async fn a_file_whose_name_is_right_and_that_wasmtime_refuses_is_compiled_again() {
    refused_and_replaced(Code::Native, |_| b"\x7fELF of another kind".to_vec()).await;
    refused_and_replaced(Code::Interpreted, |_| b"\x7fELF of another kind".to_vec()).await;
}

#[tokio::test]
async fn code_of_another_version_of_wasmtime_or_of_agentd_is_compiled_again() {
    for code in [Code::Native, Code::Interpreted] {
        for word in ["agentd ", ", wasmtime "] {
            refused_and_replaced(code, |whole| {
                // A component's own text can contain the word too, but without a digit after the word.
                let is_version =
                    |rest: &[u8]| rest.strip_prefix(word.as_bytes()).is_some_and(|is| is[0].is_ascii_hexdigit());
                let places: Vec<_> = (0..whole.len()).filter(|&at| is_version(&whole[at..])).collect();
                let [place] = places[..] else { panic!("the version is there {} times", places.len()) };
                let mut other = whole.to_vec();
                let digit = &mut other[place + word.len()];
                *digit = if *digit == b'7' { b'8' } else { b'7' };
                other
            })
            .await;
        }
    }
}

#[tokio::test]
async fn native_code_under_the_name_of_the_interpreters_is_not_run_by_it() {
    let native = Bench::new();
    native.still_works().await;
    let code = fs::read(&native.compiled()[0]).unwrap();
    refused_and_replaced(Code::Interpreted, |_| code.clone()).await;
}

/// Removes the compiled file and puts a replacement under its name. Asserts that the host writes its own file again.
async fn not_taken(replace: impl Fn(&PathBuf, &[u8])) {
    let bench = Bench::new();
    bench.still_works().await;
    let file = bench.compiled().remove(0);
    let whole = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    replace(&file, &whole);
    bench.still_works().await;
    let metadata = fs::symlink_metadata(&file).unwrap();
    let own = metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o777 == 0o600;
    assert!(metadata.is_file() && own, "{metadata:?}");
    assert_eq!(bench.compiled(), [file]);
}

#[tokio::test]
async fn a_compiled_file_that_is_a_link_or_a_fifo_or_can_be_written_by_others_is_not_taken() {
    let elsewhere = TempDir::new().unwrap();
    let target = elsewhere.path().join("code");
    not_taken(|file, whole| {
        fs::write(&target, whole).unwrap();
        symlink(&target, file).unwrap();
    })
    .await;
    assert!(target.exists(), "what the link names is none of ours");
    not_taken(|file, _| nix::unistd::mkfifo(file, nix::sys::stat::Mode::S_IRWXU).unwrap()).await;
    not_taken(|file, whole| {
        fs::write(file, whole).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o622)).unwrap();
    })
    .await;
    if nix::unistd::geteuid().is_root() {
        not_taken(|file, whole| {
            fs::write(file, whole).unwrap();
            std::os::unix::fs::chown(file, Some(4711), None).unwrap();
        })
        .await;
    }
}
