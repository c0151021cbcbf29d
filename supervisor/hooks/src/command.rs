//! Runs the command of a hook under a keeper: with the event on stdin, a clean environment and a deadline.

use std::time::Duration;

use agentd_api::ByteString;
use agentd_api::hook::{HookFault, HookMessage};
use agentd_config::Hook;
use agentd_environment::Seed;
use agentd_host::runner;
use agentd_keeper::protocol::{RunOutcome, RunRequest, RunResult, Variable};
use agentd_session::generation::Generation;

use crate::send::{ANSWER, SendFailure, Sent, answer};

/// Search path of the command's own programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Time for which the keeper is waited for after the deadline.
const KEEPER_TIME: Duration = Duration::from_secs(10);
/// Longest text of stderr in the description of a failure, in characters.
const SHOWN: usize = 200;

/// Runs the command. At the deadline its whole process tree is killed.
pub(crate) async fn run(generation: &Generation, hook: &Hook, message: &HookMessage) -> Result<Sent, SendFailure> {
    let environment = &generation.config.environment;
    let (home, shell) = (environment.home.clone(), environment.shell.clone());
    // The user database may be on a server that does not respond.
    let seed = agentd_host::work::blocking(move || Seed::find(home.as_deref(), shell.as_deref()).ok());
    let seed = tokio::time::timeout(hook.timeout.0, seed).await.ok().and_then(Result::ok).flatten();
    let home = seed.as_ref().map(|seed| seed.home.display().to_string());
    let Some(program) = hook.command.first().and_then(|program| path(program, home.as_deref())) else {
        let detail = "the home directory of the user is not known; set environment.home, or give an absolute path";
        return Err(SendFailure::new(HookFault::HookCommandFailed, detail));
    };
    let mut variables = vec![("PATH".to_owned(), PATH.to_owned())];
    variables.extend(home.clone().map(|home| ("HOME".to_owned(), home)));
    variables.extend(seed.map(|seed| ("USER".to_owned(), seed.name)));
    variables.extend(described(message));
    let stdin = serde_json::to_vec(message).unwrap_or_default();
    run_program(generation, &program, &hook.command[1..], variables, stdin, hook.timeout.0).await
}

/// Runs a program with a deadline. A status other than 0 is a failure.
pub(crate) async fn run_program(
    generation: &Generation,
    program: &str,
    arguments: &[String],
    variables: Vec<(String, String)>,
    stdin: Vec<u8>,
    timeout: Duration,
) -> Result<Sent, SendFailure> {
    let request = RunRequest {
        program: program.to_owned().into(),
        args: arguments.iter().map(|argument| argument.clone().into()).collect(),
        environment: variables
            .into_iter()
            .map(|(name, value)| Variable { name: name.into(), value: value.replace('\0', "").into() })
            .collect(),
        directory: "/".into(),
        deadline_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        stdin: Some(ByteString(stdin)),
        max_output: ANSWER as u64,
        ..RunRequest::default()
    };
    let failed = |detail: String| SendFailure::new(HookFault::HookCommandFailed, detail);
    let ran = runner::run(&generation.daemon.programs.keeper, &request);
    let late = || SendFailure::new(HookFault::HookTimeout, format!("{program} did not end within {timeout:?}"));
    let ran = match tokio::time::timeout(timeout + KEEPER_TIME, ran).await {
        Ok(Ok(ran)) => ran,
        Ok(Err(error)) => return Err(failed(format!("{program} could not be run: {error}"))),
        Err(_) => return Err(late()),
    };
    let mut failure = match &ran.outcome {
        RunOutcome::Exited(0) => {
            return Ok(Sent { status: Some(0), answer: answer(ran.stdout.as_bytes()) });
        }
        RunOutcome::Exited(status) => SendFailure {
            status: Some(*status),
            ..failed(format!("{program} ended with status {status}{}", last_line(&ran)))
        },
        RunOutcome::Signalled(signal) => failed(format!("{program} was ended by signal {signal}{}", last_line(&ran))),
        RunOutcome::NotExecuted(reason) => failed(format!("{program} cannot be executed: {reason}")),
        RunOutcome::TimedOut | RunOutcome::Cancelled => late(),
        _ => failed(format!("{program} could not be run")),
    };
    failure.answer = answer(if ran.stderr.as_bytes().is_empty() { &ran.stdout } else { &ran.stderr }.as_bytes());
    Err(failure)
}

/// Returns the last line of stderr for the description of a failure.
fn last_line(ran: &RunResult) -> String {
    let text = ran.stderr.display();
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let line: String = line.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

/// Replaces `~/` at the start by the home directory.
fn path(program: &str, home: Option<&str>) -> Option<String> {
    match program.strip_prefix("~/") {
        Some(rest) => Some(format!("{}/{rest}", home?)),
        None => Some(program.to_owned()),
    }
}

/// Returns the variables that describe the event.
fn described(message: &HookMessage) -> Vec<(String, String)> {
    let HookMessage { kind, timestamp, data } = message;
    let session = data.session.as_ref();
    let all = [
        ("NAME", Some(data.hook.clone())),
        ("ID", Some(data.id.clone())),
        ("EVENT", Some(kind.clone())),
        ("TIME", Some(timestamp.to_string())),
        ("TEXT", Some(data.text.clone())),
        ("SESSION", session.map(|session| session.id.to_string())),
        ("SESSION_NAME", session.and_then(|session| session.name.as_ref()).map(ToString::to_string)),
        ("AGENT", session.and_then(|session| session.agent.clone())),
        ("DIRECTORY", session.map(|session| session.directory.display().to_string())),
        ("PHASE", session.map(|session| session.phase.as_str().to_owned())),
        ("REASON", data.reason.clone()),
        ("MESSAGE", data.message.clone()),
        ("REMEDY", data.remedy.clone()),
        ("COMMAND", data.command.clone()),
    ];
    all.into_iter().filter_map(|(name, value)| Some((format!("AGENTD_HOOK_{name}"), value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message;

    #[test]
    fn a_message_is_in_variables_and_those_without_a_value_are_left_out() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let variables = described(&message::of_test("phone", 7, "msg_1".to_owned(), now));
        let value = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(value("AGENTD_HOOK_NAME"), Some("phone"));
        assert_eq!(value("AGENTD_HOOK_EVENT"), Some("hook.test"));
        assert_eq!(value("AGENTD_HOOK_SESSION"), None);
    }

    #[test]
    fn a_program_in_the_home_directory_needs_a_home() {
        assert_eq!(path("~/bin/x", Some("/home/kim")).as_deref(), Some("/home/kim/bin/x"));
        assert_eq!(path("~/bin/x", None), None);
        assert_eq!(path("/bin/x", None).as_deref(), Some("/bin/x"));
    }
}
