//! Tests of lookups.

use std::os::unix::fs::symlink;

use super::*;

fn after(path: &Path, look: LookupRequest) -> LookupAnswer {
    let mut resolved = path.to_owned();
    answer(look, &mut resolved).unwrap_or_else(|Failure(why, text)| LookupAnswer::Not { why, text })
}

fn why(looked: &LookupAnswer) -> Option<FailureReason> {
    if let LookupAnswer::Not { why, .. } = looked { Some(*why) } else { None }
}

#[test]
fn a_file_is_resolved_and_then_read_up_to_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
    std::fs::write(at("f"), b"12345\xff").unwrap();
    symlink(at("f"), at("l")).unwrap();
    let mut resolved = PathBuf::new();
    let looked = answer(LookupRequest::Resolve(at("l").as_os_str().into()), &mut resolved).ok().unwrap();
    assert_eq!((looked, &resolved), (LookupAnswer::Path(at("f").as_os_str().into()), &at("f")));
    assert_eq!(after(&at("f"), LookupRequest::Read { most: 6 }), LookupAnswer::Content(b"12345\xff".to_vec().into()));
    assert_eq!(why(&after(&at("f"), LookupRequest::Read { most: 5 })), Some(FailureReason::TooLarge));
    assert!(matches!(
        after(&at("f"), LookupRequest::Inspect),
        LookupAnswer::Metadata(FileInfo { kind: Kind::File, size: 6, modified: 1.. })
    ));
    std::fs::create_dir(at("d")).unwrap();
    symlink(at("d"), at("m")).unwrap();
    let absent = after(Path::new(""), LookupRequest::Resolve(at("m/x/y").as_os_str().into()));
    let LookupAnswer::Absent { path, why: FailureReason::NotFound, .. } = absent else { panic!("{absent:?}") };
    assert_eq!(path, at("d/x/y").as_os_str().into());
    assert_eq!(why(&after(&at("f"), LookupRequest::Entries { most: 1 })), Some(FailureReason::Unusable));
    let names = ["d", "f", "l", "m"].map(Into::into).to_vec();
    assert_eq!(after(&at(""), LookupRequest::Entries { most: 4 }), LookupAnswer::Names(names));
    assert_eq!(why(&after(&at(""), LookupRequest::Entries { most: 3 })), Some(FailureReason::TooLarge));
}

#[test]
fn directories_are_listed_by_the_beginnings_of_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["b", "ab", "aa", ".a"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::fs::write(at("a-file"), "").unwrap();
    symlink(at("b"), at("a-link")).unwrap();
    symlink(at("none"), at("a-dead-link")).unwrap();
    let listed = |prefix: &str, most| {
        let (path, prefix) = (directory.path().as_os_str().into(), prefix.as_bytes().to_vec().into());
        match after(Path::new(""), LookupRequest::Directories { path, prefix, most }) {
            LookupAnswer::Directories { names, is_cut } => {
                let text = |name: &ByteString| String::from_utf8(name.0.clone()).unwrap();
                (names.iter().map(text).collect::<Vec<_>>().join(" "), is_cut)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(listed("", 9), ("a-link aa ab b".to_owned(), false));
    assert_eq!(listed("a", 3), ("a-link aa ab".to_owned(), false));
    assert_eq!(listed("a", 2), ("a-link aa".to_owned(), true));
    assert_eq!(listed(".", 2), (".a".to_owned(), false));
    assert_eq!(listed("c", 2), (String::new(), false));
    let path = at("a-file").as_os_str().into();
    let not = after(Path::new(""), LookupRequest::Directories { path, prefix: Vec::new().into(), most: 1 });
    assert_eq!(why(&not), Some(FailureReason::NotFound));
}

#[test]
fn a_lookup_finds_nothing_of_the_lookup_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("f");
    std::fs::write(&file, "secret").unwrap();
    let begin = || LookupRequest::Begin { seconds: 60 };
    let resolve = LookupRequest::Resolve(file.as_os_str().into());
    let read = || LookupRequest::Read { most: 9 };
    let requests = [begin(), resolve, read(), begin(), read(), LookupRequest::Inspect];
    let asked: Vec<u8> = requests.iter().flat_map(|request| frame::encode(request).unwrap()).collect();
    let mut output = Vec::new();
    serve(60, &asked[..], &mut output).unwrap();
    let mut output = &output[..];
    let answers: Vec<LookupAnswer> = std::iter::from_fn(|| frame::read(&mut output).unwrap()).collect();
    assert_eq!(
        answers[..2],
        [LookupAnswer::Path(file.as_os_str().into()), LookupAnswer::Content(b"secret".to_vec().into())]
    );
    assert_eq!(answers[2..].iter().map(why).collect::<Vec<_>>(), [Some(FailureReason::NotFound); 2]);
}

#[test]
fn a_link_that_took_the_files_place_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
    std::fs::create_dir(at("d")).unwrap();
    std::fs::write(at("d/f"), "secret").unwrap();
    symlink(at("d/f"), at("f")).unwrap();
    symlink(at("d"), at("e")).unwrap();
    for (swapped, look) in [
        (at("f"), LookupRequest::Read { most: 9 }),
        (at("e/f"), LookupRequest::Read { most: 9 }),
        (at("e"), LookupRequest::Entries { most: 9 }),
        (at("f"), LookupRequest::Inspect),
    ] {
        assert_eq!(why(&after(&swapped, look)), Some(FailureReason::Changed), "{}", swapped.display());
    }
}

#[test]
fn a_pipe_and_a_device_are_refused_without_being_opened() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().canonicalize().unwrap().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&pipe, Path::new("/dev/zero")] {
        assert_eq!(why(&after(path, LookupRequest::Read { most: 9 })), Some(FailureReason::Unusable));
        assert!(matches!(
            after(path, LookupRequest::Inspect),
            LookupAnswer::Metadata(FileInfo { kind: Kind::Other, .. })
        ));
    }
}

#[test]
fn a_file_of_reported_size_zero_is_read_to_its_end() {
    let status = Path::new("/proc/1/status");
    if !status.exists() {
        // This system has no such files.
        return;
    }
    let LookupAnswer::Content(text) = after(status, LookupRequest::Read { most: 1 << 20 }) else { panic!("not read") };
    assert!(text.display().contains("Pid:\t1\n"), "{text:?}");
}

#[test]
fn a_program_is_the_first_candidate_that_exists() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
    let look = |names: &[PathBuf]| {
        after(Path::new(""), LookupRequest::Program(names.iter().map(|path| path.as_os_str().into()).collect()))
    };
    symlink("/bin/sh", at("link")).unwrap();
    std::fs::write(at("text"), "").unwrap();
    let path = Path::new("/bin/sh").canonicalize().unwrap();
    assert_eq!(
        look(&[at("none"), at("link"), at("text")]),
        LookupAnswer::Program { named: at("link").as_os_str().into(), path: path.as_os_str().into() }
    );
    assert_eq!(why(&look(&[at("text"), at("link")])), Some(FailureReason::Unusable));
    assert_eq!(why(&look(&[at("none"), at("text/x")])), Some(FailureReason::NotFound));
}

#[test]
fn a_place_is_the_target_of_its_links() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
    let look = |path: PathBuf| after(Path::new(""), LookupRequest::Place(path.as_os_str().into()));
    std::fs::create_dir(at("d")).unwrap();
    symlink("d", at("l")).unwrap();
    std::fs::write(at("d/f"), "").unwrap();
    let place = |path: PathBuf, kind, usable| LookupAnswer::Place { path: path.as_os_str().into(), kind, usable };
    assert_eq!(look(at("l")), place(at("d"), Kind::Directory, true));
    assert_eq!(look(at("l/f")), place(at("d/f"), Kind::File, false));
    assert_eq!(look("/bin/sh".into()), place(Path::new("/bin/sh").canonicalize().unwrap(), Kind::File, true));
    assert_eq!(why(&look(at("none"))), Some(FailureReason::NotFound));
    assert_eq!(why(&look(at("d/f/x"))), Some(FailureReason::NotFound));
}

#[test]
fn a_directory_has_an_identity_of_its_own_and_a_file_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
    let look = |path: PathBuf| after(Path::new(""), LookupRequest::Identity(path.as_os_str().into()));
    for name in ["a", "b"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    symlink("a", at("l")).unwrap();
    let LookupAnswer::Identity { identity: a, .. } = look(at("a")) else { panic!("not seen") };
    let LookupAnswer::Identity { identity: b, .. } = look(at("b")) else { panic!("not seen") };
    let LookupAnswer::Identity { identity: l, path, .. } = look(at("l")) else { panic!("not seen") };
    assert!(a.differs(&b) && a == l && path == at("a").as_os_str().into(), "{a:?} {b:?} {l:?}");
    std::fs::write(at("f"), "").unwrap();
    assert_eq!(why(&look(at("f"))), Some(FailureReason::Unusable));
    assert_eq!(why(&look(at("none"))), Some(FailureReason::NotFound));
}

#[test]
fn a_directory_may_have_a_repository_if_it_or_one_above_has_an_entry_of_git() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("a/b");
    std::fs::create_dir_all(&below).unwrap();
    let may_have = || match after(Path::new(""), LookupRequest::Identity(below.as_os_str().into())) {
        LookupAnswer::Identity { may_have_repository, .. } => may_have_repository,
        other => panic!("{other:?}"),
    };
    assert!(!may_have(), "no directory above {} has a repository", below.display());
    let git = directory.path().join("a/.git");
    std::fs::create_dir(&git).unwrap();
    assert!(may_have());
    std::fs::remove_dir(&git).unwrap();
    // A link without a file may be of a file system that is not mounted.
    symlink("/nowhere", &git).unwrap();
    assert!(may_have());
}

#[test]
fn localhost_resolves_without_repeated_addresses() {
    let LookupAnswer::Addresses(found) = after(Path::new(""), LookupRequest::Addresses("localhost".to_owned())) else {
        panic!("not found")
    };
    assert!(found.iter().any(|address| address == "127.0.0.1" || address == "::1"), "{found:?}");
    let distinct: std::collections::BTreeSet<_> = found.iter().collect();
    assert_eq!(distinct.len(), found.len());
}

#[test]
fn a_device_is_that_of_the_file_system() {
    let LookupAnswer::Device(root) = after(Path::new(""), LookupRequest::Device("/".into())) else {
        panic!("not seen")
    };
    let LookupAnswer::Device(proc) = after(Path::new(""), LookupRequest::Device("/proc".into())) else {
        panic!("not seen")
    };
    assert!(root.contains(':') && root != proc, "{root} {proc}");
    assert_eq!(why(&after(Path::new(""), LookupRequest::Device("/none".into()))), Some(FailureReason::NotFound));
}
