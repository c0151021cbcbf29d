use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use agentd_plugin_host::Change;

use super::*;
use agentd_config::KeySource;

/// A file of version 1, as written by agentd 0.1.0.
const FIRST: &str = include_str!("../../../../tests/fixtures/environment-1/environment.json");

fn directories(root: &Path) -> Directories {
    let place = || root.to_owned();
    std::fs::create_dir_all(root.join("sessions/a1")).unwrap();
    std::fs::create_dir_all(root.join("sessions/b2")).unwrap();
    Directories { runtime: place(), state: place(), cache: place(), config: place(), system_config: place() }
}

fn encrypted(key: KeySource) -> Encryption {
    Encryption { enabled: true, key, previous: Vec::new() }
}

fn open(root: &Path, encryption: &Encryption) -> Environments {
    Environments::new(&directories(root), encryption, None)
}

fn id(text: &str) -> SessionId {
    text.parse().unwrap()
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    let set = |(name, value): &(&str, &str)| Change::set(*name, *value);
    let mut environment = Environment::default();
    environment.apply("p", 1, variables.iter().map(set).collect()).unwrap();
    environment
}

fn write(environments: &Environments, session: &str, launch: u64, editor: &str) -> Option<StoredEnvironments> {
    let environment = environment(&[("EDITOR", editor), ("API_KEY", "hunter22")]);
    environments.write(&id(session), &environment, Timestamp::UNIX_EPOCH, launch).unwrap()
}

fn content(root: &Path, session: &str) -> String {
    std::fs::read_to_string(root.join("sessions").join(session).join(NAME)).unwrap()
}

fn editor(view: &EnvironmentView) -> String {
    let variable = view.variables.iter().find(|variable| variable.name == "EDITOR").unwrap();
    variable.value.as_ref().unwrap().display().into_owned()
}

#[test]
fn the_first_environment_and_the_last_are_kept_in_a_private_file_without_secrets() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), &Encryption::default());
    assert_eq!(environments.read(&id("a1")).unwrap(), None);
    assert_eq!(write(&environments, "a1", 1, "ed"), None);
    write(&environments, "a1", 2, "vi");
    let before = write(&environments, "a1", 3, "emacs").unwrap();
    assert_eq!((editor(&before.created), editor(&before.last)), ("ed".into(), "vi".into()));
    let text = content(root.path(), "a1");
    assert!(text.contains("emacs") && !text.contains("hunter22"), "{text}");
    let mode = std::fs::metadata(root.path().join("sessions/a1").join(NAME)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn a_file_that_a_power_cut_left_empty_counts_as_missing() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), &Encryption::default());
    write(&environments, "a1", 1, "ed");
    environments.sync(&id("a1")).unwrap();
    std::fs::write(root.path().join("sessions/a1").join(NAME), "").unwrap();
    assert_eq!(environments.read(&id("a1")).unwrap(), None);
    assert_eq!(write(&environments, "a1", 2, "vi"), None);
    assert_eq!(editor(&environments.read(&id("a1")).unwrap().unwrap().created), "vi");
}

#[test]
fn a_sealed_file_holds_everything_and_reveals_nothing() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), &encrypted(KeySource::Generated));
    write(&environments, "a1", 1, "ed");
    let text = content(root.path(), "a1");
    for word in ["EDITOR", "hunter22", "API_KEY"] {
        assert!(!text.contains(word), "{text}");
    }
    let kept = environments.read(&id("a1")).unwrap().unwrap();
    let restored = Environment::from_view(&kept.last);
    assert_eq!(restored.get("API_KEY"), Some(&b"hunter22"[..]));
}

#[test]
fn a_file_is_sealed_and_opened_at_the_next_write_after_the_setting_was_changed() {
    let root = tempfile::tempdir().unwrap();
    write(&open(root.path(), &Encryption::default()), "a1", 1, "ed");
    let sealing = open(root.path(), &encrypted(KeySource::Generated));
    assert_eq!(editor(&sealing.read(&id("a1")).unwrap().unwrap().last), "ed");
    write(&sealing, "a1", 2, "vi");
    assert!(!content(root.path(), "a1").contains("EDITOR"));
    let opening = open(root.path(), &Encryption::default());
    let before = write(&opening, "a1", 3, "emacs").unwrap();
    assert_eq!((editor(&before.created), editor(&before.last)), ("ed".into(), "vi".into()));
    let text = content(root.path(), "a1");
    assert!(text.contains("emacs") && !text.contains("hunter22"), "{text}");
}

#[test]
fn a_file_without_its_key_is_refused_and_unchanged() {
    let root = tempfile::tempdir().unwrap();
    let key = root.path().join("key");
    let encryption = encrypted(KeySource::File(key.clone()));
    files::write(&key, "11".repeat(32).as_bytes()).unwrap();
    let environments = open(root.path(), &encryption);
    write(&environments, "a1", 1, "ed");
    let before = content(root.path(), "a1");

    files::write(&key, "22".repeat(32).as_bytes()).unwrap();
    let environment = environment(&[("EDITOR", "vi")]);
    let refused = environments.write(&id("a1"), &environment, Timestamp::UNIX_EPOCH, 2).unwrap_err();
    assert_eq!((refused.reason(), refused.problem().code), ("KeyUnavailable", Code::KeyUnavailable), "{refused}");
    std::fs::remove_file(&key).unwrap();
    let refused = environments.read(&id("a1")).unwrap_err();
    assert!(refused.to_string().contains("No such file"), "{refused}");
    assert!(matches!(
        environments.write(&id("b2"), &environment, Timestamp::UNIX_EPOCH, 1),
        Err(EnvironmentError::NoKey(_))
    ));
    assert_eq!(content(root.path(), "a1"), before);

    let previous = vec![KeySource::File(key.clone())];
    let rescued = open(root.path(), &Encryption { previous, ..encrypted(KeySource::Generated) });
    files::write(&key, "11".repeat(32).as_bytes()).unwrap();
    assert_eq!(editor(&rescued.read(&id("a1")).unwrap().unwrap().last), "ed");
}

#[test]
fn a_file_of_the_version_before_is_read() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), &Encryption::default());
    write(&environments, "a1", 1, "ed");
    let second = content(root.path(), "a1").replacen("\"version\": 3", "\"version\": 2", 1);
    assert!(second.contains("\"version\": 2"), "{second}");
    std::fs::write(root.path().join("sessions/a1").join(NAME), second).unwrap();
    assert_eq!(editor(&environments.read(&id("a1")).unwrap().unwrap().last), "ed");
}

#[test]
fn a_sealed_file_in_another_sessions_place_does_not_open() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), &encrypted(KeySource::Generated));
    write(&environments, "a1", 1, "ed");
    std::fs::copy(root.path().join("sessions/a1").join(NAME), root.path().join("sessions/b2").join(NAME)).unwrap();
    let refused = environments.read(&id("b2")).unwrap_err();
    assert!(matches!(refused, EnvironmentError::Sealed { .. }), "{refused}");
}

#[test]
fn a_rotation_rewrites_every_file_and_keeps_a_key_while_a_file_needs_it() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), &encrypted(KeySource::Generated));
    write(&environments, "a1", 1, "ed");
    write(&environments, "b2", 1, "vi");
    let (whole, before) = (content(root.path(), "b2"), content(root.path(), "a1"));
    std::fs::write(root.path().join("sessions/b2").join(NAME), "{}").unwrap();
    let first = environments.rotate().unwrap();
    assert_eq!((first.rewritten.as_slice(), first.failed.len()), (&[id("a1")][..], 1));
    assert_eq!(first.kept_keys.len(), 1, "{first:?}");
    assert_ne!(content(root.path(), "a1"), before);
    // The unreadable file is restored and needs the old key.
    std::fs::write(root.path().join("sessions/b2").join(NAME), whole).unwrap();
    assert_eq!(editor(&environments.read(&id("b2")).unwrap().unwrap().last), "vi");
    let second = environments.rotate().unwrap();
    assert_eq!((second.rewritten.len(), second.failed.len(), second.kept_keys.len()), (2, 0, 0), "{second:?}");
    assert_eq!(editor(&environments.read(&id("b2")).unwrap().unwrap().last), "vi");
    assert!(matches!(open(root.path(), &Encryption::default()).rotate(), Err(EnvironmentError::NotEncrypted)));
}

#[test]
fn a_renewal_is_stored_only_for_its_own_launch() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), &Encryption::default());
    write(&environments, "a1", 1, "ed");
    write(&environments, "a1", 2, "vi");
    let mut view = environments.read(&id("a1")).unwrap().unwrap().last;
    view.variables[1].expires_at = Some(Timestamp::UNIX_EPOCH);
    environments.renew(&id("a1"), view.clone()).unwrap();
    let kept = environments.read(&id("a1")).unwrap().unwrap();
    assert_eq!((editor(&kept.created), &kept.last), ("ed".to_owned(), &view));
    write(&environments, "a1", 3, "emacs");
    environments.renew(&id("a1"), view.clone()).unwrap();
    assert_eq!(editor(&environments.read(&id("a1")).unwrap().unwrap().last), "emacs");
    environments.renew(&id("b2"), view).unwrap();
    assert_eq!(environments.read(&id("b2")).unwrap(), None);
}

#[test]
fn a_file_of_the_first_version_is_read_and_one_from_the_future_is_not_written_over() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), &Encryption::default());
    let file = root.path().join("sessions/a1").join(NAME);
    std::fs::write(&file, FIRST).unwrap();
    let kept = environments.read(&id("a1")).unwrap().unwrap();
    assert_eq!(kept.created, kept.last);
    assert_eq!((kept.last.launch, editor(&kept.last)), (1, "ed".to_owned()));
    let restored = Environment::from_view(&kept.last);
    assert_eq!(restored.missing().collect::<Vec<_>>(), ["SOME_TOKEN"]);
    assert!(restored.dropped().any(|name| name == "FROM_PROFILE"));
    write(&environments, "a1", 2, "vi");
    assert_eq!(editor(&environments.read(&id("a1")).unwrap().unwrap().created), "ed");

    for bad in [r#"{"version":4,"clear":{}}"#, r#"{"version":3,"clear":{}}"#, r#"{"version":2,"clear":{}}"#, "{", "{}"]
    {
        std::fs::write(&file, bad).unwrap();
        let refused = environments.write(&id("a1"), &environment(&[]), Timestamp::UNIX_EPOCH, 3).unwrap_err();
        assert_eq!(refused.problem().code, Code::EnvironmentUnreadable, "{bad}: {refused}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), bad);
    }
}
