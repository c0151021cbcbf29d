//! Builds `session/prompt` with its parts, as far as the agent takes them (ACP, "Content").

use agentd_api::prompt::{Link, PromptPart};
use serde::Serialize;
use serde_json::value::RawValue;

use super::outgoing::line;
use super::{Capabilities, method};

/// Fence around the text of a file. A text has hardly ever as many backticks.
const FENCE: &str = "````````";

/// A block of a prompt.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Block<'a> {
    Text {
        #[serde(rename = "type")]
        kind: &'static str,
        text: String,
    },
    Part(&'a PromptPart),
    Other(PromptPart),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    session_id: &'a str,
    prompt: Vec<Block<'a>>,
}

/// Builds `session/prompt`. Each of agentd's `notes` is a separate text block before the client's text, and the parts
/// follow the text. A part that the agent does not take becomes a text or a link.
pub fn prompt<'a>(
    id: u64,
    conversation: &str,
    notes: impl IntoIterator<Item = &'a str>,
    (content, parts): (&'a str, &[PromptPart]),
    capabilities: Capabilities,
) -> Box<RawValue> {
    let is_needed = !content.is_empty() || parts.is_empty();
    let texts = notes.into_iter().chain(is_needed.then_some(content)).map(|content| text(content.to_owned()));
    let parts = parts.iter().map(|part| block(part, capabilities));
    let params = Params { session_id: conversation, prompt: texts.chain(parts).collect() };
    line(Some(id), method::PROMPT, params)
}

fn text(text: String) -> Block<'static> {
    Block::Text { kind: "text", text }
}

fn block(part: &PromptPart, capabilities: Capabilities) -> Block<'_> {
    let is_taken = match part {
        PromptPart::Image(_) => capabilities.image,
        PromptPart::Audio(_) => capabilities.audio,
        PromptPart::Resource { .. } => capabilities.embedded,
        PromptPart::ResourceLink(_) => true,
    };
    if is_taken {
        return Block::Part(part);
    }
    if let PromptPart::Resource { resource } = part
        && let Some(content) = &resource.text
    {
        return text(format!("{}\n{FENCE}\n{content}\n{FENCE}", resource.uri));
    }
    match part.uri() {
        Some(uri) if uri.starts_with("file://") => Block::Other(PromptPart::ResourceLink(Link {
            uri: uri.to_owned(),
            name: uri.rsplit('/').next().unwrap_or(uri).to_owned(),
            mime_type: part.mime_type().map(str::to_owned),
            size: None,
        })),
        _ => text(format!("[{}, which this agent cannot take]", part.describe())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parts() -> Vec<PromptPart> {
        let parts = json!([
            { "type": "image", "data": "AAAA", "mimeType": "image/png", "uri": "file:///d/a.png" },
            { "type": "audio", "data": "AAAA", "mimeType": "audio/wav" },
            { "type": "resource", "resource": { "uri": "file:///d/b.rs", "text": "fn b() {}" } },
            { "type": "resource", "resource": { "uri": "file:///d/c.bin", "blob": "AAAA" } },
            { "type": "resource_link", "uri": "file:///d", "name": "d" },
        ]);
        serde_json::from_value(parts).unwrap()
    }

    fn sent(content: &str, parts: &[PromptPart], capabilities: Capabilities) -> Value {
        let line = prompt(7, "c", ["note"], (content, parts), capabilities);
        let line: Value = serde_json::from_str(line.get()).unwrap();
        assert_eq!((&line["method"], &line["params"]["sessionId"]), (&json!("session/prompt"), &json!("c")));
        line["params"]["prompt"].clone()
    }

    #[test]
    fn an_agent_gets_the_parts_that_it_takes_behind_the_text() {
        let all = Capabilities { image: true, audio: true, embedded: true, ..Capabilities::default() };
        let sent = sent("look", &parts(), all);
        assert_eq!(sent[0], json!({ "type": "text", "text": "note" }));
        assert_eq!(sent[1], json!({ "type": "text", "text": "look" }));
        assert_eq!(sent.as_array().unwrap()[2..], *serde_json::to_value(parts()).unwrap().as_array().unwrap());
    }

    #[test]
    fn a_part_that_an_agent_does_not_take_becomes_a_text_or_a_link() {
        let sent = sent("", &parts(), Capabilities::default());
        let fence = FENCE;
        assert_eq!(
            sent,
            json!([
                { "type": "text", "text": "note" },
                { "type": "resource_link", "uri": "file:///d/a.png", "name": "a.png", "mimeType": "image/png" },
                { "type": "text", "text": "[audio (audio/wav), which this agent cannot take]" },
                { "type": "text", "text": format!("file:///d/b.rs\n{fence}\nfn b() {{}}\n{fence}") },
                { "type": "resource_link", "uri": "file:///d/c.bin", "name": "c.bin" },
                { "type": "resource_link", "uri": "file:///d", "name": "d" },
            ])
        );
        assert_eq!(sent_text(""), json!([{ "type": "text", "text": "note" }, { "type": "text", "text": "" }]));
    }

    fn sent_text(content: &str) -> Value {
        sent(content, &[], Capabilities::default())
    }
}
