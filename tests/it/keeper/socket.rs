//! The keeper's socket, and keepers that cannot hold their session.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::harness::paths;

#[test]
fn a_second_keeper_of_a_session_is_refused() {
    let (keeper, _daemon) = Keeper::with(script("read x"));
    let output = hold(Command::new(paths::keeper()), &keeper.directory()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("session \"s1\" is held already"), "{message}");
    keeper.connect();
}

#[test]
fn a_keeper_listens_although_its_runtime_directory_is_removed_at_the_same_moment() {
    let run = tempfile::tempdir().unwrap();
    let directory_of_socket = run.path().join("s1");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let _ = std::fs::remove_dir_all(&directory_of_socket);
            }
        });
        let listens = |_| {
            let state = state();
            let mut keeper = hold_at(Command::new(paths::keeper()), &directory(&state), &directory_of_socket.join("k"))
                .spawn()
                .unwrap();
            // The keeper closes stdout and stderr when it listens. If it cannot listen, it writes the reason to stderr.
            keeper.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
            let mut said = String::new();
            keeper.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            keeper.kill().unwrap();
            keeper.wait().unwrap();
            said
        };
        let said: Vec<_> = (0..200).map(listens).filter(|said| !said.is_empty()).collect();
        over.store(true, Ordering::Release);
        assert_eq!(said, [""; 0]);
    });
}

#[test]
fn a_socket_path_that_is_too_long_is_said() {
    let state = tempfile::tempdir().unwrap();
    let socket = state.path().join("x".repeat(120));
    let output = Command::new(paths::keeper())
        .args(["hold", "--session", "s1", "--launch", "1", "--state"])
        .args([state.path().as_os_str(), OsStr::new("--socket"), socket.as_os_str()])
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains("this system allows"), "{message}");
}
