//! Checks the command of an agent's entry.

use agentd_api::AgentName;

use std::time::Duration;

use agentd_api::isolation::Isolation;
use agentd_api::quantity::Time;

use super::{Agent, DEMO, Flaws, Manager, flaw};

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

/// Maximum number of processes that are kept ready for an agent.
const MOST_WARM: usize = 4;

/// Returns the default of `warm_idle`.
pub(super) fn warm_idle() -> Time {
    Time(Duration::from_mins(10))
}

/// Returns the mistakes in the keys about agents that are kept warm.
pub(super) fn check_warm(name: &AgentName, agent: &Agent, manager: Manager) -> Flaws {
    let warm = agent.warm;
    if agent.warm_idle.0.is_zero() {
        let message = format!("agents.{name}.warm_idle is 0; set a value above 0, or warm = 0");
        return vec![flaw(&["agents", name.as_str(), "warm_idle"], message)];
    }
    let begins_late = |known: &agentd_catalogue::KnownAgent| known.agentd.begins_late;
    let message = if warm == 0 {
        return Flaws::new();
    } else if warm > MOST_WARM {
        format!("agents.{name}.warm is {warm}; set a value from 0 to {MOST_WARM}")
    } else if !agent.known().is_some_and(begins_late) {
        let known = agentd_catalogue::all().iter().filter(|known| begins_late(known));
        let known: Vec<&str> = known.map(agentd_catalogue::KnownAgent::name).collect();
        format!(
            "agents.{name}.warm is {warm}, but agentd does not know that this agent can begin a session long after its \
             start; remove it, or set like to one of {}",
            known.join(", ")
        )
    } else if agent.isolation == Isolation::Guard {
        format!(
            "agents.{name}.warm is {warm}, but no agent with isolation = \"guard\" is kept warm; remove one of them"
        )
    } else if manager == Manager::Systemd {
        format!(
            "agents.{name}.warm is {warm}, but no agent is kept warm in a unit of systemd; remove it, or set \
             launch.manager = \"detached\""
        )
    } else {
        return Flaws::new();
    };
    vec![flaw(&["agents", name.as_str(), "warm"], message)]
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

    #[test]
    fn only_an_agent_that_can_begin_late_is_kept_warm() {
        for (text, expected) in [
            ("like = \"claude\"\nwarm = 5", "agents.a.warm is 5; set a value from 0 to 4"),
            ("like = \"claude\"\nwarm = -1", "warm"),
            ("like = \"claude\"\nwarm_idle = 0", "agents.a.warm_idle is 0"),
            ("like = \"claude\"\nwarm = 1\nisolation = \"guard\"", "no agent with isolation = \"guard\""),
            ("like = \"kiro\"\nwarm = 1", "or set like to one of claude, gemini, opencode"),
            ("command = [\"a\"]\nwarm = 1", "does not know that this agent can begin a session"),
            ("like = \"claude\"\nwarm = 1\n[launch]\nmanager = \"systemd\"", "in a unit of systemd"),
        ] {
            let error = of_texts(&[&format!("[agents.a]\n{text}")], &[]).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let config =
            config("[agents.a]\nlike = \"claude\"\ncommand = [\"b\"]\nwarm = 4\n[agents.b]\ncommand = [\"b\"]");
        let warm = |name: &str| config.agent(name).map(|agent| (agent.warm, agent.warm_idle.0.as_secs())).unwrap();
        assert_eq!((warm("a"), warm("b")), ((4, 600), (0, 600)));
    }
}
