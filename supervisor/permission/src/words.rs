//! Helpers for the words of a command: programs, options and assignments.

use super::shell::Word;
use super::tables::Wrapper;
use agentd_glob::HOLE;

/// Joins the words to one text. A loose word may be empty, so its hole includes the spaces around it.
pub(super) fn joined(words: &[Word]) -> String {
    let mut text = String::new();
    let mut before_loose = true;
    for word in words {
        if !before_loose && !word.loose {
            text.push(' ');
        }
        text.push_str(&word.text);
        before_loose = word.loose;
    }
    text
}

/// Splits `NAME=value` into name and value.
pub(super) fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let name = name.strip_suffix('+').unwrap_or(name);
    let bare = name.split_once('[').map_or(name, |(bare, _)| bare);
    let is_name = !bare.is_empty()
        && !bare.starts_with(|c: char| c.is_ascii_digit())
        && bare.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((bare, value))
}

/// Returns the program's name without its directory. In zsh, `=git` is the path of git.
pub(super) fn name_of(program: &str) -> String {
    program.rsplit('/').next().unwrap_or(program).trim_start_matches('=').to_owned()
}

/// Returns the possible names of the program, because some file systems ignore case.
pub(super) fn names(program: &str) -> Vec<String> {
    let name = name_of(program);
    let lower = name.to_lowercase();
    let bare = lower.strip_suffix(".exe").unwrap_or(&lower).to_owned();
    let mut names = vec![name];
    for other in [lower, bare] {
        if !names.contains(&other) {
            names.push(other);
        }
    }
    names
}

pub(super) fn is_stdin(path: &str) -> bool {
    path == "-" || ["/dev/stdin", "/dev/fd/", "/proc/self/fd/"].iter().any(|place| path.starts_with(place))
}

/// Reports whether `name` is the program with a version, such as `python3.12`.
pub(super) fn versioned(name: &str, program: &str) -> bool {
    name.strip_prefix(program).is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Replaces `{}` by a hole, because the inserted text is not known.
pub(super) fn with_holes(word: &Word) -> Word {
    if !word.text.contains("{}") {
        return word.clone();
    }
    Word::literal(&word.text.replace("{}", &HOLE.to_string()))
}

/// Parses a group of short options such as `-abc`. Returns the number of its words, whether that is uncertain, and
/// the command that begins in the group.
pub(super) fn cluster(letters: &str, wrapper: &Wrapper) -> (usize, bool, Option<String>) {
    let mut doubt = false;
    for (at, letter) in letters.char_indices() {
        let attached = &letters[at + letter.len_utf8()..];
        if wrapper.command.contains(letter) {
            return (if attached.is_empty() { 2 } else { 1 }, doubt, Some(attached.to_owned()));
        }
        if wrapper.short.contains(letter) {
            return (if attached.is_empty() { 2 } else { 1 }, doubt, None);
        }
        doubt |= !wrapper.flags.contains(letter) && !letter.is_ascii_digit();
    }
    (1, doubt, None)
}

/// Reports whether a sed program may contain GNU sed's command or flag `e`.
pub(super) fn may_execute(text: &str) -> bool {
    text.split([';', '\n', '{', '}']).any(|command| {
        let command = command.trim_start_matches(|c: char| c.is_ascii_digit() || " \t,$!~+".contains(c));
        let command = match command.strip_prefix('/').and_then(|rest| rest.split_once('/')) {
            Some((_, behind)) => behind.trim_start_matches(|c: char| " \t,!I".contains(c)),
            None => command,
        };
        if command.starts_with('e') && (command.len() == 1 || command[1..].starts_with([' ', '\t'])) {
            return true;
        }
        let Some(rest) = command.strip_prefix('s') else { return false };
        let Some(delimiter) = rest.chars().next().filter(|c| !c.is_alphanumeric() && *c != '\\') else { return false };
        let flags = rest.rsplit(delimiter).next().unwrap_or_default();
        rest.matches(delimiter).count() >= 3 && flags.chars().all(char::is_alphanumeric) && flags.contains('e')
    })
}
