//! Prints what a launch waits for, and how to answer it.

use agentd_api::session::{PermissionRequest, Phase, SessionView};

use super::{label, tell};
use crate::error::Error;
use crate::prerequisite::awaited;
use crate::session;

/// Prints what the session's launch waits for: missing prerequisites, or an answer to agentd's question. Returns the
/// last text.
pub(super) fn tell_obstacles(view: &SessionView) -> Result<Option<String>, Error> {
    let mut told = None;
    tell_new(&mut told, session::missing(view).filter(|_| view.status.phase == Phase::Waiting))?;
    tell_new(&mut told, session::progress(view).map(str::to_owned))?;
    tell_new(&mut told, session::question(view).map(|request| asks(view, request)))?;
    Ok(told)
}

/// Formats agentd's question about a stale session.
pub(super) fn asks(view: &SessionView, request: &PermissionRequest) -> String {
    let answers = crate::render::answers(request);
    let title = &request.title;
    format!("agentd asks whether to {title}; answer with: agentctl answer {} {} {answers}", label(view), request.id)
}

/// Prints a text, a line for each check, if it differs from the last one.
pub(super) fn tell_new(told: &mut Option<String>, text: Option<String>) -> Result<(), Error> {
    if let Some(text) = text.filter(|text| told.as_ref() != Some(text)) {
        awaited(&text).iter().try_for_each(|line| tell(line))?;
        *told = Some(text);
    }
    Ok(())
}
