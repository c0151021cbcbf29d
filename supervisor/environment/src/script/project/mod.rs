//! Checks whether a session's environment honours a project's tool files, such as `.nvmrc`.
//!
//! The rules run nothing and do no I/O: the files and programs come in as data. A file is honoured if the
//! environment shows the traces of its tool, from any step. The nearest file of a name counts, as it does for the
//! tools themselves.

use std::path::{Path, PathBuf};

use agentd_api::doctor::shell_word;
use agentd_api::reason;
use agentd_api::validation::Warning;

use super::validate::warning;

mod exports;
mod tools;

/// Trace that a file's tool leaves in the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trace {
    /// One of these programs has the version that the file names, or selects the version when it runs.
    Version(&'static [&'static str]),
    /// An entry of `PATH` contains one of these parts.
    Entry(&'static [&'static str]),
    /// One of these variables is set, or was set and later dropped.
    Variable(&'static [&'static str]),
    /// direnv was active in the file's directory, or the environment holds the file's exports.
    Direnv,
    /// The conda environment that the file names is active.
    Conda,
    /// The versions that the file names are in `PATH`, or the tools select them when they run.
    Tools,
    /// One of the variables of the second list is set, and the path of the program does not name another version.
    Unlike(&'static [&'static str], &'static [&'static str]),
}

/// Rule for one kind of file.
#[derive(Debug)]
pub struct Rule {
    name: &'static str,
    tool: &'static str,
    traces: &'static [Trace],
    /// Line of a bash script that honours the file.
    line: &'static str,
}

const NODE: &[&str] = &["node"];
const PYTHON: &[&str] = &["python3", "python"];
const RUBY: &[&str] = &["ruby"];
/// The program `uv` reads `.python-version` itself in a project with a lock file.
const UV: &str = "uv";
/// `rust-toolchain.toml` is absent, because rustup's own `cargo` and `rustc` read it when they run.
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
        traces: &[Trace::Entry(&["/.asdf/shims", "/asdf/shims", "/mise/shims"]), Trace::Tools],
        line: "eval \"$(mise env -s bash)\"",
    },
    Rule { name: "mise.toml", tool: "mise", traces: &[Trace::Tools], line: "eval \"$(mise env -s bash)\"" },
    Rule { name: ".mise.toml", tool: "mise", traces: &[Trace::Tools], line: "eval \"$(mise env -s bash)\"" },
    Rule { name: ".envrc", tool: "direnv", traces: &[Trace::Direnv], line: "eval \"$(direnv export bash)\"" },
    Rule {
        name: "environment.yml",
        tool: "conda",
        traces: &[Trace::Conda],
        line: "eval \"$(conda shell.bash hook)\" && conda activate NAME",
    },
    Rule {
        name: ".python-version",
        tool: "pyenv",
        traces: &[Trace::Version(PYTHON), Trace::Unlike(PYTHON, &["VIRTUAL_ENV", "CONDA_PREFIX"])],
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

/// Parts of paths under which tools keep programs that select the version when they run.
const SHIMS: [&str; 4] = ["/shims/", "/.volta/bin/", "/.proto/shims/", "/.cargo/bin/"];

/// Returns the places of tool files for a session's directory, nearest first. The search ends below the home
/// directory, which belongs to no project.
pub fn places(directory: &Path, home: Option<&Path>) -> Vec<(&'static Rule, PathBuf)> {
    let is_home = Some(directory) == home;
    let above = directory.ancestors().skip(1).take_while(|place| Some(*place) != home && place.parent().is_some());
    let around = std::iter::once(directory).chain(above.filter(move |_| !is_home));
    around.flat_map(|place| RULES.iter().map(move |rule| (rule, place.join(rule.name)))).collect()
}

/// Returns the programs whose versions the rules compare.
pub fn programs() -> impl Iterator<Item = &'static str> {
    [NODE, PYTHON, RUBY, &[UV]].concat().into_iter()
}

/// Facts about an environment that the rules use.
#[expect(missing_debug_implementations, reason = "its functions have none")]
pub struct EnvironmentFacts<'a> {
    /// Entries of `PATH`.
    pub path: Vec<&'a str>,
    /// Reports whether a step set the variable, even if a later step dropped it.
    pub is_set: &'a dyn Fn(&str) -> bool,
    /// Returns the value that the agent receives.
    pub value: &'a dyn Fn(&str) -> Option<String>,
    /// Reports whether a file exists that [`beside`] names.
    pub is_there: &'a dyn Fn(&Path) -> bool,
    /// Returns a program's path in `PATH`, and the path with links resolved.
    pub program: &'a dyn Fn(&str) -> Option<(PathBuf, PathBuf)>,
}

/// Returns a warning if the file is not honoured. `content` is its text.
pub fn look(rule: &Rule, file: &Path, content: &str, seen: &EnvironmentFacts<'_>) -> Option<Warning> {
    // Without nix on the machine, the file serves other users of the project.
    let is_of_nix = rule.tool == "nix";
    if is_of_nix && !seen.path.iter().any(|entry| entry.contains("/nix/") || entry.contains("/.nix-profile")) {
        return None;
    }
    let beside = beside(rule, file, (seen.value)("HOME").as_deref().map(Path::new));
    let shows = |trace: &Trace| shows(*trace, content, (file, beside.as_deref()), seen);
    if rule.traces.iter().any(shows) {
        return None;
    }
    let wanted = wanted(content).filter(|_| rule.traces.iter().any(|trace| matches!(trace, Trace::Version(_))));
    let wanted = wanted.map(|wanted| format!(" asks for {wanted}, and")).unwrap_or_default();
    let found = rule.traces.iter().find_map(|trace| match trace {
        Trace::Version(programs) => Some(programs),
        _ => None,
    });
    let instead = match found {
        Some(programs) => match programs.iter().find_map(|program| (seen.program)(program)) {
            Some((place, _)) => format!("the agent's {} is {}", programs[0], place.display()),
            None => format!("the agent has no {}", programs[0]),
        },
        None => format!("the environment has no trace of {}", rule.tool),
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
    Some(warning(reason::PROJECT_FILE_NOT_HONOURED, file, message))
}

/// Returns the path of a second file that decides whether `file` is honoured.
pub fn beside(rule: &Rule, file: &Path, home: Option<&Path>) -> Option<PathBuf> {
    match rule.name {
        ".python-version" => Some(file.with_file_name("uv.lock")),
        ".envrc" => Some(home?.join(".envrc")),
        _ => None,
    }
}

fn shows(trace: Trace, content: &str, (file, beside): (&Path, Option<&Path>), seen: &EnvironmentFacts<'_>) -> bool {
    let directory = file.parent().unwrap_or(file);
    let of_program = |programs: &[&str]| programs.iter().find_map(|program| (seen.program)(program));
    match trace {
        Trace::Variable(names) => names.iter().any(|name| (seen.is_set)(name)),
        Trace::Entry(parts) => seen.path.iter().any(|entry| parts.iter().any(|part| entry.contains(part))),
        Trace::Version(programs) => {
            let reads_it = beside.is_some_and(|lock| (seen.is_there)(lock)) && (seen.program)(UV).is_some();
            let is_it = |(place, real): (PathBuf, PathBuf)| is_version(content, &place) || is_version(content, &real);
            reads_it || of_program(programs).is_some_and(is_it)
        }
        Trace::Unlike(programs, names) => {
            let is_other = of_program(programs).is_some_and(|(_, real)| says_a_version(&real));
            names.iter().any(|name| (seen.is_set)(name)) && !(is_other && wanted(content).and_then(version).is_some())
        }
        Trace::Direnv => was_in(directory, beside, seen) || exports::has(content, directory, seen),
        Trace::Conda => is_active(conda_name(content), directory, seen),
        Trace::Tools => tools::has(file, content, seen),
    }
}

/// Reports whether direnv recorded `directory` as active.
/// A dropped record no longer names its directory. Then it counts for `directory`, unless the home directory has
/// its own `.envrc`, which the login shell may have loaded.
fn was_in(directory: &Path, of_home: Option<&Path>, seen: &EnvironmentFacts<'_>) -> bool {
    if let Some(place) = (seen.value)("DIRENV_DIR") {
        return Path::new(place.trim_start_matches('-')) == directory;
    }
    if let Some(file) = (seen.value)("DIRENV_FILE") {
        return Path::new(&file).parent() == Some(directory);
    }
    let is_noted = ["DIRENV_DIR", "DIRENV_FILE", "DIRENV_DIFF"].into_iter().any(|name| (seen.is_set)(name));
    let is_homes = of_home.is_some_and(|file| file.parent() != Some(directory) && (seen.is_there)(file));
    is_noted && !is_homes
}

/// Reports whether a conda environment of this name, or an environment in the directory, is active. conda's own
/// environment `base` belongs to no project.
fn is_active(name: Option<&str>, directory: &Path, seen: &EnvironmentFacts<'_>) -> bool {
    let Some(prefix) = (seen.value)("CONDA_PREFIX") else { return (seen.is_set)("CONDA_PREFIX") };
    let Some(name) = name else { return true };
    let prefix = Path::new(&prefix);
    let is_it = prefix.file_name().is_some_and(|last| last == name) || prefix.starts_with(directory);
    is_it || name == "base" || (seen.value)("CONDA_DEFAULT_ENV").is_some_and(|active| active == name)
}

/// Reports whether the file name of a program contains a version.
fn says_a_version(real: &Path) -> bool {
    let name = real.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let of_name = name.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    of_name.contains('.') && of_name.starts_with(|c: char| c.is_ascii_digit())
}

/// Reports whether the program at `place` has the version that the file names, or selects the version when it runs.
fn is_version(content: &str, place: &Path) -> bool {
    let text = place.to_string_lossy();
    let Some(wanted) = wanted(content) else { return false };
    // `system` is nvm's name for a version that nvm did not install.
    if wanted == "system" || SHIMS.iter().any(|shims| text.contains(shims)) {
        return true;
    }
    let mut versions = text.split('/').filter_map(version);
    let Some(wanted) = version(wanted) else {
        // For an alias such as `lts/*`, any managed version is accepted.
        return versions.next().is_some();
    };
    let begins = |whole: &str, part: &str| whole.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
    if versions.any(|version| version == wanted || begins(version, wanted)) {
        return true;
    }
    // `python3.12` matches 3.12.4 as a prefix. `python3` names no usable version.
    let name = place.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let of_name = name.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    of_name.contains('.') && (of_name == wanted || begins(wanted, of_name) || begins(of_name, wanted))
}

/// Returns the first word of the first line that is neither empty nor a comment.
fn wanted(content: &str) -> Option<&str> {
    let lines = content.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).next()
}

/// Parses a part of a path or a word as a version, such as `v20.11.0`, `20` or `node-20.11.0`.
fn version(part: &str) -> Option<&str> {
    let part = part
        .rsplit_once('-')
        .map_or(part, |(before, after)| if before.starts_with(char::is_numeric) { part } else { after });
    let part = part.strip_prefix('v').unwrap_or(part);
    let is_one = part.starts_with(|c: char| c.is_ascii_digit()) && part.chars().all(|c| c.is_ascii_digit() || c == '.');
    is_one.then_some(part)
}

/// Returns the name of the environment in an `environment.yml`.
fn conda_name(content: &str) -> Option<&str> {
    let name = content.lines().find_map(|line| line.strip_prefix("name:"))?;
    let name = name.split(" #").next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests;
