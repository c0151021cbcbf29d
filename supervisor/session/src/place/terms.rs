//! Refuses specifications that a place cannot fulfil.

use agentd_api::isolation::Isolation;
use agentd_api::session::SessionSpec;
use agentd_api::{Code, Problem, hint};

use super::SessionPlace;
use crate::generation::Generation;
use crate::isolation;

/// Fields that decide the place of a session, or whether the place can fulfil the specification.
const FIELDS: [&str; 8] = ["agent", "command", "directory", "isolation", "place", "repos", "workflow", "workspace"];

/// Checks the place of a session, if one of the fields that `is_checked` accepts concerns it.
pub(crate) fn check(
    generation: &Generation,
    spec: &SessionSpec,
    is_checked: &impl Fn(&str) -> bool,
) -> Result<(), Problem> {
    if !FIELDS.iter().any(|field| is_checked(field)) {
        return Ok(());
    }
    match generation.place_of(spec) {
        Ok(Some(place)) => possible(generation, spec, place),
        Err(error) if is_checked("place") => {
            Err(Problem::new(Code::NoSuchPlace, error.to_string()).hint(hint::LIST_PLACES))
        }
        // A launch fails with the name of a place that is not configured. Until then, other fields can be changed.
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Refuses the parts of a specification that exist on this machine alone.
fn possible(generation: &Generation, spec: &SessionSpec, place: &SessionPlace) -> Result<(), Problem> {
    let refused = if isolation::is_guarded(generation, spec) {
        format!("the isolation \"{}\"", Isolation::Guard.as_str())
    } else if spec.workspace.is_some() {
        "a workspace".to_owned()
    } else if !spec.repos.is_empty() {
        "repositories".to_owned()
    } else if spec.workflow.is_some() {
        "a workflow".to_owned()
    } else {
        return Ok(());
    };
    let detail = format!("the session would run on place {:?}, where agentd cannot provide {refused}", place.name());
    Err(Problem::new(Code::InvalidRequest, detail).hint("set `place` to \"here\" to run the agent on this machine"))
}
