//! Finds messages about failed commands in a script's stderr, without I/O.
//!
//! A script continues after a missing command, so it may end with status 0 and have done nothing. Shells and tools
//! report that on stderr, each in its own words. A line with such words is a warning. Other lines are only
//! recorded, because many tools print progress there.

use std::path::Path;

use agentd_api::environment::ScriptRun;
use agentd_api::reason;
use agentd_api::validation::Warning;

use crate::login::printed::{lines, without_value};
use crate::login::shell::Shell;

/// Number of recorded lines, and the maximum number of characters of each.
const LINES: usize = 12;
const LONGEST: usize = 400;
/// Number of complaints that a warning names.
const MOST_WARNINGS: usize = 4;

/// Position of the words in a line.
#[derive(Debug, Clone, Copy)]
enum Position {
    /// Anywhere.
    Line,
    End,
    Begin,
}

/// Words of failure messages, with the programs that print them. Case is ignored.
const WORDS: &[(Position, &str)] = &[
    // bash, mksh: `x: command not found`; zsh: `command not found: x`; tcsh: `x: Command not found.`
    (Position::End, ": command not found"),
    (Position::End, ": command not found."),
    (Position::Line, "command not found: "),
    // dash, ksh93, busybox: `x: not found`; bash for a path: `x: No such file or directory`;
    // zsh: `no such file or directory: x`
    (Position::End, ": not found"),
    (Position::Line, "no such file or directory"),
    (Position::End, ": inaccessible or not found"), // mksh
    (Position::End, "` not found"),                 // nushell: Command `x` not found
    (Position::Line, "permission denied"),
    (Position::End, ": is a directory"),
    // fish: `fish: Unknown command: x`, `source: Error encountered while sourcing file`
    (Position::Line, "unknown command"),
    (Position::Line, "error encountered while sourcing"),
    // ksh93 and dash for `. x`: `x: cannot open`, `.: can't open x`
    (Position::Line, ": cannot open"),
    (Position::Line, "can't open "),
    // Messages of `eval` about the output of a failed command.
    (Position::Line, "syntax error"),
    (Position::Line, "parse error"),
    (Position::Line, "unexpected end of file"),
    (Position::Line, "bad substitution"),
    (Position::Line, "unbound variable"),
    (Position::Line, "parameter not set"),
    (Position::Line, "undefined variable."), // tcsh
    // Lmod, and Environment Modules 3, 4 and 5
    (Position::Line, "lmod has detected the following error"),
    (Position::Line, "unable to locate a modulefile"),
    (Position::Line, "the following module(s) are unknown"),
    (Position::Line, "error: unable to"),
    (Position::Line, ":error:"),
    // nvm: `N/A: version "v20" is not yet installed.`
    (Position::Line, "is not yet installed"),
    (Position::Line, "no .nvmrc file found"),
    // conda: `EnvironmentNameNotFound: ..`, `CondaError: Run 'conda init' before 'conda activate'`;
    // micromamba: `critical libmamba ..`
    (Position::Begin, "environmentnamenotfound"),
    (Position::Begin, "environmentlocationnotfound"),
    (Position::Begin, "commandnotfounderror"),
    (Position::Begin, "condaerror"),
    (Position::Begin, "critical libmamba"),
    (Position::Begin, "error libmamba"),
    (Position::Begin, "error    libmamba"),
    (Position::Line, "is running as a subprocess and can't modify the parent shell"),
    // pyenv, asdf: `pyenv: version `3.9' is not installed`; mise: `mise ERROR ..`;
    // direnv: `direnv: error ..`; spack: `==> Error: ..`
    (Position::Line, "' is not installed"),
    (Position::Begin, "mise error"),
    (Position::Begin, "direnv: error"),
    (Position::Begin, "==> error:"),
    // pyenv and rbenv that are programs alone: `pyenv: shell integration not enabled. ..`; fnm likewise
    (Position::Line, ": shell integration not enabled"),
    (Position::Line, "we can't find the necessary environment variables"),
    // Perl, Python, and tools of the kind of git
    (Position::Begin, "traceback (most recent call last)"),
    (Position::Begin, "fatal: "),
];

/// Setup that a script needs before a tool's command.
#[derive(Debug, Clone, Copy)]
enum Needs {
    /// A line that defines the function.
    Line(&'static str),
    /// Directories to put first in `PATH`. A relative path is below the home directory.
    Path(&'static str),
}

/// Tools whose command is a shell function or a program in the user's home.
const TOOLS: &[(&str, Needs)] = &[
    ("module", Needs::Line("source /usr/share/lmod/lmod/init/bash (the file of your site, for the script's shell)")),
    ("ml", Needs::Line("source /usr/share/lmod/lmod/init/bash (the file of your site, for the script's shell)")),
    ("nvm", Needs::Line(". \"$HOME/.nvm/nvm.sh\"")),
    ("conda", Needs::Line(". \"$HOME/miniconda3/etc/profile.d/conda.sh\"")),
    ("mamba", Needs::Line("eval \"$(/path/to/mamba shell hook --shell bash)\"")),
    ("micromamba", Needs::Line("eval \"$(/path/to/micromamba shell hook --shell bash)\"")),
    ("sdk", Needs::Line(". \"$HOME/.sdkman/bin/sdkman-init.sh\"")),
    ("rvm", Needs::Line(". \"$HOME/.rvm/scripts/rvm\"")),
    ("spack", Needs::Line(". /path/to/spack/share/spack/setup-env.sh")),
    ("workon", Needs::Line(". /usr/share/virtualenvwrapper/virtualenvwrapper.sh")),
    ("mkvirtualenv", Needs::Line(". /usr/share/virtualenvwrapper/virtualenvwrapper.sh")),
    ("asdf", Needs::Path(".asdf/shims")),
    ("pyenv", Needs::Path(".pyenv/shims .pyenv/bin")),
    ("rbenv", Needs::Path(".rbenv/shims .rbenv/bin")),
    ("fnm", Needs::Path(".local/share/fnm")),
    ("volta", Needs::Path(".volta/bin")),
    ("mise", Needs::Path(".local/bin")),
    ("direnv", Needs::Path("/the/directory/of/direnv")),
];

/// Messages of tools that are installed but not set up, and the line that sets them up.
const NOT_SET_UP: &[(&str, &str)] = &[
    ("pyenv: shell integration not enabled", "eval \"$(pyenv init - bash)\""),
    ("rbenv: shell integration not enabled", "eval \"$(rbenv init - bash)\""),
    ("We can't find the necessary environment variables", "eval \"$(fnm env --shell bash)\""),
    ("mise is not activated", "eval \"$(mise env -s bash)\""),
    ("Run 'conda init' before", ". \"$HOME/miniconda3/etc/profile.d/conda.sh\""),
    ("is running as a subprocess and can't modify", "eval \"$(/path/to/micromamba shell hook --shell bash)\""),
];

fn is_complaint(line: &str) -> bool {
    let line = line.trim().to_lowercase();
    WORDS.iter().any(|(place, words)| match place {
        Position::Line => line.contains(words),
        Position::End => line.ends_with(words),
        Position::Begin => line.starts_with(words),
    })
}

/// Returns the command that the line reports as missing.
fn missing_command(line: &str) -> Option<&str> {
    let line = line.trim();
    let before = [": command not found", ": Command not found", ": inaccessible or not found", ": not found"]
        .iter()
        .find_map(|words| line[..line.find(words)?].rsplit([' ', ':']).next());
    let after =
        ["command not found: ", "Unknown command: ", "Unknown command '", "Command `"].iter().find_map(|words| {
            let rest = &line[line.find(words)? + words.len()..];
            rest.split([' ', '\'', '`']).next()
        });
    // zsh prints both forms, with the line number first.
    after.or(before).filter(|name| !name.is_empty())
}

/// Returns the warnings about a script that ran to its end.
pub(crate) fn warnings(status: i32, stderr: &str, shell: Shell) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in lines(stderr).filter(|line| is_complaint(line)) {
        let told = shortened(without_value(line).trim());
        let hint = missing_command(line).and_then(|name| hint(name, shell)).or_else(|| set_up(line, shell));
        let hint = hint.unwrap_or_default();
        let told = format!("it printed {told:?}{hint}");
        if found.len() < MOST_WARNINGS && !found.contains(&told) {
            found.push(told);
        }
    }
    if status != 0 {
        found.push(format!("its last command ended with status {status}"));
    }
    found
}

/// Returns how to make a missing tool available.
fn hint(name: &str, shell: Shell) -> Option<String> {
    let (_, needs) = TOOLS.iter().find(|(tool, _)| *tool == name)?;
    Some(match needs {
        Needs::Line(line) => add(line, name, shell),
        Needs::Path(directories) => format!("; add a line like `{}` before it", path_line(directories, shell)),
    })
}

/// Returns how to set up a tool that is installed but not set up in this shell.
fn set_up(line: &str, shell: Shell) -> Option<String> {
    let (_, needed) = NOT_SET_UP.iter().find(|(words, _)| line.contains(words))?;
    Some(add(needed, "it", shell))
}

/// Returns the advice to add a line of a POSIX shell, or to use bash if the script's shell cannot run that line.
fn add(line: &str, name: &str, shell: Shell) -> String {
    match shell {
        Shell::Bash | Shell::Zsh | Shell::Ksh | Shell::Posix => format!("; add a line like `{line}` before it"),
        Shell::Fish | Shell::Csh | Shell::Nu => format!(
            "; if {name} has no setup for this shell, let the script begin with #!/bin/bash and have a line \
             like `{line}`"
        ),
    }
}

/// Returns the line that puts directories first in `PATH`.
fn path_line(directories: &str, shell: Shell) -> String {
    let home = if shell == Shell::Nu { "$env.HOME" } else { "$HOME" };
    let place = |directory: &str| match (directory.starts_with('/'), shell) {
        (true, _) => directory.to_owned(),
        (false, Shell::Nu) => format!("({home})/{directory}"),
        (false, _) => format!("{home}/{directory}"),
    };
    let all: Vec<String> = directories.split(' ').map(place).collect();
    match shell {
        Shell::Bash | Shell::Zsh | Shell::Ksh | Shell::Posix => format!("export PATH=\"{}:$PATH\"", all.join(":")),
        Shell::Fish => format!("set -gx PATH {} $PATH", all.join(" ")),
        Shell::Csh => format!("setenv PATH \"{}:$PATH\"", all.join(":")),
        Shell::Nu => {
            let quoted: Vec<String> = all.iter().map(|place| format!("$\"{place}\"")).collect();
            format!("$env.PATH = ($env.PATH | prepend [{}])", quoted.join(" "))
        }
    }
}

/// Returns the last lines of stderr for the record.
pub(crate) fn record(stderr: &str) -> Vec<String> {
    let lines: Vec<&str> = lines(stderr).collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|line| shortened(&without_value(line))).collect()
}

/// Hides secrets in the record of a script.
pub(crate) fn mask(run: &mut ScriptRun, hide: impl Fn(&str) -> String) {
    let mut lines: Vec<&mut String> = run.stderr.iter_mut().chain(&mut run.warnings).collect();
    if lines.is_empty() {
        return;
    }
    // Searching for secrets is slow, so all lines are searched at once. If a secret spans several lines, each line
    // is searched.
    let all = lines.iter().map(|line| line.as_str()).collect::<Vec<_>>().join("\n");
    let hidden = hide(&all);
    let masked: Vec<&str> = hidden.split('\n').collect();
    if masked.len() == lines.len() {
        for (line, masked) in lines.iter_mut().zip(masked) {
            masked.clone_into(line);
        }
    } else {
        for line in lines {
            *line = hide(line);
        }
    }
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// Returns the warnings about the scripts of a launch.
pub fn of_runs(runs: &[ScriptRun]) -> Vec<Warning> {
    let warning = |run: &ScriptRun| {
        let message = format!("the script {}: {}", run.path.display(), run.warnings.join("; "));
        Warning { reason: reason::SCRIPT_ERRORS.to_owned(), path: Path::to_owned(&run.path), message }
    };
    runs.iter().filter(|run| !run.warnings.is_empty()).map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages in the form that the shell or the tool prints.
    const COMPLAINTS: &[&str] = &[
        "/w/.agentd-env.sh: line 1: nvm: command not found",
        "/w/.agentd-env.sh:1: command not found: nvm",
        "/w/.agentd-env.sh: 1: nvm: not found",
        "ksh[1]: .[1]: nvm: not found [No such file or directory]",
        "fish: Unknown command: nvm",
        "nvm: Command not found.",
        "/w/.agentd-env.sh: line 2: /opt/tools/settings64.sh: No such file or directory",
        "/w/.agentd-env.sh:.:2: no such file or directory: /opt/tools/settings64.sh",
        "sh: 2: .: cannot open /opt/x: No such file",
        "bash: eval: line 3: syntax error near unexpected token `('",
        "Lmod has detected the following error: The following module(s) are unknown: \"gcc/99\"",
        "ERROR: Unable to locate a modulefile for 'gcc/99'",
        "ModuleCmd_Load.c(208):ERROR:105: Unable to locate a modulefile for 'gcc/99'",
        "N/A: version \"v99\" is not yet installed.",
        "EnvironmentNameNotFound: Could not find conda environment: nope",
        "CondaError: Run 'conda init' before 'conda activate'",
        "critical libmamba Cannot activate, prefix does not exist at: '/x'",
        "pyenv: version `3.99' is not installed (set by /w/.python-version)",
        "mise ERROR no such tool",
        "direnv: error /w/.envrc is blocked. Run `direnv allow` to approve its content",
        "==> Error: Spec 'gcc@99' matches no installed packages.",
    ];

    const CHATTER: &[&str] = &[
        "Now using node v20.1.0 (npm v9.6.4)",
        "direnv: loading ~/w/.envrc",
        "direnv: export +FOO ~PATH",
        "Loading gcc/12",
        "  Loading requirement: binutils/2.40",
        "WARNING: the cache is older than a day",
        "mise ~/w/mise.toml tools: node@20.1.0",
        "found 3 licences",
    ];

    #[test]
    fn failure_messages_are_warnings_and_progress_messages_are_not() {
        for line in COMPLAINTS {
            assert_eq!(warnings(0, line, Shell::Bash).len(), 1, "{line}");
        }
        for line in CHATTER {
            assert_eq!(warnings(0, line, Shell::Bash), [""; 0], "{line}");
            assert_eq!(record(line), [*line]);
        }
    }

    #[test]
    fn a_status_is_a_separate_warning_and_a_repeated_line_is_reported_once() {
        assert_eq!(warnings(3, "", Shell::Bash), ["its last command ended with status 3"]);
        let text = "x: line 1: nope: command not found\nx: line 1: nope: command not found\nchatter\n";
        let told = warnings(127, text, Shell::Bash);
        assert_eq!(
            told,
            ["it printed \"x: line 1: nope: command not found\"", "its last command ended with status 127"]
        );
    }

    #[test]
    fn a_missing_function_is_reported_with_the_line_that_defines_it() {
        for line in &COMPLAINTS[..6] {
            assert_eq!(missing_command(line), Some("nvm"), "{line}");
            let told = warnings(0, line, Shell::Bash).remove(0);
            assert!(told.contains("add a line like `. \"$HOME/.nvm/nvm.sh\"`"), "{told}");
            let told = warnings(0, line, Shell::Fish).remove(0);
            assert!(told.contains("let the script begin with #!/bin/bash"), "{told}");
        }
        for line in [COMPLAINTS[6], "a: not found elsewhere"] {
            assert!(!warnings(1, line, Shell::Bash).join("").contains("add a line"), "{line}");
        }
    }

    #[test]
    fn each_missing_tool_is_reported_with_a_line_for_every_shell() {
        const NAMES: [&str; 15] = [
            "module",
            "ml",
            "nvm",
            "conda",
            "micromamba",
            "mamba",
            "pyenv",
            "rbenv",
            "sdk",
            "asdf",
            "mise",
            "direnv",
            "workon",
            "fnm",
            "volta",
        ];
        // Messages in the form of each shell. The last message of ksh is from mksh.
        let said = [
            (Shell::Bash, "/w/x: line 1: NAME: command not found"),
            (Shell::Zsh, "/w/x:1: command not found: NAME"),
            (Shell::Posix, "/w/x: 1: NAME: not found"),
            (Shell::Ksh, "/w/x: line 1: NAME: not found"),
            (Shell::Ksh, "/w/x[1]: NAME: inaccessible or not found"),
            (Shell::Fish, "fish: Unknown command: NAME"),
            (Shell::Csh, "NAME: Command not found."),
            (Shell::Nu, "   :  `-- Command `NAME` not found"),
        ];
        for name in NAMES {
            for (shell, line) in &said {
                let told = warnings(0, &line.replace("NAME", name), *shell);
                assert!(told.len() == 1 && told[0].contains(" a line like `"), "{name} {shell:?}: {told:?}");
            }
        }
        assert_eq!(
            path_line(".pyenv/shims .pyenv/bin", Shell::Fish),
            "set -gx PATH $HOME/.pyenv/shims $HOME/.pyenv/bin $PATH"
        );
        assert_eq!(path_line(".volta/bin", Shell::Csh), "setenv PATH \"$HOME/.volta/bin:$PATH\"");
        assert_eq!(
            path_line(".volta/bin", Shell::Nu),
            "$env.PATH = ($env.PATH | prepend [$\"($env.HOME)/.volta/bin\"])"
        );
    }

    #[test]
    fn a_tool_that_is_not_set_up_is_reported_with_the_line_that_sets_it_up() {
        for (line, needed) in [
            ("pyenv: shell integration not enabled. Run `pyenv init' for instructions.", "pyenv init - bash"),
            ("rbenv: shell integration not enabled. Run `rbenv init' for instructions.", "rbenv init - bash"),
            ("error: We can't find the necessary environment variables to replace the Node version.", "fnm env"),
            ("mise ERROR mise is not activated in this shell session.", "mise env -s bash"),
            ("CondaError: Run 'conda init' before 'conda activate'", "conda.sh"),
        ] {
            let told = warnings(1, line, Shell::Bash).remove(0);
            assert!(told.contains("; add a line like `") && told.contains(needed), "{told}");
        }
    }

    #[test]
    fn secrets_are_hidden_line_by_line() {
        let mut run = ScriptRun {
            path: "/s".into(),
            directory: "/".into(),
            provider: "p".to_owned(),
            status: Some(0),
            stderr: vec!["a key b".to_owned(), "c".to_owned()],
            warnings: vec!["it printed key".to_owned()],
        };
        mask(&mut run, |text| text.replace("key", "***"));
        assert_eq!(
            (&run.stderr[..], &run.warnings[..]),
            (&["a *** b".into(), "c".into()][..], &["it printed ***".into()][..])
        );
        mask(&mut run, |text| text.replace("c\nit", "***").replace('a', "A"));
        assert_eq!(run.stderr[0], "A *** b");
    }

    #[test]
    fn the_recorded_stderr_is_bounded_and_has_no_trace() {
        let text: String = (0..40)
            .map(|n| ["+ export K=sekrit\nline ", &n.to_string(), " ", &"x".repeat(1000), "\n"].concat())
            .collect();
        let lines = record(&text);
        assert_eq!((lines.len(), lines[11].chars().count()), (LINES, LONGEST + 1));
        assert!(lines[0].starts_with("line 28 ") && !lines.concat().contains("sekrit"));
        let many: String = (0..40).map(|n| ["c", &n.to_string(), ": command not found\n"].concat()).collect();
        assert_eq!(warnings(0, &many, Shell::Zsh).len(), MOST_WARNINGS);
        assert_eq!(record("bash: no job control in this shell\n\n"), [""; 0]);
    }
}
