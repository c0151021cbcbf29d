//! Implements `GET /v1/directories`, which completes the path of a directory.

use std::path::PathBuf;

use agentd_api::directories::{DirectoryList, LISTED_DIRECTORIES};
use agentd_api::{Code, Problem};
use agentd_host::workspace;

use super::handlers::Answer;
use super::json;
use super::router::Context;

/// Lists the directories whose paths begin with `path`. Names that begin with a dot are listed only if they are asked
/// for.
pub(super) async fn directories(context: &Context, path: Option<String>) -> Answer {
    let (directory, prefix) = split(context, &path.unwrap_or_else(|| "~/".to_owned()))?;
    let machine = &context.generation.daemon.machine;
    let listed = workspace::subdirectories(machine, &directory, &prefix, LISTED_DIRECTORIES).await;
    let found = listed.map_err(|error| error.problem())?;
    json(&DirectoryList { directory, directories: found.paths, more: found.is_cut })
}

/// Splits a path into its directory and the beginning of the name in that directory.
fn split(context: &Context, path: &str) -> Result<(PathBuf, String), Problem> {
    let path = if path == "~" { "~/" } else { path };
    let whole = match path.strip_prefix("~/") {
        Some(rest) => {
            let home = context.generation.config.environment.home_directory().ok_or_else(|| {
                Problem::new(Code::NoSuchDirectory, "this user has no home directory").hint("give an absolute path")
            })?;
            format!("{}/{rest}", home.display())
        }
        None => path.to_owned(),
    };
    let (directory, prefix) = whole.rsplit_once('/').unwrap_or(("", &whole));
    // A path without a slash is relative, and is refused as such.
    let directory = match directory {
        "" if whole.starts_with('/') => "/",
        "" => &whole,
        directory => directory,
    };
    Ok((PathBuf::from(directory), prefix.to_owned()))
}
