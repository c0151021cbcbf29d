//! The answer to the prompt of a turn that has ended.

use agentd_api::event::{SyntheticCause, TurnEnded};
use serde_json::json;
use serde_json::value::RawValue;

use super::refusal;
use super::wire::{INTERNAL_ERROR, Refusal, raw};
use crate::failure::Failure;

/// Stop reasons that the protocol names; an editor may refuse others.
const STOP_REASONS: [&str; 5] = ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"];

/// Returns the answer to the prompt of a turn: the agent's own answer if it exists.
pub(super) fn of(
    ended: &TurnEnded,
    answer: Option<Result<Box<RawValue>, Box<RawValue>>>,
    failure: Option<&Failure>,
    session: &str,
) -> Result<Box<RawValue>, Refusal> {
    let stopped = |reason: &str| raw(&json!({ "stopReason": reason }));
    let Some(synthetic) = &ended.synthetic else {
        let reason = ended.stop_reason.as_deref().unwrap_or("end_turn");
        if STOP_REASONS.contains(&reason) {
            return Ok(answer.and_then(Result::ok).unwrap_or_else(|| stopped(reason)));
        }
        return Ok(raw(&json!({ "stopReason": "end_turn", "_meta": { "agentd": { "stopReason": reason } } })));
    };
    match synthetic.cause {
        SyntheticCause::Dropped => Ok(stopped("cancelled")),
        SyntheticCause::AnswerInvalid => Ok(stopped("end_turn")),
        _ => {
            if let Some(Err(error)) = answer
                && let Ok(refusal) = serde_json::from_str::<Refusal>(error.get())
            {
                return Err(refusal);
            }
            Err(match failure {
                Some(failure) => refusal::of_failure(failure, &failure.remedy(session, true)),
                None => Refusal::new(INTERNAL_ERROR, synthetic.detail.clone()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn ended(value: Value) -> TurnEnded {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_turn_ends_in_the_agents_own_words_or_as_the_protocol_allows() {
        let answer = |json: &str| Some(Ok(RawValue::from_string(json.to_owned()).unwrap()));
        let own = r#"{"stopReason":"end_turn","usage":{"totalTokens":7}}"#;
        let told = |ended: &TurnEnded, answer| of(ended, answer, None, "k3m").unwrap().get().to_owned();
        let normal = ended(json!({ "turn": "t1", "stop_reason": "end_turn" }));
        assert_eq!(told(&normal, answer(own)), own);
        assert_eq!(told(&normal, None), r#"{"stopReason":"end_turn"}"#);
        let strange = ended(json!({ "turn": "t1", "stop_reason": "moonrise" }));
        let said: Value = serde_json::from_str(&told(&strange, answer(r#"{"stopReason":"moonrise"}"#))).unwrap();
        assert_eq!(said, json!({ "stopReason": "end_turn", "_meta": { "agentd": { "stopReason": "moonrise" } } }));
        let dropped = ended(json!({ "turn": "t1", "synthetic": { "cause": "dropped", "detail": "" } }));
        assert_eq!(told(&dropped, None), r#"{"stopReason":"cancelled"}"#);
    }

    #[test]
    fn an_error_of_the_agent_is_passed_on_and_its_exit_is_explained() {
        let failed = ended(json!({ "turn": "t1", "synthetic": { "cause": "agent-error", "detail": "d" } }));
        let own = RawValue::from_string(r#"{"code":-32000,"message":"sign in","data":{"a":1}}"#.to_owned()).unwrap();
        let refusal = of(&failed, Some(Err(own)), None, "k3m").unwrap_err();
        assert_eq!(
            (refusal.code, refusal.message.as_str(), refusal.data),
            (-32000, "sign in", Some(json!({ "a": 1 })))
        );
        let exited = ended(json!({ "turn": "t1", "synthetic": { "cause": "agent-exited", "detail": "it exited" } }));
        let failure = Failure { reason: "AgentExited".into(), message: "exit 3".into(), ..Failure::default() };
        let refusal = of(&exited, None, Some(&failure), "k3m").unwrap_err();
        assert!(refusal.message.starts_with("exit 3\nhint: agentctl "), "{}", refusal.message);
        assert_eq!(of(&exited, None, None, "k3m").unwrap_err().message, "it exited");
    }
}
