//! Templates: parsed once, when the configuration is loaded, and rendered for each note.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};

use agentd_api::note::NoteVariables;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior};

use crate::sample::{full_sample, samples};

/// Text of the built-in template.
pub const BUILT_IN: &str = include_str!("note.j2");
/// Maximum length of a note in bytes. A longer note is cut.
pub const MAX_NOTE: usize = 32 << 10;
/// Maximum length of a template in bytes.
const MAX_TEMPLATE: usize = 64 << 10;
/// Work that one note may cost: a unit for each instruction of the template, and for 64 bytes of its data.
const FUEL: u64 = 200_000;
/// Name of the template in its own environment.
const NAME: &str = "note";
/// Last line of a note that is cut.
const CUT: &str = "\n[the rest of this note is cut: it is longer than 32 KiB]";

/// A template that is free of known mistakes.
pub struct Template {
    environment: Environment<'static>,
}

/// A mistake in a template, with its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct TemplateError {
    pub line: Option<usize>,
    pub message: String,
}

/// A rendered note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The note. `None` if the template gives no text.
    pub note: Option<String>,
    /// Why the note has the built-in template instead of the configured one.
    pub error: Option<TemplateError>,
}

impl fmt::Debug for Template {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Template").finish_non_exhaustive()
    }
}

impl Template {
    /// Returns the built-in template.
    pub fn built_in() -> Self {
        let environment = compile(BUILT_IN).expect("the built-in template is tested");
        Self { environment }
    }

    /// Parses a template, and renders it with samples of all variables.
    ///
    /// # Errors
    ///
    /// The template cannot be parsed, uses an unknown variable, filter or function, or fails with a sample.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_TEMPLATE {
            let message = format!("the template has {} bytes; the maximum is {MAX_TEMPLATE}", text.len());
            return Err(TemplateError { line: None, message });
        }
        let template = Self { environment: compile(text).map_err(|error| mistake(&error))? };
        for variables in samples() {
            template.render(&variables)?;
        }
        match template.unknown_variable() {
            None => Ok(template),
            Some(name) => {
                let line = line_of(text, &name);
                Err(TemplateError { line, message: format!("unknown variable {name:?}; {}", known_variables()) })
            }
        }
    }

    /// Renders the template. The note is at most [`MAX_NOTE`] bytes long.
    ///
    /// # Errors
    ///
    /// The template needs too much time or memory, or applies an operation to a value that does not support it.
    pub fn render(&self, variables: &NoteVariables) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(|error| mistake(&error))?;
        let mut output = Output::default();
        let rendered = template.render_captured_to(Value::from(Serde(variables)), &mut output);
        let is_cut = output.is_full;
        if let Err(error) = rendered.map(drop)
            && !is_cut
        {
            return Err(mistake(&error));
        }
        Ok(output.into_note())
    }

    /// Returns a variable that the template uses and that no note has, also in parts that no sample reaches.
    fn unknown_variable(&self) -> Option<String> {
        let known = variable_names();
        let template = self.environment.get_template(NAME).ok()?;
        let globals: BTreeSet<&str> = self.environment.globals().map(|(name, _)| name).collect();
        let used: BTreeSet<String> = template.undeclared_variables(false).into_iter().collect();
        used.into_iter().find(|name| !known.contains(name) && !globals.contains(name.as_str()))
    }
}

/// Renders a note with the configured template, or with the built-in one if the configured template fails.
pub fn render(configured: &Template, variables: &NoteVariables) -> Rendered {
    let (note, error) = match configured.render(variables) {
        Ok(note) => (note, None),
        Err(error) => (Template::built_in().render(variables).unwrap_or_else(|_| last_resort(variables)), Some(error)),
    };
    Rendered { note: (!note.is_empty()).then_some(note), error }
}

/// Returns the note for variables with which not even the built-in template can be rendered.
fn last_resort(variables: &NoteVariables) -> String {
    let what = if variables.resumed { "was resumed" } else { "was started again" };
    format!("[agentd] This session {what}. Shell state from before is gone. The note about changes is not available.")
}

/// Returns the names of all variables.
pub(crate) fn variable_names() -> BTreeSet<String> {
    let names = Value::from(Serde(full_sample()));
    names.try_iter().into_iter().flatten().map(|name| name.to_string()).collect()
}

fn known_variables() -> String {
    let names: Vec<String> = variable_names().into_iter().collect();
    format!("the variables of a note are {}", names.join(", "))
}

fn compile(text: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    // `debug` prints all variables, also those of later releases.
    environment.remove_global("debug");
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(50);
    environment.set_debug(true);
    environment.add_template_owned(NAME, text.to_owned())?;
    Ok(environment)
}

fn mistake(error: &Error) -> TemplateError {
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TemplateError { line: error.line(), message }
}

/// Returns the first line that contains the variable as a word.
fn line_of(text: &str, name: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let has = |line: &str| line.split(|c| !is_part(c)).any(|word| word == name);
    text.lines().position(has).map(|index| index + 1)
}

/// Takes the output of a template up to the maximum length, and then ends the rendering.
#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Output {
    fn into_note(self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        if !self.is_full {
            return text.trim().to_owned();
        }
        // The last line may be incomplete, and so may its last character.
        let text = &text[..text.floor_char_boundary(MAX_NOTE - CUT.len())];
        format!("{}{CUT}", text[..text.rfind('\n').unwrap_or(text.len())].trim())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_NOTE - self.bytes.len();
        if bytes.len() <= room {
            self.bytes.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        self.bytes.extend_from_slice(&bytes[..room]);
        self.is_full = true;
        Err(io::Error::other("the note is too long"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
