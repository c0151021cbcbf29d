//! What keeps sessions from being launched though nothing is broken: a login shell that hangs, a drain that was forgotten, an agent that
//! nobody has signed in.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use agentd_api::doctor::{Check, Finding, shell_word};
use agentd_api::prerequisite::Outcome;
use agentd_api::reason::AUTHENTICATION_REQUIRED;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, SessionView};
use agentd_api::snapshot::{LoginSnapshotView, SnapshotState};

use crate::drain::Drain;
use crate::env::sources::HomeDiffers;
use crate::message::chain;
use crate::world::World;

/// How long the login shell may take here. A launch has more patience, and no pleasure in it.
const TIME: Duration = Duration::from_secs(10);

/// Runs the login shell as a launch would, and keeps nothing of it.
pub(super) async fn login_shell(world: &World) -> Check {
    let time = TIME.min(world.config.environment.deadline.0);
    let attempt = world.snapshots.attempt(Instant::now() + time).await.map_err(|error| {
        if error.is_timeout() {
            format!("the login shell does not give its environment within {} s", time.as_secs_f32())
        } else {
            chain(&error)
        }
    });
    let known = world.snapshots.list().await.login_shells.into_iter().next();
    shell(attempt, known.as_ref())
}

fn shell(attempt: Result<(), String>, known: Option<&LoginSnapshotView>) -> Check {
    const NAME: &str = "login shell";
    let Err(why) = attempt else { return Check::new(NAME, Outcome::Pass, "it gives its environment") };
    let kept = known.filter(|view| view.captured.is_some() && view.state != SnapshotState::Empty);
    let (outcome, consequence) = match kept {
        Some(_) => (Outcome::Warn, "sessions begin with what it gave before"),
        None => (Outcome::Fail, "no session can be launched"),
    };
    let program = known.map_or(Path::new("/bin/sh"), |view| &view.shell);
    let trace =
        format!("timeout 10 {} -l -i -x -c exit </dev/null 2>&1 | tail -n 5", shell_word(&program.to_string_lossy()));
    let finding = Finding::new(
        outcome,
        format!("{why}; {consequence}"),
        "the first command shows where it stops; correct that start-up file, then have the environment taken again",
    );
    Check::of(NAME, &[finding.run(trace).run("agentctl snapshot refresh")], "")
}

/// Whether agentd was started in another home than its sessions are given.
pub(super) fn home(world: &World) -> Check {
    const NAME: &str = "home";
    match HomeDiffers::find(world.config.environment.home.as_deref()) {
        None => Check::new(NAME, Outcome::Pass, "sessions have the home that agentd has"),
        Some(differs) => Check::new(NAME, Outcome::Warn, differs.to_string())
            .fact("code", HomeDiffers::CODE)
            .remedy("name the home that is meant in environment.home"),
    }
}

/// Whether somebody drained this agentd and did not take it back.
pub(super) fn draining(drain: &Drain) -> Check {
    let Some(draining) = drain.now() else { return Check::new("draining", Outcome::Pass, "sessions may be launched") };
    let summary = format!("drained since {:.0} by {}: no session is launched", draining.since, draining.by);
    Check::new("draining", Outcome::Warn, summary)
        .remedy("once the work that it was drained for is done")
        .run("agentctl drain --undo")
}

/// Whether each agent was refused for want of a login when it was last asked for a conversation. A session that has not come so far says
/// nothing about it.
pub(super) fn sign_in(sessions: &[SessionView]) -> Check {
    let mut last: BTreeMap<String, (&SessionView, &Condition)> = BTreeMap::new();
    for view in sessions {
        let command = view.spec.command.as_ref().and_then(|command| command.first().cloned());
        let Some(agent) = command.or_else(|| view.spec.agent.as_ref().map(ToString::to_string)) else { continue };
        let asked = view.status.conditions.iter().find(|condition| {
            condition.kind == ConditionType::ConversationReady && condition.status != ConditionStatus::Unknown
        });
        let Some(asked) = asked else { continue };
        let newer = |known: &Condition| known.last_transition_time < asked.last_transition_time;
        if last.get(&agent).is_none_or(|(_, known)| newer(known)) {
            last.insert(agent, (view, asked));
        }
    }
    let mut findings = Vec::new();
    for (agent, (view, asked)) in last {
        if asked.status != ConditionStatus::False || asked.reason != AUTHENTICATION_REQUIRED {
            continue;
        }
        let summary = format!("{agent} is not signed in (session {}): {}", view.id, asked.message);
        let remedy = "sign in as it says, then go on with the session";
        findings.push(Finding::new(Outcome::Warn, summary, remedy).run(format!("agentctl resume {}", view.id)));
    }
    Check::of("sign-in", &findings, "no agent was refused for want of a login")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_shell_that_fails_is_no_end_where_something_is_known_of_it_and_the_remedy_names_it() {
        assert_eq!(shell(Ok(()), None).outcome, Outcome::Pass);
        let check = shell(Err("it hangs".into()), None);
        assert!(check.outcome == Outcome::Fail && check.summary.starts_with("it hangs"), "{check:?}");
        let known: LoginSnapshotView = serde_json::from_value(serde_json::json!({
            "shell": "/opt/my shell", "home": "/home/kim", "state": "stale", "captured": "2026-01-01T00:00:00Z", "variables": 1,
            "functions": 0, "files": [], "complete": true, "hits": 0, "captures": 1, "failures": 1,
        }))
        .unwrap();
        let check = shell(Err("it hangs".into()), Some(&known));
        assert_eq!(check.outcome, Outcome::Warn);
        assert!(check.run[0].line.contains("'/opt/my shell' -l"), "{check:?}");
    }

    #[test]
    fn a_session_that_has_not_asked_for_a_conversation_says_nothing_of_the_login() {
        let session = |id: &str, minute: u8, conditions: &[(&str, &str)]| -> SessionView {
            let time = format!("2026-01-01T00:{minute:02}:00Z");
            let condition = |(status, reason): &(&str, &str)| {
                serde_json::json!({
                    "type": "ConversationReady", "status": status, "reason": reason, "message": "it says why",
                    "observed_generation": 1, "last_transition_time": time,
                })
            };
            let conditions: Vec<_> = conditions.iter().map(condition).collect();
            serde_json::from_value(serde_json::json!({
                "id": id, "generation": 1, "created": time, "spec": { "directory": "/work", "agent": "a" },
                "status": {
                    "phase": "starting", "observed_generation": 1, "conditions": conditions, "launches": 1,
                    "last_seq": 1, "updated": time,
                },
            }))
            .unwrap()
        };
        let refused = session("refused", 1, &[("False", AUTHENTICATION_REQUIRED)]);
        let check = |later: &SessionView| sign_in(&[refused.clone(), later.clone()]);
        for later in [session("begun", 2, &[]), session("again", 2, &[("Unknown", "Starting")])] {
            let check = check(&later);
            assert!(check.outcome == Outcome::Warn && check.summary.contains("refused"), "{check:?}");
        }
        for later in [session("opened", 2, &[("True", "NewConversation")]), session("lost", 2, &[("False", "Other")])] {
            assert_eq!(check(&later).outcome, Outcome::Pass);
        }
        assert_eq!(check(&session("earlier", 0, &[("True", "NewConversation")])).outcome, Outcome::Warn);
    }

    #[test]
    fn a_drain_is_told_with_what_undoes_it() {
        let drain = Drain::default();
        assert_eq!(draining(&drain).outcome, Outcome::Pass);
        drain.begin(agentd_api::prerequisite::Requester { uid: 7, pid: None, program: None, session: None });
        let check = draining(&drain);
        assert!(check.outcome == Outcome::Warn && check.summary.contains('7'), "{check:?}");
        assert_eq!(check.run[0].line, "agentctl drain --undo");
    }
}
