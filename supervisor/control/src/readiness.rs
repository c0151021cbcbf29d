//! Implements `GET /readyz`: whether a session can be launched now, and each reason if not. `/healthz` shows only that
//! the process answers.
//!
//! The reasons are read from memory. A disk, a session or a service manager that hangs delays no answer.

use std::time::Instant;

use agentd_api::hint;
use agentd_api::problem::Reason;
use agentd_api::readiness::NotReady;
use agentd_api::status::{Readiness, ReadinessView};
use agentd_api::{Code, Problem};
use agentd_host::disk::DiskFault;
use agentd_host::manager;

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

/// Returns each reason why no session can be launched.
pub(super) fn reasons(context: &Context) -> Vec<Reason> {
    let (generation, mut reasons) = (&context.generation, Vec::new());
    let daemon = &generation.daemon;
    let mut add = |reason: NotReady, detail: String| {
        reasons.push(Reason { code: reason.code().to_owned(), detail, hint: Some(reason.hint().to_owned()) });
    };
    if context.closing.is_cancelled() {
        add(NotReady::Stopping, "agentd is ending".to_owned());
    }
    if !context.sessions.is_whole() {
        add(NotReady::Starting, "reading the sessions from the disk".to_owned());
    }
    if let Some(draining) = daemon.drain.now() {
        add(NotReady::Draining, format!("agentd is drained at the request of {}", draining.by));
    }
    if let Err(refusal) = generation.launchable() {
        add(NotReady::ConfigurationInvalid, refusal.detail);
    }
    let now = Instant::now();
    if let Some(fault) = daemon.disk.get().and_then(|disk| disk.fault(now)) {
        let reason = match fault {
            DiskFault::Low { .. } => NotReady::DiskLow,
            DiskFault::ReadOnly { .. } => NotReady::JournalNotWritable,
            DiskFault::Silent { .. } | DiskFault::Failed { .. } => NotReady::DiskUnresponsive,
        };
        add(reason, fault.to_string());
    }
    let held_up = daemon.pulses.held_up().len();
    if held_up > 0 {
        add(NotReady::JournalNotWritable, format!("{held_up} sessions cannot write their journals"));
    }
    let limit = manager::longest_step();
    let stuck = daemon.pulses.stuck(limit, now).len();
    if stuck > 0 {
        let seconds = limit.as_secs();
        add(NotReady::DriverStuck, format!("the drivers of {stuck} sessions have been in one step for {seconds} s"));
    }
    if let Some(trouble) = daemon.launcher.manager_trouble() {
        add(NotReady::ManagerUnresponsive, trouble);
    }
    reasons
}
