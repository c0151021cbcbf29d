//! The reasons that programs act on: words of [`crate::session::Condition::reason`] and of the record `launch.failed`.
//!
//! A condition may have any other word too. A reader shows the message of a reason that it does not know.

/// `PrerequisitesMet` is False, and the launch waits until the prerequisites are met.
pub const WAITING: &str = "Waiting";
/// The wait for prerequisites was longer than its limit.
pub const WAIT_TIMED_OUT: &str = "WaitTimedOut";
/// A prerequisite is not met, and the launch was not asked to wait for it.
pub const PREREQUISITE_FAILED: &str = "PrerequisiteFailed";
/// `EnvironmentReady` is False while plugins of the launch are compiled or loaded. The message names them.
pub const COMPILING_PLUGIN: &str = "CompilingPlugin";
/// `EnvironmentReady` is Unknown while a login shell or a script takes longer than a second. The message names what is waited for.
pub const BUILDING: &str = "Building";
/// `EnvironmentReady` is Unknown while the launch waits for a configuration without the mistake that the message names.
pub const CONFIGURATION_INVALID: &str = "ConfigurationInvalid";
/// The agent opens no conversation before somebody signs in.
pub const AUTHENTICATION_REQUIRED: &str = "AuthenticationRequired";

/// The JSON-RPC error code with which an agent asks for a login (Agent Client Protocol, "Authentication").
pub const AUTHENTICATION_REQUIRED_CODE: i64 = -32000;

/// Whether a condition with this reason says what a launch waits for. It is progress, and not a fault.
pub fn is_progress(reason: &str) -> bool {
    matches!(reason, WAITING | COMPILING_PLUGIN | BUILDING | CONFIGURATION_INVALID)
}
