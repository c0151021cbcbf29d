//! Calls on environments, snapshots, scripts and secrets.

use std::path::Path;
use std::time::Duration;

use agentd_api::Call;
use agentd_api::directories::DirectoryList;
use agentd_api::environment::{DifferenceView, EnvironmentView, Moment, RotationView};
use agentd_api::keep::{KeepRequest, KeepView};
use agentd_api::route::call;
use agentd_api::scripts::{ScriptDecision, ScriptList};
use agentd_api::secret::SecretList;
use agentd_api::snapshot::{SnapshotList, TerminalSnapshot, TerminalSnapshotView};

use crate::client::{BUILDING, Client, Document};
use crate::error::Error;

impl Client {
    /// Shows the variables of a session. `values` shows values that are no secrets.
    pub async fn environment(&self, id: &str, at: Moment, values: bool) -> Result<Document<EnvironmentView>, Error> {
        let call = call::Environment { session: id.to_owned(), at: Some(at), values: Some(values) };
        self.ask_for(call, BUILDING).await
    }

    /// Compares two environments of a session.
    pub async fn environment_difference(
        &self,
        id: &str,
        (from, to): (Moment, Moment),
        values: bool,
    ) -> Result<Document<DifferenceView>, Error> {
        let (from, to, values) = (Some(from), Some(to), Some(values));
        let call = call::EnvironmentDifference { session: id.to_owned(), from, to, values };
        self.ask_for(call, BUILDING).await
    }

    /// Encrypts every stored environment with a new key.
    pub async fn rotate_key(&self) -> Result<Document<RotationView>, Error> {
        self.ask_for(call::RotateKey {}, BUILDING).await
    }

    /// Adds names to the variables that the whitelist keeps.
    pub async fn keep(&self, wish: &KeepRequest) -> Result<Document<KeepView>, Error> {
        self.send(call::Keep {}, wish, BUILDING).await
    }

    /// Lists the snapshots of the login shell and of terminals.
    pub async fn snapshots(&self) -> Result<Document<SnapshotList>, Error> {
        self.ask(call::Snapshots {}).await
    }

    /// Sends a terminal's environment, with which sessions can begin.
    pub async fn add_snapshot(&self, snapshot: &TerminalSnapshot) -> Result<TerminalSnapshotView, Error> {
        Ok(self.send(call::AddSnapshot {}, snapshot, Duration::ZERO).await?.value)
    }

    /// Runs the login shell now, for at most `wait`.
    pub async fn refresh_snapshots(&self, wait: Duration) -> Result<Document<SnapshotList>, Error> {
        self.ask_for(call::RefreshSnapshots {}, wait).await
    }

    /// Forgets the environment of the login shell.
    pub async fn invalidate_snapshots(&self) -> Result<Document<SnapshotList>, Error> {
        self.ask(call::InvalidateSnapshots {}).await
    }

    /// Lists the directories whose paths begin with `path`, for its completion.
    pub async fn directories(&self, path: &str) -> Result<Document<DirectoryList>, Error> {
        self.ask(call::Directories { path: Some(path.to_owned()) }).await
    }

    /// Lists the scripts that a session in `directory` sources. `diff` adds their contents or changes.
    pub async fn scripts(&self, directory: &Path, diff: bool) -> Result<Document<ScriptList>, Error> {
        let directory = directory.to_string_lossy().into_owned();
        let call = call::Scripts { directory: Some(directory), diff: Some(diff) };
        self.ask(call).await
    }

    /// Approves or rejects scripts.
    pub async fn decide_scripts(&self, allow: bool, decision: &ScriptDecision) -> Result<Document<ScriptList>, Error> {
        let call = if allow { Call::AllowScripts {} } else { Call::DenyScripts {} };
        self.submit(&call, decision, Duration::ZERO).await
    }

    /// Lists the named secrets, and never a value.
    pub async fn secrets(&self) -> Result<Document<SecretList>, Error> {
        self.ask(call::Secrets {}).await
    }

    /// Fetches every secret; the time limit covers the slowest source.
    pub async fn check_secrets(&self) -> Result<Document<SecretList>, Error> {
        self.ask_for(call::CheckSecrets {}, Duration::from_mins(2)).await
    }
}
