//! Determines which known agent a command runs: the program behind launchers, links, paths and packages.
//!
//! The whitelist gives an agent the variables that its documentation names. A configured name proves nothing:
//! `[agents.reviewer]` may run Claude Code, and `[agents.claude]` another program. The name counts only if the
//! command is inconclusive.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use agentd_catalogue::KnownAgent;
use agentd_host::capability::LocalFiles;

/// Programs that run the command in their arguments, with the words that may come before it and the options that
/// take a value.
const LAUNCHERS: &[(&[&str], &[&str], &[&str])] = &[
    (&["env"], &[], &["-u", "--unset", "-C", "--chdir", "-a", "--argv0"]),
    (&["node", "nodejs", "tsx", "ts-node"], &[], &["-r", "--require", "--import", "--loader", "-C", "--conditions"]),
    (&["bun"], &["run", "x"], &["-r", "--preload", "--cwd", "-c", "--config"]),
    (&["deno"], &["run", "x"], &["--config", "-c", "--import-map", "--cert"]),
    (&["npx", "bunx", "pnpx", "uvx"], &[], &["--registry", "--userconfig", "--cache", "--prefix", "--from"]),
    (
        &["npm", "pnpm", "yarn"],
        &["exec", "x", "dlx", "run"],
        &["--registry", "--prefix", "--userconfig", "-C", "--dir"],
    ),
    (&["pipx"], &["run"], &["--python", "--spec"]),
    (&["mise"], &["exec", "x"], &["-C", "--cd", "-E", "--env"]),
    (&["nice"], &[], &["-n", "--adjustment"]),
    (&["ionice"], &[], &["-c", "-n", "--class", "--classdata"]),
    (&["stdbuf"], &[], &["-i", "-o", "-e"]),
    (&["nohup", "setsid", "exec", "command", "time", "caffeinate", "dbus-run-session"], &[], &[]),
    (&["systemd-run"], &[], &["-p", "--property", "--unit", "-u", "--slice", "-E", "--setenv", "-M", "--machine"]),
    (&["gh"], &[], &[]),
];

/// Launchers with one argument before the command, such as a time or a directory.
const WITH_ARGUMENT: &[(&str, &[&str])] = &[("timeout", &["-k", "-s", "--signal", "--kill-after"]), ("direnv", &[])];

/// Shells, whose `-c` takes a whole command in one word.
const SHELLS: &[&str] = &["sh", "bash", "zsh", "dash", "ksh", "fish"];

/// Suffixes of program files that name the machine for which they were built.
const MACHINES: &[&str] = &[
    "aarch64",
    "apple",
    "arm64",
    "baseline",
    "darwin",
    "gnu",
    "linux",
    "linuxmusl",
    "macos",
    "musl",
    "unknown",
    "x64",
    "x86",
    "x86_64",
];

/// Maximum depth of nested launchers.
const DEEPEST: usize = 8;
/// Number of directories above a script that are searched for a `package.json`.
const ABOVE: usize = 4;
/// Maximum size of a `package.json` that is read, in bytes.
const DESCRIPTION: u64 = 256 * 1024;
/// Time limit for resolving links on disk.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the known agent that the command runs, if it can be determined. `path` holds the directories that are
/// searched for programs. Relative paths start at `directory`.
pub async fn identify(command: &[String], path: Option<&[u8]>, directory: &Path) -> Option<&'static KnownAgent> {
    let program = behind_launchers(command, 0)?;
    let path = path.map(|path| {
        use std::os::unix::ffi::OsStrExt as _;
        OsStr::from_bytes(path).to_owned()
    });
    let (asked, directory) = (program.clone(), directory.to_owned());
    let look = agentd_host::work::blocking(move || on_disk(&asked, path.as_deref(), &directory));
    let seen = tokio::time::timeout(PATIENCE, look).await.ok().and_then(Result::ok).flatten();
    seen.or_else(|| by_text(&program))
}

/// The known agent was not determined.
#[derive(Debug)]
pub(super) struct NotSeen;

/// Determines the known agent like [`identify`], in place. Blocks for as long as a disk does. Looks at no file that
/// may lie on a file system that hangs.
pub(super) fn look(
    command: &[String],
    path: Option<&[u8]>,
    directory: &Path,
    files: &LocalFiles,
) -> Result<Option<&'static KnownAgent>, NotSeen> {
    use std::os::unix::ffi::OsStrExt as _;
    let Some(program) = behind_launchers(command, 0) else { return Ok(None) };
    let path = path.map(OsStr::from_bytes);
    let mut candidates: Vec<PathBuf> = match (program.contains('/'), path) {
        (true, _) => vec![directory.join(&program)],
        (false, Some(path)) => std::env::split_paths(path).map(|folder| folder.join(&program)).collect(),
        (false, None) => Vec::new(),
    };
    // The search ends at the first file that exists.
    let found = candidates.iter().position(|file| !files.has(file) || file.is_file());
    candidates.truncate(found.map_or(candidates.len(), |at| at + 1));
    if candidates.last().is_some_and(|last| !files.has(last)) {
        return Err(NotSeen);
    }
    Ok(on_disk(&program, path, directory).or_else(|| by_text(&program)))
}

/// Returns the word of a command that names the program, script or package that really runs.
fn behind_launchers(command: &[String], depth: usize) -> Option<String> {
    let (program, arguments) = command.split_first().filter(|_| depth < DEEPEST)?;
    let name = file_name(program);
    if SHELLS.contains(&name) {
        let at =
            arguments.iter().position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'));
        return match at {
            Some(at) => behind_launchers(&words(arguments.get(at + 1)?), depth + 1),
            // A script that the shell runs.
            None => {
                behind_launchers(&arguments[arguments.iter().position(|word| !word.starts_with('-'))?..], depth + 1)
            }
        };
    }
    let launcher = LAUNCHERS.iter().find(|(names, _, _)| names.contains(&name));
    let with_argument = WITH_ARGUMENT.iter().find(|(launcher, _)| *launcher == name);
    let (before, valued, mut own) = match (launcher, with_argument) {
        (Some((_, before, valued)), _) => (*before, *valued, 0),
        (None, Some((_, valued))) => (if name == "direnv" { &["exec"][..] } else { &[] }, *valued, 1),
        (None, None) => return Some(program.clone()),
    };
    let mut rest = arguments;
    let mut is_first = true;
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        let is_assignment = matches!(name, "env") && word.contains('=') && !word.starts_with('-');
        if let Some(package) = package_option(word, after) {
            return Some(package);
        }
        if matches!(name, "env") && matches!(word.as_str(), "-S" | "--split-string") {
            let command: Vec<String> = after.iter().flat_map(|word| words(word)).collect();
            return behind_launchers(&command, depth + 1);
        }
        if word == "--" || is_assignment || (is_first && before.contains(&word.as_str())) {
            is_first &= is_assignment;
            continue;
        }
        if word.starts_with('-') {
            if valued.contains(&word.as_str()) {
                rest = rest.split_first().map_or(rest, |(_, after)| after);
            }
            continue;
        }
        is_first = false;
        if own > 0 {
            own -= 1;
            continue;
        }
        let command: Vec<String> = std::iter::once(word).chain(rest).cloned().collect();
        return behind_launchers(&command, depth + 1);
    }
    None
}

/// Returns the package of `-p PACKAGE`, `--package PACKAGE` or `--package=PACKAGE`, from which a runner takes the
/// program.
fn package_option(word: &str, after: &[String]) -> Option<String> {
    let package = match word.strip_prefix("--package=") {
        Some(package) => package.to_owned(),
        None if matches!(word, "-p" | "--package") => after.first()?.clone(),
        None => return None,
    };
    by_text(&package).map(|_| package)
}

/// Splits a simple shell command into words. Outer quotes are removed and nothing is expanded.
fn words(text: &str) -> Vec<String> {
    let last = text.rsplit(['\n', ';', '&']).find(|part| !part.trim().is_empty()).unwrap_or_default();
    let words = last.split_ascii_whitespace().map(|word| word.trim_matches(['"', '\'']));
    let is_assignment = |word: &&str| word.split_once('=').is_some_and(|(name, _)| !name.contains(['/', '-']));
    words.skip_while(is_assignment).map(str::to_owned).collect()
}

/// Identifies a program by its name, its path, or its package.
fn by_text(program: &str) -> Option<&'static KnownAgent> {
    let program = program.strip_prefix("npm:").unwrap_or(program);
    if program.starts_with('@') && program.matches('/').count() == 1 {
        return known(without_version(program));
    }
    let path = Path::new(program);
    by_package_folder(path).or_else(|| by_file_name(file_name(program)))
}

/// Identifies a program by the innermost package folder of its path.
fn by_package_folder(path: &Path) -> Option<&'static KnownAgent> {
    let parts: Vec<&str> = path
        .components()
        .filter_map(|part| if let Component::Normal(part) = part { part.to_str() } else { None })
        .collect();
    let at = parts.iter().rposition(|part| *part == "node_modules")?;
    match parts.get(at + 1..)? {
        [".bin", program, ..] => by_file_name(program),
        [scope, name, ..] if scope.starts_with('@') => known(&format!("{scope}/{name}")),
        [name, ..] => known(name),
        [] => None,
    }
}

/// Identifies a program by its file name, without suffixes for version, machine or language.
fn by_file_name(name: &str) -> Option<&'static KnownAgent> {
    let mut name = without_version(name);
    loop {
        if let Some(agent) = known(name) {
            return Some(agent);
        }
        let at = name.rfind(['-', '.', '_'])?;
        let end = &name[at + 1..];
        let is_extra = end.starts_with(|c: char| c.is_ascii_digit())
            || end.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            || matches!(end, "js" | "mjs" | "cjs" | "ts" | "exe" | "64")
            || MACHINES.contains(&end);
        if !is_extra {
            return None;
        }
        name = &name[..at];
    }
}

/// Removes the version from a package name.
fn without_version(package: &str) -> &str {
    match package.rfind('@') {
        Some(at) if at > 0 => &package[..at],
        _ => package,
    }
}

fn known(name: &str) -> Option<&'static KnownAgent> {
    agentd_catalogue::by_program(name)
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Identifies a program by the target of its links and by the `package.json` above that target.
fn on_disk(program: &str, path: Option<&OsStr>, directory: &Path) -> Option<&'static KnownAgent> {
    let found = if program.contains('/') { directory.join(program) } else { search(program, path?)? };
    let real = found.canonicalize().ok()?;
    let by_path = by_package_folder(&real).or_else(|| by_file_name(real.file_name()?.to_str()?));
    by_path.or_else(|| by_description(&real))
}

fn search(program: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Identifies a script by the name in the nearest `package.json` above it.
fn by_description(script: &Path) -> Option<&'static KnownAgent> {
    #[derive(serde::Deserialize)]
    struct Description {
        name: String,
    }
    let mut above = script.ancestors().skip(1).take(ABOVE).map(|folder| folder.join("package.json"));
    let file = above.find(|file| file.metadata().is_ok_and(|facts| facts.is_file() && facts.len() <= DESCRIPTION))?;
    let description: Description = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    known(&description.name)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
