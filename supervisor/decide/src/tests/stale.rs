//! Tests staleness in the model world: questions of agentd itself, refusals, and the agent's own changes.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::{AnsweredBy, Body, Cause};
use agentd_api::facts::{FactsMoment, FactsObserved, Repository, RepositoryFacts, SessionFacts};
use agentd_api::session::RestartPolicy;
use agentd_api::session::{
    ConditionStatus, ConditionType, PermissionAnswer, PermissionOrigin, PermissionPolicy, Phase,
};
use agentd_api::staleness::{StaleKind, StalePolicy};
use agentd_api::{Code, Event};
use jiff::Timestamp;

use super::super::rules::{Command, LaunchTerms, Refusal};
use super::super::staleness::{StalenessSettings, question, reread};
use super::super::state::Run;
use super::super::waits::{Wait, waits};
use super::{Act, World, opened_world};

/// Returns the facts of a repository on this branch.
pub(super) fn facts(branch: u8) -> SessionFacts {
    SessionFacts {
        read_at: Timestamp::UNIX_EPOCH,
        directory: None,
        repository: Repository::Found(RepositoryFacts {
            root: "/work".into(),
            branch: Some(format!("b{branch}")),
            head: Some("abc".to_owned()),
            remotes: std::collections::BTreeMap::new(),
            dirty: Some(false),
        }),
    }
}

pub(super) fn observed(launch: u64, branch: u8) -> FactsObserved {
    FactsObserved { launch, moment: FactsMoment::Launch, facts: Arc::new(facts(branch)), scripts: None }
}

pub(super) fn settings(policy: StalePolicy) -> StalenessSettings {
    StalenessSettings { branch: policy, agent_version: policy, ..StalenessSettings::IGNORE }
}

/// Returns the first start of an agent, or opened conversation, although a question of agentd was open or refused.
pub(super) fn started_over_a_question(journal: &[Event]) -> Option<u64> {
    let (mut open, mut refused) = (None, false);
    for event in journal {
        match &event.body {
            Body::LaunchStarted(_) => (open, refused) = (None, false),
            Body::PermissionRequested(asked) if asked.request.origin == PermissionOrigin::Agentd => {
                open = Some(asked.request.id.clone());
            }
            Body::PermissionResolved(answer) if open.as_ref() == Some(&answer.permission) => {
                refused = answer.outcome != agentd_api::event::PermissionOutcome::Selected("continue".to_owned());
                open = None;
            }
            Body::AgentStarted(_) | Body::ConversationOpened(_) if refused || open.is_some() => return Some(event.seq),
            _ => {}
        }
    }
    None
}

/// Returns a stopped session whose agent has worked on branch 0.
fn worked(policy: StalePolicy) -> World {
    let mut world = opened_world(PermissionPolicy::Allow, RestartPolicy::OnFailure);
    world.staleness = settings(policy);
    for act in [Act::Prompt, Act::AgentAnswers { well: true }, Act::FactsAreRead, Act::Stop] {
        world.act(&act);
    }
    assert_eq!(world.phase(), Phase::Stopped);
    world
}

fn resume(world: &mut World) {
    world.ask(Command::Resume { fresh: false, terms: LaunchTerms::default() }).unwrap();
    world.settle();
}

/// Resumes the session on another branch, up to agentd's question.
fn asked() -> World {
    let mut world = worked(StalePolicy::Ask);
    world.act(&Act::BranchChanges { branch: 1 });
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    let open = question(&world.state).expect("agentd asks");
    assert!(open.request.title.contains("\"b1\"") && open.request.title.contains("\"b0\""), "{open:?}");
    assert!(world.agent.is_none());
    assert_eq!(world.phase(), Phase::Waiting);
    let attention = world.state.attention(1, world.phase()).expect("only a person answers");
    assert_eq!(attention.reason, "SessionStale");
    world
}

fn answer(world: &mut World, answer: PermissionAnswer) -> Result<(), Refusal> {
    let permission = world.state.permissions[0].request.id.clone();
    let answered = world.ask(Command::Answer { permission, answer, cause: Cause::default() });
    world.settle();
    answered
}

fn branch_condition(world: &World) -> (ConditionStatus, String) {
    let condition = world.state.condition(ConditionType::BranchUnchanged).expect("it is recorded");
    (condition.status, condition.message.clone())
}

impl World {
    /// Records the facts after the agent's work, if they are due and no turn runs.
    pub(super) fn read_facts(&mut self) {
        let in_turn = matches!(&self.state.run, Run::Running(running) if running.turn.is_some());
        if let Some(due) = self.state.facts.due.filter(|_| !in_turn && !self.down)
            && let Some(batch) = reread(&self.state, due.moment, facts(self.branch))
        {
            self.write(batch);
        }
    }
}

#[test]
fn an_accepted_question_lets_the_launch_begin_again_and_is_not_asked_again_until_the_agent_has_worked() {
    let mut world = asked();
    answer(&mut world, PermissionAnswer::Allow).unwrap();
    assert_eq!(world.phase(), Phase::Preparing);
    world.act(&Act::AgentStarts { can_load: true });
    assert!(world.agent.is_some() && question(&world.state).is_none());
    assert_eq!(branch_condition(&world).0, ConditionStatus::False);

    // No turn has run, so the branch is still another one than that of the agent's last work.
    world.act(&Act::Stop);
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    assert!(world.agent.is_some(), "it was accepted");
    world.act(&Act::Stop);
    world.act(&Act::BranchChanges { branch: 2 });
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    assert!(question(&world.state).is_some(), "the third branch was not accepted");
}

#[test]
fn a_refused_question_fails_the_launch_and_the_agent_is_not_restarted() {
    let mut world = asked();
    answer(&mut world, PermissionAnswer::Deny).unwrap();
    assert_eq!(world.phase(), Phase::Failed, "{:?}", world.state.crashes);
    let (status, message) = branch_condition(&world);
    assert_eq!(status, ConditionStatus::False);
    assert!(message.contains("a client decided not to continue") && message.contains("agentctl resume"), "{message}");
    assert!(waits(&world.state, &world.facts()).is_empty());
    // A later launch asks again.
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    assert!(question(&world.state).is_some());
}

#[test]
fn a_question_without_an_answer_fails_the_launch_at_its_limit() {
    let mut world = asked();
    let open = waits(&world.state, &world.facts());
    assert!(matches!(open[..], [Wait::Permission { .. }]), "{open:?}");
    world.act(&Act::TimePasses { which: 0 });
    assert_eq!(world.phase(), Phase::Failed);
    let by = world.journal.iter().find_map(|event| match &event.body {
        Body::PermissionResolved(resolved) => Some(resolved.by),
        _ => None,
    });
    assert_eq!(by, Some(AnsweredBy::Expiry));
    assert!(branch_condition(&world).1.contains("limits.permission"), "{:?}", branch_condition(&world));
}

#[test]
fn the_second_answer_to_a_question_is_refused_and_so_is_one_after_a_stop() {
    let mut world = asked();
    let permission = world.state.permissions[0].request.id.clone();
    answer(&mut world, PermissionAnswer::Allow).unwrap();
    let again = Command::Answer { permission, answer: PermissionAnswer::Deny, cause: Cause::default() };
    assert_eq!(world.ask(again).unwrap_err().problem().code, Code::PermissionAnswered);

    let mut world = asked();
    world.ask(Command::Stop { reason: "x".into(), cause: Cause::default() }).unwrap();
    assert_eq!(answer(&mut world, PermissionAnswer::Allow).unwrap_err().problem().code, Code::PermissionAnswered);
    world.come_to_the_end();
    assert_eq!(world.phase(), Phase::Stopped);
    assert!(world.state.permissions.is_empty());
}

#[test]
fn the_agents_own_change_makes_nothing_stale_and_a_change_after_it_does() {
    let mut world = opened_world(PermissionPolicy::Allow, RestartPolicy::Never);
    world.staleness = settings(StalePolicy::Refuse);
    world.act(&Act::Prompt);
    world.act(&Act::BranchChanges { branch: 1 });
    world.act(&Act::AgentAnswers { well: true });
    world.act(&Act::FactsAreRead);
    world.act(&Act::Stop);
    world.act(&Act::FactsAreRead);
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    assert!(world.agent.is_some(), "{:?}", world.state.staleness);

    world.act(&Act::Stop);
    world.act(&Act::BranchChanges { branch: 2 });
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    assert_eq!(world.phase(), Phase::Failed);
    let (_, message) = branch_condition(&world);
    assert!(message.contains("\"b2\"") && message.contains("staleness.branch"), "{message}");
    world.act(&Act::BranchChanges { branch: 1 });
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    assert!(world.agent.is_some(), "the earlier branch is back");
}

#[test]
fn another_version_of_the_agent_is_found_before_the_conversation_is_opened() {
    for policy in StalePolicy::ALL {
        let mut world = worked(*policy);
        world.version = 2;
        resume(&mut world);
        world.act(&Act::AgentStarts { can_load: true });
        world.act(&Act::AgentAnswers { well: true });
        let condition = world.state.condition(ConditionType::AgentUnchanged).map(|condition| condition.status);
        let expected = (*policy != StalePolicy::Ignore).then_some(ConditionStatus::False);
        assert_eq!(condition, expected, "{policy:?}");
        let phase = match policy {
            StalePolicy::Ask => Phase::Waiting,
            StalePolicy::Refuse => Phase::Failed,
            _ => Phase::Starting,
        };
        assert_eq!(world.phase(), phase, "{policy:?}");
        if *policy == StalePolicy::Ask {
            assert!(world.agent.as_ref().unwrap().asked.is_empty(), "the conversation is being opened");
            answer(&mut world, PermissionAnswer::Allow).unwrap();
            world.act(&Act::AgentAnswers { well: true });
            assert_eq!(world.phase(), Phase::Idle);
        }
        let kinds: Vec<StaleKind> = world.state.staleness.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds.is_empty(), *policy == StalePolicy::Ignore, "{kinds:?}");
    }
}

#[test]
fn a_refusing_answer_about_the_version_ends_the_agent_without_a_restart() {
    let mut world = worked(StalePolicy::Ask);
    world.version = 2;
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    world.act(&Act::AgentAnswers { well: true });
    answer(&mut world, PermissionAnswer::Deny).unwrap();
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.agent.is_none(), "it was ended");
    let opened = world.journal.iter().filter(|event| matches!(event.body, Body::ConversationOpened(_))).count();
    assert_eq!(opened, 1);
}

#[test]
fn a_question_survives_the_daemon_and_an_answer_of_the_next_counts() {
    let mut world = asked();
    let open = world.state.permissions.clone();
    world.act(&Act::DaemonDies { checkpoint: 3 });
    assert_eq!((&world.state.permissions, world.phase()), (&open, Phase::Waiting));
    answer(&mut world, PermissionAnswer::Allow).unwrap();
    world.act(&Act::AgentStarts { can_load: true });
    assert!(world.agent.is_some());
}

#[test]
fn the_limit_of_unused_counts_from_the_last_use() {
    let mut world = worked(StalePolicy::Ignore);
    world.staleness =
        StalenessSettings { unused: StalePolicy::Refuse, unused_after: Duration::ZERO, ..world.staleness };
    resume(&mut world);
    world.act(&Act::AgentStarts { can_load: true });
    assert!(world.agent.is_some(), "all records have one time");
}
