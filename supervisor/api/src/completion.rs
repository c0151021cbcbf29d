//! The completion of a session that is not interactive: its outcome, answer, cost and artifacts.

use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::TurnId;

/// Maximum length of an answer in bytes. A longer answer is cut, and satisfies no schema.
pub const LONGEST_ANSWER: usize = 256 << 10;
/// Maximum length of a schema in bytes.
pub const LONGEST_SCHEMA: usize = 64 << 10;

/// How a session that was not interactive ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "CompletionOutcome"))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The agent ended the turns of all prompts itself.
    Completed,
    /// The launch, the agent or a turn failed.
    Failed,
    /// A client stopped the session or cancelled a turn.
    Cancelled,
    /// The session reached one of its limits.
    Limit,
    /// An answer does not satisfy its schema.
    Schema,
    /// An outcome newer than this reader.
    #[serde(other)]
    Unknown,
}

impl Outcome {
    /// Returns the exit status of `agentctl run --batch`.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::Failed | Self::Unknown => 1,
            Self::Limit => 5,
            Self::Schema => 6,
            Self::Cancelled => 130,
        }
    }

    /// Returns the outcome's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Limit => "limit",
            Self::Schema => "schema",
            Self::Unknown => "unknown",
        }
    }
}

/// Data of the record `session.completed`: the result of a session that was not interactive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Completion {
    /// How the session ended.
    pub outcome: Outcome,
    /// Description of the outcome for people.
    pub reason: String,
    /// Exit status of `agentctl run --batch`: 0 completed, 1 failed, 5 limit, 6 schema, 130 cancelled.
    pub exit_status: u8,
    /// Time at which the agent's end was known and the result was gathered.
    pub completed_at: Timestamp,
    /// Exit status of the agent's process, if it exited normally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_status: Option<i32>,
    /// Number of the signal that ended the agent's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_signal: Option<i32>,
    /// The last turn that was sent to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The agent's last message of that turn. Absent if the agent sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Whether the answer was longer than 256 KiB and is cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answer_cut: bool,
    /// The JSON value of an answer that satisfies its schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// The session's cost, if the agent reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The tokens that the agent reported.
    #[serde(default, skip_serializing_if = "Usage::is_empty")]
    pub usage: Usage,
    /// The files in the session's artifacts directory, by their paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// The missing parts of the list of artifacts, for people. Absent if the list is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts_cut: Option<String>,
}

/// A file that a session left in its artifacts directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Artifact {
    /// Path below the artifacts directory. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the content in hex. Absent if the file was not hashed; `artifacts_cut` has the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Data of the record `session.completing`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionCompleting {
    /// The outcome of the prompts.
    pub outcome: Outcome,
    /// Description of the outcome for people.
    pub reason: String,
}

/// Data of the record `answer.checked`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnswerChecked {
    /// Id of the turn.
    pub turn: TurnId,
    /// Number of the answer in the turn, counted from 1.
    pub attempt: u32,
    /// The violations of the schema. Empty if it satisfies the schema.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SchemaError>,
    /// Whether the turn fails. Otherwise the agent is asked once more for a valid answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fails: bool,
}

/// A violation of a schema, or a mistake in a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchemaError {
    /// JSON Pointer to the value in the answer, or to the place in the schema. Empty for the whole document.
    pub place: String,
    /// Description for people.
    pub message: String,
}

impl std::fmt::Display for SchemaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.place.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "at {}: {}", self.place, self.message)
        }
    }
}

/// A cost that an agent reported (ACP `Cost`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cost {
    /// Cost of the session so far.
    pub amount: f64,
    /// Unit of the amount: a currency code of ISO 4217, or another unit such as `credits`.
    pub currency: String,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.amount, self.currency)
    }
}

/// Tokens that an agent reported last. ACP leaves open whether they are those of the turn or of the session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Usage {
    /// Tokens in the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_used: Option<u64>,
    /// Size of the context in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u64>,
    /// Sum of all tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// Input tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
}

impl Usage {
    /// Reports whether the agent reported no tokens.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Units of an amount in [`CostLimit`].
const MICROS: f64 = 1_000_000.0;
/// Maximum amount of a limit. Each amount up to it is exact in millionths.
const LARGEST: f64 = 1e9;

/// Maximum cost of a session: an amount in millionths of its currency's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "WrittenCost", into = "WrittenCost")]
pub struct CostLimit {
    micros: u64,
    currency: Currency,
}

/// Up to 16 bytes of ASCII, padded with NUL.
type Currency = [u8; 16];

/// A cost limit as JSON has it: an object, or a text such as `5 USD`.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
enum WrittenCost {
    Object(CostObject),
    Text(String),
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct CostObject {
    amount: f64,
    currency: String,
}

/// Error for a text or an object that is not a valid cost limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCost {
    /// The amount is not a number that a limit can have.
    #[error("the amount of a cost limit is a number greater than 0 and at most 1000000000")]
    Amount,
    /// The currency is not a word.
    #[error("the currency of a cost limit is a word of 1 to 16 letters, such as USD")]
    Currency,
}

impl CostLimit {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked before")]
    fn new(amount: f64, currency: &str) -> Result<Self, InvalidCost> {
        // NaN is in no range.
        if !(1.0 / MICROS..=LARGEST).contains(&amount) {
            return Err(InvalidCost::Amount);
        }
        let mut padded = Currency::default();
        let is_word = currency.bytes().all(|byte| byte.is_ascii_alphabetic()) && !currency.is_empty();
        let Some(room) = padded.get_mut(..currency.len()).filter(|_| is_word) else {
            return Err(InvalidCost::Currency);
        };
        room.copy_from_slice(currency.as_bytes());
        Ok(Self { micros: (amount * MICROS).round() as u64, currency: padded })
    }

    /// Returns the currency.
    pub fn currency(&self) -> &str {
        let end = self.currency.iter().position(|byte| *byte == 0).unwrap_or(self.currency.len());
        std::str::from_utf8(&self.currency[..end]).unwrap_or_default()
    }

    #[allow(clippy::cast_precision_loss, reason = "amounts up to the largest are exact")]
    fn amount(&self) -> f64 {
        self.micros as f64 / MICROS
    }

    /// Reports whether a cost exceeds the limit. `None` if the cost is in another currency.
    pub fn is_exceeded(&self, cost: &Cost) -> Option<bool> {
        self.currency().eq_ignore_ascii_case(&cost.currency).then(|| cost.amount > self.amount())
    }
}

impl std::fmt::Display for CostLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.amount(), self.currency())
    }
}

impl FromStr for CostLimit {
    type Err = InvalidCost;

    /// Parses an amount and a currency: `5 USD`, `0.5USD`.
    fn from_str(text: &str) -> Result<Self, InvalidCost> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (amount, currency) = text.split_at(digits);
        Self::new(amount.parse().map_err(|_| InvalidCost::Amount)?, currency.trim())
    }
}

impl TryFrom<WrittenCost> for CostLimit {
    type Error = InvalidCost;

    fn try_from(written: WrittenCost) -> Result<Self, InvalidCost> {
        match written {
            WrittenCost::Object(CostObject { amount, currency }) => Self::new(amount, &currency),
            WrittenCost::Text(text) => text.parse(),
        }
    }
}

impl From<CostLimit> for WrittenCost {
    fn from(limit: CostLimit) -> Self {
        Self::Object(CostObject { amount: limit.amount(), currency: limit.currency().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_limit_is_read_in_both_notations_and_written_as_an_object() {
        for (written, amount) in [("\"0.1 USD\"", 0.1), ("\"5USD\"", 5.0), (r#"{"amount":2.5,"currency":"USD"}"#, 2.5)]
        {
            let limit: CostLimit = serde_json::from_str(written).unwrap();
            let object = serde_json::json!({ "amount": amount, "currency": "USD" });
            assert_eq!(serde_json::to_value(limit).unwrap(), object, "{written}");
        }
        for invalid in ["\"5\"", "\"USD\"", "\"0 USD\"", "\"-1 USD\"", r#"{"amount":1e300,"currency":"USD"}"#, "7"] {
            assert!(serde_json::from_str::<CostLimit>(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_limit_is_exceeded_only_in_its_own_currency() {
        let limit: CostLimit = "1 USD".parse().unwrap();
        let cost = |amount, currency: &str| Cost { amount, currency: currency.to_owned() };
        assert_eq!(limit.is_exceeded(&cost(1.0, "USD")), Some(false));
        assert_eq!(limit.is_exceeded(&cost(1.01, "usd")), Some(true));
        assert_eq!(limit.is_exceeded(&cost(9.0, "EUR")), None);
    }
}
