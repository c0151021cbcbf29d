//! Generates the table from `families/*.toml`, so that the component reads and parses no file at run time.
//!
//! The parser supports a subset of TOML: keys with a text or a list of texts, and comments on their own lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The lists that a family may have.
const LISTS: [&str; 5] = ["names", "patterns", "passwords", "state", "state_with"];
/// With this environment variable the test writes the table instead of comparing it.
const WRITE: &str = "AGENTD_WRITE_FAMILIES";
const WIDEST: usize = 116;

#[test]
fn the_table_is_what_the_files_of_the_families_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (table, file) = (table(&root.join("families")), root.join("src/families/table.rs"));
    if env::var_os(WRITE).is_some() {
        fs::write(&file, &table).expect("the table can be written");
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    assert!(written == table, "run {WRITE}=1 cargo test -p agentd-plugin-whitelist in plugins/");
}

fn table(folder: &Path) -> String {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).expect("the families").map(|entry| entry.expect("a family").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut table = "//! Generated from `families/*.toml` by `generate.rs`.\n\nuse super::Family;\n\n".to_owned();
    table.push_str("pub(crate) const FAMILIES: &[Family] = &[\n");
    for path in files {
        let text = fs::read_to_string(&path).expect("a family can be read");
        let mut family = parse(&path, &text);
        for key in ["title", "source"] {
            let given = family.remove(key).unwrap_or_else(|| panic!("{}: there is no {key}", path.display()));
            assert!(given.len() == 1 && !given[0].is_empty(), "{}: {key} is empty", path.display());
        }
        let id = path.file_stem().and_then(|stem| stem.to_str()).expect("a name in UTF-8");
        writeln!(table, "    Family {{\n        id: {id:?},").expect("a String takes everything");
        for key in LISTS {
            let list = family.remove(key).unwrap_or_default();
            assert!(list.is_sorted_by(|a, b| a < b), "{}: {key} is not in order, or has one twice", path.display());
            writeln!(table, "        {key}: &[{}],", wrapped(&list)).expect("a String takes everything");
        }
        table.push_str("    },\n");
        assert!(family.is_empty(), "{}: unknown keys {:?}", path.display(), family.keys());
    }
    table.push_str("];\n");
    table
}

fn wrapped(list: &[String]) -> String {
    let (mut text, mut line) = (String::new(), String::new());
    for name in list {
        let word = format!("{name:?}, ");
        if line.len() + word.len() + 12 > WIDEST {
            text.extend(["\n            ", line.trim_end()]);
            line.clear();
        }
        line.push_str(&word);
    }
    if text.is_empty() {
        return line.trim_end_matches([',', ' ']).to_owned();
    }
    text + "\n            " + line.trim_end() + "\n        "
}

/// Parses the keys of a file. A single text becomes a list of one.
fn parse(path: &Path, text: &str) -> BTreeMap<String, Vec<String>> {
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut open: Option<String> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = || -> ! { panic!("{}:{number}: {line}", path.display()) };
        let rest = if open.is_some() {
            line
        } else {
            let Some((key, value)) = line.split_once(" = ") else { wrong() };
            if keys.insert(key.to_owned(), Vec::new()).is_some() {
                wrong();
            }
            open = Some(key.to_owned());
            value
        };
        let is_list = rest.starts_with('[') || line == rest;
        let list = keys.get_mut(open.as_deref().unwrap_or_default()).expect("the key that is read");
        let quoted: Vec<&str> = rest.split('"').collect();
        if quoted.len().is_multiple_of(2) {
            wrong();
        }
        list.extend(quoted.iter().skip(1).step_by(2).map(|&text| text.to_owned()));
        if !quoted.iter().step_by(2).all(|between| between.chars().all(|c| "[], ".contains(c))) {
            wrong();
        }
        if !is_list || quoted.last().is_some_and(|last| last.ends_with(']')) {
            open = None;
        }
    }
    assert!(open.is_none(), "{}: a list has no end", path.display());
    keys
}
