//! The table of logins: each known agent without a key, with a key as a secret, with a lost login, and with its own
//! login. Each cell has the words that a person sees. The guide has the same table.
//!
//! The agents are real, and talk to the stand-in for a model. It refuses a wrong key in the way of the vendors.
//!
//! Findings, from ACP without agentd:
//! - copilot 1.0.102 logs in at GitHub only. With a provider and `COPILOT_OFFLINE` it refuses to log in.
//! - gemini-cli 0.61.0 reads `~/.gemini/.env` only in a directory that it trusts.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use agentd_api::session::{ConditionStatus, ConditionType, SessionView};
use serde_json::json;

use crate::harness::ctl::{Said, ctl};
use crate::harness::{Daemon, require};
use crate::real_agent::{Model, argument};

/// The key at first, and the key after its renewal.
const KEY: &str = "first-key-0123456789";
const NEW_KEY: &str = "second-key-0123456789";

const GUIDE: &str = include_str!("../../docs/guide/agents.md");

/// A row of the table.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own about an agent")]
struct Row {
    name: &'static str,
    command: Vec<String>,
    /// Variables with the address of the stand-in.
    provider: Vec<(&'static str, String)>,
    /// Mode in which a person, not the model, decides about a command. `None` if it is the agent's own.
    mode: Option<&'static str>,
    /// Whether the state without a key also lacks the address, because a provider changes the login.
    is_bare: bool,
    key: &'static str,
    /// Whether the agent's tools have the key.
    shows_key: bool,
    /// Whether the agent opens a conversation without a login, and refuses its first prompt.
    opens: bool,
    /// The agent's words without a key.
    missing: &'static str,
    lost: Lost,
    /// Whether a conversation can be resumed in the minute in which it began.
    resumes_at_once: bool,
    own: Own,
}

/// The words after the login has ended.
enum Lost {
    /// The agent refuses the prompt with these words.
    Refused(&'static str),
    /// The agent ends the turn as done, with these words as its message.
    Told(&'static str),
}

/// The agent's own login.
enum Own {
    /// A file of the home with this content.
    File(&'static str, String),
    /// A file of the home with variables, which is no sign of a login.
    Variables(&'static str, String),
    /// A file of the home that the agent wrote when it got the key.
    Kept(&'static str),
    /// No login without the vendor's servers: `agentctl agent login` has these words.
    Impossible(&'static str),
}

/// Runs a command, which never shows a key.
async fn see(daemon: &Daemon, arguments: &[&str]) -> Said {
    let said = ctl(daemon, arguments).await;
    assert!(![KEY, NEW_KEY].iter().any(|key| said.out.contains(key) || said.err.contains(key)), "{said:#?}");
    said
}

#[track_caller]
fn assert_seen(said: &Said, status: i32, words: &[&str]) {
    assert_eq!(said.status, Some(status), "{said:#?}");
    for word in words {
        assert!(said.out.contains(word) || said.err.contains(word), "no {word:?}: {said:#?}");
    }
}

/// Asserts the login in `agentctl agent ls`.
async fn assert_listed(daemon: &Daemon, row: &Row, login: &str) {
    let said = see(daemon, &["agent", "ls"]).await;
    let line = said.out.lines().find(|line| line.split_whitespace().next() == Some(row.name)).expect(&said.out);
    assert!(line.contains(&format!("  {login}  ")), "not {login:?}: {line}");
}

/// Asserts what the commands show of an agent that lacks a login.
async fn assert_required(daemon: &Daemon, row: &Row, session: &str, reason: &str, words: &str) {
    let way = format!("log in with `agentctl agent login {}`", row.name);
    let said = see(daemon, &["--json", "show", session]).await;
    let view: SessionView = serde_json::from_str(&said.out).expect("it is one document");
    let required = view.status.conditions.iter().find(|one| one.kind == ConditionType::AuthenticationRequired);
    let required = required.unwrap_or_else(|| panic!("no condition: {}", said.out));
    assert_eq!((required.status, required.reason.as_str()), (ConditionStatus::True, reason));
    assert!(required.message.contains(words) && required.message.contains(&way), "{}", required.message);
    assert_listed(daemon, row, "refused").await;
    let stop = if view.status.phase.is_active() { format!("agentctl stop {} && ", view.id) } else { String::new() };
    let again = format!("{stop}agentctl resume {}", view.id);
    let doctor = see(daemon, &["doctor"]).await;
    let found = format!("{} is not logged in", row.name);
    for word in [found.as_str(), words, &way, &again] {
        assert!(doctor.out.contains(word), "no {word:?}: {}", doctor.out);
    }
}

fn renew_key(daemon: &Daemon, key: &str) {
    let file = daemon.root().join("key");
    fs::write(&file, key).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Sets the configuration: the agent with the given parts.
async fn configure(daemon: &Daemon, row: &Row, base: &str, has_provider: bool, has_key: bool) {
    let mut config = format!("{base}\n[agents.{0}]\nlike = \"{0}\"\ncommand = {1:?}\n\n", row.name, row.command);
    if has_provider {
        writeln!(config, "[agents.{}.env]", row.name).unwrap();
        row.provider.iter().for_each(|(name, value)| writeln!(config, "{name} = {value:?}").unwrap());
    }
    if has_key {
        let file = daemon.root().join("key");
        let (key, file) = (row.key, file.display());
        write!(config, "\n[secrets.{key}]\nfile = \"{file}\"\nagents = [{:?}]\n", row.name).unwrap();
    }
    daemon.configure(|_| config);
    assert_seen(&see(daemon, &["reload"]).await, 0, &[]);
}

async fn table(row: Row, daemon: Daemon, model: &Model) {
    is_in_guide(&row);
    let mut daemon = daemon;
    daemon.run().await;
    let mut base = String::new();
    daemon.configure(|config| {
        base.clone_from(&config);
        config
    });
    model.server.accept_only(KEY);

    configure(&daemon, &row, &base, !row.is_bare, false).await;
    without_key(&daemon, &row).await;

    renew_key(&daemon, KEY);
    configure(&daemon, &row, &base, true, true).await;
    with_key(&daemon, &row, model).await;
    with_lost_login(&daemon, &row, model).await;

    model.server.accept_only(KEY);
    configure(&daemon, &row, &base, true, false).await;
    with_own_login(&daemon, &row).await;
}

async fn without_key(daemon: &Daemon, row: &Row) {
    let said = see(daemon, &["run", "--agent", row.name, "--name", "none", "hello"]).await;
    let (failure, again) = if row.opens {
        ("the agent refused the prompt for lack of a login: ", "agentctl stop none && agentctl resume none")
    } else {
        ("the session could not start: the agent requires a login first: ", "agentctl resume none")
    };
    let failure = format!("{failure}{}", row.missing);
    let way = format!("log in with `agentctl agent login {}` (it offers: ", row.name);
    let hint = format!("  hint: once you are logged in: {again}\n");
    assert_seen(&said, 1, &[&failure, &way, "or give its key as a secret in agentd.toml", &hint]);
    assert_required(daemon, row, "none", "NotLoggedIn", row.missing).await;
}

async fn with_key(daemon: &Daemon, row: &Row, model: &Model) {
    let mut run = vec!["run", "--agent", row.name, "--name", "fix", "--permissions", "allow", "my colour is teal"];
    run.extend(row.mode.iter().flat_map(|mode| ["--mode", mode]));
    assert_seen(&see(daemon, &run).await, 0, &["you said: ", "my colour is teal"]);
    assert_listed(daemon, row, "key").await;
    // The tool prints the key, and agentd hides it.
    let printed = see(daemon, &["prompt", "fix", &format!("run: echo the key is ${}.", row.key)]).await;
    assert_seen(&printed, 0, &["the tool ran"]);
    let heard: Vec<String> = model.server.asked().iter().flat_map(|asked| asked.texts("tool")).collect();
    let has_key = heard.iter().any(|text| text.contains(&format!("the key is {KEY}.")));
    assert_eq!(has_key, row.shows_key, "{heard:?}");
    assert_eq!(daemon.holders(KEY), Vec::<&Path>::new());
}

/// The vendor accepts only another key from now on. The session continues when the secret has it.
async fn with_lost_login(daemon: &Daemon, row: &Row, model: &Model) {
    model.server.accept_only(NEW_KEY);
    let said = see(daemon, &["prompt", "fix", "what now"]).await;
    match row.lost {
        Lost::Refused(words) => {
            let failure = format!("the agent refused the prompt for lack of a login: {words}");
            let way = format!("log in with `agentctl agent login {}`", row.name);
            let hint = "  hint: once you are logged in: agentctl stop fix && agentctl resume fix\n";
            assert_seen(&said, 1, &[&failure, &way, hint]);
            assert_required(daemon, row, "fix", "LoginLost", words).await;
        }
        Lost::Told(words) => {
            assert_seen(&said, 0, &[words, row.key]);
            assert_listed(daemon, row, "key").await;
        }
    }
    if row.resumes_at_once {
        renew_key(daemon, NEW_KEY);
        assert_seen(&see(daemon, &["stop", "fix"]).await, 0, &[]);
        assert_seen(&see(daemon, &["resume", "fix"]).await, 0, &[]);
    } else {
        model.server.accept_only(KEY);
    }
    assert_seen(&see(daemon, &["prompt", "fix", "which colour"]).await, 0, &["teal", "which colour"]);
    assert_listed(daemon, row, "key").await;
    let shown = see(daemon, &["show", "fix"]).await;
    assert!(!shown.out.contains("AuthenticationRequired  True"), "{}", shown.out);
    assert_eq!(daemon.holders(NEW_KEY), Vec::<&Path>::new());
}

async fn with_own_login(daemon: &Daemon, row: &Row) {
    match &row.own {
        Own::File(name, text) | Own::Variables(name, text) => home_file(daemon, name, text),
        Own::Kept(name) => {
            // The agent kept the renewed key.
            let file = daemon.home().join(name);
            let kept = fs::read_to_string(&file).unwrap();
            assert!(kept.contains(NEW_KEY), "{kept}");
            fs::write(&file, kept.replace(NEW_KEY, KEY)).unwrap();
        }
        Own::Impossible(words) => {
            let said = see(daemon, &["agent", "login", row.name]).await;
            let ended = format!("the login program of {} ended with exit status: 1", row.name);
            return assert_seen(&said, 2, &[words, &ended, "try again, or another method"]);
        }
    }
    let said = see(daemon, &["run", "--agent", row.name, "--name", "own", "are you there"]).await;
    assert_seen(&said, 0, &["you said: ", "are you there"]);
    let is_sign = !matches!(row.own, Own::Variables(..));
    assert_listed(daemon, row, if is_sign { "logged in" } else { "missing" }).await;
}

/// Asserts that the guide has the words of the row.
fn is_in_guide(row: &Row) {
    let line = GUIDE.lines().find(|line| line.starts_with(&format!("| `{}` |", row.name))).expect("the guide has it");
    let lost = match row.lost {
        Lost::Refused(words) | Lost::Told(words) => words,
    };
    let own = match &row.own {
        Own::File(name, _) | Own::Variables(name, _) | Own::Kept(name) => format!("~/{name}"),
        Own::Impossible(words) => (*words).to_owned(),
    };
    for word in [row.missing, row.key, lost, &own] {
        assert!(line.contains(word), "the guide has no {word:?}: {line}");
    }
}

fn command(program: &Path, more: &[&str]) -> Vec<String> {
    let mut command = vec![argument(program)];
    command.extend(more.iter().map(|&word| word.to_owned()));
    command
}

fn home_file(daemon: &Daemon, name: &str, text: &str) {
    let file = daemon.home().join(name);
    fs::create_dir_all(file.parent().expect("it is below the home")).unwrap();
    fs::write(file, text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_in_each_state_of_its_login() {
    let Some(program) = require::claude() else { return };
    let model = Model::start("Bash").await;
    let login = json!({ "claudeAiOauth": {
        "accessToken": KEY, "refreshToken": "unused", "expiresAt": 4_102_444_800_000_u64,
        "scopes": ["user:inference"], "subscriptionType": "max",
    } });
    let row = Row {
        name: "claude",
        command: command(&program, &[]),
        provider: vec![
            ("ANTHROPIC_BASE_URL", model.server.origin()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("IS_SANDBOX", "1".to_owned()),
        ],
        mode: Some("default"),
        is_bare: false,
        key: "ANTHROPIC_API_KEY",
        shows_key: true,
        opens: true,
        missing: "Authentication required",
        lost: Lost::Refused("Authentication required"),
        resumes_at_once: true,
        own: Own::File(".claude/.credentials.json", login.to_string()),
    };
    table(row, Daemon::prepare(), &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_in_each_state_of_its_login() {
    let Some(program) = require::codex() else { return };
    let model = Model::start("exec_command").await;
    let daemon = Daemon::prepare();
    let provider = format!(
        "name = \"Stand-in\"\nbase_url = \"{}/v1\"\nwire_api = \"responses\"\nrequires_openai_auth = true\n",
        model.server.origin()
    );
    let config =
        format!("model = \"stand-in\"\nmodel_provider = \"stand-in\"\n\n[model_providers.stand-in]\n{provider}");
    home_file(&daemon, ".codex/config.toml", &config);
    let row = Row {
        name: "codex",
        command: command(&program, &[]),
        provider: Vec::new(),
        mode: Some("workspace-write"),
        is_bare: false,
        key: "OPENAI_API_KEY",
        shows_key: true,
        opens: false,
        missing: "Authentication required",
        lost: Lost::Refused("Authentication required"),
        resumes_at_once: true,
        own: Own::Kept(".codex/auth.json"),
    };
    table(row, daemon, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copilot_in_each_state_of_its_login() {
    let Some(program) = require::copilot() else { return };
    let model = Model::start("bash").await;
    let row = Row {
        name: "copilot",
        command: command(&program, &["--acp"]),
        provider: vec![
            ("COPILOT_PROVIDER_BASE_URL", format!("{}/v1", model.server.origin())),
            ("COPILOT_PROVIDER_TYPE", "openai".to_owned()),
            ("COPILOT_MODEL", "stand-in".to_owned()),
            ("COPILOT_OFFLINE", "true".to_owned()),
        ],
        mode: None,
        is_bare: true,
        key: "COPILOT_PROVIDER_API_KEY",
        shows_key: false,
        opens: false,
        missing: "Authentication required",
        lost: Lost::Told("Error: Authentication failed with provider"),
        resumes_at_once: true,
        own: Own::Impossible("Login is not available in offline mode"),
    };
    table(row, Daemon::prepare(), &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_in_each_state_of_its_login() {
    let Some(program) = require::gemini() else { return };
    let model = Model::start("run_shell_command").await;
    let row = Row {
        name: "gemini",
        command: command(&program, &["--acp"]),
        provider: vec![
            ("GOOGLE_GEMINI_BASE_URL", model.server.origin()),
            ("GEMINI_MODEL", "gemini-2.5-pro".to_owned()),
            ("GEMINI_CLI_TRUST_WORKSPACE", "true".to_owned()),
        ],
        mode: None,
        is_bare: true,
        key: "GEMINI_API_KEY",
        shows_key: true,
        opens: false,
        missing: "Gemini API key is missing or not configured",
        lost: Lost::Refused("{\"error\":{\"code\":401,\"status\":\"UNAUTHENTICATED\""),
        resumes_at_once: false,
        own: Own::Variables(".gemini/.env", format!("GEMINI_API_KEY={KEY}\n")),
    };
    table(row, Daemon::prepare(), &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_in_each_state_of_its_login() {
    let Some(program) = require::opencode() else { return };
    let model = Model::start("bash").await;
    let daemon = Daemon::prepare();
    let stand_in = json!({ "name": "Model", "tool_call": true, "limit": { "context": 100_000, "output": 8_000 } });
    let config = json!({
        "model": "stand-in/model", "small_model": "stand-in/model", "autoupdate": false, "share": "disabled",
        "permission": { "bash": "ask" },
        "provider": { "stand-in": {
            "npm": "@ai-sdk/openai-compatible", "name": "Stand-in", "env": ["OPENCODE_API_KEY"],
            "options": { "baseURL": format!("{}/v1", model.server.origin()) }, "models": { "model": stand_in },
        } },
    });
    home_file(&daemon, ".config/opencode/opencode.json", &config.to_string());
    let login = json!({ "stand-in": { "type": "api", "key": KEY } });
    let row = Row {
        name: "opencode",
        command: command(&program, &["acp"]),
        provider: vec![
            ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1".to_owned()),
        ],
        mode: None,
        is_bare: false,
        key: "OPENCODE_API_KEY",
        shows_key: true,
        opens: true,
        missing: "Internal error: Incorrect API key provided",
        lost: Lost::Refused("Internal error: Incorrect API key provided"),
        resumes_at_once: true,
        own: Own::File(".local/share/opencode/auth.json", login.to_string()),
    };
    table(row, daemon, &model).await;
}
