//! What is probably not as it was meant before an environment is used. It warns, and decides nothing.
//!
//! The rules are pure: what is on the disk and what ran before come in as data. Nothing is run but the shell that reads a script to see
//! whether it can, and only one that may run anyway.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use agentd_api::validation::Warning;

use agentd_api::doctor::shell_word;

use super::capture::Capture;
use super::services::{Placeholders, Whose, chain, locked};
use super::trust::{Script, Trust, TrustError};
use super::upward::Place as ScriptPlace;
use crate::capability::Place;

/// The digests of scripts, by the paths they are looked for under.
pub(crate) type Digests = BTreeMap<PathBuf, String>;

/// What came of looking at a session's scripts.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    /// Those that the next launch would run.
    pub(crate) digests: Digests,
    /// All that were there.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) warnings: Vec<Warning>,
}

/// What shells said of scripts that they could not read, by path and digest: a content is looked at once.
#[derive(Debug, Default)]
pub(crate) struct Syntax(Mutex<HashMap<(PathBuf, String), Option<String>>>);

pub(super) fn warning(reason: &str, path: &Path, message: String) -> Warning {
    Warning { reason: reason.to_owned(), path: path.to_owned(), message }
}

/// The places that variables name: those of `PATH`, and the virtual environment. Relative ones are seen from `directory`.
pub(crate) struct Named {
    entries: Vec<PathBuf>,
    virtual_env: Option<PathBuf>,
}

impl Named {
    pub(crate) fn new<'a>(value: impl Fn(&str) -> Option<&'a [u8]>, directory: &Path) -> Self {
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

    /// What is to be looked at, in the order in which [`Named::warnings`] is told of it.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let of_root = self.virtual_env.iter().flat_map(|root| [root.clone(), root.join("bin/python")]);
        self.entries.iter().cloned().chain(of_root).collect()
    }

    /// What looks wrong.
    pub(crate) fn warnings(&self, seen: Vec<Place>) -> Vec<Warning> {
        let mut seen = seen.into_iter();
        let mut found = Vec::new();
        for (entry, place) in self.entries.iter().zip(seen.by_ref()) {
            match place {
                Place::Directory { .. } => {}
                Place::Silent(text) => {
                    let message = format!("PATH has {}, which does not answer: {text}", entry.display());
                    found.push(warning("PathEntrySilent", entry, message));
                }
                _ => {
                    let message = format!("PATH has {}, which is no directory", entry.display());
                    found.push(warning("PathEntryMissing", entry, message));
                }
            }
        }
        found.extend(self.virtual_env.as_ref().and_then(|root| of_virtual_env(root, seen.next(), seen.next())));
        found
    }
}

fn of_virtual_env(root: &Path, place: Option<Place>, of_python: Option<Place>) -> Option<Warning> {
    let python = root.join("bin/python");
    match (place?, of_python?) {
        (Place::Silent(text), _) | (_, Place::Silent(text)) => {
            let message = format!("VIRTUAL_ENV is {}, which does not answer: {text}", root.display());
            Some(warning("VirtualEnvSilent", root, message))
        }
        (Place::Directory { .. }, Place::File { usable: true, .. }) => None,
        (Place::Directory { .. }, _) => {
            let message = format!("VIRTUAL_ENV is {}, which has no bin/python that can be run", root.display());
            Some(warning("VirtualEnvGone", &python, message))
        }
        _ => {
            let message = format!("VIRTUAL_ENV is {}, which is no directory", root.display());
            Some(warning("VirtualEnvGone", root, message))
        }
    }
}

/// What is to be said of how a script stands, before a shell looks at it. `ran` has those of the last launch.
fn standing(
    path: &Path,
    places: (&Placeholders, &ScriptPlace, Whose),
    looked: &Result<Option<Script>, TrustError>,
    ran: Option<&Digests>,
) -> Option<Warning> {
    let (places, place, whose) = places;
    let before = |path: &Path| ran.and_then(|ran| ran.get(path));
    match looked {
        Err(error) => Some(warning("ScriptUnreadable", path, chain(error))),
        Ok(None) => before(path).map(|_| {
            warning(
                "ScriptChanged",
                path,
                format!("the script {} is not there any more; it ran at the last launch", path.display()),
            )
        }),
        Ok(Some(script)) if !places.admit(whose, script) => {
            let message = format!(
                "the script {} is {}; a launch fails before `agentctl env allow {}`",
                script.named.display(),
                script.state.as_str(),
                shell_word(&places.to_allow(whose, place, &script.named).to_string_lossy())
            );
            Some(warning("ScriptNotApproved", &script.named, message))
        }
        Ok(Some(script)) => before(&script.named).filter(|digest| **digest != script.digest).map(|_| {
            warning(
                "ScriptChanged",
                &script.named,
                format!("the script {} has changed since it ran last", script.named.display()),
            )
        }),
    }
}

/// Looks at the scripts that the names stand for in these places, with this home.
pub(crate) async fn scripts(
    (names, places, home): (&[String], &Placeholders, Option<&Path>),
    trust: &Arc<Trust>,
    ran: Option<&Digests>,
    syntax: (&Syntax, &Capture),
) -> Scripts {
    let mut all = Scripts::default();
    for name in names {
        let (trust, name, in_places, home) =
            (Arc::clone(trust), name.clone(), places.clone(), home.map(Path::to_owned));
        let look = move || {
            let (place, whose) = in_places.locate(&name, home.as_deref())?;
            let standing = trust.standing(&place.script);
            Some((place, whose, standing))
        };
        let Ok(Some((place, whose, looked))) = tokio::task::spawn_blocking(look).await else { continue };
        let path = place.script.clone();
        let found = standing(&path, (places, &place, whose), &looked, ran);
        let refused = found.as_ref().is_some_and(|one| one.reason != "ScriptChanged");
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
    all
}

impl Syntax {
    /// What the shell that would run the script says of its syntax.
    async fn look(&self, capture: &Capture, script: &Script, directory: &Path) -> Option<Warning> {
        /// Far more than anybody has; what is forgotten is looked at again.
        const MOST: usize = 512;
        // The path too, since it stands in what the shell says.
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
            warning("ScriptSyntax", &script.named, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::scripts::ScriptState;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes());
        let seen = |path: PathBuf| match path.to_str() {
            Some("/bin" | "/w/rel" | "/venv" | "/bare" | "/half") => Place::Directory { path, usable: true },
            Some("/venv/bin/python") => Place::File { path, usable: true },
            Some("/dead" | "/half/bin/python") => Place::Silent("it hangs".to_owned()),
            _ => Place::Absent,
        };
        let named = Named::new(value, Path::new("/w"));
        let found = named.warnings(named.paths().into_iter().map(seen).collect());
        found.into_iter().map(|one| (one.reason, one.path.display().to_string())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|&(reason, path)| (reason.to_owned(), path.to_owned())).collect()
    }

    #[test]
    fn entries_of_path_that_are_not_there_are_named_once_each() {
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
    fn a_script_that_may_not_run_has_changed_or_is_gone_is_named() {
        let ran = |digest: &str| Digests::from([("/w/s".into(), digest.to_owned())]);
        let places = Placeholders { config: "/c".into(), cwd: "/w".into(), session: "/s".into(), given: None };
        let reason = |ours, looked: &Result<Option<Script>, TrustError>, ran: Option<&Digests>| {
            let whose = if ours { Whose::User } else { Whose::Foreign };
            let place = ScriptPlace { script: "/w/s".into(), directory: "/w".into(), is_above: false };
            standing(Path::new("/w/s"), (&places, &place, whose), looked, ran).map(|one| one.reason)
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
