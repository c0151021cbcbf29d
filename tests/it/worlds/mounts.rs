//! `mount` with a file system that works, is missing, differs from the expected one, or does not answer; and `command`
//! with an administrator's own check.

use std::time::Duration;

use agentd_api::prerequisite::{CheckReport, Outcome};

use super::stage::{Stage, assert_told, declared, fact, remedy};
use super::world::{HOST, INSIDE_HOST, Manner, OUTSIDE_NAMES, Peer, World};
use crate::harness::dead::Dead;
use crate::harness::quote::{as_pattern, quoted};
use crate::harness::{process, require, until};

const TIME: Duration = Duration::from_secs(1);
/// Maximum number of hung lookups, each in a process (DESIGN section 6).
const LOOKS: usize = 8;
/// Maximum number of hung lookups that plugins started.
const ASKED: usize = 6;
/// Number of the daemon's threads at rest: the main thread, two workers, and one thread for each of eight tasks. The
/// tasks are the deadlines of plugins, the watchdog, the check of the socket each second, the audit log, and the feed.
/// The others watch the disk, measure processes, and measure journals.
const THREADS: usize = 11;

fn mount(name: &str, path: &str, more: &str) -> String {
    declared(name, "mount", &format!("path = \"{path}\", timeout = \"1s\"{more}"), "time = \"3s\"")
}

fn at(world: &World, name: &str) -> String {
    world.files().join(name).display().to_string()
}

/// Mounts a tmpfs whose source has the name `source`.
fn mount_memory(world: &World, name: &str, source: &str) {
    std::fs::create_dir(world.files().join(name)).unwrap();
    world.here.run(&format!("mount -t tmpfs {source} {}", quoted(at(world, name))));
}

fn dead(world: &World, name: &str, kind: &str, source: &str) -> Dead {
    Dead::mount(world.files().join(name), kind, source, &world.here.entrance())
}

/// Counts the lookup processes of this daemon that look or hang, without those that wait for their next request.
fn looks(daemon: u32) -> usize {
    let parent = format!("PPid:\t{daemon}\n");
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let looks = processes.filter(|process| {
        let read = |file| std::fs::read(process.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&read("status")).contains(&parent)
            && read("cmdline").split(|byte| *byte == 0).nth(1) == Some(b"look")
            && !String::from_utf8_lossy(&read("stack")).contains("pipe_read")
    });
    looks.count()
}

fn threads(daemon: u32) -> usize {
    std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap().count()
}

#[tokio::test]
async fn a_mount_that_is_good_missing_or_another_is_told_with_what_is_there() {
    let stage = Stage::new(|world| {
        mount_memory(world, "tools", "tools");
        let (tools, gone) = (at(world, "tools"), at(world, "gone"));
        mount("good", &tools, ", kind = \"tmpfs\", source = \"tools\"")
            + &mount("missing", &gone, ", source = \"files:/export\", server = \"localhost\", port = 9")
            + &mount("kind", &tools, ", kind = \"nfs*\"")
            + &mount("source", &tools, ", source = \"files:/export\"")
            + &mount("device", &tools, ", device = \"259:3\"")
    });
    let Some(stage) = stage.await else { return };
    let (tools, gone) = (at(&stage.world, "tools"), at(&stage.world, "gone"));
    let is = [("source", "tools"), ("kind", "tmpfs")];
    let report = stage.check("good", TIME).await;
    assert_told(&report, Outcome::Pass, &format!("{tools} is mounted and answers"), &is);
    let device = fact(&report, "device").to_owned();
    assert!(device.starts_with("0:"), "{device}");
    for (name, found, wanted) in
        [("kind", "tmpfs", "nfs*"), ("source", "tools", "files:/export"), ("device", &device, "259:3")]
    {
        let report = stage.check(name, TIME).await;
        let told = format!("another file system is mounted at {tools}: its {name} is {found}, and should be {wanted}");
        assert_told(&report, Outcome::Fail, &told, &is);
        assert_eq!(fact(&report, "device"), device);
    }
    // Nothing is mounted there, and the server's port is closed.
    let report = stage.check("missing", TIME).await;
    let told = format!(
        "nothing is mounted at {gone}, and the server of {gone} cannot be used: localhost port 9 refuses the connection"
    );
    assert_told(&report, Outcome::Fail, &told, &[("expected", "files:/export"), ("addresses", "127.0.0.1")]);
    assert!(fact(&report, "is on").starts_with('/'), "{report:#?}");
    // The mount disappears and returns while the daemon runs.
    stage.world.here.run(&format!("umount {}", quoted(&tools)));
    let report = stage.check("good", TIME).await;
    assert_told(&report, Outcome::Fail, &format!("nothing is mounted at {tools}"), &[]);
    stage.world.here.run(&format!("mount -t tmpfs tools {}", quoted(&tools)));
    assert_eq!(stage.check("good", TIME).await.outcome, Outcome::Pass);
    stage.pulse.judge();
}

#[tokio::test]
async fn a_mount_whose_server_is_dead_is_not_touched_and_one_that_hangs_is_told() {
    if require::fuse().is_none() {
        return;
    }
    let stage = Stage::new(|world| {
        // The kernel sends packets for this address to a hardware address that no interface has.
        world.ip("neigh add 10.99.9.9 lladdr 02:00:00:00:00:09 dev vpn0 nud permanent");
        world.inside_names.know("files.corp.test", "10.99.9.9");
        mount_memory(world, "memory", "files.corp.test:/export");
        let server = ", server = \"files.corp.test\", port = 2049";
        mount("export", &at(world, "export"), "") + &mount("memory", &at(world, "memory"), server)
    });
    let Some(stage) = stage.await else { return };
    let (world, export, memory) = (&stage.world, at(&stage.world, "export"), at(&stage.world, "memory"));
    let mut dead = dead(world, "export", "fuse.sshfs", "files.corp.test:/export");
    let way = ("route to 10.99.9.9", "through vpn0, from 10.99.0.2");
    let facts = [("addresses", "10.99.9.9"), way, ("source", "files.corp.test:/export")];
    for (name, path, port) in [("export", &export, 22), ("memory", &memory, 2049)] {
        let report = stage.check(name, TIME).await;
        let begins =
            format!("the server of {path} cannot be used: files.corp.test port {port} does not answer within ");
        assert!(report.summary.starts_with(&begins), "{report:#?}");
        assert_told(&report, Outcome::Fail, &report.summary, &facts);
        assert!(remedy(&report).ends_with("the mount was not touched"), "{report:#?}");
    }
    assert_eq!(dead.requests(), 0, "it was touched");
    // A name lookup answers shortly before its process ends. A lookup in the mount would hang.
    until("no look is left", || looks(stage.daemon.pid()) == 0).await;

    // The server first refuses the connection and then listens. In the second case the mount itself hangs.
    world.inside_names.know("files.corp.test", INSIDE_HOST);
    let report = stage.check("export", TIME).await;
    let refused = format!("the server of {export} cannot be used: files.corp.test port 22 refuses the connection");
    assert_told(&report, Outcome::Fail, &refused, &[("addresses", INSIDE_HOST)]);
    assert_eq!(dead.requests(), 0, "it was touched");
    let _servers = [22, 2049].map(|port| Peer::listen(&world.inside, INSIDE_HOST, port, Manner::Closes));
    let report = stage.check("export", TIME).await;
    let hangs = format!("{export} is mounted and does not answer");
    assert_told(&report, Outcome::Fail, &hangs, &[("source", "files.corp.test:/export"), ("kind", "fuse.sshfs")]);
    assert!(dead.requests() > 0);
    assert_eq!(stage.check("memory", TIME).await.outcome, Outcome::Pass);
    // A mounted file system that answers does not need its server's name. A name without an address is then only a
    // warning.
    world.names_at(OUTSIDE_NAMES);
    let report = stage.check("memory", TIME).await;
    let warns = format!("{memory} is mounted and answers, and the name of its server files.corp.test has no address");
    assert_told(&report, Outcome::Warn, &warns, &[("name servers", OUTSIDE_NAMES), ("kind", "tmpfs")]);
    dead.release();
    until("nobody hangs", || looks(stage.daemon.pid()) == 0).await;
    stage.pulse.judge();
}

#[tokio::test]
async fn whatever_hangs_the_daemon_answers_and_keeps_no_more_processes_than_eight_and_no_threads() {
    const MOUNTS: usize = LOOKS + 2;
    if require::fuse().is_none() {
        return;
    }
    let names: Vec<String> = (0..MOUNTS).map(|at| format!("dead{at}")).collect();
    let stage = Stage::new(|world| {
        world.ip("neigh add 10.99.9.9 lladdr 02:00:00:00:00:09 dev vpn0 nud permanent");
        let never = world.script("never", "sleep 600 & trap '' TERM; exec sleep 600");
        let settings = format!("program = \"{never}\", timeout = \"1s\"");
        let peer = |name: &str, host: &str| {
            let settings = format!("host = \"{host}\", port = 22, banner = \"x\", timeout = \"1s\"");
            declared(name, "tcp", &settings, "time = \"3s\"")
        };
        let mounts: Vec<String> = names.iter().map(|name| mount(name, &at(world, name), "")).collect();
        mounts.concat()
            + &format!("[plugins.command]\ngrant = {{ command = [\"{never}\"] }}\n")
            + &declared("command", "command", &settings, "time = \"3s\"")
            + &peer("silent", INSIDE_HOST)
            + &peer("lost", "10.99.9.9")
            + &peer("named", HOST)
    });
    let Some(stage) = stage.await else { return };
    let (world, daemon) = (&stage.world, stage.daemon.pid());
    let _silent = Peer::listen(&world.inside, INSIDE_HOST, 22, Manner::IsSilent);
    let mut mounts: Vec<Dead> = names.iter().map(|name| dead(world, name, "fuse", "dead")).collect();
    world.inside_names.be_silent(true);
    let all: Vec<&str> = names.iter().map(String::as_str).chain(["silent", "lost", "named", "command"]).collect();
    let round = async || {
        // Each check ends within its time. A prerequisite that does not answer does not pass.
        let reports = stage.check_all(&all, 3 * TIME).await;
        let told = |report: &CheckReport| matches!(report.outcome, Outcome::Fail | Outcome::Unknown);
        assert!(reports.iter().all(told) && reports.len() == all.len(), "{reports:#?}");
        // A name lookup counts against a limit of its own, and takes a moment to exit after it was killed.
        until("lookups stay within their limit", || looks(daemon) <= LOOKS).await;
        reports
    };
    for _ in 0..3 {
        round().await;
    }
    let only_asked = async || until("only lookups for plugins hang", || looks(daemon) == ASKED).await;
    only_asked().await;
    let hangs = |report: &&CheckReport| report.summary.ends_with("is mounted and does not answer");
    let told = round().await;
    assert!(
        told.iter().filter(hangs).all(|report| u128::from(report.took_ms) < TIME.as_millis()),
        "what hangs is known: {told:#?}"
    );
    assert!(told.iter().any(|report| report.summary.starts_with("6 lookups for plugins hang")), "{told:#?}");
    // No thread waits for a hung lookup. A thread for blocking work ends after ten seconds without work, so only the
    // threads from the daemon's start remain.
    until("no thread waits", || threads(daemon) <= THREADS).await;
    only_asked().await;
    // Hung lookups of plugins do not prevent the start of a session, which looks up its directory.
    stage.daemon.session(&stage.daemon.scripted(&[])).await;
    only_asked().await;

    for mount in &mut mounts {
        mount.release();
    }
    until("nobody hangs", || looks(daemon) == 0).await;
    world.inside_names.be_silent(false);
    let report = stage.check("named", 3 * TIME).await;
    let silent = "git.corp.test port 22 accepts the connection but sends nothing within 1 s";
    assert_told(&report, Outcome::Fail, silent, &[("address", INSIDE_HOST)]);
    assert!(process::of(world.files()).is_empty());
    stage.pulse.judge();
}

#[tokio::test]
async fn an_own_check_is_told_by_its_status_and_its_first_line() {
    let stage = Stage::new(|world| {
        let scripts = [
            ("free", "echo three boards are free; exit 0", "4s"),
            ("short", "echo one board is free; echo ask the lab; exit 1", "4s"),
            ("none", "echo no board is free >&2; exit 2", "4s"),
            ("never", "echo it hangs; trap '' TERM; sleep 600 & sleep 600", "1s"),
            ("many", "echo crowded; exit 77", "4s"),
        ];
        let mut config = format!("[plugins.command]\ngrant = {{ command = [\"{}/*\"] }}\n", as_pattern(world.files()));
        for (name, body, time) in scripts {
            let settings = format!("program = \"{}\", timeout = \"{time}\"", world.script(name, body));
            config += &declared(name, "command", &settings, "");
        }
        config
    });
    let Some(stage) = stage.await else { return };
    let never = format!("{} did not end within 1 s", at(&stage.world, "never"));
    for (name, outcome, summary, facts) in [
        ("free", Outcome::Pass, "three boards are free", &[][..]),
        ("short", Outcome::Warn, "one board is free", &[("status", "1"), ("said", "ask the lab")]),
        ("none", Outcome::Fail, "no board is free", &[("status", "2")]),
        ("never", Outcome::Unknown, never.as_str(), &[]),
        ("many", Outcome::Fail, "crowded", &[("status", "77")]),
    ] {
        let report = stage.check(name, if name == "never" { TIME } else { 4 * TIME }).await;
        assert_told(&report, outcome, summary, facts);
    }
    let left = || process::of(stage.world.files());
    until("what never ends has ended", || left().is_empty()).await;
    stage.pulse.judge();
}
