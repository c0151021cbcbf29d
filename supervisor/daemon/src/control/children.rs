//! What an agent may create where `control.guests = "children"`: a session below its own directory, that may do no
//! more than its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::session::{PermissionPolicy, SessionSpec, SessionView};
use agentd_api::{AgentName, Code, Problem};
use agentd_keeper::caller::Who;

use super::access;
use super::router::Context;
use crate::session::Parent;

/// How long the two directories may take to say where they are.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was asked for, as it may be created, and by which session: the owner's as it is, a guest's within its bounds.
pub(super) async fn confined(context: &Context, asked: SessionSpec) -> Result<(SessionSpec, Option<Parent>), Problem> {
    let Who::Guest(guest) = &context.caller.who else {
        access::owner_only(context, "a session is created by the owner")?;
        return Ok((asked, None));
    };
    let parent = context.sessions.find(guest.as_str()).await?.view();
    let control = &context.world.config.control;
    let listed = |agent: &AgentName| control.guest_agents.contains(agent);
    let mut spec = within(&parent, asked, listed)?;
    spec.directory = below(parent.spec.directory.clone(), spec.directory).await?;
    Ok((spec, Some(Parent { id: guest.clone(), most: control.guest_sessions })))
}

fn refused(parent: &SessionView, what: impl std::fmt::Display, hint: &str) -> Problem {
    Problem::new(Code::InSession, format!("the session {} may not create this one: {what}", parent.id)).hint(hint)
}

/// What a parent may ask for, with everything else as the parent has it. Pure.
fn within(
    parent: &SessionView,
    asked: SessionSpec,
    listed: impl Fn(&AgentName) -> bool,
) -> Result<SessionSpec, Problem> {
    if let Some(creator) = &parent.parent {
        let what = format!("it was itself created by the session {creator}, and such a session creates none");
        return Err(refused(parent, what, "a person may, from outside of the sessions"));
    }
    // Whatever is added to a specification is the owner's to say until it is listed here.
    let own = SessionSpec {
        name: asked.name.clone(),
        agent: asked.agent.clone(),
        command: asked.command.clone(),
        initial_prompt: asked.initial_prompt.clone(),
        permissions: asked.permissions,
        ..SessionSpec::new(&asked.directory)
    };
    if asked != own {
        let what = "it may say name, agent, directory, initial_prompt and permissions of it, and no more";
        return Err(refused(
            parent,
            what,
            "leave out the rest: limits, tags, environment and needs are those of the parent",
        ));
    }
    let (agent, command) = match (asked.agent, asked.command) {
        (None, None) => (parent.spec.agent.clone(), parent.spec.command.clone()),
        (Some(agent), None) if parent.spec.agent.as_ref() == Some(&agent) || listed(&agent) => (Some(agent), None),
        (None, Some(command)) if parent.spec.command.as_ref() == Some(&command) => (None, Some(command)),
        _ => {
            let what = "its agent is neither the parent's nor one of control.guest_agents";
            return Err(refused(parent, what, "leave out agent and command to have the parent's"));
        }
    };
    if strictness(asked.permissions) < strictness(parent.spec.permissions) {
        let what = format!("its permission policy is laxer than the parent's, {:?}", parent.spec.permissions);
        return Err(refused(parent, what.to_lowercase(), "give the parent's policy, or a stricter one"));
    }
    Ok(SessionSpec {
        name: asked.name,
        agent,
        command,
        directory: asked.directory,
        initial_prompt: asked.initial_prompt,
        permissions: asked.permissions,
        env_setup: None,
        ..parent.spec.clone()
    })
}

fn strictness(policy: PermissionPolicy) -> u8 {
    match policy {
        PermissionPolicy::Allow => 0,
        PermissionPolicy::Ask => 1,
        PermissionPolicy::Deny => 2,
    }
}

/// The child's directory with links resolved, where that is in the parent's.
async fn below(parent: PathBuf, child: PathBuf) -> Result<PathBuf, Problem> {
    let silent = || {
        let hint = "is a mount gone that one of the two directories is on?";
        Problem::new(Code::DirectorySilent, "the session's directory does not answer").hint(hint)
    };
    let (asked, around) = (child.clone(), parent.clone());
    let resolve = move || Some((around.canonicalize().ok()?, asked.canonicalize().ok()?));
    let resolved = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(resolve)).await.map_err(|_| silent())?;
    let Some((around, resolved)) = resolved.map_err(|_| silent())? else {
        return Err(Problem::new(Code::NoSuchDirectory, format!("the directory {} does not exist", child.display()))
            .hint("give a directory that is there, below the parent's"));
    };
    if is_below(&around, &resolved) {
        return Ok(resolved);
    }
    let detail = format!("{} is not in {}, the directory of the session that asks", child.display(), parent.display());
    Err(Problem::new(Code::InSession, detail).hint("give a directory below the session's own; links are followed"))
}

fn is_below(around: &Path, inside: &Path) -> bool {
    inside.starts_with(around)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(spec: &serde_json::Value) -> SessionView {
        let time = "2026-01-01T00:00:00Z";
        let status = serde_json::json!({
            "phase": "busy", "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 9, "updated": time
        });
        let view = serde_json::json!({ "id": "p", "generation": 1, "created": time, "spec": spec, "status": status });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn a_child_has_what_its_parent_has_and_says_little_itself() {
        let spec = serde_json::json!({
            "directory": "/w", "agent": "claude", "env_setup": "export A=1", "permissions": "ask", "tags": ["lab"],
            "limits": { "memory": 1000 }
        });
        let parent = parent(&spec);
        let ask = |spec: serde_json::Value| {
            within(&parent, serde_json::from_value(spec).unwrap(), |agent| agent.as_str() == "helper")
        };
        let child = ask(serde_json::json!({ "directory": "/w/a" })).unwrap();
        assert_eq!(
            (child.agent.clone(), child.env_setup, child.tags),
            (parent.spec.agent.clone(), None, vec!["lab".into()])
        );
        assert_eq!(child.limits.memory, Some(1000));
        for good in [
            serde_json::json!({ "directory": "/w", "agent": "claude", "permissions": "deny", "name": "b" }),
            serde_json::json!({ "directory": "/w", "agent": "helper", "initial_prompt": "go" }),
        ] {
            assert!(ask(good.clone()).is_ok(), "{good}");
        }
        for bad in [
            serde_json::json!({ "directory": "/w", "agent": "codex" }),
            serde_json::json!({ "directory": "/w", "command": ["/bin/sh"] }),
            serde_json::json!({ "directory": "/w", "permissions": "allow" }),
            serde_json::json!({ "directory": "/w", "tags": ["vpn"] }),
            serde_json::json!({ "directory": "/w", "env_setup": "export A=2" }),
            serde_json::json!({ "directory": "/w", "limits": { "memory": 9000 } }),
            serde_json::json!({ "directory": "/w", "restart": "never" }),
            serde_json::json!({ "directory": "/w", "environment": { "env": { "A": "1" } } }),
            serde_json::json!({ "directory": "/w", "environment": { "env": { "LD_PRELOAD": "/x.so" } } }),
            serde_json::json!({ "directory": "/w", "environment": { "allow": ["SSH_AUTH_SOCK"] } }),
        ] {
            let problem = ask(bad.clone()).unwrap_err();
            assert_eq!((problem.code, problem.hint.is_some()), (Code::InSession, true), "{bad}");
        }
    }

    #[test]
    fn a_parents_command_may_be_its_childs_and_a_child_has_no_children() {
        let spec = serde_json::json!({ "directory": "/w", "command": ["a", "b"] });
        let mut parent = parent(&spec);
        let asked = || serde_json::from_value::<SessionSpec>(spec.clone()).unwrap();
        assert_eq!(within(&parent, asked(), |_| false).unwrap().command, parent.spec.command);
        assert!(within(&parent, SessionSpec { command: Some(vec!["a".into()]), ..asked() }, |_| true).is_err());
        parent.parent = Some("q".parse().unwrap());
        assert!(within(&parent, asked(), |_| true).is_err());
    }

    #[test]
    fn below_is_below_by_whole_names() {
        assert!(is_below(Path::new("/w"), Path::new("/w")) && is_below(Path::new("/w"), Path::new("/w/a/b")));
        assert!(!is_below(Path::new("/w"), Path::new("/w2")) && !is_below(Path::new("/w/a"), Path::new("/w")));
    }
}
