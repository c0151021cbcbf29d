//! Whether the plugins can be used, and whether what they are granted is what they want.

use agentd_api::doctor::{Check, Finding};
use agentd_api::plugin::{PluginState, PluginView};
use agentd_api::prerequisite::Outcome;

use super::unknown;
use crate::plugins::SETTLED;
use crate::world::World;

pub(super) async fn check(world: &World) -> Vec<Check> {
    match world.plugins_within(SETTLED).await {
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
        let why = problem.map_or("it does not say why", |problem| problem.detail.as_str());
        let remedy = problem.and_then(|problem| problem.hint.clone());
        match view.state {
            PluginState::Loaded if view.used_by.is_empty() && view.declared_in.is_some() => {
                findings.push(Finding::new(
                    Outcome::Warn,
                    format!("{name} is declared, and nothing uses it"),
                    format!("name it in environment.providers or in a prerequisite, or remove [plugins.{name}]"),
                ));
            }
            PluginState::Loaded | PluginState::Unknown => {}
            PluginState::Compiling => findings.push(Finding {
                outcome: Outcome::Warn,
                summary: format!("{name} is being compiled, and launches that need it wait"),
                remedy: None,
                run: Vec::new(),
            }),
            PluginState::Failed => findings.push(Finding::new(
                Outcome::Fail,
                format!("{name} cannot be loaded: {why}"),
                remedy.unwrap_or_else(|| format!("agentctl plugin show {name}; then agentctl reload")),
            )),
            PluginState::Suspended => findings.push(Finding::new(
                Outcome::Fail,
                format!("{name} is suspended: {why}"),
                remedy
                    .unwrap_or_else(|| format!("agentctl plugin show {name}; agentctl reload tries it again at once")),
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
                format!("{name} wants what it is not granted: {missing}"),
                format!("see agentctl plugin show {name}; what it should have belongs in plugins.{name}.grant"),
            ));
        }
        if !denied.is_empty() {
            findings.push(Finding::bare(Outcome::Warn, format!("{name} wants what the policy denies: {denied}")));
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
                format!("{name} is granted what it cannot use: {}", unused.join(", ")),
                format!("remove it from plugins.{name}.grant"),
            ));
        }
    }
    Check::of("grants", &findings, "each plugin has what it wants, and nothing that it does not use")
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
    fn a_plugin_that_cannot_be_used_fails_with_its_own_hint_and_one_that_nothing_uses_is_told() {
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
    fn a_grant_that_is_too_small_and_one_that_is_of_no_use_are_told() {
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
