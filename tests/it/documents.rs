//! Completion scripts and man pages, in the shells and the man(1) of this machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::quote::quoted;
use crate::harness::{paths, require};

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
