//! `session.json`: the specification of a session, and the state folded from its journal at the last write.
//!
//! The folded state only saves time. A state that is missing or of another version is folded again from the
//! journal.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::SessionId;
use agentd_api::session::SessionSpec;
use agentd_api::spec::SpecChanged;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use agentd_decide::state::State;
use agentd_host::files;

/// Version of the document. A document of an unknown version is refused and never rewritten.
pub(crate) const VERSION: u32 = 1;
/// Version of the folded state. It is raised whenever the meaning of [`State`] changes.
const FOLD_VERSION: u32 = 2;

/// Contents of `session.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    version: u32,
    pub id: SessionId,
    pub generation: u64,
    pub created: Timestamp,
    /// Shared with the views and the launches of the session.
    pub spec: Arc<SessionSpec>,
    /// The specification of the creation, if it was changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requested: Option<Arc<SessionSpec>>,
    /// The `Idempotency-Key` of the request that made the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The session whose agent created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fold: Option<Fold>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Fold {
    version: u32,
    /// Unparsed state, since the meaning of another version is unknown.
    state: Box<RawValue>,
}

/// The field that every version of the document has.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default)]
    version: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} is not a session document")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error(
        "{path:?} has version {found}, but this agentd supports version {VERSION}; a newer agentd wrote the \
         file, which is unchanged"
    )]
    Version { path: PathBuf, found: u64 },
    #[error("{path:?} belongs to session {found:?}")]
    Misplaced { path: PathBuf, found: String },
}

impl Document {
    pub(crate) fn new(id: SessionId, created: Timestamp, spec: SessionSpec, key: Option<String>) -> Self {
        let spec = Arc::new(spec);
        Self { version: VERSION, id, generation: 1, created, spec, requested: None, key, parent: None, fold: None }
    }

    /// Sets the specification of the request, from which the session's own differs.
    pub(crate) fn requested_as(self, requested: SessionSpec) -> Self {
        let requested = (requested != *self.spec).then(|| Arc::new(requested));
        Self { requested, ..self }
    }

    /// Sets the session whose agent created this session.
    pub(crate) fn of(self, parent: Option<SessionId>) -> Self {
        Self { parent, ..self }
    }

    pub(crate) fn read(directory: &Path, id: &SessionId) -> Result<Self, DocumentError> {
        let path = directory.join("session.json");
        let bytes = std::fs::read(&path).map_err(|source| DocumentError::Read { path: path.clone(), source })?;
        let parse = |source| DocumentError::Parse { path: path.clone(), source };
        // Read the version first: a newer version may give the other fields another meaning.
        let found = serde_json::from_slice::<Versioned>(&bytes).map_err(parse)?.version;
        if found != u64::from(VERSION) {
            return Err(DocumentError::Version { path, found });
        }
        let document: Self = serde_json::from_slice(&bytes).map_err(parse)?;
        if document.id != *id {
            return Err(DocumentError::Misplaced { path, found: document.id.to_string() });
        }
        Ok(document)
    }

    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        files::write_json(&directory.join("session.json"), self)
    }

    /// Writes the document of a new session into its directory, without a sync.
    pub(crate) fn write_new(&self, directory: &Path) -> io::Result<()> {
        files::write_new(&directory.join("session.json"), &files::json(self)?)
    }

    /// Returns the specification of the creation.
    pub(crate) fn requested(&self) -> &Arc<SessionSpec> {
        self.requested.as_ref().unwrap_or(&self.spec)
    }

    /// Takes over a changed specification. Returns `false` if the document has it already.
    pub(crate) fn change(&mut self, changed: &SpecChanged) -> bool {
        if changed.generation <= self.generation {
            return false;
        }
        self.generation = changed.generation;
        let before = std::mem::replace(&mut self.spec, Arc::new(changed.spec.clone()));
        self.requested.get_or_insert(before);
        true
    }

    /// Takes the folded state out of the document, or returns the initial state when there is no usable one.
    pub(crate) fn take_state(&mut self) -> State {
        let known = self.fold.take().filter(|fold| fold.version == FOLD_VERSION);
        known.and_then(|fold| serde_json::from_str(fold.state.get()).ok()).unwrap_or_else(|| State::new(self.created))
    }

    pub(crate) fn remember(&mut self, state: &State) {
        self.fold = to_raw_value(state).ok().map(|state| Fold { version: FOLD_VERSION, state });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> SessionSpec {
        serde_json::from_str(r#"{"directory":"/tmp"}"#).unwrap()
    }

    #[test]
    fn a_document_comes_back_with_its_fold() {
        let directory = tempfile::tempdir().unwrap();
        let mut document = Document::new("a1".parse().unwrap(), Timestamp::UNIX_EPOCH, spec(), None);
        let mut state = State::new(Timestamp::UNIX_EPOCH);
        state.seq = 7;
        document.remember(&state);
        document.write(directory.path()).unwrap();
        let mut read = Document::read(directory.path(), &document.id).unwrap();
        assert_eq!(read.take_state().seq, 7);
    }

    #[test]
    fn a_folded_state_of_another_version_is_ignored() {
        let mut document = Document::new("a1".parse().unwrap(), Timestamp::UNIX_EPOCH, spec(), None);
        document.fold = Some(Fold { version: FOLD_VERSION + 1, state: to_raw_value(&()).unwrap() });
        assert_eq!(document.take_state().seq, 0);
    }

    #[test]
    fn a_document_from_the_future_or_of_another_session_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let id: SessionId = "a1".parse().unwrap();
        std::fs::write(directory.path().join("session.json"), r#"{"version":2}"#).unwrap();
        assert!(matches!(Document::read(directory.path(), &id), Err(DocumentError::Version { found: 2, .. })));
        Document::new("b2".parse().unwrap(), Timestamp::UNIX_EPOCH, spec(), None).write(directory.path()).unwrap();
        assert!(matches!(Document::read(directory.path(), &id), Err(DocumentError::Misplaced { .. })));
        std::fs::write(directory.path().join("session.json"), "{").unwrap();
        assert!(matches!(Document::read(directory.path(), &id), Err(DocumentError::Parse { .. })));
    }
}
