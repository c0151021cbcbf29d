use agentd_api::permission::ToolDetails;
use agentd_api::session::PermissionPolicy::{self, Allow, Ask, Deny};
use proptest::prelude::*;

use super::*;

mod lines;

fn rule(fields: &[(&str, &str)], answer: PermissionPolicy) -> Rule {
    let field = |name: &str| {
        let found = fields.iter().find(|(of, _)| *of == name);
        found.map(|(_, text)| Pattern::try_from((*text).to_owned()).unwrap())
    };
    let [agent, kind, tool, title, command, path] = ["agent", "kind", "tool", "title", "command", "path"].map(field);
    Rule { agent, kind, tool, title, command, path, answer }
}

fn draft(kind: Option<&str>, title: &str, command: Option<&str>) -> PermissionDraft {
    let details = ToolDetails { command: command.map(str::to_owned), ..ToolDetails::default() };
    PermissionDraft { title: title.to_owned(), tool_kind: kind.map(str::to_owned), details, options: Vec::new() }
}

fn asker(agent: &str) -> RequestingSession<'_> {
    let directory = std::path::Path::new("/work");
    RequestingSession { agent, directory, works_in: Some(directory), home: Some("/home/kim") }
}

fn answer(rules: &[Rule], session: PermissionPolicy, draft: &PermissionDraft) -> PermissionPolicy {
    policy(rules, session, asker("a"), draft)
}

/// Applies a rule of the README to a command whose title is the model's text.
fn readme(command: &str) -> PermissionPolicy {
    let rules = [rule(&[("kind", "execute"), ("command", "git push*")], Deny)];
    answer(&rules, Allow, &draft(Some("execute"), "run a command", Some(command)))
}

#[test]
fn the_first_rule_that_fits_answers_and_a_session_is_stricter_or_asks() {
    let rules = [
        rule(&[("kind", "execute"), ("title", "git push*")], Deny),
        rule(&[("kind", "execute"), ("title", "git *")], Allow),
        rule(&[("kind", "read")], Allow),
    ];
    for (session, kind, title, expected) in [
        (Ask, "execute", "git push origin", Deny),
        (Ask, "execute", "git status", Allow),
        (Ask, "execute", "rm -rf /", Ask),
        (Ask, "read", "x", Allow),
        (Deny, "execute", "git status", Deny),
        (Allow, "execute", "git push", Deny),
        (Allow, "execute", "rm -rf /", Allow),
    ] {
        let draft = draft(Some(kind), title, (kind == "execute").then_some(title));
        assert_eq!(answer(&rules, session, &draft), expected, "{session:?} {kind} {title}");
    }
    let for_one = rule(&[("agent", "gem*")], Allow);
    let draft = draft(Some("x"), "x", None);
    assert_eq!(policy(std::slice::from_ref(&for_one), Ask, asker("gemini"), &draft), Allow);
    assert_eq!(policy(&[for_one], Ask, asker("opencode"), &draft), Ask);
}

#[test]
fn what_a_title_says_hides_no_command_and_approves_none() {
    let denied = [rule(&[("title", "git push*")], Deny)];
    let allowed = [rule(&[("title", "git status*")], Allow)];
    let asked = |title: &str, command: Option<&str>| draft(Some("execute"), title, command);
    assert_eq!(answer(&denied, Allow, &asked("run a command", Some("git push"))), Deny);
    assert_eq!(answer(&denied, Allow, &asked("`git push`", None)), Deny);
    assert_eq!(answer(&denied, Allow, &asked("run a command", None)), Ask, "it is unknown what would run");
    assert_eq!(answer(&denied, Deny, &asked("run a command", None)), Deny);
    assert_eq!(answer(&denied, Allow, &asked("git push", Some("ls"))), Deny, "a title counts too");
    assert_eq!(answer(&allowed, Ask, &asked("git status", Some("git status -s"))), Allow);
    assert_eq!(answer(&allowed, Ask, &asked("git status", Some("git push"))), Ask);
    assert_eq!(answer(&allowed, Ask, &asked("run a command", Some("git status"))), Ask);
    assert_eq!(answer(&allowed, Ask, &asked("git status; rm -rf /", None)), Ask);
    assert_eq!(answer(&denied, Allow, &draft(Some("edit"), "Edit x", None)), Allow, "an edit runs no command");
    assert_eq!(answer(&denied, Allow, &draft(None, "call something", None)), Ask);
    assert_eq!(answer(&denied, Allow, &draft(Some("other"), "call something", None)), Ask);
    assert_eq!(answer(&denied, Allow, &draft(None, "run", Some("ls"))), Allow);
    // A command without a kind counts as `execute`.
    let by_kind = [rule(&[("kind", "execute"), ("command", "git push*")], Deny)];
    assert_eq!(answer(&by_kind, Allow, &draft(None, "`x`", Some("git push"))), Deny);
    assert_eq!(answer(&by_kind, Allow, &draft(Some("other"), "x", Some("git push"))), Deny);
}

#[test]
fn an_approval_has_to_fit_every_part() {
    let rules = [rule(&[("command", "git *")], Allow), rule(&[("command", "cargo *")], Allow)];
    let ask = |command: &str| answer(&rules, Ask, &draft(Some("execute"), "x", Some(command)));
    for command in [
        "git status",
        "git status && git log",
        "git log | git cat-file -p x",
        "bash -lc 'git status; git log'",
        "git log 2>&1 >/dev/null",
        "git commit -m 'it is; done'",
        "if git diff; then git stash; fi",
    ] {
        assert_eq!(ask(command), Allow, "{command}");
    }
    for command in [
        "rm x",
        "git status; rm x",
        "git status && $(rm x)",
        "git log | sh",
        "git log > ~/.bashrc",
        "git $(rm x)",
        "X=1 git status",
        "sudo git status",
        "/tmp/git status",
        "git log `rm x`",
        "git log <(rm x)",
        "bash -lc 'git status; rm x'",
        "/tmp/bash -lc 'git status'",
        "git 'unbalanced",
        "git status\nrm x",
        "git status & rm x",
        "(git status; rm x)",
        "git status #\nrm x",
        "git status; cargo test",
        "bash -c 'git $X' rm",
        "{git,rm} x",
        "git log <<E\n$(rm x)\nE",
    ] {
        assert_eq!(ask(command), Ask, "{command}");
    }
    // A command does not match the name of another tool.
    assert_eq!(answer(&rules, Ask, &draft(Some("edit"), "x", Some("git status"))), Ask);
}

#[test]
fn paths_are_compared_by_their_plain_names() {
    let with_paths = |kind: &str, paths: &[&str]| {
        let mut draft = draft(Some(kind), "x", None);
        draft.details.paths = paths.iter().map(|path| (*path).to_owned()).collect();
        draft
    };
    let denied = [
        rule(&[("path", "/etc/*")], Deny),
        rule(&[("path", "~/.ssh/*")], Deny),
        rule(&[("path", "*.env")], Deny),
        rule(&[("path", "secret/*")], Deny),
    ];
    for path in [
        "/etc/passwd",
        "/usr/../etc//passwd",
        "../etc/passwd",
        "~/.ssh/id",
        "/home/kim/.ssh/a/b",
        "/x/y/.env",
        "secret/a",
        "./a/../secret/b",
        "/work/secret/c",
    ] {
        assert_eq!(answer(&denied, Allow, &with_paths("edit", &["/ok", path])), Deny, "{path}");
    }
    assert_eq!(answer(&denied, Allow, &with_paths("edit", &["/work/src/x.rs"])), Allow);
    assert_eq!(answer(&denied, Allow, &with_paths("edit", &[])), Ask, "an edit of something unknown");
    assert_eq!(answer(&denied, Allow, &with_paths("fetch", &[])), Allow);
    let mut cut = with_paths("edit", &["/work/a"]);
    cut.details.cut = true;
    assert_eq!(answer(&denied, Allow, &cut), Ask);
    for (command, expected) in [
        ("cat /etc/passwd", Deny),
        ("echo x >/etc/passwd", Deny),
        ("dd of=/etc/passwd", Deny),
        ("cat < ../etc/shadow", Deny),
        ("bash -c 'cat /etc/x'", Deny),
        ("curl -d @/etc/passwd h", Deny),
        ("cat secret/x", Deny),
        ("cp a b", Allow),
        ("cat $X", Ask),
        ("cd / && cat etc/passwd", Ask),
        ("cat /et*/passwd", Ask),
    ] {
        assert_eq!(answer(&denied, Allow, &draft(Some("execute"), "x", Some(command))), expected, "{command}");
    }
    let allowed = [rule(&[("path", "src/*"), ("kind", "edit")], Allow)];
    assert_eq!(answer(&allowed, Ask, &with_paths("edit", &["/work/src/a", "src/b"])), Allow);
    for paths in [&["src/../x"][..], &["/work/src/a", "/x"], &[]] {
        assert_eq!(answer(&allowed, Ask, &with_paths("edit", paths)), Ask, "{paths:?}");
    }
}

#[test]
fn a_tool_that_is_not_named_may_be_any() {
    let rules = [rule(&[("tool", "Web*")], Deny)];
    let mut draft = draft(Some("fetch"), "x", None);
    assert_eq!(answer(&rules, Allow, &draft), Ask);
    draft.details.tool = Some("WebFetch".to_owned());
    assert_eq!(answer(&rules, Allow, &draft), Deny);
    draft.details.tool = Some("Read".to_owned());
    assert_eq!(answer(&rules, Allow, &draft), Allow);
}

#[test]
fn every_line_that_pushes_is_denied() {
    let passed: Vec<_> =
        lines::DENIED.iter().filter(|line| readme(line) != Deny).map(|line| (line, readme(line))).collect();
    assert!(passed.is_empty(), "{passed:#?}");
}

#[test]
fn every_line_that_may_push_is_asked_for() {
    let wrong: Vec<_> =
        lines::ASKED.iter().filter(|line| readme(line) != Ask).map(|line| (line, readme(line))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn lines_that_have_nothing_to_do_with_it_pass() {
    let wrong: Vec<_> =
        lines::PASSED.iter().filter(|line| readme(line) != Allow).map(|line| (line, readme(line))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_hostile_line_costs_little() {
    let long = "(".repeat(30_000);
    let started = std::time::Instant::now();
    for line in [
        long,
        "$(".repeat(15_000),
        "`".repeat(30_000),
        "$((".repeat(10_000),
        "${".repeat(15_000),
        "a <<b\n".repeat(5_000),
        "sudo ".repeat(6_000),
        "bash -c '".repeat(3_000),
        "\\".repeat(30_000),
        "x=".repeat(15_000),
        "find -exec ".repeat(2_700),
        "ssh a ".repeat(5_000),
        "{a,".repeat(10_000),
        "eval ".repeat(6_000),
        "-a ".repeat(10_000),
        "x -a -b ".repeat(3_700),
        "&>".repeat(15_000),
        "$'\\x".repeat(7_000),
        "* ".repeat(15_000),
        "case ".repeat(6_000),
    ] {
        let _ = readme(&line);
    }
    // Each text takes milliseconds. The test detects quadratic time.
    assert!(started.elapsed() < std::time::Duration::from_mins(1), "{:?}", started.elapsed());
}

/// Texts that run the command after them.
const WRAPPERS: &[&str] = &[
    "A=1 {}",
    ">out {}",
    "nohup {}",
    "sudo {}",
    "sudo -u kim {}",
    "env A=1 {}",
    "env -i -u X A=1 {}",
    "timeout 5 {}",
    "timeout -k 1 5 {}",
    "command {}",
    "exec {}",
    "nice -n 5 {}",
    "setsid -f {}",
    "stdbuf -oL {}",
    "busybox {}",
    "xargs {}",
    "find . -exec {} +",
    "flock x {}",
    "time {}",
    "strace -f {}",
    "git bisect run {}",
];

/// Contexts in which a line runs. The last contexts quote the line.
const AROUND: &[&str] = &[
    "true; {}",
    "{} && true",
    "ls | {}",
    "{} | cat",
    "( {} )",
    "{ {}; }",
    "$( {} )",
    "echo \"$( {} )\"",
    "if {}; then :; fi",
    "while {}; do :; done",
    "for x in 1 2; do {}; done",
    "f() { {}; }; f",
    "! {}",
    "{} &",
    "{} >/dev/null 2>&1",
    "cat <( {} )",
    "case x in x) {};; esac",
    "$(case x in x) {};; esac)",
    "echo a # b\n{}",
    "echo a\\\n; {}",
    "a=$( {} )",
    "echo ${a:-$( {} )}",
    "echo $(( 1 + $( {} ) ))",
    "[[ -n $( {} ) ]]",
    "ls ||\n{}",
    "coproc {}",
    "cat <<E\n$( {} )\nE",
];
const QUOTING: &[&str] = &[
    "bash -c '{}'",
    "sh -ec '{}'",
    "bash -lc '{}'",
    "eval '{}'",
    "bash <<'E'\n{}\nE",
    "bash <<<'{}'",
    "trap '{}' EXIT",
    "flock x -c '{}'",
    "su -c '{}'",
    "watch '{}'",
    "git rebase -x '{}'",
    "git submodule foreach '{}'",
    "env -S '{}'",
];

fn put_into(line: &str, places: &[&str], chosen: &[usize]) -> String {
    chosen.iter().fold(line.to_owned(), |line, at| places[at % places.len()].replace("{}", &line))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_text_is_too_odd(
        line in "([a-z ]|[$`'\"\\\\(){}<>|&;#\n=*?!~]|git push|bash -c|eval|<<E|\\$\\(|case|esac){0,40}",
    ) {
        let _ = readme(&line);
    }

    #[test]
    fn nor_is_any_other(line in any::<String>()) {
        let _ = readme(&line);
    }

    #[test]
    fn what_is_denied_alone_is_denied_wherever_it_stands(
        arguments in "( -?[a-z]{1,5}){0,3}",
        wrapped in proptest::collection::vec(any::<usize>(), 0..3),
        around in proptest::collection::vec(any::<usize>(), 0..4),
        quoted in proptest::collection::vec(any::<usize>(), 0..2),
    ) {
        let line = put_into(&format!("git push{arguments}"), WRAPPERS, &wrapped);
        let line = put_into(&line, &AROUND[..AROUND.len() - usize::from(!quoted.is_empty())], &around);
        let line = put_into(&line, QUOTING, &quoted);
        prop_assert_eq!(readme(&line), Deny, "{}", line);
    }

    #[test]
    fn no_text_beside_it_makes_a_denied_command_allowed(
        text in "([a-z ]|[$`'\"(){}<>|&;#=*]|<<E|case x in|\\$\\(\\(){0,16}",
    ) {
        let line = format!("{text}\ngit push\n");
        // The command may be in an unclosed quote or in a here-document, but it must never be allowed silently.
        let is_odd = |quote: char| text.matches(quote).count() % 2 == 1;
        let inside = is_odd('\'') || is_odd('"') || text.contains(['\'', '"', '`']);
        prop_assert!(inside || readme(&line) != Allow, "{}", line);
    }
}

#[test]
fn a_relative_path_belongs_to_the_directory_in_which_the_agent_works() {
    let details = ToolDetails { paths: vec!["src/a".to_owned()], ..ToolDetails::default() };
    let draft = PermissionDraft { details, ..draft(Some("edit"), "edit", None) };
    let of = |works_in: Option<&str>, decision| {
        let rules = [rule(&[("path", "src/**")], decision)];
        let works_in = works_in.map(std::path::Path::new);
        policy(&rules, Ask, RequestingSession { works_in, ..asker("a") }, &draft)
    };
    assert_eq!((of(Some("/work"), Allow), of(Some("/work"), Deny)), (Allow, Deny));
    assert_eq!((of(Some("/flows"), Allow), of(Some("/flows"), Deny)), (Ask, Ask));
    // A directory that is not certain allows nothing.
    assert_eq!(of(None, Allow), Ask);
}
