//! Formats the details of a permission request for a user: the whole command, the files and the changes.
//!
//! A user approves the command itself, not only its title by the agent. Invisible characters, and characters that
//! change the direction of text, are written as escapes. A line therefore cannot look like another line.

use agentd_api::permission::ToolDiff;
use agentd_api::session::PermissionRequest;

use agentd_screen::terminal::Screen;

/// Number of lines shown of each side of a change.
const DIFF_LINES: usize = 20;
/// Number of characters shown of an input that is not a command.
const INPUT: usize = 600;

/// Returns the lines below the question, without an indent.
pub fn lines(request: &PermissionRequest, screen: Screen) -> Vec<String> {
    let details = &request.details;
    let line = |text: &str| screen.line(&visible(text));
    let mut lines = Vec::new();
    if let Some(command) = &details.command {
        for (n, part) in command.lines().enumerate() {
            let mark = if n == 0 { "$" } else { ">" };
            // Leading tabs and spaces belong to the command.
            lines.push(format!("{mark} {}", screen.text(&visible(&part.replace('\t', "    ")))));
        }
    }
    if let Some(directory) = &details.directory {
        lines.push(format!("in {}", line(directory)));
    }
    if let Some(tool) = &details.tool {
        lines.push(format!("tool {}", line(tool)));
    }
    if let Some(arguments) =
        details.arguments.as_ref().filter(|_| details.command.is_none() && details.diffs.is_empty())
    {
        let shown: String = arguments.chars().take(INPUT).collect();
        let rest = arguments.chars().count() - shown.chars().count();
        let rest = if rest > 0 { format!(" … {rest} more characters") } else { String::new() };
        lines.push(format!("input {}{rest}", line(&shown)));
    }
    let changed = |path: &String| details.diffs.iter().any(|diff| diff.path == *path);
    lines.extend(details.paths.iter().filter(|path| !changed(path)).map(|path| format!("file {}", line(path))));
    for diff in &details.diffs {
        lines.push(format!("change {}", line(&diff.path)));
        lines.extend(change(diff).map(|text| screen.text(&visible(&text)).into_owned()));
    }
    lines.extend(crate::form::lines(request, screen));
    if details.cut {
        lines.push("the request is too long to be shown whole; agentctl events prints all of it".to_owned());
    }
    lines
}

fn change(diff: &ToolDiff) -> impl Iterator<Item = String> {
    let side = |mark: &'static str, text: &str| {
        let all = text.lines().count();
        let mut shown: Vec<String> = text.lines().take(DIFF_LINES).map(|line| format!("  {mark} {line}")).collect();
        if all > DIFF_LINES {
            shown.push(format!("  {mark} … {} more lines", all - DIFF_LINES));
        }
        shown
    };
    side("-", diff.old.as_deref().unwrap_or_default()).into_iter().chain(side("+", &diff.new))
}

/// Escapes every character of the text that a screen does not show or that would reorder the rest.
pub fn visible(text: &str) -> String {
    let is_hidden = |c: char| {
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' | '\r')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(details: &serde_json::Value) -> Vec<String> {
        let request = json!({ "id": "p1", "title": "tidy up", "details": details, "options": [] });
        lines(&serde_json::from_value(request).unwrap(), Screen { terminal: true, colour: false })
    }

    #[test]
    fn a_command_is_shown_whole_and_as_it_is() {
        let command = "git status \\\n\t&& git push # \u{202e}\u{200b}x\r";
        assert_eq!(
            shown(&json!({ "command": command, "directory": "/d", "arguments": "{}", "tool": "Bash" })),
            ["$ git status \\", ">     && git push # \\u{202e}\\u{200b}x\\u{d}", "in /d", "tool Bash"]
        );
    }

    #[test]
    fn files_and_changes_are_shown_and_what_is_missing_is_said() {
        let new: String = (0..30).flat_map(|n| [n.to_string(), "\n".to_owned()]).collect();
        let lines = shown(&json!({
            "paths": ["/a", "/b"], "diffs": [{ "path": "/b", "old": "x", "new": new }], "cut": true,
            "arguments": "{\"a\":1}",
        }));
        assert_eq!(lines[..4], ["file /a", "change /b", "  - x", "  + 0"]);
        assert_eq!(lines[lines.len() - 2], "  + … 10 more lines");
        assert!(lines.last().unwrap().contains("agentctl events"));
        assert_eq!(shown(&json!({ "arguments": "{\"a\":1}" })), ["input {\"a\":1}"]);
        assert!(shown(&json!({})).is_empty());
    }
}
