//! Describes how each shell runs at a terminal: its arguments, and the lines that are typed at its prompt. The
//! module does no I/O.
//!
//! A typed line begins with a blank. Most shells and their plugins then keep the line out of their history. The
//! rest of the line handles the other shells. The last command of a line stays until the run ends. The shell
//! therefore shows no second prompt, so its prompt hooks run once.

use std::path::Path;

use agentd_keeper::protocol::{Terminal, Trace, Typed};

use super::shell::{Home, Shell, Start, TRACE};

/// Size of a terminal window that was just opened.
const ROWS: u16 = 40;
const COLUMNS: u16 = 120;
/// Variables that name the directories of multiplexers' servers. A start-up file that attaches a multiplexer gets a
/// server of the run, instead of the user's own server.
pub(crate) const PRIVATE: [&str; 3] = ["TMUX_TMPDIR", "SCREENDIR", "ZELLIJ_SOCKET_DIR"];

/// Removes the line from bash's history. HISTFILE may be read-only, and a prompt command may save the history.
const FORGET: &str = "A__h=$(builtin history 1); case $A__h in (*agentd-keeper*) \
     A__h=${A__h#\"${A__h%%[0-9]*}\"}; builtin history -d \"${A__h%%[!0-9]*}\";; esac; \
     builtin unset -v A__h";
const DUMP: &str = "{keeper} dump-environment {capture}";

/// Returns how to start a login shell at a terminal, as login(1) does: with a dash before its name. Returns `None`
/// if the shell must not run at a terminal. With a directory, the shell changes to it after its first prompt and
/// shows another prompt.
pub(crate) fn start(
    kind: Option<Shell>,
    home: Home,
    traced: bool,
    leave: bool,
    directory: Option<&Path>,
) -> Option<Start> {
    let mut start = Start::default();
    let args: &[&str] = match kind {
        // These shells ask users without configuration files whether to create some.
        Some(Shell::Nu) if home.no_nu_files => return None,
        Some(Shell::Zsh) if home.no_zsh_files => return None,
        Some(Shell::Bash) if traced => {
            (start.trace, start.trace_fd) = (Some(Trace::Bash), Some(TRACE));
            start.added.push(("BASH_XTRACEFD", "198"));
            &["-x"]
        }
        Some(Shell::Zsh) if traced => {
            start.trace = Some(Trace::Zsh);
            &["-o", "histignorespace", "-o", "sourcetrace"]
        }
        Some(Shell::Zsh) => &["-o", "histignorespace"],
        Some(Shell::Fish) if traced => {
            (start.trace, start.trace_fd) = (Some(Trace::Fish), Some(TRACE));
            &["--profile-startup=/dev/fd/198"]
        }
        Some(Shell::Nu) => {
            (start.trace, start.trace_fd) = (Some(Trace::Names), Some(TRACE));
            &[]
        }
        Some(Shell::Ksh) => {
            start.added.push(("HISTFILE", "/dev/null"));
            &[]
        }
        _ => &[],
    };
    start.args = args.iter().map(|arg| (*arg).into()).collect();
    let private = if leave { Vec::new() } else { PRIVATE.map(str::to_owned).to_vec() };
    let typed = typed(kind, home, start.trace, directory);
    start.terminal = Some(Terminal { rows: ROWS, columns: COLUMNS, typed, private });
    Some(start)
}

/// Returns the lines to type, by the shell that has the terminal at that time. Start-up files may have started
/// another shell.
fn typed(kind: Option<Shell>, home: Home, trace: Option<Trace>, directory: Option<&Path>) -> Vec<Typed> {
    let both = |rest: &str| format!(" {DUMP}; {rest}; {DUMP} stay");
    let typed = |programs: &[&str], mut lines: Vec<String>| {
        if let Some(directory) = directory {
            let last = lines.pop();
            let shell = programs.first().and_then(|name| Shell::of(Path::new(name))).unwrap_or(Shell::Posix);
            let run = match shell {
                Shell::Nu => "^".to_owned(),
                Shell::Bash => format!("{FORGET}; "),
                _ => String::new(),
            };
            lines.push(format!(" cd {}; {run}{DUMP} step", shell.quote(directory)));
            lines.extend(last);
        }
        Typed { programs: programs.iter().map(|name| (*name).to_owned()).collect(), lines }
    };
    let of_bash = || both(&format!("{FORGET}; builtin unset -v HISTFILE"));
    let mut bash = vec![of_bash()];
    if home.lone_bashrc {
        // An interactive bash reads only .bashrc, and a login bash reads only the profile. Users expect both. The
        // line is its own command, so that the prompt hooks that .bashrc sets are run.
        bash.insert(0, format!(" [ ! -r ~/.bashrc ] || . ~/.bashrc; {FORGET}; {DUMP} step"));
    }
    let mut zsh = both("unset HISTFILE");
    if trace == Some(Trace::Zsh) {
        zsh.insert_str(0, " \\builtin source /dev/null;");
    }
    let mut nu = format!(" ^{DUMP} stay");
    if trace == Some(Trace::Names) {
        nu.insert_str(0, &format!(" view files | get filename | to text | save --raw --append /dev/fd/{TRACE};"));
    }
    let any = || format!(" {DUMP} stay");
    // A multiplexer starts the login shell.
    let within = match kind {
        Some(Shell::Bash) => of_bash(),
        Some(Shell::Zsh) => both("unset HISTFILE"),
        Some(Shell::Csh) => both("unset savehist"),
        _ => any(),
    };
    vec![
        typed(&["tmux", "screen", "zellij"], vec![within]),
        typed(&["bash", "rbash"], bash),
        typed(&["zsh", "rzsh"], vec![zsh]),
        typed(&["fish"], vec![any()]),
        typed(&["nu"], vec![nu]),
        typed(&["tcsh", "csh", "bsd-csh"], vec![both("unset savehist")]),
        typed(&["ksh", "rksh", "mksh", "oksh", "pdksh", "lksh", "sh", "dash", "ash", "yash", "busybox"], vec![any()]),
        typed(&[], vec![any()]),
    ]
}

/// Reports whether the directory's name can be a word of a typed line.
pub(crate) fn can_be_typed(directory: &Path) -> bool {
    let fits =
        |text: &str| !text.chars().any(char::is_control) && !text.contains("{keeper}") && !text.contains("{capture}");
    directory.to_str().is_some_and(fits)
}

/// Reports whether a start-up file tests for bash's trace, which adds an `x` to `$-`. Files of environment modules
/// test it only to be quiet, with equal results, so they are excluded.
pub(crate) fn notices_trace(text: &[u8]) -> bool {
    let has = |words: &[u8]| memchr::memmem::find(text, words).is_some();
    (has(b"xtrace") || has(b"*x*")) && !has(b"__lmod") && !has(b"_mlshdbg") && !has(b"_mlv")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(lines: &[Typed], program: &str) -> String {
        let fits = |typed: &&Typed| typed.programs.is_empty() || typed.programs.iter().any(|name| name == program);
        lines.iter().find(fits).unwrap().lines.join("|")
    }

    #[test]
    fn each_program_has_its_own_typed_line_and_all_begin_with_a_blank() {
        let lines = typed(Some(Shell::Bash), Home::default(), None, None);
        assert_eq!(line(&lines, "fish"), " {keeper} dump-environment {capture} stay");
        assert_eq!(line(&lines, "xonsh"), line(&lines, "dash"));
        assert!(line(&lines, "bash").contains("; builtin unset -v HISTFILE; "));
        assert!(
            lines.iter().flat_map(|typed| &typed.lines).all(|line| line.starts_with(' ') && line.ends_with(" stay"))
        );
        let lone = typed(Some(Shell::Bash), Home { lone_bashrc: true, ..Home::default() }, None, None);
        assert_eq!(lone[1].lines.len(), 2);
        assert!(lone[1].lines[0].ends_with(" step"));
    }

    #[test]
    fn a_shell_goes_to_a_directory_before_its_last_line_whatever_the_name() {
        let directory = Path::new("/p/it's $HOME! `x`");
        let lines = typed(Some(Shell::Bash), Home { lone_bashrc: true, ..Home::default() }, None, Some(directory));
        assert_eq!(lines[1].lines.len(), 3);
        assert_eq!(lines[1].lines[1], format!(" cd '/p/it'\\''s $HOME! `x`'; {FORGET}; {DUMP} step"));
        assert!(line(&lines, "nu").starts_with(" cd \"/p/it's $HOME! `x`\"; ^{keeper}"));
        assert!(line(&lines, "tcsh").contains("HOME\\! "), "{}", line(&lines, "tcsh"));
        assert!(can_be_typed(directory) && !can_be_typed(Path::new("/two\nlines")));
    }

    #[test]
    fn a_shell_that_would_write_first_files_is_not_shown_a_terminal() {
        let home = Home { no_nu_files: true, no_zsh_files: true, ..Home::default() };
        for (shell, shown) in [(Shell::Nu, false), (Shell::Zsh, false), (Shell::Bash, true), (Shell::Fish, true)] {
            assert_eq!(start(Some(shell), home, true, false, None).is_some(), shown, "{shell:?}");
        }
        assert!(start(None, home, true, false, None).unwrap().trace.is_none());
    }

    #[test]
    fn files_that_test_for_a_trace_are_recognised() {
        assert!(notices_trace(b"[[ $- == *x* ]] && return") && notices_trace(b"[[ -o xtrace ]]"));
        assert!(
            !notices_trace(b"case $- in *i*) ;; esac") && !notices_trace(b"__lmod_vx= case $- in *x*) set +x;; esac")
        );
    }
}
