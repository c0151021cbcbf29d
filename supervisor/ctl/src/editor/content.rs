//! Turns the blocks of an editor's prompt into the text that agentd takes.
//!
//! Only what loses nothing is turned into text: a link, and the text of an embedded resource. Other blocks are refused,
//! and `initialize` does not offer them.

use std::fmt::Write as _;

use agent_client_protocol_schema::v1::{ContentBlock, EmbeddedResourceResource, PromptCapabilities};
use serde_json::Value;

use super::wire::{INVALID_PARAMS, Refusal};

/// The blocks that [`text`] takes beside text and links.
pub(super) fn capabilities() -> PromptCapabilities {
    PromptCapabilities::new().embedded_context(true)
}

/// Returns the text of a prompt.
pub(super) fn text(blocks: &[Value]) -> Result<String, Refusal> {
    let mut parts: Vec<String> = Vec::new();
    // A link in the middle of a sentence stays there: editors send mentions between two pieces of text.
    let mut text = String::new();
    for block in blocks {
        match block_of(block)? {
            ContentBlock::Text(part) => text.push_str(&part.text),
            ContentBlock::ResourceLink(link) => {
                let name = if link.name.is_empty() { &link.uri } else { &link.name };
                let _ = write!(text, "[{}]({})", name.replace(['[', ']'], ""), link.uri);
            }
            ContentBlock::Resource(resource) => match resource.resource {
                EmbeddedResourceResource::TextResourceContents(contents) => {
                    let fence = fence(&contents.text);
                    let newline = if contents.text.ends_with('\n') { "" } else { "\n" };
                    parts.push(format!("{}\n{fence}\n{}{newline}{fence}", contents.uri, contents.text));
                }
                _ => return Err(refused("a resource without text")),
            },
            ContentBlock::Image(_) => return Err(refused("an image")),
            ContentBlock::Audio(_) => return Err(refused("audio")),
            _ => return Err(refused("content of an unknown type")),
        }
    }
    parts.insert(0, text);
    parts.retain(|part| !part.is_empty());
    let prompt = parts.join("\n\n");
    if prompt.trim().is_empty() {
        return Err(Refusal::new(INVALID_PARAMS, "the prompt is empty"));
    }
    Ok(prompt)
}

fn block_of(block: &Value) -> Result<ContentBlock, Refusal> {
    let kind = block["type"].as_str().unwrap_or_default();
    serde_json::from_value(block.clone()).map_err(|error| match kind {
        "text" | "image" | "audio" | "resource_link" | "resource" => {
            Refusal::new(INVALID_PARAMS, format!("a block of the prompt is not valid: {error}"))
        }
        _ => refused(&format!("content of type {kind:?}")),
    })
}

fn refused(what: &str) -> Refusal {
    Refusal::new(INVALID_PARAMS, format!("the prompt has {what}, which agentd cannot pass on; send text and links"))
}

/// Returns a fence that does not occur in the text.
fn fence(text: &str) -> String {
    let longest = text.split(|char| char != '`').map(str::len).max().unwrap_or_default();
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_links_and_embedded_texts_become_one_text() {
        let blocks = [
            json!({ "type": "text", "text": "look at " }),
            json!({ "type": "resource_link", "name": "a.rs", "uri": "file:///a.rs" }),
            json!({ "type": "text", "text": ", please" }),
            json!({ "type": "resource", "resource": { "uri": "file:///b.md", "text": "```\ncode\n```" } }),
        ];
        assert_eq!(
            text(&blocks).unwrap(),
            "look at [a.rs](file:///a.rs), please\n\nfile:///b.md\n````\n```\ncode\n```\n````"
        );
    }

    #[test]
    fn what_would_be_lost_is_refused_by_its_name() {
        for (block, what) in [
            (json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" }), "an image"),
            (json!({ "type": "audio", "data": "AAAA", "mimeType": "audio/wav" }), "audio"),
            (json!({ "type": "resource", "resource": { "uri": "a:b", "blob": "AAAA" } }), "a resource without text"),
            (json!({ "type": "hologram" }), "\"hologram\""),
            (json!(7), "\"\""),
            (json!({ "type": "text" }), "not valid"),
            (json!({ "type": "text", "text": " \n" }), "empty"),
        ] {
            let refusal = text(std::slice::from_ref(&block)).unwrap_err();
            assert!(refusal.code == INVALID_PARAMS && refusal.message.contains(what), "{block}: {refusal:?}");
        }
        assert!(text(&[]).unwrap_err().message.contains("empty"));
    }
}
