//! Formats the result of a session that was not interactive.

use agentd_api::completion::Completion;

/// Number of artifacts that are shown.
const ARTIFACTS: usize = 20;

/// Returns the fields of a result for `agentctl show`. The answer has its own command: `agentctl show --json`.
pub fn described(done: &Completion) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("completion", format!("{}: {}", done.outcome.as_str(), done.reason)),
        ("exit status", done.exit_status.to_string()),
    ];
    let agent = match (done.agent_status, done.agent_signal) {
        (Some(status), _) => Some(format!("exited with status {status}")),
        (None, Some(signal)) => Some(format!("ended by signal {signal}")),
        (None, None) => None,
    };
    fields.extend(agent.map(|agent| ("agent's end", agent)));
    fields.extend(done.usage.total_tokens.map(|tokens| ("tokens", tokens.to_string())));
    fields.extend(done.answer.as_ref().map(|answer| ("answer", answer.lines().next().unwrap_or_default().to_owned())));
    for artifact in done.artifacts.iter().take(ARTIFACTS) {
        let digest = artifact.sha256.as_deref().map(|digest| format!(", sha256 {digest}")).unwrap_or_default();
        fields.push(("artifact", format!("{} ({} bytes{digest})", artifact.path, artifact.size)));
    }
    let more = done.artifacts.len().saturating_sub(ARTIFACTS);
    fields.extend((more > 0).then(|| ("artifact", format!("{more} more: agentctl show --json"))));
    fields.extend(done.artifacts_cut.as_ref().map(|cut| ("artifacts", format!("the list is not complete: {cut}"))));
    fields
}
