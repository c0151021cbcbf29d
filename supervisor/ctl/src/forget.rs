//! Deletes the agent's own copy of a conversation (ACP `session/delete`) when its session is deleted.
//!
//! The agent is started before the session is deleted, because its environment needs the session. It is asked
//! afterwards, because a refused deletion must not lose the conversation.

use std::process::Stdio;
use std::time::Duration;

use agentd_api::login::AgentStartRequest;
use agentd_api::session::SessionView;
use serde_json::json;
use tokio::time::timeout;

use crate::running_agent::RunningAgent;
use agentd_client::Client;

/// Time for the answer to `session/delete`.
const DELETE: Duration = Duration::from_secs(30);

/// The deletion of a conversation.
pub(crate) enum Forgetting {
    /// There is no conversation, or its session is not deleted.
    Nothing,
    /// The files of the conversation stay, for this reason if it is not the person's wish.
    Stays(Option<String>),
    /// The agent is asked to delete the conversation.
    Asked { agent: Box<RunningAgent>, conversation: String },
}

impl Forgetting {
    /// Prepares the deletion of a session's conversation. `is_kept` keeps the conversation.
    pub(crate) async fn prepare(client: &Client, view: &SessionView, is_kept: bool) -> Self {
        let Some(conversation) = view.status.conversation.clone() else { return Self::Nothing };
        if is_kept {
            return Self::Stays(None);
        }
        if !view.status.deletes_conversations {
            return Self::stays("it offers no deletion of a conversation");
        }
        if client.way().socket().is_none() {
            return Self::stays("it is deleted only at the machine of the session");
        }
        let shares = |other: &SessionView| other.id != view.id && other.status.conversation == view.status.conversation;
        match client.sessions(&["status.conversation"]).await {
            Ok(sessions) if sessions.iter().any(shares) => return Self::stays("another session has it too"),
            Ok(_) => {}
            Err(error) => return Self::stays(&error.to_string()),
        }
        match started(client, view).await {
            Ok(agent) => Self::Asked { agent: Box::new(agent), conversation },
            Err(error) => Self::stays(&error),
        }
    }

    fn stays(why: &str) -> Self {
        Self::Stays(Some(why.to_owned()))
    }

    /// Deletes the conversation, after its session was deleted. Returns a line for the person, if there is anything to
    /// tell.
    pub(crate) async fn finish(self, view: &SessionView) -> Option<String> {
        let why = match self {
            Self::Nothing => return None,
            Self::Stays(why) => why,
            Self::Asked { mut agent, conversation } => {
                let asked = agent.request("session/delete", json!({ "sessionId": conversation }));
                let answer = timeout(DELETE, asked).await;
                agent.end().await;
                match answer {
                    Ok(Ok(_)) => return Some("the agent has deleted its conversation".to_owned()),
                    Ok(Err(error)) => Some(error),
                    Err(_) => Some(format!("the agent did not answer session/delete within {} s", DELETE.as_secs())),
                }
            }
        };
        let directories = &view.status.conversation_directories;
        let directories: Vec<String> = directories.iter().map(|one| one.display().to_string()).collect();
        let place = directories.join(" and ");
        match why {
            None if place.is_empty() => None,
            // An agent without conversations on the disk has nothing to delete.
            Some(_) if place.is_empty() && !view.status.deletes_conversations => None,
            Some(why) if place.is_empty() => Some(format!("the agent keeps its conversation: {why}")),
            Some(why) => Some(format!("the agent's own files of the conversation stay below {place}: {why}")),
            None => Some(format!("the agent's own files of the conversation stay below {place}")),
        }
    }
}

async fn started(client: &Client, view: &SessionView) -> Result<RunningAgent, String> {
    let directory = view.spec.directory.clone();
    let request = AgentStartRequest { directory: directory.clone(), session: Some(view.id.clone()) };
    let name = view.spec.agent.as_ref().map_or("command", |agent| agent.as_str());
    let start = client.agent_start(name, &request).await.map_err(|error| error.to_string())?;
    let mut agent = RunningAgent::start(&start, &directory, Stdio::null()).map_err(|error| error.to_string())?;
    agent.introduce(false).await.map_err(|error| error.to_string())?;
    Ok(agent)
}
