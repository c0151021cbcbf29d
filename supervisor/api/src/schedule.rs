//! Schedules: a new session or a prompt at one time, or at the times of a calendar expression.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{ScheduleName, SessionId, TurnId};
use crate::quantity;
use crate::session::SessionSpec;

/// The label of a session that a schedule created. Its value is the schedule's name.
pub const LABEL: &str = "agentd.schedule";
/// Number of runs that a schedule remembers without `history_limit`.
pub const HISTORY: u32 = 20;
/// Greatest `history_limit`.
pub const LONGEST_HISTORY: u32 = 200;
/// Time limit in seconds of a wait for prerequisites without `wait_seconds`.
pub const WAIT: u64 = 3600;

/// The specification of a schedule: the body of `POST /v1/schedules`.
///
/// A schedule has `at` or `calendar`, and `session` or `prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Name of the schedule, unique among all schedules.
    pub name: ScheduleName,
    /// The time of the only run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The times of the runs, as a calendar expression of systemd (systemd.time(7), "Calendar Events").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<String>,
    /// Time zone of the calendar expression, as `Europe/Berlin`. By default the machine's time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The session that each run creates. With a calendar expression, the time of the run is appended to its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionSpec>,
    /// The prompt that each run sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<ScheduledPrompt>,
    /// Source of a new session's first environment.
    #[serde(default, skip_serializing_if = "is_default")]
    pub environment: ScheduleEnvironment,
    /// Treatment of a run while a prerequisite is not met.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prerequisites: PrerequisitePolicy,
    /// Time limit in seconds of a wait for prerequisites. By default an hour.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_seconds")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Seconds>"))]
    pub wait_seconds: Option<u64>,
    /// Treatment of times that were missed, because the machine slept or agentd did not run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missed: MissedPolicy,
    /// Treatment of a run while an earlier run is active.
    #[serde(default, skip_serializing_if = "is_default")]
    pub concurrency: Concurrency,
    /// Whether no run starts by itself. Times that pass meanwhile are not made up for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub suspended: bool,
    /// Number of runs that agentd remembers, from 1 to 200. By default 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_limit: Option<u32>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A prompt to an existing session. A session without an agent is resumed first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduledPrompt {
    /// Id or name of the session.
    pub session: String,
    /// The prompt.
    pub text: String,
}

/// Source of the first environment of a session that a schedule creates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleEnvironment {
    /// The environment is built when the run starts.
    #[default]
    Built,
    /// The environment of the terminal in which the session was scheduled. agentd stores it encrypted.
    Captured,
}

/// Treatment of a run while a prerequisite is not met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PrerequisitePolicy {
    /// The run waits, at most for `wait_seconds`.
    #[default]
    Wait,
    /// The run is skipped.
    Skip,
}

/// Treatment of times at which no run could start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MissedPolicy {
    /// One run starts as soon as possible, for all missed times together.
    #[default]
    Once,
    /// Nothing starts.
    Skip,
}

/// Treatment of a run while an earlier run is active, as for a `CronJob` of Kubernetes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Concurrency {
    /// Both are active.
    #[default]
    Allow,
    /// The new run is skipped.
    Forbid,
    /// The earlier run is ended: its session is stopped, or its turn is cancelled.
    Replace,
}

/// A schedule: its specification and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleView {
    /// The specification.
    pub spec: ScheduleSpec,
    /// Number of the specification, from 1.
    pub generation: u64,
    /// Time of the creation.
    pub created: Timestamp,
    /// The next time. Absent without a next time, and while the schedule is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// The program that waits for the next time: `systemd` or `agentd`. Absent without a next time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<Timer>,
    /// Number of active runs.
    pub active: u64,
    /// Why the last run did not start or failed, or why the schedule cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduleRun>,
    /// The remembered runs, oldest first. Left out in the list of all schedules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ScheduleRun>,
}

/// The program that waits for the next time of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Timer {
    /// A timer unit of systemd, which also starts agentd.
    Systemd,
    /// agentd itself.
    Agentd,
    /// A value newer than this reader.
    #[serde(other)]
    Unknown,
}

/// One run of a schedule, or times without a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleRun {
    /// The time of the schedule; for a run by request, the time of the request.
    pub due: Timestamp,
    /// Whether a client requested the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requested: bool,
    /// The result of the run so far.
    pub outcome: RunOutcome,
    /// Time at which the run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Time at which the run ended, or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// The session that the run created or prompted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The turn of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Description of a failure, or why the run was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of missed times up to `due`. 1000 means that many or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// The result of a run so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RunOutcome {
    /// The run has begun: its session is being created, or its prompt waits.
    Starting,
    /// The session is at work.
    Started,
    /// The turn ended well; without a prompt, the session ended well.
    Succeeded,
    /// The run could not start, or its session or turn failed.
    Failed,
    /// Nothing was started.
    Skipped,
    /// The time passed while the machine slept or agentd did not run.
    Missed,
    /// A value newer than this reader.
    #[serde(other)]
    Unknown,
}

impl RunOutcome {
    /// Reports whether the run may still be at work.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Starting | Self::Started)
    }

    /// Returns the name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Missed => "missed",
            Self::Unknown => "unknown",
        }
    }
}

/// The response of `GET /v1/schedules`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleList {
    /// The schedules by their names, without their history.
    pub schedules: Vec<ScheduleView>,
    /// The schedules whose files cannot be read. They do not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableSchedule>,
}

/// A schedule whose file cannot be read. The file is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnreadableSchedule {
    /// Name of the file without its ending.
    pub name: String,
    /// Why the file cannot be read.
    pub reason: String,
}

/// The response of `POST /v1/schedules/{schedule}/run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleRuns {
    /// The runs that the request began or skipped. Empty if `due` was requested and nothing is due.
    pub runs: Vec<ScheduleRun>,
}
