//! Words as programs and options have them.

use super::glob::HOLE;
use super::shell::Word;
use super::tables::Wrapper;

/// The words as one text. A word that may be none takes the space around it into its hole.
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

/// Name and value of `NAME=value`.
pub(super) fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let name = name.strip_suffix('+').unwrap_or(name);
    let bare = name.split_once('[').map_or(name, |(bare, _)| bare);
    let is_name = !bare.is_empty()
        && !bare.starts_with(|c: char| c.is_ascii_digit())
        && bare.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((bare, value))
}

/// The program without its directory. zsh's `=git` is the path of git.
pub(super) fn name_of(program: &str) -> String {
    program.rsplit('/').next().unwrap_or(program).trim_start_matches('=').to_owned()
}

/// The names that it may be known by: file systems exist that do not tell upper case from lower.
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

/// `python3.12` is a python.
pub(super) fn versioned(name: &str, program: &str) -> bool {
    name.strip_prefix(program).is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// What stands in the place of `{}` is not known.
pub(super) fn with_holes(word: &Word) -> Word {
    if !word.text.contains("{}") {
        return word.clone();
    }
    Word::literal(&word.text.replace("{}", &HOLE.to_string()))
}

/// Reads `-abc`: how many words it takes, whether that is in doubt, and the command that begins in it.
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

/// Whether a sed program may have GNU sed's command or flag `e`.
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
