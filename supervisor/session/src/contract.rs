//! The values of the environment contract: what agentd tells an agent about its session by variables.

use agentd_api::ByteString;
use agentd_api::contract::{
    ACTIVE_WORKFLOW_BRANCH, ACTIVE_WORKFLOW_GIT_URL, ACTIVE_WORKFLOW_PATH, AGENTD_ARTIFACTS, AGENTD_CONTINUATION,
    AGENTD_INTERACTIVE, AGENTD_PARENT, AGENTD_SESSION_NAME, AGENTD_WORKFLOW, AGENTD_WORKFLOW_DIRECTORY,
    AGENTD_WORKSPACE, AGENTIC_SESSION_NAME, ARTIFACTS_DIR, INITIAL_PROMPT, INTERACTIVE, PARENT_SESSION_ID, REPOS_JSON,
    SESSION_ID, TIMEOUT, WORKSPACE_PATH,
};
use agentd_api::environment::RunnerNames;
use agentd_api::repository::RepositorySpec;
use agentd_api::workflow::{ActiveWorkflow, WorkflowSpec};
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
    let mut given = vec![
        (AGENTD_CONTINUATION, plan.conversation.is_some().to_string().into()),
        (AGENTD_INTERACTIVE, plan.is_interactive.to_string().into()),
    ];
    given.extend(plan.spec.name.as_ref().map(|name| (AGENTD_SESSION_NAME, name.as_str().into())));
    given.extend(plan.spec.parent.as_ref().map(|parent| (AGENTD_PARENT, parent.as_str().into())));
    if let Some(workspace) = &plan.workspace {
        given.extend([path(AGENTD_WORKSPACE, workspace), path(AGENTD_ARTIFACTS, &workspace.join(ARTIFACTS))]);
    }
    if let Some(active) = &plan.workflow {
        let name = active.description.name.as_str();
        given.extend([(AGENTD_WORKFLOW, name.into()), path(AGENTD_WORKFLOW_DIRECTORY, &active.directory)]);
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
    // The runner lists no clones of workflows.
    let active = plan.workflow.as_ref().map(|active| &active.spec);
    let clones: Vec<_> = spec.workflow.iter().chain(active).filter_map(WorkflowSpec::repository).collect();
    let repos: Vec<_> = spec.repos.iter().filter(|one| !clones.contains(one)).map(repository).collect();
    if !repos.is_empty() {
        given.push((REPOS_JSON, json!(repos).to_string().into()));
    }
    if let Some(ActiveWorkflow { spec, .. }) = &plan.workflow {
        given.extend(spec.url.as_ref().map(|url| (ACTIVE_WORKFLOW_GIT_URL, url.as_str().into())));
        given.extend(spec.branch.as_ref().map(|branch| (ACTIVE_WORKFLOW_BRANCH, branch.as_str().into())));
        given.extend(spec.path.as_ref().map(|inside| path(ACTIVE_WORKFLOW_PATH, inside)));
    }
    given.push((INTERACTIVE, plan.is_interactive.to_string().into()));
    let limit = spec.limits.session_seconds.or(spec.limits.turn_seconds).filter(|seconds| *seconds > 0);
    given.extend(limit.map(|seconds| (TIMEOUT, seconds.to_string().into())));
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
