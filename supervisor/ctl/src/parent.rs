//! Prepares sessions that continue the conversation of another session.

use agentd_api::environment::EnvironmentSpec;
use agentd_api::prompt::PromptPart;
use agentd_api::session::{PromptRequest, SessionSpec};

use crate::error::Error;
use agentd_client::Client;

/// Completes a specification from that of its parent. The daemon gives a session only what belongs to the conversation;
/// a person expects the environment and the repositories too. Returns the prompt to send after the creation. A session
/// that continues a conversation sends none by itself. A specification has no place for `parts` of a prompt.
pub(crate) async fn completed(
    client: &Client,
    spec: SessionSpec,
    parts: Vec<PromptPart>,
) -> Result<(SessionSpec, Option<PromptRequest>), Error> {
    let mut spec = match &spec.parent {
        None if parts.is_empty() => return Ok((spec, None)),
        None => spec,
        Some(parent) => {
            let parent = client.find(parent.as_str()).await?.value;
            let spec = merged(spec, &parent.spec);
            SessionSpec { parent: parent.id.as_str().parse().ok(), ..spec }
        }
    };
    let (schema, text) = (spec.answer_schema.take(), spec.initial_prompt.take());
    let is_prompt = text.is_some() || !parts.is_empty();
    let prompt = is_prompt.then(|| PromptRequest { prompt: text.unwrap_or_default(), parts, schema });
    Ok((spec, prompt))
}

/// Returns the specification with the parent's values in the fields that the command line left out.
fn merged(spec: SessionSpec, parent: &SessionSpec) -> SessionSpec {
    let list = |own: Vec<String>, parent: &[String]| if own.is_empty() { parent.to_vec() } else { own };
    let mut repos = parent.repos.clone();
    repos.retain(|known| spec.repository(&known.name()).is_none());
    repos.extend(spec.repos);
    let is_default = spec.environment == EnvironmentSpec::default();
    SessionSpec {
        repos,
        workflow: spec.workflow.or_else(|| parent.workflow.clone()),
        environment: if is_default { parent.environment.clone() } else { spec.environment },
        env_setup: spec.env_setup.or_else(|| parent.env_setup.clone()),
        requires: list(spec.requires, &parent.requires),
        tags: list(spec.tags, &parent.tags),
        directories: if spec.directories.is_empty() { parent.directories.clone() } else { spec.directories },
        mcp: if spec.mcp.is_empty() { parent.mcp.clone() } else { spec.mcp },
        mode: spec.mode.or_else(|| parent.mode.clone()),
        model: spec.model.or_else(|| parent.model.clone()),
        options: if spec.options.is_empty() { parent.options.clone() } else { spec.options },
        isolation: spec.isolation.or(parent.isolation),
        // The agent keeps its conversation on the place.
        place: spec.place.or_else(|| parent.place.clone()),
        ..spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(fields: serde_json::Value) -> SessionSpec {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn flags_replace_the_parents_values_and_repositories_are_added() {
        let parent = spec(serde_json::json!({
            "directory": "/w", "repos": [{ "url": "https://h/web" }, { "url": "https://h/api", "branch": "v1" }],
            "requires": ["vpn"], "tags": ["lab"], "env_setup": "module load gcc", "isolation": "guard",
            "mode": "plan", "options": { "effort": "low" }, "directories": ["/more"], "place": "farm",
            "permissions": "allow", "environment": { "source": "terminal", "snapshot": "s1" },
        }));
        let own = spec(serde_json::json!({
            "parent": "p", "tags": ["night"], "repos": [{ "url": "https://h/api", "branch": "v2" }], "model": "m",
        }));
        let wanted = spec(serde_json::json!({
            "parent": "p", "repos": [{ "url": "https://h/web" }, { "url": "https://h/api", "branch": "v2" }],
            "requires": ["vpn"], "tags": ["night"], "env_setup": "module load gcc", "isolation": "guard",
            "mode": "plan", "model": "m", "options": { "effort": "low" }, "directories": ["/more"],
            "place": "farm", "environment": { "source": "terminal", "snapshot": "s1" },
        }));
        assert_eq!(merged(own, &parent), wanted);
    }
}
