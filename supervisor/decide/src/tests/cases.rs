//! Tests single cases of a session's rules in the model world.

use std::collections::BTreeMap;

use agentd_api::event::{Body, Cause, LaunchReason, LaunchStarted, OpenedBy, SyntheticCause, TurnEnded};
use agentd_api::session::{ConditionStatus, ConditionType, PermissionAnswer, PermissionPolicy, Phase, RestartPolicy};
use agentd_api::{Code, Event};
use jiff::Timestamp;
use serde_json::json;

use super::super::next::{Facts, Step, next};
use super::super::rules::{Command, LaunchBounds, LaunchTerms, Refusal, decide};
use super::super::state::{Opening, Pending, Run, State};
use super::super::waits::{Wait, waits};
use super::{Act, World, opened_world, ready};

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
    assert_eq!(world.phase(), Phase::Failed);
    let lost = world
        .journal
        .iter()
        .any(|event| matches!(&event.body, Body::Condition(condition) if condition.reason == "ConversationLost"));
    assert!(lost, "no condition says so");
    assert_eq!(world.state.conversation.as_deref(), Some("c1"));
    // A resume that requests a new conversation gets one.
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
fn an_agent_that_can_neither_load_nor_resume_gets_a_new_conversation_and_a_condition_reports_the_loss() {
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
    assert_eq!(world.phase(), Phase::Idle);
    let condition = world.state.condition(ConditionType::ConversationReady).unwrap();
    assert_eq!(condition.reason, "HistoryLost");
}

#[test]
fn a_cancelled_turns_questions_are_answered_cancelled_even_those_that_come_later() {
    let mut world = ready(PermissionPolicy::Ask);
    world
        .ask(Command::Prompt { text: "go".into(), parts: Vec::new(), schema: None, key: None, requester: None })
        .unwrap();
    world.settle();
    world.agent_asks(true);
    world.settle();
    assert_eq!(world.state.permissions.len(), 1);
    world.ask(Command::Cancel { turn: None, cause: Cause::default() }).unwrap();
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
        world
            .ask(Command::Prompt { text: "go".into(), parts: Vec::new(), schema: None, key: None, requester: None })
            .unwrap();
        world.settle();
    }
    let problem = |world: &mut World, command| world.ask(command).unwrap_err().problem();
    let answer = |n: &str| Command::Answer {
        permission: n.parse().unwrap(),
        answer: PermissionAnswer::Allow,
        cause: Cause::default(),
    };
    world.agent_asks(true);
    world.settle();
    world.ask(answer("p1")).unwrap();
    world.settle();
    for (command, code) in [
        (
            Command::Prompt { text: "more".into(), parts: Vec::new(), schema: None, key: None, requester: None },
            Code::QueueFull,
        ),
        (
            Command::Prompt { text: " \n".into(), parts: Vec::new(), schema: None, key: None, requester: None },
            Code::InvalidRequest,
        ),
        (Command::Cancel { turn: Some("t9".parse().unwrap()), cause: Cause::default() }, Code::NoSuchTurn),
        (Command::Resume { fresh: false, terms: LaunchTerms::default() }, Code::WrongPhase),
        (answer("p1"), Code::PermissionAnswered),
        (answer("p2"), Code::NoSuchPermission),
    ] {
        let problem = problem(&mut world, command.clone());
        assert_eq!(problem.code, code, "{command:?}: {problem:?}");
    }
    world.ask(Command::Stop { reason: "x".into(), cause: Cause::default() }).unwrap();
    world.settle();
    assert_eq!(
        problem(
            &mut world,
            Command::Prompt { text: "x".into(), parts: Vec::new(), schema: None, key: None, requester: None }
        )
        .code,
        Code::WrongPhase
    );
    assert_eq!(problem(&mut world, Command::Cancel { turn: None, cause: Cause::default() }).code, Code::WrongPhase);
}

/// Returns a session with a running turn, whose agent is restarted after a crash.
fn busy() -> World {
    let mut world = opened_world(PermissionPolicy::Ask, RestartPolicy::OnFailure);
    world
        .ask(Command::Prompt { text: "go".into(), parts: Vec::new(), schema: None, key: None, requester: None })
        .unwrap();
    world.settle();
    assert_eq!(world.phase(), Phase::Busy);
    world
}

fn end_of_the_turn(world: &World) -> TurnEnded {
    let mut ends = world.journal.iter().filter_map(|event| match &event.body {
        Body::TurnEnded(ended) => Some(ended.clone()),
        _ => None,
    });
    let end = ends.next().expect("the turn has not ended");
    assert!(ends.next().is_none(), "the turn ended twice");
    end
}

#[test]
fn a_turn_that_was_answered_while_no_daemon_ran_ends_with_that_answer_though_the_agent_is_gone() {
    for well in [true, false] {
        let mut world = busy();
        world.act(&Act::DaemonStops);
        world.act(&Act::AgentAnswers { well });
        world.act(&Act::AgentDies);
        world.act(&Act::DaemonDies { checkpoint: 0 });
        let TurnEnded { stop_reason, synthetic, .. } = end_of_the_turn(&world);
        let cause = synthetic.map(|synthetic| synthetic.cause);
        let expected = if well { (Some("end_turn"), None) } else { (None, Some(SyntheticCause::AgentError)) };
        assert_eq!((stop_reason.as_deref(), cause), expected);
    }
}

#[test]
fn no_launch_begins_before_the_turn_of_the_ended_agent_is_closed_however_small_its_record_is() {
    let mut world = busy();
    world.agent_asks(true);
    world.settle();
    // The record of the agent's exit fits on the disk; the records that close its turn and permission request do
    // not.
    world.act(&Act::DiskHasRoomFor { records: 1 });
    world.act(&Act::AgentDies);
    assert!(waits(&world.state, &world.facts()).is_empty(), "a restart is under way");
    let resume = Command::Resume { fresh: false, terms: LaunchTerms::default() };
    assert_eq!(world.ask(resume).unwrap_err(), Refusal::Unclosed);
    assert_eq!(world.state.launches, 1);
    world.act(&Act::DiskIsEmptied);
    assert_eq!(end_of_the_turn(&world).synthetic.map(|synthetic| synthetic.cause), Some(SyntheticCause::AgentExited));
    world.act(&Act::TimePasses { which: 0 });
    assert_eq!((world.state.launches, world.phase()), (2, Phase::Preparing));
}

#[test]
fn what_an_older_daemon_left_open_when_it_launched_again_is_closed() {
    let mut world = busy();
    world.agent_asks(true);
    world.settle();
    world.agent_ends(false);
    world.record(Body::LaunchStarted(LaunchStarted::new(2, LaunchReason::Restart, false)));
    world.settle();
    assert_eq!(end_of_the_turn(&world).synthetic.map(|synthetic| synthetic.cause), Some(SyntheticCause::AgentExited));
    assert!(world.state.permissions.is_empty(), "{:?}", world.state.permissions);
    assert_eq!(world.phase(), Phase::Preparing);
}

#[test]
fn a_stop_before_the_restart_cancels_it_and_a_resume_makes_it_at_once() {
    let crashed = || {
        let mut world = busy();
        world.act(&Act::AgentDies);
        assert_eq!(world.phase(), Phase::BackingOff);
        world
    };
    let mut world = crashed();
    world
        .ask(Command::Prompt { text: "next".into(), parts: Vec::new(), schema: None, key: None, requester: None })
        .expect("it waits for the restart");
    world.ask(Command::Stop { reason: "test".into(), cause: Cause::default() }).expect("there is a restart to stop");
    world.settle();
    assert_eq!(world.phase(), Phase::Stopped);
    assert!(waits(&world.state, &world.facts()).is_empty() && world.state.queue.is_empty());
    for kind in [ConditionType::AgentStarted, ConditionType::ConversationReady] {
        let condition = world.state.condition(kind).unwrap();
        assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Stopped"), "{kind:?}");
    }
    let recorded = world.journal.len();
    world.ask(Command::Stop { reason: "again".into(), cause: Cause::default() }).expect("it is stopped already");
    assert_eq!(world.journal.len(), recorded);

    let mut world = crashed();
    world.ask(Command::Resume { fresh: false, terms: LaunchTerms::default() }).unwrap();
    assert_eq!((world.state.launches, world.phase()), (2, Phase::Preparing));
}

#[test]
fn a_restart_that_cannot_begin_is_backing_off_again_and_failed_means_given_up() {
    let mut world = busy();
    world.act(&Act::AgentDies);
    for crash in 2..=6 {
        world.act(&Act::TimePasses { which: 0 });
        assert_eq!(world.phase(), Phase::Preparing, "crash {crash}");
        let (launch, reason, message) = (world.state.launches, "X".to_owned(), "the directory is gone".to_owned());
        world.record(Body::LaunchFailed(agentd_api::event::LaunchFailed { launch, reason, message }));
        world.settle();
        let (phase, reason) = if crash == 6 { (Phase::Failed, "Parked") } else { (Phase::BackingOff, "Restarting") };
        assert_eq!(world.phase(), phase, "crash {crash}");
        let condition = world.state.condition(ConditionType::AgentStarted).unwrap();
        assert_eq!(condition.reason, reason, "crash {crash}");
    }
}

#[test]
fn an_agent_that_has_lost_its_conversation_is_started_again_like_one_that_crashed_and_parked_like_one() {
    let mut world = busy();
    for crash in 1..=6 {
        world.act(&Act::AgentForgets);
        let ends = |event: &&Event| matches!(&event.body, Body::TurnEnded(_));
        let Some(Body::TurnEnded(ended)) = world.journal.iter().rfind(ends).map(|event| &event.body) else { panic!() };
        assert_eq!(ended.synthetic.as_ref().map(|synthetic| synthetic.cause), Some(SyntheticCause::AgentError));
        let why = |event: &Event| matches!(&event.body, Body::AgentUnusable(why) if why.reason == "ConversationGone");
        assert_eq!(world.journal.iter().filter(|event| why(event)).count(), crash);
        assert!(world.agent.is_none(), "it was ended");
        if crash == 6 {
            break;
        }
        assert_eq!(world.phase(), Phase::BackingOff, "crash {crash}");
        world
            .ask(Command::Prompt { text: "again".into(), parts: Vec::new(), schema: None, key: None, requester: None })
            .unwrap();
        world.act(&Act::TimePasses { which: 0 });
        world.act(&Act::AgentStarts { can_load: true });
        for _ in 0..2 {
            world.act(&Act::AgentAnswers { well: true });
        }
        assert_eq!((world.phase(), world.state.conversation.as_deref()), (Phase::Busy, Some("c1")), "crash {crash}");
    }
    assert_eq!(world.phase(), Phase::Failed, "restarts are not limited");
}

#[test]
fn a_stop_while_an_agent_without_its_conversation_is_ended_keeps_it_from_being_started_again() {
    let mut world = busy();
    world.agent_answers_or_fails(Some(-32002));
    let Some(Step::Append(batch)) = next(&world.state, &world.facts()) else { panic!("the turn is to be ended") };
    world.write(batch);
    assert_eq!(world.phase(), Phase::Stopping);
    world
        .ask(Command::Prompt { text: "next".into(), parts: Vec::new(), schema: None, key: None, requester: None })
        .expect("it waits for the restart");
    world.ask(Command::Stop { reason: "test".into(), cause: Cause::default() }).unwrap();
    world.settle();
    assert_eq!(world.phase(), Phase::Stopped);
}

#[test]
fn the_end_of_an_agent_counts_once_and_for_its_own_launch() {
    let mut world = busy();
    world.act(&Act::AgentDies);
    let exited = world.journal.iter().rev().find(|event| matches!(event.body, Body::AgentExited(_)));
    let exited = exited.map(|event| event.body.clone()).unwrap();
    let state = world.state.clone();
    world.record(exited.clone());
    assert_eq!((&world.state.run, &world.state.crashes), (&state.run, &state.crashes), "it was counted twice");
    world.act(&Act::TimePasses { which: 0 });
    world.act(&Act::AgentStarts { can_load: true });
    world.record(exited);
    assert_eq!(world.phase(), Phase::Starting, "the end of launch 1 ended launch 2");
}

#[test]
fn the_key_of_a_prompt_is_kept_for_a_day_by_the_times_of_the_records_and_of_very_many_the_last() {
    const DAY: i64 = 24 * 3600;
    let mut state = State::new(Timestamp::UNIX_EPOCH);
    let queue = |state: &mut State, key: Option<&str>, second: i64| {
        let turn = agentd_api::TurnId::numbered(state.next_turn);
        let (prompt, key) = ("go".to_owned(), key.map(str::to_owned));
        let (schema, is_startup, requester) = (None, false, None);
        let queued =
            agentd_api::event::TurnQueued { turn, prompt, parts: Vec::new(), schema, is_startup, key, requester };
        let time = Timestamp::from_second(second).unwrap();
        state.apply(&Event { seq: state.seq + 1, time, body: Body::TurnQueued(queued) });
    };
    let knows = |state: &State, key: &str| state.keys.iter().any(|known| known.key == key);
    queue(&mut state, Some("first"), 0);
    for prompt in 1..100 {
        queue(&mut state, Some(&format!("k{prompt}")), prompt);
    }
    queue(&mut state, None, DAY - 1);
    assert!(knows(&state, "first"), "99 more prompts within a day");
    queue(&mut state, None, DAY + 50);
    assert!(!knows(&state, "first") && !knows(&state, "k50") && knows(&state, "k51"));
    // A state stored without times of the keys: the keys expire one day after the next prompt.
    state.keys.iter_mut().for_each(|key| key.time = None);
    queue(&mut state, None, 10 * DAY);
    assert!(knows(&state, "k51"));
    queue(&mut state, None, 11 * DAY);
    assert!(!knows(&state, "k51"));
    for prompt in 0..5000 {
        queue(&mut state, Some(&format!("n{prompt}")), 11 * DAY);
    }
    assert_eq!(state.keys.len(), 4096);
    assert!(knows(&state, "n4999") && !knows(&state, "n903"));
}

#[test]
fn a_repeated_prompt_is_answered_from_the_journals_beginning_when_earlier_records_are_lost() {
    let mut world = busy();
    let prompt = || Command::Prompt {
        text: "go on".into(),
        parts: Vec::new(),
        schema: None,
        key: Some("k".into()),
        requester: None,
    };
    world.ask(prompt()).unwrap();
    // The journal lost all records before this prompt.
    world.state.keys.iter_mut().for_each(|key| key.seq = 0);
    let bounds = LaunchBounds { queued_turns: 10, generation: 1, restarts: false };
    let known = decide(&world.state, prompt(), bounds).unwrap();
    assert!(known.turn.is_some() && known.batch.entries.is_empty());
    assert_eq!(known.known_since, Some(0));
}

#[test]
fn a_question_without_options_can_be_denied_and_a_client_that_allows_it_is_told_that_it_cannot() {
    let mut world = busy();
    let id = 200;
    world.agent.as_mut().unwrap().unanswered.push(id);
    let tool = json!({"toolCallId": "x", "title": "rm"});
    let params = json!({"sessionId": "c", "toolCall": tool, "options": []});
    world.says(&json!({"id": id, "method": "session/request_permission", "params": params}));
    world.settle();
    let permission = world.state.permissions[0].request.id.clone();
    let answer = |answer| Command::Answer { permission: permission.clone(), answer, cause: Cause::default() };
    for wrong in [PermissionAnswer::Allow, PermissionAnswer::Option("yes".into())] {
        let refusal = world.ask(answer(wrong)).unwrap_err();
        assert_eq!(refusal, Refusal::NoOptions { permission: permission.clone() });
        assert!(refusal.problem().hint.unwrap().contains("deny"));
    }
    world.ask(answer(PermissionAnswer::Deny)).unwrap();
    world.settle();
    assert!(world.agent.as_ref().unwrap().unanswered.is_empty(), "the agent waits for an answer still");
    assert_eq!(world.phase(), Phase::Busy);
}

#[test]
fn a_question_with_a_form_takes_values_that_fit_and_no_rule_answers_it() {
    let mut world = busy();
    world.agent.as_mut().unwrap().unanswered.push(200);
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
    let params = json!({"sessionId": "c", "mode": "form", "message": "How many?", "requestedSchema": schema});
    world.says(&json!({"id": 200, "method": "elicitation/create", "params": params}));
    world.settle();
    let permission = world.state.permissions[0].request.id.clone();
    let answer = |answer| Command::Answer { permission: permission.clone(), answer, cause: Cause::default() };
    let form = |values| PermissionAnswer::Form(serde_json::from_value(values).unwrap());
    for wrong in [PermissionAnswer::Allow, form(json!({})), form(json!({"n": "x"})), form(json!({"n": 1, "m": 1}))] {
        let refusal = world.ask(answer(wrong)).unwrap_err();
        assert!(matches!(refusal, Refusal::Form { .. }), "{refusal}");
    }
    assert!(matches!(
        world.ask(answer(PermissionAnswer::Option("yes".into()))).unwrap_err(),
        Refusal::NoSuchOption { .. }
    ));
    world.ask(answer(form(json!({"n": 3})))).unwrap();
    world.settle();
    assert!(world.agent.as_ref().unwrap().unanswered.is_empty(), "the agent waits for an answer still");
    assert_eq!(world.phase(), Phase::Busy);
}

#[test]
fn a_question_before_the_conversation_is_open_stops_the_clock_of_the_launch() {
    let mut world = busy();
    world.state.permissions.clear();
    let Run::Running(running) = &mut world.state.run else { panic!() };
    running.turn = None;
    running.pending.insert(90, Pending::Open(OpenedBy::New));
    assert!(waits(&world.state, &world.facts()).iter().any(|wait| matches!(wait, Wait::Open { .. })));
    world.says(&json!({"id": 200, "method": "elicitation/create", "params": {"mode": "form", "message": "m"}}));
    world.settle();
    assert_eq!(world.state.permissions.len(), 1, "it is asked although no turn runs");
    assert!(waits(&world.state, &world.facts()).iter().all(|wait| !matches!(wait, Wait::Open { .. })));
}

#[test]
fn no_conversation_is_opened_while_the_launch_still_examines_the_environment() {
    let mut world = busy();
    let Run::Running(running) = &mut world.state.run else { panic!() };
    (running.turn, running.pending) = (None, BTreeMap::new());
    running.opening = Opening::Initialized(running.capabilities);
    let facts = world.facts();
    let examining = next(&world.state, &Facts { is_examining: true, ..facts });
    assert!(examining.is_none(), "{examining:?}");
    let examined = next(&world.state, &world.facts());
    assert!(matches!(examined, Some(Step::Append(_))), "{examined:?}");
}

#[test]
fn the_question_of_an_agent_that_has_ended_is_not_answered_any_more() {
    let mut world = busy();
    world.agent_asks(true);
    world.settle();
    let permission = world.state.permissions[0].request.id.clone();
    world.agent_ends(false);
    // The agent's exit is recorded; its turn and permission request are still open.
    assert_eq!(world.state.permissions.len(), 1);
    let answer =
        Command::Answer { permission: permission.clone(), answer: PermissionAnswer::Allow, cause: Cause::default() };
    assert_eq!(world.ask(answer).unwrap_err(), Refusal::AgentEnded { permission });
    world.settle();
    assert!(world.state.permissions.is_empty());
}

/// Returns the reason for which the session needs a person.
fn need(world: &World) -> Option<String> {
    world.state.attention(1, world.phase()).map(|condition| condition.reason)
}

#[test]
fn a_session_needs_a_person_while_a_question_is_open() {
    let mut world = busy();
    assert_eq!(need(&world), None);
    world.agent_asks(true);
    world.settle();
    assert_eq!(need(&world).as_deref(), Some("PermissionRequested"));
    let open = world.state.attention(1, world.phase()).unwrap();
    assert_eq!((open.status, open.message.as_str()), (ConditionStatus::True, "rm"));
    world.act(&Act::Answer { allow: true });
    assert_eq!((need(&world), world.phase()), (None, Phase::Busy));
    world.agent.as_mut().unwrap().unanswered.push(200);
    world.says(&json!({"id": 200, "method": "elicitation/create", "params": {"mode": "form", "message": "m"}}));
    world.settle();
    assert_eq!(need(&world).as_deref(), Some("QuestionAsked"));
    // The session is being ended, so the answer has no effect any more.
    world.act(&Act::Stop);
    assert_eq!((need(&world), world.phase()), (None, Phase::Stopped));
}

#[test]
fn a_session_needs_a_person_from_the_loss_of_its_login_until_its_agent_works_again() {
    let mut world = busy();
    world.agent_answers_or_fails(Some(-32000));
    world.settle();
    assert_eq!((need(&world).as_deref(), world.phase()), (Some("LoginRequired"), Phase::Idle));
    world.act(&Act::Prompt);
    assert_eq!(need(&world).as_deref(), Some("LoginRequired"));
    world.act(&Act::AgentAnswers { well: true });
    assert_eq!((need(&world), world.phase()), (None, Phase::Idle));
}

#[test]
fn a_failed_session_needs_a_person_until_it_is_resumed_and_one_that_restarts_does_not() {
    let mut world = ready(PermissionPolicy::Ask);
    world.agent_ends(false);
    world.settle();
    assert_eq!((need(&world).as_deref(), world.phase()), (Some("Failed"), Phase::Failed));
    world.ask(Command::Resume { fresh: false, terms: LaunchTerms::default() }).unwrap();
    assert_eq!(need(&world), None);

    let mut world = busy();
    world.act(&Act::AgentDies);
    for crash in 1..=5 {
        assert_eq!((need(&world), world.phase()), (None, Phase::BackingOff), "crash {crash}");
        world.act(&Act::TimePasses { which: 0 });
        world.act(&Act::AgentStarts { can_load: true });
        world.act(&Act::AgentDies);
    }
    assert_eq!((need(&world).as_deref(), world.phase()), (Some("Parked"), Phase::Failed));
}

#[test]
fn the_time_of_a_need_is_that_of_its_beginning() {
    let mut world = busy();
    world.agent_asks(true);
    world.settle();
    let since = world.state.attention(1, world.phase()).unwrap().last_transition_time;
    let later = Timestamp::from_second(100).unwrap();
    let output = json!({"method": "session/update", "params": {}});
    let body = Body::AgentOut(serde_json::value::to_raw_value(&output).unwrap());
    world.state.apply(&Event { seq: world.state.seq + 1, time: later, body });
    let open = world.state.attention(1, world.phase()).unwrap();
    assert_eq!((open.last_transition_time, world.state.updated), (since, later));
    assert!(since < later);
}
