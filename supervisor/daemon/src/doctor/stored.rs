//! Checks the stored state: writable directories, script approvals, the encryption key, sessions, and the clock.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agentd_api::doctor::{Check, Finding, shell_word};
use agentd_api::prerequisite::Outcome;
use agentd_api::scripts::ScriptState;
use agentd_api::session::{SessionView, UnreadableSession};

use super::{Clocks, unknown};
use agentd_api::chain;
use agentd_environment::{Environments, Trust, TrustError};
use agentd_session::generation::Generation;

/// Tolerated difference between two clocks, and tolerated time of a file in the future. File servers have clocks of
/// their own.
const TOLERANCE: Duration = Duration::from_mins(1);

/// Runs the checks that read and write files.
pub(super) async fn on_disk(generation: &Arc<Generation>, sessions: &[SessionView]) -> Vec<Check> {
    let generation = Arc::clone(generation);
    let ids: Vec<_> = sessions.iter().map(|view| view.id.clone()).collect();
    let look = move || {
        let directories = &generation.daemon.directories;
        let journals: Vec<PathBuf> = ids.iter().map(|id| directories.session(id).join("journal.jsonl")).collect();
        vec![
            written(&[&directories.state, &directories.sessions(), &directories.cache, &directories.runtime]),
            trust(&generation.daemon.trust),
            key(&generation.environments),
            from_the_future(&journals, SystemTime::now()),
        ]
    };
    agentd_host::work::blocking(look).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Checks whether agentd can write each directory, by creating and removing a file.
fn written(directories: &[&Path]) -> Check {
    let mut findings = Vec::new();
    for directory in directories {
        let write = || {
            let mut file = tempfile::Builder::new().prefix(".doctor-").tempfile_in(directory)?;
            file.write_all(b"doctor")?;
            file.as_file().sync_all()
        };
        let mode = std::fs::metadata(directory).map_or(0o700, |metadata| metadata.permissions().mode());
        let (shown, word) = (directory.display(), shell_word(&directory.to_string_lossy()));
        // A mode does not restrict root, but it may restrict the sessions' programs.
        if mode & 0o700 != 0o700 {
            let finding =
                Finding::bare(Outcome::Fail, format!("the owner cannot write in {shown} (mode {:o})", mode & 0o7777));
            findings.push(finding.run(format!("chmod u+rwx {word}")));
        } else if let Err(error) = write() {
            findings.push(Finding::new(
                Outcome::Fail,
                format!("agentd cannot write in {shown}: {error}"),
                "free disk space, or correct the owner; for a service, check its ReadWritePaths= and ProtectHome=",
            ));
        }
    }
    Check::of("written", &findings, "agentd can write its state, cache and runtime directories")
}

fn trust(trust: &Trust) -> Check {
    let (file, found) = trust.look();
    let approved = match found.and_then(|()| trust.approved()) {
        Ok(approved) => approved,
        Err(error) => return unread(file, &error),
    };
    let (mut findings, mut gone) = (Vec::new(), 0);
    for path in &approved {
        let shown = path.display();
        let remedy = format!("`agentctl env allow {shown}` shows the changes and asks for approval");
        match trust.examine(path) {
            Ok(Some(script)) if script.state == ScriptState::Changed => {
                findings.push(Finding::new(
                    Outcome::Warn,
                    format!("{shown} has changed since it was approved"),
                    remedy,
                ));
            }
            Ok(Some(_)) => {}
            Ok(None) => gone += 1,
            Err(error) => {
                findings.push(Finding::new(Outcome::Warn, format!("{shown} is refused: {error}"), remedy));
            }
        }
    }
    let check = Check::of("trust", &findings, format!("{} approved scripts are unchanged", approved.len() - gone));
    if gone == 0 { check } else { check.fact("gone", format!("{gone} approved scripts do not exist any more")) }
}

/// Builds the check's failure for a record of approvals that cannot be read, or that a newer agentd wrote.
fn unread(file: &Path, error: &TrustError) -> Check {
    let finding = Finding::new(
        Outcome::Fail,
        format!("{}: scripts that need an approval will be refused after the next start", chain(error)),
        "repair or move the file, and approve the scripts again (`agentctl env allow`)",
    );
    let (file, aside) = (file.to_string_lossy(), file.with_extension("json.broken"));
    let line = format!("mv {} {}", shell_word(&file), shell_word(&aside.to_string_lossy()));
    Check::of("trust", &[finding.run(line)], "")
}

fn key(environments: &Environments) -> Check {
    match environments.key_id() {
        Ok(Some(id)) => Check::new("key", Outcome::Pass, "environments are encrypted").fact("key", id),
        Ok(None) if environments.is_encrypted() => Check::new(
            "key",
            Outcome::Pass,
            "environments are encrypted with a key that agentd creates at the first launch",
        ),
        Ok(None) => Check::new("key", Outcome::Pass, "environments are stored unencrypted and without secrets"),
        Err(error) => Check { outcome: Outcome::Fail, ..unknown("key", &error) }.remedy(
            error.problem().hint.unwrap_or_else(|| "see environment.encryption in the configuration".to_owned()),
        ),
    }
}

fn from_the_future(files: &[PathBuf], now: SystemTime) -> Check {
    let ahead = |path: &PathBuf| {
        let modified = path.metadata().and_then(|metadata| metadata.modified()).ok()?;
        modified.duration_since(now).ok().filter(|ahead| *ahead > TOLERANCE)
    };
    let farthest = files.iter().filter_map(|path| Some((ahead(path)?, path))).max();
    let finding = farthest.map(|(ahead, path)| {
        Finding::new(
            Outcome::Warn,
            format!("the modification time of {} is {} s in the future", path.display(), ahead.as_secs()),
            "set the clock; until then ages and time limits are wrong",
        )
    });
    Check::of("files", finding.as_slice(), "no session file has a time in the future")
}

/// Checks whether the wall clock has advanced with the monotonic clock.
pub(super) fn clock(started: Clocks, now: Clocks) -> Check {
    let passed = now.steady.saturating_duration_since(started.steady);
    let expected = started.wall + passed;
    match now.wall.duration_since(expected) {
        // A suspend of the machine has the same effect, which is no defect.
        Ok(ahead) if ahead > TOLERANCE => {
            let text =
                format!("{} s ahead of agentd's run time: the machine slept, or the clock was set", ahead.as_secs());
            Check::new("clock", Outcome::Pass, "the clock advances").fact("ahead", text)
        }
        Err(behind) if behind.duration() > TOLERANCE => {
            let summary = format!("the clock was set back by {} s since agentd started", behind.duration().as_secs());
            Check::new("clock", Outcome::Warn, summary)
                .remedy("times in journals are out of order; restart agentd, and find out which program sets the clock")
        }
        Ok(_) | Err(_) => Check::new("clock", Outcome::Pass, "the clock advances with time"),
    }
}

pub(super) fn sessions(unreadable: &[UnreadableSession], sessions: &[SessionView]) -> Check {
    let known = agentd_session::compatibility().keeper_protocols;
    let mut findings = Vec::new();
    for session in unreadable {
        findings.push(
            Finding::new(
                Outcome::Fail,
                format!("session {} cannot be read: {}", session.id, session.reason),
                "the other sessions continue; removing this session ends its agent and deletes its journal",
            )
            .run(format!("agentctl rm --force {}", shell_word(&session.id))),
        );
    }
    for view in sessions {
        if let Some(protocol) = view.status.keeper_protocol.filter(|protocol| !known.contains(protocol)) {
            findings.push(Finding::new(
                Outcome::Fail,
                format!("the keeper of {} speaks protocol {protocol}, which this agentd does not know", view.id),
                "stop the session with the agentd that started it, or resume it",
            ));
        }
    }
    let active = sessions.iter().filter(|view| view.status.phase.is_active()).count();
    Check::of("sessions", &findings, format!("{}, {active} active", sessions.len()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use jiff::Timestamp;

    use super::*;

    #[test]
    fn an_unwritable_directory_fails_and_a_writable_directory_stays_empty() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(written(&[directory.path()]).outcome, Outcome::Pass);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
        let check = written(&[directory.path()]);
        assert_eq!(check.outcome, Outcome::Fail, "also for root: {check:?}");
        let word = shell_word(directory.path().to_str().unwrap());
        assert_eq!(check.run[0].line, format!("chmod u+rwx {word}"));
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let check = written(&[directory.path(), &directory.path().join("gone")]);
        assert!(check.outcome == Outcome::Fail && check.summary.contains("gone"), "{check:?}");
    }

    #[test]
    fn changed_and_world_writable_approved_scripts_warn_and_missing_scripts_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let approvals = Trust::open(directory.path()).unwrap();
        let scripts = ["a.sh", "b.sh", "c.sh"].map(|name| directory.path().join(name));
        for script in &scripts {
            std::fs::write(script, "export A=1").unwrap();
        }
        approvals.allow(&scripts, None, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(trust(&approvals).outcome, Outcome::Pass);
        std::fs::write(&scripts[0], "export A=2").unwrap();
        std::fs::set_permissions(&scripts[1], std::fs::Permissions::from_mode(0o666)).unwrap();
        std::fs::remove_file(&scripts[2]).unwrap();
        let check = trust(&approvals);
        assert_eq!(check.outcome, Outcome::Warn);
        assert!(check.summary.contains("a.sh has changed") && check.summary.contains("b.sh is refused"), "{check:?}");
        assert!(check.facts[0].value.starts_with("1 "), "{check:?}");
    }

    #[test]
    fn a_readable_or_missing_key_fails_and_the_check_creates_no_key() {
        use agentd_config::{Encryption, KeySource};
        use agentd_host::directories::Directories;

        let root = tempfile::tempdir().unwrap();
        let place = || root.path().to_owned();
        let directories =
            Directories { runtime: place(), state: place(), cache: place(), config: place(), system_config: place() };
        let check = |enabled, source: KeySource| {
            let encryption = Encryption { enabled, key: source, previous: Vec::new() };
            key(&Environments::new(&directories, &encryption, None))
        };
        assert_eq!(check(true, KeySource::Generated).outcome, Outcome::Pass);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        let file = root.path().join("key");
        std::fs::write(&file, "0".repeat(64)).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(check(true, KeySource::File(file.clone())).facts.len(), 1);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let open = check(true, KeySource::File(file.clone()));
        assert!(open.outcome == Outcome::Fail && open.summary.contains("can be read by others"), "{open:?}");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(check(true, KeySource::File(file.clone())).outcome, Outcome::Fail);
        assert_eq!(check(true, KeySource::Credential("key".into())).outcome, Outcome::Fail);
        assert_eq!(check(false, KeySource::File(file)).outcome, Outcome::Pass);
    }

    #[test]
    fn a_clock_that_was_set_back_warns_and_a_machine_that_slept_passes() {
        let started = Clocks { wall: SystemTime::UNIX_EPOCH + Duration::from_hours(10), steady: Instant::now() };
        let after = |steady: u64, wall: i64| {
            let wall = i64::try_from(36_000_u64).unwrap() + wall;
            let now = Clocks {
                wall: SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(wall).unwrap()),
                steady: started.steady + Duration::from_secs(steady),
            };
            clock(started, now)
        };
        assert_eq!(after(600, 600).outcome, Outcome::Pass);
        assert_eq!(after(600, -3600).outcome, Outcome::Warn);
        let slept = after(600, 7200);
        assert_eq!((slept.outcome, slept.facts.len()), (Outcome::Pass, 1));
    }

    #[test]
    fn a_file_from_the_future_warns() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.jsonl");
        std::fs::write(&path, "").unwrap();
        let files = [path, directory.path().join("none")];
        assert_eq!(from_the_future(&files, SystemTime::now()).outcome, Outcome::Pass);
        assert_eq!(from_the_future(&files, SystemTime::now() - Duration::from_hours(1)).outcome, Outcome::Warn);
    }

    #[test]
    fn a_session_that_cannot_be_read_fails() {
        assert_eq!(sessions(&[], &[]).outcome, Outcome::Pass);
        let unreadable = UnreadableSession { id: "x".into(), reason: "no JSON".into() };
        assert_eq!(sessions(&[unreadable], &[]).outcome, Outcome::Fail);
    }
}
