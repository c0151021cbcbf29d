//! Implements `agentctl plugin case`: prints a case for `plugin test` from a running session, so that an author
//! starts with real data.
//!
//! Promise: the case contains no secret's value.

use std::path::Path;

use agentd_api::ByteString;
use agentd_api::environment::{EnvironmentView, Moment, VariableView};
use agentd_api::plugin::PluginView;
use agentd_api::session::SessionView;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use toml_edit::{Array, DocumentMut, Item, Table, Value};

use crate::commands::{Context, print};
use crate::error::Error;

pub(super) async fn case(context: &Context, session: &str, plugin: Option<&str>) -> Result<u8, Error> {
    let session = context.client.find(session).await?.value;
    let environment = context.client.environment(session.id.as_str(), Moment::Last, true).await?.value;
    let plugin = match plugin {
        Some(plugin) => Some(context.client.plugin(plugin).await?.value),
        None => None,
    };
    print(&written(&session, &environment, plugin.as_ref()))?;
    Ok(0)
}

fn written(session: &SessionView, environment: &EnvironmentView, plugin: Option<&PluginView>) -> String {
    let (variables, secret) = variables(environment, plugin);
    let mut document = DocumentMut::new();
    document.insert("session", Item::Table(facts(session, environment.launch)));
    let mut table = Table::new();
    for (name, value) in variables {
        table.insert(name, Item::Value(bytes(value)));
    }
    if !secret.is_empty() {
        table.decor_mut().set_prefix(format!("\n# Left out, because they are secret: {}\n", secret.join(", ")));
    }
    document.insert("environment", Item::Table(table));
    if let Some(plugin) = plugin.filter(|plugin| !plugin.settings.is_empty()) {
        let mut table = Table::new();
        for (key, values) in &plugin.settings {
            let value = match values.as_slice() {
                [one] => one.into(),
                more => Value::Array(more.iter().map(String::as_str).collect::<Array>()),
            };
            table.insert(key, Item::Value(value));
        }
        document.insert("settings", Item::Table(table));
    }
    format!(
        "{document}\n# Add the host's answers and the expected result here: `agentctl plugin test FILE --case \
             THIS` lists them.\n"
    )
}

fn facts(session: &SessionView, launch: u64) -> Table {
    let mut table = Table::new();
    let program = || session.spec.command.as_ref()?.first().map(|program| base_name(program));
    let agent = session.spec.agent.as_ref().map(ToString::to_string).or_else(program);
    let name = session.spec.name.as_ref().map(ToString::to_string);
    let directory = session.spec.directory.display().to_string();
    for (key, text) in
        [("id", Some(session.id.to_string())), ("name", name), ("agent", agent), ("directory", Some(directory))]
    {
        if let Some(text) = text {
            table.insert(key, Item::Value(text.into()));
        }
    }
    table.insert("launch", Item::Value(i64::try_from(launch).unwrap_or(i64::MAX).into()));
    table
}

fn base_name(program: &str) -> String {
    let name = Path::new(program).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the plugin's input variables and the names of the secrets among them. Without a plugin that took
/// part, returns the whole environment.
fn variables<'a>(
    environment: &'a EnvironmentView,
    plugin: Option<&PluginView>,
) -> (Vec<(&'a str, &'a ByteString)>, Vec<&'a str>) {
    let is_its = |provider: &String| plugin.is_some_and(|plugin| plugin.used_by.contains(provider));
    let steps = |variable: &VariableView| {
        if variable.history.is_empty() { vec![variable.last_step()] } else { variable.history.clone() }
    };
    let its = environment.variables.iter().flat_map(steps).filter(|step| is_its(&step.provider));
    let before = its.map(|step| step.step).min().unwrap_or(u32::MAX);
    let mut secret = Vec::new();
    let mut given = Vec::new();
    for variable in &environment.variables {
        if variable.secret {
            secret.push(variable.name.as_str());
            continue;
        }
        let value = if variable.history.is_empty() {
            variable.value.as_ref().filter(|_| variable.step < before)
        } else {
            let last = variable.history.iter().filter(|step| step.step < before).max_by_key(|step| step.step);
            last.filter(|step| !step.removed).and_then(|step| step.value.as_ref())
        };
        given.extend(value.map(|value| (variable.name.as_str(), value)));
    }
    (given, secret)
}

/// Encodes text unchanged, and other bytes as base64.
fn bytes(value: &ByteString) -> Value {
    let encoded = || Value::InlineTable([("base64", STANDARD.encode(value.as_bytes()))].into_iter().collect());
    value.as_str().map_or_else(encoded, Value::from)
}

#[cfg(test)]
mod tests {
    use agentd_api::environment::StepView;

    use super::*;

    fn step(provider: &str, step: u32, value: &str) -> StepView {
        serde_json::from_value(serde_json::json!({ "provider": provider, "step": step, "value": value })).unwrap()
    }

    fn variable(name: &str, mut history: Vec<StepView>) -> VariableView {
        let StepView { provider, step, value, .. } = history.last().unwrap().clone();
        if history.len() == 1 {
            history.clear();
        }
        let view = serde_json::json!({
            "name": name, "value": value, "provider": provider, "step": step, "history": history
        });
        serde_json::from_value(view).unwrap()
    }

    fn environment() -> EnvironmentView {
        EnvironmentView {
            captured: jiff::Timestamp::UNIX_EPOCH,
            launch: 2,
            digest: String::new(),
            duration_us: None,
            variables: vec![
                variable("PATH", vec![step("snapshot", 1, "/bin"), step("corp", 3, "/opt/bin:/bin")]),
                variable("LATER", vec![step("last", 4, "x")]),
                VariableView { secret: true, ..variable("TOKEN", vec![step("snapshot", 1, "hunter2")]) },
                VariableView { value: Some(vec![0xff].into()), ..variable("RAW", vec![step("snapshot", 1, "")]) },
            ],
            dropped: Vec::new(),
            missing: Vec::new(),
            scripts: Vec::new(),
            without: Vec::new(),
        }
    }

    fn plugin() -> PluginView {
        let view = serde_json::json!({
            "name": "corp", "state": "loaded", "source": "/p.wasm", "grant": {}, "on_failure": "fail",
            "used_by": ["corp"],
            "settings": { "a.b": ["1"], "list": ["x", "y"] }, "calls": 1, "failures": 0, "consecutive_failures": 0
        });
        serde_json::from_value(view).unwrap()
    }

    fn session() -> SessionView {
        let view = serde_json::json!({
            "id": "k3m2pq7x", "generation": 1, "created": "2026-01-01T00:00:00Z",
            "spec": { "directory": "/work/a \"b\"", "command": ["/usr/bin/agent", "x"] },
            "status": { "phase": "idle", "observed_generation": 1, "conditions": [], "launches": 2, "last_seq": 1,
            "updated": "2026-01-01T00:00:00Z" }
        });
        serde_json::from_value(view).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_plugin_is_given_what_was_there_before_it() {
        let environment = environment();
        let (given, secret) = variables(&environment, Some(&plugin()));
        assert_eq!(given, [("PATH", &ByteString::from("/bin")), ("RAW", &vec![0xff].into())]);
        assert_eq!(secret, ["TOKEN"]);
        assert_eq!(variables(&environment, None).0.len(), 3);
    }

    #[test]
    fn a_case_has_the_facts_and_no_secret() {
        let text = written(&session(), &environment(), Some(&plugin()));
        for line in
            ["directory = '/work/a \"b\"'", "agent = \"agent\"", "PATH = \"/bin\"", "RAW = { base64 = \"/w==\" }"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
        for line in
            ["launch = 2", "\"a.b\" = \"1\"", "list = [\"x\", \"y\"]", "# Left out, because they are secret: TOKEN"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("hunter2"), "{text}");
        text.parse::<DocumentMut>().unwrap();
    }
}
