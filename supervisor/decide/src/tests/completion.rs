//! Sessions that are not interactive: the outcome of each end, and answers with a schema.

use agentd_api::completion::{AnswerChecked, Completion, Outcome, SchemaError};

use super::*;
use crate::completion::{DueCheck, checked};

/// Returns the result that follows from a state, without answer and artifacts.
pub(super) fn result(state: &State) -> Completion {
    let verdict = state.verdict();
    Completion {
        outcome: verdict.outcome,
        reason: verdict.reason,
        exit_status: verdict.outcome.exit_status(),
        completed_at: Timestamp::UNIX_EPOCH,
        agent_status: state.completion.agent.0,
        agent_signal: state.completion.agent.1,
        turn: state.completion.last.as_ref().map(|last| last.id.clone()),
        answer: None,
        answer_cut: false,
        structured: None,
        cost: state.completion.cost.clone(),
        usage: state.completion.usage,
        artifacts: Vec::new(),
        artifacts_cut: None,
    }
}

/// Returns the records of a check that finds the answer valid or not.
pub(super) fn answer_is(state: &State, due: DueCheck, is_valid: bool) -> Batch {
    let error = SchemaError { place: "/ok".to_owned(), message: "it is wrong".to_owned() };
    let errors = if is_valid { Vec::new() } else { vec![error] };
    let fails = due.is_last && !is_valid;
    checked(state, AnswerChecked { turn: due.turn, attempt: due.attempt, errors, fails })
}

/// Returns a batch session that is ready for a prompt.
fn batch_session(queued: usize) -> World {
    let spec = SessionSpec { interactive: false, ..SessionSpec::new("/work") };
    let mut world = opened_of(World::of(spec, RestartPolicy::OnFailure));
    for _ in 0..queued {
        world.ask(prompt(None)).unwrap();
    }
    world.settle();
    world
}

fn prompt(schema: Option<Value>) -> Command {
    Command::Prompt { text: "go".into(), parts: Vec::new(), schema, key: None, requester: None }
}

fn outcome(world: &World) -> Option<(Phase, Outcome)> {
    world.state.completion.done.as_ref().map(|done| (world.phase(), done.outcome))
}

#[test]
fn a_batch_session_completes_after_its_last_prompt() {
    let mut world = batch_session(2);
    world.act(&Act::AgentAnswers { well: true });
    assert_eq!((outcome(&world), world.phase()), (None, Phase::Busy), "the second prompt is next");
    world.act(&Act::AgentAnswers { well: true });
    assert_eq!(outcome(&world), Some((Phase::Completed, Outcome::Completed)));
    world.act(&Act::Resume { fresh: false });
    assert_eq!(world.phase(), Phase::Preparing);
    assert!(!world.state.awaits_completion(), "it is interactive");
}

#[test]
fn each_other_end_is_the_end_of_the_session() {
    for (act, expected) in [
        (Act::AgentAnswers { well: false }, (Phase::Failed, Outcome::Failed)),
        (Act::AgentDies, (Phase::Failed, Outcome::Failed)),
        (Act::Stop, (Phase::Stopped, Outcome::Cancelled)),
    ] {
        let mut world = batch_session(2);
        world.act(&act);
        assert_eq!(outcome(&world), Some(expected), "{act:?}");
        assert!(world.state.queue.is_empty(), "{act:?}: the prompt behind it is dropped");
        assert!(!is_restarted(&world.state, &world.facts()), "{act:?}");
    }
    let mut world = batch_session(1);
    world.act(&Act::Cancel);
    world.act(&Act::AgentAnswers { well: true });
    assert_eq!(outcome(&world), Some((Phase::Stopped, Outcome::Cancelled)));
    // The limit of a turn is one of the waits.
    let mut world = batch_session(1);
    let waits = waits(&world.state, &world.facts());
    let turn = waits.iter().position(|wait| matches!(wait, crate::waits::Wait::Turn { .. })).unwrap();
    world.act(&Act::TimePasses { which: turn });
    world.act(&Act::AgentAnswers { well: true });
    assert_eq!(outcome(&world), Some((Phase::Failed, Outcome::Limit)));
}

#[test]
fn an_invalid_answer_is_asked_for_once_more_in_the_same_turn() {
    for (first, second, expected) in
        [(true, true, Outcome::Completed), (false, true, Outcome::Completed), (false, false, Outcome::Schema)]
    {
        let mut world = batch_session(0);
        let schema = serde_json::json!({ "type": "object" });
        world.ask(prompt(Some(schema))).unwrap();
        for is_valid in [first, second] {
            // The loop of the model answers each check at once, so the steps are done by hand.
            while let Some(Step::Append(batch)) = next(&world.state, &world.facts()) {
                world.write(batch);
            }
            if world.state.awaits_completion() && matches!(world.phase(), Phase::Busy) {
                world.agent_answers(true);
            }
            if let Some(Step::CheckAnswer(due)) = next(&world.state, &world.facts()) {
                let batch = answer_is(&world.state, due, is_valid);
                world.write(batch);
            }
        }
        world.settle();
        assert_eq!(outcome(&world).map(|(_, outcome)| outcome), Some(expected), "{first} {second}");
        let ends = world.journal.iter().filter(|event| matches!(event.body, Body::TurnEnded(_))).count();
        assert_eq!(ends, 1);
    }
}
