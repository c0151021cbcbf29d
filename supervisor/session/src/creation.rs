//! Creates the files of a new session and the first records of its journal.

use std::fs::File;
use std::io;
use std::path::Path;

use agentd_api::event::{Continuation, LaunchReason, LaunchStarted, SessionCreated, TurnQueued};
use agentd_api::session::SessionSpec;
use agentd_api::{Body, TurnId};
use agentd_fault::Point;

use super::document::Document;
use super::journal_port::{Journal, write_first};
use agentd_api::chain;
use agentd_decide::batch::Batch;
use agentd_decide::rules::LaunchTerms;
use agentd_host::directories::make_private;
use agentd_host::files;
use agentd_journal::Sync;

/// Writes the session's files and its first records: the creation, the initial prompt and the first launch. Then
/// renames the directory to `finished`. Nothing is synced to the disk; see [`sync_files`]. Blocks.
pub(super) fn create_files(
    journal: &Journal,
    finished: &Path,
    document: &Document,
    continues: Option<Continuation>,
    terms: LaunchTerms,
) -> Result<(), String> {
    let LaunchTerms { wait_until, forced_by, degraded_by, requester } = terms;
    write_files(&journal.directory, document)?;
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
    write_first(journal, &batch).map_err(|error| chain(&error))?;
    std::fs::rename(&journal.directory, finished).map_err(|error| error.to_string())?;
    fault(Point::DaemonCreateJournalled)
}

/// Syncs the files of a new session to the disk, with the records of its creation. Blocks.
pub(super) fn sync_files(journal: &Journal) -> Result<(), String> {
    if journal.options.sync != Sync::Never {
        agentd_journal::sync_behind(&journal.directory, 0).map_err(|error| chain(&error))?;
    }
    let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all()).map_err(|error| error.to_string());
    sync(&journal.directory.join("session.json"))?;
    if journal.directory.join(SCRIPT).exists() {
        sync(&journal.directory.join(SCRIPT))?;
    }
    sync(&journal.directory)?;
    journal.directory.parent().map_or(Ok(()), sync)
}

/// Name of the session's script.
const SCRIPT: &str = "env-setup.sh";

/// Creates the session's directory, and writes `session.json` and the session's script.
fn write_files(directory: &Path, document: &Document) -> Result<(), String> {
    make_private(directory).map_err(|error| chain(&error))?;
    fault(Point::DaemonCreateDirectory)?;
    document.write_new(directory).map_err(|error| error.to_string())?;
    fault(Point::DaemonCreateDocument)?;
    match &document.spec.env_setup {
        Some(script) => files::write_new(&directory.join(SCRIPT), script.as_bytes()).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

/// Makes the session's script equal to its specification. Writes nothing if the script is equal already.
pub(super) fn write_script(directory: &Path, spec: &SessionSpec) -> io::Result<()> {
    let path = directory.join(SCRIPT);
    let present = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read?),
    };
    match spec.env_setup.as_deref().map(str::as_bytes) {
        wanted if present.as_deref() == wanted => Ok(()),
        Some(script) => files::write(&path, script),
        None => std::fs::remove_file(&path),
    }
}

pub(super) fn fault(point: Point) -> Result<(), String> {
    agentd_fault::at(point).map_err(|error| error.to_string())
}
