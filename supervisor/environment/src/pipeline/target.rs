//! Describes the session and the launch for which an environment is built.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::{ByteString, SessionId};
use agentd_catalogue::KnownAgent;
use agentd_host::capability::Machine;

use super::{InScope, Scopes};
use crate::script::directories::{ResolvedPlaces, ScriptDirectories};
use crate::secrets::Secrets;
use crate::snapshot::SessionSnapshot;

/// Time limit for resolving the session's places. The working directory has answered just before.
const PLACES: Duration = Duration::from_secs(10);

/// The session and launch for which an environment is built.
#[derive(Debug, Clone)]
pub struct Target {
    pub id: SessionId,
    pub name: Option<String>,
    pub agent: String,
    /// Program and arguments of the agent, if known.
    pub command: Vec<String>,
    /// The known agent that the configuration names. Without it, the command is recognised.
    pub known: Option<&'static KnownAgent>,
    /// Variables that keep their values over the launches of a conversation; `None` unsets one.
    pub pinned: BTreeMap<String, Option<ByteString>>,
    pub scopes: Scopes,
    pub launch: u64,
    /// Whether the build leaves out parts that fail, as for a degraded launch.
    pub is_degraded: bool,
    pub places: ScriptDirectories,
    /// Directory of the session's files.
    pub files: PathBuf,
    /// Path of the session's own control socket, if the session has such a socket.
    pub socket: Option<PathBuf>,
    /// The variables of the environment contract, except for the session's id and its own control socket.
    pub contract: Vec<(&'static str, ByteString)>,
    /// Login snapshot from which the environment starts.
    pub chosen: Arc<SessionSnapshot>,
    pub machine: Machine,
    pub secrets: Arc<Secrets>,
}

impl Target {
    /// Resolves the links in the session's places.
    pub async fn real(&self) -> ResolvedPlaces {
        self.places.real(&self.machine, None, Instant::now() + PLACES).await
    }

    /// Returns the settings that the configuration and the session's specification give for the session's
    /// directory.
    pub(crate) async fn in_scope(&self, real: &ResolvedPlaces) -> InScope {
        let deadline = Instant::now() + PLACES;
        self.scopes.of(&self.places.cwd, real.directory.as_deref(), &self.machine, deadline).await
    }
}
