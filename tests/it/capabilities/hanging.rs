//! A file system that does not answer.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use agentd_plugin_host::{Failure, Invocation, Liveness, Places};

use super::*;
use crate::harness::dead::Dead;
use crate::harness::{self, paths, require, until};

/// Reports whether a process waits for its next request.
fn is_idle(process: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stack")).unwrap_or_default().contains("pipe_read")
}

/// Returns the ids of the processes that run this keeper.
fn processes_of(keeper: &Path) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    all.filter(|process| {
        let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
        command.starts_with(keeper.as_os_str().as_encoded_bytes())
    })
    .filter_map(|process| process.file_name()?.to_str()?.parse().ok())
    .collect()
}

#[tokio::test]
async fn a_lookup_is_repeated_when_the_kept_process_ends_before_its_answer() {
    let mut here = Here::new();
    let keeper = here.at("keeper");
    std::os::unix::fs::symlink(paths::keeper(), &keeper).unwrap();
    here.machine = Machine::new(keeper.clone());
    let look = async || {
        // The daemon does not look at this file system itself.
        let seen = here.machine.path_states(vec![PathBuf::from("/proc")], later(), |_| true).await;
        seen.into_iter().next().and_then(agentd_host::capability::PathState::into_directory)
    };
    assert_eq!(look().await, Some("/proc".into()));
    let kept = match processes_of(&keeper)[..] {
        [kept] => nix::unistd::Pid::from_raw(kept),
        ref others => panic!("{others:?}"),
    };
    // The stopped process takes the request, and ends without an answer.
    nix::sys::signal::kill(kept, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let (again, ()) = tokio::join!(look(), async {
        nix::sys::signal::kill(kept, nix::sys::signal::Signal::SIGKILL).unwrap();
    });
    assert_eq!(again, Some("/proc".into()));
    assert!(!processes_of(&keeper).contains(&kept.as_raw()));
}

#[tokio::test]
async fn one_process_waits_for_the_next_lookup_and_ends_with_its_owner() {
    let mut here = Here::new();
    let keeper = here.at("keeper");
    std::os::unix::fs::symlink(paths::keeper(), &keeper).unwrap();
    here.machine = Machine::new(keeper.clone());
    std::fs::write(here.at("secret"), "1").unwrap();
    let read = async |name: &str| here.machine.read(&here.name(name), &here.places, &anything, later()).await;
    assert_eq!(read("secret").await, Ok(b"1".to_vec()));
    let kept = processes_of(&keeper);
    assert_eq!(kept.len(), 1);
    // The next lookup of a plugin and one of a session use the same process.
    assert!(matches!(read("none").await, Err(Failure::NotFound(_))));
    here.machine.path_states(vec![PathBuf::from("/proc")], later(), |_| true).await;
    assert_eq!(processes_of(&keeper), kept);
    // On a busy machine one process may serve all three.
    let two_wait = async {
        while processes_of(&keeper).len() != 2 {
            let (one, two, three) = tokio::join!(read("secret"), read("secret"), read("secret"));
            assert!(one.is_ok() && two.is_ok() && three.is_ok());
        }
    };
    harness::within("two processes wait", two_wait).await;
    here.machine = Machine::new(keeper.clone());
    until("none is left", || processes_of(&keeper).is_empty()).await;
}

#[tokio::test]
async fn a_file_system_that_may_hang_is_never_touched_by_the_daemon_itself() {
    if require::fuse().is_none() {
        return;
    }
    let here = Here::new();
    let mut dead = Dead::mount(here.at("dead"), "fuse", "dead", &[]);
    std::os::unix::fs::symlink("dead/x", here.at("link")).unwrap();
    let files = here.machine.mount_table().local_files();
    let states = ["dead", "dead/x", "link", "link/../x"].map(|path| files.state(&here.at(path)));
    assert_eq!(states, [None, None, None, None]);
    assert_eq!(dead.requests(), 0, "it was touched");
    dead.release();
    // The table is read again after the mount is gone.
    drop(dead);
    until("the directory is local again", || {
        here.machine.mount_table().local_files().state(&here.at("dead")).is_some()
    })
    .await;
}

#[tokio::test]
async fn a_dead_mount_costs_no_more_than_its_time_and_no_more_than_six_processes() {
    if require::fuse().is_none() {
        return;
    }
    let mut here = Here::new();
    let keeper = here.at("keeper");
    std::os::unix::fs::symlink(paths::keeper(), &keeper).unwrap();
    here.machine = Machine::new(keeper.clone());
    let mut dead = Dead::mount(here.at("dead"), "fuse", "dead", &[]);
    let eyes = || processes_of(&keeper).into_iter().filter(|process| !is_idle(*process)).count();
    let at = |name: &str| dead.path.join(name).display().to_string();
    let mounts = here.machine.mounts(later()).await.unwrap();
    let found =
        mounts.iter().find(|mounted| Path::new(&mounted.path) == dead.path).unwrap_or_else(|| panic!("{mounts:?}"));
    assert_eq!((found.kind.as_str(), found.source.as_str()), ("fuse", "dead"));

    let probe = async |path: String| {
        let begun = Instant::now();
        let seen = here.machine.probe(&path, &here.places, Duration::from_millis(300), later()).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        seen
    };
    let first = at("0");
    assert_eq!(probe(first.clone()).await, Ok(Liveness::Hangs));
    // Files and programs in this file system also hang. Files and programs elsewhere do not.
    let read = here.machine.read(&at("1"), &here.places, &anything, within(300)).await;
    assert!(matches!(&read, Err(Failure::TimedOut(text)) if text.contains(&at("1"))), "{read:?}");
    let inside = Places { cwd: Some(at("2")), ..Places::default() };
    let invocation = Invocation {
        program: "true".to_owned(),
        arguments: Vec::new(),
        environment: Vec::new(),
        directory: Some("{cwd}".to_owned()),
        input: Vec::new(),
    };
    let run = here.machine.run(invocation, &inside, &anything, within(300)).await;
    assert!(matches!(&run, Err(Failure::TimedOut(text)) if text.contains(&at("2"))), "{run:?}");
    assert!(matches!(probe("/".to_owned()).await, Ok(Liveness::Answers(device)) if device.contains(':')));
    assert!(matches!(probe(here.name("none")).await, Ok(Liveness::Error(_))));

    for name in 3..6 {
        assert_eq!(probe(at(&name.to_string())).await, Ok(Liveness::Hangs));
    }
    until("all of them are known to hang", || eyes() == 6).await;
    // A lookup of a path that is known to hang fails at once. For any other lookup of a plugin, no process is free.
    let full = here.machine.probe("/", &here.places, Duration::from_secs(5), later()).await;
    assert!(matches!(&full, Err(Failure::Unavailable(text)) if text.contains(&first)), "{full:?}");
    assert_eq!(probe(first).await, Ok(Liveness::Hangs));
    assert_eq!(eyes(), 6);
    // The directories of a session use other processes, so they are still looked up.
    let seen = here.machine.path_states(vec![PathBuf::from("/")], later(), |_| true).await;
    assert_eq!(seen.into_iter().next().and_then(agentd_host::capability::PathState::into_directory), Some("/".into()));

    dead.release();
    until("all of them end when they can", || eyes() == 0).await;
    let answers = here.machine.probe("/", &here.places, Duration::from_secs(30), later()).await;
    assert!(matches!(answers, Ok(Liveness::Answers(_))), "{answers:?}");
}

#[tokio::test]
async fn a_look_that_nobody_waits_for_is_ended() {
    let here = Here::new();
    // A name service's client may wait without a limit. A script that waits simulates it.
    let script = here.at("keeper");
    std::fs::write(
        &script,
        "#!/bin/sh\necho $$ > \"$(dirname \"$0\")/pid.new\"; \
         mv \"$(dirname \"$0\")/pid.new\" \"$(dirname \"$0\")/pid\"\nexec sleep 600\n",
    )
    .unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let machine = Machine::new(script);
    let look = machine.resolve("license.example", later());
    let begun = until("it looks", || here.at("pid").exists());
    tokio::select! {
        ended = look => panic!("{ended:?}"),
        () = begun => {}
    }
    let pid = std::fs::read_to_string(here.at("pid")).unwrap().trim().parse().unwrap();
    process::gone(&[pid]).await;
}

#[tokio::test]
async fn who_looks_ends_by_itself_when_nobody_is_left_to_end_it() {
    let start = || -> Child {
        Command::new(paths::keeper()).args(["look", "1"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut forgotten = start();
    let stdin = forgotten.stdin.take();
    let ended = tokio::task::spawn_blocking(move || forgotten.wait().unwrap()).await.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(nix::sys::signal::Signal::SIGALRM as i32));
    drop(stdin);
    let mut done = start();
    drop(done.stdin.take());
    assert!(done.wait().unwrap().success());
}

#[tokio::test]
async fn processes_are_counted_by_the_name_of_their_program() {
    let here = Here::new();
    let name = "agentd-counted-program";
    std::fs::copy("/bin/sleep", here.at(name)).unwrap();
    let count = async || here.machine.processes(name, later()).await.unwrap();
    assert_eq!(count().await, 0);
    let mut running: Vec<Child> = (0..3).map(|_| Command::new(here.at(name)).arg("600").spawn().unwrap()).collect();
    assert_eq!(count().await, 3);
    for process in &mut running {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(count().await, 0);
}
