//! Implements the calls under `/v1/scripts`: the scripts that a session in a directory would run, and their
//! approval. Also implements the calls on the script that is proposed for a session.
//!
//! An approval can include the digests that the user was shown. A script that changed in between is not approved.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::scripts::{ScriptDecision, ScriptList, ScriptProposal, ScriptState, ScriptView, SourcedView};
use agentd_api::{Code, Problem};
use hyper::Request;
use jiff::Timestamp;

use super::handlers::{Answer, read, to_the_end};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;
use agentd_api::chain;
use agentd_environment::{Script, ScriptPlace, Trust, TrustError, redacted_script, sourced};
use agentd_host::workspace::{self, WorkspaceError};
use agentd_session::Session;

pub(super) async fn scripts(context: &Context, directory: Option<String>, diff: bool) -> Answer {
    let directory = directory
        .map(PathBuf::from)
        .ok_or_else(|| Problem::new(Code::InvalidRequest, "the directory is missing").hint("add ?directory=PATH"))?;
    let looked_for = candidates(context, &directory).await?;
    document(context, looked_for, diff).await
}

pub(super) async fn decide_scripts(context: &Context, allow: bool, request: Request<RequestBody>) -> Answer {
    let ScriptDecision { directory, shown } = read(context, request).await?;
    let looked_for = candidates(context, &directory).await?;
    let (trust, now) = (Arc::clone(&context.generation.daemon.trust), Timestamp::now());
    let paths: Vec<PathBuf> = looked_for.iter().map(|place| place.script.clone()).collect();
    aside(move || if allow { trust.allow(&paths, shown.as_ref(), now) } else { trust.deny(&paths, now) })
        .await?
        .map_err(|error| refusal(&error))?;
    document(context, looked_for, false).await
}

/// Shows the script that is proposed for a session.
pub(super) async fn proposal(context: &Context, session: &Session, diff: bool) -> Answer {
    let (view, generation) = (session.view(), &context.generation);
    let script = agentd_session::proposal_path(generation, session.id());
    let mut list = listed(context, vec![ScriptPlace::beside(script, &view.spec.directory)], diff).await?;
    let explained = view.status.script_proposal.as_ref();
    for script in &mut list.scripts {
        // A process of the session could have replaced the file. Then the explanation is of another script.
        let is_of_it = explained.filter(|proposed| script.digest.as_ref() == Some(&proposed.digest));
        script.explanation = is_of_it.and_then(|proposed| proposed.explanation.clone());
    }
    json(&list)
}

/// Stores a script that is proposed for a session. The owner approves it as a script of a directory.
pub(super) async fn propose(context: &Context, session: &Session, request: Request<RequestBody>) -> Answer {
    let proposed: ScriptProposal = read(context, request).await?;
    let (generation, of, requester) = (Arc::clone(&context.generation), session.clone(), context.requester());
    to_the_end(async move { agentd_session::propose(&generation, &of, proposed, requester).await }).await?;
    proposal(context, session, false).await
}

fn refusal(error: &TrustError) -> Problem {
    let code = match error {
        TrustError::NotAsShown { .. } => Code::ScriptChanged,
        TrustError::Keep { .. } => Code::Internal,
        TrustError::Unreadable { .. } => Code::ApprovalsUnreadable,
        _ => Code::InvalidRequest,
    };
    let problem = Problem::new(code, chain(error));
    match code {
        Code::ScriptChanged => problem.hint("review the script again, then decide"),
        Code::ApprovalsUnreadable => problem
            .hint("repair trust.json in agentd's state directory, or move the file away and approve the scripts again"),
        _ => problem,
    }
}

/// Lists the places where a session in the directory would look for scripts. If the path is a file, the result is
/// that file.
async fn candidates(context: &Context, directory: &Path) -> Result<Vec<ScriptPlace>, Problem> {
    match workspace::check(&context.generation.daemon.machine, directory).await {
        Ok(()) => {}
        Err(WorkspaceError::NotADirectory { path }) => {
            let directory = path.parent().unwrap_or(directory).to_owned();
            return Ok(vec![ScriptPlace::beside(path, &directory)]);
        }
        Err(error) => return Err(error.problem()),
    }
    let pipeline = context.generation.pipeline().await.map_err(|error| Problem::new(Code::Internal, chain(&error)))?;
    Ok(pipeline.directory_scripts(directory).await)
}

async fn document(context: &Context, looked_for: Vec<ScriptPlace>, diff: bool) -> Answer {
    json(&listed(context, looked_for, diff).await?)
}

async fn listed(context: &Context, looked_for: Vec<ScriptPlace>, diff: bool) -> Result<ScriptList, Problem> {
    let trust = Arc::clone(&context.generation.daemon.trust);
    let list = aside(move || {
        let scripts = looked_for.iter().filter_map(|place| view(&trust, place, diff)).collect();
        ScriptList { scripts, looked_for: looked_for.into_iter().map(|place| place.script).collect() }
    });
    list.await
}

/// Runs `work` on a blocking thread, since the disk may be slow.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    agentd_host::work::blocking(work).await.map_err(|error| Problem::new(Code::Internal, error.to_string()))
}

/// Describes a script for the user's decision; `None` if the script does not exist.
fn view(trust: &Trust, place: &ScriptPlace, diff: bool) -> Option<ScriptView> {
    let ScriptPlace { script: path, directory, .. } = place;
    let script = match trust.examine(path) {
        Ok(script) => script?,
        Err(error) => {
            return Some(ScriptView {
                path: path.to_owned(),
                target: None,
                state: ScriptState::Refused,
                digest: None,
                decided: None,
                reason: Some(chain(&error)),
                explanation: None,
                sources: Vec::new(),
                diff: None,
                content: None,
            });
        }
    };
    let text = String::from_utf8_lossy(&script.content);
    let sources = sourced(&text, directory)
        .into_iter()
        .map(|one| SourcedView { line: one.line, argument: one.argument, path: one.path, covered: false })
        .collect();
    let asked = diff && script.state != ScriptState::Approved;
    let diff = asked.then(|| trust.difference(&script)).flatten();
    // The user can read the file itself. The response and terminals must not contain values of secrets.
    let content =
        (asked && diff.is_none()).then(|| String::from_utf8_lossy(&redacted_script(&script.content)).into_owned());
    let Script { named, path, digest, state, decided, .. } = script;
    let target = (path != named).then_some(path);
    Some(ScriptView {
        path: named,
        target,
        state,
        digest: Some(digest),
        decided,
        reason: None,
        explanation: None,
        sources,
        diff,
        content,
    })
}
