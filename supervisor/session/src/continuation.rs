//! Sessions that continue a conversation: of another session, or from outside of agentd.
//!
//! An agent with `session/fork` copies the conversation, and both sessions continue. Any other agent loads it. Then
//! only one of the sessions may be active at a time, because two agents would overwrite each other's history.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentd_api::event::Continuation;
use agentd_api::session::{Phase, SessionSpec, SessionView};
use agentd_api::spec::Workspace;
use agentd_api::{Code, Problem, SessionId};
use tokio::sync::OwnedMutexGuard;

use crate::{Session, Sessions};

/// Maximum length of an agent's id of a conversation, in bytes.
const LONGEST: usize = 512;

fn invalid(detail: &str, hint: &str) -> Problem {
    Problem::new(Code::InvalidRequest, detail).hint(hint)
}

/// Gives the specification what belongs to the conversation: agent, directory and workspace. Refuses others.
fn inherit(spec: &mut SessionSpec, parent: &SessionView) -> Result<(), Problem> {
    let of = &parent.spec;
    if spec.agent.is_some() || spec.command.is_some() {
        if (&spec.agent, &spec.command) != (&of.agent, &of.command) {
            let detail = format!("the conversation of the session {} belongs to its agent", parent.id);
            return Err(invalid(&detail, "remove `agent` and `command`, or `parent`"));
        }
    } else {
        (spec.agent, spec.command) = (of.agent.clone(), of.command.clone());
    }
    let workspace = of.workspace.as_ref().map(|workspace| Workspace::Of(workspace.owner(&parent.id).clone()));
    if spec.workspace.is_some() && spec.workspace != workspace {
        let detail = format!("the conversation of the session {} belongs to its workspace", parent.id);
        return Err(invalid(&detail, "remove `workspace`, or `parent`"));
    }
    if !spec.directory.as_os_str().is_empty() && spec.directory != of.directory {
        let detail = format!("the conversation of the session {} belongs to {}", parent.id, of.directory.display());
        return Err(invalid(&detail, "remove `directory`, or `parent`"));
    }
    (spec.workspace, spec.directory) = (workspace, of.directory.clone());
    if spec.workflow.is_none() {
        spec.workflow.clone_from(&of.workflow);
    }
    Ok(())
}

/// Reports whether the session has an agent, or is about to have one again.
fn is_in_use(phase: Phase) -> bool {
    phase.is_active() || phase == Phase::BackingOff
}

impl Sessions {
    /// Prepares the specification of a session that continues another one. Returns the conversation, and a guard that
    /// keeps other sessions from using it until the new session is registered. `None` without a parent.
    pub(super) async fn continuation(
        &self,
        spec: &mut SessionSpec,
    ) -> Result<Option<(OwnedMutexGuard<()>, Continuation)>, Problem> {
        let Some(parent) = &spec.parent else {
            return match spec.workspace {
                Some(Workspace::Of(_)) => Err(invalid(
                    "only a session with a `parent` has the workspace of another session",
                    "request `workspace: \"new\"`, or name the `parent`",
                )),
                _ => match &spec.conversation {
                    Some(conversation) => self.adoption(spec, conversation).await.map(Some),
                    None => Ok(None),
                },
            };
        };
        if spec.conversation.is_some() {
            return Err(invalid(
                "a session continues the conversation of its parent, or one that the agent has",
                "remove `parent` or `conversation`",
            ));
        }
        let parent = self.find(parent.as_str()).await?;
        parent.is_current().await;
        let view = parent.view();
        inherit(spec, &view)?;
        let Some(conversation) = view.status.conversation.clone() else {
            let detail = format!("the session {} has no conversation that could be continued", view.id);
            return Err(Problem::new(Code::WrongPhase, detail).hint("create the session without `parent`"));
        };
        let alone = self.conversations.lock(conversation.clone()).await;
        let state = parent.state().await?;
        if let Some(user) = self.user_of(&view, None).await {
            copyable(&user, state.can_fork)?;
        }
        spec.parent = view.id.as_str().parse().ok();
        let (home, created) = (state.conversation_home.clone(), state.conversation_born);
        let directory = state.conversation_directory.clone();
        let workflow = state.workflow.active().cloned().map(Box::new);
        let places = state.conversation_places.clone();
        let (can_fork, is_adopted) = (state.can_fork, false);
        let continues = Continuation { conversation, home, places, created, is_adopted, can_fork, directory, workflow };
        Ok(Some((alone, continues)))
    }

    /// Returns a conversation that the agent has already. Another session of the same agent must not have it.
    async fn adoption(
        &self,
        spec: &SessionSpec,
        conversation: &str,
    ) -> Result<(OwnedMutexGuard<()>, Continuation), Problem> {
        if conversation.is_empty() || conversation.len() > LONGEST || conversation.chars().any(char::is_control) {
            let detail = format!("`conversation` is empty, has control characters, or is longer than {LONGEST} bytes");
            return Err(invalid(&detail, "name a conversation as the agent lists it: `agentctl adopt AGENT`"));
        }
        if spec.workspace.is_some() {
            let hint = "remove `workspace`, and name the `directory` of the conversation";
            return Err(invalid("a conversation of the agent belongs to its own directory", hint));
        }
        let conversation = conversation.to_owned();
        let alone = self.conversations.lock(conversation.clone()).await;
        let has_it = |view: &SessionView| {
            let is_same_agent = (&view.spec.agent, &view.spec.command) == (&spec.agent, &spec.command);
            is_same_agent && view.status.conversation.as_ref() == Some(&conversation)
        };
        if let Some(session) = self.those(has_it).first() {
            let id = session.id();
            let detail = format!("the session {id} has this conversation already");
            let hint = format!("continue it there: `agentctl resume {id}`, or copy it: `agentctl run --parent {id}`");
            return Err(Problem::new(Code::ConversationInUse, detail).hint(hint));
        }
        let continues = Continuation {
            conversation,
            home: None,
            places: BTreeMap::new(),
            created: None,
            is_adopted: true,
            can_fork: false,
            directory: None,
            workflow: None,
        };
        Ok((alone, continues))
    }

    /// Refuses to launch a session whose conversation another active session has. Returns a guard that keeps others
    /// from using the conversation until the launch has begun.
    pub(super) async fn claim_conversation(&self, session: &Session) -> Result<Option<OwnedMutexGuard<()>>, Problem> {
        let Some(conversation) = session.view().status.conversation.clone() else { return Ok(None) };
        let alone = self.conversations.lock(conversation).await;
        if let Some(user) = self.user_of(&session.view(), Some(session.id())).await {
            let state = session.state().await?;
            copyable(&user, state.is_taken_over && state.can_fork)?;
        }
        Ok(Some(alone))
    }

    /// Returns an active session with the conversation of this view.
    async fn user_of(&self, view: &SessionView, except: Option<&SessionId>) -> Option<Arc<SessionView>> {
        for sharer in self.those(|other| Some(&other.id) != except && has_same_conversation(other, view)) {
            // A session that was just found on the disk may have begun a launch since.
            sharer.is_current().await;
            let view = sharer.view();
            if is_in_use(view.status.phase) {
                return Some(view);
            }
        }
        None
    }
}

fn has_same_conversation(one: &SessionView, other: &SessionView) -> bool {
    one.status.conversation.is_some()
        && one.status.conversation == other.status.conversation
        && (&one.spec.agent, &one.spec.command) == (&other.spec.agent, &other.spec.command)
}

/// Refuses a conversation that another session uses, unless the agent can copy it between two turns.
fn copyable(user: &SessionView, can_fork: bool) -> Result<(), Problem> {
    let id = &user.id;
    let in_use = |detail: String, hint: String| Err(Problem::new(Code::ConversationInUse, detail).hint(hint));
    if !can_fork {
        let detail = format!("the session {id} uses the conversation, and its agent cannot copy one");
        return in_use(detail, format!("stop that session first: `agentctl stop {id}`"));
    }
    if user.status.phase == Phase::Busy {
        let detail = format!("a turn of the session {id} changes the conversation");
        return in_use(detail, format!("wait until the turn has ended: `agentctl wait {id} --for phase=idle`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent() -> SessionView {
        serde_json::from_value(serde_json::json!({
            "id": "p1", "generation": 1, "created": "2026-01-01T00:00:00Z",
            "spec": { "agent": "demo", "directory": "/w/p1/app", "workspace": "new" },
            "status": {
                "phase": "stopped", "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 1,
                "updated": "2026-01-01T00:00:00Z",
            },
        }))
        .unwrap()
    }

    fn spec(fields: serde_json::Value) -> SessionSpec {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn what_belongs_to_the_conversation_is_the_parents() {
        let mut taken = spec(serde_json::json!({ "parent": "p1" }));
        inherit(&mut taken, &parent()).unwrap();
        assert_eq!(taken.agent.as_ref().unwrap().as_str(), "demo");
        assert_eq!(taken.directory.to_str(), Some("/w/p1/app"));
        assert_eq!(taken.workspace, Some(Workspace::Of("p1".parse().unwrap())));
        // The workspace of a longer chain stays that of its first session.
        let mut second = SessionView { id: "p2".parse().unwrap(), ..parent() };
        second.spec = std::sync::Arc::new(taken.clone());
        let mut third = spec(serde_json::json!({ "parent": "p2" }));
        inherit(&mut third, &second).unwrap();
        assert_eq!(third.workspace, taken.workspace);
    }

    #[test]
    fn another_agent_directory_or_workspace_is_refused() {
        for other in [
            serde_json::json!({ "agent": "other" }),
            serde_json::json!({ "command": ["demo"] }),
            serde_json::json!({ "directory": "/w" }),
            serde_json::json!({ "workspace": "new" }),
            serde_json::json!({ "workspace": { "of": "p3" } }),
        ] {
            let mut asked = spec(other.clone());
            assert_eq!(inherit(&mut asked, &parent()).unwrap_err().code, Code::InvalidRequest, "{other}");
        }
        let same = serde_json::json!({ "agent": "demo", "directory": "/w/p1/app", "workspace": { "of": "p1" } });
        inherit(&mut spec(same), &parent()).unwrap();
    }
}
