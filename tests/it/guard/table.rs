//! The table of `docs/isolation.md`, with the actions that each level permits. With `AGENTD_TEST_REWRITE` set, the test
//! writes the table.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use agentd_api::isolation::Isolation;
use agentd_api::session::SessionSpec;
use serde_json::{Value, json};

use super::{at, prepared_with_secret, secret, tried};
use crate::harness::{Daemon, Session, process, require};

/// Rows in the order of the page.
const ROWS: [&str; 25] = [
    "read agentd's configuration",
    "change agentd's configuration",
    "read another session's journal",
    "put an approval into agentd's state",
    "read a file that [secrets] names",
    "change a file that [secrets] names",
    "connect to agentd's own control socket",
    "connect to another session's keeper",
    "connect to the user's service manager",
    "connect to the session bus",
    "see another session",
    "see its own session",
    "signal agentd",
    "signal its own keeper",
    "signal another session's agent",
    "read the memory of another session's agent",
    "read the environment of another session's agent",
    "connect to the abstract socket of a process outside",
    "have a helper outside call agentd for it",
    "connect to a port of this machine",
    "signal a process that it started",
    "read and write in its own directory",
    "read and write its own configuration in the home directory",
    "read another session's directory",
    "write the shell's start-up files",
];

/// Actions that `guard` must refuse in every way.
const AROUND: [&str; 27] = [
    "configuration through agentd's root",
    "configuration through the keeper's root",
    "configuration through another agent's root",
    "configuration through the first process's root",
    "configuration above the directory it is in",
    "memory of agentd",
    "memory of its keeper",
    "environment of agentd",
    "signal another session's keeper",
    "take the cover away",
    "take a file's cover away",
    "move the cover",
    "write in the cover",
    "make the cover writable",
    "make the cover writable in namespaces of its own",
    "take the cover away in namespaces of its own",
    "bind what is around the cover in namespaces of its own",
    "bind with everything in namespaces of its own",
    "lay an overlay over what is around the cover",
    "enter agentd's mount namespace",
    "enter agentd's user namespace",
    "enter the user namespace around its own",
    "put another configuration directory in its place",
    "put another directory above it in its place",
    "unlink a file that [secrets] names",
    "put something beside its socket",
    "change another session over its socket",
];

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/isolation.md");
const BEGIN: &str = "<!-- tests/it/guard/table.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Whether the kernel (Yama) forbids ordinary users of this machine to read another process's memory, at every level.
fn is_memory_closed() -> bool {
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    !["", "0"].contains(&yama.trim()) && !nix::unistd::geteuid().is_root()
}

async fn there(daemon: &Daemon, session: &Session, other: &Session, names: &[&str], port: u16) -> Value {
    let (own, others) = (session.view().await.status, other.view().await.status);
    let (root, runtime) = (daemon.root(), daemon.root().join("run"));
    json!({
        "names": names,
        "root": root,
        "config": root.join("config"),
        "state": daemon.state(),
        "home": daemon.home(),
        "work": daemon.work(),
        "other-work": root.join("other-work"),
        "runtime": xdg(daemon),
        "secret": secret(daemon),
        "control": runtime.join("control.sock"),
        "keeper-socket": runtime.join(other.id.as_str()).join("keeper.sock"),
        "journal": other.directory().join("journal.jsonl"),
        "own": session.id.as_str(),
        "other": other.id.as_str(),
        "daemon": daemon.pid(),
        "own-keeper": own.keeper_pid,
        "other-keeper": others.keeper_pid,
        "other-agent": others.agent_pid,
        "abstract": name(daemon),
        "port": port,
    })
}

/// Returns a name in the abstract namespace that only this test uses.
fn name(daemon: &Daemon) -> String {
    daemon.root().display().to_string()
}

/// Returns the user's runtime directory of this daemon.
fn xdg(daemon: &Daemon) -> PathBuf {
    daemon.root().join("xdg")
}

/// Listens at the paths of the user's service manager and session bus.
fn buses(daemon: &Daemon) -> [UnixListener; 2] {
    fs::create_dir_all(xdg(daemon).join("systemd")).unwrap();
    ["systemd/private", "bus"].map(|name| UnixListener::bind(xdg(daemon).join(name)).unwrap())
}

/// Forwards calls to agentd for each client. The test itself is a process outside all sessions, which may do that.
fn help(daemon: &Daemon) {
    let listener = UnixListener::bind(daemon.work().join("helper")).unwrap();
    let control = daemon.client.socket().to_owned();
    std::thread::spawn(move || {
        for inside in listener.incoming() {
            let mut inside = inside.unwrap();
            let mut path = String::new();
            BufReader::new(&inside).read_line(&mut path).unwrap();
            let mut agentd = UnixStream::connect(&control).unwrap();
            write!(agentd, "GET {} HTTP/1.1\r\nHost: agentd\r\nConnection: close\r\n\r\n", path.trim()).unwrap();
            std::io::copy(&mut agentd, &mut inside).unwrap();
        }
    });
}

fn table(none: &[(String, bool, String)], guard: &[(String, bool, String)]) -> String {
    let word = |worked: bool| if worked { "works" } else { "refused" };
    let mut text = "| a process inside a session tries to | at `none` | at `guard` |\n|---|---|---|\n".to_owned();
    for ((name, at_none, _), (_, at_guard, _)) in none.iter().zip(guard) {
        writeln!(text, "| {} | {} | {} |", name.replace("[secrets]", "`[secrets]`"), word(*at_none), word(*at_guard))
            .unwrap();
    }
    text
}

#[tokio::test]
async fn what_each_level_stops_is_the_table_of_the_page_and_nothing_leads_around_it() {
    let Some(()) = require::guard() else { return };
    let mut daemon = prepared_with_secret();
    let runtime = xdg(&daemon);
    daemon.enter(vec!["/usr/bin/env".to_owned(), format!("XDG_RUNTIME_DIR={}", runtime.display())]);
    let _buses = buses(&daemon);
    help(&daemon);
    daemon.run().await;
    let other_work = daemon.root().join("other-work");
    fs::create_dir(&other_work).unwrap();
    let other = daemon.session(&SessionSpec { directory: other_work, ..at(&daemon, Isolation::None) }).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = SocketAddr::from_abstract_name(name(&daemon)).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();

    let open = daemon.session(&at(&daemon, Isolation::None)).await;
    let guarded = daemon.session(&at(&daemon, Isolation::Guard)).await;
    let mut at_none = tried(&daemon, &open, &there(&daemon, &open, &other, &ROWS, port).await).await;
    let at_guard = tried(&daemon, &guarded, &there(&daemon, &guarded, &other, &ROWS, port).await).await;
    if is_memory_closed() {
        at_none.iter_mut().filter(|row| row.0.contains("the memory of")).for_each(|row| row.1 = true);
    }
    let table = table(&at_none, &at_guard);
    let page = fs::read_to_string(Path::new(PAGE)).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the table's beginning");
    let (committed, after) = rest.split_once(END).expect("the page has the table's end");
    if std::env::var_os("AGENTD_TEST_REWRITE").is_some() {
        fs::write(PAGE, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(table, committed, "run it with AGENTD_TEST_REWRITE=1; at none {at_none:#?}, at guard {at_guard:#?}");
    }

    let around = tried(&daemon, &guarded, &there(&daemon, &guarded, &other, &AROUND, port).await).await;
    let through: Vec<_> = around.iter().filter(|(_, worked, _)| *worked).collect();
    assert!(through.is_empty(), "{through:?}");
    // The attempt was correct: without isolation the same attempt succeeds.
    let same = ["configuration through another agent's root"];
    let at_none = tried(&daemon, &open, &there(&daemon, &open, &other, &same, port).await).await;
    assert!(at_none[0].1, "{at_none:?}");
    assert!(fs::read_to_string(daemon.root().join("config/agentd.toml")).unwrap().contains("[secrets.TOKEN]"));
    assert!(process::is_alive(daemon.pid()));
    guarded.turn("say still here").await;
}
