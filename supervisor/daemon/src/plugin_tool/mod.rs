//! The tools of who writes a plugin, for what needs the box: what a component is, how it stands beside what is granted, how it does on
//! recorded answers. `agentctl plugin` runs `agentd plugin-tool` for them, and shows the document that comes.
//!
//! Not responsible for any session: no daemon is asked, and none needs to run.

mod case;
mod check;
mod declared;
mod expectation;
mod inspect;
mod recorded;
mod test;

use std::io;
use std::path::{Path, PathBuf};

use agentd_api::plugin_tool::{Answer, ToolProblem};
use agentd_plugins::{Host, HostError, HostOptions, LoadError, Source};
use serde::Serialize;

use crate::directories::{Directories, DirectoryError, Places};
use crate::message::chain;
use crate::plugins::SettingError;

/// What is asked.
#[derive(Debug)]
pub enum PluginTool {
    /// What is this file?
    Inspect { file: PathBuf },
    /// Beside what the configuration says of it, under this name or of this file: would it load, and be refused nothing? Which variables
    /// a provider gives, the cases show.
    Check { file: PathBuf, name: Option<String>, cases: Vec<PathBuf> },
    /// Does it do what these cases expect? Or, with `update`: what it does is what they are to expect.
    Test { file: PathBuf, cases: Vec<PathBuf>, update: bool },
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot find the own program, which compiles plugins")]
    Program(#[source] io::Error),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("the configuration is wrong: {0}")]
    Config(String),
    #[error("plugins.{plugin}: {source}")]
    Setting { plugin: String, source: SettingError },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{path}: {reason}")]
    Case { path: String, reason: String },
}

impl ToolError {
    fn problem(&self) -> ToolProblem {
        let (code, hint) = match self {
            Self::Directory(_) => ("directory", None),
            Self::Config(_) | Self::Setting { .. } => ("configuration", None),
            Self::Case { .. } => ("case", Some("run it with `agentctl plugin test` first".to_owned())),
            Self::Runtime(_) | Self::Program(_) | Self::Host(_) => ("host", None),
            Self::Load(error @ (LoadError::Read { .. } | LoadError::NotComponent { .. })) => {
                (error.code(), error.hint().or_else(|| Some("give the .wasm file that its build made".to_owned())))
            }
            Self::Load(error) => (error.code(), error.hint()),
        };
        ToolProblem { code: code.to_owned(), message: chain(self), hint }
    }
}

/// Does what is asked; the answer as one JSON document.
pub fn plugin_tool(tool: &PluginTool, places: &Places) -> Result<String, serde_json::Error> {
    match tool {
        PluginTool::Inspect { file } => {
            document(run(places, async |host| Ok(inspect::view(file, host.inspect(source(file)).await?))))
        }
        PluginTool::Check { file, name, cases } => {
            document(run(places, async |host| check::check(&host, file, name.as_deref(), cases, places).await))
        }
        PluginTool::Test { file, cases, update } => {
            document(run(places, async |host| test::test(&host, file, cases, *update).await))
        }
    }
}

fn document<T: Serialize>(result: Result<T, ToolError>) -> Result<String, serde_json::Error> {
    serde_json::to_string(&match result {
        Ok(answer) => Answer::Answer(answer),
        Err(error) => Answer::Error(error.problem()),
    })
}

fn run<T>(places: &Places, work: impl AsyncFnOnce(Host) -> Result<T, ToolError>) -> Result<T, ToolError> {
    let cache = Directories::find(places)?.compiled_plugins();
    let program = std::env::current_exe().map_err(ToolError::Program)?;
    let host = Host::new(HostOptions::new(cache, program))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(ToolError::Runtime)?.block_on(work(host))
}

/// A file that somebody takes for a plugin.
fn source(file: &Path) -> Source {
    Source::File { path: file.to_owned(), sha256: None }
}
