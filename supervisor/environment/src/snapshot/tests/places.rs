//! Tests snapshots of directories.

use agentd_api::environment::SnapshotScope;

use super::super::place::VisitOutcome;
use super::*;

const HOOK: &str = "eval \"$(direnv hook sh)\"";

impl Lab {
    fn project(&self) -> PathBuf {
        let directory = self.directory.path().join("project");
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    async fn at(&self, directory: &Path, scope: Option<SnapshotScope>) -> Snapshot {
        let place = SnapshotPlace { directory: directory.to_owned(), scope };
        self.snapshots.get_at(&place, soon()).await.unwrap()
    }
}

#[tokio::test]
async fn a_directory_has_its_own_snapshot_if_a_hook_finds_a_file_or_if_configured() {
    let lab = Lab::new();
    let project = lab.project();
    assert_eq!(lab.at(&project, None).await.place, VisitOutcome::Home, "no hook");
    fs::write(&lab.played.rc, HOOK).unwrap();
    assert_eq!(lab.at(&project, None).await.place, VisitOutcome::Home, "no file");
    fs::write(project.join(".envrc"), "export A=1").unwrap();
    assert_eq!(lab.at(&project, None).await.place, VisitOutcome::There(project.clone()));
    let below = project.join("src/deep");
    fs::create_dir_all(&below).unwrap();
    assert_eq!(lab.at(&below, None).await.place, VisitOutcome::There(below.clone()), "the file is above");
    assert_eq!(lab.at(&project, Some(SnapshotScope::User)).await.place, VisitOutcome::Home);
    let plain = lab.directory.path().join("plain");
    fs::create_dir(&plain).unwrap();
    assert_eq!(lab.at(&plain, None).await.place, VisitOutcome::Home);
    assert_eq!(lab.at(&plain, Some(SnapshotScope::Directory)).await.place, VisitOutcome::There(plain));
    assert_eq!(
        lab.at(lab.directory.path(), Some(SnapshotScope::Directory)).await.place,
        VisitOutcome::Home,
        "the home"
    );
}

#[tokio::test]
async fn a_directory_is_captured_again_when_its_files_or_the_start_up_files_change() {
    let lab = Lab::new();
    let (project, scope) = (lab.project(), Some(SnapshotScope::Directory));
    lab.at(&project, scope).await;
    lab.at(&project, scope).await;
    assert_eq!(lab.runs(), 2, "the user's and the directory's");
    for (n, file) in [".envrc", ".nvmrc", "mise.toml"].iter().enumerate() {
        fs::write(project.join(file), "x").unwrap();
        lab.at(&project, scope).await;
        lab.at(&project, scope).await;
        assert_eq!(lab.runs(), 3 + n as u64, "{file}");
    }
    fs::write(project.join("main.c"), "x").unwrap();
    lab.at(&project, scope).await;
    assert_eq!(lab.runs(), 5);
    fs::write(&lab.played.rc, "two").unwrap();
    let taken = lab.at(&project, scope).await;
    assert_eq!(lab.runs(), 7, "both");
    assert!(taken.variables.contains(&("RC".to_owned(), b"two".to_vec())));
    lab.snapshots.recapture(soon()).await.unwrap();
    lab.at(&project, scope).await;
    assert_eq!(lab.runs(), 9, "a fresh capture was requested");
}

#[tokio::test]
async fn the_users_snapshot_is_used_and_reported_if_the_directorys_capture_fails() {
    let lab = Lab::new();
    let project = lab.project();
    lab.snapshots.get(soon()).await.unwrap();
    *lab.played.behaviour.lock().unwrap() = Behaviour::Weak;
    let taken = lab.at(&project, Some(SnapshotScope::Directory)).await;
    let (reason, message) = taken.place.warning().unwrap();
    assert!(reason == "DirectoryNotEntered" && message.contains("without being interactive"), "{message}");
    assert!(!message.contains("hunter22"), "{message}");
}

#[tokio::test]
async fn the_number_of_directory_snapshots_is_bounded_and_the_status_lists_them() {
    let lab = Lab::new();
    let scope = Some(SnapshotScope::Directory);
    for n in 0..70 {
        let directory = lab.project().join(n.to_string());
        fs::create_dir(&directory).unwrap();
        lab.at(&directory, scope).await;
    }
    let list = lab.snapshots.list().await.login_shells;
    let of_directories: Vec<_> = list.iter().filter_map(|view| view.directory.clone()).collect();
    assert_eq!((list.len(), of_directories.len()), (65, 64));
    assert!(of_directories.contains(&lab.project().join("69")) && !of_directories.contains(&lab.project().join("0")));
}
