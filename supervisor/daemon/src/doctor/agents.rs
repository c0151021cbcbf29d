//! Checks whether each configured agent exists in the environment of its sessions, and reports its version.

use std::path::PathBuf;
use std::sync::Arc;

use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;

use agentd_session::agent_look;
use agentd_session::generation::Generation;

/// Result of searching one agent.
#[derive(Debug)]
enum Found {
    /// The program's path, and its version or the reason why the version is unknown.
    Installed {
        program: PathBuf,
        version: Result<String, String>,
    },
    Missing {
        program: String,
        path: String,
    },
    /// The environment could not be built, so the agent cannot be searched.
    NoEnvironment {
        why: String,
    },
}

pub(super) async fn check(generation: &Arc<Generation>) -> Check {
    if let Err(problem) = generation.launchable() {
        return Check::new("agents", Outcome::Unknown, format!("cannot build an environment: {}", problem.detail))
            .remedy("correct the configuration, then run `agentctl reload`");
    }
    let mut agents = Vec::new();
    for (name, command) in generation.agents() {
        let found = look(generation, &name, &command).await;
        agents.push((name, found));
    }
    concluded(&agents)
}

async fn look(generation: &Arc<Generation>, name: &str, command: &[String]) -> Found {
    let look = match agent_look(generation, Some(name), command).await {
        Ok(look) => look,
        Err(why) => return Found::NoEnvironment { why },
    };
    match look.found.clone() {
        Some(program) => Found::Installed { program, version: look.version(generation).await },
        None => Found::Missing { program: look.program, path: look.path },
    }
}

fn concluded(agents: &[(String, Found)]) -> Check {
    let mut findings = Vec::new();
    for (name, found) in agents {
        match found {
            Found::Installed { version: Ok(_), .. } => {}
            Found::Installed { program, version: Err(why) } => findings.push(Finding::new(
                Outcome::Warn,
                format!("the version of {name} is unknown: {why}"),
                format!("try {} --version", program.display()),
            )),
            Found::Missing { program, path } => findings.push(Finding::new(
                Outcome::Fail,
                format!("the program {program:?} of agent {name} does not exist"),
                format!("install the program, or correct agents.{name}.command; sessions have PATH={path}"),
            )),
            Found::NoEnvironment { why } => findings.push(Finding::new(
                Outcome::Fail,
                format!("cannot build an environment for a session of {name}: {why}"),
                "a launch would fail in the same way; `agentctl snapshot refresh` runs only the login shell".to_owned(),
            )),
        }
    }
    let mut check = Check::of("agents", &findings, format!("{} installed", agents.len()));
    for (name, found) in agents {
        if let Found::Installed { program, version: Ok(version) } = found {
            check = check.fact(name, format!("{version} ({})", program.display()));
        }
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_agent_fails_with_the_path_and_an_unknown_version_warns() {
        let missing = Found::Missing { program: "claude".into(), path: "/bin".into() };
        let installed = Found::Installed { program: "/bin/agent".into(), version: Ok("agent 1.2".into()) };
        let check = concluded(&[("claude".into(), missing), ("own".into(), installed)]);
        assert_eq!(check.outcome, Outcome::Fail);
        assert!(check.remedy.as_ref().unwrap().contains("PATH=/bin"), "{check:?}");
        assert_eq!(check.facts[0].value, "agent 1.2 (/bin/agent)");
        let silent =
            Found::Installed { program: "/bin/agent".into(), version: Err("--version printed nothing".into()) };
        assert_eq!(concluded(&[("own".into(), silent)]).outcome, Outcome::Warn);
        let none = Found::NoEnvironment { why: "the login shell hangs".into() };
        assert_eq!(concluded(&[("own".into(), none)]).outcome, Outcome::Fail);
    }
}
