//! Contents of prompts: puts the session's files in place of their placeholders in a line for the agent.

use std::fs;
use std::path::Path;

use agentd_api::prompt::next_placeholder;

use crate::protocol::contents;

/// Maximum size of a content in bytes, larger than any that a daemon stores.
const LARGEST: u64 = 256 << 20;

/// Returns a line with the contents of the session's files. `None` if it has no placeholder of one.
pub(crate) fn filled(session: &Path, line: &str) -> Option<String> {
    let directory = contents(session);
    let (mut filled, mut rest, mut is_other) = (String::new(), line, false);
    while let Some((at, length, digest)) = next_placeholder(rest) {
        filled.push_str(&rest[..at]);
        match read(&directory.join(digest)) {
            Some(content) => {
                // The content gets the escapes of a JSON string, without its quotes.
                let text = serde_json::to_string(&content).unwrap_or_default();
                filled.push_str(text.get(1..text.len().saturating_sub(1)).unwrap_or_default());
                is_other = true;
            }
            None => filled.push_str(&rest[at..at + length]),
        }
        rest = &rest[at + length..];
    }
    filled.push_str(rest);
    is_other.then_some(filled)
}

fn read(file: &Path) -> Option<String> {
    let facts = fs::symlink_metadata(file).ok()?;
    if !facts.is_file() || facts.len() > LARGEST {
        return None;
    }
    fs::read_to_string(file).ok()
}

#[cfg(test)]
mod tests {
    use agentd_api::prompt::placeholder;

    use super::*;

    #[test]
    fn a_placeholder_gets_the_content_of_its_file_and_another_text_stays() {
        let session = tempfile::tempdir().unwrap();
        let (known, unknown) = ("a".repeat(64), "b".repeat(64));
        fs::create_dir(contents(session.path())).unwrap();
        fs::write(contents(session.path()).join(&known), "a \"quoted\"\nline").unwrap();
        let line = format!(r#"{{"x":"{}","y":"{}"}}"#, placeholder(&known), placeholder(&unknown));
        let value: serde_json::Value = serde_json::from_str(&filled(session.path(), &line).unwrap()).unwrap();
        assert_eq!(value, serde_json::json!({ "x": "a \"quoted\"\nline", "y": placeholder(&unknown) }));
        assert_eq!(filled(session.path(), &placeholder(&unknown)), None);
        assert_eq!(filled(session.path(), r#"{"x":1}"#), None);
        std::os::unix::fs::symlink("/etc/hostname", contents(session.path()).join(&unknown)).unwrap();
        assert_eq!(filled(session.path(), &placeholder(&unknown)), None);
    }
}
