//! The rows: start-up files in each language, and the required environment of the agent.

use super::{Dialect, Shell};

/// One effect of start-up files.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// `None` if the language cannot express it.
    sh: Option<&'static str>,
    fish: Option<&'static str>,
    csh: Option<&'static str>,
    nu: Option<&'static str>,
    expect: Expect,
    /// Shells with another result, and the reason.
    but: &'static [(&'static str, Expect)],
}

/// Expected result of a row.
#[derive(Clone, Copy)]
pub(super) enum Expect {
    Variables(&'static [(&'static str, Value)]),
    /// Reason of the condition, and words of its message.
    Fails(&'static str, &'static str),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Is(&'static [u8]),
    /// One byte so many times.
    Times(u8, usize),
    Absent,
}

use Expect::{Fails, Variables};
use Value::{Absent, Is, Times};

impl Row {
    pub(super) fn text(&self, shell: Shell) -> Option<&'static str> {
        match shell.dialect {
            Dialect::Sh => self.sh,
            Dialect::Fish => self.fish,
            Dialect::Csh => self.csh,
            Dialect::Nu => self.nu,
        }
    }

    pub(super) fn expect(&self, shell: Shell) -> &Expect {
        self.but.iter().find(|(name, _)| *name == shell.name).map_or(&self.expect, |(_, expect)| expect)
    }
}

const READ: Expect = Variables(&[("ROW", Is(b"read"))]);
const NOT_READ: Expect = Variables(&[("ROW", Absent)]);

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "newlines, equals signs, blanks at both ends, nothing at all",
        sh: Some("export LINES_='one\ntwo\n\nfour=4\n' EQUALS='a=b=c=' BLANKS='  both  ' EMPTY="),
        fish: Some(
            "set -gx LINES_ 'one\ntwo\n\nfour=4\n'; set -gx EQUALS a=b=c=; set -gx BLANKS '  both  '; set -gx EMPTY ''",
        ),
        csh: Some(
            "setenv LINES_ 'one\\\ntwo\\\n\\\nfour=4\\\n'\nsetenv EQUALS 'a=b=c='\n\
             setenv BLANKS '  both  '\nsetenv EMPTY ''",
        ),
        nu: Some(
            "$env.LINES_ = \"one\\ntwo\\n\\nfour=4\\n\"\n$env.EQUALS = 'a=b=c='\n\
             $env.BLANKS = '  both  '\n$env.EMPTY = ''",
        ),
        expect: Variables(&[
            ("LINES_", Is(b"one\ntwo\n\nfour=4\n")),
            ("EQUALS", Is(b"a=b=c=")),
            ("BLANKS", Is(b"  both  ")),
            ("EMPTY", Is(b"")),
        ]),
        but: &[],
    },
    Row {
        name: "what was exported before and is not any more is gone",
        sh: Some("export ROW=read"),
        fish: Some("set -gx ROW read"),
        csh: Some("setenv ROW read"),
        nu: Some("$env.ROW = 'read'"),
        expect: Variables(&[("ROW", Is(b"read")), ("EQUALS", Absent), ("EMPTY", Absent)]),
        but: &[],
    },
    Row {
        name: "bytes that are no UTF-8",
        sh: Some("export BYTES=\"$(printf 'a\\377\\376b')\""),
        fish: Some("set -gx BYTES a\\Xff\\Xfeb"),
        csh: Some("setenv BYTES \"`printf 'a\\377\\376b'`\""),
        // Strings of nushell are UTF-8, and it exports only strings.
        nu: None,
        expect: Variables(&[("BYTES", Is(b"a\xff\xfeb"))]),
        but: &[],
    },
    // The kernel limits one variable to 131,072 bytes with its name and NUL, so this value has almost the largest size.
    Row {
        name: "a value near the kernel's limit",
        sh: Some("export LARGE=\"$(head -c 131000 /dev/zero | tr '\\0' y)\""),
        fish: Some("set -gx LARGE (string repeat -n 131000 y)"),
        csh: Some("setenv LARGE \"`head -c 131000 /dev/zero | tr '\\0' y`\""),
        nu: Some("$env.LARGE = ('' | fill --width 131000 --character 'y')"),
        expect: Variables(&[("LARGE", Times(b'y', 131_000))]),
        // csh reports "Word too long", because it has no values of this size.
        but: &[("csh", Variables(&[("LARGE", Absent)]))],
    },
    Row {
        name: "a megabyte in all",
        sh: Some("for i in 0 1 2 3 4 5 6 7 8 9; do export \"LARGE$i=$(head -c 104857 /dev/zero | tr '\\0' y)\"; done"),
        fish: Some("for i in (seq 0 9); set -gx LARGE$i (string repeat -n 104857 y); end"),
        csh: Some("foreach i (0 1 2 3 4 5 6 7 8 9)\nsetenv LARGE$i \"`head -c 104857 /dev/zero | tr '\\0' y`\"\nend"),
        nu: Some("for i in 0..9 { load-env { $'LARGE($i)': ('' | fill --width 104857 --character 'y') } }"),
        expect: Variables(&[("LARGE0", Times(b'y', 104_857)), ("LARGE9", Times(b'y', 104_857))]),
        but: &[("csh", Variables(&[("LARGE0", Absent)]))],
    },
    Row {
        name: "a value that the kernel gives to no program",
        sh: Some("export LARGE=\"$(head -c 140000 /dev/zero | tr '\\0' y)\""),
        fish: Some("set -gx LARGE (string repeat -n 140000 y)"),
        csh: Some("setenv LARGE \"`head -c 140000 /dev/zero | tr '\\0' y`\""),
        nu: Some("$env.LARGE = ('' | fill --width 140000 --character 'y')"),
        expect: Fails("LoginShellFailed", "at most 131071 bytes for a variable with its name"),
        but: &[("csh", Variables(&[("LARGE", Absent)]))],
    },
    Row {
        name: "it prints, much, and what looks like an environment and its end",
        sh: Some(
            "export ROW=read; printf 'FAKE=1\\0ROW=fake\\0'; printf 'FAKE=1\\0' >&2; \
             head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2",
        ),
        fish: Some(
            "set -gx ROW read; printf 'FAKE=1\\0ROW=fake\\0'; printf 'FAKE=1\\0' >&2; \
             head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2",
        ),
        csh: Some("setenv ROW read\nprintf 'FAKE=1\\0ROW=fake\\0'\nhead -c 300000 /dev/zero"),
        nu: Some("$env.ROW = 'read'\n^printf 'FAKE=1\\0ROW=fake\\0'\n^head -c 300000 /dev/zero"),
        expect: Variables(&[("ROW", Is(b"read")), ("FAKE", Absent)]),
        but: &[],
    },
    Row {
        name: "it never ends",
        sh: Some("export ROW=read; sleep 8642"),
        fish: Some("set -gx ROW read; sleep 8642"),
        csh: Some("setenv ROW read\nsleep 8642"),
        nu: Some("$env.ROW = 'read'\n^sleep 8642"),
        expect: Fails("LoginShellTimedOut", "was ended with everything it had started"),
        // A zsh that is not interactive does not read .zshrc, so the weakest attempt gives something: `Degraded`.
        but: &[("zsh", NOT_READ)],
    },
    Row {
        name: "it asks, on stdin and on the terminal",
        sh: Some("printf 'Password: '; read -r ANSWER; read -r ANSWER 2>/dev/null < /dev/tty; export ROW=read ANSWER"),
        fish: Some("read ANSWER; read ANSWER < /dev/tty; set -gx ROW read"),
        csh: Some("set answer = \"$<\"\nsh -c 'read answer < /dev/tty'\nsetenv ROW read"),
        nu: Some("try { input 'Password: ' }\ntry { ^sh -c 'read answer < /dev/tty' }\n$env.ROW = 'read'"),
        expect: READ,
        but: &[],
    },
    Row {
        name: "it leaves processes behind that hold everything",
        sh: Some("export ROW=read; sleep 8642 & setsid sh -c 'sleep 8642 & sleep 8642 &'"),
        fish: Some("set -gx ROW read; sleep 8642 &; setsid sh -c 'sleep 8642 & sleep 8642 &'"),
        csh: Some("setenv ROW read\nsleep 8642 &\nsetsid sh -c 'sleep 8642 & sleep 8642 &'"),
        nu: Some("$env.ROW = 'read'\n^sh -c 'sleep 8642 &'\n^setsid sh -c 'sleep 8642 & sleep 8642 &'"),
        expect: READ,
        but: &[],
    },
    Row {
        name: "it puts another shell in its place",
        sh: Some("export ROW=read; exec /bin/sh"),
        fish: Some("set -gx ROW read; exec /bin/sh"),
        csh: Some("setenv ROW read\nexec /bin/sh"),
        nu: Some("$env.ROW = 'read'\nexec /bin/sh"),
        expect: READ,
        but: &[],
    },
    Row {
        name: "it puts a multiplexer in its place where there is none yet",
        sh: Some("export ROW=read; [ -n \"$TMUX\" ] || exec /bin/false"),
        fish: Some("set -gx ROW read; set -q TMUX; or exec /bin/false"),
        csh: Some("setenv ROW read\nif (! $?TMUX) exec /bin/false"),
        nu: Some("$env.ROW = 'read'\nif 'TMUX' not-in $env { exec /bin/false }"),
        expect: Variables(&[("ROW", Is(b"read")), ("TMUX", Absent), ("VSCODE_RESOLVING_ENVIRONMENT", Absent)]),
        but: &[],
    },
    Row {
        name: "it does so where it is interactive",
        sh: Some("export ROW=read; case $- in *i*) exec /bin/false;; esac"),
        fish: Some("set -gx ROW read; status is-interactive; and exec /bin/false"),
        csh: None,
        nu: None,
        // A zsh that is not interactive reads no .zshrc.
        expect: READ,
        but: &[("zsh", NOT_READ)],
    },
    Row {
        name: "it goes elsewhere",
        sh: Some("export ROW=read; cd /"),
        fish: Some("set -gx ROW read; cd /"),
        csh: Some("setenv ROW read\ncd /"),
        nu: Some("$env.ROW = 'read'\ncd /"),
        expect: Variables(&[("ROW", Is(b"read")), ("PWD", Absent), ("OLDPWD", Absent)]),
        but: &[],
    },
    Row {
        name: "it exits",
        sh: Some("export ROW=read; echo no such luck >&2; exit 3"),
        fish: Some("set -gx ROW read; exit 3"),
        csh: Some("setenv ROW read\nexit 3"),
        nu: Some("$env.ROW = 'read'\nexit 3"),
        expect: Fails("LoginShellFailed", "status 3"),
        // In these it ends the file alone. A zsh that is not interactive does not read this one.
        but: &[("fish", READ), ("tcsh", READ), ("csh", READ), ("zsh", NOT_READ)],
    },
    Row {
        name: "set -e",
        sh: Some("export ROW=read; set -e"),
        fish: None,
        csh: None,
        nu: None,
        expect: READ,
        but: &[],
    },
    Row {
        name: "set -e, and a command fails",
        sh: Some("export ROW=read; set -e; false"),
        fish: None,
        csh: None,
        nu: None,
        expect: READ,
        but: &[("bash", Fails("LoginShellFailed", "status 1")), ("dash", Fails("LoginShellFailed", "status 1"))],
    },
    Row {
        name: "set -u and a trap at the end that fails and changes the status",
        sh: Some("export ROW=read; set -u; trap 'echo bye; exit 7' EXIT"),
        fish: Some("set -gx ROW read; function bye --on-event fish_exit; exit 7; end"),
        csh: None,
        nu: None,
        expect: READ,
        but: &[],
    },
    Row {
        name: "set -x, and stdout and stderr go elsewhere",
        sh: Some("export ROW=read; set -x; exec > /dev/null 2>&1"),
        fish: None,
        csh: Some("setenv ROW read\nset echo verbose"),
        nu: None,
        expect: Variables(&[("ROW", Is(b"read")), ("BASH_XTRACEFD", Absent)]),
        but: &[],
    },
    Row {
        name: "a command that is not there",
        sh: Some("no-such-command --at-all; export ROW=read"),
        fish: Some("no-such-command --at-all; set -gx ROW read"),
        csh: Some("no-such-command --at-all\nsetenv ROW read"),
        nu: None,
        expect: READ,
        but: &[],
    },
    Row {
        name: "noclobber",
        sh: Some("set -C; export ROW=read"),
        fish: None,
        csh: Some("set noclobber\nsetenv ROW read"),
        nu: None,
        expect: READ,
        but: &[],
    },
    Row {
        name: "a syntax error",
        sh: Some("export ROW=read\nif then ("),
        fish: Some("set -gx ROW read\nif ("),
        csh: Some("setenv ROW read\nif ( then ("),
        nu: Some("$env.ROW = 'read'\nif ("),
        // A shell that reads line by line runs the lines before the mistake.
        expect: READ,
        but: &[("fish", NOT_READ), ("nu", NOT_READ), ("csh", READ)],
    },
    // From here on: homes that are wrong where there is no terminal.
    Row {
        name: "it asks whether its output is a terminal",
        sh: Some("[ -t 0 ] && [ -t 1 ] && tty -s || return 0; export ROW=read"),
        fish: Some("isatty stdout; and tty -s; or exit; set -gx ROW read"),
        csh: Some("tty -s\nif ($status) exit\nsetenv ROW read"),
        nu: None,
        expect: READ,
        but: &[],
    },
    Row {
        name: "it asks what kind of terminal there is",
        sh: Some("case $TERM in dumb|'') return 0;; esac; export ROW=read"),
        fish: Some("test \"$TERM\" = dumb; and exit; set -gx ROW read"),
        csh: Some("if ($TERM == dumb) exit\nsetenv ROW read"),
        nu: Some("if $env.TERM != 'dumb' { $env.ROW = 'read' }"),
        expect: Variables(&[("ROW", Is(b"read")), ("TERM", Absent)]),
        but: &[],
    },
    Row {
        name: "it asks how large the window is, and sets it",
        sh: Some("set -- $(stty size); [ \"$1\" -gt 10 ] && [ \"$2\" -gt 40 ] && export ROW=read COLUMNS LINES"),
        fish: Some("set -l size (stty size | string split ' '); test $size[2] -gt 40; and set -gx ROW read"),
        csh: Some("set size = `stty size`\nif ($size[2] > 40) setenv ROW read"),
        nu: None,
        expect: Variables(&[("ROW", Is(b"read")), ("COLUMNS", Absent), ("LINES", Absent)]),
        but: &[],
    },
    Row {
        name: "it puts a shell of another kind in its place",
        sh: Some("export ROW=read; [ -t 0 ] && exec /bin/tcsh -f; unset ROW"),
        fish: Some("set -gx ROW read; isatty stdin; and exec /bin/tcsh -f; set -e ROW"),
        csh: Some("setenv ROW read\ntty -s\nif ($status == 0) exec /bin/bash --norc\nunsetenv ROW"),
        nu: None,
        expect: READ,
        but: &[],
    },
    Row {
        name: "it starts itself again",
        sh: Some("[ -n \"$AGAIN\" ] || { export AGAIN=1; exec \"$SHELL\" -l; }; export ROW=read"),
        fish: Some("set -q AGAIN; or begin; set -gx AGAIN 1; exec fish -l; end; set -gx ROW read"),
        csh: Some("if (! $?AGAIN) then\nsetenv AGAIN 1\nexec $SHELL -l\nendif\nsetenv ROW read"),
        nu: None,
        expect: READ,
        but: &[],
    },
    Row {
        name: "it puts a multiplexer in its place, a real one",
        sh: Some("[ -n \"$TMUX\" ] || exec tmux; export ROW=read"),
        fish: None,
        csh: Some("if (! $?TMUX) exec tmux\nsetenv ROW read"),
        nu: None,
        expect: Variables(&[("ROW", Is(b"read")), ("TMUX", Absent), ("TMUX_PANE", Absent), ("TMUX_TMPDIR", Absent)]),
        but: &[],
    },
    Row {
        name: "it asks the terminal what it is and does not read the answer",
        sh: Some("printf '\\033[c\\033[6n'; export ROW=read"),
        fish: Some("printf '\\e[c\\e[6n'; set -gx ROW read"),
        csh: Some("printf '\\033[c\\033[6n'\nsetenv ROW read"),
        nu: None,
        expect: READ,
        but: &[],
    },
    Row {
        name: "it takes the echo from the terminal",
        sh: Some("stty -echo; export ROW=read"),
        fish: Some("stty -echo; set -gx ROW read"),
        csh: Some("stty -echo\nsetenv ROW read"),
        nu: None,
        expect: READ,
        but: &[],
    },
];
