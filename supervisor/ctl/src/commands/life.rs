//! Implements `agentctl new`, `cancel`, `stop`, `resume` and `rm`: the life of sessions.

use std::time::Duration;

use agentd_api::reason::is_progress;
use agentd_api::session::{ConditionType, PermissionOrigin, Phase, SessionView};
use agentd_api::{Body, Code, Event};
use tokio::time::Instant;

use super::waiting::{asks, tell_new, tell_obstacles};
use super::{Context, START_WAIT, STOP_WAIT, label, print, repository, tell};
use crate::args::{NewArgs, TermsArgs};
use crate::content;
use crate::conversation::Conversation;
use crate::error::Error;
use crate::failure::Failure;
use crate::forget::Forgetting;
use crate::machine::Machine;
use crate::parent::completed;
use crate::prerequisite::Missing;
use crate::session;
use crate::spec::{create, is_no_prompt, spec};
use crate::start::Starter;
use agentd_client::{self, EventStream, Next, patiently};
use agentd_client::{Document, StreamStart, Terms};

/// Number of events read to explain a failure; nearly always those of a whole launch.
const EXPLAINING: u64 = 500;

/// Time in which most launches are over. A longer launch is followed, since it may wait for an answer.
const AT_ONCE: Duration = Duration::from_secs(2);

impl From<TermsArgs> for Terms {
    fn from(args: TermsArgs) -> Self {
        Self { wait: args.wait.map(|limit| limit.0), force: args.force, degraded: args.degraded }
    }
}

pub(super) async fn new(context: &Context, args: NewArgs) -> Result<u8, Error> {
    is_no_prompt(&context.client, &args.spec).await?;
    // Bounded by a week, so that the sum with the present time does not overflow.
    let wait = args.ready.map(|time| time.0.min(Duration::from_hours(24 * 7)));
    let begun = Instant::now();
    let parts = content::parts(&args.spec.files, &Machine::of(&context.client))?;
    let (spec, prompt) = completed(&context.client, spec(args.spec, &Machine::of(&context.client))?, parts).await?;
    let document = create(&context.client, spec, args.terms.into()).await?;
    if let Some(prompt) = prompt {
        context.client.prompt(document.value.id.as_str(), &prompt).await?;
    }
    // The id is printed first: the session exists, whatever the result of the wait.
    if !context.json {
        print(&format!("{}\n", document.value.id))?;
    }
    let made = document.raw.clone();
    let document = match wait {
        Some(wait) => settled(context, document, begun + wait).await,
        None => Ok(document),
    };
    if context.json {
        context.print_document(document.as_ref().map_or(&made, |document| &document.raw))?;
    }
    // Without a wait the result is not known yet.
    if wait.is_some() { ready(context, &document?.value, wait).await } else { Ok(0) }
}

pub(super) async fn cancel(context: &Context, session: &str) -> Result<u8, Error> {
    let id = context.client.find(session).await?.value.id;
    let document = context.client.cancel(id.as_str()).await?;
    if context.json {
        context.print_document(&document.raw)?;
    }
    Ok(0)
}

pub(super) async fn stop(context: &Context, sessions: &[String], no_wait: bool) -> Result<u8, Error> {
    let mut status = 0;
    for session in sessions {
        status = first(context, status, stop_one(context, session, no_wait).await);
    }
    Ok(status)
}

async fn stop_one(context: &Context, session: &str, no_wait: bool) -> Result<u8, Error> {
    let id = match context.client.find(session).await {
        Err(error) if error.problem_code() == Some(Code::SessionUnreadable) => {
            context.client.stop_set_aside(session).await?;
            return Ok(0);
        }
        found => found?.value.id,
    };
    let document = context.client.stop(id.as_str(), (!no_wait).then_some(STOP_WAIT)).await?;
    if context.json {
        context.print_document(&document.raw)?;
    }
    if no_wait || document.value.status.phase.is_over() {
        return Ok(0);
    }
    Err(Error::Session {
        detail: format!("session {session:?} did not stop within {} s", STOP_WAIT.as_secs()),
        hint: Some(format!("agentctl show {session}")),
    })
}

pub(super) async fn resume(
    context: &Context,
    session: &str,
    no_wait: bool,
    fresh: bool,
    terms: Terms,
) -> Result<u8, Error> {
    let id = context.client.find(session).await?.value.id;
    let wait = (!no_wait).then_some(START_WAIT);
    // A launch that may wait for long is followed, so that the user sees its progress.
    let (at_once, begun) = (wait.map(|_| AT_ONCE).filter(|_| terms.wait.is_none()), Instant::now());
    let wait = wait.map(|wait| wait + terms.wait.unwrap_or_default());
    let mut document = context.client.resume(id.as_str(), at_once, fresh, terms).await?;
    if let Some(wait) = wait {
        document = settled(context, document, begun + wait).await?;
    }
    if context.json {
        context.print_document(&document.raw)?;
    }
    ready(context, &document.value, wait).await
}

/// Follows the session until its launch has succeeded or failed, or until the deadline. Prints the missing
/// prerequisites when they change. The wait continues if the daemon is replaced.
pub(super) async fn settled(
    context: &Context,
    mut document: Document<SessionView>,
    until: Instant,
) -> Result<Document<SessionView>, Error> {
    if document.value.status.phase.is_settled() || Instant::now() >= until {
        return Ok(document);
    }
    let (id, after) = (document.value.id.to_string(), document.value.status.last_seq);
    let mut told = tell_obstacles(&document.value)?;
    let mut events = EventStream::follow(
        context.client.clone(),
        id.clone(),
        StreamStart::After(after),
        context.starter.clone().map(Starter::reviver),
    );
    while !document.value.status.phase.is_settled() {
        let Ok(next) = tokio::time::timeout_at(until, events.next()).await else {
            return Ok(patiently(|| context.client.session(&id)).await?);
        };
        match next {
            Some(Next::Record { line, .. }) => match Event::parse(&line)?.body {
                Body::Condition(condition) if is_progress(&condition.reason) => {
                    tell_new(&mut told, Some(condition.message))?;
                }
                Body::Condition(condition) if condition.kind == ConditionType::PrerequisitesMet => {}
                Body::PermissionRequested(asked) if asked.request.origin == PermissionOrigin::Agentd => {
                    tell_new(&mut told, Some(asks(&document.value, &asked.request)))?;
                }
                Body::ConversationOpened(_)
                | Body::Condition(_)
                | Body::LaunchFailed(_)
                | Body::AgentExited(_)
                | Body::StopRequested(_) => {
                    document = patiently(|| context.client.session(&id)).await?;
                }
                _ => {}
            },
            Some(Next::Away) => tell("agentd is unreachable; agentctl reconnects when agentd is back")?,
            Some(Next::Failed(error)) => return Err(error.into()),
            Some(Next::Deleted) | None => {
                return Err(Error::Session { detail: format!("session {id:?} was removed"), hint: None });
            }
        }
    }
    Ok(document)
}

pub(super) async fn rm(context: &Context, sessions: &[String], force: bool, keep: bool) -> Result<u8, Error> {
    let mut status = 0;
    for session in sessions {
        let removed = async {
            let found = match context.client.find(session).await {
                Err(error) if error.problem_code() == Some(Code::SessionUnreadable) => {
                    return context.client.delete(session, force).await.map_err(Error::from);
                }
                found => found?.value,
            };
            let kept = repository::with_work(context, &found).await;
            let is_refused = found.status.phase.is_active() && !force;
            let forgetting =
                if is_refused { Forgetting::Nothing } else { Forgetting::prepare(&context.client, &found, keep).await };
            context.client.delete(found.id.as_str(), force).await?;
            kept.iter().try_for_each(|kept| tell(&format!("kept {kept}")))?;
            forgetting.finish(&found).await.map_or(Ok(()), |line| tell(&line))
        };
        status = first(context, status, removed.await.map(|()| 0));
    }
    Ok(status)
}

/// Returns the status of several sessions' commands: that of the first failure. Every session is tried.
pub(super) fn first(context: &Context, before: u8, result: Result<u8, Error>) -> u8 {
    let status = result.unwrap_or_else(|error| {
        error.report(context.json.then_some(context.form));
        error.exit_status()
    });
    if before == 0 { status } else { before }
}

/// Reports whether a session became ready, as an exit status or an error.
pub(super) async fn ready(context: &Context, view: &SessionView, wait: Option<Duration>) -> Result<u8, Error> {
    let label = label(view);
    match view.status.phase {
        Phase::Failed => {
            let mut failure = Failure::of(view);
            if session::missing(view).is_some() {
                failure.message = unmet(&failure.message);
            } else {
                explain(context, view.id.as_str(), &mut failure).await;
            }
            Err(Error::Failed { session: label, failure })
        }
        phase if phase.is_ready() || phase == Phase::Completed => Ok(0),
        phase => match wait {
            Some(_) if phase == Phase::Stopped => Err(Error::Session {
                detail: format!("session {label:?} was stopped before it was ready"),
                hint: Some(format!("agentctl resume {label}")),
            }),
            Some(_) if session::question(view).is_some() => Err(Error::Session {
                detail: format!("session {label:?} waits for the answer to a question"),
                hint: session::question(view).map(|request| {
                    format!("agentctl answer {label} {} {}", request.id, crate::render::answers(request))
                }),
            }),
            Some(wait) => Err(Error::Session {
                detail: match &view.status.message {
                    Some(message) => {
                        format!("session {label:?} is still {} after {} s: {message}", phase.as_str(), wait.as_secs())
                    }
                    None => format!("session {label:?} is still {} after {} s", phase.as_str(), wait.as_secs()),
                },
                hint: Some(format!("agentctl show {label}")),
            }),
            None => Ok(0),
        },
    }
}

/// Adds a detail that only the events have: the agent's stderr.
async fn explain(context: &Context, id: &str, failure: &mut Failure) {
    let mut conversation = Conversation::default();
    // Without events the message is the only explanation.
    let Ok(events) = context.client.recent(id, EXPLAINING).await else { return };
    for event in &events {
        conversation.apply(event);
    }
    if let Some(found) = conversation.failure() {
        failure.stderr.clone_from(&found.stderr);
        if found.message == failure.message {
            failure.reason.clone_from(&found.reason);
        }
    }
}

/// Formats the message of a failed session: one line for each of several checks.
fn unmet(message: &str) -> String {
    match Missing::of(message) {
        Missing { begins, lines } if lines.len() > 1 => {
            let begins = if begins.is_empty() { "its prerequisites are not met" } else { begins };
            format!("{begins}\n  {}", lines.join("\n  "))
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::Problem;

    use super::*;
    use crate::document::DocumentForm;
    use crate::error::exit;

    #[test]
    fn what_a_session_failed_for_has_a_line_for_each_check() {
        let over = "the wait is over, and still missing is board (fail): silent; mend it; vpn (unknown): lost";
        let told = "the wait is over, and still missing is\n  board (fail): silent; mend it\n  vpn (unknown): lost";
        assert_eq!(unmet(over), told);
        let told = "its prerequisites are not met\n  a (fail): x\n  b (fail): y";
        assert_eq!(unmet("a (fail): x; b (fail): y"), told);
        assert_eq!(unmet("a (fail): x"), "a (fail): x");
    }

    #[test]
    fn of_several_the_first_failure_is_the_status() {
        let client = agentd_client::Client::new("/nowhere");
        let context = Context {
            client,
            options: Vec::new(),
            starter: None,
            json: false,
            form: DocumentForm::Json,
            verbose: false,
            no_start: true,
        };
        let refused = || Err(Problem::new(Code::WrongPhase, "it runs").into());
        assert_eq!(first(&context, 0, refused()), exit::REFUSED);
        assert_eq!(first(&context, exit::FAILED, refused()), exit::FAILED);
        assert_eq!(first(&context, exit::REFUSED, Ok(0)), exit::REFUSED);
    }
}
