//! Bodies of requests: the event as JSON, or its text as a chat service takes it. Pure.

use agentd_api::hook::HookMessage;
use agentd_config::HookFormat;
use serde_json::json;

/// Longest text in characters. Discord takes 2000.
const LONGEST: usize = 1900;

/// Returns the body of a request, and its media type.
pub(crate) fn of(message: &HookMessage, format: HookFormat) -> (Vec<u8>, &'static str) {
    const JSON: &str = "application/json";
    let text = || text(message);
    match format {
        HookFormat::Event => (serde_json::to_vec(message).unwrap_or_default(), JSON),
        HookFormat::Slack => (json!({ "text": escaped(&text()) }).to_string().into_bytes(), JSON),
        // Without mentions: a title of an agent must not call a channel.
        HookFormat::Discord => {
            (json!({ "content": text(), "allowed_mentions": { "parse": [] } }).to_string().into_bytes(), JSON)
        }
        HookFormat::Text => (text().into_bytes(), "text/plain; charset=utf-8"),
    }
}

/// Returns the sentence, and in a second line the command that carries out the remedy.
pub(crate) fn text(message: &HookMessage) -> String {
    let data = &message.data;
    let command = data.command.as_ref().map(|command| format!("\n{command}")).unwrap_or_default();
    format!("{}{command}", data.text).chars().take(LONGEST).collect()
}

/// Escapes the three characters with a meaning in messages of Slack and in bodies of desktop notifications.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use agentd_api::hook::HookData;

    use super::*;

    #[test]
    fn each_format_has_the_text_and_no_text_calls_a_channel() {
        let message = HookMessage {
            kind: "turn.ended".to_owned(),
            timestamp: "2026-01-01T00:00:00Z".parse().unwrap(),
            data: HookData {
                id: "i".to_owned(),
                hook: "h".to_owned(),
                cursor: 7,
                text: "fix asks: <!channel> & @everyone".to_owned(),
                session: None,
                reason: None,
                message: None,
                turn: None,
                permission: None,
                remedy: None,
                command: Some("agentctl answer fix p1 allow".to_owned()),
            },
        };
        let body = |format| String::from_utf8(of(&message, format).0).unwrap();
        assert_eq!(serde_json::from_str::<HookMessage>(&body(HookFormat::Event)).unwrap(), message);
        let slack: serde_json::Value = serde_json::from_str(&body(HookFormat::Slack)).unwrap();
        assert_eq!(slack["text"], "fix asks: &lt;!channel&gt; &amp; @everyone\nagentctl answer fix p1 allow");
        let discord: serde_json::Value = serde_json::from_str(&body(HookFormat::Discord)).unwrap();
        assert_eq!(discord["allowed_mentions"]["parse"], json!([]));
        assert!(body(HookFormat::Text).starts_with("fix asks: <!channel>"));
        let mut long = message.clone();
        long.data.text = "ä".repeat(5000);
        assert_eq!(text(&long).chars().count(), LONGEST);
    }
}
