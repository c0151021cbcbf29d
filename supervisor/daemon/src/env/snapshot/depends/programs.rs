//! What a login depends on because its start-up files use what programs print, as in `eval "$(tool init)"`: the program's file where `PATH`
//! has it, the places where a better one could appear, and the tool's own configuration.
//!
//! The configuration is a table of facts, each from the tool's documentation. What else a tool reads is not known here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::env::snapshot::fingerprint::Watched;

/// More programs than start-up files use.
const MOST: usize = 100;
/// A longer `PATH` is looked at as far as this.
const DIRECTORIES: usize = 40;

/// A tool, and what it reads of its user: below the home, in the directory or file of a variable, or of the machine.
struct Tool {
    names: &'static [&'static str],
    at_home: &'static [&'static str],
    /// Variables that name a file.
    variables: &'static [&'static str],
    /// Variables that name a directory, with files in it.
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

/// The directories that a login's programs are looked for in: first those of its end, then those of its beginning.
pub(super) struct Paths {
    pub(super) end: Option<String>,
    pub(super) begin: Option<String>,
}

/// The files of programs that are run for what they print, and their configuration.
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

/// Where programs are that are only looked for.
pub(super) fn asked(names: &BTreeSet<String>, paths: &Paths) -> Vec<Watched> {
    names.iter().take(MOST).flat_map(|name| places(name, paths, Watched::Presence)).collect()
}

/// What programs are given whose output is evaluated. Of a directory or a socket it counts that it is there.
pub(super) fn arguments(files: Vec<PathBuf>) -> Vec<Watched> {
    files
        .into_iter()
        .map(|file| if file.is_file() { Watched::Content(file) } else { Watched::Presence(file) })
        .collect()
}

/// The file that `PATH` has for a program, as `found` says, and each place before it, where another would go before it.
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
