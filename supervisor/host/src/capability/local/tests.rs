//! Tests with a mount table that marks directories of a real file system as served.

use std::os::unix::fs::symlink;

use super::*;

fn mounted(path: &Path, kind: &str, source: &str) -> MountEntry {
    MountEntry {
        path: path.display().to_string(),
        source: source.to_owned(),
        kind: kind.to_owned(),
        options: Vec::new(),
        device: String::new(),
    }
}

/// Returns a tree with a served directory `net`, and the files of which the daemon may look at the rest.
fn tree() -> (tempfile::TempDir, PathBuf, LocalFiles) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    for path in ["d/e", "net/x", "net/local"] {
        std::fs::create_dir_all(root.join(path)).unwrap();
    }
    std::fs::write(root.join("d/f"), "").unwrap();
    let table = vec![
        mounted(Path::new("/"), "ext4", "/dev/vda"),
        mounted(&root.join("net"), "nfs4", "server:/"),
        mounted(&root.join("net/local"), "tmpfs", "tmpfs"),
    ];
    (directory, root, LocalFiles(Arc::new(table)))
}

#[test]
fn local_paths_are_examined_as_a_lookup_process_examines_them() {
    let (_directory, root, files) = tree();
    let at = |path: &str| root.join(path);
    symlink("e", at("d/l")).unwrap();
    symlink(at("d"), at("m")).unwrap();
    symlink("../d/f", at("d/file")).unwrap();
    symlink("loop", at("loop")).unwrap();
    let directory = |path: &str| Some(PathState::Directory { path: at(path), usable: true });
    let file = || Some(PathState::File { path: at("d/f"), usable: false });
    for (path, is) in [
        ("d/e", directory("d/e")),
        ("d/./e//", directory("d/e")),
        ("m/l", directory("d/e")),
        ("m/l/../../d", directory("d")),
        ("d/f", file()),
        ("m/file", file()),
        ("d/none", Some(PathState::Absent)),
        ("d/f/x", Some(PathState::Absent)),
        ("m/file/x", Some(PathState::Absent)),
        ("loop", None),
    ] {
        assert_eq!(files.state(&at(path)), is, "{path}");
    }
    assert_eq!(files.state(Path::new("relative")), None);
}

#[test]
fn neither_a_path_nor_a_link_leads_the_daemon_to_a_served_file_system() {
    let (_directory, root, files) = tree();
    let at = |path: &str| root.join(path);
    symlink(at("net/x"), at("link")).unwrap();
    symlink("../net", at("d/up")).unwrap();
    symlink("link", at("twice")).unwrap();
    for path in ["net", "net/x", "net/local", "net/none", "link", "d/up", "d/up/x", "twice", "d/../net", "link/../.."] {
        assert_eq!(files.state(&at(path)), None, "{path}");
        assert!(!files.has(&at(path)), "{path}");
    }
    assert!(files.has(&at("d/none")) && files.has(&at("network")));
}

#[test]
fn only_known_types_on_devices_of_this_machine_count_as_local() {
    let root = |kind: &str, source: &str| LocalFiles(Arc::new(vec![mounted(Path::new("/"), kind, source)]));
    for (kind, source, local) in [
        ("ext4", "/dev/vda", true),
        ("tmpfs", "tmpfs", true),
        ("ext4", "/dev/nbd0p1", false),
        ("ext4", "/dev/loop7", false),
        ("overlay", "overlay", false),
        ("fuse.sshfs", "host:/", false),
        ("proc", "proc", false),
    ] {
        assert_eq!(root(kind, source).state(Path::new("/")).is_some(), local, "{kind} {source}");
    }
    assert_eq!(LocalFiles::default().state(Path::new("/")), None, "without a table nothing is local");
}

#[test]
fn the_table_is_read_again_only_after_a_change() {
    let mounts = Mounts::default();
    let first = mounts.current().unwrap();
    assert!(!first.is_empty());
    // Other tests of this process mount nothing.
    assert!(Arc::ptr_eq(&first, &mounts.current().unwrap()));
}
