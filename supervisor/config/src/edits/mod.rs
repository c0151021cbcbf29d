//! Plans edits of the user's configuration file. Each keeps the rest of the file.
//!
//! This module reads the files but does not write them. It refuses an edit that would cause a mistake.

mod agent;
mod keep;
mod lines;
mod list;

use std::path::PathBuf;

use agentd_api::AgentName;
use agentd_api::agents::AgentAddRequest;
use agentd_api::configuration::Mistake;
use agentd_api::keep::{KeepLine, KeepRequest};
use toml_edit::DocumentMut;

use super::assemble::{Loaded, assemble};
use super::files::{Sources, Text, read_system, read_user};
use super::parsed::ParsedFile;

pub use agent::AgentPlan;
pub use keep::KeepPlan;

/// Reason why no edit is possible.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// A file of the configuration cannot be read.
    #[error("{0}")]
    Unreadable(Mistake),
    /// The list is in a file of the administrator. `line` describes the edit that the administrator can make.
    #[error("{key} is set in {}, which only the administrator can change", file.display())]
    OfAdministrator { key: String, file: PathBuf, line: String },
    /// The pipeline has no whitelist.
    #[error("environment.providers has no \"whitelist\", so no whitelist drops variables")]
    NoWhitelist,
    /// The request names an unknown agent. `known` are the configured agents.
    #[error("there is no agent \"{agent}\" in the configuration")]
    NoSuchAgent { agent: AgentName, known: Vec<String> },
    /// The key has a value that is not a list of names.
    #[error("{}: {key} is not a list of names", file.display())]
    NotAList { key: String, file: PathBuf },
    /// The edit would cause these mistakes.
    #[error("the configuration would have a mistake: {}", .0.first().map(ToString::to_string).unwrap_or_default())]
    Mistakes(Vec<Mistake>),
    /// The request for an agent cannot be meant. The second text is a hint.
    #[error("{0}")]
    Agent(String, &'static str),
    /// The configuration has an agent of this name, in this file.
    #[error("there is an agent \"{name}\" in {} already", file.display())]
    AgentExists { name: AgentName, file: PathBuf },
}

/// A planned edit of the user's file.
#[derive(Debug)]
pub struct FileEdit {
    /// Former content of the user's file. `None` means that the file does not exist.
    pub before: Option<String>,
    /// New content of the user's file.
    pub after: String,
    /// Removed and added lines, with secrets masked.
    pub lines: Vec<KeepLine>,
}

/// Plans the edit of `agentctl env keep` from the current files.
pub fn plan_to_keep(sources: &Sources, wish: &KeepRequest) -> Result<KeepPlan, EditError> {
    keep::planned(Files::read(sources)?, wish)
}

/// Plans the edit of `agentctl agent add` from the current files.
pub fn plan_to_add_agent(sources: &Sources, wish: &AgentAddRequest) -> Result<AgentPlan, EditError> {
    agent::planned(Files::read(sources)?, wish)
}

/// The files before an edit.
#[derive(Debug)]
struct Files {
    system: Vec<Text>,
    user: Option<Text>,
    /// The configuration of these files.
    now: Loaded,
    sources: Sources,
}

impl Files {
    fn read(sources: &Sources) -> Result<Self, EditError> {
        let mut system = Vec::new();
        read_system(&sources.system, &mut system).map_err(EditError::Unreadable)?;
        let user = match read_user(sources) {
            Ok(user) => user,
            // A missing file that the user named explicitly is created.
            Err(_) if !sources.user.exists() => None,
            Err(mistake) => return Err(EditError::Unreadable(mistake)),
        };
        Ok(Self::of(system, user, sources))
    }

    fn of(system: Vec<Text>, user: Option<Text>, sources: &Sources) -> Self {
        let now = assemble(system.clone(), user.clone(), sources);
        Self { system, user, now, sources: sources.clone() }
    }

    fn content(&self) -> &str {
        self.user.as_ref().map_or("", |text| &text.content)
    }

    /// Returns the user's file as a document that keeps comments and layout.
    fn document(&self) -> Result<DocumentMut, EditError> {
        self.content().parse().map_err(|_| EditError::Mistakes(self.now.read.mistakes.clone()))
    }

    /// Returns the edit that gives the user's file another content, or leaves it.
    fn edit(self, after: Option<String>) -> Result<FileEdit, EditError> {
        let content = self.content().to_owned();
        let mut after = after.unwrap_or_else(|| content.clone());
        if content.contains("\r\n") {
            // New lines get the line ends of the file.
            after = after.replace("\r\n", "\n").replace('\n', "\r\n");
        }
        let template = self.user.as_ref().and_then(|text| text.template.clone());
        let text = Text { path: self.sources.user.clone(), content: after.clone(), of_user: true, template };
        let then = assemble(self.system, Some(text.clone()), &self.sources);
        let is_new = |mistake: &&Mistake| {
            let known = self.now.read.mistakes.iter();
            !known.clone().any(|known| known.key == mistake.key && known.message == mistake.message)
        };
        let new: Vec<Mistake> = then.read.mistakes.iter().filter(is_new).cloned().collect();
        if !new.is_empty() {
            return Err(EditError::Mistakes(new));
        }
        let old = ParsedFile::read(Text { content: content.clone(), ..text.clone() });
        let written = ParsedFile::read(text);
        let mut lines = lines::changed(&content, &after);
        for line in &mut lines {
            let file = if line.added { &written } else { &old };
            line.text = file.masked(&[], std::mem::take(&mut line.text));
        }
        Ok(FileEdit { before: self.user.map(|text| text.content), after, lines })
    }
}
