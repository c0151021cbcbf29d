//! Sockets and addresses that agentctl does not trust. It sends nothing to a socket that another user could have
//! created, and it sends its token only to this machine.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::libc;

use crate::harness::ctl::{Said, end_of};
use crate::harness::{paths, require, within};

/// User other than the daemon's user.
const OTHER: u32 = 4712;

async fn agentctl(arguments: &[&str], socket: &Path) -> Said {
    let mut command = Command::new(paths::agentctl());
    command.env_clear().env("AGENTD_SOCKET", socket).env("TOKEN", "a-terminals-own").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_of(command.spawn().expect("it can be executed")).await
}

/// Returns a socket on which another user listens.
#[allow(unsafe_code, reason = "nix changes the user of every thread, and here one thread is to be another user's")]
fn listen_as_another(socket: &Path) -> UnixListener {
    let socket = socket.to_owned();
    let thread = std::thread::spawn(move || {
        // SAFETY: the call takes no pointer, and changes this thread alone, which ends after it.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) };
        assert_eq!(changed, 0);
        UnixListener::bind(socket).expect("the directory is this user's")
    });
    let listener = thread.join().expect("no panic");
    listener.set_nonblocking(true).expect("it can be set");
    listener
}

/// Returns all bytes from the connections that were made.
fn received(listener: &UnixListener) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => drop(stream.read_to_end(&mut all).expect("it can be read")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_socket_that_another_user_made_or_could_make() {
    let Some(()) = require::root("a socket of another user") else { return };
    let root = tempfile::Builder::new().prefix("agentd-").tempdir().unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    let directory = root.path().join("agentd-1000");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(OTHER), Some(OTHER)).unwrap();
    let socket = directory.join("control.sock");
    let listener = listen_as_another(&socket);
    let place = socket.display().to_string();
    // The cases are a directory of another user, a directory that all users can write, and a listener of another user.
    for (owner, mode, reason) in [
        (OTHER, 0o700, format!("belongs to user {OTHER}")),
        (0, 0o777, "users other than its owner".to_owned()),
        (0, 0o755, format!("user {OTHER} listens there")),
    ] {
        chown(&directory, Some(owner), None).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        for arguments in [&["ls"][..], &["new", "--dir", "/tmp"], &["--no-start", "ls"]] {
            let said = agentctl(arguments, &socket).await;
            let told = said.err.contains(&place) && said.err.contains(&reason) && said.err.contains("hint: ");
            assert!(said.status == Some(3) && told, "{arguments:?}: {said:?}");
        }
        assert_eq!(received(&listener), b"", "{reason}");
    }
}

#[tokio::test]
async fn the_token_is_not_sent_to_another_machine() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let token = token.display().to_string();
    // Addresses for documentation (RFC 5737, RFC 3849), which no machine has.
    for url in ["http://192.0.2.1:7345", "http://[2001:db8::1]:7345", "http://0.0.0.0:7345"] {
        let arguments = ["--url", url, "--token-file", &token, "ls"];
        let said = within("it is refused at once", agentctl(&arguments, Path::new("/nowhere"))).await;
        assert!(said.status == Some(3) && said.err.contains("is not this machine"), "{url}: {said:?}");
    }
}
