//! Running a script for a provider: from the results that are kept or by its shell, with what is recorded of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use agentd_api::environment::ScriptRun;
use agentd_plugins::Failure;

use super::capture::{CaptureError, Variables};
use super::results::{self, Key};
use super::services::{CallServices, Whose, chain, locked};
use super::shell::{self, Interpreter, Shell};
use super::trust::Script;
use super::upward::Place;
use super::{complaints, stubs};
use crate::config::Functions;

/// What came of a script that ran to its end.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) environment: Variables,
    /// Of its last command, or of `exit` or `return`.
    pub(crate) status: i32,
    /// The end of what it printed there.
    pub(crate) stderr: String,
}

impl CallServices {
    /// The environment after the script: from the results that are kept, where the script says what it depends on and none of
    /// that is other than it was, and else from running it.
    pub(super) async fn sourced(
        &self,
        script: &Script,
        (place, whose): (&Place, Whose),
        given: Variables,
        deadline: Instant,
    ) -> Result<Variables, Failure> {
        let key = self.key(script, place, &given).await;
        if let Some(key) = &key
            && let Some(after) = self.results.find(key, &given)
        {
            tracing::debug!(agentd.session = self.session, script = %script.path.display(), "its result is known: it is not run");
            self.record(script, place, None, Vec::new());
            return Ok(after);
        }
        // A tool may lie on a disk that does not answer: then there is no stub, and the script still has half of its time.
        let patience = deadline.saturating_duration_since(Instant::now()) / 2;
        let stubs = tokio::time::timeout(patience, self.stubs(script, place, &given)).await.unwrap_or_default();
        let beside = (given.clone(), self.login.attributes());
        let run = self.capture.script(script, &place.directory, &stubs, beside, deadline).await;
        let ran = run.map_err(|error| match &error {
            CaptureError::Changed { .. } if whose != Whose::User => {
                self.not_approved(whose, place, &script.named, &chain(&error))
            }
            _ => self.failed(error.script_reason(), &error),
        })?;
        let kind = match shell::interpreter(&script.content) {
            Interpreter::Named { shell, .. } => shell,
            Interpreter::Bash | Interpreter::NoShell(_) => Shell::Bash,
        };
        let warnings = complaints::warnings(ran.status, &ran.stderr, kind);
        // A script that did not do what it should is run again; what it lacked may be there by then. What was written to while it ran
        // belongs to neither the one state nor the other.
        if warnings.is_empty()
            && let Some(key) = key
            && self.key(script, place, &given).await == Some(key)
        {
            self.results.keep(key, &given, &ran.environment);
        }
        self.record(script, place, Some(&ran), warnings);
        Ok(ran.environment)
    }

    fn record(&self, script: &Script, place: &Place, ran: Option<&Ran>, warnings: Vec<String>) {
        locked(&self.ran).push(ScriptRun {
            path: script.named.clone(),
            directory: place.directory.clone(),
            provider: self.plugin.clone(),
            status: ran.map(|ran| ran.status),
            stderr: ran.map(|ran| complaints::record(&ran.stderr)).unwrap_or_default(),
            warnings,
        });
    }

    async fn key(&self, script: &Script, place: &Place, given: &Variables) -> Option<Key> {
        let places = results::Places { script: &script.path, directory: &place.directory, session: &self.places.cwd };
        results::look(script.content.clone(), places, given).await.map(|state| state.key(given))
    }

    /// The functions that tools of the login shell would define, as text to stand before the script.
    async fn stubs(&self, script: &Script, place: &Place, given: &Variables) -> String {
        if self.functions == Functions::Drop {
            return String::new();
        }
        let (kind, program) = match shell::interpreter(&script.content) {
            Interpreter::Bash => (Shell::Bash, "bash".into()),
            Interpreter::Named { shell, program, .. } => (shell, program),
            Interpreter::NoShell(_) => return String::new(),
        };
        // Where no step has asked for the login shell, it is not run for this.
        let login = self.login.captured.get().map(|taken| Arc::clone(&taken.variables)).unwrap_or_default();
        let (given, home) = (given.clone(), self.home.clone());
        let (cwd, directory) = (self.places.cwd.clone(), place.directory.clone());
        let look = move || {
            let foreign: [&Path; 2] = [&cwd, &directory];
            stubs::text(kind, &program, &stubs::Known { login: &login, given: &given, home: home.as_deref(), foreign })
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }
}
