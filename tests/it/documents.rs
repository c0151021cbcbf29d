//! Completion scripts and man pages, in the shells and the man(1) of this machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use agentd_api::session::SessionSpec;

use crate::harness::quote::quoted;
use crate::harness::terminal::Terminal;
use crate::harness::{Daemon, paths, require};

/// Runs a program in an environment that has only `PATH` and a home.
fn run(program: impl AsRef<Path>, arguments: &[&str], home: &Path) -> Output {
    Command::new(program.as_ref())
        .args(arguments)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("TERM", "dumb"), ("LC_ALL", "C.UTF-8"), ("MANWIDTH", "100")])
        .env("HOME", home)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.as_ref().display()))
}

fn printed(output: &Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("the output is UTF-8")
}

fn agentctl(arguments: &[&str], home: &Path) -> String {
    printed(&run(paths::agentctl(), arguments, home))
}

/// Writes the completion script of `shell` into a home, and runs `line` in `program` after it has loaded the script.
///
/// `SCRIPT` in `line` is replaced by the quoted path of the script. All tested shells read quotes in this form.
fn completes(shell: &str, program: &Path, arguments: &[&str], line: &str) -> String {
    let home = tempfile::tempdir().expect("a temporary directory");
    let script = home.path().join("script");
    fs::write(&script, agentctl(&["completions", shell], home.path())).expect("the home is writable");
    let line = line.replace("SCRIPT", &quoted(&script));
    printed(&run(program, &[arguments, &[line.as_str()]].concat(), home.path()))
}

#[test]
fn bash_loads_its_completion_script_and_completes_commands_and_options() {
    let Some(bash) = require::shell("bash", &["/bin/bash", "/usr/local/bin/bash"]) else { return };
    let said = completes(
        "bash",
        &bash,
        &["--norc", "--noprofile", "-c"],
        ". SCRIPT; complete -p agentctl; COMP_WORDS=(agentctl atta) COMP_CWORD=1; _agentctl agentctl atta agentctl; \
         echo \"${COMPREPLY[@]}\"; COMP_WORDS=(agentctl service install --dr) COMP_CWORD=3; \
         _agentctl agentctl --dr install; echo \"${COMPREPLY[@]}\"",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("-F _agentctl") && lines[0].ends_with(" agentctl"), "{said}");
    assert_eq!(lines[1..], ["attach", "--dry-run"], "{said}");
}

#[test]
fn zsh_loads_its_completion_script_and_defines_the_completion_of_agentctl() {
    let Some(zsh) = require::shell("zsh", &["/usr/bin/zsh", "/bin/zsh"]) else { return };
    let line = "autoload -Uz compinit; compinit -D -u; . SCRIPT; print -- $_comps[agentctl]; whence -w _agentctl";
    assert_eq!(completes("zsh", &zsh, &["-f", "-c"], line), "_agentctl\n_agentctl: function\n");
}

#[test]
fn zsh_finds_the_completion_script_in_a_directory_of_fpath() {
    let Some(zsh) = require::shell("zsh", &["/usr/bin/zsh", "/bin/zsh"]) else { return };
    let line = "mkdir ~/f; cp SCRIPT ~/f/_agentctl; fpath=(~/f $fpath); autoload -Uz compinit; compinit -D -u; \
                print -- $_comps[agentctl]";
    assert_eq!(completes("zsh", &zsh, &["-f", "-c"], line), "_agentctl\n");
}

#[test]
fn fish_loads_its_completion_script_and_completes_commands_and_options() {
    let Some(fish) = require::shell("fish", &["/usr/bin/fish", "/usr/local/bin/fish"]) else { return };
    let line = "source SCRIPT; complete -C 'agentctl atta'; complete -C 'agentctl service install --dr'";
    let said = completes("fish", &fish, &["--no-config", "-c"], line);
    let words: Vec<&str> = said.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(words, ["attach", "--dry-run"], "{said}");
}

/// A daemon with two places and a session, and a home whose `hosts.toml` names a machine.
async fn with_places() -> Daemon {
    let mut daemon = Daemon::prepare();
    let places = ["farm", "lab"].map(|name| format!("[places.{name}]\nkind = \"ssh\"\nhost = \"far.test\"\n"));
    daemon.configure(|config| format!("{config}\n{}", places.concat()));
    daemon.run().await;
    daemon.session(&SessionSpec { name: Some("docs".parse().unwrap()), ..daemon.scripted(&[]) }).await;
    let names = daemon.root().join("c/agentd");
    fs::create_dir_all(&names).unwrap();
    fs::write(names.join("hosts.toml"), "[hosts.far]\naddress = \"kim@far.test\"\n").unwrap();
    daemon
}

/// Prepares a shell that has the completion script in `SCRIPT`, finds `agentctl`, and reaches the daemon.
fn shell_of(daemon: &Daemon, shell: &str, program: &Path, arguments: &[&str]) -> Command {
    let script = daemon.root().join("script");
    fs::write(&script, agentctl(&["completions", shell], daemon.root())).expect("the directory is writable");
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir(daemon.root());
    let path = format!("{}:/usr/bin:/bin", Path::new(paths::agentctl()).parent().unwrap().display());
    command.envs([("PATH", path.as_str()), ("TERM", "dumb"), ("LC_ALL", "C.UTF-8")]);
    command.env("HOME", daemon.root()).env("XDG_CONFIG_HOME", daemon.root().join("c"));
    command.env("SCRIPT", &script).env("AGENTD_SOCKET", daemon.client.socket());
    command
}

/// Command lines, and the names that complete each.
const COMPLETED: [(&str, &str); 9] = [
    ("agentctl run --place ", "farm here lab"),
    ("agentctl new --place f", "farm"),
    ("agentctl schedule add --place l", "lab"),
    ("agentctl place check ", "farm here lab"),
    ("agentctl attach d", "docs"),
    ("agentctl prompt d", "docs"),
    ("agentctl stop other d", "docs"),
    ("agentctl ls --host f", "far"),
    // The line names another daemon, which does not answer.
    ("agentctl --socket /nowhere run --place f", ""),
];

fn sorted(words: &str) -> String {
    let mut words: Vec<&str> = words.split_whitespace().collect();
    words.sort_unstable();
    words.join(" ")
}

#[tokio::test]
async fn bash_completes_names_of_the_daemon() {
    let Some(bash) = require::shell("bash", &["/bin/bash", "/usr/local/bin/bash"]) else { return };
    let daemon = with_places().await;
    let complete = ". \"$SCRIPT\"; COMP_LINE=$1 COMP_POINT=${#1}; read -a COMP_WORDS <<< \"$1\"; \
        [[ $1 == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
        _agentctl agentctl \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; echo \"${COMPREPLY[@]}\"";
    for (line, names) in COMPLETED {
        let said = shell_of(&daemon, "bash", &bash, &["--norc", "--noprofile", "-c", complete, "bash", line]).output();
        assert_eq!(sorted(&printed(&said.unwrap())), names, "{line}");
    }
}

#[tokio::test]
async fn fish_completes_names_of_the_daemon() {
    let Some(fish) = require::shell("fish", &["/usr/bin/fish", "/usr/local/bin/fish"]) else { return };
    let daemon = with_places().await;
    let complete = "source $SCRIPT; complete -C $argv[1]";
    for (line, names) in COMPLETED {
        let said = shell_of(&daemon, "fish", &fish, &["--no-config", "-c", complete, line]).output();
        let said = printed(&said.unwrap());
        // Without names, fish offers files.
        let words: Vec<&str> = said.lines().filter_map(|line| line.split('\t').next()).collect();
        let words: Vec<&str> = words.into_iter().filter(|word| !daemon.root().join(word).exists()).collect();
        assert_eq!(sorted(&words.join(" ")), names, "{line}");
    }
}

#[tokio::test]
async fn zsh_completes_names_of_the_daemon() {
    let Some(zsh) = require::shell("zsh", &["/usr/bin/zsh", "/bin/zsh"]) else { return };
    let daemon = with_places().await;
    // Completion in zsh needs its line editor. The keys Ctrl-X and `=` print the completed line.
    let setup = "PS1='rea''dy> '; unsetopt beep; zstyle ':completion:*' list-max 0; \
        autoload -Uz compinit; compinit -D -u; . \"$SCRIPT\"; \
        shown() { print -r -- \"<$BUFFER>\"; BUFFER=; zle send-break }; zle -N shown; bindkey '^X=' shown\n";
    let mut terminal = Terminal::run(&shell_of(&daemon, "zsh", &zsh, &["-f", "-i"]), 200);
    terminal.types(setup);
    terminal.shows("ready> ").await;
    for (line, names) in COMPLETED {
        // Of several names, the menu is shown, and the line has the part that all have.
        if names.contains(' ') {
            continue;
        }
        terminal.types(&format!("{line}\t\u{18}="));
        let begin = line.rsplit_once(' ').unwrap().0;
        let completed = if names.is_empty() { format!("<{line}>") } else { format!("<{begin} {names} >") };
        terminal.shows(&completed).await;
    }
    terminal.types("agentctl run --place \t");
    terminal.shows("farm").await;
    terminal.types("\u{15}exit\n");
}

#[tokio::test]
async fn names_are_silent_and_in_time_without_a_daemon() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let mute = std::os::unix::net::UnixListener::bind(home.path().join("mute")).unwrap();
    for socket in ["nowhere", "mute"] {
        let (begun, socket) = (std::time::Instant::now(), home.path().join(socket));
        for kind in ["places", "agents", "sessions"] {
            let line = ["names", kind, "--", "agentctl", "--socket", socket.to_str().unwrap(), "run"];
            assert_eq!(agentctl(&line, home.path()), "", "{kind}");
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    drop(mute);
    assert_eq!(agentctl(&["names", "hosts"], home.path()), "this\n");
    assert!(!home.path().join(".local").exists(), "no daemon was started");
}

#[test]
fn nushell_loads_its_completion_script_and_knows_the_commands() {
    let Some(nu) = require::shell("nu", &["/usr/bin/nu", "/usr/local/bin/nu"]) else { return };
    let line = "source SCRIPT; scope externs | where name =~ '^agentctl (attach|service install)$' | get name | sort | \
                str join ' '";
    assert_eq!(
        completes("nushell", &nu, &["--no-config-file", "-c"], line).trim(),
        "agentctl attach agentctl service install"
    );
}

#[test]
fn elvish_loads_its_completion_script_and_defines_the_completion_of_agentctl() {
    let Some(elvish) = require::shell("elvish", &["/usr/bin/elvish", "/usr/local/bin/elvish"]) else { return };
    // Only an interactive elvish has the namespace `edit:`; this one has the two members that the script uses.
    let line = "var candidate~ = {|text &display=''| put $text }; \
                var edit: = (ns [&completion:=(ns [&arg-completer=[&]]) &complex-candidate~=$candidate~]); \
                eval (slurp < SCRIPT) &ns=(ns [&edit:=$edit:]); \
                $edit:completion:arg-completer[agentctl] agentctl atta | \
                each {|word| if (eq $word attach) { echo $word } }";
    assert_eq!(completes("elvish", &elvish, &["-norc", "-c"], line), "attach\n");
}

#[test]
fn every_command_has_a_man_page_that_renders_without_a_warning() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let pages = home.path().join("man/man1");
    assert_eq!(agentctl(&["man", "--directory", pages.to_str().expect("the path is UTF-8")], home.path()), "");
    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(page("agentctl.1"), agentctl(&["man"], home.path()));
    let help = agentctl(&["--help"], home.path());
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() > 20, "{help}");
    for command in commands {
        assert!(page(&format!("agentctl-{command}.1")).contains("\n.SH SYNOPSIS\n"), "{command}");
    }
    assert!(!pages.join("agentctl-demo-agent.1").exists(), "the help does not show this command");
    let daemon = printed(&run(paths::agentd(), &["man"], home.path()));
    assert!(daemon.starts_with(".ie") && daemon.contains(".TH agentd 8"), "{daemon}");
    assert!(daemon.contains("\\-\\-runtime\\-dir"), "the options of serve: {daemon}");
    assert!(daemon.contains("\\-\\-prompt\\-file"), "the options of run-spec: {daemon}");
    fs::write(pages.join("agentd.8"), daemon).expect("the home is writable");

    let groff = Path::new("/usr/bin/groff");
    if !groff.exists() {
        return; // the text was checked above
    }
    for file in fs::read_dir(&pages).expect("the directory exists") {
        let file = file.expect("the directory can be listed").path();
        let arguments = ["-man", "-Tutf8", "-ww", "-z", file.to_str().expect("the path is UTF-8")];
        let said = run(groff, &arguments, home.path());
        assert!(said.status.success() && said.stderr.is_empty(), "{}: {said:?}", file.display());
    }
}
