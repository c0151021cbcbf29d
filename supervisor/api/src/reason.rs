//! Reasons that programs act on: values of [`crate::session::Condition::reason`] and of the record
//! `launch.failed`.
//!
//! A condition may have other reasons too. A reader shows the message of a reason that it does not know.

use crate::doc::Named;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $constant:ident = $name:literal,)*) => {
        $($(#[doc = $doc])+ pub const $constant: &str = $name;)*

        /// All reasons of this module, in the order of their declaration.
        pub const ALL: &[Named] = &[$(Named { name: $name, doc: &[$($doc,)+] },)*];
    };
}

reasons! {
    /// `PrerequisitesMet` is False, and the launch waits until the prerequisites are met.
    WAITING = "Waiting",
    /// The launch waited for prerequisites longer than its limit.
    WAIT_TIMED_OUT = "WaitTimedOut",
    /// A prerequisite is not met, and the launch does not wait for it.
    PREREQUISITE_FAILED = "PrerequisiteFailed",
    /// `EnvironmentReady` is False while plugins of the launch are compiled or loaded. The message names the
    /// plugins.
    COMPILING_PLUGIN = "CompilingPlugin",
    /// `EnvironmentReady` is Unknown while a login shell or script runs longer than one second. The message names
    /// the shell or script.
    BUILDING = "Building",
    /// `EnvironmentReady` is Unknown while the launch waits for a correction of the mistake in the message.
    CONFIGURATION_INVALID = "ConfigurationInvalid",
    /// The agent opens no conversation until a person signs in.
    AUTHENTICATION_REQUIRED = "AuthenticationRequired",
}

/// The JSON-RPC error code with which an agent requests a login (Agent Client Protocol, "Authentication").
pub const AUTHENTICATION_REQUIRED_CODE: i64 = -32000;

/// Reports whether a condition with this reason describes progress of a launch rather than a fault.
pub fn is_progress(reason: &str) -> bool {
    matches!(reason, WAITING | COMPILING_PLUGIN | BUILDING | CONFIGURATION_INVALID)
}
