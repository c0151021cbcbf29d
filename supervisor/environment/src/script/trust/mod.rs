//! Records which scripts of working directories may run: those whose path and content the user has approved.
//!
//! A script in a working directory comes from the authors of the repository. The user approves *this path with this
//! content* (direnv's rule), or, for a symlink, this link to this file. The approved content is stored, so that a
//! change can be shown as a diff.
//!
//! Records and contents are files of the daemon's state. Nothing is stored in the working directory itself.
//!
//! An approval covers the script but no file that it sources: `sources` lists those files.

mod examine;
pub(super) mod others;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use agentd_api::scripts::ScriptState;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use sources::sourced;

use crate::lock::locked;
use crate::secrets::redacted;
use agentd_host::directories::make_private;
use agentd_host::files;
use examine::{Examined, examine, named};

/// Approvals of scripts and their stored contents.
#[derive(Debug)]
pub struct Trust {
    file: PathBuf,
    /// Directory with one file for each approved content, named by its digest.
    contents: PathBuf,
    record: Mutex<Record>,
    /// Set if the file exists but could not be read. Then no approval is known, and the file is never overwritten.
    is_unread: AtomicBool,
    /// Number of decisions since the start.
    decisions: watch::Sender<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// Decisions by the path that is searched, with the symlinks of its directory resolved. Version 1 used the
    /// script's real path. That path differs only for a symlink, which must be approved again.
    scripts: BTreeMap<PathBuf, Decision>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "decision")]
enum Decision {
    Allowed {
        sha256: String,
        /// Target file, if the path is a symlink.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<PathBuf>,
        /// Time of the approval. Unknown in version 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
    },
    Denied {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
    },
}

/// Versions that can be read. The last version is written.
pub const VERSIONS: [u32; 2] = [1, VERSION];
const VERSION: u32 = 2;

/// A script and its approval state.
#[derive(Clone, PartialEq, Eq)]
pub struct Script {
    /// Path at which the script is searched.
    pub named: PathBuf,
    /// Real path of the file, with symlinks resolved.
    pub path: PathBuf,
    /// SHA-256 of the content in hexadecimal.
    pub digest: String,
    pub content: Vec<u8>,
    pub state: ScriptState,
    pub decided: Option<Timestamp>,
}

/// Omits the content, which may hold secrets that must not be logged.
impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").field("path", &self.path).field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("{path:?} has more than {limit} bytes, which is more than a script needs")]
    TooLong { path: PathBuf, limit: u64 },
    #[error("{path:?} belongs to user {owner}: only your own scripts and root's can be approved")]
    Owner { path: PathBuf, owner: u32 },
    #[error("{path:?} can be written by others than its owner (mode {mode:o}); `chmod go-w` it first")]
    Writable { path: PathBuf, mode: u32 },
    #[error("the directory {path:?} belongs to user {owner}, who could replace {script:?}")]
    DirectoryOwner { path: PathBuf, owner: u32, script: PathBuf },
    #[error(
        "the directory {path:?} can be written by others than its owner (mode {mode:o}), who could replace \
         {script:?}; `chmod go-w` it first"
    )]
    DirectoryWritable { path: PathBuf, mode: u32, script: PathBuf },
    #[error("{path:?} has changed since it was shown")]
    NotAsShown { path: PathBuf },
    #[error("cannot store the approval in {path:?}")]
    Keep { path: PathBuf, source: io::Error },
    #[error("{path:?} is of version {found}; this agentd knows {VERSIONS:?}")]
    Version { path: PathBuf, found: u32 },
    #[error(
        "cannot read the approvals of scripts: {reason}; repair or move the file away, and approve the scripts again"
    )]
    Unreadable { reason: String },
    #[error("{path:?} is not a record of approvals")]
    Parse { path: PathBuf, source: serde_json::Error },
}

impl Trust {
    /// Reads the record.
    pub fn open(state: &Path) -> Result<Self, TrustError> {
        let file = state.join("trust.json");
        let record = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice::<Record>(&bytes)
                .map_err(|source| TrustError::Parse { path: file.clone(), source })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Record { version: VERSION, ..Record::default() },
            Err(source) => return Err(TrustError::Read { path: file, source }),
        };
        if !VERSIONS.contains(&record.version) {
            return Err(TrustError::Version { path: file, found: record.version });
        }
        Ok(Self {
            file,
            contents: state.join("approved"),
            record: Mutex::new(record),
            is_unread: AtomicBool::new(false),
            decisions: watch::Sender::default(),
        })
    }

    /// Opens the record like [`Self::open`]. If the record cannot be read, scripts that need an approval are
    /// refused. Each later access tries to read the record again.
    pub fn begin(state: &Path) -> Self {
        Self::open(state).unwrap_or_else(|error| {
            let why = agentd_api::chain(&error);
            tracing::error!(
                %why,
                "cannot read the approvals of scripts; refusing scripts that need one; the file is not overwritten"
            );
            let record = Mutex::new(Record { version: VERSION, ..Record::default() });
            let (file, contents) = (state.join("trust.json"), state.join("approved"));
            Self { file, contents, record, is_unread: AtomicBool::new(true), decisions: watch::Sender::default() }
        })
    }

    /// Locks the record. Reads it first if it could not be read before.
    fn record(&self) -> Result<MutexGuard<'_, Record>, TrustError> {
        let mut record = locked(&self.record);
        // The check is made under the lock. Otherwise a second reader could overwrite an approval that followed the
        // first read.
        if self.is_unread.load(Ordering::Acquire) {
            let found = self.read().map_err(|error| TrustError::Unreadable { reason: agentd_api::chain(&error) })?;
            *record = found.record.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            self.is_unread.store(false, Ordering::Release);
            tracing::info!("the approvals of scripts can be read again");
        }
        Ok(record)
    }

    fn read(&self) -> Result<Self, TrustError> {
        Self::open(self.file.parent().unwrap_or(Path::new("/")))
    }

    /// Returns the file and the error that reading it gives now.
    pub fn look(&self) -> (&Path, Result<(), TrustError>) {
        (&self.file, self.read().map(drop))
    }

    /// Returns the script and its approval state, or `None` if the script does not exist.
    pub fn examine(&self, path: &Path) -> Result<Option<Script>, TrustError> {
        let Some(Examined { named, real, content, digest }) = examine(path)? else { return Ok(None) };
        let (state, decided) = match self.record()?.scripts.get(&named) {
            None => (ScriptState::NotApproved, None),
            Some(Decision::Denied { at }) => (ScriptState::Denied, *at),
            Some(Decision::Allowed { sha256, target, at }) => {
                let same = *sha256 == digest && *target.as_ref().unwrap_or(&named) == real;
                (if same { ScriptState::Approved } else { ScriptState::Changed }, *at)
            }
        };
        Ok(Some(Script { named, path: real, digest, content, state, decided }))
    }

    /// Returns the paths of the approved scripts.
    pub fn approved(&self) -> Result<Vec<PathBuf>, TrustError> {
        let record = self.record()?;
        let allowed = record.scripts.iter().filter(|(_, decision)| matches!(decision, Decision::Allowed { .. }));
        Ok(allowed.map(|(path, _)| path.clone()).collect())
    }

    /// Approves the current contents of the scripts. Either all are approved or none. `shown` holds the digests
    /// that the user has seen, by path.
    pub fn allow(
        &self,
        paths: &[PathBuf],
        shown: Option<&BTreeMap<PathBuf, String>>,
        now: Timestamp,
    ) -> Result<(), TrustError> {
        drop(self.record()?);
        let mut decisions = Vec::new();
        for path in paths {
            let Some(Examined { named, real, content, digest }) = examine(path)? else { continue };
            if shown.is_some_and(|shown| shown.get(&named) != Some(&digest)) {
                return Err(TrustError::NotAsShown { path: named });
            }
            self.keep_content(&digest, &content)?;
            let target = (real != named).then_some(real);
            decisions.push((named, Decision::Allowed { sha256: digest, target, at: Some(now) }));
        }
        self.decide(decisions)
    }

    /// Denies the scripts, regardless of their content.
    pub fn deny(&self, paths: &[PathBuf], now: Timestamp) -> Result<(), TrustError> {
        drop(self.record()?);
        let mut decisions = Vec::new();
        for path in paths {
            let Some(named) = named(path)? else { continue };
            if named.symlink_metadata().is_ok() || self.record()?.scripts.contains_key(&named) {
                decisions.push((named, Decision::Denied { at: Some(now) }));
            }
        }
        self.decide(decisions)
    }

    fn decide(&self, decisions: Vec<(PathBuf, Decision)>) -> Result<(), TrustError> {
        if decisions.is_empty() {
            return Ok(());
        }
        let mut record = self.record()?;
        let mut changed = record.clone();
        changed.version = VERSION;
        changed.scripts.extend(decisions);
        files::write_json(&self.file, &changed)
            .map_err(|source| TrustError::Keep { path: self.file.clone(), source })?;
        *record = changed;
        self.forget_contents(&record);
        self.decisions.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Returns a receiver that changes with each decision.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.decisions.subscribe()
    }

    /// Stores the content for later comparison, without the values of secrets that the script assigns.
    fn keep_content(&self, digest: &str, content: &[u8]) -> Result<(), TrustError> {
        let keep = |source| TrustError::Keep { path: self.contents.clone(), source };
        make_private(&self.contents).map_err(|error| keep(io::Error::other(error)))?;
        files::write(&self.contents.join(digest), &redacted(content)).map_err(keep)
    }

    /// Removes contents without an approval. A file that cannot be removed is harmless, and the next call retries.
    fn forget_contents(&self, record: &Record) {
        let digest = |decision: &Decision| match decision {
            Decision::Allowed { sha256, .. } => Some(sha256.clone()),
            Decision::Denied { .. } => None,
        };
        let kept: BTreeSet<String> = record.scripts.values().filter_map(digest).collect();
        for entry in std::fs::read_dir(&self.contents).into_iter().flatten().flatten() {
            if !kept.contains(&*entry.file_name().to_string_lossy()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Returns the changes since the approval as a unified diff. Returns `None` if the script was not approved or
    /// its content is not stored.
    pub fn difference(&self, script: &Script) -> Option<String> {
        /// Time limit of the search for the shortest diff. A longer diff is also correct.
        const PATIENCE: Duration = Duration::from_secs(1);
        let Some(Decision::Allowed { sha256, target, .. }) = self.record().ok()?.scripts.get(&script.named).cloned()
        else {
            return None;
        };
        let (content, now) = (std::fs::read(self.contents.join(&sha256)).ok()?, redacted(&script.content));
        let diff = similar::TextDiff::configure().timeout(PATIENCE).diff_lines(content.as_slice(), now.as_slice());
        let before = target.as_ref().unwrap_or(&script.named).display();
        let now = script.path.display();
        let text = diff.unified_diff().header(&format!("{before} (approved)"), &format!("{now} (now)")).to_string();
        // The same content behind a link to another file has no hunks, but the two names differ.
        let names = || format!("--- {before} (approved)\n+++ {now} (now)\n");
        Some(match text {
            text if !text.is_empty() => text,
            _ if sha256 != script.digest => format!("{}only values of secrets differ, which are not shown\n", names()),
            _ => names(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_api::hex;
    use sha2::{Digest as _, Sha256};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn script(directory: &Path, content: &str, mode: u32) -> PathBuf {
        let path = directory.join("s.sh");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn allow(trust: &Trust, path: &Path) -> Result<(), TrustError> {
        trust.allow(&[path.to_owned()], None, Timestamp::UNIX_EPOCH)
    }

    fn deny(trust: &Trust, path: &Path) {
        trust.deny(&[path.to_owned()], Timestamp::UNIX_EPOCH).unwrap();
    }

    fn state(trust: &Trust, path: &Path) -> ScriptState {
        trust.examine(path).unwrap().unwrap().state
    }

    #[test]
    fn an_approval_is_of_this_path_with_this_content_and_outlives_the_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "export A=1", 0o644);
        let trust = Trust::open(directory.path()).unwrap();
        assert_eq!(state(&trust, &path), ScriptState::NotApproved);
        allow(&trust, &path).unwrap();
        assert_eq!(state(&Trust::open(directory.path()).unwrap(), &path), ScriptState::Approved);
        script(directory.path(), "export A=2", 0o644);
        assert_eq!(state(&trust, &path), ScriptState::Changed);
        deny(&trust, &path);
        assert_eq!(state(&trust, &path), ScriptState::Denied);
        assert_eq!(trust.examine(&directory.path().join("none")).unwrap(), None);
    }

    /// Assigns the file to a group that is no user's own group, as only root can.
    fn foreign_group(path: &Path) -> bool {
        std::os::unix::fs::chown(path, None, Some(4711)).is_ok()
    }

    #[test]
    fn a_script_that_its_users_private_group_can_write_can_be_approved() {
        let own = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap();
        let group = nix::unistd::Group::from_gid(own.gid).unwrap().unwrap();
        if group.name != own.name || group.mem.iter().any(|member| *member != own.name) {
            return; // this system gives users no group of their own
        }
        let directory = tempfile::tempdir().unwrap();
        let trust = Trust::open(directory.path()).unwrap();
        let path = script(directory.path(), "x", 0o664);
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o775)).unwrap();
        allow(&trust, &path).unwrap();
        if foreign_group(directory.path()) {
            assert!(matches!(trust.examine(&path), Err(TrustError::DirectoryWritable { mode: 0o775, .. })));
        }
    }

    #[test]
    fn a_script_that_others_can_write_is_refused_but_can_be_denied() {
        let directory = tempfile::tempdir().unwrap();
        let trust = Trust::open(directory.path()).unwrap();
        for mode in [0o666, 0o664, 0o646] {
            let path = script(directory.path(), "x", mode);
            if !foreign_group(&path) && mode == 0o664 {
                continue; // only root can give a file to another group
            }
            assert!(matches!(allow(&trust, &path), Err(TrustError::Writable { mode: m, .. }) if m == mode));
        }
        deny(&trust, &script(directory.path(), "x", 0o666));
        assert_eq!(state(&trust, &script(directory.path(), "x", 0o644)), ScriptState::Denied);
    }

    #[test]
    fn a_symlink_is_approved_only_as_a_link_to_this_file() {
        let directory = tempfile::tempdir().unwrap();
        let trust = Trust::open(directory.path()).unwrap();
        let target = script(directory.path(), "x", 0o644);
        let other = directory.path().join("other.sh");
        std::fs::copy(&target, &other).unwrap();
        let link = directory.path().join("link.sh");
        symlink(&target, &link).unwrap();
        allow(&trust, &link).unwrap();
        assert_eq!(state(&trust, &link), ScriptState::Approved);
        assert_eq!(state(&trust, &target), ScriptState::NotApproved, "it was not asked about under its own name");
        allow(&trust, &other).unwrap();
        std::fs::remove_file(&link).unwrap();
        symlink(&other, &link).unwrap();
        assert_eq!(state(&trust, &link), ScriptState::Changed, "the same content, and approved, but elsewhere");
        let shown = trust.difference(&trust.examine(&link).unwrap().unwrap()).unwrap();
        assert!(shown.contains("s.sh (approved)") && shown.contains("other.sh (now)"), "{shown}");
    }

    #[test]
    fn a_change_is_shown_against_the_approved_content_and_only_that_is_stored() {
        let directory = tempfile::tempdir().unwrap();
        let trust = Trust::open(directory.path()).unwrap();
        let path = script(directory.path(), "one\ntwo\n", 0o644);
        assert_eq!(trust.difference(&trust.examine(&path).unwrap().unwrap()), None);
        allow(&trust, &path).unwrap();
        script(directory.path(), "one\n2\n", 0o644);
        let diff = trust.difference(&trust.examine(&path).unwrap().unwrap()).unwrap();
        assert!(diff.contains("\n-two\n+2\n"), "{diff}");
        let kept = || std::fs::read_dir(directory.path().join("approved")).unwrap().map(|entry| entry.unwrap());
        assert_eq!(kept().count(), 1);
        assert_eq!(kept().next().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        allow(&trust, &path).unwrap();
        assert_eq!(kept().count(), 1, "the former content is of no use any more");
        deny(&trust, &path);
        assert_eq!(kept().count(), 0);
    }

    #[test]
    fn only_the_shown_content_is_approved() {
        let directory = tempfile::tempdir().unwrap();
        let trust = Trust::open(directory.path()).unwrap();
        let path = script(directory.path(), "shown", 0o644);
        let shown = trust.examine(&path).unwrap().unwrap();
        let shown = BTreeMap::from([(shown.named, shown.digest)]);
        script(directory.path(), "swapped", 0o644);
        let swapped = trust.allow(std::slice::from_ref(&path), Some(&shown), Timestamp::UNIX_EPOCH);
        assert!(matches!(swapped, Err(TrustError::NotAsShown { .. })));
        assert_eq!(state(&trust, &path), ScriptState::NotApproved);
        script(directory.path(), "shown", 0o644);
        trust.allow(std::slice::from_ref(&path), Some(&shown), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(state(&trust, &path), ScriptState::Approved);
    }

    #[test]
    fn a_record_of_version_1_is_read_and_becomes_one_of_version_2_with_the_next_decision() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "x", 0o644).canonicalize().unwrap();
        let record = serde_json::json!({ "version": 1, "scripts": {
            path.display().to_string(): { "decision": "allowed", "sha256": hex(&Sha256::digest("x")) },
            "/gone.sh": { "decision": "denied" },
        }});
        let file = directory.path().join("trust.json");
        std::fs::write(&file, record.to_string()).unwrap();
        let trust = Trust::open(directory.path()).unwrap();
        assert_eq!(state(&trust, &path), ScriptState::Approved);
        script(directory.path(), "y", 0o644);
        let changed = trust.examine(&path).unwrap().unwrap();
        assert_eq!((changed.state, trust.difference(&changed)), (ScriptState::Changed, None));
        allow(&trust, &path).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!((&written["version"], &written["scripts"]["/gone.sh"]["decision"]), (&2.into(), &"denied".into()));
        assert_eq!(state(&Trust::open(directory.path()).unwrap(), &path), ScriptState::Approved);
    }

    #[test]
    fn a_record_from_the_future_is_refused_and_not_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("trust.json"), r#"{"version":9,"scripts":{}}"#).unwrap();
        assert!(matches!(Trust::open(directory.path()), Err(TrustError::Version { found: 9, .. })));
    }

    #[test]
    fn a_record_that_cannot_be_read_refuses_scripts_until_it_is_repaired_and_is_not_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "x", 0o644);
        allow(&Trust::open(directory.path()).unwrap(), &path).unwrap();
        let file = directory.path().join("trust.json");
        let good = std::fs::read(&file).unwrap();
        for bad in [&br#"{"version":9,"scripts":{}}"#[..], b"{", b""] {
            std::fs::write(&file, bad).unwrap();
            let trust = Trust::begin(directory.path());
            assert!(matches!(trust.examine(&path), Err(TrustError::Unreadable { .. })));
            assert!(matches!(allow(&trust, &path), Err(TrustError::Unreadable { .. })));
            assert_eq!(std::fs::read(&file).unwrap(), bad);
            std::fs::write(&file, &good).unwrap();
            assert_eq!(state(&trust, &path), ScriptState::Approved);
        }
    }
}
