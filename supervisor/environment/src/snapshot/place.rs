//! Implements the scope of a snapshot: the user's home, or the session's directory. In the directory, hooks of tools
//! such as direnv and mise run as for the user.
//!
//! The shell for a directory starts in the home directory and enters the directory after its first prompt. Its
//! snapshot depends on the start-up files and on the files that decide the hooks' effect. The tool itself decides
//! whether to trust the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use agentd_api::environment::SnapshotScope;
use agentd_api::reason;
use async_recursion::async_recursion as boxed;
use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};

use super::fingerprint::Watched;
use super::login::{Lookup, Slot};
use super::watcher::ServedFileSystems;
use super::{Key, LoginShell, Slots, Snapshot, SnapshotError, Snapshots, waited};
use crate::blocking::blocking;
use crate::login::capture::Login;
use crate::login::hooks::{self, TOOLS, Tool};
use crate::login::seed::{Seed, SeedError};
use crate::snapshot::Variables;
use agentd_api::chain;

/// Maximum number of directory snapshots. The least recently used snapshot is dropped first.
const MOST: usize = 64;
/// Maximum size in bytes of the list of watched files in direnv's record.
const LARGEST_RECORD: usize = 1 << 20;

/// Directory of a session and its configured scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPlace {
    pub directory: PathBuf,
    /// Configured scope. Without it, the directory counts if a tool's hook is installed and finds one of its files
    /// there.
    pub scope: Option<SnapshotScope>,
}

/// A directory that the shell enters.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub(super) directory: PathBuf,
    /// Files that decide the effect of hooks there.
    pub(super) decisive: Vec<Watched>,
}

/// Result of the shell's visit to the session's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum VisitOutcome {
    /// The shell had to stay in the home directory.
    #[default]
    Home,
    There(PathBuf),
    /// The shell entered the directory, and a tool refused to act. The line is the tool's own output.
    Refused {
        directory: PathBuf,
        said: String,
    },
    /// The shell could not enter the directory, so the user's own snapshot is used instead.
    NotEntered {
        directory: PathBuf,
        why: String,
    },
}

impl VisitOutcome {
    pub(super) fn of(directory: Option<&Path>, login: &Login) -> Self {
        let Some(directory) = directory else { return Self::Home };
        let directory_of = || directory.to_owned();
        let ended_in = login.variables.iter().find(|(name, _)| name == "PWD").map(|(_, value)| value.as_slice());
        if ended_in.is_some_and(|path| !is_path_of(path, directory)) {
            let path = String::from_utf8_lossy(ended_in.unwrap_or_default()).into_owned();
            return Self::NotEntered { directory: directory_of(), why: format!("the login shell ended up in {path}") };
        }
        match refusal(&login.said) {
            Some(said) => Self::Refused { directory: directory_of(), said: said.to_owned() },
            None => Self::There(directory_of()),
        }
    }

    /// Returns the condition's reason and message if the session does not receive the environment that its user has
    /// in the directory.
    pub(super) fn warning(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Home | Self::There(_) => None,
            Self::Refused { directory, said } => {
                let text =
                    format!("the login shell's environment in {}, where a tool refused: {said}", directory.display());
                Some((reason::DIRECTORY_REFUSED, text))
            }
            Self::NotEntered { directory, why } => {
                let text = format!(
                    "the login shell's environment in the home directory, because none could be captured in {}: {why}",
                    directory.display()
                );
                Some((reason::DIRECTORY_NOT_ENTERED, text))
            }
        }
    }

    /// Returns the shell's directory as a part of a sentence.
    pub(super) fn words(&self) -> String {
        match self {
            Self::There(directory) => format!(" in {}", directory.display()),
            _ => String::new(),
        }
    }
}

/// Reports whether both paths are the same directory after links are resolved.
fn is_path_of(path: &[u8], directory: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let same = || Some(path.canonicalize().ok()? == directory.canonicalize().ok()?);
    path == directory || same().unwrap_or(false)
}

/// Returns the line in which a tool reports that it does not trust the directory.
fn refusal(said: &str) -> Option<&str> {
    /// Parts of such a line from direnv, mise and shadowenv.
    const MARKS: [[&str; 2]; 3] =
        [["direnv: error", "is blocked"], ["mise", "not trusted"], ["shadowenv", "untrusted"]];
    said.lines().map(str::trim).find(|line| MARKS.iter().any(|marks| marks.iter().all(|mark| line.contains(mark))))
}

/// Returns the tools whose hooks the start-up files install. Reads the files.
pub(super) fn tools<'a>(home: &Path, watched: impl Iterator<Item = &'a Watched>) -> Vec<&'static Tool> {
    let files: Vec<&Path> = watched.filter(|one| matches!(one, Watched::Content(_))).map(Watched::path).collect();
    hooks::installed(home, files)
}

/// Returns the files that direnv watches: `DIRENV_WATCHES` is URL-safe base64 of a zlib stream of JSON (direnv,
/// gzenv/gzenv.go).
pub(super) fn watched_by_tools(login: &Login) -> Vec<Watched> {
    #[derive(serde::Deserialize)]
    struct File {
        // Older releases (2.32) write `Path`.
        #[serde(alias = "Path")]
        path: PathBuf,
    }
    let files = |variables: &Variables| {
        let (_, value) = variables.iter().find(|(name, _)| name == "DIRENV_WATCHES")?;
        let packed = URL_SAFE.decode(value).or_else(|_| URL_SAFE_NO_PAD.decode(value)).ok()?;
        let json = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(&packed, LARGEST_RECORD).ok()?;
        serde_json::from_slice::<Vec<File>>(&json).ok()
    };
    // A record without paths adds no files, so only the text of start-up files counts.
    let files = files(&login.variables).unwrap_or_default();
    files.into_iter().filter(|file| file.path.is_absolute()).map(|file| Watched::Content(file.path)).collect()
}

/// Records that a snapshot is used. Drops the least recently used directory snapshot if there are too many.
pub(super) fn use_one(known: &mut BTreeMap<Key, Arc<Slot>>, slot: &Arc<Slot>, decisive: Option<Vec<Watched>>) {
    {
        let mut entry = slot.entry();
        entry.used = Some(Instant::now());
        entry.decisive = decisive.unwrap_or_default();
    }
    let of_directories = || known.iter().filter(|(key, _)| key.directory.is_some());
    if of_directories().count() > MOST {
        let oldest = of_directories().min_by_key(|(_, slot)| slot.entry().used).map(|(key, _)| key.clone());
        oldest.and_then(|key| known.remove(&key));
    }
}

impl Snapshots {
    /// Returns the environment of the user's login shell in a session's directory.
    #[boxed]
    pub async fn get_at(&self, place: &SnapshotPlace, deadline: Instant) -> Result<Snapshot, SnapshotError> {
        let (slots, shell, wanted) = (Arc::clone(&self.slots), Arc::clone(&self.shell), place.clone());
        let looked = blocking(move || slots.look_at(&wanted, &shell)).await?;
        self.taken_at(place, looked, deadline).await
    }

    /// Looks up the environment like [`Self::get_at`], up to the first wait. Blocks for as long as the file system
    /// does.
    pub(super) fn look_at(&self, place: &SnapshotPlace) -> Result<AtPlace, SeedError> {
        self.slots.look_at(place, &self.shell)
    }

    /// Waits for the environment that was looked up.
    pub(super) async fn taken_at(
        &self,
        place: &SnapshotPlace,
        looked: AtPlace,
        deadline: Instant,
    ) -> Result<Snapshot, SnapshotError> {
        let (user, directory, there) = match looked {
            AtPlace::Have(taken) => return Ok(*taken),
            AtPlace::Directory { user, directory, lookup, slot } => {
                (*user, directory, waited(lookup, &slot, deadline).await)
            }
            AtPlace::User(lookup, slot) => {
                let user = waited(lookup, &slot, deadline).await?;
                if place.scope == Some(SnapshotScope::User) {
                    return Ok(user);
                }
                let (slots, wanted) = (Arc::clone(&self.slots), place.clone());
                let destination =
                    blocking(move || slots.own().ok().and_then(|own| slots.destination(wanted, &own))).await;
                let Some(destination) = destination else { return Ok(user) };
                (user, destination.directory.clone(), self.look_up(Some(destination), deadline).await)
            }
        };
        let instead = |why| Snapshot { place: VisitOutcome::NotEntered { directory, why }, ..user };
        Ok(match there {
            Ok(Snapshot { place: VisitOutcome::NotEntered { why, .. }, .. }) => instead(why),
            Ok(there) if there.quality == crate::login::quality::Quality::Good => there,
            Ok(there) => instead(there.quality.words()),
            Err(error) => instead(chain(&error)),
        })
    }
}

/// Result of a lookup of the environment in a directory, up to the first wait.
pub(super) enum AtPlace {
    Have(Box<Snapshot>),
    /// The user's own environment is being captured.
    User(Lookup, Arc<Slot>),
    /// The user's own environment is known, and the shell has to enter this directory.
    Directory {
        user: Box<Snapshot>,
        directory: PathBuf,
        lookup: Lookup,
        slot: Arc<Slot>,
    },
}

impl AtPlace {
    /// Returns the environment that a launch receives, if no shell has to run.
    pub(super) fn known(&self) -> Option<&Snapshot> {
        match self {
            Self::Have(taken) | Self::Directory { lookup: Lookup::Have(taken), .. } => Some(taken),
            Self::User(..) | Self::Directory { .. } => None,
        }
    }
}

impl Slots {
    fn look_at(&self, place: &SnapshotPlace, shell: &Arc<dyn LoginShell>) -> Result<AtPlace, SeedError> {
        let look = |destination| {
            let (seed, slot) = self.of(destination)?;
            Ok::<_, SeedError>((slot.look_up(&seed, shell, &self.terms()), (seed, slot)))
        };
        let (user, own) = match look(None)? {
            (Lookup::Have(user), own) => (user, own),
            (wait, (_, slot)) => return Ok(AtPlace::User(wait, slot)),
        };
        if place.scope == Some(SnapshotScope::User) {
            return Ok(AtPlace::Have(user));
        }
        let Some(destination) = self.destination(place.clone(), &own) else { return Ok(AtPlace::Have(user)) };
        let directory = destination.directory.clone();
        let (lookup, (_, slot)) = look(Some(destination))?;
        Ok(AtPlace::Directory { user, directory, lookup, slot })
    }
}

impl Slots {
    /// Returns the directory that the shell must enter, if any. Blocks for as long as the file system does.
    fn destination(&self, place: SnapshotPlace, (seed, slot): &(Seed, Arc<Slot>)) -> Option<Destination> {
        let directory = place.directory;
        if seed.is_elsewhere() {
            // The files of a place are not examined, so only the configuration decides.
            let is_wanted = place.scope == Some(SnapshotScope::Directory) && directory != seed.home;
            return is_wanted.then(|| Destination { directory, decisive: Vec::new() });
        }
        if is_path_of(directory.as_os_str().as_encoded_bytes(), &seed.home) {
            return None;
        }
        let mut tools = slot.entry().tools.clone();
        if place.scope == Some(SnapshotScope::Directory) {
            // The user's own hooks may use any of these files.
            tools = TOOLS.iter().collect();
        }
        let files: BTreeSet<PathBuf> = tools.iter().flat_map(|tool| tool.files_of(&directory)).collect();
        if place.scope.is_none() {
            let (looked, served) = (files.clone(), ServedFileSystems::now(&self.mounts).has(&directory, None));
            let is_there = move || looked.iter().any(|file| file.exists());
            let is_there = if served { slot.bounded(is_there)? } else { is_there() };
            if !is_there {
                return None;
            }
        }
        let trust = tools.iter().flat_map(|tool| tool.trust_of(&seed.home));
        Some(Destination { directory, decisive: files.into_iter().chain(trust).map(Watched::Content).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(directory: &str, said: &str) -> Login {
        let variables = vec![("PWD".to_owned(), directory.as_bytes().to_vec())];
        Login { variables, said: said.to_owned(), ..Login::default() }
    }

    #[test]
    fn a_shell_that_left_the_directory_or_a_tool_that_refused_is_detected() {
        let project = Path::new("/home/kim/project");
        assert_eq!(VisitOutcome::of(None, &login("/home/kim", "")), VisitOutcome::Home);
        assert_eq!(
            VisitOutcome::of(Some(project), &login("/home/kim/project", "hello")),
            VisitOutcome::There(project.into())
        );
        let away = VisitOutcome::of(Some(project), &login("/home/kim", ""));
        assert_eq!(away.warning().unwrap().0, "DirectoryNotEntered");
        let said = "direnv: error /home/kim/project/.envrc is blocked. Run `direnv allow` to approve its content";
        let refused = VisitOutcome::of(Some(project), &login("/home/kim/project", &format!("$ cd x\n{said}\n$")));
        let (reason, message) = refused.warning().unwrap();
        assert!(reason == "DirectoryRefused" && message.ends_with(said), "{message}");
    }

    #[test]
    fn the_files_that_direnv_watches_are_read_from_its_record() {
        let json = r#"[{"Path":"/p/.envrc","Modtime":1,"Exists":true},{"path":"/p/.env","modtime":0,"exists":false}]"#;
        let packed = miniz_oxide::deflate::compress_to_vec_zlib(json.as_bytes(), 6);
        let variables = vec![("DIRENV_WATCHES".to_owned(), URL_SAFE.encode(packed).into_bytes())];
        let found = watched_by_tools(&Login { variables, ..Login::default() });
        assert_eq!(found, ["/p/.envrc", "/p/.env"].map(|path| Watched::Content(path.into())));
        let broken = vec![("DIRENV_WATCHES".to_owned(), b"!".to_vec())];
        assert_eq!(watched_by_tools(&Login { variables: broken, ..Login::default() }), []);
    }
}
