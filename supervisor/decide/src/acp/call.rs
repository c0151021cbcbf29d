//! Parses the details of tool calls. `session/update` and `session/request_permission` can each carry a part of the
//! details.
//!
//! Agents differ:
//!
//! - zed's claude-code-acp sends the command in backticks and without a kind.
//! - The title from copilot is the model's description.
//! - codex sends the command as a list of words.
//! - gemini-cli has the command only in the title.
//!
//! No input is trusted to be well-formed, and every text is bounded.

use agentd_api::permission::{ToolDetails, ToolDiff};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Limits: `COMMAND`, `ARGUMENTS`, `PATH`, `DIFF` and `NAME` in bytes; `PATHS` and `DIFFS` as counts.
const COMMAND: usize = 16 << 10;
const ARGUMENTS: usize = 4 << 10;
const PATH: usize = 4 << 10;
const PATHS: usize = 32;
const DIFF: usize = 4 << 10;
const DIFFS: usize = 4;
const NAME: usize = 256;
/// Maximum depth of the search for paths in an input.
const DEPTH: usize = 4;

/// Field names of a tool's input that hold the command, in lower case and without `_` and `-`.
const COMMAND_KEYS: &[&str] = &["command", "cmd", "commandline", "shellcommand", "script"];
/// Field names that hold the command's arguments, if they are separate.
const ARGUMENT_KEYS: &[&str] = &["args", "arguments", "argv"];
/// Field names that hold the working directory.
const DIRECTORY_KEYS: &[&str] = &["cwd", "workdir", "workingdirectory", "dirpath"];
/// Field names that hold paths.
const PATH_KEYS: &[&str] = &[
    "abspath",
    "absolutepath",
    "dest",
    "destination",
    "destinationpath",
    "dirpath",
    "directory",
    "file",
    "filename",
    "filepath",
    "filepaths",
    "files",
    "newpath",
    "notebookpath",
    "oldpath",
    "path",
    "paths",
    "relativepath",
    "root",
    "source",
    "sourcepath",
    "src",
    "targetfile",
    "uri",
];
/// Names of objects whose keys are the changed paths (codex's `apply_patch`).
const CHANGES_KEYS: &[&str] = &["changes", "filechanges"];

/// Agents whose title of a command is the command itself, by `agentInfo.name`. Source: `getDisplayTitle` of the
/// shell tool in gemini-cli 0.61.
const TITLE_IS_COMMAND: &[&str] = &["gemini-cli"];

/// Known details of a tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub id: String,
    pub title: Option<String>,
    pub kind: Option<String>,
    pub details: ToolDetails,
}

/// Fields of a tool call as received. A field with an unexpected JSON type counts as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Raw<'a> {
    #[serde(default, borrow)]
    tool_call_id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    title: Option<&'a RawValue>,
    #[serde(default, borrow)]
    kind: Option<&'a RawValue>,
    #[serde(default, borrow, rename = "rawInput")]
    input: Option<&'a RawValue>,
    #[serde(default, borrow)]
    locations: Option<&'a RawValue>,
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

impl Raw<'_> {
    pub(super) fn read(&self) -> Call {
        let value = |raw: Option<&RawValue>| raw.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        let text = |raw| value(raw).and_then(|value| value.as_str().map(str::to_owned));
        let mut details = ToolDetails::default();
        let id = text(self.tool_call_id).unwrap_or_default();
        details.tool_call = (!id.is_empty()).then(|| id.clone());
        if let Some(meta) = value(self.meta) {
            details.tool = tool_of(&meta).map(|tool| cut(tool, NAME, &mut details.cut));
        }
        if let Some(input) = value(self.input).filter(is_something) {
            read_input(&input, &mut details);
        }
        for location in value(self.locations).iter().filter_map(Value::as_array).flatten() {
            if let Some(path) = location.get("path").and_then(Value::as_str) {
                add_path(&mut details, path);
            }
        }
        for content in value(self.content).iter().filter_map(Value::as_array).flatten() {
            read_diff(content, &mut details);
        }
        Call { id, title: text(self.title), kind: text(self.kind), details }
    }
}

impl Call {
    /// Merges later details into this call. A later value replaces an earlier value; paths accumulate.
    pub fn update(&mut self, later: Self) {
        let replace = |now: &mut Option<String>, later: Option<String>| {
            if later.is_some() {
                *now = later;
            }
        };
        replace(&mut self.title, later.title);
        replace(&mut self.kind, later.kind);
        let (now, later) = (&mut self.details, later.details);
        now.cut |= later.cut;
        replace(&mut now.tool_call, later.tool_call);
        replace(&mut now.tool, later.tool);
        replace(&mut now.command, later.command);
        replace(&mut now.directory, later.directory);
        replace(&mut now.arguments, later.arguments);
        for path in later.paths {
            add_path(now, &path);
        }
        if !later.diffs.is_empty() {
            now.diffs = later.diffs;
        }
    }

    /// Takes the command from the title if the title is in backticks, or if this agent is known to put the command
    /// there.
    pub fn settle(&mut self, agent: Option<&str>) {
        let is_command = self.kind.as_deref().is_none_or(|kind| kind == "execute");
        let Some(title) = self.title.as_deref().filter(|_| is_command && self.details.command.is_none()) else {
            return;
        };
        let quoted = title.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')).filter(|rest| !rest.is_empty());
        let command = match quoted {
            Some(quoted) => quoted.replace("\\`", "`"),
            None if self.kind.is_some() && agent.is_some_and(|agent| TITLE_IS_COMMAND.contains(&agent)) => {
                title.to_owned()
            }
            None => return,
        };
        let command = cut(&command, COMMAND, &mut self.details.cut);
        self.details.command = Some(command);
    }
}

fn is_something(input: &Value) -> bool {
    !input.is_null() && input.as_object().is_none_or(|fields| !fields.is_empty())
}

/// Returns the tool's name from the adapters' extension field, such as `_meta.claudeCode.toolName`.
fn tool_of(meta: &Value) -> Option<&str> {
    let direct = meta.get("toolName").and_then(Value::as_str);
    let inner = || meta.as_object()?.values().find_map(|of_agent| of_agent.get("toolName")?.as_str());
    direct.or_else(inner)
}

fn read_input(input: &Value, details: &mut ToolDetails) {
    details.arguments = Some(cut(&input.to_string(), ARGUMENTS, &mut details.cut));
    if let Some(text) = input.as_str() {
        details.command = Some(cut(text, COMMAND, &mut details.cut));
        return;
    }
    if let Some(fields) = input.as_object() {
        let find = |keys: &[&str]| {
            keys.iter().find_map(|key| fields.iter().find(|(name, _)| plain(name) == *key).map(|(_, value)| value))
        };
        if let Some(command) = find(COMMAND_KEYS).and_then(command_line) {
            let behind = find(ARGUMENT_KEYS).filter(|words| words.is_array()).and_then(command_line);
            let command = behind.map_or_else(|| command.clone(), |behind| format!("{command} {behind}"));
            details.command = Some(cut(&command, COMMAND, &mut details.cut));
            let directory = find(DIRECTORY_KEYS).and_then(Value::as_str).filter(|path| !path.is_empty());
            details.directory = directory.map(|path| cut(path, PATH, &mut details.cut));
        }
    }
    find_paths(input, DEPTH, details);
}

/// Returns a command as typed in a shell.
fn command_line(value: &Value) -> Option<String> {
    let line = match value {
        Value::String(text) => text.clone(),
        Value::Array(words) => {
            words.iter().map(|word| word.as_str().map(quoted)).collect::<Option<Vec<_>>>()?.join(" ")
        }
        _ => return None,
    };
    (!line.trim().is_empty()).then_some(line)
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn find_paths(input: &Value, depth: usize, details: &mut ToolDetails) {
    if depth == 0 {
        details.cut |= input.is_object() || input.is_array();
        return;
    }
    match input {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = plain(name);
                if PATH_KEYS.contains(&name.as_str()) {
                    let listed = value.as_array().into_iter().flatten();
                    listed.chain([value]).filter_map(Value::as_str).for_each(|path| add_path(details, path));
                }
                if CHANGES_KEYS.contains(&name.as_str()) {
                    value.as_object().into_iter().flatten().for_each(|(path, _)| add_path(details, path));
                }
                find_paths(value, depth - 1, details);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| find_paths(value, depth - 1, details)),
        _ => {}
    }
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| *c != '_' && *c != '-').flat_map(char::to_lowercase).collect()
}

fn add_path(details: &mut ToolDetails, path: &str) {
    let path = path.strip_prefix("file://").unwrap_or(path);
    if path.is_empty() || details.paths.iter().any(|known| known == path) {
        return;
    }
    if details.paths.len() == PATHS {
        details.cut = true;
        return;
    }
    let path = cut(path, PATH, &mut details.cut);
    details.paths.push(path);
}

/// Reads an ACP `ToolCallContent` of type `diff`.
fn read_diff(content: &Value, details: &mut ToolDetails) {
    if content.get("type").and_then(Value::as_str) != Some("diff") {
        return;
    }
    let text = |key: &str| content.get(key).and_then(Value::as_str);
    let Some(path) = text("path") else { return };
    add_path(details, path);
    if details.diffs.len() == DIFFS {
        details.cut = true;
        return;
    }
    let path = cut(path, PATH, &mut details.cut);
    let old = text("oldText").map(|old| cut(old, DIFF, &mut details.cut));
    let new = cut(text("newText").unwrap_or_default(), DIFF, &mut details.cut);
    details.diffs.push(ToolDiff { path, old, new });
}

/// Returns at most `bytes` bytes of the text, and sets `is_cut` if the text is longer.
fn cut(text: &str, bytes: usize, is_cut: &mut bool) -> String {
    *is_cut |= text.len() > bytes;
    text[..text.floor_char_boundary(bytes)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> Call {
        serde_json::from_str::<Raw<'_>>(text).unwrap().read()
    }

    #[test]
    fn what_each_agent_sends_comes_to_the_command() {
        // zed's claude-code-acp: the permission request has the command in backticks and no kind; the earlier tool
        // call has both.
        let mut claude = call(r#"{"toolCallId":"t","title":"Terminal","kind":"execute","rawInput":{}}"#);
        claude.update(call(r#"{"toolCallId":"t","rawInput":{"command":"git push","description":"Publish"}}"#));
        claude.update(call(r#"{"toolCallId":"t","title":"`git push`","rawInput":{}}"#));
        claude.settle(None);
        assert_eq!(claude.details.command.as_deref(), Some("git push"));
        assert_eq!((claude.title.as_deref(), claude.kind.as_deref()), (Some("`git push`"), Some("execute")));
        let mut alone = call(r#"{"toolCallId":"t","title":"`echo \\`date\\``"}"#);
        alone.settle(None);
        assert_eq!(alone.details.command.as_deref(), Some("echo `date`"));
        let copilot =
            call(r#"{"toolCallId":"t","title":"run a command","kind":"execute","rawInput":{"command":"git push"}}"#);
        assert_eq!(copilot.details.command.as_deref(), Some("git push"));
        let codex = call(r#"{"toolCallId":"t","rawInput":{"command":["bash","-lc","git push; it's"],"cwd":"/x"}}"#);
        assert_eq!(codex.details.command.as_deref(), Some(r"bash -lc 'git push; it'\''s'"));
        assert_eq!(codex.details.directory.as_deref(), Some("/x"));
        let mut gemini =
            call(r#"{"toolCallId":"run_shell_command-1-1","title":"git push","kind":"execute","locations":[]}"#);
        let mut other = gemini.clone();
        gemini.settle(Some("gemini-cli"));
        other.settle(Some("somebody"));
        assert_eq!((gemini.details.command.as_deref(), other.details.command), (Some("git push"), None));
        let split = call(r#"{"rawInput":{"command":"git","args":["push","a b"]}}"#);
        assert_eq!(split.details.command.as_deref(), Some("git push 'a b'"));
    }

    #[test]
    fn paths_and_changes_are_found_wherever_they_stand_and_are_bounded() {
        let edit = call(
            r#"{"kind":"edit","locations":[{"path":"/a","line":3}],"rawInput":{"file_path":"/b","edits":[{"filePath":"/c"}],
                "changes":{"/d":{"update":{}}}},"content":[{"type":"diff","path":"/e","oldText":"x","newText":"y"},{"type":"terminal"}]}"#,
        );
        let mut paths = edit.details.paths.clone();
        paths.sort();
        assert_eq!(paths, ["/a", "/b", "/c", "/d", "/e"]);
        assert_eq!(edit.details.diffs, [ToolDiff { path: "/e".into(), old: Some("x".into()), new: "y".into() }]);
        assert!(!edit.details.cut);
        let long = "é".repeat(COMMAND);
        let long = call(&serde_json::json!({ "rawInput": { "command": long } }).to_string());
        assert!(long.details.cut && long.details.command.unwrap().len() <= COMMAND);
        let many: Vec<_> = (0..100).map(|n| serde_json::json!({ "path": format!("/{n}") })).collect();
        let many = call(&serde_json::json!({ "locations": many }).to_string());
        assert!(many.details.cut && many.details.paths.len() == PATHS);
        let odd =
            call(r#"{"toolCallId":7,"title":[],"kind":{},"rawInput":[1],"locations":"x","content":{},"_meta":3}"#);
        assert_eq!((odd.title, odd.kind, odd.details.command), (None, None, None));
    }
}
