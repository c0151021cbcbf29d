//! Checks whether the schedules can run.

use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;
use agentd_api::schedule::ScheduleList;

/// Reports each schedule that cannot be read, and each whose last run failed.
pub(crate) fn check(list: &ScheduleList) -> Check {
    let mut findings = Vec::new();
    for unreadable in &list.unreadable {
        let summary = format!("the schedule {} cannot be read: {}", unreadable.name, unreadable.reason);
        let remedy = format!("agentctl schedule rm {}", unreadable.name);
        findings.push(Finding::bare(Outcome::Fail, summary).run(remedy));
    }
    for view in &list.schedules {
        if let Some(error) = &view.error {
            let summary = format!("schedule {}: {error}", view.spec.name);
            let remedy = format!("agentctl schedule show {}", view.spec.name);
            findings.push(Finding::bare(Outcome::Warn, summary).run(remedy));
        }
    }
    let good = match list.schedules.len() {
        0 => "there are no schedules".to_owned(),
        1 => "1 schedule can run".to_owned(),
        many => format!("{many} schedules can run"),
    };
    Check::of("schedules", &findings, good)
}
