//! Finds the files that a script sources, from its text alone, without I/O.
//!
//! Lines are split into words like in a shell, but nothing is expanded. Files behind a variable, a function or
//! `eval` are missed, and lines of a heredoc are taken for commands. The result informs a reader and decides
//! nothing.

use std::path::{Path, PathBuf};

/// A `source` or `.` command in a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceCommand {
    /// Line number, from 1.
    pub line: usize,
    /// Argument as written.
    pub argument: String,
    /// Path of the file, if the text alone determines it.
    pub path: Option<PathBuf>,
}

/// Words that can come before a command.
const BEFORE_COMMANDS: [&str; 12] =
    ["if", "then", "elif", "else", "while", "until", "do", "{", "!", "time", "builtin", "command"];

/// Returns the files that the script sources when it runs in `directory`.
pub fn sourced(script: &str, directory: &Path) -> Vec<SourceCommand> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(script.lines()) {
        let mut begins = true;
        let mut words = words(line).into_iter().peekable();
        while let Some(word) = words.next() {
            match word {
                Word::Separator => begins = true,
                Word::Word(word) if begins && (word == "." || word == "source") => {
                    begins = false;
                    if let Some(Word::Word(argument)) = words.peek() {
                        let path = literal(argument).and_then(|path| place(&path, directory));
                        found.push(SourceCommand { line: number, argument: argument.clone(), path });
                    }
                }
                Word::Word(word) => begins = begins && BEFORE_COMMANDS.contains(&word.as_str()),
            }
        }
    }
    found
}

/// Returns the path of a literal argument. A name without a slash is unknown, because bash searches PATH first.
fn place(path: &str, directory: &Path) -> Option<PathBuf> {
    path.contains('/').then(|| directory.join(path.strip_prefix("./").unwrap_or(path)))
}

#[derive(Debug)]
enum Word {
    Word(String),
    /// `;`, `&`, `|` or a parenthesis, after which a command may start.
    Separator,
}

fn words(line: &str) -> Vec<Word> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut quote, mut nested) = (None, 0_u32);
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        let bare = quote.is_none() && nested == 0;
        match c {
            '\\' if quote != Some('\'') => {
                word.push(c);
                word.extend(characters.next());
                continue;
            }
            '\'' | '"' if quote.is_none() => quote = Some(c),
            '\'' | '"' if quote == Some(c) => quote = None,
            '$' if quote != Some('\'') && characters.peek() == Some(&'(') => {
                nested += 1;
                word.push(c);
                word.extend(characters.next());
                continue;
            }
            ')' if nested > 0 && quote != Some('\'') => nested -= 1,
            '#' if bare && word.is_empty() => break,
            ';' | '&' | '|' | '(' | ')' if bare => {
                words.extend((!word.is_empty()).then(|| Word::Word(std::mem::take(&mut word))));
                words.push(Word::Separator);
                continue;
            }
            c if c.is_whitespace() && bare => {
                words.extend((!word.is_empty()).then(|| Word::Word(std::mem::take(&mut word))));
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    words.extend((!word.is_empty()).then_some(Word::Word(word)));
    words
}

/// Returns the word without its quotes, if nothing in it is expanded.
fn literal(word: &str) -> Option<String> {
    let (mut text, mut quote) = (String::new(), None);
    let mut characters = word.chars();
    if word.starts_with('~') {
        return None;
    }
    while let Some(c) = characters.next() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            ('\'', Some('\'')) | ('"', Some('"')) => quote = None,
            ('\\', None) => text.push(characters.next()?),
            ('$' | '`' | '\\', Some('"')) | ('$' | '`' | '*' | '?' | '[' | '{', None) => return None,
            (c, _) => text.push(c),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(script: &str) -> Vec<(usize, String, Option<String>)> {
        let sourced = sourced(script, Path::new("/w"));
        let path = |path: PathBuf| path.display().to_string();
        sourced.into_iter().map(|one| (one.line, one.argument, one.path.map(path))).collect()
    }

    #[test]
    fn literal_paths_are_found_wherever_a_command_can_stand() {
        for (script, path) in [
            ("source /etc/x.sh", "/etc/x.sh"),
            ("  . ./lib/a.sh", "/w/lib/a.sh"),
            ("[ -r ../x ] && . ../x", "/w/../x"),
            ("if . '/a b/c'; then", "/a b/c"),
            (r#"test -d x || { source "/q/r" ; }"#, "/q/r"),
            ("(. /in/parentheses)", "/in/parentheses"),
            (r"builtin . /with\ blank", "/with blank"),
            ("case x in y) . /case.sh;; esac", "/case.sh"),
        ] {
            let found = found(script);
            assert_eq!(found.len(), 1, "{script}: {found:?}");
            assert_eq!((found[0].0, found[0].2.as_deref()), (1, Some(path)), "{script}");
        }
    }

    #[test]
    fn arguments_that_need_expansion_are_reported_without_a_path() {
        for (script, argument) in [
            (r#". "$HOME/x""#, r#""$HOME/x""#),
            ("source $(brew --prefix)/y z", "$(brew --prefix)/y"),
            (r#". "$(dirname "${BASH_SOURCE[0]}")/lib.sh""#, r#""$(dirname "${BASH_SOURCE[0]}")/lib.sh""#),
            (". ~/z", "~/z"),
            (". activate", "activate"),
        ] {
            assert_eq!(found(script), [(1, argument.to_owned(), None)], "{script}");
        }
    }

    #[test]
    fn words_that_only_resemble_a_source_command_are_ignored() {
        for script in
            ["# . /x", "echo . /x", "echo 'a; . /x'", "./run.sh /x", "export A=. B=source", "find . -name x", "."]
        {
            assert_eq!(found(script), [], "{script}");
        }
        assert_eq!(found("\n\n. /x\n")[0].0, 3);
    }
}
