//! Questions of an agent with a form or a page: `elicitation/create`
//! (<https://agentclientprotocol.com/protocol/elicitation>).

use std::fmt;

use agentd_api::elicitation::{ACCEPT, DECLINE, Elicitation, FormValues};
use agentd_api::event::PermissionOutcome;
use agentd_api::session::PermissionOption;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A question of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The agent's words.
    pub message: String,
    /// The tool call that the question belongs to.
    pub tool_call: Option<String>,
    /// The form or the page.
    pub elicitation: Elicitation,
}

/// Names of an object's members, in their order.
#[derive(Debug, Default)]
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap;
        impl<'de> Visitor<'de> for OfMap {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_map(OfMap)
    }
}

/// Reads the parameters of `elicitation/create`. Returns `None` if they are no object.
pub fn question(params: &RawValue) -> Option<Question> {
    #[derive(Deserialize)]
    struct Schema {
        #[serde(default)]
        properties: Names,
    }
    #[derive(Deserialize)]
    struct Ordered {
        #[serde(rename = "requestedSchema")]
        schema: Schema,
    }
    let value: Value = serde_json::from_str(params.get()).ok().filter(Value::is_object)?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let elicitation = match value["mode"].as_str() {
        // Earlier drafts of the protocol had no mode.
        Some("form") | None => {
            let ordered = serde_json::from_str::<Ordered>(params.get());
            let order = ordered.map(|ordered| ordered.schema.properties.0).unwrap_or_default();
            Elicitation::Form { schema: value["requestedSchema"].clone(), order }
        }
        Some("url") => {
            Elicitation::Url { id: text("elicitationId").unwrap_or_default(), url: text("url").unwrap_or_default() }
        }
        Some(_) => Elicitation::Unknown,
    };
    let message = text("message").unwrap_or_else(|| "a question without a text".to_owned());
    Some(Question { message, tool_call: text("toolCallId"), elicitation })
}

/// Returns the answers that a question has.
pub fn question_options(elicitation: &Elicitation) -> Vec<PermissionOption> {
    let option = |id: &str, name: &str, kind: &str| PermissionOption {
        id: id.to_owned(),
        name: name.to_owned(),
        kind: kind.to_owned(),
    };
    let accept = match elicitation {
        Elicitation::Form { .. } => Some(option(ACCEPT, "Answer", "allow_once")),
        Elicitation::Url { .. } => Some(option(ACCEPT, "Open the page", "allow_once")),
        Elicitation::Unknown => None,
    };
    accept.into_iter().chain([option(DECLINE, "Decline", "reject_once")]).collect()
}

/// Builds the result of `elicitation/create`.
pub(super) fn result(outcome: &PermissionOutcome, form: Option<&FormValues>) -> Value {
    match outcome {
        PermissionOutcome::Selected(option) if option == ACCEPT => match form {
            Some(values) => json!({ "action": "accept", "content": values }),
            None => json!({ "action": "accept" }),
        },
        PermissionOutcome::Selected(_) => json!({ "action": "decline" }),
        PermissionOutcome::Cancelled => json!({ "action": "cancel" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Question> {
        question(&RawValue::from_string(text.to_owned()).unwrap())
    }

    #[test]
    fn a_form_keeps_the_agents_order_and_a_page_its_address() {
        let form = read(
            r#"{"mode":"form","sessionId":"s","toolCallId":"t","message":"Which?",
                "requestedSchema":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"boolean"}}}}"#,
        )
        .unwrap();
        let Elicitation::Form { schema, order } = &form.elicitation else { panic!("{form:?}") };
        assert_eq!((order.join(","), schema["properties"]["a"]["type"].as_str()), ("z,a".to_owned(), Some("boolean")));
        assert_eq!((form.message.as_str(), form.tool_call.as_deref()), ("Which?", Some("t")));
        let page = read(r#"{"mode":"url","message":"Log in","elicitationId":"e","url":"https://h/x"}"#).unwrap();
        assert_eq!(page.elicitation, Elicitation::Url { id: "e".into(), url: "https://h/x".into() });
        assert_eq!(question_options(&page.elicitation)[0].name, "Open the page");
    }

    #[test]
    fn odd_questions_are_questions_that_can_be_declined() {
        for text in ["{}", r#"{"mode":"form","requestedSchema":{"properties":[1]}}"#, r#"{"mode":7,"message":[]}"#] {
            let question = read(text).unwrap();
            assert_eq!(question.message, "a question without a text");
            assert_eq!(question_options(&question.elicitation).last().unwrap().id, DECLINE, "{text}");
        }
        let new = read(r#"{"mode":"telepathy","message":"m"}"#).unwrap();
        assert_eq!((&new.elicitation, question_options(&new.elicitation).len()), (&Elicitation::Unknown, 1));
        assert!(read("[]").is_none());
    }

    #[test]
    fn an_answer_is_one_of_three_actions() {
        let values: FormValues = serde_json::from_value(json!({ "a": 1 })).unwrap();
        let of = |outcome, form| result(&outcome, form).to_string();
        let accept = || PermissionOutcome::Selected(ACCEPT.into());
        assert_eq!(of(accept(), Some(&values)), r#"{"action":"accept","content":{"a":1}}"#);
        assert_eq!(of(accept(), None), r#"{"action":"accept"}"#);
        assert_eq!(of(PermissionOutcome::Selected(DECLINE.into()), None), r#"{"action":"decline"}"#);
        assert_eq!(of(PermissionOutcome::Cancelled, None), r#"{"action":"cancel"}"#);
    }
}
