//! The corpus: homes as people have them, one file each (`../cases`). It compares the environment at a terminal there
//! with the environment of an agent.
//!
//! The cases do not contain the terminal's values. For each case the test logs in at a real terminal and types the
//! command that a person would type to see the environment. Then it launches an agent in an equal home. Each name must
//! have an equal value on both sides. Otherwise agentd must report why it left the name out, or the case must name the
//! policy that makes the difference. `../README.md` describes the files, so that other programs can be tested with
//! them.

mod case;
mod compare;
mod terminal;
mod tools;

use std::path::{Path, PathBuf};

use agentd_api::environment::EnvironmentView;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{BASH, CSH, DASH, FISH, KSH, NU, Shell, TCSH, ZSH, of_agent};
use crate::harness::{Daemon, paths, process};
use case::Case;
use compare::Side;

/// Cases at a time, over all tests of this program: most of the time of each is waiting.
static AT_A_TIME: Semaphore = Semaphore::const_new(3);
/// A part of the path of a case: those alone are run.
const ONLY: &str = "AGENTD_TEST_CORPUS";
/// Fewer cases than this are no corpus: a file that is not found would otherwise go unseen.
const LEAST: usize = 150;

/// Sources of variables for a login at a terminal without a user manager of systemd.
const SOURCES: &str = r#"["login-defs", "etc-environment", "locale"]"#;

fn directory() -> PathBuf {
    paths::checkout().join("tests/conformance/cases")
}

/// Runs every case of this shell and reports all that failed, each with its differences.
async fn holds(shell: Shell) {
    let Some(program) = shell.program() else { return };
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut cases = case::load(&directory().join(shell.name));
    cases.retain(|case| case.name.contains(&only));
    let mut running = JoinSet::new();
    let mut names = std::collections::HashMap::new();
    for case in cases {
        let Some(tools) = tools::find(&case.needs) else { continue };
        let (name, program) = (case.name.clone(), program.clone());
        let task = running.spawn(async move {
            let _permit = AT_A_TIME.acquire().await.expect("it is never closed");
            run(&case.with_tools(&tools), shell, &program).await
        });
        names.insert(task.id(), name);
    }
    let mut failed = Vec::new();
    while let Some(ended) = running.join_next_with_id().await {
        let (id, problems) = match ended {
            Ok((id, problems)) => (id, problems),
            Err(error) => (error.id(), vec!["the test itself failed; its message is above".to_owned()]),
        };
        failed.extend(problems.into_iter().map(|problem| format!("{}: {problem}", names[&id])));
    }
    failed.sort();
    assert!(failed.is_empty(), "{} differences:\n{}", failed.len(), failed.join("\n"));
}

/// Runs one case, and returns its mistakes.
async fn run(case: &Case, shell: Shell, program: &Path) -> Vec<String> {
    let mut daemon = super::daemon(program);
    let environment = format!("[environment]\nsources = {SOURCES}\n{}\n", case.environment);
    daemon.configure(|config| config.replace("[environment]\n", &environment));
    case.prepare(&daemon.home(), &daemon.work());
    let terminal = match terminal::capture(case, shell, program, &daemon).await {
        Ok(terminal) => terminal,
        Err(error) => return vec![format!("the terminal gave nothing: {error}")],
    };
    // The agent must not find processes and files of the terminal's shell.
    process::kill_all_of(daemon.root());
    case.prepare(&daemon.home(), &daemon.work());
    daemon.run().await;
    let (agent, view) = agent(&daemon).await;
    let dropped = view.dropped.into_iter().filter(|dropped| dropped.reason.is_some()).map(|dropped| dropped.name);
    let mut problems = compare::differences(case, &terminal, &agent, &dropped.collect::<Vec<_>>());
    if !problems.is_empty() {
        let warned = std::fs::read_to_string(daemon.root().join("agentd.log")).unwrap_or_default();
        let warned = warned.lines().filter(|line| line.contains("WARN")).map(|line| format!("  agentd: {line}"));
        problems.extend(warned);
    }
    problems
}

async fn agent(daemon: &Daemon) -> (Side, EnvironmentView) {
    let session = daemon.create(&daemon.scripted(&[])).await;
    let variables = of_agent(&session).await;
    let pid = session.view().await.status.agent_pid.expect("an agent that runs has a pid");
    let side = Side::of_process(variables, Path::new(&format!("/proc/{pid}")));
    let view = daemon.client.get(&session.path("/environment")).await.expect(200);
    session.stop().await;
    (side, view)
}

#[test]
fn there_are_enough_cases_for_each_shell_and_each_can_be_read() {
    let shells = [BASH, ZSH, FISH, TCSH, CSH, KSH, DASH, NU];
    let numbers = shells.map(|shell| {
        let cases = case::load(&directory().join(shell.name));
        assert!(cases.len() >= 10, "{}: {} cases", shell.name, cases.len());
        cases.len()
    });
    assert!(numbers.iter().sum::<usize>() >= LEAST, "{numbers:?}");
    let folders = std::fs::read_dir(directory()).unwrap().flatten().count();
    assert_eq!(folders, shells.len(), "a folder of cases that no test runs");
}

#[tokio::test]
async fn an_agent_has_what_a_terminal_has_in_bash() {
    holds(BASH).await;
}

#[tokio::test]
async fn an_agent_has_what_a_terminal_has_in_zsh() {
    holds(ZSH).await;
}

#[tokio::test]
async fn an_agent_has_what_a_terminal_has_in_fish() {
    holds(FISH).await;
}

#[tokio::test]
async fn an_agent_has_what_a_terminal_has_in_tcsh() {
    holds(TCSH).await;
}

#[tokio::test]
async fn an_agent_has_what_a_terminal_has_in_csh() {
    holds(CSH).await;
}

#[tokio::test]
async fn an_agent_has_what_a_terminal_has_in_ksh() {
    holds(KSH).await;
}

#[tokio::test]
async fn an_agent_has_what_a_terminal_has_in_dash() {
    holds(DASH).await;
}

#[tokio::test]
async fn an_agent_has_what_a_terminal_has_in_nushell() {
    holds(NU).await;
}
