//! Implements `GET /readyz`: whether a session can be launched now. `/healthz` shows only that the process
//! answers.

use agentd_api::hint;
use agentd_api::problem::Reason;
use agentd_api::status::{Readiness, ReadinessView};
use agentd_api::{Code, Problem};

use super::handlers::Answer;
use super::json;
use super::router::Context;

/// Returns 200, or a `not-ready` problem with each reason.
pub(super) fn ready(context: &Context) -> Answer {
    let reasons = reasons(context);
    if reasons.is_empty() {
        return json(&ReadinessView { status: Readiness::Ready });
    }
    let each: Vec<&str> = reasons.iter().map(|reason| reason.detail.as_str()).collect();
    let mut problem = Problem::new(Code::NotReady, format!("agentd cannot launch a session: {}", each.join("; ")))
        .hint(hint::CHECK_REASONS);
    problem.particulars.reasons = reasons;
    Err(problem)
}

fn reasons(context: &Context) -> Vec<Reason> {
    let (generation, mut reasons) = (&context.generation, Vec::new());
    let mut add = |code: &str, detail: String| reasons.push(Reason { code: code.to_owned(), detail });
    if context.closing.is_cancelled() {
        add("stopping", "agentd is ending".to_owned());
    }
    if !context.sessions.is_whole() {
        add("starting", "reading the sessions from the disk".to_owned());
    }
    if let Some(draining) = generation.daemon.drain.now() {
        add("draining", format!("agentd is drained at the request of {}", draining.by));
    }
    if let Err(refusal) = generation.launchable() {
        add("configuration-invalid", refusal.detail);
    }
    let held_up = generation.daemon.pulses.held_up().len();
    if held_up > 0 {
        add("journal-not-writable", format!("{held_up} sessions cannot write their journals"));
    }
    reasons
}
