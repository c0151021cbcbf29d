//! The capabilities `shell-environment` and `script`: the login shell's environment, and scripts.

use std::time::Instant;

use super::permit::refused;
use super::words::environment;
use super::{Answer, CallState, variables};
use crate::bindings::provider::agentd::plugin::{script, shell_environment, types};
use crate::call::Failure;
use crate::grant::RequestedPath;
use crate::text::shown;

/// Maximum number of scripts in one search.
const SCRIPTS: usize = 1000;

impl CallState {
    async fn permitted_script(&mut self, what: &str, path: &str) -> Result<RequestedPath, Failure> {
        let asked = self.asked(what, path)?;
        let led = self.led().await?;
        let verdict = self.bounds.rules.judge(&self.places, &led, |patterns| patterns.script(&asked));
        verdict.map(|()| asked).map_err(|outside| refused(what, outside))
    }

    async fn located(&mut self, paths: Vec<String>) -> Result<Vec<Option<String>>, Failure> {
        if paths.len() > SCRIPTS {
            return Err(Failure::TooLarge(format!("more than {SCRIPTS} scripts were looked for at once")));
        }
        let mut written = Vec::with_capacity(paths.len());
        for path in &paths {
            // Matching long paths with long patterns takes time, and other tasks use this thread too.
            tokio::task::yield_now().await;
            if Instant::now() >= self.host_deadline {
                return Err(Failure::TimedOut(
                    "looking for scripts did not end within the time that it has".to_owned(),
                ));
            }
            written.push(self.permitted_script(&format!("the script {}", shown(path)), path).await?.written);
        }
        let work = self.services.locate_scripts(written, self.host_deadline);
        let found = self.bounded("looking for scripts", work).await?;
        if found.len() != paths.len() {
            return Err(Failure::Failed("looking for scripts returned a wrong number of results".to_owned()));
        }
        Ok(found)
    }

    async fn sourced(&mut self, path: &str, given: Vec<types::Variable>) -> Result<script::Sourced, Failure> {
        let what = format!("the script {}", shown(path));
        let asked = self.permitted_script(&what, path).await?;
        let given = environment(&what, given)?;
        let work = self.services.source_script(&asked.written, given, self.host_deadline);
        let sourced = self.bounded(&what, work).await?;
        Ok(script::Sourced { path: sourced.path, environment: variables(sourced.environment) })
    }
}

impl shell_environment::Host for CallState {
    async fn login(&mut self) -> Answer<Vec<types::Variable>> {
        let what = "the login shell";
        if let Err(refused) = self.judge(what, |patterns| patterns.login_shell()) {
            return Ok(Err(refused.into()));
        }
        let work = self.services.login_environment(self.host_deadline);
        Ok(self.bounded(what, work).await.map(variables).map_err(Into::into))
    }
}

impl script::Host for CallState {
    async fn locate(&mut self, paths: Vec<String>) -> Answer<Vec<Option<String>>> {
        Ok(self.located(paths).await.map_err(Into::into))
    }

    async fn source(&mut self, path: String, environment: Vec<types::Variable>) -> Answer<script::Sourced> {
        Ok(self.sourced(&path, environment).await.map_err(Into::into))
    }
}
