//! Lines of agents, as the session's rules read them: the Agent Client Protocol, one JSON document a line.
//!
//! Properties:
//! - A line that is skipped without parsing has nothing that a rule reads.
//! - The answer to a request is one line, and parses to the id of the request.
//! - An option that an agent offers is the option that agentd's request sets.
//! - The replacement of lone surrogates keeps the length, and leaves no lone surrogate.

#![no_main]

mod meter;

use agentd_api::event::PermissionOutcome;
use agentd_api::surrogates::replace_lone_surrogates;
use agentd_decide::acp::{self, Message, RpcError, ToolCall};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use serde_json::value::RawValue;

fuzz_target!(|data: &[u8]| {
    meter::bounded(data, 1 << 20, 512, || {
        for line in data.split(|byte| *byte == b'\n') {
            if let Ok(written) = serde_json::from_slice::<&RawValue>(line) {
                read(written);
            }
        }
    });
});

fn read(written: &RawValue) {
    let readable = replace_lone_surrogates(written);
    assert_eq!(readable.get().len(), written.get().len(), "{written}");
    if let Err(error) = serde_json::from_str::<Value>(readable.get()) {
        assert!(!error.to_string().contains("surrogate"), "{error}: {readable}");
    }
    let concerns = acp::concerns_the_session(written.get().as_bytes());
    let usage = acp::usage(&readable);
    match Message::parse(&readable, written) {
        None => {}
        Some(Message::Request { id, method, params }) => {
            assert!(concerns, "a request is skipped: {written}");
            answered(&id, &method);
            if let Some(params) = params {
                asked(&id, params);
            }
        }
        Some(Message::Notification { method, params }) => {
            let reported = params.is_some_and(reports) || usage.is_some();
            assert!(concerns || method != acp::method::UPDATE || !reported, "a report is skipped: {written}");
        }
        Some(Message::Response { id: _, result }) => {
            assert!(concerns, "a response is skipped: {written}");
            match result {
                Ok(result) => succeeded(result),
                Err(error) => failed(&error),
            }
        }
    }
}

/// Checks the answers to a request with this id.
fn answered(id: &Value, method: &str) {
    let outcome = PermissionOutcome::Selected("option".to_owned());
    for answer in [
        acp::unknown_method(id, method),
        acp::permission_answer(id, &outcome),
        acp::permission_answer(id, &PermissionOutcome::Cancelled),
        acp::question_answer(id, &outcome, None),
    ] {
        assert!(!answer.get().contains('\n'), "an answer has a line break: {answer}");
        match Message::parse(&replace_lone_surrogates(&answer), &answer) {
            Some(Message::Response { id: again, .. }) => assert_eq!(again, *id, "{answer}"),
            other => panic!("{answer} parses to {other:?}"),
        }
    }
}

/// Reads the parameters of a request as each kind of request.
fn asked(id: &Value, params: &RawValue) {
    if let Some((mut call, options)) = acp::permission_request(params) {
        call.settle(Some("agent"));
        for option in options {
            let answer = acp::permission_answer(id, &PermissionOutcome::Selected(option.id.clone()));
            let answer: Value = serde_json::from_str(answer.get()).expect("an answer is JSON");
            assert_eq!(answer["result"]["outcome"]["optionId"], *option.id);
        }
    }
    if let Some(question) = acp::question(params) {
        let options = acp::question_options(&question.elicitation);
        assert!(options.iter().any(|option| option.kind == "reject_once"), "a question cannot be declined");
    }
    acp::offered_to_agent(params);
}

/// Reads the parameters of an update. Reports whether a rule of the session reads them.
fn reports(params: &RawValue) -> bool {
    let call = acp::tool_call(params);
    if let Some(ToolCall::Open(call, _)) = &call {
        let mut merged = call.clone();
        merged.update((**call).clone());
        merged.settle(None);
    }
    call.is_some() || acp::session_title(params).is_some() || acp::option_update(params).is_some()
}

fn succeeded(result: &RawValue) {
    if let Ok(initialized) = acp::initialized(result) {
        assert_eq!(stored(&initialized), initialized);
    }
    acp::opened(result);
    acp::stop_reason(result);
    for option in acp::options(result) {
        option.view();
        for value in &option.values {
            let line = acp::set_option(1, "conversation", &option, &value.id);
            assert!(!line.get().contains('\n'), "a request has a line break: {line}");
            let Some(Message::Request { params: Some(params), .. }) = Message::parse(&line, &line) else {
                panic!("{line} is no request")
            };
            assert_eq!(acp::option_of(params), Some((option.id.clone(), value.id.clone())), "{line}");
        }
    }
}

/// Returns the value as a journal gives it back.
fn stored<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("it can be stored");
    serde_json::from_str(&text).expect("it can be read")
}

fn failed(error: &RpcError) {
    let now: Timestamp = "2026-03-10T12:00:00Z".parse().expect("a time");
    let end = acp::rate_limit(error, now, &TimeZone::UTC);
    assert_eq!(acp::rate_limit(error, now, &TimeZone::UTC), end, "{error:?}");
    acp::lacks_login(error);
    assert!(error.to_string().contains(&error.code.to_string()));
}
