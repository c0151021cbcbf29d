use std::collections::BTreeSet;

use agentd_api::environment::Moment;
use clap::CommandFactory;
use clap::builder::ValueParser;

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn env_takes_a_session_or_a_directory_to_approve() {
    let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
    assert!(matches!(
        parse("agentctl env k3m --values"),
        Ok(Command::Env(EnvArgs { session: Some(_), values: true, scripts: None, .. }))
    ));
    assert!(matches!(
        parse("agentctl env allow /x"),
        Ok(Command::Env(EnvArgs { scripts: Some(ScriptCommand::Allow { .. }), .. }))
    ));
    let diff = |line: &str| match parse(line).map_err(|error| error.exit_code()) {
        Ok(Command::Env(EnvArgs { diff: Some(Against::Moments(Range { from, to })), .. })) => Ok((from, to)),
        other => Err(other.err()),
    };
    assert_eq!(diff("agentctl env k3m --diff"), Ok((Moment::Last, Moment::Now)));
    assert_eq!(diff("agentctl env k3m --diff created.."), Ok((Moment::Created, Moment::Now)));
    assert_eq!(diff("agentctl env k3m --diff ..last"), Ok((Moment::Created, Moment::Last)));
    for wrong in ["now..now", "then..now", "created"] {
        assert_eq!(diff(&format!("agentctl env k3m --diff {wrong}")), Err(Some(2)), "{wrong}");
    }
    let terminal = parse("agentctl env k3m --diff terminal");
    assert!(matches!(terminal, Ok(Command::Env(EnvArgs { diff: Some(Against::Terminal), .. }))));
    assert_eq!(parse("agentctl env").unwrap_err().exit_code(), 2);
    let keep = parse("agentctl env keep JAVA_HOME ROS_* --agent claude --dry-run");
    assert!(matches!(keep, Ok(Command::Env(EnvArgs { scripts: Some(ScriptCommand::Keep(_)), .. }))));
    for wrong in ["agentctl env keep", "agentctl env keep A --agent a --directory /x"] {
        assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
    }
}

#[test]
fn a_name_that_cannot_be_one_is_a_usage_error() {
    for line in ["agentctl new --name ../x", "agentctl new --agent A", "agentctl answer s P1 allow"] {
        assert_eq!(Cli::try_parse_from(line.split(' ')).unwrap_err().exit_code(), 2, "{line}");
    }
}

#[test]
fn a_launch_waits_for_an_hour_where_no_limit_is_given_and_does_not_wait_and_go_on_without() {
    let terms = |flags: &str| match Cli::try_parse_from(format!("agentctl resume k3m {flags}").trim().split(' ')) {
        Ok(Cli { command: Command::Resume(ResumeArgs { session, terms, .. }), .. }) => {
            assert_eq!(session.as_deref(), Some("k3m"));
            Ok((terms.wait.map(|limit| limit.0.as_secs()), terms.force))
        }
        other => Err(other.map(|_| 0).map_err(|error| error.exit_code())),
    };
    assert_eq!(terms(""), Ok((None, false)));
    assert_eq!(terms("--wait"), Ok((Some(3600), false)));
    assert_eq!(terms("--wait=1m30s"), Ok((Some(90), false)));
    assert_eq!(terms("--force"), Ok((None, true)));
    for wrong in ["--wait --force", "--wait=-3s", "--wait=soon", "--wait 10m"] {
        assert_eq!(terms(wrong), Err(Err(2)), "{wrong}");
    }
}

#[test]
fn words_behind_run_are_the_prompt_and_not_beside_another() {
    let cli = Cli::try_parse_from("agentctl run --agent x what is this -- ".trim().split(' ')).unwrap();
    let Command::Run(run) = cli.command else { panic!() };
    assert_eq!(run.spec.text, ["what", "is", "this"]);
    let cli = Cli::try_parse_from("agentctl run hello -- my-agent --acp".split(' ')).unwrap();
    let Command::Run(run) = cli.command else { panic!() };
    assert_eq!((run.spec.text.join(" "), run.spec.command.len()), ("hello".to_owned(), 2));
    assert!(Cli::try_parse_from("agentctl run --prompt x hello".split(' ')).is_err());
}

#[test]
fn every_size_and_time_of_the_command_line_takes_the_one_grammar() {
    let sizes = ValueParser::from(clap::value_parser!(Size)).type_id();
    let times = ValueParser::from(clap::value_parser!(Time)).type_id();
    let mut known = BTreeSet::new();
    for command in Cli::command().get_subcommands() {
        for option in command.get_opts() {
            let (name, kind) = (option.get_long().unwrap(), option.get_value_parser().type_id());
            let unit = |word: &str| option.get_value_names().is_some_and(|names| names.iter().any(|name| name == word));
            assert!(!unit("SECONDS") && !unit("BYTES"), "{} --{name} has a grammar of its own", command.get_name());
            if kind != sizes && kind != times {
                continue;
            }
            known.insert(name.to_owned());
            let session = match command.get_name() {
                "resume" | "wait" => " k3m",
                "apply" => " -f team.yaml",
                "ls" => " --all-hosts",
                _ => "",
            };
            let parse = |value: &str| {
                let line = format!("agentctl {}{session} --{name}={value}", command.get_name());
                Cli::try_parse_from(line.split(' '))
            };
            let (right, wrong, said) = if kind == sizes {
                (["2G", "1.5M", "512"], ["2GB", "-1", "much"], "is not a size")
            } else {
                (["10m", "1h30m", "250ms"], ["10x", "m", "soon"], "is not a duration")
            };
            for value in right {
                assert!(parse(value).is_ok(), "--{name}={value}");
            }
            for value in wrong {
                let error = parse(value).unwrap_err();
                assert!(error.exit_code() == 2 && error.to_string().contains(said), "--{name}={value}: {error}");
            }
        }
    }
    let all = [
        "for",
        "idle",
        "memory",
        "older-than",
        "permission-limit",
        "ready",
        "session-limit",
        "timeout",
        "turn-limit",
        "wait",
    ];
    assert_eq!(known, all.map(str::to_owned).into());
}

#[test]
fn a_command_of_ones_own_keeps_its_flags() {
    let cli = Cli::try_parse_from("agentctl run --json -- my-agent --json -v".split(' ')).unwrap();
    let Command::Run(run) = cli.command else { panic!() };
    assert_eq!(run.spec.command, ["my-agent", "--json", "-v"]);
    assert!(Cli::try_parse_from("agentctl run --agent x -- y".split(' ')).is_err());
}

/// A parse error other than a missing argument is a mistake: the messages leave out the session.
#[test]
fn every_command_that_a_hint_recommends_exists() {
    let mut parsed = 0;
    for hint in agentd_api::hint::ALL {
        for line in hint.split('`').skip(1).step_by(2).filter(|code| code.starts_with("agentctl ")) {
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                assert_eq!(error.kind(), clap::error::ErrorKind::MissingRequiredArgument, "{line}: {error}");
            }
            parsed += 1;
        }
    }
    assert!(parsed > 30, "{parsed}");
}
