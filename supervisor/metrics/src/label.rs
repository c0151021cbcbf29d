//! The fixed values of labels.

/// Value for everything that has no value of its own.
pub const OTHER: &str = "other";
/// Route of a request whose path or method is unknown.
pub const NO_ROUTE: &str = "none";
/// Agent of sessions that were created with a command of their own.
pub(crate) const COMMAND: &str = "command";

pub(crate) const LAUNCH_REASONS: &[&str] = &["create", "resume", "restart", "workflow", OTHER];
pub(crate) const WARM_OUTCOMES: &[&str] = &["used", "not-used"];
pub(crate) const LAUNCH_OUTCOMES: &[&str] = &["ready", "failed", "stopped"];
pub(crate) const STEPS: &[&str] = &["prerequisites", "workspace", "environment", "agent", "conversation"];
pub(crate) const BUILDS: &[&str] = &["built", "restored", "incomplete", "failed"];
pub(crate) const SNAPSHOT_USES: &[&str] = &["hit", "capture"];
pub(crate) const SCRIPTS: &[&str] = &["ok", "warned", "failed", "reused"];
pub(crate) const CHECKS: &[&str] = &["pass", "warn", "fail", "unknown"];
pub(crate) const CALLS: &[&str] = &["ok", "failed"];
pub(crate) const TURNS: &[&str] = &[
    "end-turn",
    "max-tokens",
    "max-turn-requests",
    "refusal",
    "cancelled",
    "dropped",
    "agent-error",
    "agent-exited",
    "answer-invalid",
    OTHER,
];
pub(crate) const ANSWERS: &[&str] = &["policy", "client", "session", "timeout", "cancelled", OTHER];
pub(crate) const ENDS: &[&str] = &["requested", "exited", "crashed", "limit"];
pub(crate) const HOOK_OUTCOMES: &[&str] = &["delivered", "failed", "dropped"];
pub(crate) const SAMPLES: &[&str] = &["disk", "processes"];
pub(crate) const NOT_READY: &[&str] = agentd_api::readiness::NotReady::CODES;
pub(crate) const CONNECTIONS_REFUSED: &[&str] = &["socket", "tcp", "read-only"];
