//! The capabilities `shell-environment` and `script`: the login shell's environment, and scripts.

use std::time::Instant;

use super::permit::refused;
use super::words::environment;
use super::{Answer, CallState, HostCall, variables};
use crate::bindings::provider::agentd::plugin::{script, shell_environment, types};
use crate::call::Failure;
use crate::grant::RequestedPath;
use crate::services::{SourcedScript, Variables};
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

    pub(super) async fn located(&mut self, paths: Vec<String>) -> Result<Vec<Option<String>>, Failure> {
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

    async fn sourced(&mut self, path: &str, given: Variables) -> Result<SourcedScript, Failure> {
        let what = format!("the script {}", shown(path));
        let asked = self.permitted_script(&what, path).await?;
        let given = environment(&what, given)?;
        let work = self.services.source_script(&asked.written, given, self.host_deadline);
        self.bounded(&what, work).await
    }

    pub(super) async fn answer_source(
        &mut self,
        path: &str,
        given: Variables,
    ) -> Result<SourcedScript, types::Failure> {
        self.sourced(path, given).await.map_err(Into::into)
    }

    pub(super) async fn answer_login(&mut self) -> Result<Variables, types::Failure> {
        let what = "the login shell";
        self.judge(what, |patterns| patterns.login_shell())?;
        let work = self.services.login_environment(self.host_deadline);
        Ok(self.bounded(what, work).await?)
    }
}

impl shell_environment::Host for CallState {
    async fn login(&mut self) -> Answer<Vec<types::Variable>> {
        let answer = match self.transcript.next() {
            Some(HostCall::Login(answer)) => answer,
            _ => self.answer_login().await,
        };
        self.transcript.note(|| HostCall::Login(answer.clone()));
        Ok(answer.map(variables))
    }
}

impl script::Host for CallState {
    async fn locate(&mut self, paths: Vec<String>) -> Answer<Vec<Option<String>>> {
        let found = match self.transcript.next() {
            Some(HostCall::Locate { found, .. }) => found,
            _ => self.located(paths.clone()).await.map_err(Into::into),
        };
        self.transcript.note(|| HostCall::Locate { paths, found: found.clone() });
        Ok(found)
    }

    async fn source(&mut self, path: String, environment: Vec<types::Variable>) -> Answer<script::Sourced> {
        let given: Variables = environment.into_iter().map(|variable| (variable.name, variable.value)).collect();
        let answered = self.transcript.next();
        let kept = self.transcript.records().then(|| given.clone());
        let sourced = match answered {
            Some(HostCall::Source { sourced, .. }) => sourced,
            _ => self.answer_source(&path, given).await,
        };
        let given = kept.unwrap_or_default();
        self.transcript.note(|| HostCall::Source { path, given, sourced: sourced.clone() });
        let answer = |sourced: SourcedScript| script::Sourced {
            path: sourced.path,
            environment: variables(sourced.environment),
        };
        Ok(sourced.map(answer))
    }
}
