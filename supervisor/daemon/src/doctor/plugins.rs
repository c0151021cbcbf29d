//! Checks whether all plugins can be used, and whether their grants match their requests.

use agentd_api::doctor::{Check, Finding};
use agentd_api::plugin::{PluginState, PluginView};
use agentd_api::prerequisite::Outcome;

use super::unknown;
use agentd_plugin_set::SETTLED;
use agentd_session::generation::Generation;

pub(super) async fn check(generation: &Generation) -> Vec<Check> {
    match generation.plugins_within(SETTLED).await {
        Ok(plugins) => {
            let views = plugins.views();
            vec![loaded(&views), granted(&views)]
        }
        Err(error) => vec![unknown("plugins", &error)],
    }
}

fn loaded(views: &[PluginView]) -> Check {
    let mut findings = Vec::new();
    for view in views {
        let (name, problem) = (&view.name, view.problem.as_ref());
        let why = problem.map_or("the reason is unknown", |problem| problem.detail.as_str());
        let remedy = problem.and_then(|problem| problem.hint.clone());
        match view.state {
            PluginState::Loaded if view.used_by.is_empty() && view.declared_in.is_some() => {
                findings.push(Finding::new(
                    Outcome::Warn,
                    format!("{name} is declared but not used"),
                    format!("add it to environment.providers or to a prerequisite, or remove [plugins.{name}]"),
                ));
            }
            PluginState::Loaded | PluginState::Unknown => {}
            PluginState::Compiling => findings.push(Finding {
                outcome: Outcome::Warn,
                summary: format!("{name} is being compiled; launches that need it wait"),
                remedy: None,
                run: Vec::new(),
            }),
            PluginState::Failed => findings.push(Finding::new(
                Outcome::Fail,
                format!("{name} cannot be loaded: {why}"),
                remedy.unwrap_or_else(|| format!("run `agentctl plugin show {name}`, then `agentctl reload`")),
            )),
            PluginState::Suspended => findings.push(Finding::new(
                Outcome::Fail,
                format!("{name} is suspended: {why}"),
                remedy.unwrap_or_else(|| {
                    format!("run `agentctl plugin show {name}`; `agentctl reload` loads it again at once")
                }),
            )),
        }
    }
    Check::of("plugins", &findings, format!("{} loaded", views.len()))
}

fn granted(views: &[PluginView]) -> Check {
    let mut findings = Vec::new();
    for view in views {
        let Some(description) = &view.description else { continue };
        let name = &view.name;
        let lacking = |denied: bool| {
            let of = description.narrowed.iter().filter(|narrowed| narrowed.denied == denied);
            of.map(|narrowed| format!("{} {}", narrowed.capability, narrowed.pattern)).collect::<Vec<_>>().join(", ")
        };
        let (missing, denied) = (lacking(false), lacking(true));
        if !missing.is_empty() {
            findings.push(Finding::new(
                Outcome::Warn,
                format!("{name} requests capabilities that its grant lacks: {missing}"),
                format!("see `agentctl plugin show {name}`; add intended capabilities to plugins.{name}.grant"),
            ));
        }
        if !denied.is_empty() {
            findings.push(Finding::bare(
                Outcome::Warn,
                format!("{name} requests capabilities that the policy denies: {denied}"),
            ));
        }
        let unused: Vec<&str> = view
            .grant
            .keys()
            .filter(|capability| !description.imports.contains(capability))
            .map(String::as_str)
            .collect();
        if !unused.is_empty() && view.declared_in.is_some() {
            findings.push(Finding::new(
                Outcome::Warn,
                format!("the grant of {name} has capabilities that it cannot use: {}", unused.join(", ")),
                format!("remove them from plugins.{name}.grant"),
            ));
        }
    }
    Check::of("grants", &findings, "each plugin's grant matches its requests")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(changes: serde_json::Value) -> PluginView {
        let mut view = serde_json::json!({
            "name": "tools", "state": "loaded", "source": "/p.wasm", "declared_in": "/etc/agentd/agentd.toml",
            "component": "tools", "version": "1", "summary": "s", "world": "provider", "imports": ["log", "file"],
            "wants": [], "narrowed": [], "grant": { "file": ["/a"] }, "on_failure": "fail", "used_by": ["tools"],
            "settings": {}, "calls": 0, "failures": 0, "consecutive_failures": 0,
        });
        let serde_json::Value::Object(changes) = changes else { panic!() };
        view.as_object_mut().unwrap().extend(changes);
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn an_unusable_plugin_fails_with_its_own_hint_and_an_unused_plugin_warns() {
        assert_eq!(loaded(&[view(serde_json::json!({}))]).outcome, Outcome::Pass);
        for state in ["failed", "suspended"] {
            let problem = serde_json::json!({ "code": "x", "detail": "it is another file", "hint": "pin it" });
            let check = loaded(&[view(serde_json::json!({ "state": state, "problem": problem }))]);
            assert_eq!((check.outcome, check.remedy.as_deref()), (Outcome::Fail, Some("pin it")));
            assert!(check.summary.contains("it is another file"), "{}", check.summary);
        }
        assert_eq!(loaded(&[view(serde_json::json!({ "used_by": [] }))]).outcome, Outcome::Warn);
    }

    #[test]
    fn a_grant_that_is_too_small_and_a_grant_without_a_use_warn() {
        assert_eq!(granted(&[view(serde_json::json!({}))]).outcome, Outcome::Pass);
        let narrowed = |denied| {
            let one = serde_json::json!({ "capability": "file", "pattern": "/b", "reason": "r", "denied": denied });
            granted(&[view(serde_json::json!({ "narrowed": [one] }))])
        };
        for check in [narrowed(false), narrowed(true)] {
            assert!(check.outcome == Outcome::Warn && check.summary.contains("file /b"), "{check:?}");
        }
        let check = granted(&[view(serde_json::json!({ "grant": { "file": ["/a"], "network": ["h:1"] } }))]);
        assert!(check.outcome == Outcome::Warn && check.summary.ends_with("cannot use: network"), "{check:?}");
    }
}
