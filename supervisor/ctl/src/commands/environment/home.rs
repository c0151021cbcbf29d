//! Compares the homes of this terminal and of the session. If they differ, the login shell read other start-up
//! files.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use agentd_api::environment::EnvironmentView;
use serde::Serialize;

use super::terminal::Terminal;

/// Difference between `HOME` of this terminal and `HOME` of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct HomeDiffers {
    reason: &'static str,
    terminal: PathBuf,
    agent: PathBuf,
    /// Step that set the agent's home.
    set_by: String,
    message: String,
}

impl HomeDiffers {
    /// Compares the two homes. Returns `None` if one is not set, or if both name one directory.
    pub(super) fn find(terminal: &Terminal, view: &EnvironmentView) -> Option<Self> {
        let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        let here = terminal.get("HOME").filter(|home| !home.is_empty()).map(|home| path(home))?;
        let variable = view.variables.iter().find(|variable| variable.name == "HOME")?;
        let agents = path(variable.value.as_ref()?.as_bytes());
        let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if place(&here) == place(&agents) {
            return None;
        }
        let message = format!(
            "HOME of this terminal is {}, and the agent's is {}, set by {}: \
             its login shell reads the start-up files there; environment.home in agentd.toml names another home",
            here.display(),
            agents.display(),
            variable.provider
        );
        Some(Self { reason: "HomeDiffers", terminal: here, agent: agents, set_by: variable.provider.clone(), message })
    }

    /// Formats the difference as one line.
    pub(super) fn line(&self) -> String {
        format!("{}: {}", self.reason, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_of_one_home_are_one_and_two_homes_are_told_with_both_places() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (directory.path().join("real"), directory.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let view: EnvironmentView = serde_json::from_value(serde_json::json!({
            "captured": "2026-01-01T00:00:00Z", "launch": 1, "digest": "",
            "variables": [{ "name": "HOME", "value": real, "provider": "snapshot", "step": 1 }],
        }))
        .unwrap();
        let of = |home: Option<&Path>| {
            let home = home.map(|home| ("HOME".to_owned(), home.as_os_str().as_bytes().to_vec()));
            HomeDiffers::find(&home.into_iter().collect(), &view)
        };
        assert_eq!((of(None), of(Some(Path::new(""))), of(Some(&link))), (None, None, None));
        let said = of(Some(Path::new("/other"))).unwrap().line();
        for part in ["HomeDiffers", "/other", &real.display().to_string(), "snapshot", "environment.home"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
