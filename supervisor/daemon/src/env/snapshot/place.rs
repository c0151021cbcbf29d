//! The scope of a snapshot: the user's home, or the session's directory, where hooks of direnv, mise and the like do what they do for
//! the user there.
//!
//! The shell of a directory is run in the home and goes to the directory after its first prompt. Its snapshot depends on the start-up
//! files and on the files that decide what the hooks do. Whether a tool trusts the directory is the tool's own affair.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use agentd_api::environment::SnapshotScope;
use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};

use super::fingerprint::Watched;
use super::login::{Slot, blocking};
use super::watcher::Served;
use super::{Key, Slots, SnapshotError, Snapshots, Taken};
use crate::env::capture::Login;
use crate::env::hooks::{self, TOOLS, Tool};
use crate::env::services::chain;
use crate::env::snapshot::Variables;

/// How many directories' snapshots are held. The one that was not used for longest gives way.
const MOST: usize = 64;
/// The largest list of watched files that direnv's record may have, in bytes.
const LARGEST_RECORD: usize = 1 << 20;

/// Where a session is, and what its configuration says of the scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    /// Without it the directory counts where a tool's hook is installed and finds a file of its own there.
    pub(crate) scope: Option<SnapshotScope>,
}

/// A directory that the shell goes to.
#[derive(Debug, Clone)]
pub(super) struct Entered {
    pub(super) directory: PathBuf,
    /// The files that decide what hooks do there.
    pub(super) decisive: Vec<Watched>,
}

/// How the shell fared with the session's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was not asked to leave the home.
    #[default]
    Home,
    There(PathBuf),
    /// It went there, and a tool refused what it was to do. The line is the tool's own.
    Refused {
        directory: PathBuf,
        said: String,
    },
    /// It was to go there, and the user's own snapshot is given instead.
    NotEntered {
        directory: PathBuf,
        why: String,
    },
}

impl Outcome {
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

    /// The reason of a condition and its message, where the session is not given what its user has in the directory.
    pub(super) fn warning(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Home | Self::There(_) => None,
            Self::Refused { directory, said } => {
                let text =
                    format!("the login shell's environment in {}, where a tool refused: {said}", directory.display());
                Some(("DirectoryRefused", text))
            }
            Self::NotEntered { directory, why } => {
                let text = format!(
                    "the login shell's environment in the home directory, since the one in {} could not be had: {why}",
                    directory.display()
                );
                Some(("DirectoryNotEntered", text))
            }
        }
    }

    /// Where the shell was, as a part of a sentence.
    pub(super) fn words(&self) -> String {
        match self {
            Self::There(directory) => format!(" in {}", directory.display()),
            _ => String::new(),
        }
    }
}

/// Whether both are the same directory, links followed.
fn is_path_of(path: &[u8], directory: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let same = || Some(path.canonicalize().ok()? == directory.canonicalize().ok()?);
    path == directory || same().unwrap_or(false)
}

/// The line by which a tool says that it does not trust the directory.
fn refusal(said: &str) -> Option<&str> {
    /// What such a line has in it: direnv's, mise's, shadowenv's.
    const MARKS: [[&str; 2]; 3] =
        [["direnv: error", "is blocked"], ["mise", "not trusted"], ["shadowenv", "untrusted"]];
    said.lines().map(str::trim).find(|line| MARKS.iter().any(|marks| marks.iter().all(|mark| line.contains(mark))))
}

/// The tools whose hooks the start-up files install. Reads the files.
pub(super) fn tools<'a>(home: &Path, watched: impl Iterator<Item = &'a Watched>) -> Vec<&'static Tool> {
    let files: Vec<&Path> = watched.filter(|one| matches!(one, Watched::Content(_))).map(Watched::path).collect();
    hooks::installed(home, files)
}

/// The files that direnv says to watch: `DIRENV_WATCHES` is URL-safe base64 of a zlib stream of JSON (direnv, gzenv/gzenv.go).
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
    // One that no path of the record names is watched by its text alone.
    let files = files(&login.variables).unwrap_or_default();
    files.into_iter().filter(|file| file.path.is_absolute()).map(|file| Watched::Content(file.path)).collect()
}

/// Takes note that a snapshot is used, and lets go of one that was not for longest where there are too many.
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
    /// What the user's login shell gives in a session's place.
    pub(crate) async fn get_at(&self, place: &Place, deadline: Instant) -> Result<Taken, SnapshotError> {
        let taken = self.look(None, deadline).await?;
        if place.scope == Some(SnapshotScope::User) {
            return Ok(taken);
        }
        let (slots, wanted) = (Arc::clone(&self.slots), place.clone());
        let Some(entered) = blocking(move || slots.entered(wanted)).await else { return Ok(taken) };
        let directory = entered.directory.clone();
        let instead = |why| Taken { place: Outcome::NotEntered { directory, why }, ..taken };
        Ok(match self.look(Some(entered), deadline).await {
            Ok(Taken { place: Outcome::NotEntered { why, .. }, .. }) => instead(why),
            Ok(there) if there.quality == crate::env::quality::Quality::Good => there,
            Ok(there) => instead(there.quality.words()),
            Err(error) => instead(chain(&error)),
        })
    }
}

impl Slots {
    /// The directory that the shell is to go to, if there is one. Blocks for as long as the file system does.
    fn entered(&self, place: Place) -> Option<Entered> {
        let (seed, slot) = self.own().ok()?;
        let directory = place.directory;
        if is_path_of(directory.as_os_str().as_encoded_bytes(), &seed.home) {
            return None;
        }
        let mut tools = slot.entry().tools.clone();
        if place.scope == Some(SnapshotScope::Directory) {
            // Hooks of the user's own may look at any of these.
            tools = TOOLS.iter().collect();
        }
        let files: BTreeSet<PathBuf> = tools.iter().flat_map(|tool| tool.files_of(&directory)).collect();
        if place.scope.is_none() {
            let (looked, served) = (files.clone(), Served::now().has(&directory, None));
            let is_there = move || looked.iter().any(|file| file.exists());
            let is_there = if served { slot.bounded(is_there)? } else { is_there() };
            if !is_there {
                return None;
            }
        }
        let trust = tools.iter().flat_map(|tool| tool.trust_of(&seed.home));
        Some(Entered { directory, decisive: files.into_iter().chain(trust).map(Watched::Content).collect() })
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
    fn a_shell_that_stays_away_or_a_tool_that_refuses_is_seen() {
        let project = Path::new("/home/kim/project");
        assert_eq!(Outcome::of(None, &login("/home/kim", "")), Outcome::Home);
        assert_eq!(Outcome::of(Some(project), &login("/home/kim/project", "hello")), Outcome::There(project.into()));
        let away = Outcome::of(Some(project), &login("/home/kim", ""));
        assert_eq!(away.warning().unwrap().0, "DirectoryNotEntered");
        let said = "direnv: error /home/kim/project/.envrc is blocked. Run `direnv allow` to approve its content";
        let refused = Outcome::of(Some(project), &login("/home/kim/project", &format!("$ cd x\n{said}\n$")));
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
