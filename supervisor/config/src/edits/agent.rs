//! Plans the edit of `agentctl agent add`: adds an agent to the user's configuration file.

use std::collections::BTreeMap;

use agentd_api::AgentName;
use agentd_api::agents::AgentAddRequest;
use agentd_catalogue::{Entry, KnownAgent, Launch, by_name, by_registry, platform};
use toml_edit::{Array, DocumentMut, InlineTable, Item, RawString, Table, value};

use super::{EditError, FileEdit, Files};
use crate::DEMO;

/// Hint about names.
const LIST: &str = "`agentctl agent ls` lists the known agents; give a program of your own with --command";

/// A planned edit of the user's file.
#[derive(Debug)]
pub struct AgentPlan {
    /// The edit of the file.
    pub edit: FileEdit,
    /// Name of the new entry.
    pub name: AgentName,
    /// Address of the archive from which the program is to be installed.
    pub archive: Option<String>,
}

/// Content of the new entry.
#[derive(Debug, Default)]
struct NewAgent {
    like: Option<String>,
    command: Vec<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
}

/// Plans the edit of the current files.
pub(super) fn planned(files: Files, wish: &AgentAddRequest) -> Result<AgentPlan, EditError> {
    let mut new = NewAgent {
        like: wish.like.clone(),
        command: wish.command.clone(),
        args: wish.args.clone(),
        env: wish.env.clone(),
    };
    let mut archive = None;
    let mut own_name = wish.like.clone();
    if let Some(entry) = &wish.entry {
        let entry = Entry::of(entry.clone()).map_err(|error| EditError::Agent(error.to_string(), LIST))?;
        let of_entry = entry.launch(&platform()).map_err(|error| EditError::Agent(error.to_string(), LIST))?;
        let Launch { command, env, archive: from } = of_entry;
        if new.command.is_empty() {
            (new.command, archive) = (command, from);
        }
        new.env = env.into_iter().chain(new.env).collect();
        let known = by_registry(&entry.id);
        new.like = new.like.or_else(|| known.map(|known| known.name().to_owned()));
        own_name = Some(known.map_or(entry.id, |known| known.name().to_owned()));
    }
    if let Some(like) = new.like.as_ref().filter(|like| by_name(like).is_none()) {
        return Err(EditError::Agent(format!("{like:?} is not a known agent"), LIST));
    }
    if new.like.is_none() && new.command.is_empty() {
        return Err(EditError::Agent("the request names neither a known agent nor a command".to_owned(), LIST));
    }
    let name = match (&wish.name, own_name) {
        (Some(name), _) => name.clone(),
        (None, Some(name)) => {
            name.parse().map_err(|_| EditError::Agent(format!("{name:?} is not the name of an agent"), LIST))?
        }
        (None, None) => return Err(EditError::Agent("the new agent has no name".to_owned(), "name it with --as")),
    };
    if name.as_str() == DEMO {
        return Err(EditError::Agent(format!("\"{DEMO}\" is the built-in agent"), "choose another name with --as"));
    }
    let key = ["agents".to_owned(), name.to_string()];
    if files.now.config.agents.contains_key(&name) {
        let place = files.now.read.place(&key);
        let file = place.map_or_else(|| files.sources.user.clone(), |(file, _)| file);
        return Err(EditError::AgentExists { name, file });
    }
    // The file needs no copy of the facts of a known agent.
    if let Some(known) = new.like.as_deref().and_then(by_name) {
        new.env.retain(|name, value| !is_of(known, name, value));
        if new.command == known.agentd.command {
            new.command.clear();
        }
    }
    let mut document = files.document()?;
    insert(&mut document, &name, &new).ok_or_else(|| {
        EditError::Agent("`agents` in your agentd.toml is not a table".to_owned(), "correct the file")
    })?;
    if wish.default {
        set_default(&mut document, name.as_str());
    }
    Ok(AgentPlan { edit: files.edit(Some(document.to_string()))?, name, archive })
}

fn is_of(known: &KnownAgent, name: &str, value: &str) -> bool {
    known.agentd.environment.get(name).is_some_and(|own| own == value)
}

/// Sets the default agent. A former value's comment stays behind the new one, and a comment at the start of the file
/// stays there.
fn set_default(document: &mut DocumentMut, name: &str) {
    const KEY: &str = "default_agent";
    if let Some(former) = document.get_mut(KEY).and_then(Item::as_value_mut) {
        let decor = former.decor().clone();
        *former = name.into();
        *former.decor_mut() = decor;
        return;
    }
    let is_first = !document.iter().any(|(_, item)| item.is_value());
    document[KEY] = value(name);
    let mut tables = Vec::new();
    collect_tables(document, &mut tables);
    let first = tables.into_iter().min_by_key(|table| table.position().unwrap_or(isize::MAX));
    let Some(first) = first.filter(|_| is_first) else { return };
    let prefix = first.decor().prefix().and_then(RawString::as_str).unwrap_or_default().to_owned();
    // Comments before an empty line are about the file, and those behind it about the table.
    let (head, own) = prefix.rsplit_once("\n\n").map_or(("", prefix.as_str()), |(head, own)| (head, own));
    let own = own.trim_start_matches('\n');
    first.decor_mut().set_prefix(format!("\n{own}"));
    if let Some(mut key) = document.key_mut(KEY).filter(|_| !head.is_empty()) {
        key.leaf_decor_mut().set_prefix(format!("{head}\n\n"));
    }
}

/// Collects the outermost tables with a header. A table without one, such as `agents`, has no comments.
fn collect_tables<'a>(around: &'a mut Table, found: &mut Vec<&'a mut Table>) {
    for (_, item) in around.iter_mut() {
        match item {
            Item::Table(table) => {
                if table.is_implicit() {
                    collect_tables(table, found);
                } else {
                    found.push(table);
                }
            }
            Item::ArrayOfTables(tables) => found.extend(tables.get_mut(0)),
            _ => {}
        }
    }
}

/// Adds the entry's table. Returns `None` if `agents` is no table.
fn insert(document: &mut DocumentMut, name: &AgentName, new: &NewAgent) -> Option<()> {
    let mut table = Table::new();
    let list = |words: &[String]| value(words.iter().collect::<Array>());
    if let Some(like) = &new.like {
        table["like"] = value(like);
    }
    if !new.command.is_empty() {
        table["command"] = list(&new.command);
    }
    if !new.args.is_empty() {
        table["args"] = list(&new.args);
    }
    if !new.env.is_empty() {
        table["env"] = value(new.env.iter().collect::<InlineTable>());
    }
    let agents = document.entry("agents").or_insert_with(|| {
        let mut agents = Table::new();
        agents.set_implicit(true);
        Item::Table(agents)
    });
    match agents {
        Item::Table(agents) => {
            agents.insert(name.as_str(), Item::Table(table));
        }
        item => {
            item.as_table_like_mut()?.insert(name.as_str(), value(table.into_inline_table()));
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::{Sources, Text};

    fn plan(system: &str, user: Option<&str>, wish: serde_json::Value) -> Result<AgentPlan, EditError> {
        let text = |path: &str, of_user, content: &str| Text {
            path: path.into(),
            content: content.to_owned(),
            of_user,
            template: None,
        };
        let sources = Sources { system: "/etc/agentd".into(), user: "/home/kim/agentd.toml".into(), named: false };
        let system = if system.is_empty() { Vec::new() } else { vec![text("/etc/agentd/agentd.toml", false, system)] };
        let user = user.map(|user| text("/home/kim/agentd.toml", true, user));
        planned(Files::of(system, user, &sources), &serde_json::from_value(wish).unwrap())
    }

    fn after(user: &str, wish: serde_json::Value) -> String {
        plan("", Some(user), wish).unwrap().edit.after
    }

    #[test]
    fn a_known_agent_is_two_lines_and_the_rest_of_the_file_stays() {
        let head = "# mine\ndefault_agent = \"a\" # this one\n\n[agents.a]\ncommand = [\"a\"]\n\n[limits]\nbody = 9\n";
        let new = "\n[agents.claude]\nlike = \"claude\"\n";
        let (before, rest) = head.split_at(head.find("\n[limits]").unwrap());
        assert_eq!(after(head, json!({ "like": "claude" })), format!("{before}{new}{rest}"));
        let default = after(head, json!({ "like": "claude", "name": "work", "default": true }));
        assert!(default.contains("default_agent = \"work\" # this one\n"), "{default}");
        for (file, expected) in [
            ("# mine\n\n# about it\n[limits]\n", "# mine\n\ndefault_agent = \"claude\"\n\n# about it\n[limits]\n"),
            ("# about it\n[limits]\n", "default_agent = \"claude\"\n\n# about it\n[limits]\n"),
            (
                "# mine\n\n[agents.a]\ncommand = [\"a\"]\n[limits]\n",
                "# mine\n\ndefault_agent = \"claude\"\n\n[agents.a]\n",
            ),
            ("[[permissions]]\nanswer = \"deny\"\n", "default_agent = \"claude\"\n\n[[permissions]]\n"),
        ] {
            let after = after(file, json!({ "like": "claude", "default": true }));
            assert!(after.starts_with(expected), "{after}");
        }
        let first = plan("", None, json!({ "like": "claude", "default": true })).unwrap().edit;
        assert_eq!(first.after, "default_agent = \"claude\"\n\n[agents.claude]\nlike = \"claude\"\n");
        assert_eq!(first.lines.len(), 4);
    }

    #[test]
    fn two_entries_of_one_agent_differ_in_what_they_have_of_their_own() {
        let wish = json!({ "like": "codex", "name": "work", "args": ["-c", "x"], "env": { "CODEX_HOME": "/w" } });
        let one = after("", wish);
        assert_eq!(one, "[agents.work]\nlike = \"codex\"\nargs = [\"-c\", \"x\"]\nenv = { CODEX_HOME = \"/w\" }\n");
        let two = after(&one, json!({ "like": "codex", "name": "home", "command": ["/opt/codex-acp"] }));
        assert!(
            two.starts_with(&one) && two.ends_with("[agents.home]\nlike = \"codex\"\ncommand = [\"/opt/codex-acp\"]\n")
        );
        let own = after("", json!({ "name": "mine", "command": ["my-agent", "--acp"] }));
        assert_eq!(own, "[agents.mine]\ncommand = [\"my-agent\", \"--acp\"]\n");
        let inline = after("agents = { a = { command = [\"a\"] } }\n", json!({ "like": "gemini" }));
        assert!(inline.contains("gemini = { like = \"gemini\" }"), "{inline}");
    }

    #[test]
    fn an_entry_of_the_registry_is_imported() {
        let entry = json!({
            "id": "gemini", "name": "Gemini CLI", "version": "0.27.3", "description": "d",
            "distribution": { "npx": { "package": "@google/gemini-cli@0.27.3", "args": ["--experimental-acp"],
                "env": { "GEMINI_CLI_NO_RELAUNCH": "true", "X": "1" } } },
        });
        let text = after("", json!({ "entry": entry }));
        assert_eq!(
            text,
            "[agents.gemini]\nlike = \"gemini\"\n\
             command = [\"npx\", \"--yes\", \"@google/gemini-cli@0.27.3\", \"--experimental-acp\"]\n\
             env = { X = \"1\" }\n"
        );
        let archive = json!({
            "id": "x-agent", "name": "X", "version": "1.0.0", "description": "d",
            "distribution": { "binary": {
                platform(): { "archive": "https://x/y.zip", "cmd": "./x", "args": ["acp"] },
            } },
        });
        let plan = plan("", None, json!({ "entry": archive, "name": "x" })).unwrap();
        assert_eq!(plan.archive.as_deref(), Some("https://x/y.zip"));
        assert_eq!(plan.edit.after, "[agents.x]\ncommand = [\"x\", \"acp\"]\n");
    }

    #[test]
    fn what_cannot_be_added_is_refused() {
        let a = "[agents.a]\ncommand = [\"a\"]\n";
        for (system, user, wish, expected) in [
            ("", a, json!({ "name": "a", "like": "claude" }), "agent \"a\" in /home/kim/agentd.toml already"),
            (a, "", json!({ "name": "a", "like": "claude" }), "agent \"a\" in /etc/agentd/agentd.toml already"),
            ("", "", json!({ "like": "clade" }), "\"clade\" is not a known agent"),
            ("", "", json!({ "name": "x" }), "neither a known agent nor a command"),
            ("", "", json!({ "command": ["x"] }), "no name"),
            ("", "", json!({ "name": "demo", "like": "claude" }), "the built-in agent"),
            ("", "", json!({ "entry": {} }), "not an agent.json"),
            ("", "agents = 1\n", json!({ "like": "claude" }), "not a table"),
            ("", "[", json!({ "like": "claude" }), "would have a mistake"),
            ("", "", json!({ "like": "claude", "env": { "A_TOKEN": "hunter22" } }), "[secrets.A_TOKEN]"),
        ] {
            let error = plan(system, Some(user), wish.clone()).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter22"), "{wish}: {error}");
        }
    }
}
