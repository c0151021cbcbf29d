//! Handlers of the calls on a session's context, hint, title and progress.

use agentd_api::context::{
    Context as SessionContext, ContextChange, ContextView, HintRequest, ProgressRequest, TitleRequest,
};
use hyper::Request;
use jiff::Timestamp;

use super::handlers::{Answer, read};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;
use agentd_session::{Command, Session, missing_files};

/// Shows the context, with the files that do not exist now.
pub(super) async fn show(context: &Context, session: &Session) -> Answer {
    json(&view(context, &session.context(), Vec::new()).await)
}

/// Changes the context, and answers with the whole context after the change.
pub(super) async fn change(context: &Context, session: &Session, request: Request<RequestBody>) -> Answer {
    let change: ContextChange = read(context, request).await?;
    let warnings = agentd_session::context_warnings(&session.context(), &change);
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    session.ask(Command::ChangeContext { change, requester: Some(context.requester()) }).await?;
    json(&view(context, &session.context(), warnings).await)
}

async fn view(context: &Context, now: &SessionContext, warnings: Vec<String>) -> ContextView {
    let missing = missing_files(&context.generation.daemon.machine, now).await;
    ContextView { warnings, ..ContextView::new(now, &missing) }
}

pub(super) async fn set_hint(context: &Context, session: &Session, request: Request<RequestBody>) -> Answer {
    let HintRequest { hint } = read(context, request).await?;
    done(session, Command::SetHint { hint, requester: Some(context.requester()) }).await
}

pub(super) async fn set_title(context: &Context, session: &Session, request: Request<RequestBody>) -> Answer {
    let TitleRequest { title } = read(context, request).await?;
    done(session, Command::SetTitle { title, requester: Some(context.requester()) }).await
}

pub(super) async fn report_progress(context: &Context, session: &Session, request: Request<RequestBody>) -> Answer {
    let progress: ProgressRequest = read(context, request).await?;
    done(session, Command::ReportProgress { progress, requester: Some(context.requester()) }).await
}

pub(super) async fn observe(context: &Context, session: &Session) -> Answer {
    done(session, Command::Observe { now: Timestamp::now(), requester: Some(context.requester()) }).await
}

async fn done(session: &Session, command: Command) -> Answer {
    session.ask(command).await?;
    json(&session.view())
}
