//! What the reports of a session's prerequisites come to: pure.

use std::collections::BTreeMap;

use agentd_api::Body;
use agentd_api::prerequisite::{CheckReport, OnFailure, Outcome, PrerequisitesChanged, Requester};
use agentd_api::session::{ConditionStatus, ConditionType};

use super::batch::Batch;
use super::next::{Facts, condition};
use super::state::{Run, State};

pub(super) use agentd_api::reason::{PREREQUISITE_FAILED as FAILED, WAIT_TIMED_OUT as TIMED_OUT, WAITING};

/// How a condition stands: status, reason, message.
pub(super) type Verdict = (ConditionStatus, &'static str, String);

/// How `PrerequisitesMet` stands by these.
pub(super) fn verdict(reports: &[CheckReport], forced: Option<&Requester>) -> Verdict {
    let obstacles = lines(reports, CheckReport::is_obstacle);
    let warnings = lines(reports, |report| report.outcome != Outcome::Pass && !report.is_obstacle());
    if !obstacles.is_empty() {
        return match forced {
            Some(by) => {
                (ConditionStatus::False, "Forced", format!("launched all the same, as {by} asked: {obstacles}"))
            }
            None => (ConditionStatus::False, FAILED, obstacles),
        };
    }
    if !warnings.is_empty() {
        return (ConditionStatus::True, "PrerequisiteWarns", warnings);
    }
    if reports.is_empty() {
        return (ConditionStatus::True, "NoneRequired", "the session requires nothing outside of it".to_owned());
    }
    let names: Vec<&str> = reports.iter().map(|report| report.name.as_str()).collect();
    (ConditionStatus::True, "Passed", format!("checked and there: {}", names.join(", ")))
}

/// What each of those says that are chosen.
pub(super) fn lines(reports: &[CheckReport], chosen: impl Fn(&CheckReport) -> bool) -> String {
    reports.iter().filter(|report| chosen(report)).map(CheckReport::line).collect::<Vec<_>>().join("; ")
}

/// Puts what was found in the place of what was known of the same prerequisites.
pub(super) fn supersede(known: &mut Vec<CheckReport>, found: &[CheckReport]) {
    for report in found {
        match known.iter_mut().find(|known| known.name == report.name) {
            Some(known) => *known = report.clone(),
            None => known.push(report.clone()),
        }
    }
}

/// What a session needs as the configuration in force has it, and what becomes of a launch without it.
pub(crate) type Needed = BTreeMap<String, OnFailure>;

/// Of what is known, what still counts: another configuration may require less, or less strictly.
fn in_force(mut known: Vec<CheckReport>, needed: &Needed) -> Vec<CheckReport> {
    known.retain_mut(|report| match needed.get(&report.name) {
        Some(on_failure) => {
            report.on_failure = *on_failure;
            true
        }
        None => false,
    });
    known
}

/// The condition of a running session, where what it was judged by is not required any more, or otherwise.
pub(super) fn judged_anew(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let told = state.condition(ConditionType::PrerequisitesMet)?;
    let known = in_force(state.prerequisites.clone(), facts.needed);
    let (status, reason, message) = verdict(&known, state.forced_by.as_ref());
    if (told.status, told.reason.as_str(), &told.message) == (status, reason, &message) {
        return None;
    }
    Some(Batch::of(condition(state, facts, ConditionType::PrerequisitesMet, status, reason, message)))
}

/// What is recorded when a running session's prerequisites were looked at again; nothing where all is as it was. With `anew` they are
/// declared otherwise than when they were looked at last, and so other words for the same outcome count too.
pub(super) fn changed(state: &State, found: &[CheckReport], anew: bool, facts: &Facts<'_>) -> Option<Batch> {
    let Run::Running(running) = &state.run else { return None };
    let is_news = |report: &&CheckReport| match state.prerequisites.iter().find(|known| known.name == report.name) {
        None => true,
        Some(known) if anew => (known.outcome, known.line()) != (report.outcome, report.line()),
        Some(known) => known.outcome != report.outcome,
    };
    let reports: Vec<CheckReport> = found.iter().filter(is_news).cloned().collect();
    if reports.is_empty() {
        return None;
    }
    let mut all = state.prerequisites.clone();
    supersede(&mut all, &reports);
    let (status, reason, message) = verdict(&in_force(all, facts.needed), state.forced_by.as_ref());
    let kind = ConditionType::PrerequisitesMet;
    let condition = condition(state, facts, kind, status, reason, message);
    let changed = PrerequisitesChanged { launch: running.launch, reports };
    Some(Batch::of(Body::PrerequisitesChanged(changed)).record(condition))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn report(name: &str, outcome: Outcome, on_failure: OnFailure) -> CheckReport {
        CheckReport {
            name: name.to_owned(),
            outcome,
            on_failure,
            summary: "found".to_owned(),
            facts: Vec::new(),
            remedy: Some("repair it".to_owned()),
            took_ms: 1,
            checked_at: Timestamp::UNIX_EPOCH,
            from_cache: false,
        }
    }

    #[test]
    fn every_obstacle_is_named_with_its_remedy_and_what_cannot_be_told_is_one() {
        let (fail, warn) = (OnFailure::Fail, OnFailure::Warn);
        let reports = [
            report("a", Outcome::Fail, fail),
            report("b", Outcome::Pass, fail),
            report("c", Outcome::Unknown, fail),
            report("d", Outcome::Fail, warn),
        ];
        let (status, reason, message) = verdict(&reports, None);
        assert_eq!((status, reason), (ConditionStatus::False, FAILED));
        assert_eq!(message, "a (fail): found; repair it; c (unknown): found; repair it");
        let by = Requester { uid: 1000, pid: None, program: None, session: None };
        let (status, reason, message) = verdict(&reports, Some(&by));
        assert_eq!((status, reason), (ConditionStatus::False, "Forced"));
        assert!(message.contains("as user 1000 asked: a (fail)"), "{message}");
    }

    #[test]
    fn what_only_warns_is_no_obstacle_and_is_said() {
        let (fail, warn) = (OnFailure::Fail, OnFailure::Warn);
        for warning in
            [report("d", Outcome::Fail, warn), report("d", Outcome::Unknown, warn), report("d", Outcome::Warn, fail)]
        {
            let (status, reason, message) = verdict(&[report("b", Outcome::Pass, fail), warning], None);
            assert_eq!((status, reason), (ConditionStatus::True, "PrerequisiteWarns"), "{message}");
            assert!(message.starts_with("d ("), "{message}");
        }
        assert_eq!(verdict(&[report("b", Outcome::Pass, fail)], None).1, "Passed");
        assert_eq!(verdict(&[], None).1, "NoneRequired");
    }
}
