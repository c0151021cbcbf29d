//! Finds the files in which version managers record the default version. A changed default changes the environment,
//! although no start-up file changed.
//!
//! The table holds facts from each manager's documentation. A manager counts if its directory exists.

use std::path::{Path, PathBuf};

use crate::snapshot::fingerprint::Watched;

/// One version manager.
struct Manager {
    /// Variable that names the manager's directory.
    variable: &'static str,
    /// Default directory below the home directory. It counts only if it exists.
    place: &'static str,
    /// Files below the manager's directory.
    files: &'static [&'static str],
    /// Further files below the home directory.
    at_home: &'static [&'static str],
    /// Directory whose subdirectories each hold a link to the current version, and the name of that link.
    links: Option<(&'static str, &'static str)>,
}

const fn manager(variable: &'static str, place: &'static str, files: &'static [&'static str]) -> Manager {
    Manager { variable, place, files, at_home: &[], links: None }
}

const MANAGERS: [Manager; 17] = [
    manager("NVM_DIR", ".nvm", &["alias", "alias/default"]),
    manager("PYENV_ROOT", ".pyenv", &["version"]),
    manager("RBENV_ROOT", ".rbenv", &["version"]),
    manager("NODENV_ROOT", ".nodenv", &["version"]),
    manager("GOENV_ROOT", ".goenv", &["version"]),
    manager("PLENV_ROOT", ".plenv", &["version"]),
    manager("PHPENV_ROOT", ".phpenv", &["version"]),
    manager("JENV_ROOT", ".jenv", &["version"]),
    manager("TFENV_CONFIG_DIR", ".tfenv", &["version"]),
    manager("RUSTUP_HOME", ".rustup", &["settings.toml"]),
    manager("VOLTA_HOME", ".volta", &["tools/user/platform.json"]),
    manager("FNM_DIR", ".local/share/fnm", &["aliases", "aliases/default"]),
    manager("MISE_CONFIG_DIR", ".config/mise", &["config.toml", "config.local.toml", "conf.d"]),
    Manager { at_home: &[".tool-versions", ".asdfrc"], ..manager("ASDF_DATA_DIR", ".asdf", &["plugins"]) },
    Manager { links: Some(("candidates", "current")), ..manager("SDKMAN_DIR", ".sdkman", &["etc/config"]) },
    Manager { at_home: &[".condarc"], ..manager("CONDA_ROOT", ".conda", &["environments.txt", ".condarc"]) },
    manager("LMOD_SYSTEM_DEFAULT_MODULES_DIR", ".lmod.d", &["default"]),
];

/// Files in the home directory itself in which tools record defaults.
const AT_HOME: [(&str, &[&str]); 2] =
    [("mise", &[".tool-versions", ".mise.toml", "mise.toml"]), ("asdf", &[".tool-versions"])];

/// Returns the files that record default versions, for the managers that exist.
pub(super) fn defaults(home: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Vec<Watched> {
    let mut found = Vec::new();
    for manager in &MANAGERS {
        let named = variable(manager.variable).filter(|value| value.starts_with('/')).map(PathBuf::from);
        let place = named.unwrap_or_else(|| home.join(manager.place));
        if !place.is_dir() {
            continue;
        }
        found.extend(manager.files.iter().map(|file| place.join(file)));
        found.extend(manager.at_home.iter().map(|file| home.join(file)));
        if let Some((directory, link)) = manager.links {
            let candidates = std::fs::read_dir(place.join(directory)).into_iter().flatten().flatten();
            found.extend(candidates.map(|candidate| candidate.path().join(link)));
        }
    }
    let path = variable("PATH").unwrap_or_default();
    let of_path = AT_HOME.iter().filter(|(tool, _)| path.split('/').any(|part| part.trim_start_matches('.') == *tool));
    found.extend(of_path.flat_map(|(_, files)| files.iter().map(|file| home.join(file))));
    found.into_iter().map(Watched::Content).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_defaults_of_installed_managers_count() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        let of = |variables: &[(&str, String)]| {
            let variable =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
            let found = defaults(home.path(), &variable);
            found.into_iter().map(|one| one.path().to_owned()).collect::<Vec<_>>()
        };
        assert!(of(&[]).is_empty());
        for directory in [".nvm", ".sdkman/candidates/java", "elsewhere"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        let found = of(&[("PYENV_ROOT", at("elsewhere").display().to_string())]);
        for expected in [".nvm/alias/default", ".sdkman/candidates/java/current", "elsewhere/version"] {
            assert!(found.contains(&at(expected)), "{expected}: {found:?}");
        }
        assert!(!found.contains(&at(".rbenv/version")));
        let shims = format!("{}:/usr/bin", at(".local/share/mise/shims").display());
        assert!(of(&[("PATH", shims)]).contains(&at(".tool-versions")));
    }
}
