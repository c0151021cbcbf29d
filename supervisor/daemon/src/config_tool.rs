//! The tools for who writes a configuration: its mistakes, its values with their places, and where it is looked for. `agentctl config` runs
//! `agentd config-tool` for them, and shows the document that comes.
//!
//! No daemon is asked, and none needs to run. The files are read by the same code that a daemon reads them with.

use std::path::PathBuf;

use agentd_api::configuration::{
    ConfigurationCheck, ConfigurationPath, ConfigurationPaths, ConfigurationShow, Mistake,
};
use agentd_api::plugin_tool::{Answer, ToolProblem};
use serde::Serialize;

use crate::config::{self, Loaded, Sources};
use crate::directories::{Directories, DirectoryError, Places};
use crate::message::chain;
use crate::tcp;

/// What is asked.
#[derive(Debug)]
pub enum ConfigTool {
    /// The mistakes of the configuration, or of what it would be with these files.
    Check {
        /// Each is read in the place of the user's own file.
        files: Vec<PathBuf>,
        /// The files are an administrator's: each is read beside the others of the system directory.
        system: bool,
    },
    /// Every value with its place.
    Show,
    /// Where the files are looked for.
    Path,
}

/// Does what is asked; the answer as one JSON document.
pub fn config_tool(tool: &ConfigTool, places: &Places, file: Option<PathBuf>) -> Result<String, serde_json::Error> {
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

fn sources(places: &Places, file: Option<PathBuf>) -> Result<Sources, DirectoryError> {
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

/// The mistakes in the files, and what they name that is not there.
fn checked(loaded: &Loaded) -> ConfigurationCheck {
    let mut mistakes = loaded.read.mistakes.clone();
    mistakes.extend(tcp::check_token(&loaded.config).err().map(|error| error.mistake(&loaded.read, None)));
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
