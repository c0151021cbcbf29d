//! Describes each kind of shell: how it starts as a login shell, reports the files that it reads, and sources a
//! script. The module does no I/O. It makes argument lists and texts that were each tried with the shell itself.
//!
//! Two rules hold for every shell:
//!
//! - The exit status proves nothing. A shell that was replaced by `exec` may end with 0, and a shell with a trap on
//!   EXIT may end with 7. Only a complete environment counts.
//! - Process lists show a shell's command line, so it holds no values except paths.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use agentd_api::ByteString;
use agentd_keeper::protocol::{Sourced, Terminal, Trace};

/// File descriptor on which the environment comes back. The number is high, so start-up files are unlikely to use
/// it.
const DESCRIPTOR: i32 = 199;
/// File descriptor for the shell's trace of the files that it reads.
pub(crate) const TRACE: i32 = 198;

/// The kinds of shells, by the way they are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
    Nu,
    /// csh and tcsh. They close every file descriptor that they do not know, and accept `-l` only as the sole
    /// option.
    Csh,
    /// The Korn shells. They write a history file even without a terminal.
    Ksh,
    /// The POSIX shells: sh, dash and the shell of busybox.
    Posix,
}

/// One way to run a shell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Start {
    pub args: Vec<ByteString>,
    pub stdin: Option<ByteString>,
    /// File descriptor on which the environment comes back. Without one it comes back through a FIFO that `stdin`
    /// names.
    pub capture_fd: Option<i32>,
    pub trace: Option<Trace>,
    pub trace_fd: Option<i32>,
    /// Input to type if the shell runs at a terminal. The environment then comes back through the terminal's FIFO.
    pub terminal: Option<Terminal>,
    /// Variables for this run alone. They are removed from the environment that comes back.
    pub added: Vec<(&'static str, &'static str)>,
}

/// The ways to run a login shell without a terminal, in the order in which they are tried. They follow a run at a
/// terminal that gave no environment (`typed`). An attempt is made if the previous attempt gave
/// no environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// With a trace of the sourced files, if the shell supports a trace.
    Traced,
    /// For start-up files that replace the shell with another program. Variables tell multiplexers that they
    /// already run, and a shell that replaced the first finds the command on its stdin. Not used first, because
    /// `ssh host` or `cat` in a start-up file would read stdin.
    Elsewhere,
    /// Without the interactive option, which most such start-up files test first.
    Quiet,
}

impl Attempt {
    /// The attempts without a terminal.
    pub(crate) const WEAKER: [Self; 3] = [Self::Traced, Self::Elsewhere, Self::Quiet];

    /// Describes how the shell was run, as a part of a sentence.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Traced => "without a terminal",
            Self::Elsewhere => "without a terminal, with the marks of a multiplexer set",
            Self::Quiet => "without a terminal and without the files of an interactive shell",
        }
    }
}

/// Variables that start-up files test before they start a multiplexer. The last is tested before slow work.
const ELSEWHERE: [(&str, &str); 4] =
    [("TMUX", "agentd"), ("STY", "agentd"), ("ZELLIJ", "agentd"), ("VSCODE_RESOLVING_ENVIRONMENT", "1")];

/// Variables that shells and the texts below add themselves.
pub(crate) const OF_THE_RUN: [&str; 4] = ["A__z", "BASH_XTRACEFD", "AGENTD_STATUS", "AGENTD_DUMPED"];

/// Facts about the home directory that decide how its shell is started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Home {
    /// Whether a `.bashrc` exists that the profile read by bash does not name.
    pub lone_bashrc: bool,
    /// Whether nushell's configuration directory is missing. nushell would create it with default files.
    pub no_nu_files: bool,
    /// Whether all of zsh's files are missing. At a terminal zsh then asks whether to create some.
    pub no_zsh_files: bool,
}

impl Start {
    /// Removes the trace of bash.
    pub(crate) fn without_trace(&mut self) {
        if self.trace.take().is_some() {
            self.args.retain(|arg| arg.as_bytes() != b"-x");
            self.trace_fd = None;
            self.added.clear();
        }
    }
}

impl Shell {
    /// Determines the kind of shell from the program's name. Returns `None` for a program that is no known shell.
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

    /// Returns the arguments of a login shell, or `None` if this attempt would equal an earlier attempt.
    pub(crate) fn login(self, attempt: Attempt, home: Home, keeper: &Path) -> Option<Start> {
        let dump = self.dump(keeper);
        let command = match self {
            // An interactive bash reads only .bashrc, and a login bash reads only the profile. Users expect both.
            // Most profiles read .bashrc themselves.
            Self::Bash if home.lone_bashrc => format!("[ ! -r ~/.bashrc ] || . ~/.bashrc || :; {dump}"),
            // The trace of this command shows that tracing was still on at the end.
            Self::Zsh if attempt == Attempt::Traced => format!("\\builtin source /dev/null; {dump}"),
            Self::Nu if attempt == Attempt::Traced && !home.no_nu_files => {
                format!("{dump}; view files | get filename | to text | save --raw --append /dev/fd/{TRACE}")
            }
            _ => dump.clone(),
        };
        let flags: &[&str] = match (self, attempt) {
            (Self::Csh | Self::Nu, Attempt::Quiet) => return None,
            (Self::Csh, _) => &["-l"],
            // Without -l, -c reads no user files. With -c, autoload/ is never read.
            (Self::Nu, _) if home.no_nu_files => &["--no-config-file", "-c"],
            (Self::Nu, _) | (_, Attempt::Quiet) => &["-l", "-c"],
            // Only interactive shells read .zshrc, $ENV and .kshrc, and many other files test `case $- in *i*)`.
            (Self::Bash, Attempt::Traced) => &["-x", "-l", "-i", "-c"],
            (Self::Zsh, Attempt::Traced) => &["-o", "sourcetrace", "-l", "-i", "-c"],
            (Self::Fish, Attempt::Traced) => &["--profile-startup=/dev/fd/198", "-l", "-i", "-c"],
            _ => &["-l", "-i", "-c"],
        };
        let mut start = Start { capture_fd: Some(DESCRIPTOR), ..Start::default() };
        start.args = flags.iter().map(|flag| ByteString::from(*flag)).collect();
        if attempt != Attempt::Traced {
            start.added.extend(ELSEWHERE);
            // nushell itself reads no commands from stdin. The text is for a program that replaced it.
            let dump = if self == Self::Nu { Self::Posix.dump(keeper) } else { dump.clone() };
            start.stdin = Some(format!("{dump}\n").into());
        }
        if self == Self::Csh {
            // noclobber refuses a FIFO too. `>!` would help, but a shell that replaced csh would write a file named
            // `!`. The empty lines are for start-up files that read a line.
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
                // These shells write the output of -x to stderr, with values, where it cannot be separated from
                // other messages.
                Self::Nu | Self::Csh | Self::Ksh | Self::Posix => (None, None),
            };
        }
        if start.trace == Some(Trace::Bash) {
            start.added.push(("BASH_XTRACEFD", "198"));
        }
        Some(start)
    }

    /// Returns the last command of a login or a script, which writes the environment.
    fn dump(self, keeper: &Path) -> String {
        match self {
            Self::Nu => format!("^{} dump-environment {DESCRIPTOR}", self.quote(keeper)),
            Self::Csh => format!("{} dump-environment 1 > {{capture}}", self.quote(keeper)),
            _ => format!("{} dump-environment {DESCRIPTOR}", self.quote(keeper)),
        }
    }

    /// Returns how `program`, a shell of this kind, sources `script`. `flags` come from the script's first line,
    /// and `stubs` are definitions that come before the script.
    ///
    /// As with direnv, a script fails if it *exits* with a status other than 0 or if the shell cannot parse it.
    /// Examples are `exit 3`, and `set -e` with a failed command.
    ///
    /// The status of the last command or of a `return` is ignored, because many scripts end with
    /// `[ -d x ] && export A=1`. `exit 0` is a normal end. The script's own trap on EXIT is run.
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
                // `exit` in a sourced file ends only that file in csh, so only the status shows a failure.
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
                    // `exit` ends only the sourced file in fish, so a wrapper records the exit status.
                    "{stubs}function exit; set -g AGENTD_EXIT $argv[1] 0; builtin exit $argv; end; \
                     source {file}; set -l agentd_status $status; functions -e exit; \
                     set -q AGENTD_EXIT[1]; and test \"$AGENTD_EXIT[1]\" != 0; and exit $AGENTD_EXIT[1]; \
                     if test $agentd_status = {syntax}; {itself} --no-execute {file} 2>/dev/null; \
                     or exit {syntax}; end; \
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
                // Without `extglob`, a bash that only parses the script refuses patterns that the script enables by
                // `shopt -s extglob`.
                let extended = if self == Self::Bash { "-O extglob " } else { "" };
                let text = format!(
                    "{stubs}trap {at_exit} EXIT\n. {file}\nAGENTD_STATUS=$?\n\
                     case \"$AGENTD_STATUS\" in {syntax}) {itself} {extended}-n {file} 2>/dev/null \
                     || exit \"$AGENTD_STATUS\";; esac\n\
                     {dump}\nAGENTD_DUMPED=1\nexit \"$AGENTD_STATUS\""
                );
                (no_files, text)
            }
        };
        start.args = no_files.iter().copied().chain(flags).chain(["-c"]).map(ByteString::from).collect();
        start.args.push(text.into());
        start
    }

    /// Reports whether the shell can read the script's bytes from a file descriptor under the given path. For this,
    /// it must open the script in its first thread and keep inherited descriptors open. csh closes descriptors, and
    /// nushell may open the script in any thread.
    pub(crate) fn can_be_given_bytes(self) -> bool {
        !matches!(self, Self::Csh | Self::Nu)
    }

    /// Returns the statuses of sourcing a file that the shell cannot parse. Other errors can have these statuses
    /// too, so the shell then checks the syntax. It never checks without such a status: with `-n`, a setting like
    /// `extglob` that the script enables has no effect, and a valid script could be refused.
    pub(crate) fn syntax_statuses(self) -> &'static [i32] {
        match self {
            // bash ends with 1 for an unclosed quote or bracket.
            Self::Bash => &[1, 2],
            Self::Posix => &[2],
            Self::Ksh => &[3],
            Self::Zsh => &[126],
            Self::Fish | Self::Nu | Self::Csh => &[1],
        }
    }

    /// Returns the arguments that check the syntax of `script` without running it. A status other than 0 means a
    /// syntax error.
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
            // csh expands history inside quotes too.
            Self::Csh => quote_posix(&text).replace('!', r"\!"),
            Self::Bash | Self::Zsh | Self::Ksh | Self::Posix => quote_posix(&text),
        }
    }

    /// Returns the start-up files below `home` that exist.
    pub(crate) fn own_files(self, home: &Path) -> Vec<PathBuf> {
        self.start_up_files(home).into_iter().filter(|file| file.starts_with(home) && file.is_file()).collect()
    }

    /// Returns the files and directories that a login shell reads by default. Missing files are included, because a
    /// new file counts as a change.
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

    /// Returns the files that were read, and whether the list is complete. Names that only the shell itself could
    /// resolve are missing.
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

/// The program that sources a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Interpreter {
    /// The script has no interpreter line.
    Bash,
    /// A path, or with `env` a name to look up, and the flags beside it.
    Named { shell: Shell, program: PathBuf, flags: Option<String> },
    /// The interpreter line names no shell, so the script's variables cannot be read back.
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
    // Flags that change where commands come from are left to the host.
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
    fn shells_are_recognised_by_their_names() {
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
    fn each_shell_is_started_as_its_manual_describes() {
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
    fn a_lone_bashrc_is_read_and_nushell_creates_no_files() {
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
    fn file_names_are_resolved_or_the_list_is_incomplete() {
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
    fn quotes_protect_every_character_of_a_path() {
        let path = Path::new(r"/a'b\c!d");
        assert_eq!(Shell::Bash.quote(path), r"'/a'\''b\c!d'");
        assert_eq!(Shell::Fish.quote(path), r"'/a\'b\\c!d'");
        assert_eq!(Shell::Csh.quote(path), r"'/a'\''b\c\!d'");
        assert_eq!(Shell::Nu.quote(Path::new(r#"/a"b"#)), r#""/a\"b""#);
    }
}
