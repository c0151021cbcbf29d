//! Implements `agentd config-tool`, the tools for authors of a configuration. They list mistakes, list values with
//! their places, and list the paths of the files. `agentctl config` runs `agentd config-tool`, and prints the
//! resulting document.
//!
//! The tools need no running daemon. They read the files with the daemon's own code.

use std::path::PathBuf;

use agentd_api::configuration::{
    ConfigurationCheck, ConfigurationPath, ConfigurationPaths, ConfigurationShow, Mistake,
};
use agentd_api::plugin_tool::{Answer, ToolProblem};
use serde::Serialize;

use agentd_api::chain;
use agentd_config::{self as config, Loaded, Sources};
use agentd_control as tcp;
use agentd_host::directories::{Directories, DirectoryError, DirectoryOptions};

/// A subcommand of the tools.
#[derive(Debug)]
pub enum ConfigTool {
    /// Lists the mistakes of the configuration, optionally with these files.
    Check {
        /// Each file is read instead of the user's own file.
        files: Vec<PathBuf>,
        /// Whether the files belong to an administrator. Each is then read beside the other files of the system
        /// directory.
        system: bool,
    },
    /// Lists every value with its place.
    Show,
    /// Lists the paths of the configuration files.
    Path,
}

/// Runs a subcommand. Returns its answer as one JSON document.
pub fn config_tool(
    tool: &ConfigTool,
    places: &DirectoryOptions,
    file: Option<PathBuf>,
) -> Result<String, serde_json::Error> {
    let sources = match sources(places, file) {
        Ok(sources) => sources,
        Err(error) => {
            let problem = ToolProblem { code: "directory".to_owned(), message: chain(&error), hint: None };
            return serde_json::to_string(&Answer::<()>::Error(problem));
        }
    };
    match tool {
        ConfigTool::Check { files, system } => document(check(&sources, files, *system)),
        ConfigTool::Show => document(show(&sources)),
        ConfigTool::Path => document(paths(&sources)),
    }
}

fn document<T: Serialize>(answer: T) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Answer::Answer(answer))
}

fn sources(places: &DirectoryOptions, file: Option<PathBuf>) -> Result<Sources, DirectoryError> {
    Directories::find(places).map(|directories| directories.sources(file))
}

fn check(sources: &Sources, files: &[PathBuf], system: bool) -> ConfigurationCheck {
    if files.is_empty() {
        return checked(&config::load(sources));
    }
    let mut all = ConfigurationCheck::default();
    for file in files {
        let loaded = if system {
            config::load_with(sources, file)
        } else {
            config::load(&Sources { user: file.clone(), named: true, ..sources.clone() })
        };
        let found = checked(&loaded);
        let is_new = |path: &PathBuf| !all.files.contains(path);
        let new: Vec<PathBuf> = found.files.into_iter().filter(is_new).collect();
        all.files.extend(new);
        let new: Vec<Mistake> = found.mistakes.into_iter().filter(|mistake| !all.mistakes.contains(mistake)).collect();
        all.mistakes.extend(new);
        let new: Vec<Mistake> = found.warnings.into_iter().filter(|warning| !all.warnings.contains(warning)).collect();
        all.warnings.extend(new);
    }
    all
}

/// Returns the mistakes in the files, and warnings for directories that do not exist.
fn checked(loaded: &Loaded) -> ConfigurationCheck {
    let mut mistakes = loaded.read.mistakes.clone();
    mistakes.extend(tcp::check_token(&loaded.config).err().map(|error| error.mistake(&loaded.read, None)));
    mistakes.extend(tcp::check_read_only(&loaded.config).err().map(|error| error.mistake(&loaded.read, None)));
    let warnings = config::missing_directories(&loaded.config, &loaded.read);
    ConfigurationCheck { files: loaded.read.files.clone(), mistakes, warnings }
}

fn show(sources: &Sources) -> ConfigurationShow {
    let Loaded { read, .. } = config::load(sources);
    ConfigurationShow { values: read.values(), files: read.files, mistakes: read.mistakes }
}

fn paths(sources: &Sources) -> ConfigurationPaths {
    let path = |path: PathBuf, owner: &str| ConfigurationPath { exists: path.exists(), path, owner: owner.to_owned() };
    let administrator = "administrator";
    let mut paths = vec![path(sources.system.join("agentd.toml"), administrator)];
    let drop_ins = sources.system.join("conf.d");
    let found = config::drop_ins(&drop_ins);
    paths.push(path(drop_ins, administrator));
    paths.extend(found.into_iter().map(|file| path(file, administrator)));
    paths.push(path(sources.user.clone(), "user"));
    ConfigurationPaths { paths }
}
