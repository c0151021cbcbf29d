//! Implements `agentd plugin-tool`, the tools for plugin authors that need the plugin host. They inspect a component,
//! compare it with its grant, and run it on recorded answers. `agentctl plugin` runs `agentd plugin-tool`, and prints
//! the resulting document.
//!
//! The tools involve no session and need no running daemon.

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
use agentd_plugin_host::{Host, HostError, HostOptions, LoadError, Source};
use serde::Serialize;

use agentd_api::chain;
use agentd_host::directories::{Directories, DirectoryError, DirectoryOptions};
use agentd_plugin_set::SettingError;

/// A subcommand of the tools.
#[derive(Debug)]
pub enum PluginTool {
    /// Describes a component file.
    Inspect { file: PathBuf },
    /// Compares a component with its declaration in the configuration, which is found by `name` or by the file.
    /// Reports whether the component would load, and each refusal. The cases show which variables a provider sets.
    Check { file: PathBuf, name: Option<String>, cases: Vec<PathBuf> },
    /// Runs a component on cases and compares the results with the expectations. With `update`, stores the results as
    /// the new expectations.
    Test { file: PathBuf, cases: Vec<PathBuf>, update: bool },
}

/// Reason why a tool has no result.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot find agentd's own program, which compiles plugins")]
    Program(#[source] io::Error),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("the configuration has mistakes: {0}")]
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
            Self::Case { .. } => ("case", Some("run the case with `agentctl plugin test` first".to_owned())),
            Self::Runtime(_) | Self::Program(_) | Self::Host(_) => ("host", None),
            Self::Load(error @ (LoadError::Read { .. } | LoadError::NotComponent { .. })) => (
                error.code(),
                error.hint().or_else(|| Some("name the .wasm file that the plugin's build created".to_owned())),
            ),
            Self::Load(error) => (error.code(), error.hint()),
        };
        ToolProblem { code: code.to_owned(), message: chain(self), hint }
    }
}

/// Runs a subcommand. Returns its answer as one JSON document.
pub fn plugin_tool(tool: &PluginTool, places: &DirectoryOptions) -> Result<String, serde_json::Error> {
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

fn run<T>(places: &DirectoryOptions, work: impl AsyncFnOnce(Host) -> Result<T, ToolError>) -> Result<T, ToolError> {
    let cache = Directories::find(places)?.compiled_plugins();
    let program = std::env::current_exe().map_err(ToolError::Program)?;
    let host = Host::new(HostOptions::new(cache, program))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(ToolError::Runtime)?.block_on(work(host))
}

/// Returns the source of a file that may be a plugin.
fn source(file: &Path) -> Source {
    Source::File { path: file.to_owned(), sha256: None }
}
