//! Hostile component that attacks the whole daemon in many ways. Each launch with this component ends at a limit, and
//! its condition names the limit. The daemon's memory does not grow, and another session works throughout.
//!
//! A second test repeats all attacks where the system forbids a process to execute memory that it wrote (systemd's
//! `MemoryDenyWriteExecute=`). The daemon then interprets plugins. The module [`calls`] has the attacks through host
//! calls.

mod calls;

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use agentd_api::environment::EnvironmentView;
use agentd_api::session::{ConditionType, Phase, SessionSpec};

use crate::guest::{Guest, LOG};
use crate::harness::digest::sha256;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths, process, until};

/// A deed: the letter with which the directory's name ends, the guest's code, and words of the session's condition.
pub(crate) type Deed<'a> = (char, &'a str, &'a str);

const DEEDS: &[Deed<'_>] = &[
    ('l', "(loop $again (br $again))", "took longer than its 2 s"),
    ('m', "(loop $again (drop (memory.grow (i32.const 16))) (br $again))", "used more than its 8 MiB of memory"),
    (
        't',
        "(loop $again (drop (table.grow $t (ref.null func) (i32.const 30000))) (br $again))",
        "used more than its 100000 table entries",
    ),
    ('r', "(drop (call $deep (i64.const 0)))", "used more than its 512 KiB of stack"),
    // A list with one change, whose name fills most of the memory.
    (
        'o',
        "(drop (memory.grow (i32.const 110))) (i32.store (i32.const 68) (i32.const 256)) \
         (i32.store (i32.const 72) (i32.const 1))
         (i32.store (i32.const 260) (i32.const 1048576)) (i32.store (i32.const 264) (i32.const 6000000))",
        "handed over more than its 4 MiB of output",
    ),
    (
        'a',
        "(drop (memory.grow (i32.const 110))) (call $log (i32.const 2) (i32.const 1048576) (i32.const 6000000))",
        "of output",
    ),
    (
        'c',
        "(loop $again (call $log (i32.const 2) (i32.const 144) (i32.const 4)) (br $again))",
        "took longer than its 2 s",
    ),
    ('u', "unreachable", "crashed: wasm trap: wasm `unreachable` instruction executed"),
    ('p', "(i32.store (i32.const 68) (i32.const -64)) (i32.store (i32.const 72) (i32.const 1))", "crashed"),
    ('z', "(i32.store (i32.const 68) (i32.const 0)) (i32.store (i32.const 72) (i32.const -1))", "crashed"),
];

/// Returns a component with all deeds. In a directory without a deed's letter the component does nothing.
pub(crate) fn component(imports: &str, fields: &str, deeds: &[Deed<'_>]) -> Vec<u8> {
    // Parameters 7 and 8 are the address and the length of the working directory.
    let mut provide = "(local $which i32)
        (local.set $which (i32.load8_u (i32.sub (i32.add (local.get 7) (local.get 8)) (i32.const 1))))"
        .to_owned();
    for &(letter, deed, _) in deeds {
        write!(provide, "(if (i32.eq (local.get $which) (i32.const {})) (then {deed}))", u32::from(letter)).unwrap();
    }
    Guest { imports, fields, provide: &provide, ..Guest::default() }.provider()
}

/// Returns a component whose deeds need no host calls except the log.
fn alone() -> Vec<u8> {
    let fields = "(table $t 1 funcref)
        (func $deep (param i64) (result i64) \
        (i64.add (call $deep (i64.add (local.get 0) (i64.const 1))) (i64.const 1)))";
    component(LOG, fields, DEEDS)
}

/// Adds this component to the end of the daemon's environment pipeline.
pub(crate) fn install(daemon: &Daemon, component: &[u8], declared: &str) {
    let pin = sha256(component);
    let file = daemon.root().join("config/hostile.wasm");
    fs::write(&file, component).unwrap();
    daemon.configure(|config| {
        let mut config = config.replace("[environment]", "[environment]\ndeadline = \"500ms\"");
        config.push_str("\n[limits]\nplugin_memory = 8_388_608\n");
        for plugin in ["snapshot", "whitelist"] {
            writeln!(config, "[[environment.providers]]\nplugin = \"{plugin}\"").unwrap();
        }
        let file = file.display().to_string();
        writeln!(config, "[[environment.providers]]\nplugin = \"hostile\"").unwrap();
        writeln!(config, "[plugins.hostile]\nfile = {file:?}\nsha256 = \"{pin}\"\n{declared}").unwrap();
        config
    });
}

/// Returns a session's specification with a new directory of this name.
pub(crate) fn in_directory(daemon: &Daemon, name: &str) -> SessionSpec {
    let directory = daemon.work().join(name);
    fs::create_dir_all(&directory).unwrap();
    SessionSpec { directory, ..daemon.scripted(&[]) }
}

/// Maximum growth of the daemon's memory in KiB after all deeds. A guest that uses all its memory has 8192 KiB, and
/// runs twice.
const GROWTH: u64 = 10 << 10;

async fn holds(daemon: &Daemon, says: &str, deeds: &[Deed<'_>]) {
    let good = daemon.session(&in_directory(daemon, "good-0")).await;
    assert!(daemon.last_words().contains(says), "{}", daemon.last_words());
    let before = good.turn("env").await.text;
    // The first round is not measured, because the first failure of each kind allocates memory that remains in use.
    for deed in deeds {
        fails(daemon, &good, deed).await;
    }
    let weight = process::resident(daemon.pid());
    for round in 1..=2 {
        for deed in deeds {
            // While the plugin runs, the other session must answer prompts.
            let over = Cell::new(false);
            let does = async {
                fails(daemon, &good, deed).await;
                over.set(true);
            };
            let answers = async {
                while !over.get() {
                    assert_eq!(good.turn("env").await.text, before);
                }
            };
            tokio::join!(does, answers);
        }
        daemon.session(&in_directory(daemon, &format!("good-{round}"))).await;
    }
    let grown = process::resident(daemon.pid()).saturating_sub(weight);
    assert!(grown < GROWTH, "the daemon grew by {grown} KiB from {weight} KiB");
}

async fn fails(daemon: &Daemon, good: &Session, &(letter, _, words): &Deed<'_>) {
    let spec = in_directory(daemon, &format!("deed-{letter}"));
    let session = daemon.create(&spec).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let conditions = &view.status.conditions;
    let condition = conditions.iter().find(|condition| condition.kind == ConditionType::EnvironmentReady).unwrap();
    let message = &condition.message;
    assert!(message.contains("plugin \"hostile\"") && message.contains(words), "{letter}: {message}");
    until("nothing of it is left", || process::of(&spec.directory).is_empty()).await;
    // A successful call between failures prevents the daemon from suspending the plugin.
    daemon.client.get(&good.path("/environment?at=now")).await.expect::<EnvironmentView>(200);
}

#[tokio::test]
async fn a_plugin_that_does_its_worst_ends_at_its_limits_and_harms_neither_the_daemon_nor_another_session() {
    let mut daemon = Daemon::prepare();
    install(&daemon, &alone(), "");
    daemon.run().await;
    holds(&daemon, "plugins are compiled to native code", DEEDS).await;
}

/// Returns a program that starts agentd in a process that cannot make memory executable, like systemd's
/// `MemoryDenyWriteExecute=`. The processes that agentd starts inherit that.
fn without_write_and_execute(daemon: &Daemon) -> PathBuf {
    let prctl = if cfg!(target_arch = "x86_64") { 157 } else { 167 };
    // The call sets PR_MDWE_REFUSE_EXEC_GAIN with PR_SET_MDWE (prctl(2)). perl can make a system call by its number.
    let set = format!("syscall({prctl}, 65, 1, 0, 0, 0) == 0 or die \"prctl: $!\"; exec @ARGV or die \"exec: $!\"");
    let path = daemon.root().join("agentd-mdwe");
    fs::write(&path, format!("#!/bin/sh\nexec perl -e '{set}' {} \"$@\"\n", quoted(paths::agentd()))).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn where_memory_that_was_written_cannot_be_executed_plugins_are_interpreted_within_the_same_limits() {
    let mut daemon = Daemon::prepare();
    install(&daemon, &alone(), "");
    daemon.set_program(without_write_and_execute(&daemon));
    daemon.run().await;
    holds(&daemon, "plugins are interpreted: native code cannot be run here", DEEDS).await;
}
