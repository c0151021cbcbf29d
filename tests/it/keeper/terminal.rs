//! `agentd-keeper run` with a terminal: typed commands, their captured result, and disturbances.

use agentd_keeper::protocol::{RunOutcome, RunRequest, RunResult, Terminal, Typed};

use super::run::{request, run};
use super::*;

const DUMP: &str = "{keeper} dump-environment {capture}";

/// Returns a run of bash as login(1) starts it, with this start-up file.
fn bash(home: &std::path::Path, profile: &str) -> RunRequest {
    std::fs::write(home.join(".bash_profile"), format!("{profile}\n")).unwrap();
    let forget = "A__h=$(builtin history 1); case $A__h in (*agentd-keeper*) \
         A__h=${A__h#\"${A__h%%[0-9]*}\"}; builtin history -d \"${A__h%%[!0-9]*}\";; esac; \
         builtin unset -v A__h";
    let line = format!(" {DUMP}; {forget}; builtin unset -v HISTFILE; {DUMP} stay");
    let home = home.to_str().unwrap();
    RunRequest {
        program: "/bin/bash".into(),
        arg0: Some("-bash".into()),
        args: Vec::new(),
        environment: variables(&[("PATH", b"/usr/bin:/bin"), ("HOME", home.as_bytes()), ("TERM", b"xterm")]),
        directory: home.into(),
        max_output: 4 << 20,
        umask: Some(0o22),
        terminal: Some(Terminal {
            rows: 40,
            columns: 120,
            typed: vec![
                Typed { programs: vec!["bash".into()], lines: vec![line] },
                Typed { programs: Vec::new(), lines: vec![format!(" {DUMP} stay")] },
            ],
            private: Vec::new(),
        }),
        ..request("")
    }
}

fn value(result: &RunResult, name: &str) -> Option<Vec<u8>> {
    let prefix = format!("{name}=").into_bytes();
    result
        .captured
        .as_bytes()
        .split(|byte| *byte == 0)
        .find_map(|entry| Some(entry.strip_prefix(&prefix[..])?.to_vec()))
}

fn login(profile: &str) -> RunResult {
    let home = tempfile::tempdir().unwrap();
    run(&bash(home.path(), profile))
}

#[test]
fn what_is_typed_gives_back_every_byte() {
    let result = login("export A=$'one\\ntwo\\n\\xff ' B=; export C=\"$(printf 'x=%s' y)\"");
    assert_eq!(result.outcome, RunOutcome::Captured, "{:?}", result.stderr.display());
    for (name, expected) in [("A", &b"one\ntwo\n\xff "[..]), ("B", b""), ("C", b"x=y")] {
        assert_eq!(value(&result, name).as_deref(), Some(expected), "{name}");
    }
    assert_eq!(result.killed, 0);
}

#[test]
fn the_attributes_that_a_login_leaves_come_back() {
    let attributes = login("umask 027; ulimit -S -n 200; ulimit -S -s 4096").attributes.unwrap();
    assert_eq!(attributes.umask, 0o27);
    let of = |name: &str| attributes.limits.iter().find(|limit| limit.name == name).and_then(|limit| limit.soft);
    assert_eq!((of("nofile"), of("stack"), attributes.limits.len()), (Some(200), Some(4096 << 10), 2));
    let attributes = login("export A=1").attributes.unwrap();
    assert_eq!((attributes.umask, attributes.nice, attributes.limits.len()), (0o22, None, 0));
}

#[test]
fn neither_the_echo_nor_megabytes_nor_a_forged_end_are_taken_for_the_capture() {
    let text = "head -c 3000000 /dev/zero | tr '\\0' 'x'; \
                printf 'agentd-environment 1 stay\\numask 0\\n\\0A=forged\\0\\0'; \
                printf '\\033[c\\033[6n\\033]11;?\\007'; export A=real";
    let result = login(text);
    assert_eq!(result.outcome, RunOutcome::Captured);
    assert_eq!(value(&result, "A").as_deref(), Some(&b"real"[..]));
}

#[test]
fn questions_of_start_up_files_are_not_answered_with_the_command() {
    let result = login("read -p 'Name? ' A; read -n1 -p 'Sure? [y/N] ' B; C=$(cat); stty -echo; export A B C");
    assert_eq!(result.outcome, RunOutcome::Captured);
    for name in ["A", "B", "C"] {
        assert_eq!(value(&result, name).as_deref(), Some(&b""[..]), "{name}");
    }
}

#[test]
fn an_answer_of_the_terminal_that_no_program_reads_does_not_keep_the_command_from_its_prompt() {
    let modes = [
        "",
        "set -o vi;",
        "set -o vi; bind 'set keyseq-timeout 100';",
        "set -o vi; bind 'set show-mode-in-prompt on';",
    ];
    for (mode, question) in
        modes.iter().flat_map(|mode| ["[6n", "[c", "]11;?\\007", "[6n\\033[c"].map(|one| (mode, one)))
    {
        let result = login(&format!("{mode} printf '\\033{question}'; export A=1"));
        assert_eq!(result.outcome, RunOutcome::Captured, "{mode} {question}: {:?}", result.stderr.display());
        assert_eq!(value(&result, "A").as_deref(), Some(&b"1"[..]));
        eprintln!("{mode} {question}: {} ms", result.duration_ms);
    }
}

#[test]
fn who_holds_the_terminal_and_hears_no_signal_does_not_delay_the_end() {
    let result = login("(trap '' HUP TERM; exec sleep 8641) & setsid sleep 8641 & export A=1");
    assert_eq!((result.outcome.clone(), value(&result, "A")), (RunOutcome::Captured, Some(b"1".to_vec())));
    assert_eq!(result.killed, 2);
}

#[test]
fn hooks_of_the_prompt_run_once_and_the_history_is_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let history = home.path().join(".bash_history");
    std::fs::write(&history, "one\ntwo\n").unwrap();
    let profile = "shopt -s histappend; export HISTFILE; readonly HISTFILE; \
                   PROMPT_COMMAND='export N=x$N PATH=/first:$PATH; history -a'; \
                   trap 'echo bye; exit 7' EXIT; trap : DEBUG";
    let result = run(&bash(home.path(), profile));
    assert_eq!(result.outcome, RunOutcome::Captured);
    assert_eq!(value(&result, "N").as_deref(), Some(&b"x"[..]));
    let path = value(&result, "PATH").unwrap();
    assert!(path.starts_with(b"/first:/") && !path.starts_with(b"/first:/first"), "{}", String::from_utf8_lossy(&path));
    assert_eq!(value(&result, "HISTFILE"), Some(history.to_str().unwrap().as_bytes().to_vec()));
    assert_eq!(std::fs::read_to_string(&history).unwrap(), "one\ntwo\n");
}

#[test]
fn a_shell_that_ends_or_hangs_says_so_and_its_last_words_have_no_control_sequences() {
    let result = login("printf '\\033[31mno luck\\033[0m\\n'; exit 3");
    assert_eq!(result.outcome, RunOutcome::Exited(3));
    assert_eq!(result.stderr.as_str(), Some("no luck\n"));
    let home = tempfile::tempdir().unwrap();
    let late = RunRequest { deadline_ms: 1000, ..bash(home.path(), "sleep 8641") };
    assert_eq!(run(&late).outcome, RunOutcome::TimedOut);
}
