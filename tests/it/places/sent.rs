//! The keeper that a place takes along: sent over ssh, copied by Slurm, and known by its SHA-256.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use agentd_api::session::Phase;
use nix::sys::signal::Signal;

use super::resident::{counts_through_the_death_of_the_workstation, tree};
use super::sessions::{daemon, spec, whole_life};
use crate::harness::ctl::ctl;
use crate::harness::slurm::{Options, Slurm};
use crate::harness::sshd::{Far, Login};
use crate::harness::static_keeper::static_keeper;
use crate::harness::{Daemon, paths, process, require, until};

fn ssh(far: &Far, file: &Path) -> String {
    let (config, file) = (far.config().display().to_string(), file.display().to_string());
    format!("kind = \"ssh\"\nhost = \"lab\"\nconfig = {config:?}\nkeeper_file = {file:?}")
}

fn keepers(far: &Far) -> PathBuf {
    far.home().join(".cache/agentd/keepers")
}

/// Returns the stored keepers of a machine, by name.
fn stored(far: &Far) -> Vec<PathBuf> {
    let mut stored: Vec<PathBuf> = fs::read_dir(keepers(far))
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path().join("agentd-keeper"))
        .filter(|file| file.exists())
        .collect();
    stored.sort();
    stored
}

/// Creates a session, which must fail, and returns its message.
async fn failure(daemon: &Daemon) -> String {
    let session = daemon.create(&spec(daemon)).await;
    session.wait_for_phase(Phase::Failed).await.status.message.unwrap_or_default()
}

#[tokio::test]
async fn a_machine_without_a_keeper_gets_it_once() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    fs::write(far.home().join(".bashrc"), "echo Welcome; echo agentd-keeper-wanted\n").unwrap();
    // Keepers of earlier versions, and the times at which they came.
    for (day, name) in ["aa", "bb", "cc"].into_iter().enumerate() {
        let old = keepers(&far).join(name);
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("agentd-keeper"), "").unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * (day as u64 + 1));
        File::open(&old).unwrap().set_modified(time).unwrap();
    }
    let mut daemon = daemon(&ssh(&far, &static_keeper())).await;
    whole_life(&mut daemon, "far").await;
    let kept = stored(&far);
    let own: Vec<&PathBuf> = kept.iter().filter(|file| file.metadata().unwrap().len() > 0).collect();
    assert!(kept.len() == 3 && !kept.iter().any(|file| file.starts_with(keepers(&far).join("aa"))), "{kept:?}");
    let [own] = *own else { panic!("{kept:?}") };
    assert!(fs::read(own).unwrap() == fs::read(static_keeper()).unwrap());
    assert_eq!(own.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    // The session had two launches, and two looks at the environment came before. One of them has brought the file.
    let brought = own.metadata().unwrap().ino();
    let session = daemon.session(&spec(&daemon)).await;
    assert_eq!(session.turn("say hello").await.text, "hello");
    session.stop().await;
    assert_eq!(own.metadata().unwrap().ino(), brought);
    until("nothing is left on the machine", || far.left().is_empty()).await;
}

#[tokio::test]
async fn an_agent_whose_keeper_was_sent_stays_on_its_machine() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let place = format!("{}\nlevel = \"resident\"\nsilence = \"2s\"\npoll = \"300ms\"", ssh(&far, &static_keeper()));
    let mut daemon = daemon(&place).await;
    counts_through_the_death_of_the_workstation(&mut daemon, &far.home().join(".local/state")).await;
    until("nothing is left on the machine", || far.left().is_empty()).await;
}

#[tokio::test]
async fn an_agent_is_not_forgotten_if_its_keeper_is_deleted() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let place = format!("{}\nlevel = \"resident\"\nsilence = \"2s\"\npoll = \"300ms\"", ssh(&far, &static_keeper()));
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    session.turn("say first").await;
    fs::remove_dir_all(keepers(&far)).unwrap();
    let (_, said, _) = ctl(&daemon, &["place", "check", "farm"]).await.parts();
    assert!(said.contains("states   FAILED") && said.contains("agentd-keeper was deleted from"), "{said}");
    // The check has sent it again.
    fs::remove_dir_all(keepers(&far)).unwrap();
    let keeper = session.view().await.status.keeper_pid.unwrap();
    let clients = tree(keeper).into_iter().filter(|pid| process::name(*pid) == "ssh");
    process::signal_each(&clients.collect::<Vec<_>>(), Signal::SIGKILL);
    assert_eq!(session.turn("say second").await.text, "second");
    assert_eq!((session.view().await.status.launches, stored(&far).len()), (1, 1));
    session.stop().await;
    until("nothing is left on the machine", || far.left().is_empty()).await;
}

#[tokio::test]
async fn the_keeper_comes_through_every_login_shell() {
    for shell in ["/usr/bin/fish", "/bin/tcsh", "/bin/csh", "/usr/bin/zsh", "/bin/ksh", "/bin/dash"] {
        let name = shell.rsplit('/').next().unwrap();
        let Some(shell) = require::shell(name, &[shell]) else { continue };
        let command = format!("ForceCommand {} -c \"$SSH_ORIGINAL_COMMAND\"", shell.display());
        let Some(far) = Far::boot(Login::Ordinary, &command).await else { return };
        let daemon = daemon(&ssh(&far, &static_keeper())).await;
        for _ in 0..2 {
            let (status, said, error) = ctl(&daemon, &["place", "check", "farm"]).await.parts();
            assert!(status == Some(0) && said.contains("answer   ok"), "{}: {said}{error}", shell.display());
        }
        assert_eq!(stored(&far).len(), 1, "{}", shell.display());
    }
}

#[tokio::test]
async fn a_keeper_with_another_content_starts_no_agent() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let daemon = daemon(&ssh(&far, &static_keeper())).await;
    let (status, said, error) = ctl(&daemon, &["place", "check", "farm"]).await.parts();
    assert_eq!(status, Some(0), "{said}{error}");
    // This one has the same version.
    let there = stored(&far).pop().unwrap();
    fs::remove_file(&there).unwrap();
    fs::copy(paths::keeper(), &there).unwrap();
    let message = failure(&daemon).await;
    assert!(message.contains("agentd-keeper there has the SHA-256 ") && message.contains("host far"), "{message}");
    fs::remove_file(&there).unwrap();
    let session = daemon.session(&spec(&daemon)).await;
    assert_eq!(session.turn("say repaired").await.text, "repaired");
    session.stop().await;
}

#[tokio::test]
async fn a_file_that_is_no_keeper_is_not_stored() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keeper");
    let daemon = daemon(&ssh(&far, &file)).await;
    let message = failure(&daemon).await;
    assert!(message.contains(&format!("cannot read keeper_file {file:?} of place \"farm\"")), "{message}");

    fs::write(&file, "#!/bin/sh\necho ba7816bf\n").unwrap();
    let message = failure(&daemon).await;
    assert!(message.contains("agentd-keeper cannot be stored in "), "{message}");
    let left: Vec<PathBuf> = fs::read_dir(keepers(&far)).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.len() == 1 && fs::read_dir(&left[0]).unwrap().next().is_none(), "{left:?}");
}

#[tokio::test]
async fn a_home_that_cannot_be_written_is_named() {
    let Some(far) = Far::boot(Login::Ordinary, "").await else { return };
    fs::set_permissions(far.home(), Permissions::from_mode(0o555)).unwrap();
    let daemon = daemon(&ssh(&far, &static_keeper())).await;
    let (status, said, _) = ctl(&daemon, &["place", "check", "farm"]).await.parts();
    let expected = format!("agentd-keeper cannot be stored in {}", far.home().display());
    assert!(status != Some(0) && said.contains(&expected) && said.contains("Permission denied"), "{said}");
}

#[tokio::test]
async fn slurm_copies_the_keeper_to_the_node() {
    let Some(slurm) = Slurm::boot(Options::default()).await else { return };
    let (conf, file) = (slurm.conf().display().to_string(), static_keeper().display().to_string());
    let daemon = daemon(&format!(
        "kind = \"slurm\"\nkeeper_file = {file:?}\npoll = \"300ms\"\nenv = {{ SLURM_CONF = {conf:?} }}"
    ))
    .await;
    let session = daemon.session(&spec(&daemon)).await;
    assert_eq!(session.turn("say hello").await.text, "hello");
    session.stop().await;
    slurm.empty().await;
}

#[tokio::test]
async fn an_installed_keeper_must_have_the_configured_digest() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let digest = Command::new(paths::keeper()).args(["enter", "digest"]).output().unwrap();
    let own = String::from_utf8(digest.stdout).unwrap().trim_end().to_owned();
    let installed = super::sessions::ssh(&far, paths::keeper());
    for (digest, is_right) in [(own.to_uppercase(), true), ("5a".repeat(32), false)] {
        let daemon = daemon(&format!("{installed}\nkeeper_sha256 = {digest:?}")).await;
        let (status, said, error) = ctl(&daemon, &["place", "check", "farm"]).await.parts();
        assert_eq!(status == Some(0), is_right, "{said}{error}");
        assert_eq!(said.contains(&format!("has the SHA-256 {own}")), !is_right, "{said}{error}");
    }
}
