//! Tables of programs whose arguments are commands, with options from the manuals of Debian 12 (util-linux,
//! coreutils, sudo, strace).
//!
//! An option that is missing here is no error: the next word then counts both as its value and as the command.

/// A program that runs the command after its own options and operands.
#[derive(Debug)]
pub(super) struct Wrapper {
    names: &'static [&'static str],
    /// Letters of options with a value.
    pub(super) short: &'static str,
    /// Letters of options without a value.
    pub(super) flags: &'static str,
    /// Letters of options whose value is a command line.
    pub(super) command: &'static str,
    /// Long options with a value.
    pub(super) long: &'static [&'static str],
    /// Long options whose value is a command line.
    pub(super) commands: &'static [&'static str],
    /// Number of operands before the command.
    pub(super) operands: usize,
    /// Whether `NAME=value` before the command is an assignment.
    pub(super) assigns: bool,
    /// Whether the command may be a single word that a shell parses.
    pub(super) joins: bool,
    /// Whether the program is a shell if no command follows.
    pub(super) is_shell: bool,
}

const PLAIN: Wrapper = Wrapper {
    names: &[],
    short: "",
    flags: "",
    command: "",
    long: &[],
    commands: &[],
    operands: 0,
    assigns: false,
    joins: false,
    is_shell: false,
};

const WRAPPERS: &[Wrapper] = &[
    Wrapper {
        names: &[
            "nohup",
            "setsid",
            "builtin",
            "noglob",
            "nocorrect",
            "-",
            "fakeroot",
            "torsocks",
            "tsocks",
            "unbuffer",
            "setarch",
            "linux64",
        ],
        flags: "cfwpv",
        ..PLAIN
    },
    Wrapper { names: &["command"], flags: "pvV", ..PLAIN },
    Wrapper { names: &["exec"], short: "a", flags: "cl", ..PLAIN },
    Wrapper {
        names: &["sudo", "sudoedit", "doas", "pkexec"],
        short: "CDghprtTuUR",
        flags: "AbBEeHiKklNnPSsvV",
        long: &[
            "user",
            "group",
            "host",
            "prompt",
            "chdir",
            "chroot",
            "role",
            "type",
            "close-from",
            "other-user",
            "command-timeout",
        ],
        assigns: true,
        is_shell: true,
        ..PLAIN
    },
    Wrapper {
        names: &["env"],
        short: "uCa",
        flags: "i0v",
        command: "S",
        long: &["unset", "chdir", "argv0"],
        commands: &["split-string"],
        assigns: true,
        ..PLAIN
    },
    Wrapper { names: &["nice"], short: "n", long: &["adjustment"], ..PLAIN },
    Wrapper { names: &["ionice"], short: "cnpPu", flags: "t", long: &["class", "classdata"], ..PLAIN },
    Wrapper { names: &["chrt"], short: "TPDp", flags: "abdfimorRv", operands: 1, ..PLAIN },
    Wrapper { names: &["taskset"], flags: "ac", operands: 1, ..PLAIN },
    Wrapper { names: &["numactl"], short: "iNmpCPl", ..PLAIN },
    Wrapper {
        names: &["timeout", "gtimeout"],
        short: "ks",
        flags: "vfp",
        long: &["kill-after", "signal"],
        operands: 1,
        ..PLAIN
    },
    Wrapper { names: &["stdbuf"], short: "ioe", long: &["input", "output", "error"], ..PLAIN },
    Wrapper { names: &["time", "gtime"], short: "fo", flags: "apvlh", long: &["format", "output"], ..PLAIN },
    Wrapper { names: &["chroot"], long: &["userspec", "groups"], operands: 1, is_shell: true, ..PLAIN },
    Wrapper { names: &["unshare"], short: "SGRwlT", flags: "muinpUCTfrc", is_shell: true, ..PLAIN },
    Wrapper { names: &["nsenter"], short: "tSGrwW", flags: "amuinpUCTFZ", long: &["target"], is_shell: true, ..PLAIN },
    Wrapper {
        names: &["flock"],
        short: "wE",
        flags: "sxneouF",
        command: "c",
        long: &["timeout", "wait"],
        commands: &["command"],
        operands: 1,
        joins: true,
        ..PLAIN
    },
    Wrapper {
        names: &["strace", "ltrace"],
        short: "aeEoOpPsSuUXbInA",
        flags: "cCdfhikqrtTvVwxyzZDFL",
        assigns: true,
        ..PLAIN
    },
    Wrapper {
        names: &[
            "valgrind",
            "perf",
            "catchsegv",
            "gdb",
            "proot",
            "firejail",
            "bwrap",
            "xvfb-run",
            "dbus-run-session",
            "dbus-launch",
            "systemd-inhibit",
            "systemd-run",
            "caffeinate",
            "rlwrap",
            "proxychains",
            "proxychains4",
            "prlimit",
            "setpriv",
            "capsh",
            "runcon",
            "cgexec",
            "choom",
            "uclampset",
            "entr",
        ],
        joins: true,
        ..PLAIN
    },
    Wrapper { names: &["watch"], short: "nq", flags: "bcdegrtwxp", long: &["interval"], joins: true, ..PLAIN },
    Wrapper {
        names: &["su", "runuser"],
        short: "gGsuwT",
        flags: "lmpPf-",
        command: "c",
        commands: &["command", "session-command"],
        long: &["group", "shell", "user"],
        operands: 1,
        is_shell: true,
        ..PLAIN
    },
    Wrapper {
        names: &["script"],
        short: "BEIOTmot",
        flags: "aefq",
        command: "c",
        commands: &["command"],
        operands: 1,
        is_shell: true,
        ..PLAIN
    },
    Wrapper { names: &["sg", "newgrp"], operands: 1, command: "c", joins: true, is_shell: true, ..PLAIN },
    // This entry is no program: it has the options of xargs, whose command is parsed elsewhere.
    Wrapper {
        names: &["xargs-options"],
        short: "adEILnPs",
        flags: "0eiloprtx",
        long: &["arg-file", "delimiter", "max-args", "max-procs", "max-chars", "process-slot-var"],
        ..PLAIN
    },
];

pub(super) fn wrapper(name: &str) -> Option<&'static Wrapper> {
    WRAPPERS.iter().find(|wrapper| wrapper.names.contains(&name))
}

/// Shells that read a command line after `-c`.
pub(super) const SHELLS: &[&str] = &[
    "sh", "bash", "dash", "zsh", "ksh", "ksh93", "mksh", "ash", "fish", "csh", "tcsh", "rbash", "yash", "posh", "rc",
    "elvish", "xonsh", "nu", "pwsh",
];

/// Programs that run a part of their arguments: on another machine, in a container, in another environment, or later.
/// The start of the command in their arguments is not determined.
pub(super) const LOOSE: &[&str] = &[
    "ssh",
    "mosh",
    "rsh",
    "autossh",
    "sshpass",
    "pssh",
    "pdsh",
    "clush",
    "ansible",
    "docker",
    "podman",
    "nerdctl",
    "kubectl",
    "oc",
    "lxc",
    "lxc-attach",
    "incus",
    "machinectl",
    "vagrant",
    "wsl",
    "distrobox",
    "toolbox",
    "flatpak",
    "parallel",
    "sem",
    "tmux",
    "screen",
    "zellij",
    "npx",
    "bunx",
    "pnpx",
    "uvx",
    "pipx",
    "poetry",
    "pipenv",
    "uv",
    "rye",
    "pdm",
    "hatch",
    "conda",
    "mamba",
    "micromamba",
    "bundle",
    "mise",
    "asdf",
    "direnv",
    "nix",
    "nix-shell",
    "guix",
    "rustup",
    "pyenv",
    "rbenv",
    "nvm",
    "volta",
    "fnm",
    "concurrently",
    "nodemon",
    "watchexec",
    "at",
    "batch",
    "expect",
    "socat",
    "gnome-terminal",
    "xterm",
    "konsole",
    "foot",
    "alacritty",
    "kitty",
    "wezterm",
    "osascript",
    "vim",
    "vi",
    "nvim",
    "ex",
    "emacs",
    "gvim",
    "srun",
    "sbatch",
    "salloc",
    "qsub",
    "bsub",
    "mpirun",
    "mpiexec",
    "start-stop-daemon",
    "daemonize",
    "wine",
    "cpulimit",
];

/// Interpreters, with the letters of their options that take code.
pub(super) const INTERPRETERS: &[(&str, &str)] = &[
    ("python", "c"),
    ("pypy", "c"),
    ("perl", "eE"),
    ("ruby", "e"),
    ("node", "ep"),
    ("nodejs", "ep"),
    ("bun", "ep"),
    ("php", "rBRE"),
    ("lua", "e"),
    ("luajit", "e"),
    ("tclsh", ""),
    ("Rscript", "e"),
    ("julia", "eE"),
    ("ghc", "e"),
    ("guile", "c"),
    ("ocaml", "e"),
    ("raku", "e"),
    ("groovy", "e"),
    ("elixir", "e"),
    ("erl", "e"),
    ("scala", "e"),
    ("jshell", ""),
];

/// Stream editors, whose programs can run other programs.
pub(super) const STREAM_EDITORS: &[&str] = &["awk", "gawk", "mawk", "nawk", "sed", "gsed"];

/// Patterns of variables that make programs run other programs. Sources: bash(1), ld.so(8), git(1), less(1), and the
/// manual of each interpreter.
pub(super) const RUN_BY_VARIABLE: &[&str] = &[
    "BASH_ENV",
    "ENV",
    "PS4",
    "PROMPT_COMMAND",
    "SHELLOPTS",
    "BASHOPTS",
    "ZDOTDIR",
    "LD_*",
    "DYLD_*",
    "GIT_*",
    "*PAGER",
    "*EDITOR",
    "VISUAL",
    "BROWSER",
    "LESSOPEN",
    "LESSCLOSE",
    "NODE_OPTIONS",
    "PYTHONSTARTUP",
    "PYTHONPATH",
    "PERL5OPT",
    "PERL5LIB",
    "PERL5DB",
    "RUBYOPT",
    "RUBYLIB",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "SSH_ASKPASS",
    "SUDO_ASKPASS",
    "EXINIT",
    "VIMINIT",
];

/// Reports whether this key of git's configuration makes git run a program, or renames a command (git-config(1)).
pub(super) fn is_option_of_git_that_runs(key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or(key);
    key.starts_with("alias.")
        || key.starts_with("include")
        || [
            "command",
            "cmd",
            "pager",
            "editor",
            "helper",
            "fsmonitor",
            "hookspath",
            "program",
            "textconv",
            "driver",
            "askpass",
            "process",
            "clean",
            "smudge",
            "proxycommand",
            "uploadpack",
            "receivepack",
            "vcs",
            "insteadof",
            "pushinsteadof",
            "external",
        ]
        .iter()
        .any(|ending| last.ends_with(ending))
}
