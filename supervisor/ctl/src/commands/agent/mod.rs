//! Implements `agentctl agent`: lists, shows and adds agents, and logs in to one.

mod login;
mod offer;

use agentd_api::agents::{AgentAddRequest, AgentAddView, AgentState, LoginState, WarmView};
use serde_json::Value;

pub(super) use offer::offer;

use super::{Context, edited, print, tell};
use crate::args::agent::{AddArgs, AgentCommand};
use crate::error::{Error, exit};
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

pub(super) async fn agent(context: &Context, command: AgentCommand) -> Result<u8, Error> {
    match command {
        AgentCommand::Ls => ls(context).await,
        AgentCommand::Show { agent } => show(context, &agent).await,
        AgentCommand::Add(args) => add(context, args).await,
        AgentCommand::Login { agent, method, dir } => login::login(context, &agent, method.as_deref(), &dir).await,
    }
}

async fn ls(context: &Context) -> Result<u8, Error> {
    let document = context.client.catalogue(None, true).await?;
    if context.json {
        return context.print_document(&document.raw).map(|()| 0);
    }
    let screen = Screen::stdout();
    let columns = ["NAME", "CONFIGURED", "INSTALLED", "LOGIN"].map(|name| (name, Cut::Never));
    let is_warm = document.value.agents.iter().any(|agent| agent.warm.is_some());
    let warm = is_warm.then_some(("WARM", Cut::Never));
    let mut table = Table::new(&[&columns[..], warm.as_slice(), &[("COMMAND", Cut::End)]].concat());
    for agent in &document.value.agents {
        let configured = match (agent.configured, agent.default) {
            (true, true) => "default",
            (true, false) => "yes",
            (false, _) => "",
        };
        let mut row = vec![
            screen.line(&agent.name),
            configured.to_owned(),
            screen.line(&installed(agent)),
            login_word(agent).to_owned(),
        ];
        row.extend(is_warm.then(|| warm_words(agent)));
        row.push(screen.line(&agent.command.join(" ")));
        table.row(row);
    }
    Context::table(&table)?;
    Ok(0)
}

/// Returns how many processes of the agent are kept ready.
fn warm_words(agent: &AgentState) -> String {
    match &agent.warm {
        None => String::new(),
        Some(WarmView { obstacle: Some(_), .. }) => "no".to_owned(),
        Some(WarmView { wanted, ready, starting: 0, .. }) => format!("{ready} of {wanted}"),
        Some(WarmView { wanted, ready, starting, .. }) => format!("{ready} of {wanted}, {starting} starting"),
    }
}

/// Returns the version of an installed agent.
fn installed(agent: &AgentState) -> String {
    match (&agent.program, &agent.version) {
        (None, _) => "no".to_owned(),
        (Some(_), None) => "yes".to_owned(),
        // Most agents print their name first, or a further remark behind the version.
        (Some(_), Some(line)) => {
            let is_version = |word: &&str| word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit());
            line.split_ascii_whitespace().find(is_version).unwrap_or(line).trim_end_matches(['.', ',']).to_owned()
        }
    }
}

fn login_word(agent: &AgentState) -> &'static str {
    match agent.login {
        // The login of a program that does not exist is of no use.
        _ if agent.program.is_none() => "",
        LoginState::Key => "key",
        LoginState::LoggedIn => "logged in",
        LoginState::NotNeeded => "not needed",
        LoginState::Missing => "missing",
        LoginState::Refused => "refused",
        LoginState::Unknown => "unknown",
    }
}

async fn show(context: &Context, name: &str) -> Result<u8, Error> {
    let document = context.client.catalogue(Some(name), true).await?;
    if context.json {
        return context.print_document(&document.raw).map(|()| 0);
    }
    let screen = Screen::stdout();
    let lines = document.value.agents.iter().flat_map(description);
    let width = 15;
    for (key, text) in lines {
        print(&format!("{key:<width$}{}\n", screen.line(&text)))?;
    }
    Ok(0)
}

/// Describes an agent, a line for each fact.
fn description(agent: &AgentState) -> Vec<(&'static str, String)> {
    let mut lines = vec![("name", agent.name.clone())];
    let known = agent.known.as_ref().unwrap_or(&Value::Null);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut add =
        |key, text: Option<String>| lines.extend(text.filter(|text| !text.is_empty()).map(|text| (key, text)));
    let about = text(&known["description"]).map(|about| format!("{}: {about}", known["name"].as_str().unwrap_or("")));
    add("agent", about);
    add("like", agent.like.clone().filter(|like| *like != agent.name));
    add("configured", Some(if agent.configured { "yes" } else { "no" }.to_owned()));
    add("command", Some(agent.command.join(" ")));
    add("program", agent.program.as_ref().map(|program| program.display().to_string()));
    add("version", agent.version.clone());
    add("problem", agent.problem.clone());
    let login = match &agent.login_from {
        Some(from) => format!("{} ({from})", agent.login.as_str()),
        None => agent.login.as_str().to_owned(),
    };
    add("login", Some(login));
    add("warm", agent.warm.as_ref().map(|_| warm_words(agent)));
    add("not warm", agent.warm.as_ref().and_then(|warm| warm.obstacle.clone()));
    add("install", agent.install.clone());
    let own = &known["agentd"];
    let words = |value: &Value| {
        let list = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        list.collect::<Vec<_>>().join(" ")
    };
    add(
        "sets",
        own["environment"].as_object().map(|set| {
            let pairs = set.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
            pairs.collect::<Vec<_>>().join(" ")
        }),
    );
    add("keys", Some(words(&own["login"]["keys"])));
    add("login command", Some(words(&own["login"]["command"])));
    add("variables", Some(words(&own["variables"])));
    for place in own["conversations"].as_array().into_iter().flatten() {
        let (name, default) = (text(&place["variable"]), text(&place["default"]));
        add("conversations", name.zip(default).map(|(name, default)| format!("{name}, by default {default}")));
    }
    for quirk in own["quirks"].as_array().into_iter().flatten() {
        let (seen, what) = (text(&quirk["seen"]), text(&quirk["text"]));
        add("quirk", seen.zip(what).map(|(seen, what)| format!("{seen}: {what}")));
    }
    lines
}

async fn add(context: &Context, args: AddArgs) -> Result<u8, Error> {
    let entry = match &args.from {
        Some(file) => Some(read_entry(file)?),
        None => None,
    };
    let wish = AgentAddRequest {
        name: args.name,
        like: args.agent,
        command: args.command,
        args: args.args,
        env: args.env.into_iter().collect(),
        entry,
        default: args.default,
        dry_run: args.dry_run,
    };
    let document = context.client.add_agent(&wish).await?;
    let status = if document.value.mistakes.is_empty() { 0 } else { exit::FAILED };
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(status);
    }
    let view = &document.value;
    print(&Screen::stdout().text(&edited::diff(&view.file, &view.lines)))?;
    for remark in remarks(context, view).await {
        tell(&Screen::stderr().line(&remark))?;
    }
    Ok(status)
}

fn read_entry(file: &std::path::Path) -> Result<Value, Error> {
    let hint = "give the agent.json of an agent from the registry of the Agent Client Protocol";
    let usage = |detail: String| Error::Usage { detail, hint: hint.to_owned() };
    let text =
        std::fs::read_to_string(file).map_err(|error| usage(format!("cannot read {}: {error}", file.display())))?;
    serde_json::from_str(&text).map_err(|error| usage(format!("{} is not JSON: {error}", file.display())))
}

/// Returns what follows from the new entry, and what the agent lacks.
async fn remarks(context: &Context, view: &AgentAddView) -> Vec<String> {
    if view.dry_run {
        return vec!["nothing was written".to_owned()];
    }
    let (mut remarks, is_in_force) = edited::after_reload(&view.mistakes);
    if !is_in_force {
        return remarks;
    }
    remarks.extend(view.archive.as_ref().map(|archive| format!("install its program from {archive}")));
    if let Ok(found) = context.client.catalogue(Some(view.name.as_str()), false).await {
        remarks.extend(found.value.agents.first().and_then(next_step));
    }
    remarks.push(format!("start a session with: agentctl run --agent {}", view.name));
    remarks
}

/// Returns the next step towards an agent that works.
fn next_step(agent: &AgentState) -> Option<String> {
    let program = agent.command.first().map_or("", String::as_str);
    match (&agent.program, &agent.install) {
        (None, Some(install)) => Some(format!("{program} is not installed: {install}")),
        (None, None) => Some(format!("the program {program:?} is not installed, or not in the PATH of sessions")),
        (Some(_), _) if matches!(agent.login, LoginState::Missing | LoginState::Refused) => {
            Some(format!("log in first: agentctl agent login {}", agent.name))
        }
        (Some(_), _) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(extra: &Value) -> AgentState {
        let mut state = json!({
            "name": "work", "like": "codex", "configured": true, "command": ["codex-acp"], "login": "missing",
            "install": "npm install -g x",
        });
        state.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn a_version_is_found_in_what_agents_print() {
        let version = |line: &str| installed(&state(&json!({ "program": "/bin/x", "version": line })));
        for (line, expected) in [
            ("1.18.33", "1.18.33"),
            ("codex-cli 0.169.0", "0.169.0"),
            ("GitHub Copilot CLI 1.0.102.", "1.0.102"),
            ("2.1.0 (Claude Code)", "2.1.0"),
            ("v20.1", "v20.1"),
            ("nightly", "nightly"),
        ] {
            assert_eq!(version(line), expected);
        }
        assert_eq!(installed(&state(&json!({}))), "no");
    }

    #[test]
    fn the_next_step_is_the_installation_or_the_login() {
        assert_eq!(next_step(&state(&json!({}))).unwrap(), "codex-acp is not installed: npm install -g x");
        let login = next_step(&state(&json!({ "program": "/bin/codex-acp" })));
        assert_eq!(login.unwrap(), "log in first: agentctl agent login work");
        assert_eq!(next_step(&state(&json!({ "program": "/bin/codex-acp", "login": "key" }))), None);
    }

    #[test]
    fn what_is_known_is_shown_a_fact_a_line() {
        let known = json!({
            "name": "Codex", "description": "d",
            "agentd": {
                "environment": { "A": "1" }, "variables": ["A", "K"], "login": { "keys": ["K"] },
                "conversations": [{ "variable": "CODEX_HOME", "default": "~/.codex" }],
                "quirks": [{ "seen": "2.6.0", "text": "is odd" }],
            },
        });
        let lines = description(&state(&json!({ "known": known, "login_from": "says so" })));
        for line in [
            ("agent", "Codex: d"),
            ("like", "codex"),
            ("login", "missing (says so)"),
            ("sets", "A=1"),
            ("keys", "K"),
            ("conversations", "CODEX_HOME, by default ~/.codex"),
            ("quirk", "2.6.0: is odd"),
        ] {
            assert!(lines.contains(&(line.0, line.1.to_owned())), "{line:?} in {lines:?}");
        }
    }
}
