//! The rules of a session, against a model: an agent that answers when it likes, clients that ask what they like, a daemon that
//! is killed at any moment and goes on from the journal.

use std::collections::BTreeMap;

use agentd_api::event::{AgentExited, AgentStarted, Body, LaunchReason, LaunchStarted, SessionCreated, TurnEnded};
use agentd_api::session::{PermissionAnswer, PermissionPolicy, Phase, RestartPolicy, ResumeNote, SessionSpec};
use agentd_api::{Code, Event};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::batch::Batch;
use super::next::{Facts, Step, next};
use super::rules::{Bounds, Command, LaunchTerms, Refusal, decide};
use super::state::State;
use super::verdict::Needed;
use super::waits::{over, waits};

const BOUNDS: Bounds = Bounds { queued_turns: 3 };

/// A daemon, its journal and its agent, without any of the three.
struct World {
    journal: Vec<Event>,
    state: State,
    spec: SessionSpec,
    restart: RestartPolicy,
    needed: Needed,
    agent: Option<Agent>,
    /// What the agents remember between launches.
    conversations: u64,
}

/// An agent: what it was asked and has not answered, and what it asked.
struct Agent {
    can_load: bool,
    asked: Vec<(Value, String)>,
    questions: u64,
    unanswered: Vec<u64>,
    dead: bool,
}

impl World {
    fn new(policy: PermissionPolicy, restart: RestartPolicy) -> Self {
        let spec = SessionSpec { permissions: policy, ..SessionSpec::new("/work") };
        let state = State::new(Timestamp::UNIX_EPOCH);
        let needed = Needed::new();
        let mut world = Self { journal: Vec::new(), state, spec, restart, needed, agent: None, conversations: 0 };
        let created = SessionCreated { spec: world.spec.clone(), key: None };
        let started = LaunchStarted::new(1, LaunchReason::Create, false);
        world.write(Batch::of(Body::SessionCreated(created)).record(Body::LaunchStarted(started)));
        world
    }

    fn record(&mut self, body: Body) {
        let seq = self.journal.len() as u64 + 1;
        let event = Event { seq, time: Timestamp::UNIX_EPOCH, body };
        self.state.apply(&event);
        self.journal.push(event);
    }

    fn write(&mut self, batch: Batch) {
        for entry in batch.entries {
            if entry.send {
                let Body::AgentIn(line) = &entry.body else { panic!("only lines are sent: {entry:?}") };
                let line: Value = serde_json::from_str(line.get()).unwrap();
                self.deliver(&line);
            }
            self.record(entry.body);
        }
    }

    /// The agent hears a line.
    fn deliver(&mut self, line: &Value) {
        let Some(agent) = self.agent.as_mut().filter(|agent| !agent.dead) else { return };
        match (line.get("method").and_then(Value::as_str), line.get("id")) {
            (Some(method), Some(id)) => agent.asked.push((id.clone(), method.to_owned())),
            (None, Some(id)) => {
                let id = id.as_u64().unwrap();
                let before = agent.unanswered.len();
                agent.unanswered.retain(|open| *open != id);
                assert_eq!(agent.unanswered.len() + 1, before, "question {id} was answered twice, or never asked");
            }
            _ => {}
        }
    }

    fn says(&mut self, line: &Value) {
        self.record(Body::AgentOut(RawValue::from_string(line.to_string()).unwrap()));
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            spec: &self.spec,
            generation: 1,
            now: Timestamp::UNIX_EPOCH,
            replay_quiet: std::time::Duration::from_millis(1),
            agent: "a",
            rules: &[],
            restart: self.restart,
            note: ResumeNote::Brief,
            needed: &self.needed,
        }
    }

    /// Something is waited for no longer.
    fn time_passes(&mut self, which: usize) {
        let waits = waits(&self.state, &self.facts());
        let Some(wait) = waits.get(which % waits.len().max(1)) else { return };
        if let Some(batch) = over(&self.state, wait, std::time::Duration::from_secs(1), &self.facts()) {
            self.write(batch);
        }
    }

    /// The driver's loop, until it has nothing to do or waits for the world.
    fn settle(&mut self) {
        for _ in 0..200 {
            match next(&self.state, &self.facts()) {
                Some(Step::Append(batch)) => self.write(batch),
                Some(Step::StopAgent) => self.agent_ends(true),
                Some(Step::BringUp { .. } | Step::AbandonBringUp { .. }) | None => return,
            }
        }
        panic!("the rules go in a circle: {:?}", self.journal.iter().rev().take(5).collect::<Vec<_>>());
    }

    /// The bring-up comes to its end.
    fn start_agent(&mut self, can_load: bool) {
        let facts_say_so = matches!(self.state.phase(), Phase::Preparing);
        if !facts_say_so {
            return;
        }
        let launch = self.state.launches;
        self.agent = Some(Agent { can_load, asked: Vec::new(), questions: 100, unanswered: Vec::new(), dead: false });
        self.record(Body::AgentStarted(AgentStarted { launch, pid: 7, start_time: 1, command: vec!["a".into()] }));
    }

    fn agent_ends(&mut self, requested: bool) {
        if self.agent.take().is_some() {
            let launch = self.state.launches;
            let exited = AgentExited {
                launch,
                status: Some(1),
                signal: None,
                exec_error: None,
                killed: 0,
                requested,
                reason: None,
                exceeded: None,
            };
            self.record(Body::AgentExited(exited));
        }
    }

    /// The agent answers the oldest of what it was asked.
    fn agent_answers(&mut self, well: bool) {
        let Some(agent) = self.agent.as_mut() else { return };
        if agent.asked.is_empty() {
            return;
        }
        let (id, method) = agent.asked.remove(0);
        let result = match method.as_str() {
            "initialize" => json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": agent.can_load}}),
            "session/new" => {
                self.conversations += 1;
                json!({"sessionId": format!("c{}", self.conversations)})
            }
            "session/prompt" => json!({"stopReason": "end_turn"}),
            _ => Value::Null,
        };
        let line = if well {
            json!({"jsonrpc": "2.0", "id": id, "result": result})
        } else {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "no"}})
        };
        self.says(&line);
    }

    fn agent_asks(&mut self, permission: bool) {
        let Some(agent) = self.agent.as_mut() else { return };
        agent.questions += 1;
        let id = agent.questions;
        agent.unanswered.push(id);
        let line = if permission {
            json!({"id": id, "method": "session/request_permission", "params": {"sessionId": "c", "toolCall":
                {"toolCallId": "x", "title": "rm"}, "options": [
                {"optionId": "yes", "name": "Yes", "kind": "allow_once"}, {"optionId": "no", "name": "No", "kind": "reject_once"}]}})
        } else {
            json!({"id": id, "method": "moon/phase"})
        };
        self.says(&line);
    }

    fn ask(&mut self, command: Command) -> Result<(), Refusal> {
        let decision = decide(&self.state, command, BOUNDS)?;
        self.write(decision.batch);
        Ok(())
    }

    /// The daemon is killed: what it knew is gone, and the journal is read from a checkpoint on.
    fn daemon_dies(&mut self, checkpoint: usize) {
        let mut state = State::new(Timestamp::UNIX_EPOCH);
        for (n, event) in self.journal.iter().enumerate() {
            if n == checkpoint {
                state = serde_json::from_value(serde_json::to_value(&state).unwrap()).unwrap();
            }
            state.apply(event);
        }
        assert_eq!(state, self.state, "live is not recovery");
        self.state = state;
    }
}

#[derive(Debug, Clone)]
enum Act {
    Prompt,
    Cancel,
    Stop,
    Resume { fresh: bool },
    Allow,
    AgentStarts { can_load: bool },
    AgentAnswers { well: bool },
    AgentAsks { permission: bool },
    AgentDies,
    DaemonDies { checkpoint: usize },
    TimePasses { which: usize },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Prompt),
        1 => Just(Act::Cancel),
        1 => Just(Act::Stop),
        2 => any::<bool>().prop_map(|fresh| Act::Resume { fresh }),
        1 => Just(Act::Allow),
        4 => any::<bool>().prop_map(|can_load| Act::AgentStarts { can_load }),
        8 => prop::bool::weighted(0.9).prop_map(|well| Act::AgentAnswers { well }),
        2 => any::<bool>().prop_map(|permission| Act::AgentAsks { permission }),
        1 => Just(Act::AgentDies),
        2 => (0..4_usize).prop_map(|which| Act::TimePasses { which }),
        2 => (0..80_usize).prop_map(|checkpoint| Act::DaemonDies { checkpoint }),
    ]
}

fn policy() -> impl Strategy<Value = PermissionPolicy> {
    prop_oneof![Just(PermissionPolicy::Ask), Just(PermissionPolicy::Allow), Just(PermissionPolicy::Deny)]
}

proptest! {
    #[test]
    fn every_turn_ends_once_and_every_question_is_answered_once(
        policy in policy(),
        restart in prop_oneof![Just(RestartPolicy::Never), Just(RestartPolicy::OnFailure)],
        acts in prop::collection::vec(act(), 0..60),
    ) {
        let mut world = World::new(policy, restart);
        for act in acts {
            match act {
                Act::Prompt => drop(world.ask(Command::Prompt { text: "hi".into(), key: None })),
                Act::Cancel => drop(world.ask(Command::Cancel { turn: None })),
                Act::Stop => drop(world.ask(Command::Stop { reason: "test".into() })),
                Act::Resume { fresh } => drop(world.ask(Command::Resume { fresh, terms: LaunchTerms::default() })),
                Act::Allow => {
                    let first = world.state.permissions.first().map(|open| open.request.id.clone());
                    if let Some(permission) = first {
                        world.ask(Command::Answer { permission, answer: PermissionAnswer::Allow }).unwrap();
                    }
                }
                Act::AgentStarts { can_load } => world.start_agent(can_load),
                Act::AgentAnswers { well } => world.agent_answers(well),
                Act::AgentAsks { permission } => world.agent_asks(permission),
                Act::AgentDies => world.agent_ends(false),
                Act::DaemonDies { checkpoint } => world.daemon_dies(checkpoint),
                Act::TimePasses { which } => world.time_passes(which),
            }
            world.settle();
        }
        // The end of everything: whatever is open then must be closed.
        let _ = world.ask(Command::Stop { reason: "the end".into() });
        world.settle();
        if matches!(world.state.phase(), Phase::Stopping) {
            // A launch that never got its agent.
            let launch = world.state.launches;
            let failed = agentd_api::event::LaunchFailed { launch, reason: "Stopped".into(), message: String::new() };
            world.record(Body::LaunchFailed(failed));
            world.settle();
        }
        prop_assert!(!world.state.phase().is_active(), "{:?}", world.state.phase());

        let (mut queued, mut started, mut ended) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut requested, mut resolved) = (BTreeMap::new(), BTreeMap::new());
        for event in &world.journal {
            match &event.body {
                Body::TurnQueued(turn) => *queued.entry(turn.turn.clone()).or_insert(0) += 1,
                Body::TurnStarted(turn) => *started.entry(turn.turn.clone()).or_insert(0) += 1,
                Body::TurnEnded(TurnEnded { turn, .. }) => *ended.entry(turn.clone()).or_insert(0) += 1,
                Body::PermissionRequested(request) => *requested.entry(request.request.id.clone()).or_insert(0) += 1,
                Body::PermissionResolved(answer) => *resolved.entry(answer.permission.clone()).or_insert(0) += 1,
                _ => {}
            }
        }
        prop_assert!(started.values().all(|&times| times == 1), "a turn was started twice: {started:?}");
        prop_assert!(queued.values().chain(ended.values()).all(|&times| times == 1));
        prop_assert!(ended.keys().all(|turn| queued.contains_key(turn)));
        prop_assert_eq!(&requested, &resolved);
        prop_assert!(notes_are_told_after_a_resume(&world.journal));
        // What was queued and never ended waits still, for the next resume of a session that failed.
        let waiting = world.state.queue.len();
        prop_assert_eq!(queued.len(), ended.len() + waiting);
    }
}

/// A note stands only in front of the first turn of a launch that was resumed after there had been a turn, and there it stands.
fn notes_are_told_after_a_resume(journal: &[Event]) -> bool {
    let (mut worked, mut due) = (false, false);
    journal.iter().all(|event| match &event.body {
        Body::LaunchStarted(started) => {
            due |= worked && started.reason == LaunchReason::Resume;
            true
        }
        Body::TurnStarted(turn) => {
            worked = true;
            // After a restart only a conversation that was lost is told.
            let right = turn.note.is_some() || !due;
            due = false;
            right
        }
        _ => true,
    })
}

fn ready(policy: PermissionPolicy) -> World {
    let mut world = World::new(policy, RestartPolicy::Never);
    world.start_agent(true);
    world.settle();
    for _ in 0..2 {
        world.agent_answers(true);
        world.settle();
    }
    assert_eq!(world.state.phase(), Phase::Idle);
    world
}

#[test]
fn an_agent_that_cannot_restore_a_conversation_fails_the_launch_and_is_not_given_a_new_one() {
    let mut world = ready(PermissionPolicy::Ask);
    world.agent_ends(false);
    world.settle();
    world.ask(Command::Resume { fresh: false, terms: LaunchTerms::default() }).unwrap();
    world.start_agent(true);
    world.settle();
    world.agent_answers(true);
    world.settle();
    world.agent_answers(false);
    world.settle();
    assert_eq!(world.state.phase(), Phase::Failed);
    let lost = world
        .journal
        .iter()
        .any(|event| matches!(&event.body, Body::Condition(condition) if condition.reason == "ConversationLost"));
    assert!(lost, "no condition says so");
    assert_eq!(world.state.conversation.as_deref(), Some("c1"));
    // Asked for, a new one is begun.
    world.ask(Command::Resume { fresh: true, terms: LaunchTerms::default() }).unwrap();
    world.start_agent(true);
    world.settle();
    for _ in 0..2 {
        world.agent_answers(true);
        world.settle();
    }
    assert_eq!(world.state.conversation.as_deref(), Some("c2"));
}

#[test]
fn an_agent_that_can_neither_load_nor_resume_begins_anew_and_a_condition_says_what_is_lost() {
    let mut world = ready(PermissionPolicy::Ask);
    world.agent_ends(false);
    world.settle();
    world.ask(Command::Resume { fresh: false, terms: LaunchTerms::default() }).unwrap();
    world.start_agent(false);
    world.settle();
    for _ in 0..2 {
        world.agent_answers(true);
        world.settle();
    }
    assert_eq!(world.state.phase(), Phase::Idle);
    let condition = world.state.condition(agentd_api::session::ConditionType::ConversationReady).unwrap();
    assert_eq!(condition.reason, "HistoryLost");
}

#[test]
fn a_cancelled_turns_questions_are_answered_cancelled_even_those_that_come_later() {
    let mut world = ready(PermissionPolicy::Ask);
    world.ask(Command::Prompt { text: "go".into(), key: None }).unwrap();
    world.settle();
    world.agent_asks(true);
    world.settle();
    assert_eq!(world.state.permissions.len(), 1);
    world.ask(Command::Cancel { turn: None }).unwrap();
    world.settle();
    world.agent_asks(true);
    world.settle();
    assert!(world.state.permissions.is_empty());
    assert!(world.agent.as_ref().unwrap().unanswered.is_empty());
}

#[test]
fn each_refusal_has_a_code_and_says_what_can_be_done() {
    let mut world = ready(PermissionPolicy::Ask);
    for _ in 0..4 {
        world.ask(Command::Prompt { text: "go".into(), key: None }).unwrap();
        world.settle();
    }
    let problem = |world: &mut World, command| world.ask(command).unwrap_err().problem();
    let answer = |n: &str| Command::Answer { permission: n.parse().unwrap(), answer: PermissionAnswer::Allow };
    world.agent_asks(true);
    world.settle();
    world.ask(answer("p1")).unwrap();
    world.settle();
    for (command, code) in [
        (Command::Prompt { text: "more".into(), key: None }, Code::QueueFull),
        (Command::Prompt { text: " \n".into(), key: None }, Code::InvalidRequest),
        (Command::Cancel { turn: Some("t9".parse().unwrap()) }, Code::NoSuchTurn),
        (Command::Resume { fresh: false, terms: LaunchTerms::default() }, Code::WrongPhase),
        (answer("p1"), Code::PermissionAnswered),
        (answer("p2"), Code::NoSuchPermission),
    ] {
        let problem = problem(&mut world, command.clone());
        assert_eq!(problem.code, code, "{command:?}: {problem:?}");
    }
    world.ask(Command::Stop { reason: "x".into() }).unwrap();
    world.settle();
    assert_eq!(problem(&mut world, Command::Stop { reason: "x".into() }).code, Code::WrongPhase);
    assert_eq!(problem(&mut world, Command::Prompt { text: "x".into(), key: None }).code, Code::WrongPhase);
    assert_eq!(problem(&mut world, Command::Cancel { turn: None }).code, Code::WrongPhase);
}
