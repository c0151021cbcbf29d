//! Creates sessions. The first launch begins while the files of the session are synced to the disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::Cause;
use agentd_api::hint;
use agentd_api::session::SessionSpec;
use agentd_api::spec::Workspace;
use agentd_api::{Code, Problem, SessionId};
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use super::{CREATING, ParentSession, Sessions, lock, room_for_child};
use crate::creation::{create_files, sync_files};
use crate::document::Document;
use crate::drive::SessionOrigin;
use crate::journal_port::Journal;
use crate::launch::WarmKeeper;
use crate::resting::SessionParts;
use crate::{Session, answer, pulse};
use agentd_decide::rules::{Command, LaunchTerms};

/// Time limit for the end of a session whose creation failed.
const ABANDONED: Duration = Duration::from_secs(30);

impl Sessions {
    /// Creates a session and begins its first launch.
    #[boxed]
    pub async fn create(
        &self,
        mut spec: SessionSpec,
        key: Option<String>,
        terms: LaunchTerms,
        parent: Option<ParentSession>,
    ) -> Result<Session, Problem> {
        self.whole().await;
        let creator = parent.as_ref().map(|parent| &parent.id);
        if let Some(known) = key.as_ref().and_then(|key| self.made_with(key)) {
            return Self::repeated(known, &spec, creator);
        }
        parent.as_ref().map_or(Ok(()), |parent| room_for_child(&lock(&self.known), parent))?;
        // Check the configuration first: objections to the specification may follow from its mistakes.
        self.generations.now().launchable()?;
        let asked = spec.parent.is_some().then(|| spec.clone());
        let (alone, continues) = self.continuation(&mut spec).await?.unzip();
        self.check(&spec).await?;
        if let Some(schema) = &spec.answer_schema {
            answer::check_schema(&self.generations.now().daemon, schema).await?;
        }
        self.room(&lock(&self.known))?;
        if spec.agent.is_none() && spec.command.is_none() {
            // The agent is stored, so that a later change of the default does not give this session another agent.
            spec.agent = Some(self.generations.now().config.default_agent.clone());
        }
        let generation = self.generations.now();
        let warm = generation.daemon.warm.take(&generation, &spec);
        let id = warm.as_ref().and_then(WarmKeeper::id).unwrap_or_else(SessionId::random);
        let (requested, launched) = (asked.unwrap_or_else(|| spec.clone()), spec.clone());
        if let Some(Workspace::New) = spec.workspace {
            let workspace = self.generations.now().daemon.directories.workspace(&id);
            spec.directory = workspace.components().chain(spec.directory.components()).collect();
        }
        let document = Document::new(id, Timestamp::now(), spec, key).requested_as(requested).of(creator.cloned());
        let directory = self.generations.now().daemon.directories.session(&document.id);
        // The directory has another name until it is complete, so a crash leaves no incomplete session.
        let unfinished = directory.with_file_name(format!("{CREATING}{}", document.id));
        let journal =
            Journal { directory: unfinished.clone(), options: self.generations.now().config.journal.options() };
        let (generations, finished) = (Arc::clone(&self.generations), directory.clone());
        let created = pulse::blocking(move || {
            create_files(&journal, &finished, &document, continues, terms)?;
            let journal = Journal { directory: finished, ..journal };
            Ok::<_, String>((journal, SessionParts::of(&generations, document, SessionOrigin::Created)))
        });
        let not_written = |error| {
            let detail = format!("cannot write the files of the new session: {error}; nothing was changed");
            Problem::new(Code::JournalNotWritable, detail).hint(hint::FREE_SPACE)
        };
        let (journal, made) = match created.await {
            Ok(created) => created,
            Err(error) => {
                discard(vec![unfinished, directory]).await;
                return Err(not_written(error));
            }
        };
        let mut made = made;
        made.driver.give_warm(warm);
        let session = match self.start(made, parent.as_ref()) {
            Ok(session) => session,
            Err(problem) => {
                discard(vec![directory]).await;
                return Err(problem);
            }
        };
        // The launch begins meanwhile. The caller learns of the session when the disk has it.
        if let Err(error) = pulse::blocking(move || sync_files(&journal)).await {
            self.abandon(&session).await;
            return Err(not_written(error));
        }
        generation.daemon.warm.follow(&generation, &session, &launched);
        if alone.is_some() {
            // Others see the conversation of the session before they may use it.
            session.is_current().await;
        }
        Ok(session)
    }

    /// Stops and removes a session whose creation failed.
    async fn abandon(&self, session: &Session) {
        let reason = "the session could not be created".to_owned();
        // The session may have ended by itself.
        let _ = session.ask(Command::Stop { reason, cause: Cause::default() }).await;
        let mut published = session.published.clone();
        let ended = published.wait_for(|published| !published.view.status.phase.is_active());
        let _ = tokio::time::timeout(ABANDONED, ended).await;
        if let Err(problem) = self.remove(session, None).await {
            let (id, error) = (&session.id, problem.detail);
            tracing::error!(agentd.session = %id, error, "cannot remove a session that could not be created");
        }
    }

    /// Answers a repeated request: with its session, if the specification is equal, else with a refusal.
    fn repeated(known: Session, spec: &SessionSpec, creator: Option<&SessionId>) -> Result<Session, Problem> {
        let view = known.view();
        let mut made = SessionSpec::clone(&known.published.borrow().requested);
        if spec.agent.is_none() && spec.command.is_none() {
            made.agent = None;
        }
        if made == *spec && view.parent.as_ref() == creator {
            return Ok(known);
        }
        let which = if creator.is_none() { format!("the session \"{}\"", known.id) } else { "a session".to_owned() };
        let detail = format!("the idempotency key was already used to create {which} with another specification");
        Err(Problem::new(Code::KeyReused, detail).hint("use a new key for a new session"))
    }
}

/// Deletes the files of a session that is not created.
async fn discard(directories: Vec<PathBuf>) {
    let discard = move || {
        for directory in directories {
            let _ = std::fs::remove_dir_all(directory);
        }
    };
    pulse::blocking(discard).await;
}
