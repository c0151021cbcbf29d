use clap::CommandFactory;

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
        Ok(Command::Env(EnvArgs { diff: Some(Range { from, to }), .. })) => Ok((from, to)),
        other => Err(other.err()),
    };
    assert_eq!(diff("agentctl env k3m --diff"), Ok((Moment::Last, Moment::Now)));
    assert_eq!(diff("agentctl env k3m --diff created.."), Ok((Moment::Created, Moment::Now)));
    assert_eq!(diff("agentctl env k3m --diff ..last"), Ok((Moment::Created, Moment::Last)));
    for wrong in ["now..now", "then..now", "created"] {
        assert_eq!(diff(&format!("agentctl env k3m --diff {wrong}")), Err(Some(2)), "{wrong}");
    }
    assert_eq!(parse("agentctl env").unwrap_err().exit_code(), 2);
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
        Ok(Cli { command: Command::Resume { session, terms, .. }, .. }) => {
            assert_eq!(session, "k3m");
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
fn a_command_of_ones_own_keeps_its_flags() {
    let cli = Cli::try_parse_from("agentctl run --json -- my-agent --json -v".split(' ')).unwrap();
    let Command::Run(run) = cli.command else { panic!() };
    assert_eq!(run.spec.command, ["my-agent", "--json", "-v"]);
    assert!(Cli::try_parse_from("agentctl run --agent x -- y".split(' ')).is_err());
}
