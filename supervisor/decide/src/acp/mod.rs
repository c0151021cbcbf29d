//! Implements the client side of the Agent Client Protocol, version 1 (<https://agentclientprotocol.com>): builds
//! messages, and extracts data from the agent's lines.
//!
//! The journal keeps all lines verbatim. This module interprets a line only as far as the session's rules need it,
//! and tolerantly: unknown updates, kinds and stop reasons are ignored.

mod call;
mod elicitation;
mod id;
mod incoming;
mod limit;
mod login;
mod mcp;
mod options;
mod outgoing;
mod prompt;
mod usage;

pub use agentd_keeper::output::concerns_the_session;
pub use call::Call;
pub use elicitation::{Question, question, question_options};
pub use incoming::{
    Capabilities, Message, RpcError, ToolCall, initialized, offered_to_agent, opened, permission_request,
    session_title, stop_reason, tool_call,
};
pub use limit::rate_limit;
pub use login::{authenticate, lacks_login};
pub use mcp::{OwnServer, obstacle};
pub use options::{
    OfferedOption, OptionKind, OptionUpdate, config_options, option_of, option_update, options, set_option,
};
pub use outgoing::{
    Surroundings, cancel, fork, initialize, load, new_conversation, permission_answer, question_answer, request_answer,
    resume, unknown_method,
};
pub use prompt::prompt;
pub use usage::{ReportedUsage, usage};

/// Names of the methods, as recorded in `agent.in` and `agent.out`.
pub mod method {
    pub const INITIALIZE: &str = "initialize";
    pub const AUTHENTICATE: &str = "authenticate";
    pub const NEW: &str = "session/new";
    pub const LOAD: &str = "session/load";
    pub const RESUME: &str = "session/resume";
    pub const FORK: &str = "session/fork";
    pub const PROMPT: &str = "session/prompt";
    pub const SET_OPTION: &str = "session/set_config_option";
    /// The requests of agents without an option for the mode or the model.
    pub const SET_MODE: &str = "session/set_mode";
    pub const SET_MODEL: &str = "session/set_model";
    pub const CANCEL: &str = "session/cancel";
    /// The requests of an agent that agentd serves; `initialize` offers no other.
    pub const REQUEST_PERMISSION: &str = "session/request_permission";
    pub const ELICITATION: &str = "elicitation/create";
    pub const UPDATE: &str = "session/update";
}

/// Code of the error with which an agent requires a login first.
pub use agentd_api::reason::AUTHENTICATION_REQUIRED_CODE as AUTHENTICATION_REQUIRED;
/// Code of the error for a missing resource. A text prompt refers to no resource but its conversation. ACP, "Errors":
/// "a session-scoped request names a session that does not exist or is not active on the connection".
pub const RESOURCE_NOT_FOUND: i64 = -32002;

/// Kinds of `session/update` that are history, which the agent sends again when it loads a conversation. Other
/// kinds (modes, commands, configuration) describe the present.
pub const HISTORY: [&str; 6] =
    ["user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"];
