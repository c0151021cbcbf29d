//! Finds the JSON document at the end of an answer.

use serde_json::Value;

/// Returns the document at the end of an answer: the last fenced block, if nothing follows it, else the whole answer.
/// The error describes the mistake for the agent.
pub fn document(answer: &str) -> Result<Value, String> {
    let text = answer.trim();
    if text.is_empty() {
        return Err("the answer is empty".to_owned());
    }
    let text = fenced(text).unwrap_or(text);
    serde_json::from_str(text).map_err(|error| format!("the last block of the answer is not JSON: {error}"))
}

/// Returns the content of the fenced code block with which the text ends (`CommonMark`, section 4.5). The block has
/// the info string `json` or none.
fn fenced(text: &str) -> Option<&str> {
    let body = text.strip_suffix("```")?.trim_end_matches('`').strip_suffix('\n')?;
    let opening = body.rmatch_indices("```").map(|(at, _)| at).find(|at| {
        let before = &body[..*at];
        before.trim_end_matches([' ', '`']).ends_with('\n') || before.trim_matches([' ', '`']).is_empty()
    })?;
    let (info, content) = body[opening..].trim_start_matches('`').split_once('\n')?;
    let info = info.trim();
    (info.is_empty() || info.eq_ignore_ascii_case("json")).then_some(content)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_block_or_the_whole_answer_is_the_document() {
        for answer in [
            "{\"a\":1}",
            "  {\"a\": 1}\n",
            "```json\n{\"a\":1}\n```",
            "Here it is:\n\n```json\n{\"a\":1}\n```\n",
            "```json\n{\"a\":2}\n```\nNo:\n```\n{\"a\":1}\n```",
            "An inline ``` fence:\n```JSON\n{\n \"a\": 1\n}\n```",
        ] {
            assert_eq!(document(answer), Ok(json!({ "a": 1 })), "{answer}");
        }
    }

    #[test]
    fn another_end_is_no_document() {
        for answer in
            ["", "done", "```json\n{\"a\":1}\n```\nThat is all.", "```rust\nfn a() {}\n```", "```json\n{\n```"]
        {
            assert!(document(answer).is_err(), "{answer}");
        }
    }
}
