//! Places: machines, jobs and containers on which agents run.

use serde::{Deserialize, Serialize};

use crate::event::{PlaceHost, PlaceState};
use crate::id::PlaceName;

/// Name of the place that is this machine.
pub const HERE: &str = "here";

/// Word before the SHA-256 of the `agentd-keeper` that a place asks for.
pub const KEEPER_WANTED: &str = "agentd-keeper-wanted";

/// Place of the last agent of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceView {
    /// Name of the place in the configuration.
    pub name: String,
    /// State of the last launch on the place.
    pub state: PlaceState,
    /// Reason of the engine in its own words, for example Slurm's `Resources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Description of the state for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Id that the engine gave the launch: the number of a job, or the id of a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The machine on which the agent runs or ran. Absent before the agent was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PlaceHost>,
}

/// The response of `GET /v1/places`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceList {
    /// The configured places by name. This machine is not listed.
    pub places: Vec<PlaceSummary>,
}

/// A configured place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceSummary {
    /// Name in the configuration.
    pub name: PlaceName,
    /// Engine: `slurm`, `ssh`, `container`, `kubernetes` or `command`.
    pub kind: String,
    /// Target of the engine: the partition, the host, the image, the context and namespace, or the program of the
    /// client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Number of sessions with an agent that runs or waits on the place.
    pub sessions: u64,
}

/// The response of `POST /v1/places/{name}/check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceCheck {
    /// Name of the place in the configuration.
    pub place: PlaceName,
    /// Whether an agent can run on the place: no step failed.
    pub ok: bool,
    /// The steps in their order. Steps after a failure may be missing.
    pub steps: Vec<PlaceStep>,
    /// The machine that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PlaceHost>,
}

/// One step of the check of a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceStep {
    /// Name of the step: `program`, `version`, `states`, `answer` or `keeper`. Later releases may add names.
    pub name: String,
    /// Whether the step succeeded.
    pub ok: bool,
    /// Result for people.
    pub message: String,
    /// Duration of the step in milliseconds.
    pub ms: u64,
}
