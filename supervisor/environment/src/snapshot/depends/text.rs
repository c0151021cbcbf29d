//! Finds files that a start-up file's text reads and that no trace names: files that it sources, prints, tests or
//! loops over. The module does no I/O and handles the texts of all shells alike, because their differences are
//! small here.
//!
//! A word that only looks like a file costs one stat(2) at each launch. Files behind a function or a computed name
//! are missed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::words::{Command, OutputUse, Word, commands};
use crate::snapshot::fingerprint::Watched;

/// Dependencies that a text names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dependencies {
    pub(super) watched: Vec<Watched>,
    /// Watched files that are start-up files themselves.
    pub(super) sourced: Vec<PathBuf>,
    /// Programs whose output the text uses, as in `eval "$(tool init)"`: names or absolute paths.
    pub(super) programs: Vec<String>,
    /// Programs whose existence the text only tests, as in `command -v tool`.
    pub(super) asked: Vec<String>,
    /// Arguments of programs whose output is evaluated: `eval "$(dircolors ~/.dircolors)"`.
    pub(super) arguments: Vec<PathBuf>,
    /// Directories that are searched recursively, by `**` of zsh or by `find`.
    pub(super) trees: Vec<PathBuf>,
    /// zsh functions that are read at their first call. Their directories are in `function_directories`.
    pub(super) functions: Vec<String>,
    pub(super) function_directories: Vec<PathBuf>,
}

/// Words that can come before a command.
const BEFORE_COMMANDS: [&str; 18] = [
    "if", "then", "elif", "else", "while", "until", "do", "!", "time", "builtin", "command", "eval", "and", "or",
    "not", "begin", "exec", "{",
];
/// Commands that print the content of files.
const PRINT: [&str; 17] = [
    "cat", "head", "tail", "grep", "egrep", "fgrep", "sed", "awk", "gawk", "cut", "tr", "sort", "jq", "yq", "open",
    "tac", "base64",
];
pub(super) const SOURCE: [&str; 3] = ["source", ".", "source-env"];
/// Commands whose arguments are names of programs to find.
const ASK: [&str; 5] = ["which", "type", "hash", "whence", "where"];
/// Programs that run a file, which then counts as a program, and programs that resolve a link.
const RUN: [&str; 13] =
    ["sh", "bash", "dash", "zsh", "fish", "ksh", "python", "python3", "perl", "ruby", "node", "readlink", "realpath"];
/// Commands that list directories.
const LIST: [&str; 3] = ["ls", "find", "fd"];
/// Directories that change too often or are too large to be listed for a pattern.
const NOT_LISTED: [&str; 6] = ["/", "/home", "/usr", "/tmp", "/run", "/var"];

/// `PATH_MAX` of Linux.
const LONGEST: usize = 4096;

/// Context in which a text is read.
pub(super) struct Text<'a> {
    pub(super) home: &'a Path,
    /// Returns the value of a variable in the login shell's result.
    pub(super) variables: &'a dyn Fn(&str) -> Option<String>,
}

impl Text<'_> {
    pub(super) fn read(&self, text: &str) -> Dependencies {
        let mut named = Dependencies::default();
        let mut local = BTreeMap::new();
        let mut directory = None;
        let commands = commands(text);
        for (at, Command { words: command, output }) in commands.iter().enumerate() {
            self.command(command, &mut local, &mut named);
            self.sourced_elsewhere(command, &local, &mut directory, &mut named);
            if let [.., list] = command.as_slice()
                && ["fpath=", "fpath+="].contains(&list.text.as_str())
            {
                let words = commands.get(at + 1).iter().flat_map(|next| &next.words).collect::<Vec<_>>();
                let words = words.iter().filter_map(|word| self.expand(&word.text, &local));
                named.function_directories.extend(words.filter_map(|word| path(&word)));
            }
            let next = commands.get(at + 1).and_then(|next| next.words.first()).map(|word| word.text.as_str());
            // `tool init | source` of fish, or `tool init | save FILE` of nushell, which later sources the file.
            let is_alone =
                commands.get(at + 1).is_some_and(|next| next.words.iter().skip(1).all(|word| word.text == "-"));
            let is_read = next.is_some_and(|next| SOURCE.contains(&next) && is_alone || next == "save");
            self.programs(command, if is_read { OutputUse::Evaluated } else { *output }, &local, &mut named);
            // Handles nushell's `'FILE' | path exists`. Other single words are ignored, because they may be lines
            // of a key.
            let next =
                commands.get(at + 1).map(|next| next.words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>());
            if let ([.., file], Some(["path", "exists", ..])) = (command.as_slice(), next.as_deref()) {
                let file = self.expand(&file.text, &local).and_then(|file| path(&file));
                named.watched.extend(file.map(Watched::Presence));
            }
        }
        named
    }

    fn command(&self, words: &[Word], local: &mut BTreeMap<String, String>, named: &mut Dependencies) {
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
            // At a login the working directory is the home directory.
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
            let Some(word) = expanded(word) else { continue };
            named.watched.extend(self.pattern(&word));
            let tree = word.split_once("/**").and_then(|(directory, _)| path(directory));
            named.trees.extend(tree.filter(|tree| self.is_listed(tree)));
        }
    }

    /// Finds files that a command sources after a directory change, as in `cd DIRECTORY; . ./file`.
    fn sourced_elsewhere(
        &self,
        words: &[Word],
        local: &BTreeMap<String, String>,
        directory: &mut Option<PathBuf>,
        named: &mut Dependencies,
    ) {
        let words: Vec<&str> = words.iter().filter(|word| !word.is_input).map(|word| word.text.as_str()).collect();
        let begin = words.iter().position(|word| !BEFORE_COMMANDS.contains(word)).unwrap_or(words.len());
        let Some((&program, arguments)) = words[begin..].split_first() else { return };
        let file = arguments.iter().find(|word| !word.starts_with('-')).and_then(|word| self.expand(word, local));
        match (program, file) {
            ("cd" | "pushd", Some(to)) if !has_pattern(&to) => {
                *directory = Some(directory.as_deref().unwrap_or(self.home).join(to));
            }
            ("cd" | "popd", _) => *directory = None,
            (_, Some(file)) if SOURCE.contains(&program) && !file.starts_with('/') && !has_pattern(&file) => {
                let file = directory.as_ref().map(|directory| directory.join(file));
                named.watched.extend(file.clone().map(Watched::Content));
                named.sourced.extend(file);
            }
            ("autoload", _) => {
                let functions = arguments.iter().filter(|word| !word.starts_with(['-', '+']));
                named.functions.extend(functions.filter_map(|name| self.expand(name, local)));
            }
            _ => {}
        }
        // `[[ FILE -nt CACHE ]]`: a shell rewrites the cache if its source is newer.
        let compared = words.windows(3).filter(|three| matches!(three[1], "-nt" | "-ot"));
        let files = compared.flat_map(|three| [three[0], three[2]]).filter_map(|word| self.expand(word, local));
        named.watched.extend(files.filter_map(|file| path(&file)).map(Watched::Program));
    }

    /// Finds the programs that a command runs or searches for.
    fn programs(&self, words: &[Word], becomes: OutputUse, local: &BTreeMap<String, String>, found: &mut Dependencies) {
        let words: Vec<&str> = words.iter().filter(|word| !word.is_input).map(|word| word.text.as_str()).collect();
        for word in &words {
            let of_zsh = word.split_once("commands[").and_then(|(_, rest)| rest.split_once(']'));
            found.asked.extend(of_zsh.map(|(name, _)| name.to_owned()).filter(|name| is_program(name)));
        }
        let is_set = |word: &&str| BEFORE_COMMANDS.contains(word) || is_assignment(word);
        let begin = words.iter().position(|word| !is_set(word)).unwrap_or(words.len());
        let Some((&program, arguments)) = words[begin..].split_first() else { return };
        let is_option_of_command = program.starts_with('-') && begin > 0 && words[begin - 1] == "command";
        if ASK.contains(&program) || is_option_of_command {
            let names =
                arguments.iter().filter(|word| !word.starts_with('-')).filter_map(|word| self.expand(word, local));
            found.asked.extend(names.filter(|name| is_program(name)));
            return;
        }
        if becomes == OutputUse::Nothing {
            return;
        }
        let program = self.expand(program.trim_start_matches('^'), local).filter(|program| is_program(program));
        if becomes == OutputUse::Evaluated && program.is_some() {
            // Also handles `--config=FILE`.
            let value = |word: &&str| word.rsplit('=').next().and_then(|value| self.expand(value, local));
            found.arguments.extend(arguments.iter().filter_map(value).filter_map(|file| path(&file)));
        }
        let files = || arguments.iter().filter_map(|word| self.expand(word, local)).filter_map(|file| path(&file));
        match program.as_deref().and_then(|program| program.rsplit('/').next()) {
            Some(name) if RUN.contains(&name) => found.watched.extend(files().next().map(Watched::Program)),
            Some(name) if LIST.contains(&name) => found.trees.extend(files().filter(|place| self.is_listed(place))),
            _ => {}
        }
        found.programs.extend(program);
    }

    fn pattern(&self, word: &str) -> Option<Watched> {
        let (directory, pattern) = word.rsplit_once('/')?;
        // zsh allows qualifiers after a pattern: `*.zsh(N)`.
        let pattern = pattern.split('(').next().unwrap_or_default();
        let is_one = pattern.contains(['*', '?']) && directory.starts_with('/') && !has_pattern(directory);
        (is_one && self.is_listed(Path::new(directory))).then(|| Watched::Names(directory.into(), pattern.to_owned()))
    }

    fn is_listed(&self, directory: &Path) -> bool {
        !NOT_LISTED.iter().any(|one| directory == Path::new(one)) && directory != self.home
    }

    /// Expands the variables of a word. Returns `None` if a variable is unknown.
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
            // Repeated `a=$a$a` yields no path.
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

/// Reports whether a word is a program name or an absolute path.
fn is_program(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-/@".contains(c);
    let begins = word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '/');
    // `$((1 + 2))` starts like a command.
    let is_number = word.chars().all(|c| c.is_ascii_digit());
    begins && !is_number && word.chars().all(is_plain) && (word.starts_with('/') || !word.contains('/'))
}

/// Reports whether a word is a `NAME=VALUE` assignment before a command.
fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

/// Parses `NAME=VALUE`, `export NAME=VALUE`, `set -gx NAME VALUE`, `setenv NAME VALUE`, `set NAME = VALUE` or
/// `let NAME = VALUE`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let variables = |name: &str| (name == "MY_DIR").then(|| "/my".to_owned());
        let text = Text { home: Path::new("/h"), variables: &variables }.read(text);
        let show = |one: Watched| match one {
            Watched::Content(path) | Watched::Program(path) => path.display().to_string(),
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
    fn tested_files_are_found() {
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
    fn programs_whose_output_is_used_or_that_are_looked_for_are_found() {
        let variables = |name: &str| (name == "MY_DIR").then(|| "/my".to_owned());
        let read = |text: &str| Text { home: Path::new("/h"), variables: &variables }.read(text);
        for (text, program) in [
            ("eval \"$(starship init bash)\"", "starship"),
            ("eval `dircolors -b`", "dircolors"),
            ("[[ $- == *i* ]] && eval \"$(\"$HOME/bin/mise\" activate bash)\"", "/h/bin/mise"),
            (". <(kubectl completion bash)", "kubectl"),
            ("source <(A=1 kubectl completion bash)", "kubectl"),
            ("starship init fish | source", "starship"),
            ("starship init fish | source -", "starship"),
            ("eval (brew shellenv)", "brew"),
            ("export GOPATH=\"$(go env GOPATH)\"", "go"),
            ("export GOPATH=`go env GOPATH`", "go"),
            ("set -gx GOPATH (go env GOPATH)", "go"),
            ("tool=mise; eval \"$($tool activate zsh)\"", "mise"),
            ("^starship init nu | save -f ~/.cache/starship.nu", "starship"),
            ("eval \"$(uname | $MY_DIR/x)\"", "/my/x"),
        ] {
            assert!(read(text).programs.iter().any(|one| one == program), "{text}: {:?}", read(text));
        }
        for text in [
            "command -v mise >/dev/null && :",
            "if which mise; then",
            "if type -q mise",
            "command -q mise; and :",
            "if (( $+commands[mise] )); then",
            "if (which mise | is-empty) {",
            "[ -x \"$(command -v mise)\" ]",
        ] {
            assert_eq!(read(text).asked, ["mise"], "{text}");
        }
        assert_eq!(read("eval \"$(dircolors -b ~/.dircolors)\"").arguments, [Path::new("/h/.dircolors")]);
        assert_eq!(read("eval \"$(oh-my-posh --config=$MY_DIR/p.json)\"").arguments, [Path::new("/my/p.json")]);
        for text in [
            "plugins=(git docker)",
            "git status",
            "f() { ls; }",
            "export A=$((1 + 2))",
            "echo '$(x)' # $(y)",
            "A=\"$( $UNKNOWN x)\"",
            "tool init; source ~/x",
        ] {
            let named = read(text);
            assert_eq!((named.programs, named.asked, named.arguments.len()), (vec![], vec![], 0), "{text}");
        }
    }

    #[test]
    fn files_in_named_directories_are_found() {
        let variables = |_: &str| None;
        let read = |text: &str| Text { home: Path::new("/h"), variables: &variables }.read(text);
        for (text, file) in [
            ("cd ~/sub; . ./rel.sh; cd ~", Watched::Content("/h/sub/./rel.sh".into())),
            ("cd ~/a && cd b\nsource rel.sh", Watched::Content("/h/a/b/rel.sh".into())),
            ("[[ ! -f ~/c || ~/tool -nt ~/c ]] && x", Watched::Program("/h/tool".into())),
            ("export A=$(python3 ~/x.py)", Watched::Program("/h/x.py".into())),
        ] {
            assert!(read(text).watched.contains(&file), "{text}: {:?}", read(text));
        }
        for text in ["for f in ~/t/**/*.zsh(N); do", "for f in $(find ~/t -name '*.sh')", "A=\"$(ls ~/t)\""] {
            assert_eq!(read(text).trees, [Path::new("/h/t")], "{text}");
        }
        for text in ["ls ~/t", "A=$(ls ~)", "A=$(find / -name x)"] {
            assert!(read(text).trees.is_empty(), "{text}");
        }
        let named = read("fpath=(~/f $fpath)\nautoload -Uz compinit mine && mine");
        assert_eq!(named.function_directories, [Path::new("/h/f")]);
        assert!(named.functions.contains(&"mine".to_owned()), "{named:?}");
    }

    #[test]
    fn words_that_are_only_mentioned_are_not_watched() {
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
