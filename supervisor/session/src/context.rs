//! Looks for the files of a session's context.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agentd_api::context::{Context, FILES};
use agentd_host::capability::{Machine, PathState};
use async_recursion::async_recursion as boxed;

/// Time limit of the look at all files of a context. A file server that does not answer delays a launch no longer.
const LOOKED_UP: Duration = Duration::from_secs(2);

/// Returns the files of a context that do not exist. A file that cannot be examined counts as existing.
#[boxed]
pub async fn missing_files(machine: &Machine, context: &Context) -> Vec<String> {
    let Some(files) = context.sets.get(FILES) else { return Vec::new() };
    let paths: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    let states = machine.path_states(paths, Instant::now() + LOOKED_UP, |_| false).await;
    let states = files.iter().zip(states).filter(|(_, state)| matches!(state, PathState::Absent));
    states.map(|(file, _)| file.clone()).collect()
}
