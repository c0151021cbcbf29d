//! Offers the installed agents to a person who runs a session without a configured agent.

use std::io::{self, IsTerminal as _, Write as _};

use agentd_api::agents::{AgentAddRequest, AgentState};

use super::{login_word, next_step};
use crate::args::SpecArgs;
use crate::commands::{Context, edited, tell};
use crate::error::Error;
use crate::input::one_line;
use agentd_screen::terminal::{Screen, TextStyle};

/// Name of the built-in agent.
const DEMO: &str = "demo";

/// Asks which of the installed agents to use, if no agent is configured and none is named. Without a terminal, or
/// without an installed agent, asks nothing.
pub(in crate::commands) async fn offer(context: &Context, args: &SpecArgs) -> Result<(), Error> {
    if args.agent.is_some() || !args.command.is_empty() {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !Screen::stderr().terminal {
        return Ok(());
    }
    let configured = context.client.agents().await?.value.agents;
    if configured.iter().any(|agent| agent.name != DEMO) {
        return Ok(());
    }
    // A fault that prevents the search also prevents the launch, which reports it.
    let Ok(found) = context.client.catalogue(None, false).await else { return Ok(()) };
    let installed: Vec<AgentState> =
        found.value.agents.into_iter().filter(|agent| !agent.configured && agent.program.is_some()).collect();
    if installed.is_empty() {
        return Ok(());
    }
    tell("no agent is configured; these are installed:")?;
    let screen = Screen::stderr();
    for (number, agent) in (1..).zip(&installed) {
        tell(&format!("  {number}  {:<10}login: {}", screen.line(&agent.name), login_word(agent)))?;
    }
    let question = match installed.len() {
        1 => "1 to use it from now on, or Enter for the demo agent: ".to_owned(),
        more => format!("1 to {more} to use one from now on, or Enter for the demo agent: "),
    };
    let mut out = io::stderr();
    let question = screen.paint(TextStyle::Ask, &question);
    out.write_all(question.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)?;
    let answer = one_line().await.map_err(Error::Input)?;
    let Some(chosen) = choice(&answer, &installed)? else { return Ok(()) };
    let wish = AgentAddRequest { like: Some(chosen.name.clone()), default: true, ..AgentAddRequest::default() };
    let view = context.client.add_agent(&wish).await?.value;
    for line in edited::diff(&view.file, &view.lines).lines() {
        tell(&screen.line(line))?;
    }
    let (remarks, is_in_force) = edited::after_reload(&view.mistakes);
    for remark in remarks {
        tell(&screen.line(&remark))?;
    }
    if let Some(step) = next_step(chosen).filter(|_| is_in_force) {
        tell(&screen.line(&step))?;
    }
    Ok(())
}

/// Returns the agent that the answer chooses by number or by name, or none for an empty answer.
fn choice<'a>(answer: &str, installed: &'a [AgentState]) -> Result<Option<&'a AgentState>, Error> {
    let answer = answer.trim();
    if answer.is_empty() || answer == DEMO {
        return Ok(None);
    }
    let by_number = answer.parse::<usize>().ok().and_then(|number| installed.get(number.checked_sub(1)?));
    match by_number.or_else(|| installed.iter().find(|agent| agent.name == answer)) {
        Some(agent) => Ok(Some(agent)),
        None => Err(Error::Usage {
            detail: format!("{answer:?} is not one of the installed agents"),
            hint: "agentctl agent ls lists them; agentctl agent add NAME --default uses one from now on".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_number_a_name_or_nothing() {
        let agent = |name: &str| -> AgentState {
            let state = serde_json::json!({ "name": name, "configured": false, "command": [name], "login": "key" });
            serde_json::from_value(state).unwrap()
        };
        let installed = [agent("claude"), agent("gemini")];
        let name = |answer: &str| choice(answer, &installed).map(|chosen| chosen.map(|agent| agent.name.as_str()));
        assert_eq!(name("\n").unwrap(), None);
        assert_eq!(name("demo").unwrap(), None);
        assert_eq!(name(" 2\n").unwrap(), Some("gemini"));
        assert_eq!(name("claude").unwrap(), Some("claude"));
        for wrong in ["0", "3", "-1", "clade", "1 2"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
