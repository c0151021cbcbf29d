//! Workflows on the command line.

use std::path::{Path, PathBuf};

use agentd_api::session::SessionView;
use agentd_api::workflow::{ActiveWorkflow, WorkflowSpec};

use crate::args::workflow::WorkflowArgs;
use crate::error::Error;
use crate::machine::Machine;
use crate::repository::{address, with_branch};

/// Returns the workflow of a source. A local directory is used where it is, unless it is a bare repository or a branch
/// is named.
///
/// On another machine, an absolute path names a directory, unless a branch or a secret is named.
pub(crate) fn of_source(
    source: &str,
    path: Option<PathBuf>,
    secret: Option<String>,
    machine: &Machine,
) -> Result<WorkflowSpec, Error> {
    let (place, branch) = with_branch(source);
    let directory = Path::new(place);
    let is_bare = directory.join("objects").is_dir() && directory.join("HEAD").is_file();
    let is_directory = match machine {
        Machine::This => directory.is_dir() && !is_bare,
        Machine::Other(_) => directory.is_absolute(),
    };
    if branch.is_none() && secret.is_none() && is_directory {
        return Ok(WorkflowSpec { directory: Some(machine.absolute(directory)?), path, ..WorkflowSpec::default() });
    }
    Ok(WorkflowSpec { url: Some(address(place, machine)?), branch, path, secret, ..WorkflowSpec::default() })
}

/// Returns the workflow that the options of a new session request.
pub(crate) fn requested(args: &WorkflowArgs, machine: &Machine) -> Result<Option<WorkflowSpec>, Error> {
    args.workflow.as_ref().map(|source| of_source(source, args.workflow_path.clone(), None, machine)).transpose()
}

/// Describes the session's workflow in one line.
pub(crate) fn line(view: &SessionView) -> Option<String> {
    let wanted = view.spec.workflow.as_ref();
    let active = view.active_workflow();
    let in_force = |active: &ActiveWorkflow| format!("{} in {}", active.description.name, active.directory.display());
    match (active, wanted) {
        (None, None) => None,
        (Some(active), Some(wanted)) if active.spec == *wanted => Some(in_force(active)),
        (Some(active), None) => Some(format!("{}, until the next launch", in_force(active))),
        (_, Some(wanted)) => {
            let failure = view.status.workflow.as_ref().and_then(|workflow| workflow.failure.as_ref());
            let why = failure.map_or_else(String::new, |failure| format!(": {}", failure.message));
            Some(format!("{wanted} is not in force{why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_used_in_place_and_a_repository_is_cloned() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let of = |source: &str| of_source(source, None, None, &Machine::This).unwrap();
        let text = top.display().to_string();
        assert_eq!(of(&text).directory.as_deref(), Some(top.as_path()));
        let branch = of(&format!("{text}#v2"));
        assert_eq!((branch.url, branch.branch.as_deref()), (Some(text.clone()), Some("v2")));
        std::fs::create_dir(top.join("objects")).unwrap();
        std::fs::write(top.join("HEAD"), "").unwrap();
        assert_eq!(of(&text).url, Some(text));
        let remote = of("git@host:o/flows#v2");
        assert_eq!((remote.url.as_deref(), remote.branch.as_deref()), (Some("git@host:o/flows"), Some("v2")));
    }
}
