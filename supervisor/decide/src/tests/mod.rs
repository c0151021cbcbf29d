//! Checks the rules of a session against a model. The agent answers at any time, clients send any command, and the
//! daemon is killed at any moment. Each daemon continues from the journal.

use std::collections::{BTreeMap, BTreeSet};

use agentd_api::Event;
use agentd_api::event::{
    AgentExited, AgentStarted, Body, Cause, LaunchReason, LaunchStarted, SessionCreated, SyntheticCause, TurnEnded,
};
use agentd_api::isolation::Isolated;
use agentd_api::session::{PermissionAnswer, PermissionPolicy, Phase, RestartPolicy, ResumeNote, SessionSpec};
use agentd_api::staleness::StalePolicy;
use jiff::{Timestamp, tz::TimeZone};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::batch::Batch;
use crate::next::{Facts, Step, next};
use crate::rules::{Command, LaunchBounds, LaunchTerms, Refusal, decide};
use crate::staleness::{self, StalenessSettings};
use crate::state::{Run, State};
use crate::verdict::RequiredPrerequisites;
use crate::waits::{is_restarted, over, phase, waits};

mod cases;
mod compare;
mod completion;
mod degraded;
mod placed;
mod proposals;
mod stale;

const QUEUED_TURNS: usize = 3;

/// Model of a daemon, its journal and its agent, in memory.
struct World {
    journal: Vec<Event>,
    state: State,
    spec: SessionSpec,
    restart: RestartPolicy,
    needed: RequiredPrerequisites,
    template: agentd_note::Template,
    agent: Option<Agent>,
    /// Number of conversations that agents have created.
    conversations: u64,
    /// Maximum number of records in a batch that the disk accepts. Single records of the keeper always fit.
    room: usize,
    /// Whether no daemon runs. The keeper and the agent continue.
    down: bool,
    staleness: StalenessSettings,
    /// Number of the branch of the session's repository.
    branch: u8,
    /// Version of the agent's program.
    version: u8,
}

/// Model of an agent: its unanswered requests from agentd, and its own unanswered requests.
struct Agent {
    can_load: bool,
    asked: Vec<(Value, String)>,
    questions: u64,
    unanswered: Vec<u64>,
    dead: bool,
}

impl World {
    fn new(policy: PermissionPolicy, restart: RestartPolicy) -> Self {
        Self::of(SessionSpec { permissions: policy, ..SessionSpec::new("/work") }, restart)
    }

    fn of(spec: SessionSpec, restart: RestartPolicy) -> Self {
        let state = State::new(Timestamp::UNIX_EPOCH);
        let mut world = Self {
            journal: Vec::new(),
            state,
            spec,
            restart,
            needed: RequiredPrerequisites::new(),
            template: agentd_note::Template::built_in(),
            agent: None,
            conversations: 0,
            room: usize::MAX,
            down: false,
            staleness: StalenessSettings::IGNORE,
            branch: 0,
            version: 1,
        };
        let created =
            SessionCreated { spec: world.spec.clone(), key: None, parent: None, continues: None, requester: None };
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

    /// Writes a batch as a whole. Returns `false` if the disk refuses the batch.
    fn write(&mut self, batch: Batch) -> bool {
        if batch.entries.len() > self.room {
            return false;
        }
        for entry in batch.entries {
            if entry.send {
                let Body::AgentIn(line) = &entry.body else { panic!("only lines are sent: {entry:?}") };
                assert!(matches!(self.state.run, Run::Running(_)), "no agent can receive {line}");
                let line: Value = serde_json::from_str(line.get()).unwrap();
                self.deliver(&line);
            }
            self.record(entry.body);
        }
        true
    }

    /// Delivers a line to the agent.
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
            zone: const { &TimeZone::UTC },
            replay_quiet: std::time::Duration::from_millis(1),
            editor: &[],
            agent: "a",
            rules: &[],
            may_allow: true,
            restart: self.restart,
            drained: false,
            note: ResumeNote::Brief,
            mcp: None,
            template: &self.template,
            needed: &self.needed,
            staleness: &self.staleness,
            is_examining: false,
        }
    }

    /// Lets one of the current waits run out.
    fn time_passes(&mut self, which: usize) {
        let waits = waits(&self.state, &self.facts());
        let Some(wait) = waits.get(which % waits.len().max(1)) else { return };
        if let Some(batch) = over(&self.state, wait, std::time::Duration::from_secs(1), &self.facts()) {
            self.write(batch);
        }
    }

    /// Runs the driver's loop until it has nothing to do or waits for an event.
    fn settle(&mut self) {
        for _ in 0..200 {
            match next(&self.state, &self.facts()) {
                Some(Step::Append(batch)) => {
                    if !self.write(batch) {
                        return;
                    }
                }
                Some(Step::StopAgent) => self.agent_ends(true),
                Some(Step::CheckAnswer(due)) => {
                    let batch = completion::answer_is(&self.state, due, true);
                    if !self.write(batch) {
                        return;
                    }
                }
                Some(Step::Conclude) => {
                    let done = Body::SessionCompleted(Box::new(completion::result(&self.state)));
                    if !self.write(Batch::of(done)) {
                        return;
                    }
                }
                Some(Step::BringUp { .. } | Step::AbandonBringUp { .. }) | None => return,
            }
        }
        panic!("the rules go in a circle: {:?}", self.journal.iter().rev().take(5).collect::<Vec<_>>());
    }

    /// Completes the bring-up: the agent has started.
    fn start_agent(&mut self, can_load: bool) {
        if self.phase() != Phase::Preparing {
            return;
        }
        let launch = self.state.launches;
        if self.state.staleness.refused.is_some() {
            // No bring-up is in progress.
            return;
        }
        if !self.down {
            let observed = stale::observed(launch, self.branch);
            let (batch, outcome) = staleness::observed(&self.state, observed, &self.facts());
            if !self.write(batch) || outcome != staleness::Outcome::Continue {
                return;
            }
        }
        self.agent = Some(Agent { can_load, asked: Vec::new(), questions: 100, unanswered: Vec::new(), dead: false });
        self.record(Body::AgentStarted(AgentStarted {
            launch,
            pid: 7,
            start_time: 1,
            command: vec!["a".into()],
            isolation: Isolated::default(),
            warm: false,
            place: None,
            resident: false,
        }));
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

    /// Answers the agent's oldest open request.
    fn agent_answers(&mut self, well: bool) {
        self.agent_answers_or_fails(if well { None } else { Some(-32603) });
    }

    fn agent_answers_or_fails(&mut self, code: Option<i64>) {
        let Some(agent) = self.agent.as_mut() else { return };
        if agent.asked.is_empty() {
            return;
        }
        let (id, method) = agent.asked.remove(0);
        let result = match method.as_str() {
            "initialize" => json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": agent.can_load},
                "agentInfo": {"name": "a", "version": self.version.to_string()}}),
            "session/new" => {
                self.conversations += 1;
                json!({"sessionId": format!("c{}", self.conversations)})
            }
            "session/prompt" => json!({"stopReason": "end_turn"}),
            _ => Value::Null,
        };
        let line = match code {
            None => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Some(code) => json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no"}}),
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
                {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
                {"optionId": "no", "name": "No", "kind": "reject_once"}]}})
        } else {
            json!({"id": id, "method": "moon/phase"})
        };
        self.says(&line);
    }

    fn ask(&mut self, command: Command) -> Result<(), Refusal> {
        let restarts = is_restarted(&self.state, &self.facts());
        let bounds = LaunchBounds { queued_turns: QUEUED_TURNS, generation: 1, restarts };
        let decision = decide(&self.state, command, bounds)?;
        self.write(decision.batch);
        Ok(())
    }

    fn phase(&self) -> Phase {
        phase(&self.state, &self.facts())
    }

    /// Kills the daemon. The next daemon folds the journal from a checkpoint on.
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
        self.down = false;
    }

    /// Carries out an act, and the daemon's reaction.
    fn act(&mut self, act: &Act) {
        let client = |world: &mut Self, command| {
            if !world.down {
                drop(world.ask(command));
            }
        };
        match act {
            Act::Prompt => {
                client(
                    self,
                    Command::Prompt { text: "hi".into(), parts: Vec::new(), schema: None, key: None, requester: None },
                );
            }
            Act::Cancel => client(self, Command::Cancel { turn: None, cause: Cause::default() }),
            Act::Stop => client(self, Command::Stop { reason: "test".into(), cause: Cause::default() }),
            Act::Resume { fresh } => client(self, Command::Resume { fresh: *fresh, terms: LaunchTerms::default() }),
            Act::Answer { allow } => {
                if let Some(permission) = self.state.permissions.first().map(|open| open.request.id.clone()) {
                    let answer = if *allow { PermissionAnswer::Allow } else { PermissionAnswer::Deny };
                    client(self, Command::Answer { permission, answer, cause: Cause::default() });
                }
            }
            Act::BranchChanges { branch } => self.branch = *branch,
            Act::AgentIsReplaced => self.version += 1,
            Act::FactsAreRead => self.read_facts(),
            Act::AgentStarts { can_load } => self.start_agent(*can_load),
            Act::AgentAnswers { well } => self.agent_answers(*well),
            Act::AgentForgets => self.agent_answers_or_fails(Some(-32002)),
            Act::AgentIsLimited => self.agent_answers_or_fails(Some(429)),
            Act::AgentAsks { permission } => self.agent_asks(*permission),
            Act::AgentDies => self.agent_ends(false),
            Act::DaemonStops => self.down = true,
            Act::DaemonDies { checkpoint } => self.daemon_dies(*checkpoint),
            Act::TimePasses { which } if !self.down => self.time_passes(*which),
            Act::TimePasses { .. } => {}
            Act::DiskHasRoomFor { records } => self.room = *records,
            Act::DiskIsEmptied => self.room = usize::MAX,
        }
        if !self.down {
            self.settle();
        }
    }

    /// Stops the session and closes all open items.
    fn come_to_the_end(&mut self) {
        self.daemon_dies(0);
        self.room = usize::MAX;
        self.settle();
        let _ = self.ask(Command::Stop { reason: "the end".into(), cause: Cause::default() });
        self.settle();
        if matches!(self.phase(), Phase::Stopping) {
            // The launch ended before it had an agent.
            let launch = self.state.launches;
            let failed = agentd_api::event::LaunchFailed { launch, reason: "Stopped".into(), message: String::new() };
            self.record(Body::LaunchFailed(failed));
            self.settle();
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Prompt,
    Cancel,
    Stop,
    Resume {
        fresh: bool,
    },
    Answer {
        allow: bool,
    },
    /// The repository is on another branch, by a change of the agent or of another program.
    BranchChanges {
        branch: u8,
    },
    AgentIsReplaced,
    /// The reading of facts after the agent's work has ended.
    FactsAreRead,
    AgentStarts {
        can_load: bool,
    },
    AgentAnswers {
        well: bool,
    },
    /// The program behind the adapter has died.
    AgentForgets,
    AgentIsLimited,
    AgentAsks {
        permission: bool,
    },
    AgentDies,
    /// The daemon stops. `DaemonDies` starts the next daemon.
    DaemonStops,
    DaemonDies {
        checkpoint: usize,
    },
    TimePasses {
        which: usize,
    },
    /// The disk is nearly full.
    DiskHasRoomFor {
        records: usize,
    },
    DiskIsEmptied,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Prompt),
        1 => Just(Act::Cancel),
        1 => Just(Act::Stop),
        2 => any::<bool>().prop_map(|fresh| Act::Resume { fresh }),
        2 => prop::bool::weighted(0.8).prop_map(|allow| Act::Answer { allow }),
        1 => (0..3_u8).prop_map(|branch| Act::BranchChanges { branch }),
        1 => Just(Act::AgentIsReplaced),
        1 => Just(Act::FactsAreRead),
        4 => any::<bool>().prop_map(|can_load| Act::AgentStarts { can_load }),
        8 => prop::bool::weighted(0.9).prop_map(|well| Act::AgentAnswers { well }),
        1 => Just(Act::AgentForgets),
        1 => Just(Act::AgentIsLimited),
        2 => any::<bool>().prop_map(|permission| Act::AgentAsks { permission }),
        1 => Just(Act::AgentDies),
        1 => Just(Act::DaemonStops),
        1 => (1..4_usize).prop_map(|records| Act::DiskHasRoomFor { records }),
        1 => Just(Act::DiskIsEmptied),
        2 => (0..4_usize).prop_map(|which| Act::TimePasses { which }),
        2 => (0..80_usize).prop_map(|checkpoint| Act::DaemonDies { checkpoint }),
    ]
}

fn policy() -> impl Strategy<Value = PermissionPolicy> {
    prop_oneof![Just(PermissionPolicy::Ask), Just(PermissionPolicy::Allow), Just(PermissionPolicy::Deny)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]
    #[test]
    fn every_turn_ends_once_and_every_question_is_answered_once(
        policy in policy(),
        restart in prop_oneof![Just(RestartPolicy::Never), Just(RestartPolicy::OnFailure)],
        opened in any::<bool>(),
        interactive in prop::bool::weighted(0.7),
        stale in prop::sample::select(StalePolicy::ALL),
        acts in prop::collection::vec(act(), 0..60),
    ) {
        let spec = SessionSpec { permissions: policy, interactive, ..SessionSpec::new("/work") };
        let world = World::of(spec, restart);
        let mut world = if opened { opened_of(world) } else { world };
        world.staleness = stale::settings(stale);
        for act in &acts {
            world.act(act);
        }
        world.come_to_the_end();
        prop_assert!(world.phase().is_over(), "{:?}", world.phase());

        let (mut queued, mut started, mut ended) = (BTreeMap::new(), BTreeMap::<_, i32>::new(), BTreeMap::new());
        let (mut requested, mut resolved) = (BTreeMap::new(), BTreeMap::new());
        for event in &world.journal {
            match &event.body {
                Body::TurnQueued(turn) => *queued.entry(turn.turn.clone()).or_insert(0) += 1,
                Body::TurnStarted(turn) => *started.entry(turn.turn.clone()).or_insert(0) += 1,
                Body::TurnLimited(turn) => *started.entry(turn.turn.clone()).or_insert(0) -= 1,
                Body::TurnEnded(TurnEnded { turn, .. }) => *ended.entry(turn.clone()).or_insert(0) += 1,
                Body::PermissionRequested(request) => *requested.entry(request.request.id.clone()).or_insert(0) += 1,
                Body::PermissionResolved(answer) => *resolved.entry(answer.permission.clone()).or_insert(0) += 1,
                _ => {}
            }
        }
        let completions = world.journal.iter().filter(|event| matches!(event.body, Body::SessionCompleted(_))).count();
        prop_assert_eq!(completions, usize::from(!interactive), "a session that is not interactive completes once");
        prop_assert!(!world.state.awaits_completion());
        prop_assert!(started.values().all(|&times| times == 1 || times == 0), "a turn was started twice: {started:?}");
        prop_assert!(queued.values().chain(ended.values()).all(|&times| times == 1));
        prop_assert!(ended.keys().all(|turn| queued.contains_key(turn)));
        prop_assert_eq!(&requested, &resolved);
        prop_assert!(notes_follow_each_new_start(&world.journal));
        prop_assert_eq!(answered_turn_with_another_end(&world.journal), None);
        prop_assert_eq!(launch_over_an_open_turn(&world.journal), None);
        prop_assert_eq!(stale::started_over_a_question(&world.journal), None);
        let mut exits: Vec<u64> = Vec::new();
        exits.extend(world.journal.iter().filter_map(|event| match &event.body {
            Body::AgentExited(exited) => Some(exited.launch),
            _ => None,
        }));
        prop_assert!(exits.windows(2).all(|pair| pair[0] < pair[1]), "two ends of one launch: {exits:?}");
        // A turn without an end is still queued, for the next resume of a failed session.
        let waiting = world.state.queue.len();
        prop_assert_eq!(queued.len(), ended.len() + waiting);
    }
}

/// Returns the first turn whose recorded end differs from the agent's answer.
fn answered_turn_with_another_end(journal: &[Event]) -> Option<TurnEnded> {
    let (mut asked, mut answers) = (BTreeMap::new(), BTreeMap::new());
    for event in journal {
        match &event.body {
            Body::TurnStarted(turn) => drop(asked.insert(turn.rpc, turn.turn.clone())),
            Body::LaunchStarted(_) => asked.clear(),
            Body::TurnLimited(limited) => drop(answers.remove(&limited.turn)),
            Body::AgentOut(line) => {
                let line: Value = serde_json::from_str(line.get()).unwrap();
                let turn =
                    line["id"].as_u64().filter(|_| line.get("method").is_none()).and_then(|id| asked.remove(&id));
                if let Some(turn) = turn {
                    answers.insert(turn, line.get("error").is_none());
                }
            }
            Body::TurnEnded(ended) => {
                let cause = ended.synthetic.as_ref().map(|synthetic| synthetic.cause);
                let right = match answers.get(&ended.turn) {
                    Some(true) => ended.stop_reason.as_deref() == Some("end_turn") && cause.is_none(),
                    Some(false) => cause == Some(SyntheticCause::AgentError),
                    None => ended.stop_reason.is_none() && cause.is_some(),
                };
                if !right {
                    return Some(ended.clone());
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the first launch that began while a turn or a permission request of the previous launch was open.
fn launch_over_an_open_turn(journal: &[Event]) -> Option<LaunchStarted> {
    let mut open = BTreeSet::new();
    for event in journal {
        match &event.body {
            Body::TurnStarted(turn) => drop(open.insert(turn.turn.to_string())),
            Body::TurnLimited(turn) => drop(open.remove(turn.turn.as_str())),
            Body::TurnEnded(turn) => drop(open.remove(turn.turn.as_str())),
            Body::PermissionRequested(asked) => drop(open.insert(asked.request.id.to_string())),
            Body::PermissionResolved(answer) => drop(open.remove(answer.permission.as_str())),
            Body::LaunchStarted(launch) if !open.is_empty() => return Some(launch.clone()),
            _ => {}
        }
    }
    None
}

/// Reports whether notes precede exactly the first turns of launches that follow an earlier turn.
fn notes_follow_each_new_start(journal: &[Event]) -> bool {
    let (mut worked, mut due) = (false, false);
    journal.iter().all(|event| match &event.body {
        Body::LaunchStarted(started) => {
            due |= worked && started.reason != LaunchReason::Create;
            true
        }
        Body::TurnStarted(turn) => {
            worked = true;
            let right = turn.note.is_some() == (due || turn.again);
            due = false;
            right
        }
        _ => true,
    })
}

fn ready(policy: PermissionPolicy) -> World {
    opened_world(policy, RestartPolicy::Never)
}

/// Returns a session whose conversation is open.
fn opened_world(policy: PermissionPolicy, restart: RestartPolicy) -> World {
    opened_of(World::new(policy, restart))
}

fn opened_of(mut world: World) -> World {
    world.start_agent(true);
    world.settle();
    for _ in 0..2 {
        world.agent_answers(true);
        world.settle();
    }
    assert_eq!(world.phase(), Phase::Idle);
    world
}
