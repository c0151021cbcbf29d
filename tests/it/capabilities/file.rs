//! Files that plugins read. The host reads only the file that it resolved and allowed.

use std::os::unix::fs::symlink;

use agentd_plugin_host::{Failure, FileKind};

use super::*;

impl Here {
    fn inside(&self) -> impl Fn(&str) -> bool + Send + Sync {
        let directory = self.path().to_owned();
        move |path: &str| Path::new(path).starts_with(&directory)
    }

    async fn read(&self, path: &str) -> Result<Vec<u8>, Failure> {
        self.machine.read(path, &self.places, &self.inside(), later()).await
    }
}

#[tokio::test]
async fn a_file_is_found_below_a_place_and_told_of_as_it_is() {
    let here = Here::new();
    std::fs::create_dir(here.at("d")).unwrap();
    std::fs::write(here.at("d/f"), b"content\xff").unwrap();
    symlink("d/f", here.at("l")).unwrap();
    for path in ["{cwd}/l", "{cwd}/d/f", &here.name("l")] {
        assert_eq!(here.read(path).await.unwrap(), b"content\xff");
    }
    let inspect = async |path| here.machine.inspect(path, &here.places, &here.inside(), later()).await.unwrap();
    let file = inspect("{cwd}/l").await;
    assert_eq!((file.path, file.kind, file.size), (here.name("d/f"), FileKind::File, 8));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(Duration::from_millis(file.modified).abs_diff(now) < Duration::from_mins(10), "{}", file.modified);
    let directory = inspect("{cwd}").await;
    assert_eq!(
        (directory.path, directory.kind, directory.size),
        (here.name("").trim_end_matches('/').to_owned(), FileKind::Directory, 0)
    );
    let entries = here.machine.entries("{cwd}", &here.places, &here.inside(), later()).await;
    assert_eq!(entries.unwrap(), ["d", "l"]);
}

#[tokio::test]
async fn no_way_leads_out_of_what_is_allowed() {
    let here = Here::new();
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().canonicalize().unwrap().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    symlink(&secret, here.at("link")).unwrap();
    symlink(outside.path(), here.at("directory")).unwrap();
    symlink(outside.path().join("none"), here.at("dangling")).unwrap();
    for path in [
        "{cwd}/link",
        "{cwd}/directory/secret",
        "{cwd}/directory/../secret",
        &format!("{{cwd}}/..{}", secret.display()),
        &secret.display().to_string(),
        // The answer must not reveal whether a forbidden file exists.
        "{cwd}/directory/none",
        &outside.path().join("none").display().to_string(),
    ] {
        let refused = here.read(path).await;
        assert!(matches!(&refused, Err(Failure::NotGranted(_))), "{path}: {refused:?}");
    }
    let entries = here.machine.entries("{cwd}/directory", &here.places, &here.inside(), later()).await;
    assert!(matches!(entries, Err(Failure::NotGranted(_))), "{entries:?}");
    for path in ["{cwd}/none", "{cwd}/link/below", "{cwd}/dangling"] {
        let missing = here.read(path).await;
        assert!(matches!(missing, Err(Failure::NotFound(_) | Failure::NotGranted(_))), "{path}: {missing:?}");
    }
    assert!(matches!(here.read("{cwd}/none").await, Err(Failure::NotFound(_))));
}

type Swap = fn(&Here, &Path);

#[tokio::test]
async fn what_takes_a_files_place_after_it_was_allowed_is_not_read() {
    let here = Here::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("f"), "secret").unwrap();
    let steps: [(&str, Swap); 2] = [
        ("the file", |here, outside| {
            std::fs::remove_file(here.at("d/f")).unwrap();
            symlink(outside.join("f"), here.at("d/f")).unwrap();
        }),
        ("its directory", |here, outside| {
            std::fs::rename(here.at("d"), here.at("aside")).unwrap();
            symlink(outside, here.at("d")).unwrap();
        }),
    ];
    for (what, swap) in steps {
        let _ = std::fs::remove_dir_all(here.at("d"));
        std::fs::create_dir_all(here.at("d")).unwrap();
        std::fs::write(here.at("d/f"), "harmless").unwrap();
        let swapping = |path: &str| {
            assert_eq!(path, here.name("d/f"));
            swap(&here, outside.path());
            true
        };
        let read = here.machine.read("{cwd}/d/f", &here.places, &swapping, later()).await;
        assert!(matches!(read, Err(Failure::Unavailable(_))), "{what}: {read:?}");
    }
}

#[tokio::test]
async fn what_is_no_regular_file_is_refused_at_once() {
    let here = Here::new();
    nix::unistd::mkfifo(&here.at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(here.at("socket")).unwrap();
    for path in ["{cwd}/pipe", "{cwd}/socket", "{cwd}", "/dev/zero", "/dev/tty"] {
        let read = here.machine.read(path, &here.places, &anything, later()).await;
        assert!(matches!(read, Err(Failure::Unavailable(_))), "{path}: {read:?}");
    }
    let metadata = here.machine.inspect("{cwd}/pipe", &here.places, &anything, later()).await.unwrap();
    assert_eq!(metadata.kind, FileKind::Other);
    let entries = here.machine.entries("{cwd}/pipe", &here.places, &anything, later()).await;
    assert!(matches!(entries, Err(Failure::Unavailable(_))), "{entries:?}");
}

#[tokio::test]
async fn more_than_is_handed_over_is_too_large() {
    let here = Here::new();
    std::fs::write(here.at("most"), vec![0; 1 << 20]).unwrap();
    std::fs::write(here.at("more"), vec![0; (1 << 20) + 1]).unwrap();
    std::fs::File::create(here.at("sparse")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(here.read("{cwd}/most").await.unwrap().len(), 1 << 20);
    for path in ["{cwd}/more", "{cwd}/sparse"] {
        assert!(matches!(here.read(path).await, Err(Failure::TooLarge(_))), "{path}");
    }
    std::fs::create_dir(here.at("d")).unwrap();
    for n in 0..=10_000 {
        std::fs::write(here.at(&format!("d/{n}")), "").unwrap();
    }
    let entries = async || here.machine.entries("{cwd}/d", &here.places, &here.inside(), later()).await;
    assert!(matches!(entries().await, Err(Failure::TooLarge(_))));
    std::fs::remove_file(here.at("d/0")).unwrap();
    assert_eq!(entries().await.unwrap().len(), 10_000);
}
