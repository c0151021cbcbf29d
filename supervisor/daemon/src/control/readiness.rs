//! `GET /readyz`: whether a session can be launched here and now. That the process answers at all is `/healthz`.

use agentd_api::problem::Reason;
use agentd_api::{Code, Problem};
use hyper::StatusCode;
use serde_json::json;

use super::handlers::Answer;
use super::json;
use super::router::Context;

/// 200, or a `not-ready` problem with each reason.
pub(super) fn ready(context: &Context) -> Answer {
    let reasons = reasons(context);
    if reasons.is_empty() {
        return Ok(json(StatusCode::OK, &json!({ "status": "ready" })));
    }
    let each: Vec<&str> = reasons.iter().map(|reason| reason.detail.as_str()).collect();
    let mut problem = Problem::new(Code::NotReady, format!("agentd launches no session: {}", each.join("; ")))
        .hint("`agentctl doctor` says what to do about each reason");
    problem.particulars.reasons = reasons;
    Err(problem)
}

fn reasons(context: &Context) -> Vec<Reason> {
    let (world, mut reasons) = (&context.world, Vec::new());
    let mut add = |code: &str, detail: String| reasons.push(Reason { code: code.to_owned(), detail });
    if context.closing.is_cancelled() {
        add("stopping", "agentd is ending".to_owned());
    }
    if !context.sessions.is_whole() {
        add("starting", "the sessions on the disk are still being read".to_owned());
    }
    if let Some(draining) = world.drain.now() {
        add("draining", format!("agentd is drained, as {} asked", draining.by));
    }
    if let Err(refusal) = world.launchable() {
        add("configuration-invalid", refusal.detail);
    }
    let held_up = world.pulses.held_up().len();
    if held_up > 0 {
        add("journal-not-writable", format!("{held_up} sessions cannot write their journals"));
    }
    reasons
}
