//! Checks whether the hooks deliver.

use agentd_api::doctor::{Check, Finding};
use agentd_api::hook::{HookFault, HookList, HookState};
use agentd_api::prerequisite::Outcome;

/// Reports each hook whose last delivery failed, and each that dropped events.
pub(crate) fn check(list: &HookList) -> Check {
    let mut findings = Vec::new();
    for view in &list.hooks {
        let name = &view.name;
        let code = view.last.as_ref().and_then(|last| last.code).filter(|_| view.state != HookState::Working);
        if let Some(code) = code {
            let detail = view.last.as_ref().and_then(|last| last.detail.as_deref()).unwrap_or_default();
            let summary = format!("hook {name} is {} ({}): {detail}", view.state.as_str(), code.code());
            let remedy = format!("hook {name}: {}", code.remedy());
            findings.push(Finding::new(Outcome::Warn, summary, remedy).run(format!("agentctl hooks test {name}")));
        }
        if view.dropped > 0 {
            let code = HookFault::HookEventDropped;
            let summary = format!("hook {name} dropped {} events ({})", view.dropped, code.code());
            findings.push(Finding::new(Outcome::Warn, summary, format!("hook {name}: {}", code.remedy())));
        }
    }
    let good = match list.hooks.len() {
        0 => "there are no hooks".to_owned(),
        1 => "1 hook delivers".to_owned(),
        many => format!("{many} hooks deliver"),
    };
    Check::of("hooks", &findings, good)
}
