//! Host calls for plugins on the real machine, with real programs, files, peers and mounts. Some peers and mounts do
//! not answer.

mod command;
mod file;
mod hanging;
mod network;
mod plugin;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_host::capability::Machine;
use agentd_plugin_host::Places;
use tempfile::TempDir;

use crate::harness::{paths, process};

/// Machine with a new directory as `{cwd}`. Dropping it kills all processes of the directory.
struct Here {
    machine: Machine,
    places: Places,
    directory: TempDir,
}

impl Here {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let places =
            Places { cwd: Some(directory.path().canonicalize().unwrap().display().to_string()), ..Places::default() };
        Self { machine: Machine::new(std::path::PathBuf::from(paths::keeper())), places, directory }
    }

    fn path(&self) -> &Path {
        Path::new(self.places.cwd.as_deref().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Returns the path of a file in the directory, as text.
    fn name(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        process::kill_all_of(self.directory.path());
    }
}

/// Returns a time that no test reaches.
fn later() -> Instant {
    Instant::now() + crate::harness::LIMIT
}

fn within(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

fn anything(_: &str) -> bool {
    true
}
