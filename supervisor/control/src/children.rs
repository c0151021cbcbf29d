//! Limits the sessions that an agent may create under `control.guests = "children"`. Such a session runs below its
//! parent's directory, and may do no more than its parent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::session::{PermissionPolicy, SessionSpec, SessionView};
use agentd_api::{AgentName, Code, Problem};
use agentd_caller::CallerClass;

use super::access;
use super::router::Context;
use agentd_session::ParentSession;

/// Time limit for resolving the two directories.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the specification to create and the parent. The owner's specification is unchanged; a guest's is
/// limited by its own session.
pub(super) async fn confined(
    context: &Context,
    asked: SessionSpec,
) -> Result<(SessionSpec, Option<ParentSession>), Problem> {
    let CallerClass::Guest(guest) = &context.caller.who else {
        access::owner_only(context, "only the owner creates sessions")?;
        return Ok((asked, None));
    };
    let parent = context.sessions.find(guest.as_str()).await?.view();
    let control = &context.generation.config.control;
    let listed = |agent: &AgentName| control.guest_agents.contains(agent);
    let mut spec = within(&parent, asked, listed)?;
    spec.directory = below(parent.spec.directory.clone(), spec.directory).await?;
    Ok((spec, Some(ParentSession { id: guest.clone(), most: control.guest_sessions })))
}

fn refused(parent: &SessionView, what: impl std::fmt::Display, hint: &str) -> Problem {
    Problem::new(Code::InSession, format!("the session {} may not create this one: {what}", parent.id)).hint(hint)
}

/// Limits the specification of a child: the fields that a parent may set, and the parent's values for all others.
/// Pure.
fn within(
    parent: &SessionView,
    asked: SessionSpec,
    listed: impl Fn(&AgentName) -> bool,
) -> Result<SessionSpec, Problem> {
    if let Some(creator) = &parent.parent {
        let what = format!("it was created by the session {creator}, and a created session cannot create further ones");
        return Err(refused(parent, what, "create the session from outside of the sessions"));
    }
    // A guest cannot set a new field of the specification until the field is listed here.
    let own = SessionSpec {
        name: asked.name.clone(),
        agent: asked.agent.clone(),
        command: asked.command.clone(),
        initial_prompt: asked.initial_prompt.clone(),
        permissions: asked.permissions,
        ..SessionSpec::new(&asked.directory)
    };
    if asked != own {
        let what = "it may set only name, agent, directory, initial_prompt and permissions";
        return Err(refused(
            parent,
            what,
            "remove the other fields: limits, tags, environment and prerequisites come from the parent",
        ));
    }
    let (agent, command) = match (asked.agent, asked.command) {
        (None, None) => (parent.spec.agent.clone(), parent.spec.command.clone()),
        (Some(agent), None) if parent.spec.agent.as_ref() == Some(&agent) || listed(&agent) => (Some(agent), None),
        (None, Some(command)) if parent.spec.command.as_ref() == Some(&command) => (None, Some(command)),
        _ => {
            let what = "its agent is neither the parent's nor one of control.guest_agents";
            return Err(refused(parent, what, "remove agent and command to use the parent's"));
        }
    };
    if strictness(asked.permissions) < strictness(parent.spec.permissions) {
        let what = format!("its permission policy is less strict than the parent's, {:?}", parent.spec.permissions);
        return Err(refused(parent, what.to_lowercase(), "use the parent's policy or a stricter one"));
    }
    Ok(SessionSpec {
        name: asked.name,
        agent,
        command,
        directory: asked.directory,
        initial_prompt: asked.initial_prompt,
        permissions: asked.permissions,
        env_setup: None,
        directories: Vec::new(),
        workspace: None,
        parent: None,
        conversation: None,
        repos: Vec::new(),
        ..SessionSpec::clone(&parent.spec)
    })
}

fn strictness(policy: PermissionPolicy) -> u8 {
    match policy {
        PermissionPolicy::Allow => 0,
        PermissionPolicy::Ask => 1,
        PermissionPolicy::Deny => 2,
    }
}

/// Returns the child's directory with links resolved, if it is below the parent's.
async fn below(parent: PathBuf, child: PathBuf) -> Result<PathBuf, Problem> {
    let silent = || {
        let hint = "check the mounts of the session's directory and of its parent's directory";
        Problem::new(Code::DirectorySilent, "the session's directory does not answer").hint(hint)
    };
    let (asked, around) = (child.clone(), parent.clone());
    let resolve = move || Some((around.canonicalize().ok()?, asked.canonicalize().ok()?));
    let resolved = tokio::time::timeout(PATIENCE, agentd_host::work::blocking(resolve)).await.map_err(|_| silent())?;
    let Some((around, resolved)) = resolved.map_err(|_| silent())? else {
        return Err(Problem::new(Code::NoSuchDirectory, format!("the directory {} does not exist", child.display()))
            .hint("use an existing directory below the parent's"));
    };
    if is_below(&around, &resolved) {
        return Ok(resolved);
    }
    let detail = format!("{} is not below {}, the directory of the calling session", child.display(), parent.display());
    Err(Problem::new(Code::InSession, detail).hint("use a directory below the session's own; links are followed"))
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
    fn a_child_inherits_from_its_parent_and_sets_few_fields_itself() {
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
    fn a_child_may_use_its_parents_command_and_cannot_create_children() {
        let spec = serde_json::json!({ "directory": "/w", "command": ["a", "b"] });
        let mut parent = parent(&spec);
        let asked = || serde_json::from_value::<SessionSpec>(spec.clone()).unwrap();
        assert_eq!(within(&parent, asked(), |_| false).unwrap().command, parent.spec.command);
        assert!(within(&parent, SessionSpec { command: Some(vec!["a".into()]), ..asked() }, |_| true).is_err());
        parent.parent = Some("q".parse().unwrap());
        assert!(within(&parent, asked(), |_| true).is_err());
    }

    #[test]
    fn a_path_is_below_another_by_whole_components() {
        assert!(is_below(Path::new("/w"), Path::new("/w")) && is_below(Path::new("/w"), Path::new("/w/a/b")));
        assert!(!is_below(Path::new("/w"), Path::new("/w2")) && !is_below(Path::new("/w/a"), Path::new("/w")));
    }
}
