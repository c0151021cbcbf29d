//! Implements `agentctl plugin ls` and `plugin show`: the state of the daemon's plugins.

use agentd_api::plugin::{OnFailure, PluginState, PluginView};
use jiff::Timestamp;

use super::super::{Context, print, tell};
use crate::error::{Error, exit};
use agentd_screen::table::age;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

/// Lists the plugins. Returns exit status 1 if a plugin is not in use.
pub(super) async fn ls(context: &Context) -> Result<u8, Error> {
    let document = context.client.plugins().await?;
    let plugins = &document.value.plugins;
    if context.json {
        context.print_document(&document.raw)?;
    } else {
        Context::table(&table(plugins, Screen::stdout()))?;
        for remark in plugins.iter().filter_map(remark) {
            tell(&remark)?;
        }
    }
    let all_are_loaded = plugins.iter().all(|plugin| plugin.state == PluginState::Loaded);
    Ok(if all_are_loaded { 0 } else { exit::FAILED })
}

pub(super) async fn show(context: &Context, name: &str) -> Result<u8, Error> {
    let document = context.client.plugin(name).await?;
    if context.json {
        context.print_document(&document.raw)?;
    } else {
        print(&described(&document.value, Screen::stdout(), Timestamp::now()))?;
    }
    Ok(0)
}

fn table(plugins: &[PluginView], screen: Screen) -> Table {
    let mut table = Table::new(&[
        ("NAME", Cut::End),
        ("VERSION", Cut::End),
        ("STATE", Cut::Never),
        ("CALLS", Cut::Never),
        ("FAILED", Cut::Never),
        ("USED AS", Cut::End),
        ("SOURCE", Cut::Start),
    ]);
    for plugin in plugins {
        let version = plugin.description.as_ref().map(|described| described.version.as_str()).unwrap_or_default();
        table.row([
            screen.line(&plugin.name),
            screen.line(version),
            state(plugin.state).to_owned(),
            plugin.calls.to_string(),
            plugin.failures.to_string(),
            screen.line(&plugin.used_by.join(", ")),
            screen.line(&plugin.source),
        ]);
    }
    table
}

fn state(state: PluginState) -> &'static str {
    match state {
        PluginState::Loaded => "loaded",
        PluginState::Compiling => "compiling",
        PluginState::Failed => "failed",
        PluginState::Suspended => "suspended",
        PluginState::Unknown => "unknown",
    }
}

/// Returns the reason why a plugin is not in use.
fn remark(plugin: &PluginView) -> Option<String> {
    let problem = plugin.problem.as_ref()?;
    let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    Some(format!("{}: {}{hint}", plugin.name, problem.detail))
}

fn described(plugin: &PluginView, screen: Screen, now: Timestamp) -> String {
    let mut lines = Vec::new();
    let mut field = |name: &str, value: &str| lines.push(format!("{:<15}{}\n", format!("{name}:"), screen.line(value)));
    field("name", &plugin.name);
    field("state", state(plugin.state));
    if let Some(problem) = &plugin.problem {
        field("problem", &problem.detail);
        problem.hint.iter().for_each(|hint| field("hint", hint));
    }
    if let Some(own) = &plugin.description {
        field("component", &format!("{} {}: {}", own.component, own.version, own.summary));
        field("world", &own.world);
        field("imports", &own.imports.join(", "));
    }
    field("source", &plugin.source);
    plugin.sha256.iter().for_each(|sha256| field("sha256", sha256));
    plugin.declared_in.iter().for_each(|file| field("declared in", &file.to_string_lossy()));
    if !plugin.used_by.is_empty() {
        field("used as", &plugin.used_by.join(", "));
    }
    if plugin.on_failure == OnFailure::Skip {
        field("on failure", "launches continue without the plugin");
    }
    for (capability, patterns) in &plugin.grant {
        field("granted", &format!("{capability} {}", patterns.join(", ")));
    }
    for want in plugin.description.iter().flat_map(|own| &own.wants) {
        field("wants", &format!("{} {}: {}", want.capability, want.patterns.join(", "), want.reason));
    }
    for narrowed in plugin.description.iter().flat_map(|own| &own.narrowed) {
        let how = if narrowed.denied { "denied" } else { "not granted" };
        field(how, &format!("{} {}", narrowed.capability, narrowed.pattern));
    }
    for (key, values) in &plugin.settings {
        field("setting", &format!("{key} = {}", values.join(", ")));
    }
    field("calls", &format!("{}, {} failed", plugin.calls, plugin.failures));
    if let Some(last) = &plugin.last_failure {
        field("last failure", &format!("{} ago: {}", age(last.at, now), last.message));
    }
    lines.concat()
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    const SCREEN: Screen = Screen { terminal: true, colour: false };

    fn plugins() -> Vec<PluginView> {
        serde_json::from_value(serde_json::json!([
            { "name": "snapshot", "state": "loaded", "source": "built-in", "component": "snapshot",
            "version": "0.1.0", "summary": "s",
              "world": "provider", "imports": ["log", "shell-environment"],
              "wants": [{ "capability": "file", "patterns": ["/etc/x"], "reason": "to know" }],
              "narrowed": [{ "capability": "file", "pattern": "/etc/x", "reason": "to know", "denied": false }],
              "grant": { "login-shell": [] }, "on_failure": "fail", "used_by": ["snapshot"], "settings": {},
              "calls": 12345, "failures": 0, "consecutive_failures": 0 },
            { "name": "corporate-toolchain", "state": "failed",
            "source": "/etc/agentd/plugins/corporate-toolchain.wasm",
              "sha256": "00", "declared_in": "/etc/agentd/agentd.toml", "grant": { "command": ["/bin/a **", "/bin/b"] },
              "problem": { "code": "plugin-not-pinned", "detail": "it is another file", "hint": "pin \
                   it" }, "on_failure": "skip",
              "used_by": ["corporate-toolchain", "second"], "settings": { "modules": ["gcc", "mpi"] },
              "calls": 7, "failures": 6, "consecutive_failures": 2,
              "last_failure": { "at": "2026-01-01T00:00:00Z", "message": "it crashed" } },
        ]))
        .unwrap()
    }

    #[test]
    fn the_table_fits_a_terminal_and_says_what_is_not_in_use() {
        let plugins = plugins();
        let text = table(&plugins, SCREEN).render(Some(90));
        assert!(text.lines().all(|line| line.width() <= 90), "{text}");
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["snapshot", "0.1.0", "loaded", "12345", "0", "snapshot", "built-in"]);
        assert!(text.lines().nth(2).unwrap().contains(" failed "), "{text}");
        let remarks: Vec<String> = plugins.iter().filter_map(remark).collect();
        assert_eq!(remarks, ["corporate-toolchain: it is another file; pin it"]);
    }

    #[test]
    fn what_one_may_do_and_did_is_told() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let [snapshot, corporate] = [0, 1].map(|n| described(&plugins()[n], SCREEN, now));
        for line in ["wants:         file /etc/x: to know", "not granted:   file /etc/x", "granted:       login-shell"]
        {
            assert!(snapshot.lines().any(|found| found.trim_end() == line), "{line} is not in\n{snapshot}");
        }
        for line in [
            "problem:       it is another file",
            "granted:       command /bin/a **, /bin/b",
            "on failure:    launches continue without the plugin",
            "setting:       modules = gcc, mpi",
            "calls:         7, 6 failed",
            "last failure:  1h ago: it crashed",
        ] {
            assert!(corporate.lines().any(|found| found == line), "{line} is not in\n{corporate}");
        }
    }
}
