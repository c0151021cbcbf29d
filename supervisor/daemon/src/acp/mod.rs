//! The Agent Client Protocol (<https://agentclientprotocol.com>, version 1) as a client speaks it: what is sent, and what is
//! read out of what comes.
//!
//! Lines are kept verbatim elsewhere; here one is interpreted only as far as the session's rules need it, and tolerantly: an
//! update, a kind or a stop reason that this version does not know is none of its business.

mod call;
mod id;
mod incoming;
mod outgoing;

pub(crate) use call::Call;
pub(crate) use incoming::{
    Capabilities, Message, RpcError, ToolCall, concerns_the_session, initialized, opened, permission_request,
    stop_reason, tool_call,
};
pub(crate) use outgoing::{
    cancel, initialize, load, new_conversation, permission_answer, prompt, resume, unknown_method,
};

/// The methods that agentd sends, as they stand in `agent.in` records.
pub(crate) mod method {
    pub(crate) const INITIALIZE: &str = "initialize";
    pub(crate) const NEW: &str = "session/new";
    pub(crate) const LOAD: &str = "session/load";
    pub(crate) const RESUME: &str = "session/resume";
    pub(crate) const PROMPT: &str = "session/prompt";
    pub(crate) const CANCEL: &str = "session/cancel";
    /// The one request of an agent that is answered: no other is offered in `initialize`.
    pub(crate) const REQUEST_PERMISSION: &str = "session/request_permission";
    pub(crate) const UPDATE: &str = "session/update";
}

/// The error of an agent that wants to be signed in first.
pub(crate) use agentd_api::reason::AUTHENTICATION_REQUIRED_CODE as AUTHENTICATION_REQUIRED;
/// The error of a request that names what is not there. A text prompt names nothing but its conversation: "a session-scoped request
/// names a session that does not exist or is not active on the connection" (ACP, "Errors").
pub(crate) const RESOURCE_NOT_FOUND: i64 = -32002;

/// The `session/update` kinds that are history, and so come again when a conversation is loaded. Others (modes, commands,
/// configuration) describe the present.
pub(crate) const HISTORY: [&str; 6] =
    ["user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"];
