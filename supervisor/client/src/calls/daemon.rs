//! Calls on the daemon, its plugins and its prerequisites.

use std::time::Duration;

use agentd_api::audit::AuditList;
use agentd_api::doctor::DoctorView;
use agentd_api::drain::DrainView;
use agentd_api::place::{PlaceCheck, PlaceList};
use agentd_api::plugin::{PluginList, PluginView, ReloadView};
use agentd_api::prerequisite::{CheckReport, CheckRequest, PrerequisiteList};
use agentd_api::route::{Within, call};
use agentd_api::status::VersionView;
use agentd_api::{Call, SessionId};

use crate::client::{BUILDING, COMPILING, Client, Document, waiting};
use crate::error::Error;

impl Client {
    /// Succeeds if a daemon answers.
    pub async fn health(&self) -> Result<(), Error> {
        self.order(&Call::Health {}, Duration::ZERO).await
    }

    /// Lists the plugins.
    pub async fn plugins(&self) -> Result<Document<PluginList>, Error> {
        self.ask(call::Plugins {}).await
    }

    /// Shows a plugin.
    pub async fn plugin(&self, name: &str) -> Result<Document<PluginView>, Error> {
        self.ask(call::Plugin { name: name.to_owned() }).await
    }

    /// Returns the state of all prerequisites, or of those of one session.
    pub async fn prerequisites(&self, session: Option<&SessionId>) -> Result<PrerequisiteList, Error> {
        let call = call::Prerequisites { session: session.map(ToString::to_string) };
        Ok(self.ask(call).await?.value)
    }

    /// Runs a check; the time limit covers the longest check.
    pub async fn check(&self, name: &str, session: Option<SessionId>) -> Result<CheckReport, Error> {
        let call = call::CheckPrerequisite { name: name.to_owned() };
        Ok(self.send(call, &CheckRequest { session }, Duration::from_mins(2)).await?.value)
    }

    /// Lists the places on which agents can run.
    pub async fn places(&self) -> Result<Document<PlaceList>, Error> {
        self.ask(call::Places {}).await
    }

    /// Checks whether an agent can run on a place. The place has this time for its answer, or one minute.
    pub async fn check_place(&self, name: &str, limit: Option<Duration>) -> Result<Document<PlaceCheck>, Error> {
        let call = call::CheckPlace { name: name.to_owned(), wait: limit.map(Within) };
        // The other steps take time too.
        self.ask_for(call, limit.unwrap_or(Duration::from_mins(1)) + Duration::from_mins(1)).await
    }

    /// Reloads the configuration; the time limit covers the compilation of changed plugins.
    pub async fn reload(&self) -> Result<Document<ReloadView>, Error> {
        self.ask_for(call::Reload { dry_run: None }, COMPILING).await
    }

    /// Returns the changes that a reload would make. A daemon without this feature refuses the request and
    /// changes nothing.
    pub async fn foresee_reload(&self) -> Result<Document<ReloadView>, Error> {
        self.ask_for(call::ForeseeReload {}, COMPILING).await
    }

    /// Begins a drain: every session is stopped and none launched. Does not wait.
    pub async fn drain(&self) -> Result<Document<DrainView>, Error> {
        self.ask(call::BeginDrain { wait: None }).await
    }

    /// Returns the progress of the drain when every session is stopped, or after `wait`.
    pub async fn drain_progress(&self, wait: Duration) -> Result<Document<DrainView>, Error> {
        self.ask_for(call::Drain { wait: waiting(Some(wait)) }, wait).await
    }

    /// Undoes a drain.
    pub async fn undo_drain(&self) -> Result<Document<DrainView>, Error> {
        self.ask(call::UndoDrain { wait: None }).await
    }

    /// Returns the records of the audit log, oldest first.
    pub async fn audit(
        &self,
        session: Option<&str>,
        since: Option<&str>,
        limit: u32,
    ) -> Result<Document<AuditList>, Error> {
        let call = call::Audit {
            session: session.map(str::to_owned),
            since: since.map(str::to_owned),
            limit: Some(limit.into()),
        };
        self.ask(call).await
    }

    /// Returns the daemon's own checks. The time limit covers agents that print their versions slowly.
    pub async fn doctor(&self) -> Result<DoctorView, Error> {
        Ok(self.ask_for(call::Doctor {}, BUILDING).await?.value)
    }

    /// Shows the daemon's version and directories.
    pub async fn version(&self) -> Result<Document<VersionView>, Error> {
        self.ask(call::Version {}).await
    }
}
