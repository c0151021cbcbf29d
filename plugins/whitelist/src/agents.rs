//! Variables that each known agent needs to log in, to reach its model and to find its home. The sources are
//! the agents' documentation or, where that is incomplete, their code. The lists contain keys: an agent gets
//! its own keys by exact name, and no other agent's.
//!
//! Keys of a cloud are given only if a switch in the environment tells the agent to use that cloud.

/// An agent's names and its variables.
struct Agent {
    names: &'static [&'static str],
    variables: &'static [&'static str],
    clouds: &'static [Cloud],
}

/// Variables that are given if the switch is set to a value other than empty, `0` or `false`.
struct Cloud {
    switch: &'static str,
    variables: &'static [&'static str],
}

// Source: code.claude.com/docs/en/env-vars and /network-config. ANTHROPIC_CUSTOM_HEADERS carries a gateway's
// token.
const CLAUDE: &[&str] = &[
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_CUSTOM_MODEL_OPTION",
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "API_TIMEOUT_MS",
    "CLAUDE_CODE_CERT_STORE",
    "CLAUDE_CODE_CLIENT_CERT",
    "CLAUDE_CODE_CLIENT_KEY",
    "CLAUDE_CODE_CLIENT_KEY_PASSPHRASE",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CONFIG_DIR",
    "CLAUDE_SECURESTORAGE_CONFIG_DIR", // source: code of 2.1
    "MAX_THINKING_TOKENS",
    // Source: @agentclientprotocol/claude-agent-acp 0.100, dist/acp-agent.js.
    "CLAUDE_CODE_EXECUTABLE",
    "IS_SANDBOX",
    "NO_BROWSER",
];

const CLAUDE_CLOUDS: &[Cloud] = &[
    // Source: code.claude.com/docs/en/amazon-bedrock. The names of credentials are the AWS SDK's
    // (docs.aws.amazon.com, "Environment variables").
    Cloud {
        switch: "CLAUDE_CODE_USE_BEDROCK",
        variables: &[
            "ANTHROPIC_BEDROCK_BASE_URL",
            "AWS_ACCESS_KEY_ID",
            "AWS_BEARER_TOKEN_BEDROCK",
            "AWS_CONFIG_FILE",
            "AWS_DEFAULT_REGION",
            "AWS_PROFILE",
            "AWS_REGION",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_SHARED_CREDENTIALS_FILE",
            "CLAUDE_CODE_SKIP_BEDROCK_AUTH",
        ],
    },
    // Source: code.claude.com/docs/en/google-vertex-ai.
    Cloud {
        switch: "CLAUDE_CODE_USE_VERTEX",
        variables: &[
            "ANTHROPIC_VERTEX_BASE_URL",
            "ANTHROPIC_VERTEX_PROJECT_ID",
            "CLAUDE_CODE_SKIP_VERTEX_AUTH",
            "CLOUD_ML_REGION",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ],
    },
    // Source: code.claude.com/docs/en/microsoft-foundry.
    Cloud {
        switch: "CLAUDE_CODE_USE_FOUNDRY",
        variables: &[
            "ANTHROPIC_FOUNDRY_API_KEY",
            "ANTHROPIC_FOUNDRY_BASE_URL",
            "ANTHROPIC_FOUNDRY_RESOURCE",
            "CLAUDE_CODE_SKIP_FOUNDRY_AUTH",
        ],
    },
];

// Source: developers.openai.com/codex/environment-variables; OPENAI_API_KEY and OPENAI_BASE_URL only in the
// code of 0.169. The `env_key` of a model provider may name any variable. The administrator must allow that
// variable.
const CODEX: &[&str] = &[
    "CODEX_ACCESS_TOKEN",
    "CODEX_API_KEY",
    "CODEX_CA_CERTIFICATE",
    "CODEX_HOME",
    "CODEX_OSS_BASE_URL",
    "CODEX_SQLITE_HOME",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    // Source: @agentclientprotocol/codex-acp 2.6, README.md.
    "APP_SERVER_LOGS",
    "CODEX_CONFIG",
    "CODEX_PATH",
    "DEFAULT_AUTH_REQUEST",
    "INITIAL_AGENT_MODE",
    "MODEL_PROVIDER",
    "NO_BROWSER",
];

// Source: `copilot help environment` and `copilot help providers` of 1.0.102; COPILOT_CACHE_HOME from the code.
const COPILOT: &[&str] = &[
    "COPILOT_AUTO_UPDATE",
    "COPILOT_CACHE_HOME",
    "COPILOT_GH_HOST",
    "COPILOT_GITHUB_TOKEN",
    "COPILOT_HOME",
    "COPILOT_MODEL",
    "COPILOT_OFFLINE",
    "COPILOT_PROVIDER_API_KEY",
    "COPILOT_PROVIDER_API_KEY_COMMAND",
    "COPILOT_PROVIDER_AZURE_API_VERSION",
    "COPILOT_PROVIDER_BASE_URL",
    "COPILOT_PROVIDER_BEARER_TOKEN",
    "COPILOT_PROVIDER_HEADERS",
    "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS",
    "COPILOT_PROVIDER_MAX_PROMPT_TOKENS",
    "COPILOT_PROVIDER_MODEL_ID",
    "COPILOT_PROVIDER_TRANSPORT",
    "COPILOT_PROVIDER_TYPE",
    "COPILOT_PROVIDER_WIRE_API",
    "COPILOT_PROVIDER_WIRE_MODEL",
    "GH_HOST",
    "GH_TOKEN",
    "GITHUB_TOKEN",
];

// Source: github.com/google-gemini/gemini-cli, docs/reference/configuration.md and
// docs/get-started/authentication.mdx; the last four from the code of 0.61. With Vertex AI and a credentials
// file the two keys must not be set: drop them in the snapshot.
const GEMINI: &[&str] = &[
    "GEMINI_API_KEY",
    "GEMINI_CLI_HOME",
    "GEMINI_CLI_SYSTEM_SETTINGS_PATH",
    "GEMINI_CLI_TRUSTED_FOLDERS_PATH",
    "GEMINI_CLI_TRUST_WORKSPACE",
    "GEMINI_MODEL",
    "GOOGLE_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_LOCATION",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_PROJECT_ID",
    "GOOGLE_CLOUD_QUOTA_PROJECT",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_GENAI_API_VERSION",
    "GOOGLE_GENAI_USE_GCA",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_VERTEX_BASE_URL",
    "CODE_ASSIST_ENDPOINT",
    "GEMINI_CLI_CUSTOM_HEADERS",
    "GEMINI_CLI_NO_RELAUNCH",
    "GOOGLE_CLOUD_ACCESS_TOKEN",
];

// Source: opencode.ai/docs/cli, /docs/config and /docs/network. opencode keeps keys in auth.json below
// XDG_DATA_HOME. OPENCODE_CONFIG_CONTENT and OPENCODE_AUTH_CONTENT may contain keys. The administrator must
// allow the keys of other model providers.
const OPENCODE: &[&str] = &[
    "OPENCODE_API_KEY",
    "OPENCODE_AUTH_CONTENT",
    "OPENCODE_CONFIG",
    "OPENCODE_CONFIG_CONTENT",
    "OPENCODE_CONFIG_DIR",
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_MODELS_URL",
    "OPENCODE_PERMISSION",
];

// Source: qwenlm.github.io/qwen-code-docs, users/configuration/auth; QWEN_HOME, QWEN_RUNTIME_DIR and the last
// two from the code of 0.24. The administrator must allow the keys of other model providers.
const QWEN: &[&str] = &[
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_MODEL",
    "BAILIAN_CODING_PLAN_API_KEY",
    "DASHSCOPE_API_KEY",
    "GEMINI_API_KEY",
    "GEMINI_MODEL",
    "GOOGLE_API_KEY",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_MODEL",
    "QWEN_HOME",
    "QWEN_MODEL",
    "QWEN_RUNTIME_DIR",
    "QWEN_CODE_NO_RELAUNCH",
    "QWEN_CODE_SYSTEM_SETTINGS_PATH",
];

const AGENTS: &[Agent] = &[
    Agent {
        names: &["claude", "claude-code", "claude-agent-acp", "claude-code-acp"],
        variables: CLAUDE,
        clouds: CLAUDE_CLOUDS,
    },
    Agent { names: &["codex", "codex-acp"], variables: CODEX, clouds: &[] },
    Agent { names: &["copilot"], variables: COPILOT, clouds: &[] },
    Agent { names: &["gemini", "gemini-cli"], variables: GEMINI, clouds: &[] },
    Agent { names: &["opencode"], variables: OPENCODE, clouds: &[] },
    Agent { names: &["qwen", "qwen-code"], variables: QWEN, clouds: &[] },
];

/// Returns the variables of the agent with this name, or none for an unknown agent. `value` returns the value
/// of a variable of the environment.
pub(crate) fn essentials<'a>(agent: &str, value: impl Fn(&str) -> Option<&'a [u8]>) -> Vec<&'static str> {
    let Some(agent) = AGENTS.iter().find(|known| known.names.contains(&agent)) else { return Vec::new() };
    let on = |cloud: &&Cloud| value(cloud.switch).is_some_and(|value| !matches!(value, b"" | b"0" | b"false"));
    let clouds = agent.clouds.iter().filter(on).flat_map(|cloud| cloud.variables);
    agent.variables.iter().chain(clouds).copied().collect()
}

/// Returns every name that some agent gets.
#[cfg(test)]
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    AGENTS.iter().flat_map(|agent| {
        let clouds = agent.clouds.iter().flat_map(|cloud| cloud.variables);
        agent.variables.iter().chain(clouds).copied()
    })
}
