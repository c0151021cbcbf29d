//! How each shell is run at a terminal: its arguments, and what is typed at its prompt. No I/O.
//!
//! A typed line begins with a blank, which most shells and their plugins take as a wish to keep the line out of their
//! history. The rest of the line sees to those that do not. The last command of a line stays until the run ends: the
//! shell shows no second prompt, so what it does before each prompt is done once.

use std::path::Path;

use agentd_keeper::protocol::{Terminal, Trace, Typed};

use super::shell::{Home, Shell, Start, TRACE};

/// The window of a terminal that somebody has just opened.
const ROWS: u16 = 40;
const COLUMNS: u16 = 120;
/// Where multiplexers look for their servers. A start-up file that attaches one gets a server of the run, and not the
/// user's own, in which somebody may be typing.
pub(crate) const PRIVATE: [&str; 3] = ["TMUX_TMPDIR", "SCREENDIR", "ZELLIJ_SOCKET_DIR"];

/// Takes the line out of bash's history: HISTFILE may be readonly, and a command before the prompt may save what is there.
const FORGET: &str = "A__h=$(builtin history 1); case $A__h in (*agentd-keeper*) \
     A__h=${A__h#\"${A__h%%[0-9]*}\"}; builtin history -d \"${A__h%%[!0-9]*}\";; esac; \
     builtin unset -v A__h";
const DUMP: &str = "{keeper} dump-environment {capture}";

/// How a shell is logged in to at a terminal, as login(1) does it: by a dash before its name. `None` where it must not be.
/// With a directory, the shell goes there after its first prompt, and shows another one.
pub(crate) fn start(
    kind: Option<Shell>,
    home: Home,
    traced: bool,
    leave: bool,
    directory: Option<&Path>,
) -> Option<Start> {
    let mut start = Start::default();
    let args: &[&str] = match kind {
        // They ask those who have no files whether to write some.
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

/// What is typed, by the shell that has the terminal when it is: start-up files may have put another one there.
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
        // A terminal's bash reads .bashrc alone and a login's the profile alone; what the user has is both. It is a command of its own, so
        // that what .bashrc sets to be done before a prompt is done.
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
    // What a multiplexer starts is the login shell.
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

/// Whether the directory's name can be a word of a typed line.
pub(crate) fn can_be_typed(directory: &Path) -> bool {
    let fits =
        |text: &str| !text.chars().any(char::is_control) && !text.contains("{keeper}") && !text.contains("{capture}");
    directory.to_str().is_some_and(fits)
}

/// Whether a start-up file looks at what the trace of bash changes: `$-` has an `x` in it then. Those of modules do so to be quiet, and end
/// up alike.
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
    fn each_program_is_typed_a_line_of_its_own_and_all_begin_with_a_blank() {
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
    fn files_that_look_for_a_trace_are_known_by_their_words() {
        assert!(notices_trace(b"[[ $- == *x* ]] && return") && notices_trace(b"[[ -o xtrace ]]"));
        assert!(
            !notices_trace(b"case $- in *i*) ;; esac") && !notices_trace(b"__lmod_vx= case $- in *x*) set +x;; esac")
        );
    }
}
