//! Checks obstacles to launches: a login shell that hangs, a forgotten drain, and an agent without a login.

use std::path::Path;
use std::time::{Duration, Instant};

use agentd_api::doctor::{Check, Finding, shell_word};
use agentd_api::prerequisite::Outcome;
use agentd_api::session::SessionView;
use agentd_api::snapshot::{LoginSnapshotView, SnapshotState};

use agentd_api::chain;
use agentd_environment::sources::HomeDiffers;
use agentd_session::draining::DrainState;
use agentd_session::generation::Generation;
use agentd_session::refused_logins;

/// Time limit of the login shell in this check, shorter than a launch's limit.
const TIME: Duration = Duration::from_secs(10);

/// Runs the login shell like a launch, and discards the environment.
pub(super) async fn login_shell(generation: &Generation) -> Check {
    let time = TIME.min(generation.config.environment.deadline.0);
    let attempt = generation.snapshots.attempt(Instant::now() + time).await.map_err(|error| {
        if error.is_timeout() {
            format!("the login shell did not print its environment within {} s", time.as_secs_f32())
        } else {
            chain(&error)
        }
    });
    let known = generation.snapshots.list().await.login_shells.into_iter().next();
    shell(attempt, known.as_ref())
}

fn shell(attempt: Result<(), String>, known: Option<&LoginSnapshotView>) -> Check {
    const NAME: &str = "login shell";
    let Err(why) = attempt else { return Check::new(NAME, Outcome::Pass, "the login shell prints its environment") };
    let kept = known.filter(|view| view.captured.is_some() && view.state != SnapshotState::Empty);
    let (outcome, consequence) = match kept {
        Some(_) => (Outcome::Warn, "sessions start with the last captured environment"),
        None => (Outcome::Fail, "no session can be launched"),
    };
    let program = known.map_or(Path::new("/bin/sh"), |view| &view.shell);
    let trace =
        format!("timeout 10 {} -l -i -x -c exit </dev/null 2>&1 | tail -n 5", shell_word(&program.to_string_lossy()));
    let finding = Finding::new(
        outcome,
        format!("{why}; {consequence}"),
        "the first command shows where the shell stops; correct that start-up file, then capture the environment again",
    );
    Check::of(NAME, &[finding.run(trace).run("agentctl snapshot refresh")], "")
}

/// Checks whether agentd's own home differs from its sessions' home.
pub(super) fn home(generation: &Generation) -> Check {
    const NAME: &str = "home";
    match HomeDiffers::find(generation.config.environment.home.as_deref()) {
        None => Check::new(NAME, Outcome::Pass, "sessions have the same home as agentd"),
        Some(differs) => Check::new(NAME, Outcome::Warn, differs.to_string())
            .fact("code", HomeDiffers::CODE)
            .remedy("set the intended home in environment.home"),
    }
}

/// Checks whether this agentd is drained.
pub(super) fn draining(drain: &DrainState) -> Check {
    let Some(draining) = drain.now() else { return Check::new("draining", Outcome::Pass, "sessions can be launched") };
    let summary = format!("drained since {:.0} by {}: no session is launched", draining.since, draining.by);
    Check::new("draining", Outcome::Warn, summary)
        .remedy("once the reason for the drain is gone")
        .run("agentctl drain --undo")
}

/// Checks whether an agent lacks a login, as its sessions show it.
pub(super) fn login(sessions: &[SessionView]) -> Check {
    let refused = refused_logins(sessions).into_iter().map(|(agent, (view, condition))| {
        let summary = format!("{agent} is not logged in (session {}): {}", view.id, condition.message);
        let remedy = "log in as the message describes, then resume the session";
        let stop = if view.status.phase.is_active() { format!("agentctl stop {} && ", view.id) } else { String::new() };
        Finding::new(Outcome::Warn, summary, remedy).run(format!("{stop}agentctl resume {}", view.id))
    });
    Check::of("login", &refused.collect::<Vec<_>>(), "no agent was refused for lack of a login")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_login_shell_only_warns_if_an_environment_is_stored_and_the_remedy_names_the_shell() {
        assert_eq!(shell(Ok(()), None).outcome, Outcome::Pass);
        let check = shell(Err("it hangs".into()), None);
        assert!(check.outcome == Outcome::Fail && check.summary.starts_with("it hangs"), "{check:?}");
        let known: LoginSnapshotView = serde_json::from_value(serde_json::json!({
            "shell": "/opt/my shell", "home": "/home/kim", "state": "stale",
            "captured": "2026-01-01T00:00:00Z", "variables": 1,
            "functions": 0, "files": [], "complete": true, "hits": 0, "captures": 1, "failures": 1,
        }))
        .unwrap();
        let check = shell(Err("it hangs".into()), Some(&known));
        assert_eq!(check.outcome, Outcome::Warn);
        assert!(check.run[0].line.contains("'/opt/my shell' -l"), "{check:?}");
    }

    #[test]
    fn a_drain_is_reported_with_the_command_that_undoes_it() {
        let drain = DrainState::default();
        assert_eq!(draining(&drain).outcome, Outcome::Pass);
        drain.begin(agentd_api::prerequisite::Requester {
            uid: 7,
            pid: None,
            program: None,
            session: None,
            token: None,
        });
        let check = draining(&drain);
        assert!(check.outcome == Outcome::Warn && check.summary.contains('7'), "{check:?}");
        assert_eq!(check.run[0].line, "agentctl drain --undo");
    }
}
