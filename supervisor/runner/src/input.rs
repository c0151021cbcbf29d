//! Reads the specification and finds the first prompt.
//!
//! The first prompt has exactly one source: `initial_prompt` of the specification, the option `--prompt-file`, or the
//! variable `AGENTD_PROMPT`. None and two are mistakes.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use agentd_api::environment::SnapshotSource;
use agentd_api::session::{PromptRequest, SessionSpec};
use agentd_specs::Mistake;

use crate::RunOptions;

/// The variable with the first prompt.
pub(crate) const PROMPT: &str = "AGENTD_PROMPT";
/// The path that means standard input.
const STDIN: &str = "-";

/// Reason why there is nothing to run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{0}")]
    Spec(Mistake),
    #[error("standard input cannot be both the specification and the prompt")]
    BothStdin,
    #[error("cannot read the prompt from {}: {source}", shown(path))]
    PromptFile { path: PathBuf, source: io::Error },
    #[error(
        "there is no first prompt: set `initial_prompt` in the specification, give --prompt-file FILE, \
         or set the variable {PROMPT}"
    )]
    NoPrompt,
    #[error("there are two first prompts, from {first} and from {second}: give one of them")]
    TwoPrompts { first: &'static str, second: &'static str },
    #[error("the first prompt from {source_name} is empty")]
    EmptyPrompt { source_name: &'static str },
}

fn shown(path: &Path) -> String {
    if path == Path::new(STDIN) { "standard input".to_owned() } else { path.display().to_string() }
}

/// A session to run.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) spec: SessionSpec,
    /// The first prompt of a session that continues another one. Such a session does not send its `initial_prompt`.
    pub(crate) prompt: Option<PromptRequest>,
}

impl Request {
    /// Reads the specification and the first prompt.
    pub(crate) fn read(options: &RunOptions) -> Result<Self, InputError> {
        let is_stdin = |path: &Path| path == Path::new(STDIN);
        if is_stdin(&options.file) && options.prompt_file.as_deref().is_some_and(is_stdin) {
            return Err(InputError::BothStdin);
        }
        let spec = agentd_specs::read_one(&options.file).map_err(InputError::Spec)?;
        let of_file = options.prompt_file.as_deref().map(read_prompt).transpose()?;
        let prompt = first_prompt([
            ("`initial_prompt` of the specification", spec.initial_prompt.clone()),
            ("--prompt-file", of_file),
            ("the variable AGENTD_PROMPT", options.prompt.clone().filter(|prompt| !prompt.is_empty())),
        ])?;
        Ok(Self::new(spec, prompt))
    }

    /// Completes the specification for a run: it is not interactive, and its environment begins with that of this
    /// process unless it names another source.
    fn new(spec: SessionSpec, prompt: String) -> Self {
        let mut spec = SessionSpec { interactive: false, initial_prompt: Some(prompt), ..spec };
        spec.environment.source.get_or_insert(SnapshotSource::Terminal);
        if spec.parent.is_none() {
            return Self { spec, prompt: None };
        }
        let (prompt, schema) = (spec.initial_prompt.take().unwrap_or_default(), spec.answer_schema.take());
        Self { spec, prompt: Some(PromptRequest { prompt, parts: Vec::new(), schema }) }
    }
}

fn read_prompt(path: &Path) -> Result<String, InputError> {
    let read = if path == Path::new(STDIN) {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|source| InputError::PromptFile { path: path.to_owned(), source })
}

/// Returns the only prompt of the given ones, each with the name of its source.
fn first_prompt(given: [(&'static str, Option<String>); 3]) -> Result<String, InputError> {
    let mut given = given.into_iter().filter_map(|(source, prompt)| Some((source, prompt?)));
    let (first, prompt) = given.next().ok_or(InputError::NoPrompt)?;
    if let Some((second, _)) = given.next() {
        return Err(InputError::TwoPrompts { first, second });
    }
    if prompt.trim().is_empty() {
        return Err(InputError::EmptyPrompt { source_name: first });
    }
    Ok(prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(fields: serde_json::Value) -> SessionSpec {
        serde_json::from_value(fields).unwrap()
    }

    fn given(texts: [Option<&str>; 3]) -> [(&'static str, Option<String>); 3] {
        let [a, b, c] = texts.map(|text| text.map(str::to_owned));
        [("a", a), ("b", b), ("c", c)]
    }

    #[test]
    fn the_first_prompt_has_exactly_one_source() {
        for texts in [[Some("p"), None, None], [None, Some("p"), None], [None, None, Some("p")]] {
            assert_eq!(first_prompt(given(texts)).unwrap(), "p");
        }
        assert!(matches!(first_prompt(given([None; 3])), Err(InputError::NoPrompt)));
        let two = first_prompt(given([Some("p"), None, Some("q")]));
        assert!(matches!(two, Err(InputError::TwoPrompts { first: "a", second: "c" })));
        assert!(matches!(first_prompt(given([None, Some(" \n"), None])), Err(InputError::EmptyPrompt { .. })));
    }

    #[test]
    fn a_session_with_a_parent_gets_its_prompt_after_the_creation() {
        let plain = Request::new(spec(serde_json::json!({ "directory": "/w" })), "go".to_owned());
        assert_eq!((plain.spec.initial_prompt.as_deref(), plain.spec.interactive), (Some("go"), false));
        assert!(plain.prompt.is_none());
        let child = spec(serde_json::json!({ "parent": "first", "answer_schema": { "type": "object" } }));
        let child = Request::new(child, "go".to_owned());
        assert_eq!((child.spec.initial_prompt, child.spec.answer_schema), (None, None));
        let prompt = child.prompt.unwrap();
        assert!(prompt.prompt == "go" && prompt.schema.is_some(), "{prompt:?}");
    }

    #[test]
    fn the_environment_begins_with_that_of_the_process_unless_the_file_says_otherwise() {
        let source = |fields| Request::new(spec(fields), "go".to_owned()).spec.environment.source;
        assert_eq!(source(serde_json::json!({ "directory": "/w" })), Some(SnapshotSource::Terminal));
        let shell = serde_json::json!({ "directory": "/w", "environment": { "source": "login-shell" } });
        assert_eq!(source(shell), Some(SnapshotSource::LoginShell));
    }
}
