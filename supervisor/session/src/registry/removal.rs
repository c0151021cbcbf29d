//! Removes sessions with all their files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use agentd_api::event::{Cause, PlaceState, StopRequested};
use agentd_api::session::UnreadableSession;
use agentd_api::{Code, Problem, SessionId};
use agentd_decide::state::State;
use agentd_fault::Point;
use async_recursion::async_recursion as boxed;

use super::{REMOVING, Sessions, lock, no_such_session};
use crate::creation::fault;
use crate::document::Document;
use crate::drive::SessionOrigin;
use crate::generation::Generation;
use crate::resting::SessionParts;
use crate::{Session, aside, pulse};

impl Sessions {
    /// Ends the keeper and the agent of an unreadable session. Its files stay unchanged.
    #[boxed]
    pub async fn stop_set_aside(&self, id: &str, stop: StopRequested) -> Result<UnreadableSession, Problem> {
        let found = self.set_aside(id).ok_or_else(|| no_such_session(id))?;
        // Nothing was ever started under a name that is no valid id.
        if let Ok(id) = id.parse() {
            let generation = self.generations.now();
            aside::end(&generation, &id, generation.config.launch.stop_times(), stop).await;
        }
        Ok(found)
    }

    /// Ends the keeper and the agent of an unreadable session, and removes its files.
    #[boxed]
    pub async fn remove_set_aside(&self, id: &str, cause: Cause) -> Result<(), Problem> {
        let reason = "the session is being removed".to_owned();
        self.stop_set_aside(id, StopRequested { reason, cause }).await?;
        let generation = self.generations.now();
        let sessions = generation.daemon.directories.sessions();
        let removing = sessions.join(format!("{REMOVING}{id}"));
        let (from, to) = (sessions.join(id), removing.clone());
        pulse::blocking(move || std::fs::rename(from, to)).await.map_err(not_removed)?;
        lock(&self.unreadable).retain(|unreadable| unreadable.id != id);
        self.set_has_changed();
        let runtime = id.parse().ok().map(|id: SessionId| {
            generation.daemon.changes.removed(&id);
            generation.environments.forget(&id);
            generation.daemon.directories.session_runtime(&id)
        });
        remove_files(runtime, removing).await
    }

    /// Removes a session that is not active, with all its files. With `seen`, only if that is still its last event.
    #[boxed]
    pub async fn remove(&self, session: &Session, seen: Option<u64>) -> Result<(), Problem> {
        // `read` deletes directories with the prefix for removal, so wait until it has finished.
        self.whole().await;
        fault(Point::DaemonRemoveBefore).map_err(|error| Problem::new(Code::Internal, error))?;
        // The repositories of a session whose journal cannot be read are unknown, and stay.
        let state = session.state().await.ok();
        session.release(seen).await?;
        lock(&self.known).remove(session.id());
        self.set_has_changed();
        let generation = self.generations.now();
        if let Some(state) = state {
            leave_launch(&generation, session.id(), &state).await;
            self.remove_repositories(&generation, session, &state).await;
        }
        let directories = &generation.daemon.directories;
        // The directory is renamed in one step, so a crash leaves no half of a session.
        let aside = directories.sessions().join(format!("{REMOVING}{}", session.id()));
        let (generations, id) = (Arc::clone(&self.generations), session.id().clone());
        let (from, to) = (session.directory().clone(), aside.clone());
        let renamed = pulse::blocking(move || {
            let renamed = std::fs::rename(&from, to);
            // After an error the directory is still there, so the session is registered again.
            renamed.map_err(|error| {
                let document = Document::read(&from, &id).ok();
                (
                    error,
                    document.map(|document| {
                        SessionParts::of(&generations, document, SessionOrigin::Read { may_have_remains: false })
                    }),
                )
            })
        });
        if let Err((error, made)) = renamed.await {
            if let Some(made) = made {
                self.start(made, None)?;
            }
            return Err(not_removed(error));
        }
        generation.environments.forget(session.id());
        generation.daemon.launcher.keepers().leave(session.id());
        generation.daemon.changes.removed(session.id());
        fault(Point::DaemonRemoveRenamed).map_err(|error| Problem::new(Code::Internal, error))?;
        remove_files(Some(directories.session_runtime(session.id())), aside).await
    }
}

/// Notes a launch that may still run on a place whose connection is cut. It is ended when the place is reached again.
async fn leave_launch(generation: &Generation, id: &SessionId, state: &State) {
    let cut = state.placed().filter(|placed| matches!(placed.state, PlaceState::Away | PlaceState::Lost));
    let Some(place) = cut.and_then(|placed| generation.places().get(&placed.place)) else { return };
    if place.place.status().is_none() {
        return;
    }
    let (words, name, left) = (Arc::clone(place.looks()), place.name().to_owned(), id.clone());
    if let Err(error) = pulse::blocking(move || words.leave(&name, &left)).await {
        tracing::warn!(%error, agentd.session = %id, place = place.name(), "cannot note that its agent may still run");
    }
}

/// Deletes the renamed directory and the session's runtime directory.
async fn remove_files(runtime: Option<PathBuf>, aside: PathBuf) -> Result<(), Problem> {
    let removing = agentd_host::work::blocking(move || {
        if let Some(runtime) = runtime {
            let _ = std::fs::remove_dir_all(runtime);
        }
        std::fs::remove_dir_all(aside)
    });
    removing.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))?.map_err(not_removed)
}

#[allow(clippy::needless_pass_by_value, reason = "the signature that map_err needs")]
fn not_removed(error: io::Error) -> Problem {
    Problem::new(Code::Internal, format!("cannot remove the session's files: {error}"))
}
