//! Implements the bulk calls: `POST /v1/bulk/stop`, `resume`, `remove` and `answer`.
//!
//! Each session is handled as by the call on that session alone. The work continues when the client disconnects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::bulk::{BulkAnswer, BulkRemove, BulkResult, BulkResume, BulkStop, BulkView, Selection};
use agentd_api::event::Cause;
use agentd_api::label::Selector;
use agentd_api::session::{PermissionAnswer, Phase, SessionView};
use agentd_api::{Code, Problem, SessionId};
use agentd_session::{Command, LaunchTerms, Session, Sessions};
use hyper::Request;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::handlers::{Answer, bounded, ended, read, to_the_end};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;

/// Number of sessions that one call handles at a time.
const AT_ONCE: usize = 16;
/// Time for which a stop waits for the end of a session.
const LONGEST_END: Duration = Duration::from_mins(10);

/// Ids of the sessions that a call concerned. The audit log gets a record for each.
#[derive(Debug, Clone)]
pub(super) struct Concerned(pub(super) Vec<String>);

/// Work on one session.
#[derive(Debug, Clone)]
enum Work {
    Stop { wait: bool },
    Resume { fresh: bool },
    Remove { force: bool },
    Answer(PermissionAnswer),
}

pub(super) async fn stop(context: &Context, request: Request<RequestBody>) -> Answer {
    let BulkStop { select, wait } = read(context, request).await?;
    run(context, select, Work::Stop { wait }).await
}

pub(super) async fn resume(context: &Context, request: Request<RequestBody>) -> Answer {
    let BulkResume { select, new_conversation: fresh } = read(context, request).await?;
    run(context, select, Work::Resume { fresh }).await
}

pub(super) async fn remove(context: &Context, request: Request<RequestBody>) -> Answer {
    let BulkRemove { select, force } = read(context, request).await?;
    run(context, select, Work::Remove { force }).await
}

pub(super) async fn answer(context: &Context, request: Request<RequestBody>) -> Answer {
    let BulkAnswer { select, answer } = read(context, request).await?;
    run(context, select, Work::Answer(answer)).await
}

impl Work {
    /// Reports whether the work makes sense for a session, if the request names no phases and no sessions.
    fn concerns(&self, view: &SessionView) -> bool {
        match self {
            Self::Stop { .. } => !view.status.phase.is_over(),
            Self::Resume { .. } => view.status.phase.is_over(),
            Self::Remove { .. } => true,
            Self::Answer(_) => !view.status.permissions.is_empty(),
        }
    }
}

/// Does the work on each selected session.
async fn run(context: &Context, select: Selection, work: Work) -> Answer {
    let label = check(&select)?;
    let sessions = selected(context, &select, label.as_ref(), &work).await?;
    let concerned = sessions.iter().map(|session| session.id().to_string()).collect();
    let requester = context.requester();
    let hand = Hand {
        sessions: Arc::clone(&context.sessions),
        closing: context.closing.clone(),
        terms: LaunchTerms { requester: Some(requester.clone()), ..LaunchTerms::default() },
        cause: Cause::call(requester),
        work,
    };
    let view = to_the_end(async move { Ok(all(Arc::new(hand), sessions).await) }).await?;
    let mut response = json(&view)?;
    response.extensions_mut().insert(Concerned(concerned));
    Ok(response)
}

/// Refuses a selection without a criterion. Returns the selector of labels.
fn check(select: &Selection) -> Result<Option<Selector>, Problem> {
    let Selection { sessions, label, phases, agent, all } = select;
    let is_narrow = !sessions.is_empty() || label.is_some() || !phases.is_empty() || agent.is_some();
    let refused = |detail: &str, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
    if !is_narrow && !all {
        return refused(
            "the selection names no criterion, and would mean every session",
            "give sessions, a label, phases or an agent, or all=true for every session",
        );
    }
    if is_narrow && *all {
        return refused("the selection has `all` and another criterion", "leave out `all`");
    }
    if phases.contains(&Phase::Unknown) {
        return refused("the selection has an unknown phase", "docs/operations/control.md lists the phases");
    }
    let parsed = label.as_deref().map(str::parse::<Selector>).transpose();
    parsed.map_err(|error| {
        Problem::new(Code::InvalidRequest, format!("the selector of labels is not valid: {error}")).hint(error.hint())
    })
}

/// Returns the selected sessions, by id. A named session must exist.
async fn selected(
    context: &Context,
    select: &Selection,
    label: Option<&Selector>,
    work: &Work,
) -> Result<Vec<Session>, Problem> {
    let mut found: BTreeMap<SessionId, Session> = BTreeMap::new();
    if select.sessions.is_empty() {
        context.sessions.list().await;
        found.extend(context.sessions.ids().iter().filter_map(|id| Some((id.clone(), context.sessions.known(id)?))));
    }
    for given in &select.sessions {
        let session = context.sessions.find(given).await?;
        found.insert(session.id().clone(), session);
    }
    let is_open = select.phases.is_empty() && select.sessions.is_empty();
    found.retain(|_, session| {
        let view = session.view();
        label.is_none_or(|label| label.matches(&view.spec.labels))
            && (select.phases.is_empty() || select.phases.contains(&view.status.phase))
            && select.agent.as_ref().is_none_or(|agent| view.spec.agent.as_ref().is_some_and(|of| of.as_str() == agent))
            && (!is_open || work.concerns(&view))
    });
    Ok(found.into_values().collect())
}

/// Everything that the work on one session needs.
struct Hand {
    sessions: Arc<Sessions>,
    closing: CancellationToken,
    terms: LaunchTerms,
    cause: Cause,
    work: Work,
}

/// Handles all sessions, some at a time, and returns the results by id.
async fn all(hand: Arc<Hand>, sessions: Vec<Session>) -> BulkView {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let one = |session: Session| {
        let (hand, permits) = (Arc::clone(&hand), Arc::clone(&permits));
        let (id, name) = (session.id().clone(), session.view().spec.name.clone());
        let working = tokio::spawn(async move {
            let _permit = permits.acquire().await;
            let done = hand.one(&session).await;
            let phase = hand.sessions.known(session.id()).map(|session| session.view().status.phase);
            (done, phase)
        });
        (id, name, working)
    };
    let mut view = BulkView::default();
    for (session, name, working) in sessions.into_iter().map(one).collect::<Vec<_>>() {
        let internal = |error: tokio::task::JoinError| (Err(Problem::new(Code::Internal, error.to_string())), None);
        let (done, phase) = working.await.unwrap_or_else(internal);
        view.failed += usize::from(done.is_err());
        view.results.push(BulkResult { session, name, phase, problem: done.err().map(Box::new) });
    }
    view
}

impl Hand {
    async fn one(&self, session: &Session) -> Result<(), Problem> {
        match &self.work {
            Work::Stop { wait } => {
                let (reason, cause) = ("requested by a client".to_owned(), self.cause.clone());
                session.ask(Command::Stop { reason, cause }).await?;
                if *wait {
                    ended(&self.closing, session, LONGEST_END).await;
                    if !session.view().status.phase.is_over() {
                        let detail = format!("the session {} did not end in time", session.id());
                        return Err(Problem::new(Code::TooBusy, detail).hint("look at its phase later"));
                    }
                }
                Ok(())
            }
            Work::Resume { fresh } => self.sessions.resume(session, *fresh, self.terms.clone()).await,
            Work::Remove { force } => {
                if *force && session.may_run() {
                    let (reason, cause) = ("the session is being removed".to_owned(), self.cause.clone());
                    // The session may end by itself in this moment; the refusal then has no meaning.
                    let _ = session.ask(Command::Stop { reason, cause }).await;
                    let over = session.wait_until(|view| view.status.phase.is_over());
                    bounded(&self.closing, LONGEST_END, over).await;
                }
                self.sessions.remove(session, None).await
            }
            Work::Answer(answer) => {
                let open: Vec<_> = session.view().status.permissions.iter().map(|open| open.id.clone()).collect();
                if open.is_empty() {
                    let detail = format!("the session {} has no open permission request", session.id());
                    return Err(Problem::new(Code::NoSuchPermission, detail));
                }
                for permission in open {
                    let (answer, cause) = (answer.clone(), self.cause.clone());
                    session.ask(Command::Answer { permission, answer, cause }).await?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_needs_a_criterion_or_all_and_not_both() {
        let label = |label: &str| Selection { label: Some(label.to_owned()), ..Selection::default() };
        assert!(check(&label("team=a,!done")).unwrap().is_some());
        assert!(check(&Selection { all: true, ..Selection::default() }).unwrap().is_none());
        for wrong in [
            Selection::default(),
            Selection { all: true, ..label("a") },
            Selection { phases: vec![Phase::Unknown], ..Selection::default() },
            label("a=b=c"),
            label(""),
        ] {
            assert_eq!(check(&wrong).unwrap_err().code, Code::InvalidRequest, "{wrong:?}");
        }
    }
}
