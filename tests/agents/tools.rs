//! An MCP server on stdio with one tool, `word`, which returns the variable `WORD`.

use std::io::BufRead as _;

use serde_json::{Value, json};

/// Answers requests until the end of stdin.
pub(crate) fn serve() {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(request) = serde_json::from_str::<Value>(&line) else { continue };
        if request["id"].is_null() {
            continue;
        }
        let result = match request["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "lab", "version": "1" },
            }),
            Some("tools/list") => json!({ "tools": [{
                "name": "word", "description": "Returns the word",
                "inputSchema": { "type": "object", "properties": {} },
            }] }),
            Some("tools/call") => {
                json!({ "content": [{ "type": "text", "text": std::env::var("WORD").unwrap_or_default() }] })
            }
            _ => json!({}),
        };
        crate::send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
    }
}
