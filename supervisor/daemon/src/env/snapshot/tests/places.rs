//! Snapshots of directories.

use agentd_api::environment::SnapshotScope;

use super::super::place::Outcome;
use super::*;

const HOOK: &str = "eval \"$(direnv hook sh)\"";

impl Lab {
    fn project(&self) -> PathBuf {
        let directory = self.directory.path().join("project");
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    async fn at(&self, directory: &Path, scope: Option<SnapshotScope>) -> Taken {
        let place = Place { directory: directory.to_owned(), scope };
        self.snapshots.get_at(&place, soon()).await.unwrap()
    }
}

#[tokio::test]
async fn a_directory_has_a_snapshot_of_its_own_where_a_hook_finds_a_file_or_the_configuration_says_so() {
    let lab = Lab::new();
    let project = lab.project();
    assert_eq!(lab.at(&project, None).await.place, Outcome::Home, "no hook");
    fs::write(&lab.played.rc, HOOK).unwrap();
    assert_eq!(lab.at(&project, None).await.place, Outcome::Home, "no file");
    fs::write(project.join(".envrc"), "export A=1").unwrap();
    assert_eq!(lab.at(&project, None).await.place, Outcome::There(project.clone()));
    let below = project.join("src/deep");
    fs::create_dir_all(&below).unwrap();
    assert_eq!(lab.at(&below, None).await.place, Outcome::There(below.clone()), "the file is above");
    assert_eq!(lab.at(&project, Some(SnapshotScope::User)).await.place, Outcome::Home);
    let plain = lab.directory.path().join("plain");
    fs::create_dir(&plain).unwrap();
    assert_eq!(lab.at(&plain, None).await.place, Outcome::Home);
    assert_eq!(lab.at(&plain, Some(SnapshotScope::Directory)).await.place, Outcome::There(plain));
    assert_eq!(lab.at(lab.directory.path(), Some(SnapshotScope::Directory)).await.place, Outcome::Home, "the home");
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
    lab.snapshots.refresh(soon()).await.unwrap();
    lab.at(&project, scope).await;
    assert_eq!(lab.runs(), 9, "a fresh one was asked for");
}

#[tokio::test]
async fn the_users_own_snapshot_is_given_and_said_where_the_directorys_cannot_be_had() {
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
async fn only_so_many_directories_are_held_and_the_status_names_them() {
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
