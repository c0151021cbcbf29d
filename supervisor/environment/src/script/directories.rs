//! Resolves the paths of scripts: the directories that they may lie in, and whose script each path names.

use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_api::hex;
use agentd_api::scripts::ScriptState;
use agentd_host::capability::{Machine, PathState};
use agentd_plugin_host::Places;
use async_recursion::async_recursion as boxed;
use sha2::{Digest as _, Sha256};

use super::trust::Script;
use super::upward::{self, ScriptPlace};
use super::workflow;

/// The directories that a script's path may start with.
#[derive(Debug, Clone)]
pub struct ScriptDirectories {
    pub config: PathBuf,
    pub cwd: PathBuf,
    pub session: PathBuf,
    /// Digest of the script that the session received with its specification. The digest counts as an approval of
    /// that script.
    pub given: Option<String>,
    /// The script of the workflow in force. It runs in the directory of the workflow.
    pub workflow: Option<WorkflowScript>,
}

/// The script of a workflow for the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowScript {
    pub script: PathBuf,
    /// Directory of the workflow.
    pub directory: PathBuf,
}

/// Origin of a script, by the directory that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptOrigin {
    /// Below the user's configuration. Such a script needs no approval.
    User,
    /// The session's own script. A process inside the session can write it, so it must equal the given script or be
    /// approved.
    Session,
    /// In the working directory or anywhere else.
    Foreign,
}

/// The session's places with links resolved. A place that is missing or does not answer is `None`.
#[derive(Debug, Clone, Default)]
pub struct ResolvedPlaces {
    /// The places as text for patterns. A path that is not UTF-8 is left out.
    pub places: Places,
    /// The working directory.
    pub directory: Option<PathBuf>,
}

impl ScriptDirectories {
    /// Resolves the links of the places that answer before `deadline`. `of_all` holds the places that all sessions
    /// share, if they are already known.
    #[boxed]
    pub async fn real(&self, machine: &Machine, of_all: Option<&Places>, deadline: Instant) -> ResolvedPlaces {
        let Self { config, cwd, session, given: _, workflow: _ } = self.clone();
        if machine.is_elsewhere() {
            // The host of the place resolves the links when the agent starts there. The other directories belong to
            // this machine.
            let places = Places { cwd: cwd.to_str().map(str::to_owned), ..Places::default() };
            return ResolvedPlaces { places, directory: Some(cwd) };
        }
        // The user's own places come first, so that an unresponsive working directory does not block their answer.
        let mut paths = vec![session];
        if of_all.is_none() {
            paths.push(config);
            paths.extend(std::env::home_dir());
        }
        let seen = machine.path_states(paths.into_iter().chain([cwd]).collect(), deadline, |_| false).await;
        let mut found = seen.into_iter().map(PathState::into_directory);
        let text = |place: Option<PathBuf>| place?.into_os_string().into_string().ok();
        let session = text(found.next().flatten());
        let directory = found.next_back().flatten();
        let (config, home) = match of_all {
            Some(places) => (places.config.clone(), places.home.clone()),
            None => (text(found.next().flatten()), text(found.next().flatten())),
        };
        ResolvedPlaces { places: Places { cwd: text(directory.clone()), session, config, home }, directory }
    }

    /// Returns the digest of the session's script for [`Self::given`].
    pub fn digest_of(script: Option<&str>) -> Option<String> {
        script.map(|script| hex(&Sha256::digest(script)))
    }

    /// Reports whether a script may run in its current state.
    pub(crate) fn admit(&self, origin: ScriptOrigin, script: &Script) -> bool {
        match origin {
            ScriptOrigin::User => true,
            ScriptOrigin::Session if self.given.as_ref() == Some(&script.digest) => script.state != ScriptState::Denied,
            ScriptOrigin::Session | ScriptOrigin::Foreign => script.state == ScriptState::Approved,
        }
    }

    /// Returns the path that `agentctl env allow` needs for a script of `env-script`. The directory approves all
    /// scripts of a session there. A script above it is approved by its own path.
    pub(crate) fn to_allow<'a>(&'a self, origin: ScriptOrigin, place: &ScriptPlace, script: &'a Path) -> &'a Path {
        if origin == ScriptOrigin::Foreign && !place.is_above { &self.cwd } else { script }
    }

    /// Returns a script's place and origin. A script of the working directory is also searched above it, up to the
    /// home.
    pub(crate) fn locate(&self, path: &str, home: Option<&Path>) -> Option<(ScriptPlace, ScriptOrigin)> {
        let (script, origin) = self.resolve(path)?;
        if let Some(of) = self.workflow.as_ref().filter(|_| path == workflow::PATH) {
            // The script is approved by its own path, like a script above the session's directory.
            let place = ScriptPlace { script: of.script.clone(), directory: of.directory.clone(), is_above: true };
            return Some((place, ScriptOrigin::Foreign));
        }
        let place = match path.strip_prefix("{cwd}/").and_then(|name| upward::places(&self.cwd, name, home).pop()) {
            Some(place) if !upward::is_absent(&place.script) => place,
            _ => ScriptPlace { script, directory: self.cwd.clone(), is_above: false },
        };
        Some((place, origin))
    }

    /// Resolves the path and returns the origin of the script.
    pub(crate) fn resolve(&self, path: &str) -> Option<(PathBuf, ScriptOrigin)> {
        let below = |place: &Path, rest: &str| place.join(rest.trim_start_matches('/'));
        if let Some(rest) = path.strip_prefix("{config}") {
            return Some((below(&self.config, rest), ScriptOrigin::User));
        }
        if let Some(rest) = path.strip_prefix("{session}") {
            return Some((below(&self.session, rest), ScriptOrigin::Session));
        }
        if let Some(rest) = path.strip_prefix("{cwd}") {
            return Some((below(&self.cwd, rest), ScriptOrigin::Foreign));
        }
        path.starts_with('/').then(|| (PathBuf::from(path), ScriptOrigin::Foreign))
    }
}

/// Returns the places searched for a script that needs approval, for a session in `directory`. The places are in
/// the order of the search.
pub(crate) fn foreign(script: &str, directory: &Path, home: Option<&Path>) -> Vec<ScriptPlace> {
    let of_path = || ScriptPlace { script: script.into(), directory: directory.to_owned(), is_above: false };
    match script.strip_prefix("{cwd}/") {
        Some(name) => upward::places(directory, name, home),
        None => script.starts_with('/').then(of_path).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_resolved_and_only_the_users_own_places_need_no_approval() {
        let places = ScriptDirectories {
            config: "/c".into(),
            cwd: "/w".into(),
            session: "/s".into(),
            given: None,
            workflow: None,
        };
        assert_eq!(places.resolve("{config}/env-setup.sh"), Some(("/c/env-setup.sh".into(), ScriptOrigin::User)));
        assert_eq!(places.resolve("{session}/env-setup.sh"), Some(("/s/env-setup.sh".into(), ScriptOrigin::Session)));
        assert_eq!(places.resolve("{cwd}/.agentd-env.sh"), Some(("/w/.agentd-env.sh".into(), ScriptOrigin::Foreign)));
        assert_eq!(places.resolve("/opt/x.sh"), Some(("/opt/x.sh".into(), ScriptOrigin::Foreign)));
        assert_eq!(places.resolve("x.sh"), None);
    }

    #[test]
    fn a_sessions_own_script_runs_as_it_was_given_or_approved_and_never_when_it_was_denied() {
        use ScriptState::{Approved, Changed, Denied, NotApproved};
        let given = ScriptDirectories::digest_of(Some("export A=1"));
        let places =
            ScriptDirectories { config: "/c".into(), cwd: "/w".into(), session: "/s".into(), given, workflow: None };
        let script = |text: &str, state| Script {
            named: "/s/env-setup.sh".into(),
            path: "/s/env-setup.sh".into(),
            digest: ScriptDirectories::digest_of(Some(text)).unwrap(),
            content: text.as_bytes().to_vec(),
            state,
            decided: None,
        };
        for (text, state, of_session, of_directory) in [
            ("export A=1", NotApproved, true, false),
            ("export A=2", NotApproved, false, false),
            ("export A=2", Approved, true, true),
            ("export A=1", Changed, true, false),
            ("export A=2", Changed, false, false),
            ("export A=1", Denied, false, false),
        ] {
            let script = script(text, state);
            assert_eq!(places.admit(ScriptOrigin::Session, &script), of_session, "{text} {state:?}");
            assert_eq!(places.admit(ScriptOrigin::Foreign, &script), of_directory, "{text} {state:?}");
            assert!(places.admit(ScriptOrigin::User, &script));
        }
    }

    #[test]
    fn foreign_scripts_are_those_of_the_directory_and_of_absolute_paths() {
        let foreign = |script| {
            let places = foreign(script, Path::new("/w"), None);
            places.into_iter().map(|place| place.script.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(foreign("{cwd}/.agentd-env.sh")[0], "/w/.agentd-env.sh");
        assert_eq!(foreign("/opt/x.sh"), ["/opt/x.sh"]);
        assert_eq!((foreign("{config}/env-setup.sh"), foreign("{session}/env-setup.sh")), (vec![], vec![]));
    }
}
