//! Implements `agentctl adopt`: lists the conversations of an agent (ACP `session/list`), and continues one in a
//! session.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use agentd_api::AgentName;
use agentd_api::login::AgentStartRequest;
use agentd_api::session::{SessionSpec, SessionView};
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::life::{ready, settled};
use super::{Context, START_WAIT, label, print, tell};
use crate::args::agent::AdoptArgs;
use crate::error::Error;
use crate::machine::Machine;
use crate::running_agent::RunningAgent;
use crate::spec::create;
use agentd_client::Terms;
use agentd_client::Way;

/// Time for the answer to `session/list`.
const LIST: Duration = Duration::from_secs(30);
/// Maximum number of pages of a list.
const PAGES: usize = 100;

/// A conversation as an agent lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Conversation {
    session_id: String,
    cwd: PathBuf,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    updated_at: Option<String>,
}

pub(super) async fn adopt(context: &Context, args: AdoptArgs) -> Result<u8, Error> {
    let directory = Machine::This.absolute(&args.dir)?;
    let Some(wanted) = &args.conversation else { return list(context, &args, &directory).await };
    let chosen = choose(context, &args.agent, &directory, wanted).await?;
    let spec = SessionSpec {
        agent: Some(args.agent),
        name: args.name,
        conversation: Some(chosen.session_id),
        ..SessionSpec::new(chosen.cwd)
    };
    let (begun, mut document) = (Instant::now(), create(&context.client, spec, Terms::default()).await?);
    if !context.json {
        print(&format!("{}\n", document.value.id))?;
    }
    if !args.no_wait {
        document = settled(context, document, begun + START_WAIT).await?;
    }
    if context.json {
        context.print_document(&document.raw)?;
    }
    let status = ready(context, &document.value, (!args.no_wait).then_some(START_WAIT)).await?;
    tell(&format!("continue with: agentctl attach {}", label(&document.value)))?;
    Ok(status)
}

/// Returns the conversation with this id, or with an id that begins so.
async fn choose(context: &Context, agent: &AgentName, directory: &Path, wanted: &str) -> Result<Conversation, Error> {
    let given =
        || Conversation { session_id: wanted.to_owned(), cwd: directory.to_owned(), title: None, updated_at: None };
    if matches!(context.client.way(), Way::Tcp { .. }) {
        return Ok(given());
    }
    let Some(mut lister) = Lister::start(context, agent, directory).await? else { return Ok(given()) };
    let mut found = lister.list(Some(directory)).await?;
    if matching(&found, wanted).is_empty() {
        found = lister.list(None).await?;
    }
    lister.agent.end().await;
    match matching(&found, wanted)[..] {
        [one] => Ok(one.clone()),
        [] => Err(Error::Usage {
            detail: format!("{agent} has no conversation {wanted:?}"),
            hint: format!("list its conversations: agentctl adopt {agent} --all"),
        }),
        ref several => {
            let ids: Vec<&str> = several.iter().map(|one| one.session_id.as_str()).collect();
            Err(Error::Usage {
                detail: format!("several conversations of {agent} begin with {wanted:?}"),
                hint: format!("name one: {}", Screen::stderr().line(&ids.join(", "))),
            })
        }
    }
}

/// Returns the conversations with this id, or else those whose ids begin so.
fn matching<'a>(found: &'a [Conversation], wanted: &str) -> Vec<&'a Conversation> {
    match found.iter().find(|one| one.session_id == wanted) {
        Some(exact) => vec![exact],
        None => found.iter().filter(|one| one.session_id.starts_with(wanted)).collect(),
    }
}

async fn list(context: &Context, args: &AdoptArgs, directory: &Path) -> Result<u8, Error> {
    let agent = &args.agent;
    if matches!(context.client.way(), Way::Tcp { .. }) {
        return Err(Error::Usage {
            detail: "conversations are listed at the machine of the sessions".to_owned(),
            hint: format!("list them there: ssh HOST agentctl adopt {agent}"),
        });
    }
    let Some(mut lister) = Lister::start(context, agent, directory).await? else {
        return Err(Error::Usage {
            detail: format!("{agent} does not list its conversations"),
            hint: format!("name one by its id: agentctl adopt {agent} CONVERSATION"),
        });
    };
    let found = lister.list((!args.all).then_some(directory)).await?;
    lister.agent.end().await;
    if context.json {
        return context.print_value(&json!({ "conversations": found })).map(|()| 0);
    }
    let sessions = context.client.sessions(&["status.conversation"]).await?;
    let screen = Screen::stdout();
    let mut table = Table::new(&[
        ("CONVERSATION", Cut::Never),
        ("UPDATED", Cut::Never),
        ("SESSION", Cut::Never),
        ("DIRECTORY", Cut::Start),
        ("TITLE", Cut::End),
    ]);
    for one in &found {
        let has_it = |view: &&SessionView| view.status.conversation.as_ref() == Some(&one.session_id);
        table.row([
            screen.line(&one.session_id),
            screen.line(one.updated_at.as_deref().unwrap_or_default()),
            sessions.iter().find(has_it).map(label).unwrap_or_default(),
            screen.line(&one.cwd.display().to_string()),
            screen.line(one.title.as_deref().unwrap_or_default()),
        ]);
    }
    Context::table(&table)?;
    Ok(0)
}

/// An agent that lists its conversations.
struct Lister {
    agent: RunningAgent,
}

impl Lister {
    /// Starts the agent. Returns `None` if it does not list its conversations.
    async fn start(context: &Context, agent: &AgentName, directory: &Path) -> Result<Option<Self>, Error> {
        let request = AgentStartRequest { directory: directory.to_owned(), session: None };
        let start = context.client.agent_start(agent.as_str(), &request).await?;
        let mut agent = RunningAgent::start(&start, directory, Stdio::null())?;
        let offered = agent.introduce(false).await?;
        if offered["agentCapabilities"]["sessionCapabilities"]["list"].is_null() {
            agent.end().await;
            return Ok(None);
        }
        Ok(Some(Self { agent }))
    }

    /// Returns the conversations of a directory, or of all directories.
    async fn list(&mut self, directory: Option<&Path>) -> Result<Vec<Conversation>, Error> {
        let mut found = Vec::new();
        let mut cursor = Value::Null;
        for _ in 0..PAGES {
            let mut params = json!({});
            if let Some(directory) = directory {
                params["cwd"] = json!(directory);
            }
            if !cursor.is_null() {
                params["cursor"] = cursor;
            }
            let failed = |detail: String| Error::Usage { detail, hint: "is the agent logged in?".to_owned() };
            let silent = |_| failed(format!("the agent did not answer session/list within {} s", LIST.as_secs()));
            let mut page =
                timeout(LIST, self.agent.request("session/list", params)).await.map_err(silent)?.map_err(failed)?;
            // An entry that cannot be read is left out.
            let entries = page["sessions"].as_array().cloned().unwrap_or_default();
            found.extend(entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()));
            cursor = page["nextCursor"].take();
            if cursor.is_null() {
                break;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_chosen_by_its_id_or_the_beginning_of_its_id() {
        let found: Vec<Conversation> =
            serde_json::from_value(json!([{ "sessionId": "ab", "cwd": "/w" }, { "sessionId": "abc", "cwd": "/w" }]))
                .unwrap();
        let of = |wanted: &str| matching(&found, wanted).iter().map(|one| one.session_id.clone()).collect::<Vec<_>>();
        assert_eq!((of("ab"), of("abc"), of("a").len(), of("x").len()), (vec!["ab".into()], vec!["abc".into()], 2, 0));
    }
}
