//! Workflows: a repository or a directory with a description of how an agent works there.
//!
//! The description is `workflow.toml`, or `.ambient/ambient.json` as on the Ambient Code platform. It is used only
//! after the owner has approved this file with this content, as a script.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::repository::{InvalidRepository, RepositorySpec};
use crate::session::SessionSpec;

/// The workflow that a session requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkflowSpec {
    /// Address of the workflow's repository, with the notation of a session's repositories. It is cloned into
    /// `workflows/` of the workspace, or else of the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Absolute path of a local directory, which is used where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Branch of the repository. Default: the default branch of the remote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Path of the workflow in the repository or the directory. Default: its top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Named secret with the password or token for an `https` or `http` address: `[secrets.NAME]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Reason why a requested workflow is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWorkflow {
    /// Neither a repository nor a directory is named, or both are.
    #[error("a workflow has either a `url` or a `directory`")]
    Source,
    /// The directory is not absolute.
    #[error("the directory {0:?} of a workflow must be absolute")]
    Relative(PathBuf),
    /// A field does not fit a directory.
    #[error("`{0}` is for workflows with a `url`")]
    ForRepository(&'static str),
    /// The path leads out of the repository.
    #[error("the path {0:?} of a workflow must be relative, and lead below its repository or directory")]
    Path(PathBuf),
    /// The repository is not valid.
    #[error(transparent)]
    Repository(#[from] InvalidRepository),
}

/// Directory of the clones of workflows.
const CLONES: &str = "workflows";

/// Reports whether a path is relative and leads below its start.
pub fn is_below(path: &Path) -> bool {
    let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    path.to_str().is_some_and(|text| !text.chars().any(char::is_control)) && path.components().all(is_plain)
}

impl WorkflowSpec {
    /// Returns the repository that the session needs for the workflow. `None` for a local directory.
    pub fn repository(&self) -> Option<RepositorySpec> {
        let url = self.url.clone()?;
        let last = RepositorySpec::clone_of(url.clone()).name();
        // Each branch has a clone of its own, so that a switch back finds the work that was kept.
        let branch = self.branch.as_ref().map(|branch| format!("-{branch}")).unwrap_or_default();
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
        let name: String =
            format!("{last}{branch}").chars().map(|char| if is_plain(char) { char } else { '-' }).take(80).collect();
        Some(RepositorySpec {
            url: Some(url),
            branch: self.branch.clone(),
            name: Some(format!("workflow-{name}")),
            path: Some(Path::new(CLONES).join(name)),
            secret: self.secret.clone(),
            ..RepositorySpec::default()
        })
    }

    /// Checks the fields.
    ///
    /// # Errors
    ///
    /// The first field that is not valid.
    pub fn check(&self) -> Result<(), InvalidWorkflow> {
        match (&self.url, &self.directory) {
            (Some(_), None) => {
                let repository = self.repository().ok_or(InvalidWorkflow::Source)?;
                repository.check()?;
            }
            (None, Some(directory)) => {
                if !directory.is_absolute() {
                    return Err(InvalidWorkflow::Relative(directory.clone()));
                }
                let given = [("branch", self.branch.is_some()), ("secret", self.secret.is_some())];
                if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
                    return Err(InvalidWorkflow::ForRepository(field));
                }
            }
            _ => return Err(InvalidWorkflow::Source),
        }
        match &self.path {
            Some(path) if !is_below(path) => Err(InvalidWorkflow::Path(path.clone())),
            _ => Ok(()),
        }
    }

    /// Returns the workflow's directory. `root` is the directory below which the session's repositories are.
    pub fn place(&self, root: &Path) -> PathBuf {
        let top = match (&self.directory, self.repository()) {
            (None, Some(repository)) => root.join(repository.place()),
            (directory, _) => directory.clone().unwrap_or_default(),
        };
        match &self.path {
            Some(path) if path.components().any(|part| part != Component::CurDir) => top.join(path),
            _ => top,
        }
    }
}

impl std::fmt::Display for WorkflowSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let directory = self.directory.as_ref().map(|directory| directory.display().to_string());
        f.write_str(self.url.as_ref().or(directory.as_ref()).map_or("", String::as_str))?;
        if let Some(branch) = &self.branch {
            write!(f, ", branch {branch}")?;
        }
        self.path.as_ref().map_or(Ok(()), |path| write!(f, ", path {}", path.display()))
    }
}

/// The description of a workflow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkflowDescription {
    /// Name for people.
    pub name: String,
    /// Instructions that the agent receives before the first prompt under the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Prompt that is sent when the workflow comes into force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_prompt: Option<String>,
    /// Further directories for the agent. A relative path is below the workflow's directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathBuf>,
    /// Script for the environment, below the workflow's directory. It is approved on its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_script: Option<PathBuf>,
    /// Names of prerequisites that the workflow needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
}

/// A workflow in force: the approved description, and where it was found. Later launches use it although the file
/// changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActiveWorkflow {
    /// The workflow as the specification requested it.
    pub spec: WorkflowSpec,
    /// The workflow's directory, in which the agent works.
    pub directory: PathBuf,
    /// The file with the description.
    pub file: PathBuf,
    /// SHA-256 of the file in hexadecimal.
    pub digest: String,
    /// The description.
    pub description: WorkflowDescription,
}

impl ActiveWorkflow {
    /// Returns the script for the environment.
    pub fn script(&self) -> Option<PathBuf> {
        self.description.environment_script.as_ref().map(|script| self.directory.join(script))
    }
}

/// Data of the record `workflow.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkflowChanged {
    /// The workflow that is in force from now on. Absent if none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<ActiveWorkflow>,
}

/// Data of the record `workflow.failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkflowFailed {
    /// The requested workflow.
    pub spec: WorkflowSpec,
    /// One CamelCase word for programs.
    pub reason: String,
    /// Description for people.
    pub message: String,
    /// Files that the owner has to approve first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to_approve: Vec<PathBuf>,
}

/// The workflow of a session, as its status has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkflowView {
    /// The workflow in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveWorkflow>,
    /// Why the requested workflow is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<WorkflowFailed>,
}

/// Adds the needs of workflows to a specification: clones of the requested workflow and of those in use, and the
/// prerequisites of the workflow in force.
pub fn in_force(spec: &SessionSpec, active: Option<&ActiveWorkflow>, in_use: &[&WorkflowSpec]) -> SessionSpec {
    let mut spec = spec.clone();
    let clones = spec.workflow.iter().chain(in_use.iter().copied()).filter_map(WorkflowSpec::repository);
    for clone in clones.collect::<Vec<_>>() {
        if spec.repository(&clone.name()).is_none() {
            spec.repos.push(clone);
        }
    }
    let requires = active.map(|active| active.description.requires.clone()).unwrap_or_default();
    for name in requires {
        if !spec.requires.contains(&name) {
            spec.requires.push(name);
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: serde_json::Value) -> WorkflowSpec {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn a_workflow_has_one_source_and_a_path_below_it() {
        let check = |fields: serde_json::Value| of(fields).check().map_err(|error| error.to_string());
        for good in [
            serde_json::json!({ "url": "/srv/flows.git", "branch": "feature/x", "path": "triage" }),
            serde_json::json!({ "url": "https://host/flows", "secret": "token" }),
            serde_json::json!({ "directory": "/srv/flows", "path": "./a/b" }),
        ] {
            check(good).unwrap();
        }
        for (bad, message) in [
            (serde_json::json!({}), "either a `url` or a `directory`"),
            (serde_json::json!({ "url": "/a", "directory": "/b" }), "either a `url` or a `directory`"),
            (serde_json::json!({ "directory": "flows" }), "must be absolute"),
            (serde_json::json!({ "directory": "/flows", "branch": "x" }), "`branch` is for"),
            (serde_json::json!({ "directory": "/flows", "path": "../x" }), "lead below"),
            (serde_json::json!({ "directory": "/flows", "path": "/x" }), "lead below"),
            (serde_json::json!({ "url": "ext::sh -c x" }), "cannot clone from"),
            (serde_json::json!({ "url": "https://kim:pass@host/x" }), "contains a password"),
        ] {
            let found = check(bad).unwrap_err();
            assert!(found.contains(message), "{found}");
        }
    }

    #[test]
    fn each_branch_has_its_own_clone_below_one_directory() {
        let repository = |fields| of(fields).repository().unwrap();
        let main = repository(serde_json::json!({ "url": "git@host:team/flows.git" }));
        assert_eq!((main.name().as_str(), main.place()), ("workflow-flows", "workflows/flows".into()));
        let branch = repository(serde_json::json!({ "url": "git@host:team/flows.git", "branch": "kim/x" }));
        assert_eq!((branch.name().as_str(), branch.place()), ("workflow-flows-kim-x", "workflows/flows-kim-x".into()));
        assert_eq!(branch.branch.as_deref(), Some("kim/x"));
        branch.check().unwrap();
        let place = |fields| of(fields).place(Path::new("/w"));
        assert_eq!(place(serde_json::json!({ "url": "/r/flows", "path": "a/b" })), Path::new("/w/workflows/flows/a/b"));
        assert_eq!(place(serde_json::json!({ "directory": "/d", "path": "." })), Path::new("/d"));
    }

    #[test]
    fn a_specification_in_force_has_the_repositories_and_prerequisites_of_its_workflow() {
        let flows = of(serde_json::json!({ "url": "/r/flows" }));
        let old = of(serde_json::json!({ "url": "/r/old" }));
        let spec = SessionSpec { workflow: Some(flows.clone()), requires: vec!["a".into()], ..SessionSpec::new("/w") };
        let active = ActiveWorkflow {
            spec: flows,
            directory: "/w/workflows/flows".into(),
            file: "/w/workflows/flows/workflow.toml".into(),
            digest: String::new(),
            description: WorkflowDescription { requires: vec!["a".into(), "vpn".into()], ..Default::default() },
        };
        let spec = in_force(&spec, Some(&active), &[&active.spec, &old]);
        let names: Vec<String> = spec.repos.iter().map(RepositorySpec::name).collect();
        assert_eq!(names, ["workflow-flows", "workflow-old"]);
        assert_eq!(spec.requires, ["a", "vpn"]);
    }
}
