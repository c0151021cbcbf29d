//! Parses the tokens and the cost that an agent reports: in `session/update` of kind `usage_update`, and in the
//! response to a prompt. The latter is unstable in ACP (<https://agentclientprotocol.com/rfds/session-usage>).

use agentd_api::completion::{Cost, Usage};
use serde_json::Value;
use serde_json::value::RawValue;

/// Maximum number of characters of a currency.
const CURRENCY: usize = 32;

/// The report of one line of an agent.
#[derive(Debug, Default, PartialEq)]
pub struct ReportedUsage {
    cost: Option<Cost>,
    usage: Usage,
}

impl ReportedUsage {
    /// Replaces the values that the line reports.
    pub fn into(self, cost: &mut Option<Cost>, usage: &mut Usage) {
        if self.cost.is_some() {
            *cost = self.cost;
        }
        let Usage { context_used, context_size, total_tokens, input_tokens, output_tokens } = self.usage;
        usage.context_used = context_used.or(usage.context_used);
        usage.context_size = context_size.or(usage.context_size);
        if total_tokens.is_some() {
            (usage.total_tokens, usage.input_tokens, usage.output_tokens) = (total_tokens, input_tokens, output_tokens);
        }
    }
}

/// Returns what a line of the agent reports; `None` for almost all lines. Values that make no sense count as absent.
pub fn usage(line: &RawValue) -> Option<ReportedUsage> {
    if !line.get().contains("\"usage") {
        return None;
    }
    let message: Value = serde_json::from_str(line.get()).ok()?;
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64);
    if let Some(tokens) = message.get("result").and_then(|result| result.get("usage")) {
        let usage = Usage {
            total_tokens: Some(number(tokens, "totalTokens")?),
            input_tokens: number(tokens, "inputTokens"),
            output_tokens: number(tokens, "outputTokens"),
            ..Usage::default()
        };
        return Some(ReportedUsage { cost: None, usage });
    }
    let update = message.get("params")?.get("update")?;
    if update.get("sessionUpdate")?.as_str() != Some("usage_update") {
        return None;
    }
    let (context_used, context_size) = (number(update, "used"), number(update, "size"));
    let cost = update.get("cost").and_then(|cost| {
        let amount = cost.get("amount")?.as_f64().filter(|amount| amount.is_finite() && *amount >= 0.0)?;
        let currency = cost.get("currency")?.as_str()?;
        Some(Cost { amount, currency: currency.chars().filter(|c| !c.is_control()).take(CURRENCY).collect() })
    });
    Some(ReportedUsage { cost, usage: Usage { context_used, context_size, ..Usage::default() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<ReportedUsage> {
        usage(&RawValue::from_string(text.to_owned()).unwrap())
    }

    #[test]
    fn both_reports_are_read_and_odd_values_are_left_out() {
        let update = |fields: &str| {
            read(&format!(
                r#"{{"method":"session/update","params":{{"update":{{"sessionUpdate":"usage_update",{fields}}}}}}}"#
            ))
        };
        let (mut cost, mut known) = (None, Usage::default());
        update(r#""used":5,"size":9,"cost":{"amount":0.5,"currency":"USD"}"#).unwrap().into(&mut cost, &mut known);
        assert_eq!(cost, Some(Cost { amount: 0.5, currency: "USD".to_owned() }));
        read(r#"{"id":1,"result":{"stopReason":"end_turn","usage":{"totalTokens":7,"inputTokens":3}}}"#)
            .unwrap()
            .into(&mut cost, &mut known);
        assert_eq!((known.context_used, known.total_tokens, known.output_tokens), (Some(5), Some(7), None));
        for odd in [r#""cost":{"amount":-1,"currency":"USD"}"#, r#""cost":{"amount":"1"}"#, r#""used":"x""#] {
            assert_eq!(update(odd).unwrap(), ReportedUsage::default(), "{odd}");
        }
        assert_eq!(read(r#"{"id":1,"result":{"stopReason":"end_turn"}}"#), None);
    }
}
