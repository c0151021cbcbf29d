//! What the host does for a provider during one call: the login shell, scripts with their trust, its log.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use agentd_plugins::{Failure, Level, ScriptOutcome, Services};

use super::capture::{Capture, CaptureError, Variables};
use super::seed::Seed;
use super::trust::{Standing, Trust};
use crate::config::Functions;

/// The places that a script's path may begin with.
#[derive(Debug, Clone)]
pub(crate) struct Placeholders {
    pub(crate) config: PathBuf,
    pub(crate) cwd: PathBuf,
    pub(crate) session: PathBuf,
}

/// One call's services.
#[derive(Debug)]
pub(crate) struct CallServices {
    pub(crate) plugin: String,
    pub(crate) session: String,
    pub(crate) capture: Capture,
    pub(crate) home: Option<PathBuf>,
    pub(crate) shell: Option<PathBuf>,
    pub(crate) places: Placeholders,
    pub(crate) trust: Arc<Trust>,
    /// The script that was met without approval, for the condition's reason.
    pub(crate) unapproved: Mutex<Option<PathBuf>>,
    /// What was run and failed, as the condition's reason.
    pub(crate) failed: Mutex<Option<&'static str>>,
    /// The bash functions that the login shell exports, once it was asked; shared by all steps of a build.
    pub(crate) functions: Arc<Mutex<Variables>>,
    pub(crate) give_functions: Functions,
}

impl Placeholders {
    /// The path, and whether what lies there is the user's own word or whoever wrote the working directory's.
    fn resolve(&self, path: &str) -> Option<(PathBuf, bool)> {
        let below = |place: &Path, rest: &str| place.join(rest.trim_start_matches('/'));
        if let Some(rest) = path.strip_prefix("{config}") {
            return Some((below(&self.config, rest), true));
        }
        if let Some(rest) = path.strip_prefix("{session}") {
            return Some((below(&self.session, rest), true));
        }
        if let Some(rest) = path.strip_prefix("{cwd}") {
            return Some((below(&self.cwd, rest), false));
        }
        path.starts_with('/').then(|| (PathBuf::from(path), false))
    }
}

/// The directory's scripts that a provider would source, for those who ask what is approved.
pub(crate) fn directory_scripts(names: &[String], directory: &Path) -> Vec<PathBuf> {
    names.iter().filter_map(|name| name.strip_prefix("{cwd}/")).map(|rest| directory.join(rest)).collect()
}

impl CallServices {
    fn failed(&self, reason: &'static str, error: &CaptureError) -> Failure {
        *locked(&self.failed) = Some(reason);
        failure(error)
    }
}

/// A lock that a panic elsewhere does not keep from anybody.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn failure(error: &CaptureError) -> Failure {
    let text = chain(error);
    match error {
        CaptureError::TimedOut { .. } => Failure::TimedOut(text),
        _ => Failure::Failed(text),
    }
}

/// An error with everything under it, for a message.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[async_trait::async_trait]
impl Services for CallServices {
    fn log(&self, level: Level, message: &str) {
        let (plugin, session) = (self.plugin.as_str(), self.session.as_str());
        match level {
            Level::Error => tracing::error!(agentd.plugin = plugin, agentd.session = session, "{message}"),
            Level::Warn => tracing::warn!(agentd.plugin = plugin, agentd.session = session, "{message}"),
            Level::Info => tracing::info!(agentd.plugin = plugin, agentd.session = session, "{message}"),
            Level::Debug => tracing::debug!(agentd.plugin = plugin, agentd.session = session, "{message}"),
        }
    }

    async fn login_environment(&self, deadline: Instant) -> Result<Variables, Failure> {
        let seed = Seed::find(self.home.as_deref(), self.shell.as_deref())
            .map_err(|error| Failure::Failed(error.to_string()))?;
        let login = self.capture.login(&seed, deadline).await;
        let login = login.map_err(|error| self.failed(error.login_reason(), &error))?;
        tracing::debug!(
            agentd.session = self.session,
            files = login.read.len(),
            all_files = login.complete,
            background = login.left,
            "the login shell has given its environment"
        );
        locked(&self.functions).clone_from(&login.functions);
        // The guest names them as left out.
        Ok(login.variables.into_iter().chain(login.functions).collect())
    }

    async fn source_script(
        &self,
        path: &str,
        environment: Variables,
        deadline: Instant,
    ) -> Result<ScriptOutcome, Failure> {
        let (file, ours) = self.places.resolve(path).ok_or_else(|| {
            Failure::Configuration(format!(
                "the script {path:?} is neither absolute nor begins with {{config}}, {{cwd}} or {{session}}"
            ))
        })?;
        let standing = self.trust.standing(&file).map_err(|error| Failure::Refused(chain(&error)))?;
        let Some(script) = standing else { return Ok(ScriptOutcome::Absent) };
        if !ours && script.state != Standing::Approved {
            *locked(&self.unapproved) = Some(script.path.clone());
            let how = match script.state {
                Standing::Changed => "has changed since it was approved",
                Standing::Denied => "was denied",
                Standing::NotApproved | Standing::Approved => "has not been approved",
            };
            return Err(Failure::Refused(format!(
                "the script {} {how}; read it, and then run `agentctl env allow {}`",
                script.path.display(),
                self.places.cwd.display()
            )));
        }
        let mut environment = environment;
        if self.give_functions != Functions::Drop {
            environment.extend(locked(&self.functions).iter().cloned());
        }
        let environment = self
            .capture
            .script(&script.path, &self.places.cwd, environment, deadline)
            .await
            .map_err(|error| self.failed(error.script_reason(), &error))?;
        Ok(ScriptOutcome::Sourced { path: script.path.display().to_string(), environment })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_resolved_and_only_the_users_own_places_need_no_approval() {
        let places = Placeholders { config: "/c".into(), cwd: "/w".into(), session: "/s".into() };
        assert_eq!(places.resolve("{config}/env-setup.sh"), Some(("/c/env-setup.sh".into(), true)));
        assert_eq!(places.resolve("{session}/env-setup.sh"), Some(("/s/env-setup.sh".into(), true)));
        assert_eq!(places.resolve("{cwd}/.agentd-env.sh"), Some(("/w/.agentd-env.sh".into(), false)));
        assert_eq!(places.resolve("/opt/x.sh"), Some(("/opt/x.sh".into(), false)));
        assert_eq!(places.resolve("x.sh"), None);
    }
}
