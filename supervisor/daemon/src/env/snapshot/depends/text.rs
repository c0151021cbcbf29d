//! What a start-up file reads besides what a trace names, as far as its text tells: files that it sources, prints, tests or loops over.
//! Pure, and for the texts of all shells: what differs between them is small here.
//!
//! A word that only looks like a file costs one stat(2) at each launch. What stands behind a function or a computed name is missed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::env::snapshot::fingerprint::Watched;

/// What a text names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) watched: Vec<Watched>,
    /// Those of them that are start-up files themselves.
    pub(super) sourced: Vec<PathBuf>,
}

/// Words behind which a command can stand.
const BEFORE_COMMANDS: [&str; 18] = [
    "if", "then", "elif", "else", "while", "until", "do", "!", "time", "builtin", "command", "eval", "and", "or",
    "not", "begin", "exec", "{",
];
/// Commands that print what is in the files that they are given.
const PRINT: [&str; 17] = [
    "cat", "head", "tail", "grep", "egrep", "fgrep", "sed", "awk", "gawk", "cut", "tr", "sort", "jq", "yq", "open",
    "tac", "base64",
];
const SOURCE: [&str; 3] = ["source", ".", "source-env"];
/// Directories that are too busy or too large to be listed for a pattern.
const NOT_LISTED: [&str; 6] = ["/", "/home", "/usr", "/tmp", "/run", "/var"];

/// `PATH_MAX` of Linux.
const LONGEST: usize = 4096;

/// One text, and what its variables are.
pub(super) struct Text<'a> {
    pub(super) home: &'a Path,
    /// What a variable is: as the login shell gave it.
    pub(super) variables: &'a dyn Fn(&str) -> Option<String>,
}

impl Text<'_> {
    pub(super) fn read(&self, text: &str) -> Named {
        let mut named = Named::default();
        let mut local = BTreeMap::new();
        let commands = commands(text);
        for (at, command) in commands.iter().enumerate() {
            self.command(command, &mut local, &mut named);
            // nushell's `'FILE' | path exists`. Elsewhere a word that stands alone is not looked at: it may be a line of a key.
            let next =
                commands.get(at + 1).map(|words| words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>());
            if let ([.., file], Some(["path", "exists", ..])) = (command.as_slice(), next.as_deref()) {
                let file = self.expand(&file.text, &local).and_then(|file| path(&file));
                named.watched.extend(file.map(Watched::Presence));
            }
        }
        named
    }

    fn command(&self, words: &[Word], local: &mut BTreeMap<String, String>, named: &mut Named) {
        let expand = |word: &str, local: &BTreeMap<String, String>| self.expand(word, local);
        for word in words.iter().filter(|word| word.is_input) {
            named.watched.extend(expand(&word.text, local).and_then(|text| path(&text)).map(Watched::Content));
        }
        let words: Vec<&str> = words.iter().filter(|word| !word.is_input).map(|word| word.text.as_str()).collect();
        let begin = words.iter().position(|word| !BEFORE_COMMANDS.contains(word)).unwrap_or(words.len());
        let Some((&program, arguments)) = words[begin..].split_first() else { return };
        if let Some((name, value)) = assigned(program, arguments)
            && let Some(value) = expand(value, local)
        {
            local.insert(name.to_owned(), value);
        }
        let expanded = |word: &&str| expand(word, local);
        if SOURCE.contains(&program) {
            let file = arguments.iter().find(|word| !word.starts_with('-')).and_then(expanded);
            // At a login the working directory is the home.
            let file = file.filter(|file| !file.is_empty() && !has_pattern(file)).map(|file| self.home.join(file));
            named.watched.extend(file.clone().map(Watched::Content));
            named.sourced.extend(file);
        } else if PRINT.contains(&program) {
            let files = arguments.iter().filter_map(expanded).filter_map(|file| path(&file));
            named.watched.extend(files.map(Watched::Content));
        }
        let is_test = ["[", "[[", "test"].contains(&program) || program.starts_with('-');
        if is_test {
            let pairs =
                words.windows(2).filter(|pair| matches!(pair[0], "-f" | "-r" | "-e" | "-d" | "-s" | "-a" | "-x"));
            let files = pairs.filter_map(|pair| expanded(&pair[1])).filter_map(|file| path(&file));
            named.watched.extend(files.map(Watched::Presence));
        }
        for word in &words[begin..] {
            named.watched.extend(expanded(word).and_then(|word| self.pattern(&word)));
        }
    }

    fn pattern(&self, word: &str) -> Option<Watched> {
        let (directory, pattern) = word.rsplit_once('/')?;
        // zsh has qualifiers behind a pattern: `*.zsh(N)`.
        let pattern = pattern.split('(').next().unwrap_or_default();
        let is_one = pattern.contains(['*', '?']) && directory.starts_with('/') && !has_pattern(directory);
        let is_listed = !NOT_LISTED.contains(&directory) && Path::new(directory) != self.home;
        (is_one && is_listed).then(|| Watched::Names(directory.into(), pattern.to_owned()))
    }

    /// The word with its variables put in; nothing where one of them is not known.
    fn expand(&self, word: &str, local: &BTreeMap<String, String>) -> Option<String> {
        let (mut text, mut rest) = (String::new(), word);
        if let Some(below) = word.strip_prefix('~') {
            if !below.is_empty() && !below.starts_with('/') {
                return None;
            }
            text.push_str(self.home.to_str()?);
            rest = below;
        }
        while let Some(at) = rest.find('$') {
            text.push_str(&rest[..at]);
            let behind = &rest[at + 1..];
            let (name, default, behind) = if let Some(inner) = behind.strip_prefix('{') {
                let (inner, behind) = inner.split_once('}')?;
                let (name, default) = inner.split_once(":-").or(inner.split_once('-')).unzip();
                (name.unwrap_or(inner), default, behind)
            } else {
                let behind = behind.strip_prefix("env.").or(behind.strip_prefix("nu.")).unwrap_or(behind);
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' && word.contains("$nu.");
                let end = behind.find(|c| !is_name(c)).unwrap_or(behind.len());
                (&behind[..end], None, &behind[end..])
            };
            match self.variable(name, local) {
                Some(value) => text.push_str(&value),
                None => text.push_str(&self.expand(default?, local)?),
            }
            // `a=$a$a` again and again is no path.
            if text.len() > LONGEST {
                return None;
            }
            rest = behind;
        }
        text.push_str(rest);
        Some(text)
    }

    fn variable(&self, name: &str, local: &BTreeMap<String, String>) -> Option<String> {
        let below = |path: &str| self.home.join(path).to_str().map(str::to_owned);
        if name.is_empty() {
            return None;
        }
        local.get(name).cloned().or_else(|| (self.variables)(name)).or_else(|| match name {
            "HOME" | "home" | "home-path" | "ZDOTDIR" => self.home.to_str().map(str::to_owned),
            "XDG_CONFIG_HOME" => below(".config"),
            "XDG_DATA_HOME" => below(".local/share"),
            "__fish_config_dir" => below(".config/fish"),
            "default-config-dir" => below(".config/nushell"),
            _ => None,
        })
    }
}

fn path(text: &str) -> Option<PathBuf> {
    (text.starts_with('/') && text.len() > 1 && !has_pattern(text)).then(|| PathBuf::from(text))
}

fn has_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '$', '`'])
}

/// `NAME=VALUE`, `export NAME=VALUE`, `set -gx NAME VALUE`, `setenv NAME VALUE`, `set NAME = VALUE`, `let NAME = VALUE`.
fn assigned<'a>(program: &'a str, arguments: &[&'a str]) -> Option<(&'a str, &'a str)> {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let words: Vec<&str> = arguments.iter().copied().filter(|word| !word.starts_with('-') && *word != "=").collect();
    let pair = match program {
        "export" | "local" | "typeset" | "declare" | "readonly" => words.first()?.split_once('=')?,
        "set" | "setenv" | "let" | "const" | "mut" => (*words.first()?, *words.get(1)?),
        _ => program.split_once('=')?,
    };
    is_name(pair.0).then_some(pair)
}

#[derive(Debug, Default)]
struct Word {
    /// Without its quotes.
    text: String,
    /// It stands behind a `<`.
    is_input: bool,
}

/// The commands of a text, those in `$(...)` and backticks among them.
fn commands(text: &str) -> Vec<Vec<Word>> {
    let mut commands = Commands::default();
    for line in text.replace("\\\n", " ").lines() {
        commands.line(line);
        commands.end();
    }
    commands.all
}

#[derive(Default)]
struct Commands {
    all: Vec<Vec<Word>>,
    command: Vec<Word>,
    word: Option<Word>,
    is_input: bool,
    is_output: bool,
    /// What stands directly behind a substitution is a part of a name that only the shell knows.
    is_tail: bool,
}

impl Commands {
    fn line(&mut self, line: &str) {
        // The quotes around each substitution that is open.
        let (mut quote, mut around) = (None, Vec::new());
        let mut characters = line.chars().peekable();
        while let Some(c) = characters.next() {
            match c {
                '\\' if quote != Some('\'') => {
                    if let Some(next) = characters.next() {
                        // `\.` and `\builtin` are what they are without it.
                        self.push(next);
                    }
                }
                '\'' | '"' if quote.is_none() => quote = Some(c),
                '\'' | '"' if quote == Some(c) => quote = None,
                '$' if characters.peek() == Some(&'{') => {
                    self.push(c);
                    for c in characters.by_ref() {
                        self.push(c);
                        if c == '}' {
                            break;
                        }
                    }
                }
                // What is in a substitution is a command of its own, in quotes too.
                '`' | '(' if quote != Some('\'') && !self.is_qualifier(c) => {
                    if self.word.as_ref().is_some_and(|word| word.text.ends_with('$')) {
                        self.word.as_mut().map(|word| word.text.pop());
                    }
                    self.end();
                    if c == '`' && around.last().is_some_and(|(opened, _)| *opened == '`') {
                        quote = around.pop().and_then(|(_, quote)| quote);
                        self.is_tail = true;
                    } else {
                        around.push((c, quote.take()));
                    }
                }
                ')' if quote.is_none() => {
                    self.end();
                    self.is_tail = true;
                    quote = around.pop().and_then(|(_, quote)| quote);
                }
                '#' if quote.is_none() && self.word.is_none() => break,
                ';' | '|' | '&' if quote.is_none() => self.end(),
                '<' if quote.is_none() => {
                    self.end_word();
                    self.is_input = true;
                    // A text that stands here is no file.
                    if characters.next_if_eq(&'<').is_some() {
                        (self.is_input, self.is_output) = (false, true);
                        while characters.next_if(|c| "<-".contains(*c)).is_some() {}
                    }
                }
                '>' if quote.is_none() => {
                    self.end_word();
                    self.is_output = true;
                }
                c if c.is_whitespace() && quote.is_none() => self.end_word(),
                c => self.push(c),
            }
        }
    }

    /// `(N)` behind a pattern of zsh.
    fn is_qualifier(&self, c: char) -> bool {
        c == '(' && self.word.as_ref().is_some_and(|word| word.text.contains('*') && word.text.contains('/'))
    }

    fn push(&mut self, c: char) {
        if self.is_tail {
            return;
        }
        let is_input = self.is_input;
        self.word.get_or_insert_with(|| Word { is_input, ..Word::default() }).text.push(c);
    }

    fn end_word(&mut self) {
        self.is_tail = false;
        let Some(word) = self.word.take() else { return };
        self.is_input = false;
        if !std::mem::take(&mut self.is_output) && !word.text.is_empty() {
            self.command.push(word);
        }
    }

    fn end(&mut self) {
        self.end_word();
        (self.is_input, self.is_output) = (false, false);
        if !self.command.is_empty() {
            self.all.push(std::mem::take(&mut self.command));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let variables = |name: &str| (name == "MY_DIR").then(|| "/my".to_owned());
        let text = Text { home: Path::new("/h"), variables: &variables }.read(text);
        let show = |one: Watched| match one {
            Watched::Content(path) => path.display().to_string(),
            Watched::Presence(path) => format!("{}?", path.display()),
            Watched::Names(path, pattern) => format!("{}/{pattern}", path.display()),
        };
        text.watched.into_iter().map(show).collect()
    }

    #[test]
    fn files_that_are_read_are_found_in_the_texts_of_all_shells() {
        for (text, found) in [
            ("source ~/x.sh", "/h/x.sh"),
            (". \"$HOME/with blank/x.sh\"", "/h/with blank/x.sh"),
            ("[[ $- == *i* ]] && \\. \"${HOME}/x.sh\"", "/h/x.sh"),
            ("set -a; . .env; set +a", "/h/.env"),
            ("if test -n x; and source $MY_DIR/x.fish; end", "/my/x.fish"),
            ("export TOKEN=\"$(cat ~/.token)\"", "/h/.token"),
            ("export TOKEN=`cat $HOME/.token`", "/h/.token"),
            ("export TOKEN=$(< ~/.token)", "/h/.token"),
            ("read -gx TOKEN <~/.token", "/h/.token"),
            ("while read -r a; do export \"$a\"; done < \"$HOME/.env\"", "/h/.env"),
            ("export $(grep -v '^#' ~/.env | xargs)", "/h/.env"),
            (". <(cat ~/.env)", "/h/.env"),
            ("set -gx TOKEN (cat ~/.token)", "/h/.token"),
            ("$env.TOKEN = (open ~/.token | str trim)", "/h/.token"),
            ("$env.TOKEN = (open $\"($env.HOME)/x\"; open $env.MY_DIR/t)", "/my/t"),
            ("source $nu.home-path/x.nu", "/h/x.nu"),
            ("set f = ~/x.csh\nsource $f", "/h/x.csh"),
            ("dir=${XDG_CONFIG_HOME:-$HOME/.c}/me\n. $dir/rc", "/h/.config/me/rc"),
            (". ${NOT_KNOWN:-/opt}/rc", "/opt/rc"),
            ("for f in ~/.bashrc.d/*.sh; do . \"$f\"; done", "/h/.bashrc.d/*.sh"),
            ("for f (~/.zsh/*.zsh(N)) source $f", "/h/.zsh/*.zsh"),
            ("foreach f (~/.tcsh.d/*.csh)", "/h/.tcsh.d/*.csh"),
            ("files=(~/.d/*)", "/h/.d/*"),
            ("eval \"$(cat ~/.x)\"", "/h/.x"),
            ("export A=\"$(cat ~/.a)\"; . ~/.x", "/h/.x"),
            ("export A=\"`cat ~/.a`\"; . ~/.x", "/h/.x"),
        ] {
            let all = read(text);
            assert!(all.iter().any(|one| one == found), "{text}: {all:?}");
        }
    }

    #[test]
    fn files_that_are_asked_for_are_found() {
        for text in [
            "[ -f ~/.x ] && . ~/.y",
            "if [[ -r \"$HOME/.x\" ]]; then",
            "test -d ~/.x; and echo",
            "if ( -e ~/.x ) source ~/.y",
            "if ('~/.x' | path exists) {",
        ] {
            let all = read(text);
            assert!(all.iter().any(|one| one == "/h/.x?"), "{text}: {all:?}");
        }
    }

    #[test]
    fn what_is_only_named_is_not_watched() {
        for text in [
            "export HISTFILE=~/.zsh_history",
            "HISTFILE=$HOME/.bash_history",
            "export PATH=\"$HOME/bin:$PATH\"",
            "# . ~/x",
            "alias v='vim ~/.vimrc'",
            "echo hello > ~/.seen",
            "date >> ~/.log",
            "cat <<EOF",
            "case $x in *) ;; esac",
            ". $UNKNOWN/x",
            "source $(brew --prefix)/x",
            "ls /tmp/*",
            "/9j/4AAQSkZJRgABAQ",
        ] {
            assert_eq!(read(text), [""; 0], "{text}");
        }
    }
}
