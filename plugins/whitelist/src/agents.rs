//! What each known agent's own documentation says it reads to log in, to reach its model and to find its home. Keys are
//! among them: an agent gets its own, by exact name, and nobody else's.

/// Names of the agent, and names of its variables.
const AGENTS: &[(&[&str], &[&str])] = &[
    // code.claude.com/docs/en/env-vars
    (
        &["claude", "claude-agent-acp", "claude-code-acp"],
        &[
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "ANTHROPIC_MODEL",
            "CLAUDE_CONFIG_DIR",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
        ],
    ),
    // github.com/openai/codex, docs/authentication.md and docs/config.md
    (&["codex", "codex-acp"], &["OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME"]),
    // docs.github.com, "Authenticating GitHub Copilot CLI"
    (&["copilot"], &["COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"]),
    // github.com/google-gemini/gemini-cli, docs/get-started/authentication.md and configuration.md
    (
        &["gemini", "gemini-cli"],
        &[
            "GEMINI_API_KEY",
            "GEMINI_MODEL",
            "GOOGLE_API_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_CLOUD_LOCATION",
            "GOOGLE_CLOUD_PROJECT",
            "GOOGLE_GEMINI_BASE_URL",
            "GOOGLE_GENAI_USE_VERTEXAI",
        ],
    ),
    // opencode.ai/docs/config and /docs/cli; it keeps keys in a file of its own
    (&["opencode"], &["OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT", "OPENCODE_CONFIG_DIR"]),
    // github.com/QwenLM/qwen-code, docs on authentication
    (&["qwen", "qwen-code"], &["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"]),
];

/// The variables of an agent that is known by this name; of any other, none.
pub(crate) fn essentials(agent: &str) -> &'static [&'static str] {
    AGENTS.iter().find(|(names, _)| names.contains(&agent)).map_or(&[], |(_, variables)| variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_known_by_its_names_and_no_other() {
        assert!(essentials("claude-agent-acp").contains(&"ANTHROPIC_API_KEY"));
        assert_eq!(essentials("claude-agent"), [""; 0]);
        assert_eq!(essentials(""), [""; 0]);
    }

    #[test]
    fn essentials_are_exact_names() {
        for (agents, variables) in AGENTS {
            assert!(!variables.iter().any(|name| name.contains(['*', '?'])), "{agents:?}");
        }
    }
}
