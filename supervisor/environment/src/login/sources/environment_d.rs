//! Reads the folders of environment.d(5), as systemd's user manager does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{VariableMap, is_name};

/// Returns the folders, with the highest precedence first.
pub(super) fn folders(root: &Path, home: &Path) -> Vec<PathBuf> {
    let system = ["etc", "run", "usr/local/lib", "usr/lib"].map(|place| root.join(place).join("environment.d"));
    [home.join(".config/environment.d")].into_iter().chain(system).collect()
}

/// Returns the files in reading order: by name, across folders. Of files with equal names, the folder with the
/// highest precedence counts. A link to /dev/null there disables the name.
pub(super) fn files(root: &Path, home: &Path) -> Vec<PathBuf> {
    let mut found: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for folder in folders(root, home) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_one = Path::new(&entry.file_name()).extension().is_some_and(|extension| extension == "conf");
            if is_one {
                found.entry(entry.file_name()).or_insert_with(|| entry.path());
            }
        }
    }
    found.into_values().collect()
}

/// Applies a file. Values can use earlier variables: `$NAME`, `${NAME}`, `${NAME:-else}`, `${NAME:+instead}`.
pub(super) fn apply(content: &[u8], known: &mut VariableMap) {
    for (name, value) in assignments(content) {
        let value = expanded(&value, known, 0);
        known.insert(name, value);
    }
}

/// Parses `NAME=value` with shell quotes. A backslash escapes the next byte or the line end.
fn assignments(content: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let line = rest.trim_ascii_start();
        let end = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
        let equals = line[..end].iter().position(|byte| *byte == b'=');
        let Some(equals) = equals.filter(|_| !matches!(line.first(), Some(b'#' | b';'))) else {
            rest = &line[end..];
            continue;
        };
        let name = line[..equals].trim_ascii();
        let (value, behind) = value(&line[equals + 1..]);
        rest = behind;
        if is_name(name) && !name[0].is_ascii_digit() {
            all.push((String::from_utf8_lossy(name).into_owned(), value));
        }
    }
    all
}

/// Parses a value. Returns the value and the text after its line.
fn value(text: &[u8]) -> (Vec<u8>, &[u8]) {
    let blank = text.iter().position(|byte| *byte == b'\n' || !byte.is_ascii_whitespace()).unwrap_or(text.len());
    let mut rest = &text[blank..];
    let mut value = Vec::new();
    // Length of the value including significant blanks: blanks in quotes, and blanks before further text.
    let mut fixed = 0;
    let mut quote: Option<u8> = None;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match (quote, byte) {
            (None, b'\n') => break,
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => {
                quote = None;
                fixed = value.len();
            }
            (Some(b'\''), _) => value.push(byte),
            (_, b'\\') => {
                let Some((&next, behind)) = rest.split_first() else { break };
                rest = behind;
                // In quotes, a backslash before any other character stays.
                if quote.is_some() && !b"\"\\`$\n".contains(&next) {
                    value.push(b'\\');
                }
                if next != b'\n' {
                    value.push(next);
                    fixed = value.len();
                }
            }
            _ => {
                value.push(byte);
                if quote.is_some() || !byte.is_ascii_whitespace() {
                    fixed = value.len();
                }
            }
        }
    }
    value.truncate(fixed);
    (value, rest)
}

/// Maximum depth of nested expansions, to limit recursion.
const DEEPEST: u32 = 16;

fn expanded(text: &[u8], known: &VariableMap, depth: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'$' {
            out.push(byte);
            continue;
        }
        match behind.first() {
            Some(b'$') => {
                out.push(b'$');
                rest = &behind[1..];
            }
            Some(b'{') => match closed(behind) {
                Some(end) if depth < DEEPEST => {
                    out.extend_from_slice(&in_braces(&behind[1..end], known, depth));
                    rest = &behind[end + 1..];
                }
                _ => out.push(b'$'),
            },
            Some(next) if *next == b'_' || next.is_ascii_alphabetic() => {
                let end = behind.iter().position(|byte| *byte != b'_' && !byte.is_ascii_alphanumeric());
                let (name, after) = behind.split_at(end.unwrap_or(behind.len()));
                out.extend_from_slice(of(known, name));
                rest = after;
            }
            _ => out.push(b'$'),
        }
    }
    out
}

/// Returns the offset of the brace that closes the first brace of `text`.
fn closed(text: &[u8]) -> Option<usize> {
    let mut open = 0_u32;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 1 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn in_braces(text: &[u8], known: &VariableMap, depth: u32) -> Vec<u8> {
    let Some(colon) = text.windows(2).position(|two| matches!(two, b":-" | b":+")) else {
        return of(known, text).to_vec();
    };
    let (value, other) = (of(known, &text[..colon]), &text[colon + 2..]);
    match (text[colon + 1], value.is_empty()) {
        (b'-', false) => value.to_vec(),
        (b'-', true) | (_, false) => expanded(other, known, depth + 1),
        (_, true) => Vec::new(),
    }
}

fn of<'a>(known: &'a VariableMap, name: &[u8]) -> &'a [u8] {
    std::str::from_utf8(name).ok().and_then(|name| known.get(name)).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_file(text: &str) -> Vec<(String, String)> {
        let mut known = VariableMap::from([("HOME".to_owned(), b"/h".to_vec()), ("SET".to_owned(), b"s".to_vec())]);
        apply(text.as_bytes(), &mut known);
        let new = known.into_iter().filter(|(name, _)| name != "HOME" && name != "SET");
        new.map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned())).collect()
    }

    #[test]
    fn values_are_quoted_and_expanded_as_the_manual_describes() {
        for (text, expected) in [
            ("A=x\n", "x"),
            ("  A = x \n", "x"),
            ("# A=1\n; A=2\nA=3\n", "3"),
            ("A=\"two  words \"\n", "two  words "),
            ("A='$SET'\n", "s"),
            ("A=a\"b c\"d\n", "ab cd"),
            ("A=one\\\ntwo\n", "onetwo"),
            ("A=a\\ b\\\\c\n", "a b\\c"),
            ("A=\"a\\nb\\\"c\"\n", "a\\nb\"c"),
            ("A=$HOME/bin:${HOME}/x$\n", "/h/bin:/h/x$"),
            ("A=${SET:-no}${NOT:-else}${SET:+yes}${NOT:+no}\n", "selseyes"),
            ("A=${NOT:-${HOME}/deep}\n", "/h/deep"),
            ("A=/opt/lib${NOT:+:$NOT}\n", "/opt/lib"),
            ("A=$$x\n", "$x"),
            ("A=1\nA=${A}2\n", "12"),
            ("A=\n", ""),
            ("A=${open\n", "${open"),
            ("no equals\nA=x", "x"),
            ("A=\"over\nlines\"\n", "over\nlines"),
        ] {
            assert_eq!(of_file(text), [("A".to_owned(), expected.to_owned())], "{text}");
        }
        assert_eq!(of_file("1A=x\nB-C=x\n=x\n\n"), []);
        let deep = format!("A={}x{}", "${N:-".repeat(5000), "}".repeat(5000));
        assert!(of_file(&deep)[0].1.starts_with("${N:-"), "it ends, whatever is nested");
    }

    #[test]
    fn files_are_read_by_name_and_one_folder_hides_another() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("home/kim");
        for (file, text) in [
            ("usr/lib/environment.d/10-a.conf", "A=usr\n"),
            ("usr/lib/environment.d/20-b.conf", "B=usr\n"),
            ("usr/lib/environment.d/30-c.conf", "C=usr\n"),
            ("usr/lib/environment.d/readme", "D=usr\n"),
            ("etc/environment.d/10-a.conf", "A=etc\n"),
            ("home/kim/.config/environment.d/15.conf", "B=home\n"),
        ] {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        std::os::unix::fs::symlink("/dev/null", root.path().join("etc/environment.d/30-c.conf")).unwrap();
        let files = files(root.path(), &home);
        let names: Vec<_> =
            files.iter().map(|file| file.strip_prefix(root.path()).unwrap().display().to_string()).collect();
        assert_eq!(
            names,
            [
                "etc/environment.d/10-a.conf",
                "home/kim/.config/environment.d/15.conf",
                "usr/lib/environment.d/20-b.conf",
                "etc/environment.d/30-c.conf",
            ]
        );
    }
}
