//! Warns about probable mistakes before an environment is used. It blocks nothing.
//!
//! The rules take the state of the disk and of the last run as data. The module runs only a shell that checks the
//! syntax of a script, and only for a script that may run.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use agentd_api::reason;
use agentd_api::scripts::ScriptState;
use agentd_api::validation::Warning;

use agentd_api::doctor::shell_word;

use super::directories::{ScriptDirectories, ScriptOrigin};
use super::trust::{Script, Trust, TrustError};
use super::upward::ScriptPlace;
use super::{proposed, workflow};
use crate::lock::locked;
use crate::login::capture::Capture;
use agentd_api::chain;
use agentd_host::capability::PathState;

/// Digests of scripts, by the paths under which they are searched.
pub type Digests = BTreeMap<PathBuf, String>;

/// Result of checking a session's scripts.
#[derive(Debug, Default)]
pub struct Scripts {
    /// Digests of the scripts that the next launch would run.
    pub digests: Digests,
    /// Paths of all scripts that exist.
    pub paths: Vec<PathBuf>,
    pub warnings: Vec<Warning>,
}

/// Syntax errors that shells reported, by path and digest, so that each content is checked once.
#[derive(Debug, Default)]
pub(crate) struct Syntax(Mutex<HashMap<(PathBuf, String), Option<String>>>);

pub(super) fn warning(reason: &str, path: &Path, message: String) -> Warning {
    Warning { reason: reason.to_owned(), path: path.to_owned(), message }
}

/// Paths that variables name: the entries of `PATH` and the virtual environment. Relative paths start at
/// `directory`.
#[derive(Debug)]
pub struct NamedPlaces {
    entries: Vec<PathBuf>,
    virtual_env: Option<PathBuf>,
}

impl NamedPlaces {
    pub fn new<'a>(value: impl Fn(&str) -> Option<&'a [u8]>, directory: &Path) -> Self {
        let place = |bytes: &[u8]| directory.join(OsStr::from_bytes(bytes));
        let mut entries: Vec<PathBuf> = Vec::new();
        for entry in value("PATH").unwrap_or_default().split(|byte| *byte == b':').filter(|entry| !entry.is_empty()) {
            let entry = place(entry);
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        Self { entries, virtual_env: value("VIRTUAL_ENV").filter(|root| !root.is_empty()).map(place) }
    }

    /// Returns the paths to examine, in the order that [`NamedPlaces::warnings`] expects.
    pub fn paths(&self) -> Vec<PathBuf> {
        let of_root = self.virtual_env.iter().flat_map(|root| [root.clone(), root.join("bin/python")]);
        self.entries.iter().cloned().chain(of_root).collect()
    }

    /// Returns the warnings for the examined paths.
    pub fn warnings(&self, seen: Vec<PathState>) -> Vec<Warning> {
        let mut seen = seen.into_iter();
        let mut found = Vec::new();
        for (entry, place) in self.entries.iter().zip(seen.by_ref()) {
            match place {
                PathState::Directory { .. } => {}
                PathState::Silent(text) => {
                    let message = format!("PATH has {}, which does not answer: {text}", entry.display());
                    found.push(warning(reason::PATH_ENTRY_SILENT, entry, message));
                }
                _ => {
                    let message = format!("PATH has {}, which is no directory", entry.display());
                    found.push(warning(reason::PATH_ENTRY_MISSING, entry, message));
                }
            }
        }
        found.extend(self.virtual_env.as_ref().and_then(|root| of_virtual_env(root, seen.next(), seen.next())));
        found
    }
}

fn of_virtual_env(root: &Path, place: Option<PathState>, of_python: Option<PathState>) -> Option<Warning> {
    let python = root.join("bin/python");
    match (place?, of_python?) {
        (PathState::Silent(text), _) | (_, PathState::Silent(text)) => {
            let message = format!("VIRTUAL_ENV is {}, which does not answer: {text}", root.display());
            Some(warning(reason::VIRTUAL_ENV_SILENT, root, message))
        }
        (PathState::Directory { .. }, PathState::File { usable: true, .. }) => None,
        (PathState::Directory { .. }, _) => {
            let message = format!("VIRTUAL_ENV is {}, which has no bin/python that can be run", root.display());
            Some(warning(reason::VIRTUAL_ENV_GONE, &python, message))
        }
        _ => {
            let message = format!("VIRTUAL_ENV is {}, which is no directory", root.display());
            Some(warning(reason::VIRTUAL_ENV_GONE, root, message))
        }
    }
}

/// Returns the warning about a script's approval state, before a shell checks it. `ran` holds the digests of the
/// last launch.
fn approval_warning(
    path: &Path,
    places: (&ScriptDirectories, &ScriptPlace, ScriptOrigin),
    looked: &Result<Option<Script>, TrustError>,
    ran: Option<&Digests>,
) -> Option<Warning> {
    let (places, place, origin) = places;
    let before = |path: &Path| ran.and_then(|ran| ran.get(path));
    match looked {
        Err(error) => Some(warning(reason::SCRIPT_UNREADABLE, path, chain(error))),
        Ok(None) => before(path).map(|_| {
            warning(
                reason::SCRIPT_CHANGED,
                path,
                format!("the script {} no longer exists; it ran at the last launch", path.display()),
            )
        }),
        Ok(Some(script)) if !places.admit(origin, script) => {
            let message = format!(
                "the script {} is {}; launches fail until you run `agentctl env allow {}`",
                script.named.display(),
                script.state.as_str(),
                shell_word(&places.to_allow(origin, place, &script.named).to_string_lossy())
            );
            Some(warning(reason::SCRIPT_NOT_APPROVED, &script.named, message))
        }
        Ok(Some(script)) => before(&script.named).filter(|digest| **digest != script.digest).map(|_| {
            warning(
                reason::SCRIPT_CHANGED,
                &script.named,
                format!("the script {} has changed since it ran last", script.named.display()),
            )
        }),
    }
}

/// Checks the scripts that `names` refer to.
pub(crate) async fn scripts(
    (names, places, home): (&[String], &ScriptDirectories, Option<&Path>),
    trust: &Arc<Trust>,
    ran: Option<&Digests>,
    syntax: (&Syntax, &Capture),
) -> Scripts {
    let mut all = Scripts::default();
    let of_workflow = places.workflow.as_ref().filter(|_| !names.is_empty()).map(|_| workflow::PATH.to_owned());
    let (of_trust, in_places, home) = (Arc::clone(trust), places.clone(), home.map(Path::to_owned));
    let names: Vec<String> = names.iter().chain(&of_workflow).cloned().collect();
    let has_names = !names.is_empty();
    let look = move || {
        let look_at = |name: &String| {
            let (place, origin) = in_places.locate(name, home.as_deref())?;
            let looked = of_trust.examine(&place.script);
            Some((place, origin, looked))
        };
        names.iter().filter_map(look_at).collect::<Vec<_>>()
    };
    for (place, origin, looked) in agentd_host::work::blocking(look).await.unwrap_or_default() {
        let path = place.script.clone();
        let found = approval_warning(&path, (places, &place, origin), &looked, ran);
        let refused = found.as_ref().is_some_and(|one| one.reason != reason::SCRIPT_CHANGED);
        all.warnings.extend(found);
        match looked {
            Ok(None) => {}
            Ok(Some(script)) if !refused => {
                all.warnings.extend(syntax.0.look(syntax.1, &script, &place.directory).await);
                all.digests.insert(script.named.clone(), script.digest);
                all.paths.push(script.named);
            }
            _ => all.paths.push(path),
        }
    }
    // Only `env-script` sources the proposed script, and it names at least one script.
    if let Some((file, looked)) = proposed::look(places, trust).await.filter(|_| has_names) {
        all.warnings.extend(proposed::approval_warning(places, &file, &looked));
        match looked {
            Ok(Some(script)) if script.state == ScriptState::Approved => {
                all.warnings.extend(syntax.0.look(syntax.1, &script, &places.cwd).await);
                all.digests.insert(script.named.clone(), script.digest);
                all.paths.push(script.named);
            }
            Ok(None) => {}
            _ => all.paths.push(file),
        }
    }
    all
}

impl Syntax {
    /// Returns a warning if the shell that would run the script reports a syntax error.
    async fn look(&self, capture: &Capture, script: &Script, directory: &Path) -> Option<Warning> {
        /// Maximum number of remembered results. When it is reached, all are dropped and checked again.
        const MOST: usize = 512;
        // The path is part of the key, because the shell's message contains it.
        let key = (script.path.clone(), script.digest.clone());
        let before = locked(&self.0).get(&key).cloned();
        let said = match before {
            Some(said) => said,
            None => match capture.syntax(script, directory).await {
                Ok(said) => {
                    let mut known = locked(&self.0);
                    if known.len() >= MOST {
                        known.clear();
                    }
                    known.insert(key, said.clone());
                    said
                }
                Err(error) => Some(chain(&error)),
            },
        };
        said.map(|said| {
            let message = format!("the script {} cannot be parsed: {said}", script.named.display());
            warning(reason::SCRIPT_SYNTAX, &script.named, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes());
        let seen = |path: PathBuf| match path.to_str() {
            Some("/bin" | "/w/rel" | "/venv" | "/bare" | "/half") => PathState::Directory { path, usable: true },
            Some("/venv/bin/python") => PathState::File { path, usable: true },
            Some("/dead" | "/half/bin/python") => PathState::Silent("it hangs".to_owned()),
            _ => PathState::Absent,
        };
        let named = NamedPlaces::new(value, Path::new("/w"));
        let found = named.warnings(named.paths().into_iter().map(seen).collect());
        found.into_iter().map(|one| (one.reason, one.path.display().to_string())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|&(reason, path)| (reason.to_owned(), path.to_owned())).collect()
    }

    #[test]
    fn missing_path_entries_are_reported_once_each() {
        let path = "/bin::/gone:rel:lost:/gone";
        assert_eq!(of(&[("PATH", path)]), pairs(&[("PathEntryMissing", "/gone"), ("PathEntryMissing", "/w/lost")]));
        assert_eq!(of(&[("PATH", "/dead:/bin")]), pairs(&[("PathEntrySilent", "/dead")]));
        assert_eq!(of(&[("PATH", "/bin")]), []);
        assert_eq!(of(&[]), []);
    }

    #[test]
    fn a_virtual_environment_has_a_python() {
        assert_eq!(of(&[("VIRTUAL_ENV", "/venv")]), []);
        assert_eq!(of(&[("VIRTUAL_ENV", "")]), []);
        assert_eq!(of(&[("VIRTUAL_ENV", "/gone")]), pairs(&[("VirtualEnvGone", "/gone")]));
        assert_eq!(of(&[("PATH", "/dead"), ("VIRTUAL_ENV", "/half")]).len(), 2);
        assert_eq!(of(&[("VIRTUAL_ENV", "/half")]), pairs(&[("VirtualEnvSilent", "/half")]));
        assert_eq!(of(&[("VIRTUAL_ENV", "/bare")]), pairs(&[("VirtualEnvGone", "/bare/bin/python")]));
    }

    fn script(state: ScriptState) -> Script {
        let digest = "new".to_owned();
        Script { named: "/w/s".into(), path: "/w/s".into(), digest, content: Vec::new(), state, decided: None }
    }

    #[test]
    fn a_script_that_must_not_run_has_changed_or_is_gone_is_reported() {
        let ran = |digest: &str| Digests::from([("/w/s".into(), digest.to_owned())]);
        let places = ScriptDirectories {
            config: "/c".into(),
            cwd: "/w".into(),
            session: "/s".into(),
            given: None,
            workflow: None,
        };
        let reason = |ours, looked: &Result<Option<Script>, TrustError>, ran: Option<&Digests>| {
            let origin = if ours { ScriptOrigin::User } else { ScriptOrigin::Foreign };
            let place = ScriptPlace { script: "/w/s".into(), directory: "/w".into(), is_above: false };
            approval_warning(Path::new("/w/s"), (&places, &place, origin), looked, ran).map(|one| one.reason)
        };
        let named = |reason: &str| Some(reason.to_owned());
        let approved = Ok(Some(script(ScriptState::Approved)));
        assert_eq!(reason(false, &approved, None), None, "it has never run");
        assert_eq!(reason(false, &approved, Some(&Digests::new())), None, "it is new");
        assert_eq!(reason(false, &approved, Some(&ran("new"))), None);
        assert_eq!(reason(false, &approved, Some(&ran("old"))), named("ScriptChanged"));
        assert_eq!(reason(false, &Ok(None), Some(&ran("old"))), named("ScriptChanged"));
        assert_eq!(reason(false, &Ok(None), Some(&Digests::new())), None);
        for state in [ScriptState::NotApproved, ScriptState::Changed, ScriptState::Denied] {
            assert_eq!(reason(false, &Ok(Some(script(state))), Some(&ran("old"))), named("ScriptNotApproved"));
            assert_eq!(reason(true, &Ok(Some(script(state))), None), None, "it needs no approval");
        }
        let refused = Err(TrustError::NotAFile { path: "/w/s".into() });
        assert_eq!(reason(true, &refused, None), named("ScriptUnreadable"));
    }
}
