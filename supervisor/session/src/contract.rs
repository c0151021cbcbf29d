//! The values of the environment contract: what agentd tells an agent about its session by variables.

use agentd_api::ByteString;
use agentd_api::contract::{
    AGENTD_ARTIFACTS, AGENTD_CONTINUATION, AGENTD_PARENT, AGENTD_SESSION_NAME, AGENTD_WORKSPACE, AGENTIC_SESSION_NAME,
    ARTIFACTS_DIR, INITIAL_PROMPT, PARENT_SESSION_ID, REPOS_JSON, SESSION_ID, TIMEOUT, WORKSPACE_PATH,
};
use agentd_api::environment::RunnerNames;
use agentd_api::repository::RepositorySpec;
use serde_json::json;

use crate::launch_plan::LaunchPlan;
use crate::repositories::ARTIFACTS;

/// Longest initial prompt in a variable, in bytes. A program with a variable of 128 KiB cannot be started (execve(2)).
const LONGEST: usize = 64 * 1024;

/// A variable of the contract.
type Given = (&'static str, ByteString);

/// Returns the variables of a launch, except for the session's id and its own control socket.
pub(crate) fn variables(plan: &LaunchPlan) -> Vec<Given> {
    let mut given = own(plan);
    if plan.compatibility == RunnerNames::Ambient {
        given.extend(ambient(plan));
    }
    given
}

fn path(name: &'static str, path: &std::path::Path) -> Given {
    (name, path.as_os_str().into())
}

fn own(plan: &LaunchPlan) -> Vec<Given> {
    let mut given = vec![(AGENTD_CONTINUATION, plan.conversation.is_some().to_string().into())];
    given.extend(plan.spec.name.as_ref().map(|name| (AGENTD_SESSION_NAME, name.as_str().into())));
    given.extend(plan.spec.parent.as_ref().map(|parent| (AGENTD_PARENT, parent.as_str().into())));
    if let Some(workspace) = &plan.workspace {
        given.extend([path(AGENTD_WORKSPACE, workspace), path(AGENTD_ARTIFACTS, &workspace.join(ARTIFACTS))]);
    }
    given
}

/// Returns the variables that the runner of the Ambient Code platform gives to its agent.
fn ambient(plan: &LaunchPlan) -> Vec<Given> {
    let spec = &plan.spec;
    let name = spec.name.as_ref().map_or(plan.id.as_str(), |name| name.as_str());
    let mut given = vec![
        (SESSION_ID, plan.id.as_str().into()),
        (AGENTIC_SESSION_NAME, name.into()),
        path(WORKSPACE_PATH, plan.root()),
    ];
    given.extend(plan.workspace.as_ref().map(|workspace| path(ARTIFACTS_DIR, &workspace.join(ARTIFACTS))));
    let prompt = spec.initial_prompt.as_ref().filter(|prompt| prompt.len() <= LONGEST && !prompt.contains('\0'));
    given.extend(prompt.map(|prompt| (INITIAL_PROMPT, prompt.as_str().into())));
    if !spec.repos.is_empty() {
        let repos: Vec<_> = spec.repos.iter().map(repository).collect();
        given.push((REPOS_JSON, json!(repos).to_string().into()));
    }
    given.extend(spec.limits.turn_seconds.map(|seconds| (TIMEOUT, seconds.to_string().into())));
    if plan.conversation.is_some() {
        let before = spec.parent.as_ref().filter(|_| plan.launch == 1);
        given.push((PARENT_SESSION_ID, before.map_or(plan.id.as_str(), |parent| parent.as_str()).into()));
    }
    given
}

/// Describes a repository as the runner does.
fn repository(spec: &RepositorySpec) -> serde_json::Value {
    let of = spec.local().map(|of| of.display().to_string());
    let mut described = json!({ "name": spec.name(), "url": of.as_ref().or(spec.url.as_ref()) });
    if let Some(branch) = &spec.branch {
        described["branch"] = json!(branch);
    }
    described
}
