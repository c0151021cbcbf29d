//! Variables that each known agent needs to log in, to reach its model and to find its home. The sources are
//! the agents' documentation or, where that is incomplete, their code; `supervisor/catalogue/agents` has them. The
//! lists contain keys: an agent gets its own keys by exact name, and no other agent's.
//!
//! Keys of a cloud are given only if a switch in the environment tells the agent to use that cloud.

// Other crates use this file by its path too.
#[path = "table.rs"]
mod table;

use table::AGENTS;

/// An agent's names and its variables.
struct Agent {
    names: &'static [&'static str],
    variables: &'static [&'static str],
    clouds: &'static [Cloud],
}

/// Variables that are given if the switch is set to a value other than empty, `0` or `false`.
struct Cloud {
    switch: &'static str,
    variables: &'static [&'static str],
}

/// Returns the variables of the agent with this name, or none for an unknown agent. `value` returns the value
/// of a variable of the environment.
pub(crate) fn essentials<'a>(agent: &str, value: impl Fn(&str) -> Option<&'a [u8]>) -> Vec<&'static str> {
    let Some(agent) = AGENTS.iter().find(|known| known.names.contains(&agent)) else { return Vec::new() };
    let on = |cloud: &&Cloud| value(cloud.switch).is_some_and(|value| !matches!(value, b"" | b"0" | b"false"));
    let clouds = agent.clouds.iter().filter(on).flat_map(|cloud| cloud.variables);
    agent.variables.iter().chain(clouds).copied().collect()
}

/// Returns every name that some agent gets.
#[cfg(test)]
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    AGENTS.iter().flat_map(|agent| {
        let clouds = agent.clouds.iter().flat_map(|cloud| cloud.variables);
        agent.variables.iter().chain(clouds).copied()
    })
}
