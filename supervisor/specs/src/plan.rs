//! Compares the specification that a file requests with the specification of a session.

use agentd_api::SessionId;
use agentd_api::session::{SessionSpec, SessionView};
use agentd_api::spec::{ChangedField, Effect, FIELDS, SpecPatch};
use serde_json::Value;

use std::path::PathBuf;

use super::real;
use crate::patch;

/// The work that makes a session's specification equal to a file.
#[derive(Debug)]
pub struct Plan {
    /// The specification of the file, with the values that agentd filled in when the session was created.
    pub wanted: SessionSpec,
    /// The fields that differ.
    pub changes: Vec<ChangedField>,
    pub patch: SpecPatch,
}

impl Plan {
    /// Compares. A field that the file does not have is requested to have its default.
    pub fn new(file: &SessionSpec, present: &SessionSpec, id: &SessionId) -> Result<Self, serde_json::Error> {
        let mut wanted = file.clone();
        if wanted.agent.is_none() && wanted.command.is_none() {
            wanted.agent.clone_from(&present.agent);
        }
        if wanted.environment.snapshot.is_none() && wanted.environment.source == present.environment.source {
            wanted.environment.snapshot.clone_from(&present.environment.snapshot);
        }
        if wanted.parent.is_some() && wanted.parent == present.parent {
            // The session took over its parent's values.
            if wanted.agent.is_none() && wanted.command.is_none() {
                wanted.command.clone_from(&present.command);
            }
            wanted.workspace = wanted.workspace.or_else(|| present.workspace.clone());
            if wanted.directory.as_os_str().is_empty() {
                wanted.directory.clone_from(&present.directory);
            }
        }
        let is_same = match wanted.workspace {
            _ if wanted.directory == present.directory => true,
            Some(_) => wanted.workspace == present.workspace && within_workspace(present, id) == wanted.directory,
            None => real(&present.directory) == wanted.directory,
        };
        if is_same {
            wanted.directory.clone_from(&present.directory);
        }
        let (old, new) = (serde_json::to_value(present)?, serde_json::to_value(&wanted)?);
        let differing = FIELDS.iter().filter(|field| field.value(&old) != field.value(&new));
        let change =
            |from: &Value, field: &str, effect| ChangedField { field: field.to_owned(), effect, from: from.clone() };
        let changes = differing.map(|field| change(field.value(&old), field.name, field.effect)).collect();
        let patch = match (old, new) {
            (Value::Object(old), Value::Object(new)) => patch::between(&old, &new),
            _ => serde_json::Map::new(),
        };
        Ok(Self { wanted, changes, patch: SpecPatch(patch) })
    }

    /// Returns the first changed field that never changes.
    pub fn fixed(&self) -> Option<&ChangedField> {
        let is_lost = |change: &ChangedField| {
            // A session keeps its command: without it, the session has no agent.
            change.field == "command" && self.wanted.command.is_none()
        };
        self.changes.iter().find(|change| change.effect == Effect::Never || is_lost(change))
    }
}

/// Returns a session's specification as files have it. The id of a terminal's environment and the path of a workspace
/// belong to one session, and are left out. So is the directory of a parent.
pub fn portable(view: &SessionView) -> SessionSpec {
    let mut portable = SessionSpec::clone(&view.spec);
    portable.environment.snapshot = None;
    if portable.parent.is_some() {
        (portable.workspace, portable.directory) = (None, PathBuf::new());
    } else if portable.workspace.is_some() {
        portable.directory = within_workspace(&portable, &view.id);
    }
    portable
}

/// Returns a session's directory relative to its workspace, which is a directory with the session's id.
fn within_workspace(spec: &SessionSpec, id: &SessionId) -> PathBuf {
    spec.directory.components().skip_while(|part| part.as_os_str() != id.as_str()).skip(1).collect()
}
