//! A person's home on a machine without a service: `agentctl` starts the daemon.

use std::path::Path;
use std::process::Command;

use super::{paths, process};

/// A home of its own, and the directories of the XDG Base Directory Specification in it. Dropping it kills its daemon.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("agentd-").tempdir().expect("a temporary directory");
        let root = directory.path();
        for name in ["run", "config/agentd", "home", "work"] {
            std::fs::create_dir_all(root.join(name)).expect("the temporary directory is empty");
        }
        let config = format!("[environment]\nhome = \"{}\"\nshell = \"/bin/bash\"\n", root.join("home").display());
        std::fs::write(root.join("config/agentd/agentd.toml"), config).expect("the configuration is written");
        Self(directory)
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// Returns `agentctl` without arguments. It starts the daemon of this home.
    pub(crate) fn agentctl(&self) -> Command {
        let mut command = Command::new(paths::agentctl());
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.root().join("home"))
            .env("XDG_RUNTIME_DIR", self.root().join("run"))
            .env("XDG_CONFIG_HOME", self.root().join("config"))
            .env("XDG_STATE_HOME", self.root().join("state"))
            .env("XDG_CACHE_HOME", paths::kept().join("xdg-cache"))
            .current_dir(self.root().join("work"))
            .stdin(std::process::Stdio::null());
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        process::kill_all_of(self.root());
    }
}
