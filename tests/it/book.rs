//! Checks the book (`docs/`): the picture of the crates, the walks through the code, and the examples.
//!
//! The picture of `docs/internals/layout.md` comes from the manifests. With `AGENTD_TEST_REWRITE` set, its test writes
//! the picture into the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentd_api::configuration::ConfigurationCheck;

use crate::harness::paths;

fn root() -> PathBuf {
    paths::checkout().to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A crate of the picture.
struct Node {
    /// Names of the crates that it depends on directly.
    dependencies: BTreeSet<String>,
    lines: usize,
}

fn manifest(folder: &str) -> toml::Table {
    read(&root().join(folder).join("Cargo.toml")).parse().unwrap()
}

/// Lines of the Rust files below a directory.
fn lines(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let lines_of = |path: &Path| match path.extension() {
        _ if path.is_dir() => lines(path),
        Some(extension) if extension == "rs" => read(path).lines().count(),
        _ => 0,
    };
    entries.map(|entry| lines_of(&entry.unwrap().path())).sum()
}

/// The last part of a crate's folder, which is the crate's name in the book.
fn short(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap()
}

/// The crates of the workspace, and crates outside of it that they depend on by path.
fn crates() -> BTreeMap<String, Node> {
    let workspace = manifest(".");
    let folders: BTreeMap<String, String> = workspace["workspace"]["dependencies"]
        .as_table()
        .unwrap()
        .iter()
        .filter_map(|(package, entry)| Some((package.clone(), entry.get("path")?.as_str()?.to_owned())))
        .collect();
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let members = members.iter().map(|member| member.as_str().unwrap().to_owned());
    let all: BTreeSet<String> = members.chain(folders.values().cloned()).collect();
    let node = |folder: &str| {
        let manifest = manifest(folder);
        let targets = manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
        let tables = targets.map(|target| target.get("dependencies")).chain([manifest.get("dependencies")]);
        let packages = tables.flatten().filter_map(toml::Value::as_table).flat_map(toml::Table::keys);
        let dependencies =
            packages.filter_map(|package| folders.get(package)).map(|folder| short(folder).to_owned()).collect();
        // The other crates are folders of `supervisor`.
        let code = if folder == "supervisor" { "supervisor/src" } else { folder };
        Node { dependencies, lines: lines(&root().join(code)) }
    };
    all.iter().map(|folder| (short(folder).to_owned(), node(folder))).collect()
}

/// Length of the longest path from a crate down to a crate without dependencies.
fn layer(crates: &BTreeMap<String, Node>, name: &str) -> usize {
    crates[name].dependencies.iter().map(|below| layer(crates, below) + 1).max().unwrap_or(0)
}

/// Draws the crates, the highest layer first.
fn picture(crates: &BTreeMap<String, Node>) -> String {
    let all: usize = crates.values().map(|node| node.lines).sum();
    let mut layers: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for name in crates.keys() {
        layers.entry(layer(crates, name)).or_default().push(name);
    }
    let mut text = String::from("```text\n layer  crate          lines  depends on\n");
    for (layer, names) in layers.iter().rev() {
        for (at, name) in names.iter().enumerate() {
            let node = &crates[*name];
            let percent = (node.lines * 100 + all / 2) / all;
            let layer = if at == 0 { format!("L{layer}") } else { String::new() };
            let mut row = format!("{layer:>6}  {name:<13}  {percent:>3} %  ");
            let indent = row.chars().count();
            for (at, below) in node.dependencies.iter().enumerate() {
                let separator = if at + 1 < node.dependencies.len() { "," } else { "" };
                if row.rsplit('\n').next().unwrap().chars().count() + below.len() > 100 {
                    row.truncate(row.trim_end().len());
                    write!(row, "\n{:indent$}", "").unwrap();
                }
                write!(row, "{below}{separator} ").unwrap();
            }
            writeln!(text, "{}", row.trim_end()).unwrap();
        }
    }
    text.push_str("```\n");
    text
}

/// Whether two pictures differ only in shares of lines by one per cent.
fn agree(one: &str, other: &str) -> bool {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let near = |one: &str, other: &str| match (one.parse::<u64>(), other.parse::<u64>()) {
        (Ok(one), Ok(other)) => one.abs_diff(other) <= 1,
        _ => one == other,
    };
    let (one, other) = (words(one), words(other));
    one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| near(one, other))
}

const BEGIN: &str = "<!-- tests/it/book.rs -->\n";
const END: &str = "<!-- end of the picture -->\n";

#[test]
fn the_picture_of_the_crates_is_that_of_the_manifests() {
    let path = root().join("docs/internals/layout.md");
    let page = read(&path);
    let (before, rest) = page.split_once(BEGIN).expect("the page has the picture's beginning");
    let (committed, after) = rest.split_once(END).expect("the page has the picture's end");
    let crates = crates();
    let picture = picture(&crates);
    if std::env::var_os("AGENTD_TEST_REWRITE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}\n{picture}\n{END}{after}")).unwrap();
    } else {
        assert!(agree(&picture, committed), "run it with AGENTD_TEST_REWRITE=1:\n{picture}");
    }
    let unnamed: Vec<&String> = crates.keys().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(unnamed.is_empty(), "the page says nothing about {unnamed:?}");
}

#[test]
fn a_picture_with_another_dependency_is_another_picture() {
    assert!(agree("L1 host 6 % api, config", "L1 host 7 %  api,\n config"));
    assert!(!agree("L1 host 6 % api, config", "L1 host 8 % api, config"));
    assert!(!agree("L1 host 6 % api, config", "L2 host 6 % api, config"));
    assert!(!agree("L1 host 6 % api, config", "L1 host 6 % api"));
}

/// The numbered entries of a walk: the file, below `supervisor/`, and the function.
fn entries(page: &str) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for line in page.lines() {
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let Some(rest) = rest.strip_prefix(". ").filter(|_| rest.len() < line.len()) else { continue };
        let name = rest.strip_prefix('`').and_then(|rest| rest.split_once('`')).map(|(name, _)| name);
        let (file, function) =
            name.and_then(|name| name.split_once(": ")).ok_or_else(|| format!("no `FILE: FUNCTION` in {line:?}"))?;
        found.push((file.to_owned(), function.to_owned()));
    }
    Ok(found)
}

/// Returns the mistakes of a walk. `text` returns the text of a file below `supervisor/`.
fn mistakes(page: &str, text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let entries = match entries(page) {
        Ok(entries) => entries,
        Err(mistake) => return vec![mistake],
    };
    let mut mistakes = Vec::new();
    if entries.len() < 8 {
        mistakes.push(format!("the walk has {} entries", entries.len()));
    }
    let mut seen = BTreeSet::new();
    for (file, function) in &entries {
        if !seen.insert((file, function)) {
            mistakes.push(format!("{file}: {function} is named twice"));
        }
        let has =
            |text: String| [format!("fn {function}("), format!("fn {function}<")].iter().any(|f| text.contains(f));
        if !text(file).is_some_and(has) {
            mistakes.push(format!("there is no function {function} in supervisor/{file}"));
        }
    }
    mistakes
}

#[test]
fn each_walk_names_functions_that_are_there_and_each_once() {
    for page in ["walk-prompt.md", "walk-environment.md", "walk-crash.md"] {
        let text = read(&root().join("docs/internals").join(page));
        let found = mistakes(&text, |file| fs::read_to_string(root().join("supervisor").join(file)).ok());
        assert!(found.is_empty(), "docs/internals/{page}: {found:#?}");
    }
}

#[test]
fn a_walk_with_a_function_that_is_gone_or_named_twice_is_refused() {
    let page = |names: &[&str]| {
        let entry = |(at, name): (usize, &&str)| format!("{}. `a/src/b.rs: {name}` does it.\n", at + 1);
        names.iter().enumerate().map(entry).collect::<String>()
    };
    let text = "fn a() fn b<T>() fn c() fn d() fn e() fn f() fn g() fn h()";
    let code = |file: &str| (file == "a/src/b.rs").then(|| text.to_owned());
    let good = ["a", "b", "c", "d", "e", "f", "g", "h"];
    assert_eq!(mistakes(&page(&good), code), Vec::<String>::new());
    assert_eq!(mistakes(&page(&good[1..]), code), ["the walk has 7 entries"]);
    let twice = [&good[..], &["a"]].concat();
    assert_eq!(mistakes(&page(&twice), code), ["a/src/b.rs: a is named twice"]);
    let gone = [&good[..], &["gone"]].concat();
    assert_eq!(mistakes(&page(&gone), code), ["there is no function gone in supervisor/a/src/b.rs"]);
    assert_eq!(mistakes("1. some prose\n", code), ["no `FILE: FUNCTION` in \"1. some prose\""]);
}

/// Markdown files below a directory.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => pages(&path),
        Some(extension) if extension == "md" => vec![path],
        _ => Vec::new(),
    };
    paths.flat_map(of).collect()
}

/// Sources that a page names in code spans, such as `host/src/lock.rs` and `host/src/platform/`.
fn named_sources(page: &str) -> impl Iterator<Item = &str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
    let is_path = move |span: &&str| span.starts_with(|c: char| c.is_ascii_lowercase()) && span.chars().all(is_plain);
    let is_rust = |span: &str| Path::new(span).extension().is_some_and(|extension| extension == "rs");
    let is_source = move |span: &&str| span.contains("/src/") || (span.contains('/') && is_rust(span));
    page.split('`').skip(1).step_by(2).filter(is_path).filter(is_source)
}

#[test]
fn each_source_that_a_page_names_is_there() {
    let pages = pages(&root().join("docs"));
    let mut gone = Vec::new();
    let others = ["CONTRIBUTING.md", "README.md", "SECURITY.md", "supervisor/DESIGN.md"].map(|page| root().join(page));
    for page in pages.iter().chain(&others) {
        for source in named_sources(&read(page)) {
            if !root().join(source).exists() && !root().join("supervisor").join(source).exists() {
                gone.push(format!("{}: {source}", page.display()));
            }
        }
    }
    assert!(gone.is_empty(), "{gone:#?}");
    let page = "`host/src/lock.rs`, `host/src/platform/` and `tests/it/x.rs`, not `lock.rs` or `a/src/b.rs: f`";
    let named: Vec<&str> = named_sources(page).collect();
    assert_eq!(named, ["host/src/lock.rs", "host/src/platform/", "tests/it/x.rs"]);
}

/// The configurations of `docs/examples/`: each directory, and whether it is an administrator's `/etc/agentd`.
const EXAMPLES: &[(&str, bool)] =
    &[("person", false), ("eda-site", true), ("administrator", true), ("container", true)];

/// The files of a configuration, in the order in which agentd reads them.
fn files(directory: &Path) -> Vec<PathBuf> {
    let in_directory = |directory: PathBuf| {
        let mut files: Vec<PathBuf> = fs::read_dir(directory)
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        files.sort();
        files
    };
    [in_directory(directory.to_owned()), in_directory(directory.join("conf.d"))].concat()
}

/// Lets agentd check files in an empty home, as `agentctl config check` does.
fn check(home: &Path, system: bool, files: &[PathBuf]) -> ConfigurationCheck {
    let output = Command::new(paths::agentctl())
        .args(["config", "check", "--json"])
        .args(system.then_some("--system"))
        .args(files)
        .env_clear()
        .env("HOME", home)
        .env("XDG_RUNTIME_DIR", home.join("run"))
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"))
}

#[test]
fn agentd_finds_no_mistake_in_the_examples() {
    let examples = root().join("docs/examples");
    let page = read(&root().join("docs/examples.md"));
    for (name, system) in EXAMPLES {
        let home = tempfile::tempdir().unwrap();
        let files = files(&examples.join(name));
        assert!(!files.is_empty(), "docs/examples/{name} has no configuration");
        let found = check(home.path(), *system, &files);
        assert!(found.mistakes.is_empty(), "docs/examples/{name}: {:#?}", found.mistakes);
        for file in &files {
            assert!(found.files.contains(file), "{} was not read: {:?}", file.display(), found.files);
            let text = read(file);
            assert!(
                text.lines().nth(1).is_some_and(|line| line.starts_with("# ")),
                "{} does not say for whom it is",
                file.display()
            );
            let include = file.strip_prefix(root().join("docs")).unwrap().display().to_string();
            assert!(
                page.contains(&format!("{{{{#include {include}:2:}}}}")),
                "docs/examples.md does not show {include}"
            );
        }
    }
    let known: BTreeSet<String> = EXAMPLES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let there = fs::read_dir(&examples).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<_>>(), known);
}
