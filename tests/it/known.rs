//! One life of each known agent that the stand-in for a model can serve. It covers profile, login, mode, model, MCP
//! server, image, permission, output of a tool and resume. A table has what each agent lacks.
//!
//! Findings, from ACP without agentd:
//! - claude-agent-acp 0.101.0 works with Node.js 20, against its own requirement. It starts in its mode `auto`, in
//!   which the model decides about permissions. It joins messages of the model that have the same id.
//! - codex-acp 2.6.0 needs no login with a `model_providers` entry. It asks before a command that the model wants to
//!   run outside of the sandbox, and before each call of an MCP server. The name of such a tool has a namespace.
//! - copilot 1.0.102 needs no account with `COPILOT_PROVIDER_BASE_URL` and `COPILOT_OFFLINE`. It ignores MCP servers on
//!   stdio, although the protocol demands them, and offers no models.
//! - gemini-cli 0.61.0 ends a call of its shell with an empty `content`, so only the model sees the output.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use agentd_api::agents::{Catalogue, LoginState};
use agentd_api::event::OpenedBy;
use agentd_api::isolation::Isolation;
use agentd_api::options::OptionsView;
use agentd_api::session::SessionSpec;
use serde_json::{Value, json};

use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session, process, require, scripted_agent};
use crate::real_agent::{Model, RealAgent, argument, is_held_by_rules};

/// A pixel in PNG, in base64.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A row of the table: an agent behind the stand-in.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own about an agent")]
struct Row {
    agent: RealAgent,
    /// Name of the variable that has its key, which is declared as a secret.
    key: Option<&'static str>,
    login: LoginState,
    /// The agent's name for the tool `word` of the server `lab`. None if it ignores servers on stdio.
    word: Option<&'static str>,
    /// Whether its updates have what its shell prints.
    shows_output: bool,
    /// Whether each call of a server's tool is asked for.
    word_is_asked_for: bool,
    /// Whether a conversation can be resumed in the minute in which it began.
    resumes_at_once: bool,
    /// Whether it lists and deletes its conversations.
    lists: bool,
    deletes: bool,
    /// A mode that a person changes to. None if the agent offers none.
    mode: Option<&'static str>,
    /// A model that a person changes to. None if the agent offers none.
    model: Option<&'static str>,
}

/// Returns the command of a program, with its arguments.
fn command(program: &std::path::Path, arguments: &[&str]) -> Vec<String> {
    let mut command = vec![argument(program)];
    command.extend(arguments.iter().map(|&argument| argument.to_owned()));
    command
}

fn agent(entry: &'static str, command: Vec<String>, settings: Vec<(&'static str, String)>) -> RealAgent {
    let (mode, reopened_by, isolation) = (None, OpenedBy::Resume, Isolation::None);
    RealAgent { entry: Some(entry), mode, command, settings, reopened_by, isolation }
}

/// Prepares a daemon that has the agent as an entry, with its key as a secret, a server and a rule.
async fn daemon(row: &Row, prepared: Daemon) -> Daemon {
    let mut daemon = prepared;
    let entry = row.agent.entry.expect("each row has an entry");
    let mut tables = format!("[agents.{entry}]\nlike = \"{entry}\"\ncommand = {:?}\n\n", row.agent.command);
    if let Some(key) = row.key {
        let file = daemon.root().join("key");
        std::fs::write(&file, "a-key-that-opens-nothing").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let file = file.display();
        write!(tables, "[secrets.{key}]\nfile = \"{file}\"\nagents = [{entry:?}]\n\n").unwrap();
    }
    let server = scripted_agent();
    let server = server.display();
    write!(tables, "[mcp.lab]\ncommand = [\"{server}\", \"tools\"]\nenv = {{ WORD = \"plum\" }}\n\n").unwrap();
    tables += "[[permissions]]\nkind = \"execute\"\ntitle = \"git push*\"\nanswer = \"deny\"\n";
    daemon.configure(|config| format!("{config}\n{tables}"));
    daemon.run().await;
    daemon
}

async fn life(row: Row, model: &Model, prepared: Daemon) {
    let daemon = daemon(&row, prepared).await;
    let entry = row.agent.entry.unwrap();
    let known: Catalogue = daemon.client.get("/v1/catalogue").await.expect(200);
    let found = known.agents.iter().find(|agent| agent.name == entry).expect("it is configured");
    assert_eq!((found.like.as_deref(), found.login), (Some(entry), row.login), "{found:?}");
    assert_eq!(found.program.as_ref().map(PathBuf::from), Some(PathBuf::from(&row.agent.command[0])));

    let session = daemon.session(&row.agent.spec(&daemon)).await;
    // A person and the model get what a tool prints.
    let said = ctl(&daemon, &["prompt", session.id.as_str(), "run: touch begun; echo the output is quince"]).await;
    assert!(daemon.work().join("begun").exists());
    let shown = said.out + &said.err;
    let is_output = |line: &str| line.contains("the output is quince") && !line.contains("echo");
    assert_eq!(shown.lines().any(is_output), row.shows_output, "{shown}");
    assert!(heard_by_model(model).contains("the output is quince"), "{}", heard_by_model(model));

    let word = row.word.unwrap_or("lab-word");
    let accepted = session.prompt(&format!("call: {word} {{}}")).await;
    if row.word_is_asked_for {
        // The request has no command, so the rule cannot decide it, and a person is asked.
        let view = session.wait_for("a permission request", |view| !view.status.permissions.is_empty()).await;
        let request = &view.status.permissions[0];
        session.post(&format!("/permissions/{}", request.id), &json!("allow")).await.expect::<Value>(200);
    }
    session.end_of(&accepted).await;
    assert_eq!(heard_by_model(model).contains("plum"), row.word.is_some(), "{}", heard_by_model(model));

    let image = json!({ "type": "image", "data": PIXEL, "mimeType": "image/png" });
    let request = json!({ "prompt": "look", "parts": [image] });
    let accepted = daemon.client.post(&session.path("/prompt"), &request).await.expect(202);
    session.end_of(&accepted).await;
    assert!(model.server.asked().iter().any(|asked| asked.has_image), "the model got no image");

    changes(&daemon, &session, "mode", row.mode).await;
    changes(&daemon, &session, "model", row.model).await;

    session.stop().await;
    process::assert_only(&[daemon.pid()], daemon.root(), "the stop left something");
    // `real_agent.rs` has the resume of the others.
    if row.resumes_at_once {
        session.resume().await;
        session.turn("say so once more").await;
        remembers(model, "once more");
        session.stop().await;
    }
    is_adopted(&daemon, &row, model, &session).await;
    is_held_by_rules(&daemon, &row.agent).await;
}

/// Asserts that the model got the history with a prompt.
fn remembers(model: &Model, prompt: &str) {
    // Claude also asks for a title, without the history.
    let asked: Vec<String> = model.server.asked().iter().map(|asked| asked.texts("user").concat()).collect();
    let is_whole = |text: &String| text.contains(prompt) && text.contains("quince");
    assert!(asked.iter().any(is_whole), "it does not remember: {asked:?}");
}

/// Removes the session, adopts its conversation, and removes the new session with the conversation.
async fn is_adopted(daemon: &Daemon, row: &Row, model: &Model, session: &Session) {
    let (entry, work) = (row.agent.entry.unwrap(), daemon.work());
    let list = ["adopt", entry, "--dir", work.to_str().unwrap()];
    let conversation = session.view().await.status.conversation.unwrap();
    let removed = ctl(daemon, &["rm", "--keep-conversation", session.id.as_str()]).await;
    assert!(removed.status == Some(0) && removed.err.contains("stay below "), "{removed:?}");
    let listed = ctl(daemon, &list).await;
    assert_eq!((listed.status == Some(0), listed.out.contains(&conversation)), (row.lists, row.lists), "{listed:?}");
    if !row.resumes_at_once {
        return;
    }
    let spec = SessionSpec { conversation: Some(conversation.clone()), ..row.agent.spec(daemon) };
    let adopted = daemon.session(&spec).await;
    adopted.turn("say it again").await;
    remembers(model, "it again");
    let removed = ctl(daemon, &["rm", "--force", adopted.id.as_str()]).await;
    assert_eq!((removed.status, removed.err.contains("has deleted")), (Some(0), row.deletes), "{removed:?}");
    if row.deletes {
        let listed = ctl(daemon, &list).await;
        assert!(listed.status == Some(0) && !listed.out.contains(&conversation), "{listed:?}");
    }
}

/// Returns the last result of a tool that the model got.
fn heard_by_model(model: &Model) -> String {
    model.server.asked().iter().rev().find_map(|asked| asked.texts("tool").pop()).unwrap_or_default()
}

/// Changes an option of the running agent, or asserts that the agent does not offer it.
async fn changes(daemon: &Daemon, session: &Session, category: &str, value: Option<&str>) {
    let offered = async || -> OptionsView { daemon.client.get(&session.path("/options")).await.expect(200) };
    let before = offered().await;
    let option = before.options.iter().find(|option| option.is_for(category));
    let Some(value) = value else { return assert_eq!(option, None, "it offers one now") };
    assert!(option.is_some(), "it offers no {category}: {before:?}");
    daemon.client.patch(&session.path(""), &json!({ (category): value }), None).await.expect::<Value>(200);
    let is_set = |view: &agentd_api::session::SessionView| match category {
        "mode" => view.status.mode.as_deref() == Some(value),
        _ => view.status.model.as_deref() == Some(value),
    };
    session.wait_for("the option is changed", is_set).await;
    let after = offered().await;
    let found = after.options.iter().find(|option| option.is_for(category)).unwrap();
    assert_eq!(found.value.as_deref(), Some(value));
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_comes_through_the_common_life() {
    let Some(program) = require::claude() else { return };
    let model = Model::start("Bash").await;
    let settings = vec![
        ("ANTHROPIC_BASE_URL", model.server.origin()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        ("IS_SANDBOX", "1".to_owned()),
    ];
    let row = Row {
        agent: RealAgent { mode: Some("default"), ..agent("claude", command(&program, &[]), settings) },
        key: Some("ANTHROPIC_API_KEY"),
        login: LoginState::Key,
        word: Some("mcp__lab__word"),
        shows_output: true,
        word_is_asked_for: true,
        resumes_at_once: true,
        lists: true,
        deletes: true,
        mode: Some("plan"),
        model: Some("haiku"),
    };
    life(row, &model, Daemon::prepare()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_comes_through_the_common_life() {
    let Some(program) = require::codex() else { return };
    let model = Model::start("exec_command").await;
    let daemon = Daemon::prepare();
    let home = daemon.home().join(".codex");
    std::fs::create_dir(&home).unwrap();
    let provider =
        format!("name = \"Stand-in\"\nbase_url = \"{}/v1\"\nwire_api = \"responses\"\n", model.server.origin());
    let config =
        format!("model = \"stand-in\"\nmodel_provider = \"stand-in\"\n\n[model_providers.stand-in]\n{provider}");
    std::fs::write(home.join("config.toml"), config).unwrap();
    let row = Row {
        agent: RealAgent { mode: Some("workspace-write"), ..agent("codex", command(&program, &[]), Vec::new()) },
        key: None,
        login: LoginState::Missing,
        word: Some("mcp__lab__word"),
        shows_output: true,
        word_is_asked_for: true,
        resumes_at_once: true,
        lists: true,
        deletes: true,
        mode: Some("read-only"),
        model: Some("gpt-6-sol"),
    };
    life(row, &model, daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copilot_comes_through_the_common_life() {
    let Some(program) = require::copilot() else { return };
    let model = Model::start("bash").await;
    let settings = vec![
        ("COPILOT_PROVIDER_BASE_URL", format!("{}/v1", model.server.origin())),
        ("COPILOT_PROVIDER_TYPE", "openai".to_owned()),
        ("COPILOT_MODEL", "stand-in".to_owned()),
        ("COPILOT_OFFLINE", "true".to_owned()),
    ];
    let agent = agent("copilot", command(&program, &["--acp"]), settings);
    let row = Row {
        agent: RealAgent { reopened_by: OpenedBy::Load, ..agent },
        key: None,
        login: LoginState::Unknown,
        word: None,
        shows_output: true,
        word_is_asked_for: false,
        resumes_at_once: true,
        lists: true,
        deletes: false,
        mode: Some("https://agentclientprotocol.com/protocol/session-modes#plan"),
        model: None,
    };
    life(row, &model, Daemon::prepare()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_comes_through_the_common_life() {
    let Some(program) = require::opencode() else { return };
    let model = Model::start("bash").await;
    let row = Row {
        agent: RealAgent { entry: Some("opencode"), ..crate::opencode::opencode(&program, &model) },
        key: None,
        login: LoginState::NotNeeded,
        word: Some("lab_word"),
        shows_output: true,
        word_is_asked_for: false,
        resumes_at_once: true,
        lists: true,
        deletes: false,
        mode: Some("plan"),
        model: Some("stand-in/other"),
    };
    life(row, &model, Daemon::prepare()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_comes_through_the_common_life() {
    let Some(program) = require::gemini() else { return };
    let model = Model::start("run_shell_command").await;
    let daemon = Daemon::prepare();
    let mut agent = RealAgent { entry: Some("gemini"), ..crate::gemini::gemini(&program, &daemon, &model) };
    agent.settings.retain(|(name, _)| *name != "GEMINI_API_KEY");
    // Without trust in the directory it starts no MCP servers.
    agent.settings.push(("GEMINI_CLI_TRUST_WORKSPACE", "true".to_owned()));
    let row = Row {
        agent,
        key: Some("GEMINI_API_KEY"),
        login: LoginState::Key,
        word: Some("mcp_lab_word"),
        shows_output: false,
        word_is_asked_for: true,
        resumes_at_once: false,
        lists: false,
        deletes: false,
        mode: Some("autoEdit"),
        model: Some("gemini-3-flash-preview"),
    };
    life(row, &model, daemon).await;
}
