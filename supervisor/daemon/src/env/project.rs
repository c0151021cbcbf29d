//! Files with which a project says what it is built with, and whether the session's environment honours them.
//!
//! The rules are pure: which files and programs there are comes in as data, and nothing is run. A file is honoured if the environment
//! shows what its tool leaves behind, whichever step did it. The nearest file of a name counts, as for the tools themselves.

use std::path::{Path, PathBuf};

use agentd_api::doctor::shell_word;
use agentd_api::validation::Warning;

use super::validate::warning;

/// How a file's tool leaves traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trace {
    /// This program is of a version that the file names, or is chosen when it runs.
    Version(&'static [&'static str]),
    /// An entry of `PATH` has one of these parts.
    Entry(&'static [&'static str]),
    /// One of these variables is set, or was set and dropped.
    Variable(&'static [&'static str]),
}

/// One kind of file.
#[derive(Debug)]
pub(crate) struct Rule {
    name: &'static str,
    tool: &'static str,
    traces: &'static [Trace],
    /// A line for a script of bash.
    line: &'static str,
}

const NODE: &[&str] = &["node"];
const PYTHON: &[&str] = &["python3", "python"];
const RUBY: &[&str] = &["ruby"];
const OF_MISE: &[&str] = &["/mise/installs/", "/mise/shims"];

/// `rust-toolchain.toml` is not among them: rustup's own `cargo` and `rustc` read it when they run.
static RULES: &[Rule] = &[
    Rule {
        name: ".nvmrc",
        tool: "nvm",
        traces: &[Trace::Version(NODE)],
        line: ". \"${NVM_DIR:-$HOME/.nvm}/nvm.sh\" && nvm use",
    },
    Rule {
        name: ".node-version",
        tool: "fnm or nodenv",
        traces: &[Trace::Version(NODE)],
        line: "eval \"$(fnm env --shell bash)\" && fnm use",
    },
    Rule {
        name: ".tool-versions",
        tool: "asdf or mise",
        traces: &[
            Trace::Entry(&["/.asdf/shims", "/asdf/shims", "/asdf/installs/", "/.asdf/installs/"]),
            Trace::Entry(OF_MISE),
        ],
        line: "eval \"$(mise env -s bash)\"",
    },
    Rule { name: "mise.toml", tool: "mise", traces: &[Trace::Entry(OF_MISE)], line: "eval \"$(mise env -s bash)\"" },
    Rule { name: ".mise.toml", tool: "mise", traces: &[Trace::Entry(OF_MISE)], line: "eval \"$(mise env -s bash)\"" },
    Rule {
        name: ".envrc",
        tool: "direnv",
        traces: &[Trace::Variable(&["DIRENV_DIR", "DIRENV_FILE", "DIRENV_DIFF"])],
        line: "eval \"$(direnv export bash)\"",
    },
    Rule {
        name: "environment.yml",
        tool: "conda",
        traces: &[Trace::Variable(&["CONDA_PREFIX"])],
        line: "eval \"$(conda shell.bash hook)\" && conda activate NAME",
    },
    Rule {
        name: ".python-version",
        tool: "pyenv",
        traces: &[Trace::Version(PYTHON), Trace::Variable(&["VIRTUAL_ENV", "CONDA_PREFIX"])],
        line: "export PATH=\"${PYENV_ROOT:-$HOME/.pyenv}/shims:$PATH\"",
    },
    Rule {
        name: ".ruby-version",
        tool: "rbenv",
        traces: &[Trace::Version(RUBY)],
        line: "export PATH=\"${RBENV_ROOT:-$HOME/.rbenv}/shims:$PATH\"",
    },
    Rule {
        name: ".sdkmanrc",
        tool: "SDKMAN",
        traces: &[Trace::Entry(&["/.sdkman/candidates/"])],
        line: ". \"$HOME/.sdkman/bin/sdkman-init.sh\" && sdk env",
    },
    Rule {
        name: "flake.nix",
        tool: "nix",
        traces: &[Trace::Variable(&["IN_NIX_SHELL"])],
        line: "eval \"$(nix print-dev-env)\"",
    },
    Rule {
        name: "shell.nix",
        tool: "nix",
        traces: &[Trace::Variable(&["IN_NIX_SHELL"])],
        line: "eval \"$(nix print-dev-env -f shell.nix)\"",
    },
];

/// Places in which tools put programs that choose the version when they run.
const SHIMS: [&str; 4] = ["/shims/", "/.volta/bin/", "/.proto/shims/", "/.cargo/bin/"];

/// Where the files of a session's directory may be, the nearest first: up to the home directory, which is not the project's.
pub(crate) fn places(directory: &Path, home: Option<&Path>) -> Vec<(&'static Rule, PathBuf)> {
    let is_home = Some(directory) == home;
    let above = directory.ancestors().skip(1).take_while(|place| Some(*place) != home && place.parent().is_some());
    let around = std::iter::once(directory).chain(above.filter(move |_| !is_home));
    around.flat_map(|place| RULES.iter().map(move |rule| (rule, place.join(rule.name)))).collect()
}

/// The programs that say which version is used.
pub(crate) fn programs() -> impl Iterator<Item = &'static str> {
    [NODE, PYTHON, RUBY].concat().into_iter()
}

/// What an environment has, as far as the rules look.
pub(crate) struct Seen<'a> {
    /// The entries of `PATH`.
    pub(crate) path: Vec<&'a str>,
    /// Whether a step set a variable, also where a later one dropped it.
    pub(crate) is_set: &'a dyn Fn(&str) -> bool,
    /// A program's place in `PATH`, as it is found there and with links followed.
    pub(crate) program: &'a dyn Fn(&str) -> Option<(PathBuf, PathBuf)>,
}

/// Says of a file whether it is honoured; `content` is its text.
pub(crate) fn look(rule: &Rule, file: &Path, content: &str, seen: &Seen<'_>) -> Option<Warning> {
    // Without nix on the machine the file is for other people.
    let is_of_nix = rule.tool == "nix";
    if is_of_nix && !seen.path.iter().any(|entry| entry.contains("/nix/") || entry.contains("/.nix-profile")) {
        return None;
    }
    if rule.traces.iter().any(|trace| shows(*trace, content, seen)) {
        return None;
    }
    let wanted = wanted(content).filter(|_| rule.traces.iter().any(|trace| matches!(trace, Trace::Version(_))));
    let wanted = wanted.map(|wanted| format!(" asks for {wanted}, and")).unwrap_or_default();
    let found = rule.traces.iter().find_map(|trace| match trace {
        Trace::Version(programs) => Some(programs),
        Trace::Entry(_) | Trace::Variable(_) => None,
    });
    let instead = match found {
        Some(programs) => match programs.iter().find_map(|program| (seen.program)(program)) {
            Some((place, _)) => format!("the agent's {} is {}", programs[0], place.display()),
            None => format!("the agent has no {}", programs[0]),
        },
        None => format!("nothing in the environment is of {}", rule.tool),
    };
    let directory = file.parent().unwrap_or(file);
    let script = directory.join(".agentd-env.sh");
    let name = shell_word(&directory.to_string_lossy());
    let line = match conda_name(content).filter(|_| rule.tool == "conda") {
        Some(name) => rule.line.replace("NAME", &shell_word(name)),
        None => rule.line.to_owned(),
    };
    let message = format!(
        "{}{wanted} no step honours it: {instead}; write `{line}` into {}, then run `agentctl env allow {name}`",
        file.display(),
        script.display(),
    );
    let message = if wanted.is_empty() { message.replacen(" no step", " is there, and no step", 1) } else { message };
    Some(warning("ProjectFileNotHonoured", file, message))
}

fn shows(trace: Trace, content: &str, seen: &Seen<'_>) -> bool {
    match trace {
        Trace::Variable(names) => {
            names.iter().any(|name| (seen.is_set)(name))
                || (names.contains(&"DIRENV_DIR") && has_exports(content, seen))
        }
        Trace::Entry(parts) => seen.path.iter().any(|entry| parts.iter().any(|part| entry.contains(part))),
        Trace::Version(programs) => programs
            .iter()
            .find_map(|program| (seen.program)(program))
            .is_some_and(|(place, real)| is_version(content, &place) || is_version(content, &real)),
    }
}

/// Whether all variables that a `.envrc` exports plainly are set, and there is one.
fn has_exports(content: &str, seen: &Seen<'_>) -> bool {
    let names =
        content.lines().filter_map(|line| line.trim().strip_prefix("export ")?.split_once('=').map(|(name, _)| name));
    let names: Vec<&str> = names.filter(|name| *name != "PATH").collect();
    !names.is_empty() && names.iter().all(|name| (seen.is_set)(name))
}

/// Whether a program at this place is of the version that the file names, or finds that out when it runs.
fn is_version(content: &str, place: &Path) -> bool {
    let text = place.to_string_lossy();
    let Some(wanted) = wanted(content) else { return false };
    // nvm's word for whatever is installed beside it.
    if wanted == "system" || SHIMS.iter().any(|shims| text.contains(shims)) {
        return true;
    }
    let mut versions = text.split('/').filter_map(version);
    let Some(wanted) = version(wanted) else {
        // An alias, as `lts/*`: a managed version is taken to be it.
        return versions.next().is_some();
    };
    let begins = |whole: &str, part: &str| whole.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
    if versions.any(|version| version == wanted || begins(version, wanted)) {
        return true;
    }
    // `python3.12` says less than 3.12.4; `python3` says nothing.
    let name = place.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let of_name = name.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    of_name.contains('.') && (of_name == wanted || begins(wanted, of_name) || begins(of_name, wanted))
}

/// The first word of a file's first line that says something.
fn wanted(content: &str) -> Option<&str> {
    let lines = content.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).next()
}

/// A part of a path or a word as a version, as `v20.11.0`, `20` or `node-20.11.0`.
fn version(part: &str) -> Option<&str> {
    let part = part
        .rsplit_once('-')
        .map_or(part, |(before, after)| if before.starts_with(char::is_numeric) { part } else { after });
    let part = part.strip_prefix('v').unwrap_or(part);
    let is_one = part.starts_with(|c: char| c.is_ascii_digit()) && part.chars().all(|c| c.is_ascii_digit() || c == '.');
    is_one.then_some(part)
}

/// The name of the environment in an `environment.yml`.
fn conda_name(content: &str) -> Option<&str> {
    content.lines().find_map(|line| line.strip_prefix("name:")).map(str::trim).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(file: &str, content: &str, path: &str, set: &[&str], program: Option<&str>) -> Option<String> {
        let rule = RULES.iter().find(|rule| rule.name == file).unwrap();
        let seen = Seen {
            path: path.split(':').collect(),
            is_set: &|name| set.contains(&name),
            program: &|_| program.map(|program| (program.into(), program.into())),
        };
        look(rule, &Path::new("/w/it").join(file), content, &seen).map(|one| one.message)
    }

    #[test]
    fn a_version_file_is_honoured_by_a_program_of_that_version_or_one_that_chooses() {
        let node = |content: &str, program: &str| of(".nvmrc", content, "/usr/bin", &[], Some(program)).is_none();
        let managed = "/home/kim/.nvm/versions/node/v20.11.0/bin/node";
        for content in ["20", "v20", "20.11", "v20.11.0\n", "# ours\n20.11.0", "lts/*"] {
            assert!(node(content, managed), "{content}");
        }
        for (content, program) in
            [("18", managed), ("2", managed), ("20.1", managed), ("lts/*", "/usr/bin/node"), ("20", "/usr/bin/node")]
        {
            assert!(!node(content, program), "{content} {program}");
        }
        for program in
            ["/home/kim/.local/share/mise/shims/node", "/home/kim/.volta/bin/node", "/home/kim/.asdf/shims/node"]
        {
            assert!(node("18", program), "{program}");
        }
        assert!(node("system", "/usr/bin/node"));
        let python = |content: &str, program: &str| of(".python-version", content, "", &[], Some(program)).is_none();
        assert!(python("3.12", "/usr/bin/python3.12") && python("3.12.4", "/usr/bin/python3.12"));
        assert!(!python("3.12", "/usr/bin/python3") && !python("3.1", "/usr/bin/python3.12"));
        let message = of(".nvmrc", "20\n", "/usr/bin", &[], Some("/usr/bin/node")).unwrap();
        for part in [
            "/w/it/.nvmrc asks for 20",
            "the agent's node is /usr/bin/node",
            "nvm use",
            "/w/it/.agentd-env.sh",
            "agentctl env allow /w/it",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(of(".nvmrc", "20", "", &[], None).unwrap().contains("the agent has no node"));
    }

    #[test]
    fn each_other_file_is_honoured_by_what_its_tool_leaves_behind() {
        let is_honoured =
            |file: &str, content: &str, path: &str, set: &[&str]| of(file, content, path, set, None).is_none();
        let mise = "/home/kim/.local/share/mise/installs/node/20/bin";
        for (file, content, path, set) in [
            (".tool-versions", "nodejs 20", mise, &[][..]),
            (".tool-versions", "nodejs 20", "/home/kim/.asdf/shims", &[]),
            ("mise.toml", "", mise, &[]),
            (".envrc", "use nix", "", &["DIRENV_DIR"]),
            (".envrc", "export A=1\nexport PATH=x", "", &["A"]),
            ("environment.yml", "name: ml", "", &["CONDA_PREFIX"]),
            (".python-version", "3.12", "", &["VIRTUAL_ENV"]),
            (".sdkmanrc", "java=21", "/home/kim/.sdkman/candidates/java/current/bin", &[]),
            ("flake.nix", "", "/nix/store/x/bin", &["IN_NIX_SHELL"]),
            ("flake.nix", "", "/usr/bin", &[]),
        ] {
            assert!(is_honoured(file, content, path, set), "{file}");
            if file != "flake.nix" {
                assert!(!is_honoured(file, content, "/usr/bin", &[]), "{file}");
            }
        }
        assert!(!is_honoured("flake.nix", "", "/nix/var/nix/profiles/default/bin", &[]));
        assert!(of("environment.yml", "name: ml\n", "", &[], None).unwrap().contains("conda activate ml"));
        assert!(of(".envrc", "", "", &[], None).unwrap().contains(".envrc is there, and no step honours it"));
    }

    #[test]
    fn the_directory_and_those_above_it_are_looked_in_and_the_home_is_not() {
        let of = |directory: &str| -> Vec<PathBuf> {
            let places = places(Path::new(directory), Some(Path::new("/home/kim")));
            places.into_iter().filter(|(rule, _)| rule.name == ".nvmrc").map(|(_, path)| path).collect()
        };
        assert_eq!(of("/home/kim/a/b"), [PathBuf::from("/home/kim/a/b/.nvmrc"), "/home/kim/a/.nvmrc".into()]);
        assert_eq!(of("/home/kim"), [PathBuf::from("/home/kim/.nvmrc")]);
        assert_eq!(of("/"), [PathBuf::from("/.nvmrc")]);
        assert_eq!(of("/srv/x"), [PathBuf::from("/srv/x/.nvmrc"), "/srv/.nvmrc".into()]);
    }
}
