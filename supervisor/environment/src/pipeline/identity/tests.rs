use std::fs;
use std::os::unix::fs::symlink;

use super::*;

fn command(line: &str) -> Vec<String> {
    line.split('|').map(str::to_owned).collect()
}

/// Identifies a command by its text alone. Bars separate the words.
fn by_words(line: &str) -> Option<&'static str> {
    behind_launchers(&command(line), 0).and_then(|program| by_text(&program)).map(KnownAgent::name)
}

#[test]
fn an_agent_is_known_by_its_command() {
    for (line, expected) in [
        ("claude", "claude"),
        ("claude-agent-acp", "claude"),
        ("/home/kim/.local/bin/claude-code-acp|--debug", "claude"),
        ("npx|-y|@agentclientprotocol/claude-agent-acp@0.100.0", "claude"),
        ("npx|--yes|@zed-industries/claude-code-acp@latest", "claude"),
        ("npx|-p|@anthropic-ai/claude-code|claude|acp", "claude"),
        ("npx|--package=@google/gemini-cli@0.61|--|gemini", "gemini"),
        ("npx|--registry|https://npm.example/|codex-acp", "codex"),
        ("bunx|@google/gemini-cli|--experimental-acp", "gemini"),
        ("bun|x|@qwen-code/qwen-code@0.24", "qwen"),
        ("bun|run|/opt/acp/node_modules/@agentclientprotocol/codex-acp/dist/index.js", "codex"),
        ("deno|run|-A|npm:@google/gemini-cli@0.61", "gemini"),
        ("pnpm|dlx|@openai/codex", "codex"),
        ("yarn|dlx|opencode-ai|acp", "opencode"),
        ("npm|exec|--|@github/copilot|--acp", "copilot"),
        ("node|/usr/lib/node_modules/@anthropic-ai/claude-code/cli.js", "claude"),
        ("node|--no-warnings|-r|/opt/hook.js|/srv/x/node_modules/@google/gemini-cli/dist/index.js|--acp", "gemini"),
        ("node|--max-old-space-size=4096|/srv/node_modules/.bin/qwen", "qwen"),
        ("/usr/bin/env|claude-agent-acp", "claude"),
        ("env|-i|HOME=/h|-u|LANG|node|/a/node_modules/opencode-ai/bin/opencode|acp", "opencode"),
        ("env|-S|node --no-warnings /a/node_modules/@github/copilot/index.js", "copilot"),
        ("bash|-lc|exec claude-agent-acp \"$@\"", "claude"),
        ("sh|-c|cd /work && FOO=1 exec npx -y @google/gemini-cli --acp", "gemini"),
        ("nice|-n|10|ionice|-c|3|codex-acp", "codex"),
        ("timeout|-k|5|1h|opencode|acp", "opencode"),
        ("setsid|nohup|qwen|--acp", "qwen"),
        ("direnv|exec|.|claude-agent-acp", "claude"),
        ("mise|exec|node@22|--|claude-agent-acp", "node"),
        ("systemd-run|--user|--scope|-p|MemoryMax=2G|--|gemini|--acp", "gemini"),
        ("gh|copilot|--acp", "copilot"),
        ("/opt/codex-x86_64-unknown-linux-musl", "codex"),
        ("/opt/opencode-linux-x64|acp", "opencode"),
        ("/opt/claude-2.1.0", "claude"),
        ("/opt/gemini_v1.2.js", "gemini"),
        ("my-wrapper", ""),
        ("node|-e|process.exit()", ""),
        ("node", ""),
        ("npx|some-claude", ""),
        ("claude-desktop", ""),
        ("/opt/claude/bin/other", ""),
        ("cat|/usr/lib/node_modules/@anthropic-ai/claude-code/cli.js", ""),
        ("env|env|env|env|env|env|env|env|env|claude", ""),
        ("", ""),
    ] {
        let expected = if expected == "node" { None } else { Some(expected).filter(|expected| !expected.is_empty()) };
        assert_eq!(by_words(line), expected, "{line}");
    }
}

/// A home directory with linked programs, in which commands are identified.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn file(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("the folders");
        fs::write(&path, text).expect("the file");
        path
    }

    fn link(&self, path: &str, to: &Path) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("the folders");
        symlink(to, path).expect("the link");
    }

    async fn identity(&self, line: &str) -> Option<&'static str> {
        use std::os::unix::ffi::OsStrExt as _;
        let line = line.replace('~', self.0.path().to_str().expect("a path in UTF-8"));
        let path = self.0.path().join("bin");
        identify(&command(&line), Some(path.as_os_str().as_bytes()), self.0.path()).await.map(KnownAgent::name)
    }
}

#[tokio::test]
async fn a_link_is_identified_by_its_target_and_a_script_by_its_package() {
    let home = Home::new();
    let cli = home.file("lib/node_modules/@anthropic-ai/claude-code/cli.js", "");
    home.link("bin/reviewer", &cli);
    let codex = home.file("opt/codex-x86_64-unknown-linux-musl", "");
    home.link("bin/claude", &codex);
    home.file("src/acp/package.json", r#"{ "name": "@agentclientprotocol/claude-agent-acp", "version": "1.0.0" }"#);
    home.file("src/acp/dist/index.js", "");
    let version = home.file("share/claude/versions/2.1.0", "");
    home.link("bin/claude-native", &version);
    home.link("own/claude", &version);
    home.file("src/mine/package.json", "{");
    home.file("src/mine/index.js", "");
    assert_eq!(home.identity("reviewer").await, Some("claude"));
    assert_eq!(home.identity("~/bin/reviewer|--acp").await, Some("claude"));
    assert_eq!(home.identity("env|reviewer").await, Some("claude"));
    assert_eq!(home.identity("claude").await, Some("codex"), "the link's own name says less than what it leads to");
    assert_eq!(home.identity("node|~/src/acp/dist/index.js").await, Some("claude"));
    assert_eq!(home.identity("node|src/acp/dist/index.js").await, Some("claude"));
    assert_eq!(
        home.identity("~/own/claude").await,
        Some("claude"),
        "a link to a file that is called after its version"
    );
    assert_eq!(home.identity("node|~/src/mine/index.js").await, None);
    assert_eq!(home.identity("not-there").await, None);
    assert_eq!(home.identity("/not/there/gemini").await, Some("gemini"));
}
