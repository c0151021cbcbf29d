//! The read-only socket: its file, its group, its changes by reloads, and clients that hold many connections.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentd_api::Code;
use agentd_api::doctor::DoctorView;
use agentd_api::prerequisite::Outcome;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::{Open, code, follow, over_socket, own_group, read_only, readers_directory, socket_of};
use crate::harness::ctl::{Said, ctl, end_of};
use crate::harness::{Daemon, paths, require, until, within};

/// User and group that are not the daemon's.
const OTHER: u32 = 4713;
const GROUP: u32 = 4714;

fn mode_of(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (metadata.mode() & 0o777, metadata.gid())
}

/// Runs agentctl against a socket.
async fn agentctl(socket: &Path, arguments: &[&str]) -> Said {
    let mut command = Command::new(paths::agentctl());
    command.env_clear().env("AGENTD_SOCKET", socket).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_of(command.spawn().unwrap()).await
}

#[tokio::test]
async fn agentctl_reads_over_the_socket_and_is_told_where_to_make_other_calls() {
    let open = Open::start().await;
    let socket = socket_of(&open.daemon);
    assert_eq!(mode_of(&socket), (0o660, own_group()));
    let session = open.daemon.session(&open.daemon.scripted(&[])).await;
    session.turn("say hi").await;
    let id = session.id.as_str();
    for (arguments, expected) in
        [(&["ls"][..], id), (&["show", id], id), (&["events", id, "--no-follow"], "turn."), (&["version"], "agentd")]
    {
        let said = agentctl(&socket, arguments).await;
        assert!(said.status == Some(0) && said.out.contains(expected), "{arguments:?}: {said:?}");
    }
    let said = agentctl(&socket, &["stop", id]).await;
    assert!(said.status != Some(0) && said.err.contains("read-only socket") && said.err.contains("hint: "), "{said:?}");
    assert!(agentctl(&socket, &["reload"]).await.err.contains("needs own"));
    assert!(ctl(&open.daemon, &["stop", id]).await.status == Some(0), "the control socket still takes it");
}

async fn connected(socket: &Path) -> BufReader<UnixStream> {
    follow(UnixStream::connect(socket).await.unwrap(), "").await
}

#[tokio::test]
async fn a_reload_moves_and_closes_the_socket_with_its_streams_and_the_next_daemon_replaces_its_file() {
    let mut open = Open::start().await;
    let first = socket_of(&open.daemon);
    let second = first.with_file_name("second.sock");
    let mut stream = connected(&first).await;
    assert_eq!(open.reload().await.mistakes, [], "nothing changes");
    let (from, to) = (first.display().to_string(), second.display().to_string());
    open.daemon.configure(|config| config.replace(&from, &to));
    assert_eq!(open.reload().await.mistakes, []);
    within("the stream ends", stream.read_to_end(&mut Vec::new())).await.unwrap();
    assert!(!first.exists());
    assert_eq!(over_socket(&second, "GET", "/v1/sessions").await.status, 200);

    // A killed daemon leaves the file, and the next one listens there.
    open.daemon.kill9();
    assert!(second.exists());
    open.daemon.run().await;
    assert_eq!(over_socket(&second, "GET", "/v1/sessions").await.status, 200);
    // The socket is created again where something removed its file.
    fs::remove_file(&second).unwrap();
    until("the socket is there again", || std::os::unix::net::UnixStream::connect(&second).is_ok()).await;
    assert_eq!(mode_of(&second), (0o660, own_group()));

    let mut stream = connected(&second).await;
    open.daemon.configure(|config| config.split("[control.read_only]").next().unwrap().to_owned());
    assert_eq!(open.reload().await.mistakes, []);
    within("the stream ends", stream.read_to_end(&mut Vec::new())).await.unwrap();
    assert!(!second.exists());
}

async fn doctor_summary(daemon: &Daemon) -> (Outcome, String) {
    let doctor: DoctorView = daemon.client.get("/v1/doctor").await.expect(200);
    let check = doctor.checks.into_iter().find(|check| check.name == "configuration").unwrap();
    (check.outcome, check.summary)
}

#[tokio::test]
async fn a_socket_that_others_could_replace_or_that_the_group_cannot_reach_is_not_opened_and_doctor_says_why() {
    let mut daemon = Daemon::prepare();
    let directory = readers_directory(&daemon);
    let place = |name: &str, mode: u32| -> PathBuf {
        let path = directory.join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.join("s.sock")
    };
    let target = directory.join("target");
    fs::write(&target, "kept").unwrap();
    symlink(&target, directory.join("link.sock")).unwrap();
    fs::write(directory.join("file.sock"), "kept").unwrap();
    let _living = UnixListener::bind(directory.join("living.sock")).unwrap();
    let group = own_group().to_string();
    let cases = [
        (place("sticky", 0o1777), &*group, "chmod go-w"),
        (place("shared", 0o775), &group, "chmod go-w"),
        (place("closed", 0o700), "4714", "cannot enter the directory"),
        (directory.join("missing/s.sock"), &group, "install -d"),
        (directory.join("s.sock"), "no-such-group-here", "getent group"),
        (directory.join("link.sock"), &group, "not a socket"),
        (directory.join("file.sock"), &group, "not a socket"),
        (directory.join("living.sock"), &group, "another agentd answers"),
        (daemon.client.socket().to_owned(), &group, "that of the control socket"),
        (directory.join("x".repeat(120)), &group, "the limit is"),
    ];
    let first = &cases[0];
    daemon.configure(|config| config + "\n#read-only\n" + &read_only(&first.0, first.1));
    daemon.run().await;
    for (socket, group, said) in &cases {
        daemon.configure(|config| {
            config.split("#read-only\n").next().unwrap().to_owned() + "#read-only\n" + &read_only(socket, group)
        });
        let view: Value = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
        let mistake = view["mistakes"][0]["message"].as_str().unwrap_or_else(|| panic!("{said}: {view}")).to_owned();
        assert!(mistake.contains(said) && mistake.contains("control.read_only"), "{said}: {mistake}");
        let (outcome, summary) = doctor_summary(&daemon).await;
        assert!(outcome == Outcome::Fail && summary.contains("control.read_only"), "{said}: {summary}");
    }
    assert!(fs::symlink_metadata(directory.join("link.sock")).unwrap().is_symlink());
    for kept in [target, directory.join("file.sock")] {
        assert_eq!(fs::read_to_string(&kept).unwrap(), "kept", "{}", kept.display());
    }
    // The control socket serves all the time, and a corrected path is opened.
    daemon.configure(|config| {
        config.split("#read-only\n").next().unwrap().to_owned() + &read_only(&socket_of(&daemon), &group)
    });
    let view: Value = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
    assert_eq!(view["mistakes"].as_array().map_or(0, Vec::len), 0, "{view}");
    assert_eq!(over_socket(&socket_of(&daemon), "GET", "/readyz").await.status, 200);
}

/// A read-only socket in a directory that no user but root can write, for the group [`GROUP`].
async fn for_group() -> (Open, tempfile::TempDir, PathBuf) {
    let place = tempfile::Builder::new().prefix("agentd-readers-").tempdir_in("/run").unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = place.path().join("read-only.sock");
    let open = Open::start().await;
    let former = socket_of(&open.daemon).display().to_string();
    open.daemon.configure(|config| {
        config
            .replace(&former, &socket.display().to_string())
            .replace(&format!("group = \"{}\"", own_group()), &format!("group = {GROUP}"))
    });
    assert_eq!(open.reload().await.mistakes, []);
    (open, place, socket)
}

/// Runs a program as another user with these groups.
async fn as_other(groups: &str, socket: &Path, words: &[&str]) -> Said {
    let (user, group) = (format!("--reuid={OTHER}"), format!("--regid={OTHER}"));
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") };
    let mut command = Command::new("setpriv");
    command.env_clear().env("PATH", "/usr/bin:/bin").env("AGENTD_SOCKET", socket).env("CANARY", "a-terminals-own");
    command.args([user, group, groups]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_of(command.spawn().unwrap()).await
}

#[tokio::test]
async fn a_member_of_the_group_reads_and_another_user_cannot_connect() {
    let Some(()) = require::root("a socket of a group") else { return };
    let (open, place, socket) = for_group().await;
    assert_eq!(mode_of(&socket), (0o660, GROUP));
    let session = open.daemon.session(&open.daemon.scripted(&[])).await;
    let program = place.path().join("agentctl");
    let copied = Command::new("install").arg(paths::agentctl()).arg(&program).status().unwrap();
    assert!(copied.success());
    let agentctl = program.to_str().unwrap();
    let member = GROUP.to_string();
    let said = as_other(&member, &socket, &[agentctl, "ls"]).await;
    assert!(said.status == Some(0) && said.out.contains(session.id.as_str()), "{said:?}");
    // A call that could contain the terminal's environment is not sent to another user at all.
    for words in [&["new", "--dir", "/tmp"][..], &["stop", session.id.as_str()]] {
        let said = as_other(&member, &socket, &[&[agentctl], words].concat()).await;
        assert!(said.status != Some(0) && said.err.contains("read-only socket"), "{words:?}: {said:?}");
    }
    // A program that sends it anyway is refused, and the record has the user.
    let url = format!("curl -s --unix-socket {} -X POST http://a/v1/drain", socket.display());
    let said = as_other(&member, &socket, &["/bin/sh", "-c", &url]).await;
    assert!(said.out.contains("\"scope-too-small\""), "{said:?}");
    let audit: Value = open.daemon.client.get("/v1/audit").await.expect(200);
    let records = audit["records"].as_array().unwrap();
    let drain = records.iter().find(|record| record["path"] == "/v1/drain").unwrap_or_else(|| panic!("{audit}"));
    assert_eq!((&drain["requester"]["uid"], &drain["code"]), (&OTHER.into(), &"scope-too-small".into()));
    let said = as_other("", &socket, &[agentctl, "ls"]).await;
    assert!(said.status == Some(3), "{said:?}");
    // The control socket still refuses the member: its directory is private.
    let said = as_other(&member, open.daemon.client.socket(), &[agentctl, "ls"]).await;
    assert!(said.status == Some(3), "{said:?}");
    // Another group by a reload: the former members are out, and their streams end.
    let mut stream = connected(&socket).await;
    open.daemon.configure(|config| config.replace(&format!("group = {GROUP}"), &format!("group = {OTHER}")));
    assert_eq!(open.reload().await.mistakes, []);
    within("the stream ends", stream.read_to_end(&mut Vec::new())).await.unwrap();
    assert_eq!(mode_of(&socket), (0o660, OTHER));
    assert_eq!(over_socket(&socket, "GET", "/v1/sessions").await.status, 200);
}

#[tokio::test]
async fn the_file_of_another_user_is_not_replaced_and_a_group_of_which_the_user_is_no_member_is_an_error() {
    let Some(()) = require::root("a file of another user") else { return };
    let open = Open::start().await;
    let (former, foreign) = (socket_of(&open.daemon), socket_of(&open.daemon).with_file_name("foreign.sock"));
    drop(UnixListener::bind(&foreign).unwrap());
    chown(&foreign, Some(OTHER), None).unwrap();
    let (from, to) = (former.display().to_string(), foreign.display().to_string());
    open.daemon.configure(|config| config.replace(&from, &to));
    let view = open.reload().await;
    let owns = format!("user {OTHER} owns the file");
    assert!(view.mistakes.len() == 1 && view.mistakes[0].message.contains(&owns), "{view:?}");
    assert_eq!(fs::symlink_metadata(&foreign).unwrap().uid(), OTHER);
    // The former socket stays open.
    assert_eq!(over_socket(&former, "GET", "/v1/sessions").await.status, 200);
}

/// Number of connections that one client opens.
const MANY: usize = 5000;

#[tokio::test]
async fn thousands_of_connections_to_the_read_only_socket_do_not_keep_the_owner_out() {
    let open = Open::start().await;
    let (socket, mut held, mut refused) = (socket_of(&open.daemon), Vec::new(), 0);
    for number in 0..MANY {
        // A full queue refuses a connection at once, and the daemon takes the next ones meanwhile.
        match UnixStream::connect(&socket).await {
            Ok(stream) if held.len() < 400 => held.push(stream),
            Ok(_) => {}
            Err(_) => refused += 1,
        }
        if number % 500 == 0 {
            assert_eq!(open.daemon.client.get("/healthz").await.status, 200, "after {number}");
        }
    }
    assert!(refused < MANY, "no connection was accepted");
    // A further connection is refused. The daemon closes idle connections after a while, so the loop opens more.
    let ask = async || -> Option<String> {
        let mut stream = UnixStream::connect(&socket).await.ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    };
    let is_refused = |answer: &str| answer.starts_with("HTTP/1.1 503") && answer.contains("\"too-many-connections\"");
    within("the refusal", async {
        while !ask().await.is_some_and(|answer| is_refused(&answer)) {
            held.extend(UnixStream::connect(&socket).await.ok());
        }
    })
    .await;
    // The owner creates a session and uses it meanwhile.
    let session = open.daemon.session(&open.daemon.scripted(&[])).await;
    assert_eq!(session.turn("say hi").await.text, "hi");
    let page = open.daemon.client.get("/metrics").await;
    let text = String::from_utf8_lossy(&page.body).into_owned();
    assert!(text.contains("connections_refused_total{listener=\"read-only\"}"), "{text}");
    drop(held);
    // The socket answers again when they have gone.
    let is_answered = |answer: String| answer.starts_with("HTTP/1.1 200");
    within("an answer", async { while !ask().await.is_some_and(is_answered) {} }).await;
}

/// Becomes the daemon with two handed-over sockets, as systemd starts it. The read-only socket comes first.
const HAND_OVER: &str = "\
import os, socket, sys
def listen(path, fd):
    s = socket.socket(socket.AF_UNIX)
    s.bind(path)
    s.listen(16)
    os.dup2(s.fileno(), fd)
    os.set_inheritable(fd, True)
# The descriptors of the two sockets are moved out of the way of 3 and 4.
for fd in (3, 4):
    try: os.close(fd)
    except OSError: pass
hold = [os.open('/dev/null', os.O_RDONLY) for _ in range(4)]
listen(os.environ['READERS'], 3)
listen(os.environ['CONTROL'], 4)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2', LISTEN_FDNAMES='read-only:control')
os.execv(sys.argv[1], sys.argv[1:])
";

#[tokio::test]
async fn sockets_that_a_service_manager_hands_over_are_told_apart_by_their_names() {
    let mut daemon = Daemon::prepare();
    let (given, control) = (readers_directory(&daemon).join("given.sock"), daemon.client.socket().to_owned());
    daemon.set_environment([
        ("PATH", std::env::var("PATH").unwrap()),
        ("READERS", given.display().to_string()),
        ("CONTROL", control.display().to_string()),
    ]);
    daemon.enter(vec!["python3".to_owned(), "-c".to_owned(), HAND_OVER.to_owned()]);
    daemon.run().await;
    assert_eq!(over_socket(&given, "GET", "/v1/sessions").await.status, 200);
    assert_eq!(over_socket(&given, "POST", "/v1/reload").await.code(), code(Code::ScopeTooSmall));
    let view: Value = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
    assert_eq!(view["mistakes"].as_array().map_or(0, Vec::len), 0, "{view}");
    // The configuration may name the same socket, and opens another one beside it.
    for (socket, expected) in [(&given, &given), (&socket_of(&daemon), &socket_of(&daemon))] {
        daemon.configure(|config| {
            config.split("[control.read_only]").next().unwrap().to_owned() + &read_only(socket, own_group())
        });
        let view: Value = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
        assert_eq!(view["mistakes"].as_array().map_or(0, Vec::len), 0, "{view}");
        assert_eq!(over_socket(expected, "GET", "/v1/sessions").await.status, 200);
    }
    assert_eq!(over_socket(&given, "GET", "/v1/sessions").await.status, 200);
}
