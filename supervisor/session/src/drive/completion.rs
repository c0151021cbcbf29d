//! Does the work of a completion, in a task beside the driver. The work checks the answer of a turn with a schema, or
//! gathers the result of a session that is not interactive.
//!
//! [`agentd_decide::completion`] decides what is due. The work changes nothing, so it is done again after a kill.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::completion::{AnswerChecked, Completion, Outcome};
use agentd_api::{Body, TurnId, chain};
use agentd_decide::batch::Batch;
use agentd_decide::completion::{DueCheck, checked};
use agentd_decide::next::{Step, next};
use agentd_fault::Point;
use agentd_host::work;
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::{Driver, DriverError};
use crate::answer::{self, Answer, Violations};
use crate::artifacts::{self, Artifacts};
use crate::pulse;
use crate::repositories::ARTIFACTS;

/// The work that is under way. Dropping the value ends it.
#[derive(Debug)]
pub(super) struct CompletionTask {
    /// The check, or `None` for the result of the session.
    check: Option<DueCheck>,
    done: oneshot::Receiver<CompletionWork>,
    task: JoinHandle<()>,
}

impl Drop for CompletionTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The result of the work.
#[derive(Debug)]
pub(super) enum CompletionWork {
    Checked(Violations),
    Gathered(Box<(Answer, Artifacts)>),
}

impl Driver {
    /// Begins the check of an answer, unless it is under way.
    pub(super) fn begin_check(&mut self, due: DueCheck) {
        if self.completing.as_ref().is_some_and(|task| task.check.as_ref() == Some(&due)) {
            return;
        }
        let (directory, daemon) = (self.recorder.journal.directory.clone(), Arc::clone(&self.terms.generation.daemon));
        let (turn, since, schema) = (due.turn.clone(), due.since, serde_json::Value::clone(&due.schema));
        self.begin_completion(Some(due), async move {
            let answer = match read(directory, turn, since).await {
                Ok(answer) => answer,
                Err(message) => {
                    return CompletionWork::Checked(Violations::unchecked(message));
                }
            };
            CompletionWork::Checked(answer::violations(&daemon, schema, answer).await)
        });
    }

    /// Begins to gather the result of the session, unless that is under way.
    pub(super) fn begin_conclusion(&mut self) {
        if self.completing.as_ref().is_some_and(|task| task.check.is_none()) {
            return;
        }
        let (generation, document) = (&self.terms.generation, &self.recorder.document);
        let directories = &generation.daemon.directories;
        let workspace = document.spec.workspace.as_ref();
        let artifacts = workspace.map(|of| directories.workspace(of.owner(&document.id)).join(ARTIFACTS));
        let directory = self.recorder.journal.directory.clone();
        let last = self.recorder.state.completion.last.as_ref().map(|last| (last.id.clone(), last.since));
        self.begin_completion(None, async move {
            let answer = match last {
                Some((turn, since)) => read(directory, turn, since).await.unwrap_or_else(|message| {
                    tracing::warn!(%message, "cannot read the answer of a completed session");
                    Answer { text: None, is_cut: true }
                }),
                None => Answer::default(),
            };
            CompletionWork::Gathered(Box::new((answer, gather(artifacts).await)))
        });
    }

    fn begin_completion(
        &mut self,
        check: Option<DueCheck>,
        work: impl Future<Output = CompletionWork> + Send + 'static,
    ) {
        let (say, done) = oneshot::channel();
        let working = async move {
            // The receiver is gone when the result is not needed any more.
            let _ = say.send(work.await);
        };
        self.completing = Some(CompletionTask { check, done, task: tokio::spawn(working.in_current_span()) });
    }

    /// Records the result of the work, if it is still due.
    pub(super) async fn completion_done(&mut self, done: Option<CompletionWork>) -> Result<(), DriverError> {
        let Some(task) = self.completing.take() else { return Ok(()) };
        let due = next(&self.recorder.state, &self.facts());
        let batch = match (due, &task.check, done) {
            (Some(Step::CheckAnswer(due)), Some(check), Some(CompletionWork::Checked(found))) if due == *check => {
                let Violations { errors, may_improve } = found;
                let fails = !errors.is_empty() && (due.is_last || !may_improve);
                checked(&self.recorder.state, AnswerChecked { turn: due.turn, attempt: due.attempt, errors, fails })
            }
            (Some(Step::Conclude), None, Some(CompletionWork::Gathered(found))) => {
                if agentd_fault::at(Point::DaemonCompleteGathered).is_err() {
                    // The work begins again.
                    return Ok(());
                }
                Batch::of(Body::SessionCompleted(Box::new(self.completion(*found))))
            }
            _ => return Ok(()),
        };
        self.append(batch).await.map(drop)
    }

    fn completion(&self, (answer, artifacts): (Answer, Artifacts)) -> Completion {
        let (state, verdict) = (&self.recorder.state, self.recorder.state.verdict());
        let of = &state.completion;
        let last = of.last.as_ref();
        let has_document = verdict.outcome == Outcome::Completed && last.is_some_and(|last| last.has_schema);
        let document =
            answer.text.as_deref().filter(|_| has_document).and_then(|text| agentd_answer::document(text).ok());
        Completion {
            outcome: verdict.outcome,
            reason: verdict.reason,
            exit_status: verdict.outcome.exit_status(),
            completed_at: Timestamp::now(),
            agent_status: of.agent.0,
            agent_signal: of.agent.1,
            turn: last.map(|last| last.id.clone()),
            answer: answer.text,
            answer_cut: answer.is_cut,
            structured: document,
            cost: of.cost.clone(),
            usage: of.usage,
            artifacts: artifacts.files,
            artifacts_cut: artifacts.cut,
        }
    }
}

async fn read(directory: PathBuf, turn: TurnId, since: u64) -> Result<Answer, String> {
    let read = work::blocking(move || answer::read(&directory, &turn, since)).await;
    let read = read.map_err(|error| error.to_string())?;
    read.map_err(|error| format!("the answer cannot be read: {}", chain(&error)))
}

async fn gather(directory: Option<PathBuf>) -> Artifacts {
    let gathered = work::blocking(move || {
        // This fault point has no error to return: a list that cannot be made is empty.
        let _ = agentd_fault::at(Point::DaemonCompleteBefore);
        directory.as_deref().map(|directory: &Path| artifacts::list(directory)).unwrap_or_default()
    });
    gathered.await.unwrap_or_else(|error| Artifacts { files: Vec::new(), cut: Some(error.to_string()) })
}

/// Waits for the end of the work; waits forever without any.
pub(super) async fn completion_report(task: &mut Option<CompletionTask>) -> Option<CompletionWork> {
    match task {
        Some(task) => pulse::elsewhere(&mut task.done).await.ok(),
        None => std::future::pending().await,
    }
}
