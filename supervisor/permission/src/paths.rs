//! Normalises paths as text: removes `..` and `//`, and makes `~` and relative paths absolute.
//!
//! The file system is not read. Symbolic links are not followed, so a rule applies to the names in a request and not
//! to the targets of links.

use agentd_glob::HOLE;

/// Returns the absolute path without `.`, `..` and repeated slashes. An unknown start of the path becomes a hole.
pub(super) fn normal(path: &str, directory: Option<&str>, home: Option<&str>) -> String {
    let unknown = HOLE.to_string();
    let mut parts: Vec<&str> = Vec::new();
    let rest = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            parts.extend(home.unwrap_or(&unknown).split('/'));
            rest
        }
        // The home directory of another user, or a named directory of zsh.
        Some(_) => return unknown,
        None if path.starts_with('/') => path,
        None => {
            parts.extend(directory.unwrap_or(&unknown).split('/'));
            path
        }
    };
    let mut normal: Vec<&str> = Vec::new();
    for part in parts.into_iter().chain(rest.split('/')) {
        match part {
            "" | "." => {}
            // If the removed part is not known, the remaining path is not known either.
            ".." if normal.last().is_some_and(|last| last.contains(HOLE)) => {
                normal.clear();
                normal.push(&unknown);
            }
            ".." => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    let text = normal.join("/");
    if text.starts_with(HOLE) { text } else { format!("/{text}") }
}

/// Makes a rule's pattern absolute like a path. A pattern that begins with `*` matches at any position.
pub(super) fn pattern(pattern: &str, directory: Option<&str>, home: Option<&str>) -> String {
    if pattern.starts_with('*') { pattern.to_owned() } else { normal(pattern, directory, home) }
}

/// Returns the parts of a command's word that may be a path: the whole word, and the text after an option's letter,
/// `=`, `@` or a host.
pub(super) fn in_word(word: &str) -> impl Iterator<Item = &str> {
    let behind = |mark: char| word.split_once(mark).map(|(_, behind)| behind).filter(|behind| !behind.is_empty());
    let absolute = word.find('/').map(|at| &word[at..]);
    let of_home = word.find("~/").map(|at| &word[at..]);
    [Some(word), behind('='), behind(':'), word.strip_prefix('@'), absolute, of_home].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_absolute_and_plain() {
        for (path, expected) in [
            ("/etc//x/./y/../z/", "/etc/x/z"),
            ("../../..", "/"),
            ("a/../../b", "/home/b"),
            ("~/.ssh/id", "/root/.ssh/id"),
            ("~", "/root"),
            ("~kim/x", "\u{10fffe}"),
            ("", "/home/work"),
            ("/a/\u{10fffe}/../b", "\u{10fffe}/b"),
        ] {
            assert_eq!(normal(path, Some("/home/work"), Some("/root")), expected, "{path}");
        }
        assert_eq!(normal("x", None, None), "\u{10fffe}/x");
        assert_eq!(pattern("*.env", Some("/w"), None), "*.env");
        assert_eq!(pattern("secrets/*", Some("/w"), None), "/w/secrets/*");
    }
}
