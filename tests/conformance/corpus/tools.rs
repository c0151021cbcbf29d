//! Where the programs are that cases need: in a package of Debian, or where a variable that `.ci/run` exports says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::harness::require;

/// A program's name in cases, its file, and the package that brings it.
const PACKAGED: [(&str, &str, &str); 16] = [
    ("antigen", "/usr/share/zsh-antigen/antigen.zsh", "zsh-antigen"),
    ("autojump", "/usr/share/autojump/autojump.sh", "autojump"),
    ("direnv", "/usr/bin/direnv", "direnv"),
    ("fish", "/usr/bin/fish", "fish"),
    ("fzf", "/usr/bin/fzf", "fzf"),
    ("keychain", "/usr/bin/keychain", "keychain"),
    ("modules", "/usr/share/modules/init/bash", "environment-modules"),
    ("rbenv", "/usr/bin/rbenv", "rbenv"),
    ("screen", "/usr/bin/screen", "screen"),
    ("tmux", "/usr/bin/tmux", "tmux"),
    ("venv", "/usr/bin/python3", "python3-venv"),
    ("virtualenvwrapper", "/usr/share/virtualenvwrapper/virtualenvwrapper.sh", "virtualenvwrapper"),
    ("zoxide", "/usr/bin/zoxide", "zoxide"),
    ("zsh", "/usr/bin/zsh", "zsh"),
    ("zsh-autosuggestions", "/usr/share/zsh-autosuggestions/zsh-autosuggestions.zsh", "zsh-autosuggestions"),
    (
        "zsh-syntax-highlighting",
        "/usr/share/zsh-syntax-highlighting/zsh-syntax-highlighting.zsh",
        "zsh-syntax-highlighting",
    ),
];

/// The rest: a name, and the variable that says where it is.
const CACHED: [(&str, &str); 4] = [
    ("mise", "AGENTD_TEST_MISE"),
    ("n", "AGENTD_TEST_N"),
    ("pure", "AGENTD_TEST_PURE"),
    ("spaceship", "AGENTD_TEST_SPACESHIP"),
];

/// Returns the path of each tool, or `None` if a tool is missing, which the test reports.
pub(super) fn find(names: &[String]) -> Option<BTreeMap<String, PathBuf>> {
    names.iter().map(|name| Some((name.clone(), place(name)?))).collect()
}

fn place(name: &str) -> Option<PathBuf> {
    if let Some((_, file, package)) = PACKAGED.iter().find(|(packaged, ..)| *packaged == name) {
        return require::shell_file(file, package);
    }
    if name == "lmod" {
        return require::lmod();
    }
    let (_, variable) = CACHED.iter().find(|(cached, _)| *cached == name).unwrap_or_else(|| panic!("no tool {name}"));
    let named = std::env::var_os(variable).map(PathBuf::from);
    match named {
        Some(file) => require::shell_file(&file.to_string_lossy(), name),
        None => require::shell_file(&format!("/usr/local/bin/{name}"), &format!("{name} ({variable})")),
    }
    .filter(|file| Path::new(file).exists())
}
