//! Runs a script for a provider, or takes its result from the kept results, and records the run.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use agentd_api::environment::ScriptRun;
use agentd_plugin_host::Failure;

use super::services::CallServices;
use crate::lock::locked;
use crate::login::capture::{CaptureError, Variables};
use crate::login::shell::{self, Interpreter, Shell};
use crate::script::complaints;
use crate::script::directories::ScriptOrigin;
use crate::script::results::{self, Key};
use crate::script::run::ScriptResult;
use crate::script::stubs;
use crate::script::trust::Script;
use crate::script::upward::ScriptPlace;
use agentd_api::chain;
use agentd_config::Functions;

impl CallServices {
    /// Returns the environment after the script. A kept result is used if the script declares its dependencies and
    /// none has changed. Otherwise the script runs.
    pub(super) async fn sourced(
        &self,
        script: &Script,
        (place, origin): (&ScriptPlace, ScriptOrigin),
        given: Variables,
        deadline: Instant,
    ) -> Result<Variables, Failure> {
        let key = self.key(script, place, &given).await;
        if let Some(key) = &key
            && let Some(after) = self.results.find(key, &given)
        {
            tracing::debug!(
                agentd.session = self.session,
                script = %script.path.display(),
                "using the kept result of the script"
            );
            self.metrics.scripts.count(["reused"]);
            self.record(script, place, None, Vec::new());
            return Ok(after);
        }
        self.login.ran();
        // A tool may lie on an unresponsive disk. Then there is no stub, and the script still has half of its time.
        let patience = deadline.saturating_duration_since(Instant::now()) / 2;
        let stubs = tokio::time::timeout(patience, self.stubs(script, place, &given)).await.unwrap_or_default();
        let beside = (given.clone(), self.login.attributes());
        let begun = Instant::now();
        let run = self.capture.script(script, &place.directory, &stubs, beside, deadline).await;
        self.metrics.script_duration.observe([], begun.elapsed());
        if run.is_err() {
            self.metrics.scripts.count(["failed"]);
        }
        let ran = run.map_err(|error| match &error {
            CaptureError::Changed { .. } if origin != ScriptOrigin::User => {
                self.not_approved(origin, place, &script.named, &chain(&error))
            }
            _ => self.failed(error.script_reason(), &error),
        })?;
        let kind = match shell::interpreter(&script.content) {
            Interpreter::Named { shell, .. } => shell,
            Interpreter::Bash | Interpreter::NoShell(_) => Shell::Bash,
        };
        let warnings = complaints::warnings(ran.status, &ran.stderr, kind);
        self.metrics.scripts.count([if warnings.is_empty() { "ok" } else { "warned" }]);
        // A script with warnings is not kept and runs again, because a missing dependency may exist by then. A
        // result is not kept either if a dependency changed during the run.
        if warnings.is_empty()
            && let Some(key) = key
            && self.key(script, place, &given).await == Some(key)
        {
            self.results.keep(key, &given, &ran.environment);
        }
        self.record(script, place, Some(&ran), warnings);
        Ok(ran.environment)
    }

    pub(crate) fn record(
        &self,
        script: &Script,
        place: &ScriptPlace,
        ran: Option<&ScriptResult>,
        warnings: Vec<String>,
    ) {
        locked(&self.ran).push(ScriptRun {
            path: script.named.clone(),
            directory: place.directory.clone(),
            provider: self.plugin.clone(),
            status: ran.map(|ran| ran.status),
            stderr: ran.map(|ran| complaints::record(&ran.stderr)).unwrap_or_default(),
            warnings,
        });
    }

    async fn key(&self, script: &Script, place: &ScriptPlace, given: &Variables) -> Option<Key> {
        let places = results::Places { script: &script.path, directory: &place.directory, session: &self.places.cwd };
        results::look(script.content.clone(), places, given).await.map(|state| state.key(given))
    }

    /// Returns the functions that tools of the login shell would define, as text to put before the script.
    async fn stubs(&self, script: &Script, place: &ScriptPlace, given: &Variables) -> String {
        if self.functions == Functions::Drop {
            return String::new();
        }
        let (kind, program) = match shell::interpreter(&script.content) {
            Interpreter::Bash => (Shell::Bash, "bash".into()),
            Interpreter::Named { shell, program, .. } => (shell, program),
            Interpreter::NoShell(_) => return String::new(),
        };
        // If no step has requested the login shell, it is not run for the stubs.
        let login = self.login.captured.get().map(|taken| Arc::clone(&taken.variables)).unwrap_or_default();
        let (given, home) = (given.clone(), self.home.clone());
        let (cwd, directory) = (self.places.cwd.clone(), place.directory.clone());
        let look = move || {
            let foreign: [&Path; 2] = [&cwd, &directory];
            stubs::text(
                kind,
                &program,
                &stubs::StubContext { login: &login, given: &given, home: home.as_deref(), foreign },
            )
        };
        agentd_host::work::blocking(look).await.unwrap_or_default()
    }
}
