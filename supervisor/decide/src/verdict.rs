//! Derives the condition `PrerequisitesMet` from the reports of a session's prerequisites. Pure.

use std::collections::BTreeMap;

use agentd_api::Body;
use agentd_api::degraded::{MissingKind, MissingPart};
use agentd_api::prerequisite::{CheckReport, OnFailure, Outcome, PrerequisitesChanged, Requester};
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType};

use crate::batch::Batch;
use crate::next::{Facts, condition};
use crate::state::{Run, State};

pub use agentd_api::reason::{PREREQUISITE_FAILED as FAILED, WAIT_TIMED_OUT as TIMED_OUT, WAITING};

/// Status, reason and message of a condition.
pub type ConditionUpdate = (ConditionStatus, &'static str, String);

/// Returns the status of `PrerequisitesMet` for these reports.
pub fn verdict(reports: &[CheckReport], forced: Option<&Requester>) -> ConditionUpdate {
    let obstacles = lines(reports, CheckReport::is_obstacle);
    let warnings = lines(reports, |report| report.outcome != Outcome::Pass && !report.is_obstacle());
    if !obstacles.is_empty() {
        return match forced {
            Some(by) => (
                ConditionStatus::False,
                reason::FORCED,
                format!("launched despite unmet prerequisites, as {by} asked: {obstacles}"),
            ),
            None => (ConditionStatus::False, FAILED, obstacles),
        };
    }
    if !warnings.is_empty() {
        return (ConditionStatus::True, reason::PREREQUISITE_WARNS, warnings);
    }
    if reports.is_empty() {
        return (ConditionStatus::True, reason::NONE_REQUIRED, "the session has no prerequisites".to_owned());
    }
    let names: Vec<&str> = reports.iter().map(|report| report.name.as_str()).collect();
    (ConditionStatus::True, reason::PASSED, format!("all prerequisites passed: {}", names.join(", ")))
}

/// Returns the condition `Degraded` of a degraded launch that left out these parts.
pub fn degraded(missing: &[MissingPart], by: &Requester) -> ConditionUpdate {
    let Some(first) = missing.first() else {
        let message = format!("a degraded launch, as {by} asked, that had to leave out nothing");
        return (ConditionStatus::False, reason::COMPLETE, message);
    };
    let reason = match first.kind {
        kind if missing.iter().any(|part| part.kind != kind) => reason::WITHOUT_SEVERAL,
        MissingKind::Provider => reason::WITHOUT_PROVIDER,
        MissingKind::Script => reason::WITHOUT_SCRIPT,
        MissingKind::Prerequisite => reason::WITHOUT_PREREQUISITE,
        MissingKind::Secret => reason::WITHOUT_SECRET,
        MissingKind::Repository => reason::WITHOUT_REPOSITORY,
        MissingKind::Workflow => reason::WITHOUT_WORKFLOW,
        MissingKind::Unknown => reason::WITHOUT_SEVERAL,
    };
    let parts: Vec<String> = missing.iter().map(ToString::to_string).collect();
    (ConditionStatus::True, reason, format!("launched as {by} asked, without: {}", parts.join("; ")))
}

/// Joins the lines of the reports that `chosen` accepts.
pub fn lines(reports: &[CheckReport], chosen: impl Fn(&CheckReport) -> bool) -> String {
    reports.iter().filter(|report| chosen(report)).map(CheckReport::line).collect::<Vec<_>>().join("; ")
}

/// Replaces each known report by the new report of its prerequisite, and adds the other new reports.
pub fn supersede(known: &mut Vec<CheckReport>, found: &[CheckReport]) {
    for report in found {
        match known.iter_mut().find(|known| known.name == report.name) {
            Some(known) => *known = report.clone(),
            None => known.push(report.clone()),
        }
    }
}

/// Prerequisites of a session in the configuration in force, each with the effect of its failure on a launch.
pub type RequiredPrerequisites = BTreeMap<String, OnFailure>;

/// Drops the reports that the configuration in force does not require. Applies the configured `on_failure` to the
/// others.
fn in_force(mut known: Vec<CheckReport>, needed: &RequiredPrerequisites) -> Vec<CheckReport> {
    known.retain_mut(|report| match needed.get(&report.name) {
        Some(on_failure) => {
            report.on_failure = *on_failure;
            true
        }
        None => false,
    });
    known
}

/// Returns an updated condition for a running session if a changed configuration judges the known reports
/// differently.
pub fn reevaluate(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let recorded = state.condition(ConditionType::PrerequisitesMet)?;
    let known = in_force(state.prerequisites.clone(), facts.needed);
    let (status, reason, message) = verdict(&known, state.forced());
    if (recorded.status, recorded.reason.as_str(), &recorded.message) == (status, reason, &message) {
        return None;
    }
    Some(Batch::of(condition(state, facts, ConditionType::PrerequisitesMet, status, reason, message)))
}

/// Returns the records of a repeated check of a running session's prerequisites, or `None` if no outcome changed.
/// `redeclared` reports that the declarations changed since the last check. In this case a changed text counts as a
/// change too.
pub fn changed(state: &State, found: &[CheckReport], redeclared: bool, facts: &Facts<'_>) -> Option<Batch> {
    let Run::Running(running) = &state.run else { return None };
    let is_news = |report: &&CheckReport| match state.prerequisites.iter().find(|known| known.name == report.name) {
        None => true,
        Some(known) if redeclared => (known.outcome, known.line()) != (report.outcome, report.line()),
        Some(known) => known.outcome != report.outcome,
    };
    let reports: Vec<CheckReport> = found.iter().filter(is_news).cloned().collect();
    if reports.is_empty() {
        return None;
    }
    let mut all = state.prerequisites.clone();
    supersede(&mut all, &reports);
    let (status, reason, message) = verdict(&in_force(all, facts.needed), state.forced());
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
    fn every_obstacle_is_named_with_its_remedy_and_an_unknown_outcome_is_an_obstacle() {
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
        let by = Requester { uid: 1000, pid: None, program: None, session: None, token: None };
        let (status, reason, message) = verdict(&reports, Some(&by));
        assert_eq!((status, reason), (ConditionStatus::False, "Forced"));
        assert!(message.contains("as user 1000 asked: a (fail)"), "{message}");
    }

    #[test]
    fn a_degraded_launch_names_each_part_that_it_left_out() {
        let by = Requester { uid: 1000, pid: None, program: None, session: None, token: None };
        let part = |kind, name: &str| MissingPart { kind, name: name.to_owned(), message: "it failed".to_owned() };
        assert_eq!((degraded(&[], &by).0, degraded(&[], &by).1), (ConditionStatus::False, "Complete"));
        for (kind, reason) in [
            (MissingKind::Provider, "WithoutProvider"),
            (MissingKind::Script, "WithoutScript"),
            (MissingKind::Prerequisite, "WithoutPrerequisite"),
            (MissingKind::Secret, "WithoutSecret"),
            (MissingKind::Repository, "WithoutRepository"),
            (MissingKind::Workflow, "WithoutWorkflow"),
        ] {
            let (status, said, message) = degraded(&[part(kind, "a"), part(kind, "b")], &by);
            assert_eq!((status, said), (ConditionStatus::True, reason));
            let word = kind.as_str();
            assert_eq!(
                message,
                format!("launched as user 1000 asked, without: {word} a: it failed; {word} b: it failed")
            );
        }
        let several = [part(MissingKind::Provider, "a"), part(MissingKind::Secret, "b")];
        assert_eq!(degraded(&several, &by).1, "WithoutSeveral");
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
