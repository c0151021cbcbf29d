//! The environment contract: the variables by which an agent and its tools learn about their session.
//!
//! agentd sets them after all providers and secrets, so no script changes them. Their values can differ from launch to
//! launch. Comparisons of environments leave them out.

use crate::doc::Named;

macro_rules! variables {
    ($(#[doc = $all:literal])+ $table:ident; $($(#[doc = $doc:literal])+ $name:ident,)*) => {
        $(#[doc = $all])+
        pub const $table: &[Named] = &[$(Named { name: stringify!($name), doc: &[$($doc,)+] },)*];
        $($(#[doc = $doc])+ pub const $name: &str = stringify!($name);)*
    };
}

variables! {
    /// agentd's own variables.
    VARIABLES;
    /// Id of the session. Always set.
    AGENTD_SESSION,
    /// Name of the session at the launch, if it has one.
    AGENTD_SESSION_NAME,
    /// Path of the session's own workspace, if it has one.
    AGENTD_WORKSPACE,
    /// Directory for results of the session, if it has a workspace.
    AGENTD_ARTIFACTS,
    /// `true` if the agent continues a conversation, otherwise `false`.
    AGENTD_CONTINUATION,
    /// Id of the session whose conversation this session continues, if it continues another session's.
    AGENTD_PARENT,
    /// Name of the workflow in force, if there is one.
    AGENTD_WORKFLOW,
    /// Directory of the workflow in force, in which the agent works.
    AGENTD_WORKFLOW_DIRECTORY,
    /// `true` if the session waits for further prompts, `false` if it completes when its prompts are done.
    AGENTD_INTERACTIVE,
    /// Path of the session's own control socket, if the session is guarded.
    AGENTD_SOCKET,
}

variables! {
    /// Variables of the Kubernetes runner, which `compatibility = "ambient"` adds.
    AMBIENT;
    /// The value of `AGENTD_SESSION`.
    SESSION_ID,
    /// Name of the session, or its id if it has no name.
    AGENTIC_SESSION_NAME,
    /// Path of the session's workspace, or its directory if it has no workspace.
    WORKSPACE_PATH,
    /// The value of `AGENTD_ARTIFACTS`, if it is set.
    ARTIFACTS_DIR,
    /// The initial prompt of the specification, if there is one of at most 64 KiB. agentd sends it, so a program that
    /// reads it must not send it again.
    INITIAL_PROMPT,
    /// The repositories of the specification as a JSON list of objects with `name`, `url` and `branch`, if there are
    /// any. A worktree has the path of its repository as `url`.
    REPOS_JSON,
    /// Address of the repository of the workflow in force, if it has one.
    ACTIVE_WORKFLOW_GIT_URL,
    /// Branch of the workflow in force, if the specification names one.
    ACTIVE_WORKFLOW_BRANCH,
    /// Path of the workflow in force in its repository, if the specification names one.
    ACTIVE_WORKFLOW_PATH,
    /// The value of `AGENTD_INTERACTIVE`.
    INTERACTIVE,
    /// Longest time of the session in seconds: its own limit of active time, else its own limit of a turn. Not set
    /// without either.
    TIMEOUT,
    /// The session whose conversation is continued: the parent at the first launch, and the session itself later. Not
    /// set for a new conversation.
    PARENT_SESSION_ID,
}

variables! {
    /// Variables whose values agentd sets as options of the agent, with `compatibility = "ambient"`.
    OPTIONS;
    /// Model: an id, a name, or a part of an id that only one model of the agent has.
    LLM_MODEL,
    /// Temperature of the model, for an agent with an option `temperature`.
    LLM_TEMPERATURE,
    /// Maximum number of tokens of an answer, for an agent with an option `max_tokens`.
    LLM_MAX_TOKENS,
}
