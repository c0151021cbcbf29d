//! Looks at the files of a build in one step, before the providers ask for them. Each further step on a thread that may
//! block costs more than the look itself.
//!
//! The look is an offer. It has only what no file server can delay, and only what is certain to be asked. The build
//! looks itself at the parts that are missing here. Once a login shell or a script has run, the files may have
//! changed, and the rest of the look is dropped ([`SharedLogin::ran`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_catalogue::KnownAgent;
use agentd_config as config;
use agentd_host::capability::{LocalFiles, Mounts, PathState};
use agentd_plugin_host::{Capability, Places};

use super::identity::NotSeen;
use super::services::SharedLogin;
use super::{Pipeline, Target, identity};
use crate::lock::locked;
use crate::script::directories::{ResolvedPlaces, ScriptDirectories, ScriptOrigin};
use crate::script::proposed;
use crate::script::scripts::configured;
use crate::script::trust::{Script, Trust};
use crate::script::upward::{self, ScriptPlace};
use crate::snapshot::{LookedUp, SessionSnapshot};

/// Subjects of the looks of a build.
struct Wanted {
    places: ScriptDirectories,
    /// Whether a provider asks for the login shell.
    login: bool,
    /// Paths of scripts, as `env-script` names them.
    scripts: Vec<String>,
    command: Vec<String>,
    knows_agent: bool,
    home: Option<PathBuf>,
    chosen: Arc<SessionSnapshot>,
    trust: Arc<Trust>,
    mounts: Mounts,
}

/// Results of the looks at the beginning of a build.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Scripts by the path that `env-script` names. A path is missing if it was not looked at.
    located: BTreeMap<String, Located>,
    /// Scripts that exist, by their file.
    examined: BTreeMap<PathBuf, Script>,
    /// Whether the session has no proposed script.
    has_no_proposed: bool,
    /// `PATH` and the known agent that the command shows with it.
    known: Option<(Option<Vec<u8>>, Option<&'static KnownAgent>)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) place: ScriptPlace,
    pub(crate) origin: ScriptOrigin,
    pub(crate) is_absent: bool,
}

impl Pipeline {
    /// Looks at the files of a build, and keeps what was seen in `login`. Returns the session's places if none of them
    /// can hang.
    pub(super) async fn look_ahead(
        &self,
        target: &Target,
        trust: &Arc<Trust>,
        login: &SharedLogin,
    ) -> Option<ResolvedPlaces> {
        let imports = |capability: Capability| {
            let plugins = self.steps.iter().filter_map(|step| step.plugin.usable(std::time::Instant::now()).ok());
            plugins.into_iter().any(|plugin| plugin.imports().contains(&capability))
        };
        let of_scripts = self.steps.iter().filter(|step| step.plugin.name == config::ENV_SCRIPT);
        let wanted = Wanted {
            places: target.places.clone(),
            login: imports(Capability::ShellEnvironment),
            scripts: of_scripts.flat_map(|step| configured(&step.settings)).collect(),
            command: target.command.clone(),
            knows_agent: target.known.is_some(),
            home: self.home.clone(),
            chosen: Arc::clone(&target.chosen),
            trust: Arc::clone(trust),
            mounts: target.machine.mount_table().clone(),
        };
        // A user database may be silent. The provider that asks for the login shell then waits within its own time.
        let look = tokio::time::timeout(self.time / 4, agentd_host::work::blocking(move || wanted.look()));
        let (real, looked, ahead) = look.await.ok()?.ok()?;
        *locked(&login.looked) = looked;
        *locked(&login.ahead) = Some(Arc::new(ahead));
        real
    }
}

impl Wanted {
    fn look(self) -> (Option<ResolvedPlaces>, Option<LookedUp>, Ahead) {
        let files = self.mounts.local_files();
        let real = self.real(&files);
        let looked = if self.login { self.chosen.look() } else { None };
        let mut ahead = Ahead::default();
        // If the login shell has to run, its files may change.
        let variables = looked.as_ref().and_then(LookedUp::variables);
        let is_settled = !self.login || variables.is_some();
        if real.is_none() || !is_settled {
            return (real, looked, ahead);
        }
        if !self.knows_agent {
            let path = variables.and_then(|all| all.iter().find(|(name, _)| name == "PATH"));
            let path = path.map(|(_, value)| value.clone());
            let seen = identity::look(&self.command, path.as_deref(), &self.places.cwd, &files);
            ahead.known = seen.ok().map(|known| (path, known));
        }
        let proposed = self.places.session.join(proposed::NAME);
        ahead.has_no_proposed = files.has(&proposed) && upward::is_absent(&proposed);
        for path in &self.scripts {
            let Some((place, origin)) = self.places.locate(path, self.home.as_deref()) else { continue };
            if !files.has(&place.script) {
                continue;
            }
            let is_absent = upward::is_absent(&place.script);
            if let Some(Ok(Some(script))) = (!is_absent).then(|| self.trust.examine(&place.script)) {
                ahead.examined.insert(place.script.clone(), script);
            }
            ahead.located.insert(path.clone(), Located { place, origin, is_absent });
        }
        (real, looked, ahead)
    }

    /// Resolves the places like [`ScriptDirectories::real`]. Returns `None` if one of them may hang.
    fn real(&self, files: &LocalFiles) -> Option<ResolvedPlaces> {
        let resolved = |path: &Path| files.state(path).map(PathState::into_directory);
        let text = |place: Option<PathBuf>| place?.into_os_string().into_string().ok();
        let directory = resolved(&self.places.cwd)?;
        let home = match std::env::home_dir() {
            Some(home) => resolved(&home)?,
            None => None,
        };
        let places = Places {
            cwd: text(directory.clone()),
            session: text(resolved(&self.places.session)?),
            config: text(resolved(&self.places.config)?),
            home: text(home),
        };
        Some(ResolvedPlaces { places, directory })
    }
}

impl SharedLogin {
    /// Returns the files that were looked at before the providers, unless a program of the user has run since.
    pub(super) fn ahead(&self) -> Option<Arc<Ahead>> {
        locked(&self.ahead).clone()
    }

    /// Drops what was looked at, because a program of the user runs.
    pub(super) fn ran(&self) {
        *locked(&self.ahead) = None;
    }
}

impl Ahead {
    /// Returns the places of all these scripts, if they were looked at.
    pub(super) fn located(&self, paths: &[String]) -> Option<Vec<Located>> {
        paths.iter().map(|path| self.located.get(path).cloned()).collect()
    }

    pub(super) fn examined(&self, script: &Path) -> Option<Script> {
        self.examined.get(script).cloned()
    }

    /// Returns the known agent that the command shows with this `PATH`, if it was looked at.
    pub(super) fn known(&self, path: Option<&[u8]>) -> Result<Option<&'static KnownAgent>, NotSeen> {
        let known = self.known.as_ref().filter(|(seen, _)| seen.as_deref() == path);
        known.map(|(_, known)| *known).ok_or(NotSeen)
    }

    pub(super) fn has_no_proposed(&self) -> bool {
        self.has_no_proposed
    }
}
