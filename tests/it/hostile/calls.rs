//! The component that attacks through what the host does for it: it reads what it may not, runs what it may not, and waits for what
//! never comes. It passes on what it is told, so that the host's own words are in the session's condition.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::quote::as_pattern;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use super::*;

/// Each writes its answer to the address that is its last parameter.
const IMPORTS: &str = r#"
    (import "agentd:plugin/file@1.0.0" "read" (func $read (param i32 i32 i32)))
    (import "agentd:plugin/file@1.0.0" "entries" (func $entries (param i32 i32 i32)))
    (import "agentd:plugin/command@1.0.0" "run"
        (func $run (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
    (import "agentd:plugin/network@1.0.0" "exchange" (func $exchange (param i32 i32 i32 i32 i32 i64 i32)))"#;

/// An hour, which is longer than any call.
const TIME: u64 = 3_600_000;

/// Of the answer to a file's and a command's call the first byte says whether it is a failure, and the failure stands where that of
/// `provide` stands: so the one is the other.
const MUST_FAIL: &str = "(if (i32.eqz (i32.load8_u (i32.const 64))) (then unreachable))";
const MUST_NOT_FAIL: &str = "(if (i32.load8_u (i32.const 64)) (then unreachable))";
/// Nothing is answered.
const NO_CHANGE: &str = "(i64.store (i32.const 64) (i64.const 0)) (i32.store (i32.const 72) (i32.const 0))";
/// What earlier calls were answered is forgotten, so that it is not the memory that ends it.
const FORGET: &str = "(global.set $next (i32.const 65536))";

const OUTSIDE: &str = "outside of what this plugin is granted";

/// What stands in the guest's memory from 1024 on.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Memory {
    const BEGIN: usize = 1024;

    /// Where it stands, and how long it is: as the two parameters of a call.
    fn place(&mut self, bytes: &[u8]) -> [usize; 2] {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        let at = Self::BEGIN + self.0.len();
        self.0.extend_from_slice(bytes);
        [at, bytes.len()]
    }

    /// A list of texts: the address and the length of each.
    fn list(&mut self, texts: &[&str]) -> [usize; 2] {
        let places: Vec<_> = texts.iter().flat_map(|text| self.place(text.as_bytes())).collect();
        let [at, _] = self.words(&places);
        [at, texts.len()]
    }

    fn words(&mut self, words: &[usize]) -> [usize; 2] {
        let bytes: Vec<u8> = words.iter().flat_map(|&word| u32::try_from(word).unwrap().to_le_bytes()).collect();
        self.place(&bytes)
    }

    fn data(&self) -> String {
        let bytes = self.0.iter().map(|byte| format!("\\{byte:02x}")).collect::<Vec<_>>().concat();
        format!("(data (i32.const {}) \"{bytes}\")", Self::BEGIN)
    }

    fn read(&mut self, path: &str) -> String {
        let [at, length] = self.place(path.as_bytes());
        format!("(call $read (i32.const {at}) (i32.const {length}) (i32.const 64))")
    }

    fn entries(&mut self, path: &str) -> String {
        let [at, length] = self.place(path.as_bytes());
        format!("(call $entries (i32.const {at}) (i32.const {length}) (i32.const 64))")
    }

    /// Without an environment and an input, in the session's directory, for an hour.
    fn run(&mut self, program: &Path, arguments: &[&str]) -> String {
        self.run_with(program, arguments, &[])
    }

    /// Runs a program with these variables.
    fn run_with(&mut self, program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let both = variables.iter().flat_map(|&(name, value)| [name, value]);
        let [environment, texts] = self.list(&both.collect::<Vec<_>>());
        let [program, name] = self.place(program.as_os_str().as_encoded_bytes());
        let [arguments, number] = self.list(arguments);
        let [directory, length] = self.place(b"{cwd}");
        let before = [program, name, arguments, number, environment, texts / 2, 1, directory, length, 0, 0, 1];
        let before = before.map(|word| format!("(i32.const {word})")).join(" ");
        format!("(call $run {before} (i64.const {TIME}) (i32.const 64))")
    }

    /// Says nothing, waits for a byte, for an hour; the answer is at 256.
    fn exchange(&mut self, port: u16) -> String {
        let [host, length] = self.place(b"127.0.0.1");
        let [step, _] = self.words(&[0, 0, 1, 0, 0]);
        format!(
            "(call $exchange (i32.const {host}) (i32.const {length}) (i32.const {port}) (i32.const {step}) (i32.const 1) \
             (i64.const {TIME}) (i32.const 256))"
        )
    }

    /// What `provide` answers once the exchange came to its time's end, and nothing else.
    fn timed_out(&mut self, words: &str) -> String {
        let [at, length] = self.place(words.as_bytes());
        format!(
            "(if (i32.or (i32.load8_u (i32.const 256)) (i32.ne (i32.load8_u (i32.const 288)) (i32.const 2))) (then unreachable)) \
             (i32.store (i32.const 64) (i32.const 1)) (i32.store (i32.const 68) (i32.const 4)) \
             (i32.store (i32.const 72) (i32.const {at})) (i32.store (i32.const 76) (i32.const {length}))"
        )
    }
}

/// A program of the machine that does this.
fn program(daemon: &Daemon, name: &str, text: &str) -> PathBuf {
    let path = daemon.root().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Leaves the tree in each of the known ways, listens to no signal that can be ignored, and says that it began.
const HYDRA: &str = "trap '' TERM HUP INT
    setsid sh -c 'trap \"\" TERM; while :; do sleep 600; done' &
    (setsid sh -c 'sh -c \"sleep 600\" & exec sleep 0' &) &
    ( (sleep 600 & sleep 600) & )
    touch begun\n";

/// What a directory of the letter's has in it before a session is there.
fn furnish(daemon: &Daemon, letter: char) -> PathBuf {
    let directory = in_directory(daemon, &format!("deed-{letter}")).directory;
    let secrets = daemon.root().join("secrets");
    symlink(secrets.join("secret"), directory.join("link")).unwrap();
    symlink(&secrets, directory.join("directory")).unwrap();
    symlink("/proc/self/root", directory.join("root")).unwrap();
    symlink("/proc/self/environ", directory.join("environ")).unwrap();
    nix::unistd::mkfifo(&directory.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(directory.join("own"), "not a secret").unwrap();
    directory
}

/// The port of a peer that accepts everybody and never speaks, and how many came.
async fn dead_peer() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let came = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&came);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move { stream.read(&mut [0; 64]).await });
        }
    });
    (port, came)
}

#[tokio::test]
async fn a_plugin_that_attacks_through_host_calls_gets_nothing_and_leaves_nothing_and_says_what_it_was_told() {
    let mut daemon = Daemon::prepare();
    fs::create_dir(daemon.root().join("secrets")).unwrap();
    fs::write(daemon.root().join("secrets/secret"), "the secret").unwrap();
    fs::write(daemon.work().join("secret"), "the secret").unwrap();
    let tell = program(&daemon, "tell", "echo \"$@\" \"$TOOL_A\" >>\"$0.told\"");
    let hang = program(&daemon, "hang", &format!("{HYDRA} while :; do sleep 600; done"));
    let flood = program(&daemon, "flood", &format!("{HYDRA} exec yes"));
    let (port, came) = dead_peer().await;
    let outside = daemon.root().join("secrets/secret");

    let mut memory = Memory::default();
    let mut deeds: Vec<(char, String, &str)> = Vec::new();
    for (letter, path, words) in [
        // Upwards: at once, below a file, below a link.
        ('a', "{cwd}/../secret", "climbs by \"..\""),
        ('b', "{cwd}/own/../../secret", "climbs by \"..\""),
        ('c', "{cwd}/directory/../secret", "climbs by \"..\""),
        // By a link to the file, to its directory, and to where all files are.
        ('d', "{cwd}/link", OUTSIDE),
        ('e', "{cwd}/directory/secret", OUTSIDE),
        ('f', "{cwd}/root/etc/shadow", OUTSIDE),
        ('g', "{cwd}/environ", OUTSIDE),
        ('h', outside.to_str().unwrap(), OUTSIDE),
        ('j', "{cwd}/pipe", "it is not a regular file"),
    ] {
        deeds.push((letter, memory.read(path) + MUST_FAIL, words));
    }
    deeds.push(('i', memory.entries("{cwd}/directory") + MUST_FAIL, OUTSIDE));
    for (letter, arguments) in [
        ('k', &["other"][..]),
        ('l', &["plain-1", "more"]),
        ('m', &[]),
        ('n', &["", "plain-1"]),
        ('o', &["other", "plain-1"]),
    ] {
        deeds.push((letter, memory.run(&tell, arguments) + MUST_FAIL, OUTSIDE));
    }
    let shell = memory.run(Path::new("/bin/sh"), &["-c", "touch begun"]);
    deeds.push(('p', shell + MUST_FAIL, OUTSIDE));
    deeds.push(('q', memory.run(&hang, &[]) + MUST_FAIL, "took too long: the program"));
    deeds.push(('r', memory.run(&flood, &[]) + MUST_FAIL, "printed more than 1048576 bytes"));
    let exchange = memory.exchange(port);
    deeds.push(('s', exchange.clone() + &memory.timed_out("the peer never spoke"), "the peer never spoke"));
    // It does not mind that its time is over.
    deeds.push(('t', format!("(loop $again {FORGET} {exchange} (br $again))"), "took longer than its 2 s"));
    let hangs = memory.run(&hang, &[]);
    deeds.push(('u', format!("(loop $again {FORGET} {hangs} (br $again))"), "took longer than its 2 s"));
    // What it may run, run otherwise by the environment: a shell's start-up file, the dynamic loader, git's configuration.
    let attack = "$(touch begun)";
    for (letter, program, arguments, variables) in [
        ('v', Path::new("ldd"), &["/bin/true"][..], &[("BASH_ENV", attack)][..]),
        ('x', Path::new("ldd"), &["/bin/true"], &[("TOOL_A", "1"), ("SHELLOPTS", "xtrace"), ("PS4", attack)]),
        ('y', &tell, &["plain-2"], &[("LD_PRELOAD", "/nowhere.so")]),
        ('z', &tell, &["plain-2"], &[("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "core.pager")]),
    ] {
        let deed = memory.run_with(program, arguments, variables) + MUST_FAIL;
        deeds.push((letter, deed, "this plugin is not granted to set that for it"));
    }
    // And what is granted is done.
    let reads = memory.read("{cwd}/own") + MUST_NOT_FAIL;
    let tells = memory.run_with(&tell, &["plain-1"], &[("TOOL_A", "1")]) + MUST_NOT_FAIL + NO_CHANGE;
    let works = ('w', reads + &tells, "");

    let directories: Vec<_> = deeds.iter().map(|&(letter, ..)| furnish(&daemon, letter)).collect();
    furnish(&daemon, works.0);
    let grant = format!(
        "grant = {{ file = [\"{{cwd}}/**\"], command = [{{ run = \"{} plain-*\", variables = [\"*\"] }}, {:?}, {:?}, \
         {{ run = \"ldd *\", variables = [\"TOOL_*\", \"*\"] }}], network = [\"127.0.0.1:{port}\"] }}\n",
        as_pattern(&tell),
        as_pattern(&hang),
        as_pattern(&flood),
    );
    let borrowed = |(letter, deed, words): &(char, String, &'static str)| (*letter, deed.clone(), *words);
    let all: Vec<_> = deeds.iter().chain([&works]).map(borrowed).collect();
    let all: Vec<Deed<'_>> = all.iter().map(|(letter, deed, words)| (*letter, deed.as_str(), *words)).collect();
    let (deeds, works) = all.split_at(deeds.len());
    install(&daemon, &component(IMPORTS, &memory.data(), &all), &grant);
    daemon.run().await;
    holds(&daemon, "plugins are compiled to native code", deeds).await;

    // What the box was to keep out was there to be had, and what hung and flooded did begin.
    for (&(letter, ..), directory) in deeds.iter().zip(&directories) {
        assert_eq!(directory.join("begun").exists(), ['q', 'r', 'u'].contains(&letter), "{letter}");
    }
    // Each of the two that speak to it did so three times: who asks again is connected again, but not when the time is over.
    assert!((6..60).contains(&came.load(Ordering::Relaxed)), "{came:?} came");
    let told = daemon.root().join("tell.told");
    assert!(!told.exists(), "it ran with {:?}", fs::read_to_string(told));
    daemon.session(&in_directory(&daemon, &format!("deed-{}", works[0].0))).await;
    assert_eq!(fs::read_to_string(told).unwrap(), "plain-1 1\n");
}
