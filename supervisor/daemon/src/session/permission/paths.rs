//! Paths by their names alone: `..` and `//` are taken out, and `~` and relative paths made absolute.
//!
//! Nothing is looked up. A symlink is not followed, so a rule holds for the names that a request has and not for what they lead to.

use super::glob::HOLE;

/// The absolute path without `.`, `..` and doubled slashes; a hole where the beginning is not known.
pub(super) fn normal(path: &str, directory: Option<&str>, home: Option<&str>) -> String {
    let unknown = HOLE.to_string();
    let mut parts: Vec<&str> = Vec::new();
    let rest = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            parts.extend(home.unwrap_or(&unknown).split('/'));
            rest
        }
        // Another user's home, or zsh's name for a directory.
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
            // Where what is left behind is not known, neither is what remains.
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

/// A rule's pattern, made absolute like a path. One that begins with `*` fits anywhere.
pub(super) fn pattern(pattern: &str, directory: Option<&str>, home: Option<&str>) -> String {
    if pattern.starts_with('*') { pattern.to_owned() } else { normal(pattern, directory, home) }
}

/// What of a command's word may be a path: all of it, and what begins behind an option's letter, `=`, `@` or a host.
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
