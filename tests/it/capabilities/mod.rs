//! What the host does for plugins, on the machine as it is: real programs, files, peers and mounts, and those of them that do not answer.

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

use crate::harness::process;

const KEEPER: &str = env!("CARGO_BIN_EXE_agentd-keeper");

/// A directory, where `{cwd}` is, and what is done there. Whatever is left of it in the end is killed.
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
        Self { machine: Machine::new(KEEPER.into()), places, directory }
    }

    fn path(&self) -> &Path {
        Path::new(self.places.cwd.as_deref().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The path of something here, as text.
    fn name(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        process::kill_all_of(self.directory.path());
    }
}

/// Longer than anything takes.
fn later() -> Instant {
    Instant::now() + crate::harness::LIMIT
}

fn within(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

fn anything(_: &str) -> bool {
    true
}
