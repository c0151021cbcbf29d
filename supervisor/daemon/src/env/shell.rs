//! What is known of each shell: how it is started so that it reads what its user has, how it tells which files it read, and how it
//! sources a script. No I/O: argument lists and texts from facts, each of which was tried with the shell itself.
//!
//! Two things hold for all. A shell says nothing by its status: one that was left by `exec` may end with 0, one with a trap on EXIT with 7;
//! only an environment that came whole counts. And what is said to a shell here is seen in process lists, so no value is in it but paths.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use agentd_api::ByteString;
use agentd_keeper::protocol::{Sourced, Terminal, Trace};

/// The descriptor the environment comes back on; high, so that start-up files that use descriptors of their own do not meet it.
const DESCRIPTOR: i32 = 199;
/// The same for what the shell tells of itself.
pub(crate) const TRACE: i32 = 198;

/// The kinds of shells that differ in how they are spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
    Nu,
    /// csh and tcsh. They close every descriptor they do not know, and take `-l` only alone.
    Csh,
    /// The Korn shells; they write a history file even where nobody types.
    Ksh,
    /// sh, dash, the shell of busybox.
    Posix,
}

/// One way to run a shell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) args: Vec<ByteString>,
    pub(crate) stdin: Option<ByteString>,
    /// Where the environment comes back: on this descriptor, or through a FIFO that stdin names.
    pub(crate) capture_fd: Option<i32>,
    pub(crate) trace: Option<Trace>,
    pub(crate) trace_fd: Option<i32>,
    /// What is typed, where the shell is run at a terminal; the environment comes back by its FIFO then.
    pub(crate) terminal: Option<Terminal>,
    /// Variables for this run alone; they are taken out of what comes back.
    pub(crate) added: Vec<(&'static str, &'static str)>,
}

/// The ways to get through a login without a terminal, where a terminal gave nothing (`typed`), in the order in which they are tried. The next is tried where one gave no environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// With a trace of the files it sources, where the shell has one.
    Traced,
    /// Where start-up files put another program in the shell's place: those of multiplexers are told that they run already, and another shell
    /// finds the command on its stdin. Not at first: `ssh host` or `cat` in a start-up file would read it.
    Elsewhere,
    /// Without being interactive, which is what most of them ask before they do so.
    Quiet,
}

impl Attempt {
    /// Those without a terminal.
    pub(crate) const WEAKER: [Self; 3] = [Self::Traced, Self::Elsewhere, Self::Quiet];

    /// How the shell was run, as a part of a sentence.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Traced => "without a terminal",
            Self::Elsewhere => "without a terminal, with the marks of a multiplexer set",
            Self::Quiet => "without a terminal and without the files of an interactive shell",
        }
    }
}

/// What start-up files look at before they start a multiplexer, or (the last) before they do what takes long.
const ELSEWHERE: [(&str, &str); 4] =
    [("TMUX", "agentd"), ("STY", "agentd"), ("ZELLIJ", "agentd"), ("VSCODE_RESOLVING_ENVIRONMENT", "1")];

/// Names that shells and the texts below add of their own accord.
pub(crate) const OF_THE_RUN: [&str; 4] = ["A__z", "BASH_XTRACEFD", "AGENTD_STATUS", "AGENTD_DUMPED"];

/// What is to be known of the home before its shell is started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Home {
    /// There is a `.bashrc`, and the profile that bash reads does not name it.
    pub(crate) lone_bashrc: bool,
    /// nushell's directory is not there; nushell would make it, with files of its own.
    pub(crate) no_nu_files: bool,
    /// There is none of zsh's files; at a terminal zsh asks whether to write some.
    pub(crate) no_zsh_files: bool,
}

impl Start {
    /// Without the trace of bash.
    pub(crate) fn without_trace(&mut self) {
        if self.trace.take().is_some() {
            self.args.retain(|arg| arg.as_bytes() != b"-x");
            self.trace_fd = None;
            self.added.clear();
        }
    }
}

impl Shell {
    /// Told by the program's name; `None` for one that is no shell, or none that is known here.
    pub(crate) fn of(program: &Path) -> Option<Self> {
        let name = program.file_name().and_then(OsStr::to_str)?.trim_start_matches('-');
        let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
        match name {
            "bash" | "rbash" => Some(Self::Bash),
            "zsh" | "rzsh" => Some(Self::Zsh),
            "fish" => Some(Self::Fish),
            "nu" => Some(Self::Nu),
            "csh" | "tcsh" | "bsd-csh" => Some(Self::Csh),
            "ksh" | "rksh" | "mksh" | "oksh" | "pdksh" | "lksh" => Some(Self::Ksh),
            "sh" | "dash" | "ash" | "yash" => Some(Self::Posix),
            _ => None,
        }
    }

    /// How it is logged in to. `None` where this attempt is no other than those before it.
    pub(crate) fn login(self, attempt: Attempt, home: Home, keeper: &Path) -> Option<Start> {
        let dump = self.dump(keeper);
        let command = match self {
            // A terminal's bash reads .bashrc alone and a login's the profile alone; what the user has is both. Most profiles read it themselves.
            Self::Bash if home.lone_bashrc => format!("[ ! -r ~/.bashrc ] || . ~/.bashrc || :; {dump}"),
            // Shows at the end that the trace was still on.
            Self::Zsh if attempt == Attempt::Traced => format!("\\builtin source /dev/null; {dump}"),
            Self::Nu if attempt == Attempt::Traced && !home.no_nu_files => {
                format!("{dump}; view files | get filename | to text | save --raw --append /dev/fd/{TRACE}")
            }
            _ => dump.clone(),
        };
        let flags: &[&str] = match (self, attempt) {
            (Self::Csh | Self::Nu, Attempt::Quiet) => return None,
            (Self::Csh, _) => &["-l"],
            // -c reads nothing of the user's without -l. (autoload/ is not read with -c at all.)
            (Self::Nu, _) if home.no_nu_files => &["--no-config-file", "-c"],
            (Self::Nu, _) | (_, Attempt::Quiet) => &["-l", "-c"],
            // Interactive too: .zshrc, $ENV and .kshrc are read for that alone, and much in others stands behind `case $- in *i*)`.
            (Self::Bash, Attempt::Traced) => &["-x", "-l", "-i", "-c"],
            (Self::Zsh, Attempt::Traced) => &["-o", "sourcetrace", "-l", "-i", "-c"],
            (Self::Fish, Attempt::Traced) => &["--profile-startup=/dev/fd/198", "-l", "-i", "-c"],
            _ => &["-l", "-i", "-c"],
        };
        let mut start = Start { capture_fd: Some(DESCRIPTOR), ..Start::default() };
        start.args = flags.iter().map(|flag| ByteString::from(*flag)).collect();
        if attempt != Attempt::Traced {
            start.added.extend(ELSEWHERE);
            // Not for nushell, which reads no commands there, but for whoever took its place.
            let dump = if self == Self::Nu { Self::Posix.dump(keeper) } else { dump.clone() };
            start.stdin = Some(format!("{dump}\n").into());
        }
        if self == Self::Csh {
            // noclobber refuses a FIFO too; `>!` would say the same and mean a file of that name to a shell that took this one's place. The
            // empty lines are for start-up files that read one.
            let before = if attempt == Attempt::Traced { "" } else { "\n\n\n\n\n\n\n\n" };
            start.stdin = Some(format!("{before}unset noclobber\n{dump}\n").into());
            start.capture_fd = None;
            return Some(start);
        }
        start.args.push(command.into());
        if self == Self::Ksh {
            start.added.push(("HISTFILE", "/dev/null"));
        }
        if attempt == Attempt::Traced {
            (start.trace, start.trace_fd) = match self {
                Self::Bash => (Some(Trace::Bash), Some(TRACE)),
                Self::Zsh => (Some(Trace::Zsh), None),
                Self::Fish => (Some(Trace::Fish), Some(TRACE)),
                Self::Nu if !home.no_nu_files => (Some(Trace::Names), Some(TRACE)),
                // -x of these goes to stderr, values and all, where nobody could tell it from what start-up files say.
                Self::Nu | Self::Csh | Self::Ksh | Self::Posix => (None, None),
            };
        }
        if start.trace == Some(Trace::Bash) {
            start.added.push(("BASH_XTRACEFD", "198"));
        }
        Some(start)
    }

    /// The last command of a login or a script.
    fn dump(self, keeper: &Path) -> String {
        match self {
            Self::Nu => format!("^{} dump-environment {DESCRIPTOR}", self.quote(keeper)),
            Self::Csh => format!("{} dump-environment 1 > {{capture}}", self.quote(keeper)),
            _ => format!("{} dump-environment {DESCRIPTOR}", self.quote(keeper)),
        }
    }

    /// How `script` is sourced by `program`, a shell of this kind, with `flags` from the script's first line.
    ///
    /// As direnv has it: a script fails when it *exits* with a status other than 0 (`exit 3`, or `set -e` and a command that failed), or is
    /// not one that the shell can parse. The status of its last command alone, or of a `return`, is none of it: `[ -d x ] && export A=1` ends
    /// many a script. `exit 0` is an end like any other, and the script's own trap on EXIT is run.
    ///
    /// `stubs` are definitions for this shell that stand before the script.
    pub(crate) fn script(
        self,
        program: &Path,
        flags: Option<&str>,
        script: &Path,
        stubs: &str,
        keeper: &Path,
    ) -> Start {
        let (dump, file, itself) = (self.dump(keeper), self.quote(script), self.quote(program));
        let statuses = self.syntax_statuses();
        let syntax = statuses.iter().map(i32::to_string).collect::<Vec<_>>().join("|");
        let mut start = Start { capture_fd: Some(DESCRIPTOR), ..Start::default() };
        let (no_files, text): (&[&str], String) = match self {
            Self::Csh => {
                // A csh that exits in a sourced file ends that file alone: here the status is all there is.
                start.capture_fd = None;
                start.stdin =
                    Some(format!("{stubs}source {file}\nif ($status) exit 1\nunset noclobber\n{dump}\n").into());
                start.args = vec!["-f".into()];
                return start;
            }
            Self::Nu => (&["--no-config-file"], format!("source {file}; {dump}")),
            Self::Fish => (
                &["--no-config"],
                format!(
                    // Its `exit` ends a sourced file alone, and is made to say so.
                    "{stubs}function exit; set -g AGENTD_EXIT $argv[1] 0; builtin exit $argv; end; \
                     source {file}; set -l agentd_status $status; functions -e exit; \
                     set -q AGENTD_EXIT[1]; and test \"$AGENTD_EXIT[1]\" != 0; and exit $AGENTD_EXIT[1]; \
                     if test $agentd_status = {syntax}; {itself} --no-execute {file} 2>/dev/null; or exit {syntax}; end; \
                     {dump}; exit $agentd_status"
                ),
            ),
            Self::Bash | Self::Zsh | Self::Ksh | Self::Posix => {
                let at_exit = quote_posix(&format!("[ \"$?\" != 0 ] || [ -n \"${{AGENTD_DUMPED-}}\" ] || {dump}"));
                let no_files: &[&str] = match self {
                    Self::Bash => &["--noprofile", "--norc"],
                    Self::Zsh => &["-f"],
                    _ => &[],
                };
                // Patterns that a script allows itself by `shopt -s extglob` are none to a bash that only reads it.
                let extended = if self == Self::Bash { "-O extglob " } else { "" };
                let text = format!(
                    "{stubs}trap {at_exit} EXIT\n. {file}\nAGENTD_STATUS=$?\n\
                     case \"$AGENTD_STATUS\" in {syntax}) {itself} {extended}-n {file} 2>/dev/null || exit \"$AGENTD_STATUS\";; esac\n\
                     {dump}\nAGENTD_DUMPED=1\nexit \"$AGENTD_STATUS\""
                );
                (no_files, text)
            }
        };
        start.args = no_files.iter().copied().chain(flags).chain(["-c"]).map(ByteString::from).collect();
        start.args.push(text.into());
        start
    }

    /// Whether it opens a script in its first thread by the path that it was given, and leaves the descriptors open that it was started with:
    /// then it can be given the script's bytes under that path. csh closes descriptors; nushell may open the script in any of its threads.
    pub(crate) fn can_be_given_bytes(self) -> bool {
        !matches!(self, Self::Csh | Self::Nu)
    }

    /// The status of sourcing a file that it cannot parse. Others have it too, so the shell is asked then, and only then: with `-n`, `extglob`
    /// is never set and what needs it is an error.
    pub(crate) fn syntax_statuses(self) -> &'static [i32] {
        match self {
            // 1 for what is not closed at its end: a quote, a bracket.
            Self::Bash => &[1, 2],
            Self::Posix => &[2],
            Self::Ksh => &[3],
            Self::Zsh => &[126],
            Self::Fish | Self::Nu | Self::Csh => &[1],
        }
    }

    /// How it is asked whether it can parse `script`, without running it; a status other than 0 says that it cannot.
    pub(crate) fn check(self, script: &Path) -> Vec<ByteString> {
        let path = ByteString::from(script.as_os_str());
        match self {
            Self::Zsh | Self::Csh => vec!["-f".into(), "-n".into(), path],
            Self::Fish => vec!["--no-config".into(), "--no-execute".into(), path],
            Self::Nu => {
                let text = format!("if not (nu-check {}) {{ exit 2 }}", self.quote(script));
                vec!["--no-config-file".into(), "-c".into(), text.into()]
            }
            Self::Bash => vec!["-O".into(), "extglob".into(), "-n".into(), path],
            Self::Ksh | Self::Posix => vec!["-n".into(), path],
        }
    }

    pub(crate) fn quote(self, path: &Path) -> String {
        let text = path.display().to_string();
        match self {
            Self::Fish => format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'")),
            Self::Nu => format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#)),
            // History is looked for inside of quotes too.
            Self::Csh => quote_posix(&text).replace('!', r"\!"),
            Self::Bash | Self::Zsh | Self::Ksh | Self::Posix => quote_posix(&text),
        }
    }

    /// Its user's own files among those.
    pub(crate) fn own_files(self, home: &Path) -> Vec<PathBuf> {
        self.start_up_files(home).into_iter().filter(|file| file.starts_with(home) && file.is_file()).collect()
    }

    /// The files and directories that it reads at a login of itself, whether they are there or not: one that appears counts too.
    pub(crate) fn start_up_files(self, home: &Path) -> Vec<PathBuf> {
        let (system, own): (&[&str], &[&str]) = match self {
            Self::Bash => (
                &["/etc/profile", "/etc/profile.d", "/etc/bash.bashrc"],
                &[".bash_profile", ".bash_login", ".profile", ".bashrc"],
            ),
            Self::Zsh => (
                &[
                    "/etc/zsh/zshenv",
                    "/etc/zsh/zprofile",
                    "/etc/zsh/zshrc",
                    "/etc/zsh/zlogin",
                    "/etc/zshenv",
                    "/etc/zprofile",
                    "/etc/zshrc",
                    "/etc/zlogin",
                ],
                &[".zshenv", ".zprofile", ".zshrc", ".zlogin"],
            ),
            Self::Fish => (
                &["/usr/share/fish/vendor_conf.d", "/etc/fish/conf.d", "/etc/fish/config.fish"],
                &[".config/fish/conf.d", ".config/fish/config.fish"],
            ),
            Self::Nu => (&[], &[".config/nushell/env.nu", ".config/nushell/config.nu", ".config/nushell/login.nu"]),
            Self::Csh => (
                &["/etc/csh.cshrc", "/etc/csh/cshrc.d", "/etc/csh.login", "/etc/csh/login.d"],
                &[".tcshrc", ".cshrc", ".login"],
            ),
            Self::Ksh => (&["/etc/profile", "/etc/profile.d", "/etc/ksh.kshrc"], &[".profile", ".kshrc"]),
            Self::Posix => (&["/etc/profile", "/etc/profile.d"], &[".profile"]),
        };
        system.iter().map(PathBuf::from).chain(own.iter().map(|file| home.join(file))).collect()
    }

    /// The files that were read, and whether those are all. What the shell named in a way that only it could follow is missing.
    pub(crate) fn files_read(self, home: &Path, sourced: Option<&Sourced>) -> (Vec<PathBuf>, bool) {
        let mut files = self.start_up_files(home);
        let mut complete = sourced.is_some_and(|sourced| sourced.complete);
        for name in sourced.iter().flat_map(|sourced| &sourced.files) {
            let name = Path::new(name.as_os_str());
            let file = match name.strip_prefix("~") {
                Ok(below) => home.join(below),
                Err(_) => name.to_owned(),
            };
            if !file.is_absolute() {
                complete = false;
            } else if file != Path::new("/dev/null") && !files.contains(&file) {
                files.push(file);
            }
        }
        (files, complete)
    }
}

fn quote_posix(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Who shall source a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Interpreter {
    /// The first line names nobody.
    Bash,
    /// A path, or with `env` a name to be looked up, and the flags that stand beside it.
    Named { shell: Shell, program: PathBuf, flags: Option<String> },
    /// What it names is no shell, so nothing that it does can be taken over.
    NoShell(String),
}

/// Reads a script's first line.
pub(crate) fn interpreter(content: &[u8]) -> Interpreter {
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some(line) = line.strip_prefix(b"#!") else { return Interpreter::Bash };
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace().peekable();
    let Some(mut program) = words.next() else { return Interpreter::Bash };
    if Path::new(program).file_name() == Some(OsStr::new("env")) {
        words.next_if(|word| *word == "-S");
        program = words.find(|word| !word.contains('=')).unwrap_or_default();
    }
    let Some(shell) = Shell::of(Path::new(program)) else { return Interpreter::NoShell(line.trim().to_owned()) };
    // Those that say where commands come from are the host's affair.
    let flags = words
        .next()
        .filter(|word| word.strip_prefix('-').is_some_and(|letters| letters.bytes().all(|b| b"aefuxvh".contains(&b))));
    Interpreter::Named { shell, program: program.into(), flags: flags.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPER: &str = "/opt/agentd keeper";

    fn args(shell: Shell, attempt: Attempt, home: Home) -> Option<String> {
        let start = shell.login(attempt, home, Path::new(KEEPER))?;
        let args: Vec<_> = start.args.iter().map(|arg| arg.display().into_owned()).collect();
        Some(args.join(" "))
    }

    #[test]
    fn shells_are_told_by_their_names() {
        for (path, shell) in [
            ("/bin/bash", Some(Shell::Bash)),
            ("/usr/local/bin/zsh-5.9", Some(Shell::Zsh)),
            ("/bin/ksh93", Some(Shell::Ksh)),
            ("/bin/bsd-csh", Some(Shell::Csh)),
            ("/bin/sh", Some(Shell::Posix)),
            ("nu", Some(Shell::Nu)),
            ("/usr/bin/python3", None),
            ("/usr/bin/pwsh", None),
            ("/", None),
        ] {
            assert_eq!(Shell::of(Path::new(path)), shell, "{path}");
        }
    }

    #[test]
    fn each_shell_is_started_as_its_manual_has_it() {
        let home = Home::default();
        let dump = "'/opt/agentd keeper' dump-environment 199";
        let first = |shell| args(shell, Attempt::Traced, home).unwrap();
        assert_eq!(first(Shell::Bash), format!("-x -l -i -c {dump}"));
        assert_eq!(first(Shell::Zsh), format!("-o sourcetrace -l -i -c \\builtin source /dev/null; {dump}"));
        assert_eq!(first(Shell::Fish), format!("--profile-startup=/dev/fd/198 -l -i -c {dump}"));
        assert_eq!(first(Shell::Csh), "-l", "-l works only alone");
        assert_eq!(first(Shell::Posix), format!("-l -i -c {dump}"));
        assert!(first(Shell::Nu).starts_with("-l -c ^\"/opt/agentd keeper\" dump-environment 199; view files"));
        let csh = Shell::Csh.login(Attempt::Traced, home, Path::new(KEEPER)).unwrap();
        assert_eq!(
            csh.stdin.unwrap().as_str(),
            Some("unset noclobber\n'/opt/agentd keeper' dump-environment 1 > {capture}\n")
        );
        assert_eq!((csh.capture_fd, csh.trace), (None, None));
    }

    #[test]
    fn the_command_is_on_stdin_only_after_the_first_attempt_and_tracing_only_in_it() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Nu, Shell::Ksh, Shell::Posix] {
            for (n, attempt) in Attempt::WEAKER.into_iter().enumerate() {
                let Some(start) = shell.login(attempt, Home::default(), Path::new(KEEPER)) else { continue };
                assert_eq!(start.stdin.is_some(), n > 0, "{shell:?} {attempt:?}");
                assert!(n == 0 || start.trace.is_none(), "{shell:?} {attempt:?}");
                assert_eq!(start.added.iter().any(|(name, _)| *name == "TMUX"), n > 0);
            }
        }
        assert_eq!(args(Shell::Bash, Attempt::Quiet, Home::default()).unwrap().find("-i "), None);
    }

    #[test]
    fn a_bashrc_that_no_profile_reads_is_read_and_nushell_makes_no_files() {
        let home = Home { lone_bashrc: true, no_nu_files: true, no_zsh_files: false };
        assert!(
            args(Shell::Bash, Attempt::Traced, home).unwrap().contains("-c [ ! -r ~/.bashrc ] || . ~/.bashrc || :; '")
        );
        assert!(args(Shell::Nu, Attempt::Traced, home).unwrap().starts_with("--no-config-file -c ^\""));
    }

    #[test]
    fn a_first_line_names_the_shell() {
        let named = |shell, program: &str, flags: Option<&str>| Interpreter::Named {
            shell,
            program: program.into(),
            flags: flags.map(str::to_owned),
        };
        for (text, expected) in [
            ("export A=1\n", Interpreter::Bash),
            ("#!\n", Interpreter::Bash),
            ("#!/bin/sh\nexport A=1", named(Shell::Posix, "/bin/sh", None)),
            ("#! /bin/bash -eu\n", named(Shell::Bash, "/bin/bash", Some("-eu"))),
            ("#!/bin/bash -l\n", named(Shell::Bash, "/bin/bash", None)),
            ("#!/usr/bin/env -S X=1 zsh -f\n", named(Shell::Zsh, "zsh", Some("-f"))),
            ("#!/usr/bin/env fish\r\n", named(Shell::Fish, "fish", None)),
            ("#!/usr/bin/python3 -u\n", Interpreter::NoShell("/usr/bin/python3 -u".to_owned())),
            ("#!/usr/bin/env\n", Interpreter::NoShell("/usr/bin/env".to_owned())),
        ] {
            assert_eq!(interpreter(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn names_of_files_are_followed_or_the_list_is_not_complete() {
        let read = |names: &[&str], complete| {
            let files = names.iter().map(|name| ByteString::from(*name)).collect();
            Shell::Fish.files_read(Path::new("/h"), Some(&Sourced { files, complete, ..Sourced::default() }))
        };
        let (files, complete) = read(&["~/x.fish", "/y.fish", "/dev/null", "/y.fish"], true);
        assert!(complete && files.ends_with(&["/h/x.fish".into(), "/y.fish".into()]), "{files:?}");
        assert!(files.contains(&"/h/.config/fish/conf.d".into()), "{files:?}");
        assert!(!read(&["./x.fish"], true).1 && !read(&[], false).1);
        assert!(!Shell::Posix.files_read(Path::new("/h"), None).1);
    }

    #[test]
    fn quotes_hold_whatever_a_path_is_made_of() {
        let path = Path::new(r"/a'b\c!d");
        assert_eq!(Shell::Bash.quote(path), r"'/a'\''b\c!d'");
        assert_eq!(Shell::Fish.quote(path), r"'/a\'b\\c!d'");
        assert_eq!(Shell::Csh.quote(path), r"'/a'\''b\c\!d'");
        assert_eq!(Shell::Nu.quote(Path::new(r#"/a"b"#)), r#""/a\"b""#);
    }
}
