//! Finds gaps in a session's environment that affect the user's tools: incomplete modules, licence checks
//! whose variable was dropped, project files without effect.
//!
//! `GET /v1/sessions/{id}/validation` and `agentctl doctor` show the warnings. A launch does not look for them,
//! since few are faults of the launch.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::environment::EnvironmentView;
use agentd_api::session::SessionSpec;
use agentd_api::validation::Warning;
use async_recursion::async_recursion as boxed;

use crate::generation::Generation;
use agentd_environment::{inconsistencies, project};
use agentd_host::capability::PathState;

/// Time limit for the file system to answer about all paths.
const PLACES: Duration = Duration::from_secs(4);
/// Maximum number of bytes that are read of a file.
const MAX_BYTES: u64 = 64 << 10;

/// Returns warnings about the last launch's environment and the files of the session's directory.
#[boxed]
pub async fn missing(generation: &Generation, spec: &SessionSpec, last: &EnvironmentView) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = inconsistencies::modules(last, &spec.directory).into_iter().collect();
    for name in generation.needed(spec) {
        let check = generation.config.prerequisites.get(&name);
        warnings.extend(check.and_then(|check| inconsistencies::licence(last, &name, check, &spec.directory)));
    }
    warnings.extend(of_project(generation, spec, last).await);
    warnings
}

async fn of_project(generation: &Generation, spec: &SessionSpec, last: &EnvironmentView) -> Vec<Warning> {
    let deadline = Instant::now() + PLACES;
    let home = value(last, "HOME").map(|home| PathBuf::from(std::ffi::OsStr::from_bytes(home)));
    let candidates = project::places(&spec.directory, home.as_deref());
    let paths: Vec<PathBuf> = candidates.iter().map(|(_, path)| path.clone()).collect();
    let seen = generation.daemon.machine.path_states(paths, deadline, |_| false).await;
    let mut files = Vec::new();
    let mut names = BTreeSet::new();
    for ((rule, path), place) in candidates.into_iter().zip(seen) {
        if matches!(place, PathState::File { .. }) && names.insert(path.file_name().map(ToOwned::to_owned)) {
            files.push((rule, path));
        }
    }
    if files.is_empty() {
        return Vec::new();
    }
    let beside: Vec<PathBuf> =
        files.iter().filter_map(|(rule, file)| project::beside(rule, file, home.as_deref())).collect();
    let seen = generation.daemon.machine.path_states(beside.clone(), deadline, |_| false).await;
    let is_file = |(path, place): (PathBuf, PathState)| matches!(place, PathState::File { .. }).then_some(path);
    let there: BTreeSet<PathBuf> = beside.into_iter().zip(seen).filter_map(is_file).collect();
    let path = String::from_utf8_lossy(value(last, "PATH").unwrap_or_default()).into_owned();
    let entries: Vec<&str> = path.split(':').filter(|entry| !entry.is_empty()).collect();
    let mut programs = BTreeMap::new();
    for program in project::programs() {
        if let Some(found) = find(generation, program, &entries, &spec.directory, deadline).await {
            programs.insert(program, found);
        }
    }
    let mut texts = Vec::new();
    for (rule, path) in files {
        texts.push((rule, text(path.clone()).await, path));
    }
    let is_set = |name: &str| {
        last.variables.iter().any(|variable| variable.name == name) || last.dropped.iter().any(|one| one.name == name)
    };
    let of_program = |program: &str| programs.get(program).cloned();
    let of_agent = |name: &str| value(last, name).map(|value| String::from_utf8_lossy(value).into_owned());
    let is_there = |path: &Path| there.contains(path);
    let seen = project::EnvironmentFacts {
        path: entries,
        is_set: &is_set,
        value: &of_agent,
        is_there: &is_there,
        program: &of_program,
    };
    texts.iter().filter_map(|(rule, text, path)| project::look(rule, path, text, &seen)).collect()
}

fn value<'a>(last: &'a EnvironmentView, name: &str) -> Option<&'a [u8]> {
    let variable = last.variables.iter().find(|variable| variable.name == name)?;
    Some(variable.value.as_ref()?.as_bytes())
}

/// Finds the first program with this name in `PATH`. Returns its path as found, and its path with links resolved.
async fn find(
    generation: &Generation,
    program: &str,
    entries: &[&str],
    directory: &Path,
    deadline: Instant,
) -> Option<(PathBuf, PathBuf)> {
    let is_it = |place: &PathState| matches!(place, PathState::File { usable: true, .. });
    let candidates: Vec<PathBuf> = entries.iter().map(|entry| directory.join(entry).join(program)).collect();
    let seen = generation.daemon.machine.path_states(candidates.clone(), deadline, is_it).await;
    candidates.into_iter().zip(seen).find_map(|(candidate, place)| match place {
        PathState::File { path, usable: true } => Some((candidate, path)),
        _ => None,
    })
}

/// Returns the beginning of a file, or an empty text when the file cannot be read in time.
async fn text(path: PathBuf) -> String {
    let read = agentd_host::work::blocking(move || {
        use std::io::Read as _;
        let mut bytes = Vec::new();
        // The caller has sorted out everything but regular files.
        let file = std::fs::File::open(path)?;
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    });
    match tokio::time::timeout(PLACES, read).await {
        Ok(Ok(Ok(text))) => text,
        _ => String::new(),
    }
}
