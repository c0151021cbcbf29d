//! Tests snapshots with a simulated shell.

mod places;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use agentd_api::snapshot::{LoginSnapshotView, SnapshotQuality, SnapshotState};
use agentd_plugin_host::Change;
use tokio::sync::Semaphore;

use super::*;
use crate::login::quality::Degraded;
use agentd_config::Encryption;

/// Returns the content of `rc` as a variable, with a secret beside it.
#[derive(Debug)]
struct Played {
    rc: PathBuf,
    runs: AtomicU64,
    /// Permits that let a run finish.
    permits: Semaphore,
    behaviour: Mutex<Behaviour>,
    path: Mutex<String>,
    complete: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Honest,
    Fails,
    /// A weaker attempt gives the environment.
    Weak,
    /// The file changes after it was read in this run.
    ChangesOnce,
    /// The file changes in every run.
    ChangesAlways,
}

const HOURS: Times = Times { complete: Duration::from_hours(24), incomplete: Duration::from_hours(24) };

struct Lab {
    directory: tempfile::TempDir,
    played: Arc<Played>,
    snapshots: Arc<Snapshots>,
}

#[async_trait::async_trait]
impl LoginShell for Played {
    async fn login(&self, _seed: &Seed, directory: Option<&Path>, _deadline: Instant) -> Result<Login, CaptureError> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        self.permits.acquire().await.unwrap().forget();
        let content = fs::read(&self.rc).unwrap();
        let mut behaviour = self.behaviour.lock().unwrap();
        match *behaviour {
            Behaviour::Fails => {
                let what = "the login shell".to_owned();
                let stderr = "; its last words: hunter22 is wrong".to_owned();
                return Err(CaptureError::Status { what, status: 3, stderr });
            }
            Behaviour::ChangesOnce => {
                *behaviour = Behaviour::Honest;
                fs::write(&self.rc, format!("after run {run}")).unwrap();
            }
            Behaviour::ChangesAlways => fs::write(&self.rc, format!("after run {run}")).unwrap(),
            Behaviour::Honest | Behaviour::Weak => {}
        }
        let quality = if *behaviour == Behaviour::Weak {
            let (why, last_words) = ("it ended with status 1".to_owned(), "hunter22 is wrong".to_owned());
            Quality::Degraded(Degraded { attempt: "without being interactive", why, last_words })
        } else {
            Quality::Good
        };
        let path = self.path.lock().unwrap().clone().into_bytes();
        let thing = ("MY_THING", b"unusual-secret".to_vec());
        let variables =
            [("RC", content), ("API_KEY", b"hunter22".to_vec()), ("TERM", b"dumb".to_vec()), ("PATH", path), thing];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let mut variables: Variables = variables;
        if let Some(directory) = directory {
            variables.push(("PWD".to_owned(), directory.as_os_str().as_encoded_bytes().to_vec()));
        }
        let functions = vec![("BASH_FUNC_f%%".to_owned(), b"() {  :\n}".to_vec())];
        let read = vec![self.rc.clone()];
        Ok(Login { variables, functions, read, complete: self.complete, quality, ..Login::default() })
    }
}

impl Lab {
    fn new() -> Self {
        Self::with(HOURS, true)
    }

    fn with(times: Times, complete: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let rc = directory.path().join("rc");
        fs::write(&rc, "one").unwrap();
        let (runs, permits, path) = (AtomicU64::new(0), Semaphore::new(1000), Mutex::new("/a:/b".to_owned()));
        let behaviour = Mutex::new(Behaviour::Honest);
        let played = Arc::new(Played { rc, runs, permits, behaviour, path, complete });
        let options = Self::options(directory.path(), times);
        let vault = Arc::new(Vault::new(&Encryption::default(), None, directory.path()));
        let shell: Arc<dyn LoginShell> = Arc::<Played>::clone(&played);
        let snapshots = Arc::new(Snapshots::new(options, shell, vault).unwrap());
        Self { directory, played, snapshots }
    }

    fn options(directory: &Path, times: Times) -> Options {
        Options {
            user: None,
            home: Some(directory.to_owned()),
            shell: Some("/bin/sh".into()),
            sources: LoginSource::DEFAULT.to_vec(),
            times,
            longest: Duration::from_mins(1),
            cache: directory.join("cache"),
            shared: directory.join("shared"),
        }
    }

    /// Replaces the daemon by a new one over the same disk.
    fn restart(&mut self) {
        let vault = self.snapshots.slots.vault();
        let shell: Arc<dyn LoginShell> = Arc::<Played>::clone(&self.played);
        let options = Self::options(self.directory.path(), HOURS);
        self.snapshots = Arc::new(Snapshots::new(options, shell, vault).unwrap());
    }

    /// Launches with a pipeline that drops `MY_THING`.
    async fn launch(&self, chosen: &SessionSnapshot) -> Snapshot {
        let taken = chosen.login(soon()).await.unwrap();
        let all = taken.variables.iter().chain(taken.functions.iter());
        let set = all.map(|(name, value)| Change::set(name, value.as_slice())).collect();
        let mut environment = Environment::default();
        environment.apply("snapshot", 1, set).unwrap();
        environment.apply("whitelist", 2, vec![Change::unset("MY_THING", None)]).unwrap();
        chosen.settle(&environment).await.unwrap();
        taken
    }

    async fn login(&self) -> (Snapshot, SnapshotFinding) {
        let chosen = self.chosen(SnapshotSource::LoginShell, None, false, "login");
        let taken = self.launch(&chosen).await;
        (taken, chosen.finding().unwrap())
    }

    /// Returns the stored content, except for the home's own file.
    fn on_disk(&self) -> String {
        let mut text = String::new();
        for place in ["cache", "shared", "a", "b", "login"] {
            for file in fs::read_dir(self.directory.path().join(place)).into_iter().flatten().flatten() {
                text.push_str(&fs::read_to_string(file.path()).unwrap());
            }
        }
        text
    }

    fn behave(&self, behaviour: Behaviour) {
        *self.played.behaviour.lock().unwrap() = behaviour;
    }

    fn write(&self, content: &str) {
        fs::write(&self.played.rc, content).unwrap();
    }

    fn runs(&self) -> u64 {
        self.played.runs.load(Ordering::SeqCst)
    }

    async fn get(&self) -> Snapshot {
        self.snapshots.get(soon()).await.unwrap()
    }

    async fn view(&self) -> LoginSnapshotView {
        self.snapshots.list().await.login_shells.remove(0)
    }

    fn chosen(&self, source: SnapshotSource, terminal: Option<&str>, shared: bool, session: &str) -> SessionSnapshot {
        let session = self.directory.path().join(session);
        fs::create_dir_all(&session).unwrap();
        let shared = shared.then(|| "/work".into());
        SessionSnapshot::new(
            Arc::clone(&self.snapshots),
            SnapshotRequest { source, terminal: terminal.map(str::to_owned), shared, session, place: self.home() },
        )
    }

    /// Returns the place of a session in the home directory.
    fn home(&self) -> SnapshotPlace {
        SnapshotPlace { directory: self.directory.path().to_owned(), scope: None }
    }

    fn terminal(&self, value: &str) -> String {
        let pair = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let all = vec![pair("RC", value), pair("API_KEY", "of-the-terminal")];
        self.snapshots.terminals.add(all, &BTreeSet::new(), Timestamp::now()).unwrap().id
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

fn value<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    variables.iter().find(|(known, _)| known == name).map(|(_, value)| std::str::from_utf8(value).unwrap())
}

#[tokio::test]
async fn fifty_concurrent_requests_share_one_run_and_a_changed_file_causes_exactly_one_more() {
    let lab = Lab::new();
    for (content, runs) in [("one", 1), ("two", 2)] {
        lab.write(content);
        let all: Vec<_> = (0..50)
            .map(|_| {
                let snapshots = Arc::clone(&lab.snapshots);
                tokio::spawn(async move { snapshots.get(soon()).await })
            })
            .collect();
        for one in all {
            let taken = one.await.unwrap().unwrap();
            assert_eq!(value(&taken.variables, "RC"), Some(content));
            assert_eq!(taken.stale, None);
        }
        assert_eq!(lab.runs(), runs);
    }
    let view = lab.view().await;
    assert_eq!((view.captures, view.hits, view.failures), (2, 98, 0), "{view:#?}");
    assert_eq!((view.state, view.variables, view.functions), (SnapshotState::Fresh, 4, 1), "{view:#?}");
    assert!(view.complete && view.files.contains(&lab.played.rc) && view.last_duration_ms.is_some(), "{view:#?}");
}

#[tokio::test]
async fn an_expired_snapshot_is_used_and_renewed_in_the_background_but_a_change_makes_launches_wait() {
    for (times, complete) in [
        (Times { complete: Duration::ZERO, incomplete: Duration::ZERO }, true),
        (Times { incomplete: Duration::ZERO, ..HOURS }, false),
    ] {
        let lab = Lab::with(times, complete);
        lab.get().await;
        lab.played.permits.forget_permits(1000);
        for _ in 0..3 {
            let taken = lab.get().await;
            assert!(taken.renewing && taken.stale.is_none(), "{taken:?}");
        }
        while lab.runs() < 2 {
            tokio::task::yield_now().await;
        }
        lab.write("two");
        lab.played.permits.add_permits(1000);
        assert_eq!(value(&lab.get().await.variables, "RC"), Some("two"));
    }
    let lab = Lab::with(Times { incomplete: Duration::ZERO, ..HOURS }, true);
    lab.get().await;
    assert!(!lab.get().await.renewing && lab.runs() == 1, "all files are known");
}

#[tokio::test]
async fn snapshots_survive_a_reload_and_another_shell_has_a_new_snapshot() {
    let lab = Lab::new();
    lab.get().await;
    let again = |change: fn(&mut Options)| {
        let mut options = Lab::options(lab.directory.path(), Times { complete: Duration::from_hours(1), ..HOURS });
        change(&mut options);
        let shell: Arc<dyn LoginShell> = Arc::<Played>::clone(&lab.played);
        let again = lab.snapshots.reconfigured(options, shell, lab.snapshots.slots.vault());
        again.take_effect();
        again
    };
    let reloaded = again(|options| options.longest = Duration::from_secs(5));
    reloaded.get(soon()).await.unwrap();
    let view = reloaded.list().await.login_shells.remove(0);
    assert_eq!((view.captures, view.hits, lab.runs()), (1, 1, 1));
    let life = view.expires.unwrap().duration_since(view.captured.unwrap());
    assert_eq!(life.as_secs(), 3600, "the new time to live holds for it");
    let other = again(|options| options.shell = Some("/bin/bash".into()));
    other.get(soon()).await.unwrap();
    assert_eq!((other.list().await.login_shells.len(), lab.runs()), (1, 2));
}

#[tokio::test]
async fn a_weaker_capture_never_replaces_a_good_one_and_recovery_is_automatic() {
    let lab = Lab::new();
    lab.get().await;
    lab.write("two");
    lab.behave(Behaviour::Weak);
    for _ in 0..3 {
        let (taken, finding) = lab.login().await;
        assert_eq!(value(&taken.variables, "RC"), Some("one"));
        assert_eq!((finding.fresh, finding.reason), (false, "Degraded"), "{finding:?}");
        for words in ["without being interactive", "status 1", "the last good snapshot", "‹secret› is wrong"] {
            assert!(finding.message.contains(words), "{words}: {finding:?}");
        }
    }
    assert_eq!(lab.runs(), 2, "it is left alone until a file changes");
    let view = lab.view().await;
    assert_eq!((view.state, view.quality), (SnapshotState::Degraded, Some(SnapshotQuality::Good)), "{view:#?}");

    lab.behave(Behaviour::Honest);
    lab.write("three");
    let (taken, finding) = lab.login().await;
    assert_eq!((value(&taken.variables, "RC"), finding.reason), (Some("three"), "LoginShell"));
    assert_eq!(lab.view().await.state, SnapshotState::Fresh);
}

#[tokio::test]
async fn restoring_a_file_also_ends_a_degraded_state() {
    let lab = Lab::new();
    lab.get().await;
    lab.write("two");
    lab.behave(Behaviour::Weak);
    assert_eq!(lab.login().await.1.reason, "Degraded");
    lab.behave(Behaviour::Honest);
    lab.write("one");
    assert_eq!(lab.login().await.1.reason, "LoginShell");
}

#[tokio::test]
async fn without_a_good_snapshot_the_weaker_one_is_used_reported_and_not_stored() {
    let mut lab = Lab::new();
    lab.behave(Behaviour::Weak);
    for _ in 0..2 {
        let (taken, finding) = lab.login().await;
        assert_eq!((value(&taken.variables, "RC"), finding.reason, finding.fresh), (Some("one"), "Degraded", false));
    }
    assert_eq!(lab.runs(), 1);
    let view = lab.view().await;
    assert_eq!((view.state, view.quality), (SnapshotState::Degraded, Some(SnapshotQuality::Degraded)));
    lab.write("two");
    assert_eq!(value(&lab.login().await.0.variables, "RC"), Some("two"), "a changed file has it tried again");
    assert_eq!((lab.runs(), lab.on_disk().as_str()), (2, ""));
    lab.restart();
    assert_eq!(lab.view().await.state, SnapshotState::Empty);
    lab.behave(Behaviour::Honest);
    assert_eq!(lab.login().await.1.reason, "LoginShell");
}

#[tokio::test]
async fn after_a_restart_a_weaker_capture_fills_what_the_disk_did_not_have() {
    let mut lab = Lab::new();
    lab.login().await;
    lab.restart();
    lab.write("two");
    lab.behave(Behaviour::Weak);
    let (taken, finding) = lab.login().await;
    let of = |name: &str| value(&taken.variables, name);
    assert_eq!((of("RC"), of("API_KEY"), of("MY_THING")), (Some("one"), Some("hunter22"), Some("unusual-secret")));
    assert!(finding.reason == "Degraded" && !finding.message.contains("restart"), "{finding:?}");
}

#[tokio::test]
async fn a_path_that_lost_entries_is_used_and_reported_until_it_is_accepted() {
    let lab = Lab::new();
    lab.get().await;
    *lab.played.path.lock().unwrap() = "/a".to_owned();
    lab.write("two");
    for _ in 0..2 {
        let (taken, finding) = lab.login().await;
        assert_eq!(value(&taken.variables, "PATH"), Some("/a"));
        assert_eq!((finding.reason, finding.message.contains("has lost /b")), ("PathLost", true), "{finding:?}");
        assert_eq!(lab.view().await.path_lost, ["/b"]);
    }
    lab.snapshots.recapture(soon()).await.unwrap();
    assert_eq!(lab.login().await.1.reason, "LoginShell");
}

#[tokio::test]
async fn the_disk_holds_kept_variables_and_no_dropped_value() {
    let mut lab = Lab::new();
    lab.get().await;
    assert_eq!(lab.on_disk(), "", "before a launch it is not known what is kept");
    lab.login().await;
    for source in [SnapshotSource::Stored, SnapshotSource::Terminal] {
        let id = lab.terminal("typed");
        let terminal = (source == SnapshotSource::Terminal).then_some(id.as_str());
        lab.launch(&lab.chosen(source, terminal, false, "a")).await;
        lab.launch(&lab.chosen(source, terminal, true, "b")).await;
    }
    let text = lab.on_disk();
    assert!(text.contains("\"RC\"") && text.contains("MY_THING") && text.contains("BASH_FUNC_f%%"), "{text}");
    for value in ["hunter22", "unusual-secret", "of-the-terminal"] {
        assert!(!text.contains(value), "{value}: {text}");
    }
    lab.restart();
    lab.behave(Behaviour::Fails);
    let (taken, finding) = lab.login().await;
    assert_eq!((value(&taken.variables, "RC"), value(&taken.variables, "MY_THING")), (Some("one"), None));
    assert!(finding.message.contains("without API_KEY, which a restart of agentd lost, and 1 variable"), "{finding:?}");
    assert!(!lab.on_disk().contains("unusual-secret"));
}

#[tokio::test]
async fn a_file_changed_during_the_run_causes_one_more_run_and_files_the_shell_writes_are_unwatched() {
    let lab = Lab::new();
    lab.get().await;
    lab.write("two");
    lab.behave(Behaviour::ChangesOnce);
    assert_eq!(value(&lab.get().await.variables, "RC"), Some("after run 2"));
    assert_eq!(lab.runs(), 3);
    assert_eq!(lab.view().await.state, SnapshotState::Fresh);

    lab.write("three");
    lab.behave(Behaviour::ChangesAlways);
    for runs in [5, 6, 6, 6] {
        lab.get().await;
        assert_eq!(lab.runs(), runs);
    }
    let view = lab.view().await;
    assert_eq!((view.state, view.unwatched), (SnapshotState::Fresh, vec![lab.played.rc.clone()]));
}

#[tokio::test]
async fn after_a_failure_the_last_good_snapshot_is_used_and_the_shell_is_not_run_until_a_file_changes() {
    let lab = Lab::new();
    lab.behave(Behaviour::Fails);
    let error = lab.snapshots.get(soon()).await.unwrap_err();
    assert!(error.to_string().contains("status 3"), "{error}");
    assert_eq!(lab.view().await.state, SnapshotState::Empty);

    lab.behave(Behaviour::Honest);
    lab.get().await;
    lab.write("two");
    lab.behave(Behaviour::Fails);
    for _ in 0..3 {
        let taken = lab.get().await;
        assert_eq!(value(&taken.variables, "RC"), Some("one"));
        assert!(taken.stale.as_ref().is_some_and(|reason| reason.contains("status 3")), "{taken:?}");
        assert!(taken.stale.is_some_and(|reason| reason.ends_with("‹secret› is wrong")));
    }
    assert_eq!(lab.runs(), 3, "one failed, and the pause holds back the others");
    assert_eq!(lab.view().await.state, SnapshotState::Stale);

    lab.behave(Behaviour::Honest);
    lab.write("three");
    let taken = lab.get().await;
    assert_eq!((value(&taken.variables, "RC"), taken.stale), (Some("three"), None));
}

#[tokio::test]
async fn after_a_restart_the_last_good_snapshot_is_loaded_and_its_missing_secrets_are_named() {
    let mut lab = Lab::new();
    lab.login().await;
    lab.restart();
    assert_eq!(lab.view().await.state, SnapshotState::Outdated);
    lab.behave(Behaviour::Fails);
    let taken = lab.get().await;
    assert_eq!((value(&taken.variables, "RC"), value(&taken.variables, "API_KEY")), (Some("one"), None));
    assert!(taken.stale.is_some_and(|reason| reason.contains("without API_KEY")));
    assert_eq!(lab.view().await.missing, ["API_KEY"]);
    for file in fs::read_dir(lab.directory.path().join("cache")).unwrap() {
        assert!(!fs::read_to_string(file.unwrap().path()).unwrap().contains("hunter22"));
    }

    lab.behave(Behaviour::Honest);
    lab.snapshots.recapture(soon()).await.unwrap();
    assert_eq!(value(&lab.get().await.variables, "API_KEY"), Some("hunter22"));
}

#[tokio::test]
async fn a_refresh_runs_the_shell_though_nothing_changed_and_is_not_answered_by_a_run_that_began_before_it() {
    let lab = Lab::new();
    lab.get().await;
    lab.snapshots.recapture(soon()).await.unwrap();
    assert_eq!(lab.runs(), 2);

    lab.played.permits.forget_permits(1000);
    lab.write("two");
    let snapshots = Arc::clone(&lab.snapshots);
    let early = tokio::spawn(async move { snapshots.get(soon()).await });
    while lab.runs() < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(lab.view().await.state, SnapshotState::Capturing);
    let snapshots = Arc::clone(&lab.snapshots);
    let late = tokio::spawn(async move { snapshots.recapture(soon()).await });
    while lab.view().await.hits < 1 {
        tokio::task::yield_now().await;
    }
    lab.played.permits.add_permits(1000);
    early.await.unwrap().unwrap();
    late.await.unwrap().unwrap();
    assert_eq!(lab.runs(), 4);
}

#[tokio::test]
async fn a_forgotten_snapshot_is_not_on_disk_and_is_no_fallback() {
    let lab = Lab::new();
    lab.login().await;
    lab.snapshots.invalidate().await.unwrap();
    assert_eq!(fs::read_dir(lab.directory.path().join("cache")).unwrap().count(), 0);
    lab.behave(Behaviour::Fails);
    lab.snapshots.get(soon()).await.unwrap_err();
}

#[tokio::test]
async fn a_run_without_waiters_ends() {
    let lab = Lab::new();
    lab.played.permits.forget_permits(1000);
    let late = lab.snapshots.get(Instant::now()).await.unwrap_err();
    assert!(late.is_timeout(), "{late}");
    lab.played.permits.add_permits(1000);
    assert_eq!(lab.view().await.state, SnapshotState::Empty);
    assert_eq!(value(&lab.get().await.variables, "RC"), Some("one"));
}

#[tokio::test]
async fn a_stored_environment_is_restored_with_fresh_secrets_and_lost_secrets_are_named() {
    let mut lab = Lab::new();
    for (content, reason) in [("one", "LoginShell"), ("two", "Stored")] {
        lab.write(content);
        let chosen = lab.chosen(SnapshotSource::Stored, None, false, "a");
        let variables = lab.launch(&chosen).await.variables;
        assert_eq!((value(&variables, "RC"), value(&variables, "API_KEY")), (Some("one"), Some("hunter22")));
        let finding = chosen.finding().unwrap();
        assert_eq!((finding.reason, finding.fresh), (reason, true), "{finding:?}");
    }
    lab.snapshots.invalidate().await.unwrap();
    lab.restart();
    lab.behave(Behaviour::Fails);
    let chosen = lab.chosen(SnapshotSource::Stored, None, false, "a");
    assert_eq!(value(&chosen.login(soon()).await.unwrap().variables, "RC"), Some("one"));
    let finding = chosen.finding().unwrap();
    assert!(!finding.fresh && finding.message.contains("without API_KEY"), "{finding:?}");
    assert!(finding.message.contains("status 3"), "{finding:?}");
}

#[tokio::test]
async fn a_terminal_lost_by_a_restart_is_restored_from_disk_and_missing_secrets_are_named() {
    let mut lab = Lab::new();
    let id = lab.terminal("typed");
    let chosen = lab.chosen(SnapshotSource::Terminal, Some(&id), false, "a");
    assert_eq!(value(&lab.launch(&chosen).await.variables, "API_KEY"), Some("of-the-terminal"));
    assert!(chosen.finding().unwrap().fresh);
    lab.restart();
    let chosen = lab.chosen(SnapshotSource::Terminal, Some(&id), false, "a");
    let variables = chosen.login(soon()).await.unwrap().variables;
    assert_eq!((value(&variables, "RC"), value(&variables, "API_KEY")), (Some("typed"), None));
    let finding = chosen.finding().unwrap();
    assert!(!finding.fresh && finding.message.contains("without API_KEY"), "{finding:?}");
    let stored = fs::read_to_string(lab.directory.path().join("a/snapshot.json")).unwrap();
    assert!(stored.contains("typed") && !stored.contains("of-the-terminal"), "{stored}");

    let other = lab.chosen(SnapshotSource::Terminal, Some(&id), false, "b");
    assert!(matches!(other.login(soon()).await, Err(SnapshotError::TerminalGone)));
    assert_eq!(lab.runs(), 0);
}

#[tokio::test]
async fn sessions_that_share_a_directory_start_with_the_same_environment() {
    let lab = Lab::new();
    let begin = async |chosen: SessionSnapshot| value(&lab.launch(&chosen).await.variables, "RC").unwrap().to_owned();
    assert_eq!(begin(lab.chosen(SnapshotSource::Stored, None, true, "a")).await, "one");
    lab.write("two");
    assert_eq!(begin(lab.chosen(SnapshotSource::Stored, None, true, "b")).await, "one");
    assert_eq!(begin(lab.chosen(SnapshotSource::Stored, None, false, "c")).await, "two");
    let (old, new) = (lab.terminal("old"), lab.terminal("new"));
    assert_eq!(begin(lab.chosen(SnapshotSource::Terminal, Some(&new), true, "d")).await, "new");
    assert_eq!(begin(lab.chosen(SnapshotSource::Terminal, Some(&old), true, "e")).await, "new");
    assert_eq!(begin(lab.chosen(SnapshotSource::Terminal, Some(&old), false, "f")).await, "old");

    // The shared file exists as long as one of the sessions exists.
    let files = || fs::read_dir(lab.directory.path().join("shared")).unwrap().count();
    lab.snapshots.tidy(&BTreeSet::new(), &BTreeSet::from(["/work".into()]));
    assert_eq!(files(), 2);
    lab.snapshots.tidy(&BTreeSet::new(), &BTreeSet::new());
    assert_eq!(files(), 0);
}
