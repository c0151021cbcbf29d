//! Turns the blocks of an editor's prompt into the text and the parts that agentd takes.

use std::fmt::Write as _;

use agent_client_protocol_schema::v1::{ContentBlock, PromptCapabilities};
use agentd_api::prompt::PromptPart;
use agentd_api::session::PromptRequest;
use serde_json::Value;

use super::wire::{INVALID_PARAMS, Refusal};

/// The blocks that [`request`] takes beside text and links. An agent that does not take one gets a link or a text.
pub(super) fn capabilities() -> PromptCapabilities {
    PromptCapabilities::new().image(true).audio(true).embedded_context(true)
}

/// Returns the prompt for the daemon.
pub(super) fn request(blocks: &[Value]) -> Result<PromptRequest, Refusal> {
    let mut request = PromptRequest { prompt: String::new(), parts: Vec::new(), schema: None };
    for block in blocks {
        match block_of(block)? {
            ContentBlock::Text(part) => request.prompt.push_str(&part.text),
            ContentBlock::ResourceLink(link) => {
                // A link in the middle of a sentence stays there: editors send mentions between two pieces of text.
                let name = if link.name.is_empty() { &link.uri } else { &link.name };
                let _ = write!(request.prompt, "[{}]({})", name.replace(['[', ']'], ""), link.uri);
                request.parts.push(part(block)?);
            }
            ContentBlock::Image(_) | ContentBlock::Audio(_) | ContentBlock::Resource(_) => {
                request.parts.push(part(block)?);
            }
            _ => return Err(refused("content of an unknown type")),
        }
    }
    if request.prompt.trim().is_empty() && request.parts.is_empty() {
        return Err(Refusal::new(INVALID_PARAMS, "the prompt is empty"));
    }
    Ok(request)
}

/// Reads a block that follows the text.
fn part(block: &Value) -> Result<PromptPart, Refusal> {
    let wrong = |error: &dyn std::fmt::Display| {
        Refusal::new(INVALID_PARAMS, format!("a block of the prompt is not valid: {error}"))
    };
    let part: PromptPart = serde_json::from_value(block.clone()).map_err(|error| wrong(&error))?;
    part.check().map_err(|error| wrong(&error))?;
    Ok(part)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_and_links_become_one_text_and_the_rest_follows_it() {
        let link = json!({ "type": "resource_link", "name": "a.rs", "uri": "file:///a.rs" });
        let resource = json!({ "type": "resource", "resource": { "uri": "file:///b.md", "text": "code" } });
        let image = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
        let text = |text: &str| json!({ "type": "text", "text": text });
        let blocks = [text("look at "), link.clone(), image.clone(), text(", please"), resource.clone()];
        let request = request(&blocks).unwrap();
        assert_eq!(request.prompt, "look at [a.rs](file:///a.rs), please");
        assert_eq!(serde_json::to_value(&request.parts).unwrap(), json!([link, image, resource]));
        let only = super::request(std::slice::from_ref(&image)).unwrap();
        assert_eq!((only.prompt.as_str(), only.parts.len()), ("", 1));
    }

    #[test]
    fn what_cannot_be_passed_on_is_refused_by_its_name() {
        for (block, what) in [
            (json!({ "type": "hologram" }), "\"hologram\""),
            (json!(7), "\"\""),
            (json!({ "type": "text" }), "not valid"),
            (json!({ "type": "text", "text": " \n" }), "empty"),
            (json!({ "type": "image", "data": "?", "mimeType": "image/png" }), "not base64"),
        ] {
            let refusal = request(std::slice::from_ref(&block)).unwrap_err();
            assert!(refusal.code == INVALID_PARAMS && refusal.message.contains(what), "{block}: {refusal:?}");
        }
        assert!(request(&[]).unwrap_err().message.contains("empty"));
    }
}
