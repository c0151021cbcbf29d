//! Finds the files on which a login depends. These are files that its shell read, files and directories that their
//! text names, and the defaults of version managers.
//!
//! The trace of a shell names the files that it sourced ([`Login::read`]). This module finds the others. It reads
//! files, so its callers run it where blocking is acceptable.

mod programs;
mod text;
mod versions;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::fingerprint::Watched;
use crate::login::capture::Login;
use crate::login::seed::Seed;
use crate::login::shell::Shell;
use programs::Paths;
use text::Text;

/// Maximum size in bytes of a start-up text. A larger text is a program, whose own lookups are ignored.
const LARGEST: u64 = 64 << 10;
/// Maximum number of texts that are read, and of paths that they may add.
const TEXTS: usize = 256;
const ADDED: usize = 1000;
/// Limits on the directories and the depth of a recursive listing.
const DIRECTORIES: usize = 50;
const DEPTH: usize = 4;
/// System directories that shells list, each with the pattern of the names that count.
const LISTED: [(&str, &str); 4] =
    [("profile.d", "*.sh"), ("conf.d", "*.fish"), ("vendor_conf.d", "*.fish"), ("autoload", "*.nu")];

/// Returns everything on which a login of this user depended.
pub(super) fn of(shell: &Path, seed: &Seed, login: &Login) -> Vec<Watched> {
    let values: BTreeMap<&str, &[u8]> =
        login.variables.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
    let variable = |name: &str| String::from_utf8(values.get(name)?.to_vec()).ok();
    let mut found: BTreeSet<Watched> = BTreeSet::new();
    for path in login.read.iter().cloned().chain(seed.files()).chain(more(shell, &seed.home, &variable)) {
        found.extend(known(path));
    }
    found.extend(siblings(&login.read, &seed.home));
    let text = Text { home: &seed.home, variables: &variable };
    let files = found.iter().filter(|one| matches!(one, Watched::Content(_))).map(|one| one.path().to_owned());
    let mut texts: Vec<PathBuf> = files.collect();
    let mut read: BTreeSet<PathBuf> = BTreeSet::new();
    let mut programs: BTreeSet<String> = login.programs.iter().cloned().collect();
    let (mut asked, mut arguments) = (BTreeSet::new(), Vec::new());
    let (mut functions, mut function_directories) = (BTreeSet::new(), BTreeSet::new());
    while let Some(path) = texts.pop().filter(|_| read.len() < TEXTS) {
        if !read.insert(path.clone()) {
            continue;
        }
        let Some(content) = content(&path) else { continue };
        let named = text.read(&beside(&content, &path));
        let room = ADDED.saturating_sub(found.len());
        found.extend(named.watched.into_iter().take(room));
        texts.extend(named.sourced);
        programs.extend(named.programs);
        asked.extend(named.asked);
        arguments.extend(named.arguments);
        functions.extend(named.functions);
        function_directories.extend(named.function_directories);
        found.extend(named.trees.iter().flat_map(|tree| directories(tree)).take(room));
        // An autoloaded function of the user is a further text.
        for directory in &function_directories {
            let files = functions.iter().map(|name: &String| directory.join(name)).filter(|file| file.is_file());
            let files: Vec<PathBuf> = files.filter(|file| !read.contains(file)).collect();
            found.extend(files.iter().cloned().map(Watched::Content));
            texts.extend(files);
        }
    }
    let begin = seed.variables().into_iter().find(|variable| variable.name.as_bytes() == b"PATH");
    let begin = begin.and_then(|variable| String::from_utf8(variable.value.0).ok());
    let paths = Paths { end: variable("PATH"), begin };
    let of_programs = programs::run(&programs, &paths, &seed.home, &variable)
        .into_iter()
        .chain(programs::arguments(arguments))
        .chain(programs::asked(&asked, &paths));
    let room = ADDED.saturating_sub(found.len());
    found.extend(of_programs.take(room));
    found.extend(versions::defaults(&seed.home, &variable));
    // If the content of a file counts, a test for its existence adds nothing.
    let is_content = |one: &&Watched| matches!(one, Watched::Content(_) | Watched::Program(_));
    let contents: BTreeSet<PathBuf> = found.iter().filter(is_content).map(|one| one.path().to_owned()).collect();
    found.retain(|one| !matches!(one, Watched::Presence(path) if contents.contains(path)));
    found.into_iter().collect()
}

/// Returns a file, or a directory with the names that its shell lists and the files in it.
fn known(path: PathBuf) -> Vec<Watched> {
    let name = path.file_name().unwrap_or_default();
    let Some((_, pattern)) = LISTED.iter().find(|(listed, _)| name == *listed) else {
        return vec![Watched::Content(path)];
    };
    let entries = std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path());
    let matching = entries.filter(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        agentd_glob::matches_file_name(pattern, &name)
    });
    let mut all: Vec<Watched> = matching.map(Watched::Content).collect();
    all.push(Watched::Names(path, (*pattern).to_owned()));
    all
}

/// Replaces fish's expressions for the directory of the current file by that directory.
fn beside(content: &str, file: &Path) -> String {
    const ASK: [&str; 4] = [
        "(dirname (status filename))",
        "(dirname (status --current-filename))",
        "(path dirname (status filename))",
        "(status dirname)",
    ];
    // The path is quoted, because an unquoted blank would end the word.
    let place = format!("'{}'", file.parent().and_then(Path::to_str).unwrap_or_default());
    ASK.iter().fold(content.to_owned(), |text, ask| text.replace(ask, &place))
}

/// Returns a directory and its subdirectories, each with its names. Hidden directories are skipped, and the number
/// is limited.
fn directories(tree: &Path) -> Vec<Watched> {
    let (mut all, mut left) = (Vec::new(), vec![(tree.to_owned(), 0)]);
    while let Some((directory, depth)) = left.pop().filter(|_| all.len() < DIRECTORIES) {
        if depth < DEPTH {
            let below = std::fs::read_dir(&directory).into_iter().flatten().flatten().filter(|entry| {
                let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
                !is_hidden && entry.file_type().is_ok_and(|kind| kind.is_dir())
            });
            left.extend(below.map(|entry| (entry.path(), depth + 1)));
        }
        all.push(Watched::Content(directory));
    }
    all
}

/// Returns files and directories that shells read by default and that no trace names.
fn more(shell: &Path, home: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let below = |directory: PathBuf, names: &[&str]| names.iter().map(|name| directory.join(name)).collect::<Vec<_>>();
    let place = |name: &str, default: &str| variable(name).map_or_else(|| home.join(default), PathBuf::from);
    match Shell::of(shell) {
        Some(Shell::Zsh) => below(place("ZDOTDIR", ""), &[".zshenv", ".zprofile", ".zshrc", ".zlogin"]),
        Some(Shell::Fish) => {
            let fish = place("XDG_CONFIG_HOME", ".config").join("fish");
            below(fish, &["config.fish", "conf.d", "fish_variables"])
        }
        Some(Shell::Nu) => {
            let nu = place("XDG_CONFIG_HOME", ".config").join("nushell");
            below(nu, &["env.nu", "config.nu", "login.nu", "autoload"])
        }
        Some(Shell::Ksh | Shell::Posix) => variable("ENV").map(PathBuf::from).into_iter().collect(),
        Some(Shell::Bash | Shell::Csh) | None => Vec::new(),
    }
}

/// Returns the directories from which several files with one extension were sourced. A new file with that extension
/// would be sourced too.
fn siblings(sourced: &[PathBuf], home: &Path) -> Vec<Watched> {
    let mut places: BTreeMap<(&Path, &str), usize> = BTreeMap::new();
    for file in sourced {
        let extension = file.extension().and_then(|extension| extension.to_str());
        if let (Some(directory), Some(extension)) = (file.parent(), extension) {
            *places.entry((directory, extension)).or_default() += 1;
        }
    }
    let is_listed = |(directory, _): &(&Path, &str), count: usize| {
        let is_d = directory.extension().is_some_and(|extension| extension == "d");
        *directory != home && *directory != Path::new("/etc") && (is_d || count > 1)
    };
    let listed = places.into_iter().filter(|(place, count)| is_listed(place, *count));
    listed.map(|((directory, extension), _)| Watched::Names(directory.to_owned(), format!("*.{extension}"))).collect()
}

/// Returns the text of a file that is not too large.
fn content(path: &Path) -> Option<String> {
    // The metadata is read first, because opening a pipe waits for its other end.
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= LARGEST) {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LARGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_sourced_by_a_sourced_file_are_found_without_a_trace() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        std::fs::write(at(".tcshrc"), "source ~/first.csh\n").unwrap();
        std::fs::write(at("first.csh"), "source ~/second.csh\nsource ~/first.csh\n").unwrap();
        std::fs::write(at("second.csh"), "setenv T `cat ~/.token`\n").unwrap();
        let seed = Seed::find(Some(home.path()), Some(Path::new("/bin/sh"))).unwrap();
        let login = Login { read: vec![at(".tcshrc")], ..Login::default() };
        let found = of(Path::new("/bin/tcsh"), &seed, &login);
        for name in [".tcshrc", "first.csh", "second.csh", ".token"] {
            assert!(found.contains(&Watched::Content(at(name))), "{name}: {found:?}");
        }
    }

    #[test]
    fn a_new_file_beside_sourced_files_counts() {
        let files = ["/h/.bashrc.d/a.sh", "/h/plugins/a.zsh", "/h/plugins/b.zsh", "/h/x.sh", "/h/y.sh", "/opt/z.sh"];
        let found = siblings(&files.map(PathBuf::from), Path::new("/h"));
        let names = |path: &str, pattern: &str| Watched::Names(path.into(), pattern.to_owned());
        assert_eq!(found, [names("/h/.bashrc.d", "*.sh"), names("/h/plugins", "*.zsh")]);
    }
}
