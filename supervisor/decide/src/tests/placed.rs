//! Tests sessions whose agent runs on a place.

use agentd_api::completion::Outcome;
use agentd_api::event::{AgentExited, AgentStarted, Body, PlaceChanged, PlaceHost, PlaceState};
use agentd_api::isolation::Isolated;
use agentd_api::session::{ConditionStatus, ConditionType, PermissionPolicy, Phase, RestartPolicy, SessionSpec};

use super::{Act, Agent, World};
use crate::rules::Command;
use crate::state::{Ended, Run};

fn launched() -> World {
    let mut world = World::new(PermissionPolicy::Ask, RestartPolicy::OnFailure);
    start(&mut world);
    world
}

/// Completes a bring-up: the client of the place was started.
fn start(world: &mut World) {
    let launch = world.state.launches;
    world.agent =
        Some(Agent { can_load: true, asked: Vec::new(), questions: 100, unanswered: Vec::new(), dead: false });
    world.record(Body::AgentStarted(AgentStarted {
        launch,
        pid: 7,
        start_time: 1,
        command: vec!["a".into()],
        isolation: Isolated::default(),
        warm: false,
        place: Some("farm".to_owned()),
        resident: false,
    }));
    world.settle();
}

fn changed(world: &World, state: PlaceState, reason: Option<&str>) -> PlaceChanged {
    let host = PlaceHost { host: "node7".to_owned(), user: "kim".to_owned(), ..PlaceHost::default() };
    PlaceChanged {
        launch: world.state.launches,
        place: "farm".to_owned(),
        state,
        reason: reason.map(str::to_owned),
        message: None,
        job: Some("12".to_owned()),
        requeue: false,
        host: (state == PlaceState::Running).then_some(host),
    }
}

/// Lets the engine report a state. Returns whether a record was written.
fn report(world: &mut World, changed: PlaceChanged) -> bool {
    let before = world.journal.len();
    assert!(world.ask(Command::ReportPlace(Box::new(changed))).is_ok());
    let is_written = world.journal.len() > before;
    world.settle();
    is_written
}

fn engine(world: &mut World, state: PlaceState, reason: Option<&str>) -> bool {
    let changed = changed(world, state, reason);
    report(world, changed)
}

/// Records that the agent runs on the place, as its keeper does.
fn enters(world: &mut World) {
    let changed = changed(world, PlaceState::Running, None);
    world.record(Body::PlaceChanged(Box::new(changed)));
    world.settle();
}

fn placed(world: &World) -> (ConditionStatus, &str, &str) {
    let condition = world.state.condition(ConditionType::Placed).expect("no condition Placed");
    (condition.status, &condition.reason, &condition.message)
}

fn open(world: &mut World) {
    enters(world);
    world.agent_answers(true);
    world.settle();
    world.agent_answers(true);
    world.settle();
    assert_eq!(world.phase(), Phase::Idle);
}

#[test]
fn nothing_is_sent_to_an_agent_before_its_place_runs_it() {
    let mut world = launched();
    assert_eq!((world.phase(), placed(&world).1), (Phase::Starting, "Submitted"));
    assert!(engine(&mut world, PlaceState::Queued, Some("Resources")));
    assert_eq!(world.phase(), Phase::Waiting);
    let (status, reason, message) = placed(&world);
    assert_eq!((status, reason), (ConditionStatus::False, "Queued"));
    assert_eq!(message, "the place \"farm\" has queued the launch as job 12: Resources");
    assert!(!engine(&mut world, PlaceState::Queued, Some("Resources")), "the state is known");
    assert!(engine(&mut world, PlaceState::Queued, Some("Priority")));
    assert!(world.agent.as_ref().unwrap().asked.is_empty(), "a line was sent");
    assert!(!world.state.holds(ConditionType::AgentStarted));
    enters(&mut world);
    assert_eq!(world.agent.as_ref().unwrap().asked[0].1, "initialize");
    let (status, reason, message) = placed(&world);
    assert_eq!((status, reason), (ConditionStatus::True, "Running"));
    assert_eq!(message, "the agent runs at place \"farm\" on host node7 as user kim as job 12");
    assert!(!engine(&mut world, PlaceState::Queued, None), "a late answer of the engine");
    assert!(!engine(&mut world, PlaceState::Running, None), "the job is known");
}

#[test]
fn a_queued_launch_that_is_stopped_leaves_no_open_condition() {
    let mut world = launched();
    engine(&mut world, PlaceState::Queued, None);
    let stop = Command::Stop { reason: "test".to_owned(), cause: agentd_api::event::Cause::default() };
    assert!(world.ask(stop).is_ok());
    world.settle();
    assert_eq!((world.phase(), placed(&world).0), (Phase::Stopped, ConditionStatus::False));
    assert_eq!(placed(&world).1, "Stopped");
    assert!(!engine(&mut world, PlaceState::Ended, Some("CANCELLED")), "the stop is the reason");
}

#[test]
fn an_end_by_the_engine_ends_the_agent_and_is_the_reason() {
    let mut world = launched();
    open(&mut world);
    assert!(engine(&mut world, PlaceState::Ending, Some("TimeLimit")));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.state.crashes.is_empty());
    assert!(engine(&mut world, PlaceState::Ended, Some("TIMEOUT")));
    let Run::Ended(Ended::Failed(message)) = &world.state.run else { panic!("{:?}", world.state.run) };
    assert!(message.contains("ends the launch soon: TimeLimit") && message.contains("TIMEOUT"), "{message}");
}

#[test]
fn the_end_that_an_engine_announced_is_the_reason_of_an_agent_that_exits_in_order() {
    for interactive in [true, false] {
        let spec = SessionSpec { interactive, ..SessionSpec::new("/work") };
        let mut world = World::of(spec, RestartPolicy::Never);
        start(&mut world);
        open(&mut world);
        world.act(&Act::Prompt);
        world.settle();
        assert_eq!(world.phase(), Phase::Busy);
        assert!(engine(&mut world, PlaceState::Ending, Some("TimeLimit")));
        assert_eq!(world.phase(), Phase::Failed);
        // The job is completed, because the agent ended before the limit.
        assert!(engine(&mut world, PlaceState::Ended, Some("TimeLimit")));
        let Run::Ended(Ended::Failed(message)) = &world.state.run else { panic!("{:?}", world.state.run) };
        assert_eq!(message, "the place \"farm\" ends the launch soon: TimeLimit");
        let ended = world.state.placed().unwrap();
        assert_eq!((ended.state, ended.reason.as_deref()), (PlaceState::Ended, Some("TimeLimit")));
        let outcome = world.state.completion.done.as_ref().map(|done| done.outcome);
        assert_eq!(outcome, (!interactive).then_some(Outcome::Failed));
    }
}

#[test]
fn an_agent_whose_node_is_lost_is_started_again_if_the_place_requeues() {
    for requeue in [false, true] {
        let mut world = launched();
        open(&mut world);
        let lost = PlaceChanged { requeue, ..changed(&world, PlaceState::Ended, Some("NODE_FAIL")) };
        assert!(report(&mut world, lost));
        assert_eq!(world.phase(), if requeue { Phase::BackingOff } else { Phase::Failed });
        assert_eq!(world.state.conversation.as_deref(), Some("c1"));
    }
}

#[test]
fn an_agent_that_runs_before_the_engine_was_asked_gets_its_job_later() {
    let mut world = launched();
    let running = PlaceChanged { job: None, ..changed(&world, PlaceState::Running, None) };
    world.record(Body::PlaceChanged(Box::new(running)));
    world.settle();
    assert!(engine(&mut world, PlaceState::Running, None));
    let placed = world.state.placed().unwrap();
    assert_eq!((placed.job.as_deref(), placed.host.is_some()), (Some("12"), true));
}

#[test]
fn an_engine_that_forgot_a_launch_ends_it() {
    let mut world = launched();
    assert!(engine(&mut world, PlaceState::Ended, Some("Forgotten")));
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn a_lost_connection_counts_as_a_crash() {
    let mut world = launched();
    open(&mut world);
    let lost = changed(&world, PlaceState::Lost, None);
    world.record(Body::PlaceChanged(Box::new(lost)));
    world.settle();
    assert_eq!((placed(&world).0, world.phase()), (ConditionStatus::Unknown, Phase::Idle));
    world.agent = None;
    world.record(Body::AgentExited(AgentExited {
        launch: 1,
        status: Some(255),
        signal: None,
        exec_error: None,
        killed: 0,
        requested: false,
        reason: Some("the connection to place \"farm\" is lost".to_owned()),
        exceeded: None,
    }));
    world.settle();
    assert_eq!(world.phase(), Phase::BackingOff);
}
