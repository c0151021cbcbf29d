//! Checks the command of an agent's entry.

use agentd_api::AgentName;

use super::{Agent, DEMO, Flaws, flaw};

/// Returns the mistakes in the command of an entry.
pub(super) fn check(name: &AgentName, agent: &Agent) -> Flaws {
    let key = |key: &str, message: String| vec![flaw(&["agents", name.as_str(), key], message)];
    if let Some(like) = agent.like.as_ref().filter(|_| agent.known().is_none()) {
        let known: Vec<&str> = agentd_catalogue::all().iter().map(agentd_catalogue::KnownAgent::name).collect();
        let message = format!("agents.{name}.like is {like:?}, which is not a known agent: {}", known.join(", "));
        return key("like", message);
    }
    if agent.command.first().is_some_and(String::is_empty) {
        return key("command", format!("agents.{name}.command begins with an empty program"));
    }
    let is_built_in = name.as_str() == DEMO;
    if !agent.has_command() && !is_built_in {
        let message = format!(
            "agents.{name} has no command, and only the agent \"{DEMO}\" is built in; \
             add command = [\"PROGRAM\", \"ARGUMENT\"] to [agents.{name}], or like = \"claude\" for a known agent"
        );
        return key("command", message);
    }
    if !agent.has_command() && !agent.args.is_empty() {
        return key("args", format!("agents.{name}.args has arguments, but the built-in agent takes none"));
    }
    Flaws::new()
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::super::assemble::of_texts;

    fn config(text: &str) -> Config {
        of_texts(&[text], &[]).unwrap().config
    }

    #[test]
    fn an_entry_takes_the_command_of_a_known_agent_unless_it_has_its_own() {
        let config = config(
            "[agents.work]\nlike = \"gemini\"\nargs = [\"--debug\"]\n\
             [agents.home]\nlike = \"gemini\"\ncommand = [\"~/bin/gemini\"]\n\
             env = { GEMINI_CLI_NO_RELAUNCH = \"false\" }\n",
        );
        let command = |name: &str| config.agent(name).unwrap().command_in(Some("/home/kim".as_ref()));
        assert_eq!(command("work"), ["gemini", "--acp", "--debug"]);
        assert_eq!(command("home"), ["/home/kim/bin/gemini"]);
        let set = |name: &str| config.agent_scope(name).unwrap().env["GEMINI_CLI_NO_RELAUNCH"].clone();
        assert_eq!((set("work").as_str(), set("home").as_str()), ("true", "false"));
    }

    #[test]
    fn an_entry_that_says_nothing_to_run_is_a_mistake() {
        for (text, expected) in [
            ("[agents.a]\nlike = \"clade\"", "agents.a.like is \"clade\", which is not a known agent: auggie, claude,"),
            ("[agents.a]\nargs = [\"x\"]", "agents.a has no command"),
            ("[agents.a]\ncommand = []", "like = \"claude\" for a known agent"),
            ("[agents.a]\ncommand = [\"\"]", "agents.a.command begins with an empty program"),
            ("[agents.demo]\nargs = [\"x\"]", "the built-in agent takes none"),
        ] {
            let error = of_texts(&[text], &[]).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        config("[agents.demo]\nallow = [\"X\"]\n");
    }
}
