//! Finds dependencies of programs whose output start-up files use, as in `eval "$(tool init)"`. These are the
//! program's file in `PATH`, the earlier places in `PATH`, and the tool's own configuration.
//!
//! The configuration is a table of facts from each tool's documentation. Other files that a tool reads are unknown
//! here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::snapshot::fingerprint::Watched;

/// Maximum number of programs. Start-up files use fewer.
const MOST: usize = 100;
/// Maximum number of `PATH` entries that are searched.
const DIRECTORIES: usize = 40;

/// A tool and its configuration: below the home directory, in the file or directory that a variable names, or
/// system-wide.
struct Tool {
    names: &'static [&'static str],
    at_home: &'static [&'static str],
    /// Variables that name a file.
    variables: &'static [&'static str],
    /// Variables that name a directory, with the names of files in it.
    below: &'static [(&'static str, &'static [&'static str])],
    machine: &'static [&'static str],
}

const fn tool(names: &'static [&'static str], at_home: &'static [&'static str]) -> Tool {
    Tool { names, at_home, variables: &[], below: &[], machine: &[] }
}

const TOOLS: [Tool; 19] = [
    Tool { variables: &["STARSHIP_CONFIG"], ..tool(&["starship"], &[".config/starship.toml"]) },
    Tool {
        variables: &["MISE_GLOBAL_CONFIG_FILE"],
        machine: &["/etc/mise/config.toml"],
        ..tool(&["mise", "rtx"], &[".config/mise.toml", ".config/mise/config.toml", ".tool-versions", "mise.toml"])
    },
    Tool {
        variables: &["CONDARC", "MAMBARC"],
        below: &[("CONDA_PREFIX", &[".condarc"]), ("MAMBA_ROOT_PREFIX", &[".condarc", ".mambarc"])],
        machine: &["/etc/conda/.condarc"],
        ..tool(
            &["conda", "mamba", "micromamba"],
            &[".condarc", ".mambarc", ".conda/.condarc", ".config/conda/.condarc", ".conda/environments.txt"],
        )
    },
    Tool { below: &[("PYENV_ROOT", &["version"])], ..tool(&["pyenv"], &[".pyenv/version", ".python-version"]) },
    Tool { below: &[("RBENV_ROOT", &["version"])], ..tool(&["rbenv"], &[".rbenv/version", ".ruby-version"]) },
    Tool { below: &[("NODENV_ROOT", &["version"])], ..tool(&["nodenv"], &[".nodenv/version", ".node-version"]) },
    tool(&["asdf"], &[".tool-versions", ".asdfrc"]),
    tool(&["direnv"], &[".config/direnv/direnv.toml", ".config/direnv/config.toml", ".config/direnv/direnvrc"]),
    Tool {
        machine: &["/etc/homebrew/brew.env"],
        ..tool(&["brew"], &[".config/homebrew/brew.env", ".homebrew/brew.env"])
    },
    Tool { below: &[("OPAMROOT", &["config"])], ..tool(&["opam"], &[".opam/config"]) },
    Tool { variables: &["GOENV"], ..tool(&["go"], &[".config/go/env"]) },
    Tool { variables: &["NPM_CONFIG_USERCONFIG"], machine: &["/etc/npmrc"], ..tool(&["npm", "pnpm"], &[".npmrc"]) },
    tool(&["yarn"], &[".yarnrc", ".yarnrc.yml"]),
    Tool {
        variables: &["GIT_CONFIG_GLOBAL"],
        machine: &["/etc/gitconfig"],
        ..tool(&["git"], &[".gitconfig", ".config/git/config"])
    },
    tool(&["gem"], &[".gemrc"]),
    tool(&["luarocks"], &[".luarocks/config-5.1.lua", ".luarocks/config-5.3.lua", ".luarocks/config-5.4.lua"]),
    Tool { variables: &["AWS_CONFIG_FILE"], ..tool(&["aws"], &[".aws/config", ".aws/credentials"]) },
    Tool { below: &[("ATUIN_CONFIG_DIR", &["config.toml"])], ..tool(&["atuin"], &[".config/atuin/config.toml"]) },
    tool(&["xdg-user-dir"], &[".config/user-dirs.dirs"]),
];

/// Search paths of a login's programs: first the `PATH` at its end, then the `PATH` at its start.
pub(super) struct Paths {
    pub(super) end: Option<String>,
    pub(super) begin: Option<String>,
}

/// Returns the files of programs whose output is used, and their configuration.
pub(super) fn run(
    names: &BTreeSet<String>,
    paths: &Paths,
    home: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Vec<Watched> {
    let mut found = Vec::new();
    for name in names.iter().take(MOST) {
        found.extend(places(name, paths, Watched::Program));
        let program = name.rsplit('/').next().unwrap_or(name);
        for tool in TOOLS.iter().filter(|tool| tool.names.contains(&program)) {
            let by_variable = tool.variables.iter().filter_map(|name| variable(name)).map(PathBuf::from);
            let below = tool.below.iter().filter_map(|(name, files)| Some((PathBuf::from(variable(name)?), files)));
            let below = below.flat_map(|(place, files)| files.iter().map(move |file| place.join(file)));
            let all =
                tool.at_home.iter().map(|file| match (file.strip_prefix(".config/"), variable("XDG_CONFIG_HOME")) {
                    (Some(file), Some(config)) => Path::new(&config).join(file),
                    _ => home.join(file),
                });
            let all = all.chain(tool.machine.iter().map(PathBuf::from)).chain(by_variable).chain(below);
            found.extend(all.filter(|file| file.is_absolute()).map(Watched::Content));
        }
    }
    found
}

/// Returns the places of programs whose existence is only tested.
pub(super) fn asked(names: &BTreeSet<String>, paths: &Paths) -> Vec<Watched> {
    names.iter().take(MOST).flat_map(|name| places(name, paths, Watched::Presence)).collect()
}

/// Returns the arguments of programs whose output is evaluated. Only the existence of a directory or a socket
/// counts.
pub(super) fn arguments(files: Vec<PathBuf>) -> Vec<Watched> {
    files
        .into_iter()
        .map(|file| if file.is_file() { Watched::Content(file) } else { Watched::Presence(file) })
        .collect()
}

/// Returns the program's file in `PATH`, wrapped by `found`, and each earlier place where a new program would take
/// precedence.
fn places(name: &str, paths: &Paths, found: fn(PathBuf) -> Watched) -> Vec<Watched> {
    if name.starts_with('/') {
        return vec![found(name.into())];
    }
    let mut all = Vec::new();
    for path in [&paths.end, &paths.begin].into_iter().flatten() {
        for directory in std::env::split_paths(path).filter(|directory| directory.is_absolute()).take(DIRECTORIES) {
            let file = directory.join(name);
            if file.is_file() {
                all.push(found(file));
                break;
            }
            all.push(Watched::Presence(file));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_counts_where_path_has_it_with_the_places_before_it_and_its_configuration() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        for directory in ["a", "b", "c"] {
            std::fs::create_dir(at(directory)).unwrap();
        }
        std::fs::write(at("b/mise"), "x").unwrap();
        let end = std::env::join_paths([at("a"), at("b"), at("c")]).unwrap().into_string().unwrap();
        let paths = Paths { end: Some(end), begin: None };
        let names = BTreeSet::from(["mise".to_owned()]);
        let found = run(&names, &paths, home.path(), &|_| None);
        assert_eq!(found[..2], [Watched::Presence(at("a/mise")), Watched::Program(at("b/mise"))]);
        assert!(found.contains(&Watched::Content(at(".config/mise/config.toml"))), "{found:?}");
        assert_eq!(asked(&names, &paths), [Watched::Presence(at("a/mise")), Watched::Presence(at("b/mise"))]);
        let config = |name: &str| (name == "XDG_CONFIG_HOME").then(|| "/c".to_owned());
        let found = run(&BTreeSet::from(["/x/mise".to_owned()]), &paths, home.path(), &config);
        assert_eq!(found[0], Watched::Program("/x/mise".into()));
        assert!(found.contains(&Watched::Content("/c/mise/config.toml".into())), "{found:?}");
    }
}
