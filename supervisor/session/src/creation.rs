//! Creates the files of a new session and the first records of its journal.

use std::io;
use std::path::{Path, PathBuf};

use agentd_api::event::{Continuation, LaunchReason, LaunchStarted, SessionCreated, TurnQueued};
use agentd_api::session::SessionSpec;
use agentd_api::{Body, TurnId};
use agentd_fault::Point;

use super::document::Document;
use super::journal_port::{Journal, Port};
use crate::pulse;
use agentd_api::chain;
use agentd_decide::batch::Batch;
use agentd_decide::rules::LaunchTerms;
use agentd_host::directories::make_private;

/// Writes the session's files and its first records: the creation, the initial prompt and the first launch. Then
/// renames the directory to `finished`. Returns the document.
pub(super) async fn create_files(
    journal: Journal,
    finished: PathBuf,
    document: Document,
    continues: Option<Continuation>,
    terms: LaunchTerms,
) -> Result<Document, String> {
    let LaunchTerms { wait_until, forced_by, degraded_by, requester } = terms;
    let directory = journal.directory.clone();
    let document = pulse::blocking(move || write_files(&directory, &document).map(|()| document)).await?;
    let spec = &document.spec;
    let (key, parent) = (document.key.clone(), document.parent.clone());
    let mut batch = Batch::of(Body::SessionCreated(SessionCreated {
        spec: SessionSpec::clone(spec),
        key,
        parent,
        continues,
        requester: requester.clone(),
    }));
    // A session that continues a conversation sends no prompt by itself.
    if let Some(prompt) = spec.initial_prompt.as_ref().filter(|_| spec.parent.is_none()) {
        let (turn, prompt, schema) = (TurnId::numbered(1), prompt.clone(), spec.answer_schema.clone());
        let (is_startup, key, requester) = (false, None, requester.clone());
        let queued = TurnQueued { turn, prompt, parts: Vec::new(), schema, is_startup, key, requester };
        batch = batch.record(Body::TurnQueued(queued));
    }
    batch = batch.record(Body::LaunchStarted(LaunchStarted {
        wait_until,
        forced_by,
        degraded_by,
        requester,
        trace_parent: agentd_traces::parent_of(&tracing::Span::current()),
        ..LaunchStarted::new(1, LaunchReason::Create, false)
    }));
    Port::Direct.append(&journal, 0, 0, batch).await.map_err(|error| chain(&error))?;
    let rename = move || std::fs::rename(journal.directory, finished).map_err(|error| error.to_string());
    pulse::blocking(rename).await?;
    fault(Point::DaemonCreateJournalled)?;
    Ok(document)
}

/// Creates the session's directory, and writes `session.json` and the session's script.
fn write_files(directory: &Path, document: &Document) -> Result<(), String> {
    make_private(directory).map_err(|error| chain(&error))?;
    fault(Point::DaemonCreateDirectory)?;
    document.write(directory).map_err(|error| error.to_string())?;
    fault(Point::DaemonCreateDocument)?;
    write_script(directory, &document.spec).map_err(|error| error.to_string())
}

/// Makes the session's script equal to its specification. Writes nothing if the script is equal already.
pub(super) fn write_script(directory: &Path, spec: &SessionSpec) -> io::Result<()> {
    let path = directory.join("env-setup.sh");
    let present = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read?),
    };
    match spec.env_setup.as_deref().map(str::as_bytes) {
        wanted if present.as_deref() == wanted => Ok(()),
        Some(script) => agentd_host::files::write(&path, script),
        None => std::fs::remove_file(&path),
    }
}

pub(super) fn fault(point: Point) -> Result<(), String> {
    agentd_fault::at(point).map_err(|error| error.to_string())
}
