//! Homes with their rows, which are changes and their effects on a launch.
//!
//! The rows of a home share one home directory, so each row starts with the changes of the rows before.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::SystemTime;

use crate::conformance::{BASH, FISH, NU, Shell, TCSH, ZSH};

pub(super) struct Home {
    pub(super) shell: Shell,
    pub(super) files: &'static [(&'static str, &'static str)],
    pub(super) prepare: fn(&Path),
    pub(super) rows: &'static [Row],
}

pub(super) struct Row {
    /// Description of the change in the page.
    pub(super) what: &'static str,
    pub(super) change: fn(&Path),
    pub(super) seen: Seen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The shell runs, and the variable has this value. An empty value means that the variable is not set.
    Value(&'static str, &'static str),
    /// The shell runs.
    Run,
    /// The shell does not run.
    Nothing,
}

use Seen::{Nothing, Run, Value};

const fn row(what: &'static str, seen: Seen, change: fn(&Path)) -> Row {
    Row { what, change, seen }
}

pub(super) fn put(home: &Path, path: &str, text: &str) {
    let file = home.join(path);
    fs::create_dir_all(file.parent().expect("it is below the home")).unwrap();
    fs::write(file, text).unwrap();
}

fn append(home: &Path, path: &str, text: &str) {
    let mut file = fs::File::options().append(true).create(true).open(home.join(path)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Replaces a file with a rename, as some editors do.
fn replace(home: &Path, path: &str, text: &str) {
    put(home, ".new-file", text);
    fs::rename(home.join(".new-file"), home.join(path)).unwrap();
}

fn link(home: &Path, path: &str, target: &str) {
    let path = home.join(path);
    fs::create_dir_all(path.parent().expect("it is below the home")).unwrap();
    let _ = fs::remove_file(&path);
    std::os::unix::fs::symlink(target, path).unwrap();
}

/// Creates a program in the home that prints this text.
fn program(home: &Path, path: &str, prints: &str) {
    put(home, path, &format!("#!/bin/sh\necho '{prints}'\n"));
    fs::set_permissions(home.join(path), fs::Permissions::from_mode(0o755)).unwrap();
}

fn touch(home: &Path, path: &str) {
    fs::File::options().append(true).open(home.join(path)).unwrap().set_modified(SystemTime::now()).unwrap();
}

const TOOL: &str = "a program whose output is evaluated, as `eval \"$(tool init)\"`";
const A_START_UP_FILE: &str = "a start-up file";
const SOURCED: &str = "a file that a start-up file sources";
const SOURCED_INDIRECTLY: &str = "a file that a sourced file sources";
const APPEARS_IN_A_DIRECTORY: &str = "a file appears in a directory that is looped over";
const TESTED: &str = "a file appears that a start-up file tests";
const PRINTED: &str = "a file whose content a substitution prints, as `$(cat f)`";
const APPEARS: &str = "a start-up file appears that was not there";
const TOUCHED: &str = "`touch` of a start-up file";
const HISTORY: &str = "a line in the history file";
const SWAP: &str = "an editor's swap file in a directory that is looped over";

pub(super) const HOMES: &[Home] = &[
    Home {
        shell: BASH,
        files: &[
            (".profile", "export R_PROFILE=1\n. ~/.bashrc\n"),
            (".bashrc", BASHRC),
            ("lib/first.sh", "export R_FIRST=1\n. ~/lib/second.sh\n"),
            ("lib/second.sh", "export R_SECOND=1\n"),
            (".bashrc.d/a.sh", "export R_D=1\n"),
            ("linked-1.sh", "export R_LINKED=1\n"),
            ("linked-2.sh", "export R_LINKED=2\n"),
            (".value", "1\n"),
            (".input", "1\n"),
            (".pairs", "R_PAIR=1\n"),
            (".env", "R_ENV=1\n"),
            (".generated", "export R_GENERATED=1\n"),
            (".config/tool/rc.sh", "export R_BEHIND=1\n"),
            (".bash_history", "ls\n"),
            ("sub/rel.sh", "export R_BELOW=1\n"),
            ("lib/print", "echo 1\n"),
            ("listed/a", ""),
            ("tree/old/x.sh", "\n"),
            (".nvm/alias/default", "18\n"),
            (".pyenv/version", "3.11\n"),
            (".rbenv/version", "3.2\n"),
            (".jenv/version", "17\n"),
            (".rustup/settings.toml", "default_toolchain = \"1.80\"\n"),
            (".config/mise/config.toml", "[tools]\nnode = \"18\"\n"),
            (".asdf/plugins/x", ""),
            (".tool-versions", "nodejs 18\n"),
            (".sdkman/candidates/java/17/bin/java", ""),
            (".sdkman/candidates/java/21/bin/java", ""),
        ],
        prepare: |home| {
            link(home, "linked.sh", "linked-1.sh");
            link(home, ".sdkman/candidates/java/current", "17");
            program(home, "bin/tool", "export R_TOOL=1");
            link(home, "alternatives/java", "../.sdkman/candidates/java/17/bin/java");
            program(home, "bin/starship", "export R_STARSHIP=1");
            program(home, "bin/conda", "export R_CONDA=1");
            program(home, "lib/computed", "export R_COMPUTED=1");
        },
        rows: &[
            row(A_START_UP_FILE, Value("R_PROFILE", "2"), |home| {
                put(home, ".profile", "export R_PROFILE=2\n. ~/.bashrc\n");
            }),
            row(SOURCED, Value("R_FIRST", "2"), |home| {
                put(home, "lib/first.sh", "export R_FIRST=2\n. ~/lib/second.sh\n");
            }),
            row(SOURCED_INDIRECTLY, Value("R_SECOND", "2"), |home| put(home, "lib/second.sh", "export R_SECOND=2\n")),
            row(APPEARS_IN_A_DIRECTORY, Value("R_NEW", "1"), |home| put(home, ".bashrc.d/b.sh", "export R_NEW=1\n")),
            row("a file in a directory that is looped over", Value("R_NEW", "2"), |home| {
                put(home, ".bashrc.d/b.sh", "export R_NEW=2\n");
            }),
            row("a file disappears from a directory that is looped over", Value("R_NEW", ""), |home| {
                fs::remove_file(home.join(".bashrc.d/b.sh")).unwrap();
            }),
            row(PRINTED, Value("R_PRINTED", "2"), |home| put(home, ".value", "2\n")),
            row("a file that is read, as `$(< f)`", Value("R_INPUT", "2"), |home| put(home, ".input", "2\n")),
            row("a file that a loop reads, as `done < f`", Value("R_PAIR", "2"), |home| {
                put(home, ".pairs", "R_PAIR=2\n");
            }),
            row("an `.env` file between `set -a` and `set +a`", Value("R_ENV", "2"), |home| {
                put(home, ".env", "R_ENV=2\n");
            }),
            row("a file behind `. <(cat f)`", Value("R_GENERATED", "2"), |home| {
                put(home, ".generated", "export R_GENERATED=2\n");
            }),
            row("a file that is sourced through a variable", Value("R_BEHIND", "2"), |home| {
                put(home, ".config/tool/rc.sh", "export R_BEHIND=2\n");
            }),
            row(TESTED, Value("R_MAYBE", "1"), |home| put(home, ".maybe.sh", "export R_MAYBE=1\n")),
            row("a file disappears that a start-up file tests", Value("R_MAYBE", ""), |home| {
                fs::remove_file(home.join(".maybe.sh")).unwrap();
            }),
            row("a sourced file that is a link leads elsewhere", Value("R_LINKED", "2"), |home| {
                link(home, "linked.sh", "linked-2.sh");
            }),
            row("the file that a link leads to", Value("R_LINKED", "3"), |home| {
                put(home, "linked-2.sh", "export R_LINKED=3\n");
            }),
            row("an editor replaces a start-up file by another file", Value("R_PROFILE", "3"), |home| {
                replace(home, ".profile", "export R_PROFILE=3\n. ~/.bashrc\n");
            }),
            row("as many bytes, and the time of the last write set back", Value("R_SECOND", "3"), |home| {
                let file = home.join("lib/second.sh");
                let modified = fs::metadata(&file).unwrap().modified().unwrap();
                fs::write(&file, "export R_SECOND=3\n").unwrap();
                fs::File::options().append(true).open(&file).unwrap().set_modified(modified).unwrap();
            }),
            row("nvm's default version (`nvm alias default`)", Run, |home| put(home, ".nvm/alias/default", "20\n")),
            row("pyenv's version (`pyenv global`)", Run, |home| put(home, ".pyenv/version", "3.12\n")),
            row("rbenv's version (`rbenv global`)", Run, |home| put(home, ".rbenv/version", "3.3\n")),
            row("jenv's version (`jenv global`)", Run, |home| put(home, ".jenv/version", "21\n")),
            row("the default toolchain of rustup", Run, |home| {
                put(home, ".rustup/settings.toml", "default_toolchain = \"1.90\"\n");
            }),
            row("mise's configuration (`mise use -g`)", Run, |home| {
                put(home, ".config/mise/config.toml", "[tools]\nnode = \"20\"\n");
            }),
            row("asdf's `~/.tool-versions`", Run, |home| put(home, ".tool-versions", "nodejs 20\n")),
            row("SDKMAN's current candidate (`sdk default`)", Run, |home| {
                link(home, ".sdkman/candidates/java/current", "21");
            }),
            row(TOOL, Value("R_TOOL", "2"), |home| program(home, "bin/tool", "export R_TOOL=2")),
            row("such a program whose name is only in the trace", Value("R_COMPUTED", "2"), |home| {
                program(home, "lib/computed", "export R_COMPUTED=2");
            }),
            row("such a program appears that a start-up file looks for", Value("R_LATER", "1"), |home| {
                program(home, "bin/later", "export R_LATER=1");
            }),
            row("a file that such a program gets as an argument", Run, |home| put(home, ".colours", "red\n")),
            row("starship's configuration, beside `starship init`", Run, |home| {
                put(home, ".config/starship.toml", "add_newline = false\n");
            }),
            row("conda's configuration, beside `conda shell.bash hook`", Run, |home| {
                put(home, ".condarc", "auto_activate_base: false\n");
            }),
            row("a program of the same name in an earlier directory of PATH", Value("R_TOOL", "3"), |home| {
                program(home, "first/tool", "export R_TOOL=3");
            }),
            row("an alternative that `readlink` resolves (`update-alternatives`)", Run, |home| {
                link(home, "alternatives/java", "../.sdkman/candidates/java/21/bin/java");
            }),
            row("a file behind `cd d; . ./f`", Value("R_BELOW", "2"), |home| {
                put(home, "sub/rel.sh", "export R_BELOW=2\n");
            }),
            row("a script that a substitution runs, as `$(sh f)`", Value("R_SCRIPT", "2"), |home| {
                put(home, "lib/print", "echo 2\n");
            }),
            row("a file appears in a directory that `ls` lists", Value("R_LISTED", "a b"), |home| {
                put(home, "listed/b", "");
            }),
            row("a file appears in a directory that `find` looks through", Value("R_FOUND", "1"), |home| {
                put(home, "tree/new/x.sh", "export R_FOUND=1\n");
            }),
            row("a program in PATH that start-up files do not run", Nothing, |home| {
                program(home, "bin/other", "export R_OTHER=1");
            }),
            row(TOUCHED, Nothing, |home| touch(home, ".bashrc")),
            row("reading a start-up file", Nothing, |home| {
                fs::read(home.join(".bashrc")).unwrap();
            }),
            row("the same content written again", Nothing, |home| {
                let text = fs::read_to_string(home.join(".bashrc")).unwrap();
                replace(home, ".bashrc", &text);
            }),
            row("other permissions of a start-up file", Nothing, |home| {
                fs::set_permissions(home.join(".bashrc"), fs::Permissions::from_mode(0o600)).unwrap();
            }),
            row(HISTORY, Nothing, |home| append(home, ".bash_history", "pwd\n")),
            row(SWAP, Nothing, |home| put(home, ".bashrc.d/.a.sh.swp", "x")),
            row("an editor's backup in a directory that is looped over", Nothing, |home| {
                put(home, ".bashrc.d/a.sh~", "x");
            }),
            row("a lock file in a directory that is looped over", Nothing, |home| {
                put(home, ".bashrc.d/a.sh.lock", "x");
            }),
            row("a hidden file in a directory that is looped over", Nothing, |home| {
                put(home, ".bashrc.d/.hidden.sh", "export R_HIDDEN=1\n");
            }),
            row("`~/.pam_environment`, which PAM leaves alone", Nothing, |home| {
                put(home, ".pam_environment", "R_PAM=1\n");
            }),
            row("a file beside a sourced one", Nothing, |home| put(home, "lib/README.md", "x")),
            row("a file or a directory in the home that no start-up file names", Nothing, |home| {
                put(home, "project/README.md", "x");
            }),
            row("a file that is only written, as `date > f`", Nothing, |home| put(home, ".last-login", "x")),
            row("a version of a tool that is installed and not made the default", Nothing, |home| {
                put(home, ".pyenv/versions/3.13/bin/python", "");
            }),
            row(APPEARS, Value("R_OTHER", "1"), |home| {
                put(home, ".bash_profile", "export R_OTHER=1\n. ~/.profile\n");
            }),
        ],
    },
    Home {
        shell: ZSH,
        files: &[
            (".zshenv", "export R_ZSHENV=1\n"),
            (".zshrc", ZSHRC),
            ("lib/first.zsh", "export R_FIRST=1\nsource ~/lib/second.zsh\n"),
            ("lib/second.zsh", "export R_SECOND=1\n"),
            (".zsh/plugins/a.zsh", "export R_A=1\n"),
            (".value", "1\n"),
            (".input", "1\n"),
            (".zsh_history", "ls\n"),
            ("functions/mine", "export R_FUNCTION=1\n"),
            ("deep/old/x.zsh", "\n"),
        ],
        prepare: |home| {
            program(home, "bin/tool", "export R_TOOL=1");
            program(home, "bin/cached", "export R_CACHED=1");
        },
        rows: &[
            row(A_START_UP_FILE, Value("R_ZSHENV", "2"), |home| put(home, ".zshenv", "export R_ZSHENV=2\n")),
            row(SOURCED, Value("R_FIRST", "2"), |home| {
                put(home, "lib/first.zsh", "export R_FIRST=2\nsource ~/lib/second.zsh\n");
            }),
            row(SOURCED_INDIRECTLY, Value("R_SECOND", "2"), |home| put(home, "lib/second.zsh", "export R_SECOND=2\n")),
            row("a plugin appears in a folder of plugins", Value("R_B", "1"), |home| {
                put(home, ".zsh/plugins/b.zsh", "export R_B=1\n");
            }),
            row(PRINTED, Value("R_PRINTED", "2"), |home| put(home, ".value", "2\n")),
            row("a file that is read, as `$(< f)`", Value("R_INPUT", "2"), |home| put(home, ".input", "2\n")),
            row(TESTED, Value("R_MAYBE", "1"), |home| put(home, ".maybe.zsh", "export R_MAYBE=1\n")),
            row(APPEARS, Value("R_LOGIN", "1"), |home| put(home, ".zlogin", "export R_LOGIN=1\n")),
            row(TOOL, Value("R_TOOL", "2"), |home| program(home, "bin/tool", "export R_TOOL=2")),
            row("a function that `autoload` finds in `fpath`", Value("R_FUNCTION", "2"), |home| {
                put(home, "functions/mine", "export R_FUNCTION=2\n");
            }),
            row("a file appears below a directory that `**` looks through", Value("R_DEEP", "1"), |home| {
                put(home, "deep/new/x.zsh", "export R_DEEP=1\n");
            }),
            row("a program that is newer than its cached output, as `[[ p -nt f ]]`", Value("R_CACHED", "2"), |home| {
                program(home, "bin/cached", "export R_CACHED=2");
                let later = SystemTime::now() + std::time::Duration::from_hours(1);
                fs::File::open(home.join("bin/cached")).unwrap().set_modified(later).unwrap();
            }),
            row(TOUCHED, Nothing, |home| touch(home, ".zshrc")),
            row(HISTORY, Nothing, |home| append(home, ".zsh_history", "pwd\n")),
            row("the cache of completions", Nothing, |home| put(home, ".zcompdump", "x")),
            row(SWAP, Nothing, |home| put(home, ".zsh/plugins/.b.zsh.swp", "x")),
        ],
    },
    Home {
        shell: FISH,
        files: &[
            (".config/fish/config.fish", CONFIG_FISH),
            (".config/fish/conf.d/a.fish", "set -gx R_A 1\n"),
            ("lib/first.fish", "set -gx R_FIRST 1\nsource ~/lib/second.fish\n"),
            ("lib/second.fish", "set -gx R_SECOND 1\n"),
            (".value", "1\n"),
            (".config/fish/fish_variables", UNIVERSAL),
            (".config/fish/beside.fish", "set -gx R_BESIDE 1\n"),
        ],
        prepare: |home| program(home, "bin/tool", "set -gx R_TOOL 1"),
        rows: &[
            row(A_START_UP_FILE, Value("R_CONFIG", "2"), |home| {
                put(home, ".config/fish/config.fish", &CONFIG_FISH.replace("R_CONFIG 1", "R_CONFIG 2"));
            }),
            row(SOURCED, Value("R_FIRST", "2"), |home| {
                put(home, "lib/first.fish", "set -gx R_FIRST 2\nsource ~/lib/second.fish\n");
            }),
            row(SOURCED_INDIRECTLY, Value("R_SECOND", "2"), |home| {
                put(home, "lib/second.fish", "set -gx R_SECOND 2\n");
            }),
            row("a file in fish's `conf.d`", Value("R_A", "2"), |home| {
                put(home, ".config/fish/conf.d/a.fish", "set -gx R_A 2\n");
            }),
            row("a file appears in fish's `conf.d`", Value("R_B", "1"), |home| {
                put(home, ".config/fish/conf.d/b.fish", "set -gx R_B 1\n");
            }),
            row("a universal variable of fish (`set -Ux`)", Value("R_UNIVERSAL", "2"), |home| {
                put(home, ".config/fish/fish_variables", &UNIVERSAL.replace("R_UNIVERSAL:1", "R_UNIVERSAL:2"));
            }),
            row(PRINTED, Value("R_PRINTED", "2"), |home| put(home, ".value", "2\n")),
            row(TESTED, Value("R_MAYBE", "1"), |home| put(home, ".maybe.fish", "set -gx R_MAYBE 1\n")),
            row(TOOL, Value("R_TOOL", "2"), |home| program(home, "bin/tool", "set -gx R_TOOL 2")),
            row("a file beside the file that sources it, as `(status dirname)`", Value("R_BESIDE", "2"), |home| {
                put(home, ".config/fish/beside.fish", "set -gx R_BESIDE 2\n");
            }),
            row(TOUCHED, Nothing, |home| touch(home, ".config/fish/config.fish")),
            row(HISTORY, Nothing, |home| put(home, ".local/share/fish/fish_history", "- cmd: ls\n")),
            row("an editor's swap file in fish's `conf.d`", Nothing, |home| {
                put(home, ".config/fish/conf.d/.a.fish.swp", "x");
            }),
        ],
    },
    Home {
        shell: TCSH,
        files: &[
            (".tcshrc", TCSHRC),
            ("lib/first.csh", "setenv R_FIRST 1\nsource ~/lib/second.csh\n"),
            ("lib/second.csh", "setenv R_SECOND 1\n"),
            (".tcsh.d/a.csh", "setenv R_A 1\n"),
            (".value", "1\n"),
            (".history", "ls\n"),
        ],
        prepare: |home| program(home, "bin/tool", "setenv R_TOOL 1"),
        rows: &[
            row(A_START_UP_FILE, Value("R_RC", "2"), |home| {
                put(home, ".tcshrc", &TCSHRC.replace("R_RC 1", "R_RC 2"));
            }),
            row(SOURCED, Value("R_FIRST", "2"), |home| {
                put(home, "lib/first.csh", "setenv R_FIRST 2\nsource ~/lib/second.csh\n");
            }),
            row(SOURCED_INDIRECTLY, Value("R_SECOND", "2"), |home| put(home, "lib/second.csh", "setenv R_SECOND 2\n")),
            row(APPEARS_IN_A_DIRECTORY, Value("R_B", "1"), |home| put(home, ".tcsh.d/b.csh", "setenv R_B 1\n")),
            row(PRINTED, Value("R_PRINTED", "2"), |home| put(home, ".value", "2\n")),
            row(TESTED, Value("R_MAYBE", "1"), |home| put(home, ".maybe.csh", "setenv R_MAYBE 1\n")),
            row(APPEARS, Value("R_LOGIN", "1"), |home| put(home, ".login", "setenv R_LOGIN 1\n")),
            row(TOOL, Value("R_TOOL", "2"), |home| program(home, "bin/tool", "setenv R_TOOL 2")),
            row(TOUCHED, Nothing, |home| touch(home, ".tcshrc")),
            row(HISTORY, Nothing, |home| append(home, ".history", "pwd\n")),
        ],
    },
    Home {
        shell: NU,
        files: &[
            (".config/nushell/config.nu", CONFIG_NU),
            (".config/nushell/env.nu", "$env.R_ENV = '1'\n"),
            ("lib/first.nu", "$env.R_FIRST = '1'\nsource ~/lib/second.nu\n"),
            ("lib/second.nu", "$env.R_SECOND = '1'\n"),
            (".value", "1\n"),
        ],
        prepare: |_| {},
        rows: &[
            row(A_START_UP_FILE, Value("R_ENV", "2"), |home| put(home, ".config/nushell/env.nu", "$env.R_ENV = '2'\n")),
            row(SOURCED, Value("R_FIRST", "2"), |home| {
                put(home, "lib/first.nu", "$env.R_FIRST = '2'\nsource ~/lib/second.nu\n");
            }),
            row(SOURCED_INDIRECTLY, Value("R_SECOND", "2"), |home| {
                put(home, "lib/second.nu", "$env.R_SECOND = '2'\n");
            }),
            row("a file that nushell opens, as `open f`", Value("R_PRINTED", "2"), |home| put(home, ".value", "2\n")),
            row(APPEARS, Value("R_LOGIN", "1"), |home| {
                put(home, ".config/nushell/login.nu", "$env.R_LOGIN = '1'\n");
            }),
            row(TOUCHED, Nothing, |home| touch(home, ".config/nushell/config.nu")),
            row(HISTORY, Nothing, |home| put(home, ".config/nushell/history.txt", "ls\n")),
        ],
    },
];

const BASHRC: &str = r#"
export R_RC=1 HISTFILE=~/.bash_history PATH="$HOME/first:$HOME/bin:$PATH"
eval "$(tool init)"
eval "$(starship init bash)"
eval "$(conda shell.bash hook)"
eval "$(dircolors -b ~/.colours 2> /dev/null)"
load() { eval "$("$@")"; }
load ~/lib/computed
cd ~/sub; . ./rel.sh; cd ~
export R_JAVA="$(dirname $(readlink -f ~/alternatives/java))"
export R_SCRIPT="$(sh ~/lib/print)" R_LISTED="$(echo $(ls ~/listed))"
while read -r file; do . "$file"; done < <(find ~/tree -name '*.sh')
if command -v later > /dev/null; then eval "$(later init)"; fi
. "$HOME/lib/first.sh"
for file in ~/.bashrc.d/*.sh; do [ -r "$file" ] && . "$file"; done
. ~/linked.sh
export R_PRINTED="$(cat ~/.value)"
export R_INPUT=$(< ~/.input)
while read -r pair; do export "$pair"; done < ~/.pairs
set -a; . ~/.env; set +a
. <(cat ~/.generated)
[ -f ~/.maybe.sh ] && . ~/.maybe.sh
tool=$HOME/.config/tool
. "$tool/rc.sh"
date > ~/.last-login
"#;

const ZSHRC: &str = r#"
HISTFILE=~/.zsh_history
path=(~/bin $path)
fpath=(~/functions $fpath)
autoload -Uz mine && mine
for file in ~/deep/**/*.zsh(N); do source "$file"; done
[[ -f ~/.cached && ! ~/bin/cached -nt ~/.cached ]] || cached > ~/.cached
source ~/.cached
eval "$(tool init zsh)"
source "$HOME/lib/first.zsh"
for file in ~/.zsh/plugins/*.zsh(N); do source "$file"; done
export R_PRINTED="$(cat ~/.value)"
export R_INPUT="$(< ~/.input)"
[[ -f ~/.maybe.zsh ]] && source ~/.maybe.zsh
true
"#;

const CONFIG_FISH: &str = "
set -gx R_CONFIG 1
set -gx PATH ~/bin $PATH
tool init fish | source
source (status dirname)/beside.fish
source ~/lib/first.fish
set -gx R_PRINTED (cat ~/.value)
test -f ~/.maybe.fish; and source ~/.maybe.fish
true
";

const UNIVERSAL: &str = "# This file contains fish universal variable definitions.\n# VERSION: 3.0\n\
                         SETUVAR --export R_UNIVERSAL:1\n";

const TCSHRC: &str = "
setenv R_RC 1
setenv PATH ~/bin:$PATH
eval `tool init csh`
source ~/lib/first.csh
foreach file (~/.tcsh.d/*.csh)
  source \"$file\"
end
setenv R_PRINTED `cat ~/.value`
if ( -r ~/.maybe.csh ) source ~/.maybe.csh
";

const CONFIG_NU: &str = "
source ~/lib/first.nu
$env.R_PRINTED = (open --raw ~/.value | str trim)
";
