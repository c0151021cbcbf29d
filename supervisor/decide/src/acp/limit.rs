//! Recognises a rate limit in an agent's answer to a prompt, and the time at which the limit ends.
//!
//! ACP has no error for it. Agents pass on the words of their provider, in the message, in `data`, or as JSON within a
//! text. Seen in claude-agent-acp 0.101.0 (`errorKind`), codex-acp 2.6.0 (`codexErrorInfo`), and gemini-cli 0.61.0
//! (Google's `RESOURCE_EXHAUSTED`).

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp, ToSpan as _};
use serde_json::Value;

use super::RpcError;

/// Maximum depth and number of values that are looked at.
const DEPTH: usize = 8;
const VALUES: usize = 256;
/// Maximum number of characters of a text that are looked at.
const TEXT: usize = 4096;
/// Maximum number of words of a duration or a time.
const WORDS: usize = 8;

/// Values that name a rate limit, in lower case and without punctuation.
const KINDS: [&str; 8] = [
    "ratelimit",
    "ratelimiterror",
    "ratelimitexceeded",
    "usagelimitexceeded",
    "usagelimitreached",
    "toomanyrequests",
    "resourceexhausted",
    "quotaexceeded",
];
/// Phrases that name a rate limit. A limit of the context or of the answer's length has others.
const PHRASES: [&str; 12] = [
    "rate limit",
    "rate-limit",
    "rate_limit",
    "usage limit",
    "session limit",
    "weekly limit",
    "hour limit",
    "hit your limit",
    "too many requests",
    "resource_exhausted",
    "exceeded your current quota",
    "quota exceeded",
];
/// A quota that does not come back by itself.
const PAID: &str = "insufficientquota";
const STATUSES: [&str; 5] = ["code", "status", "statuscode", "httpstatus", "httpstatuscode"];
const MOMENTS: [&str; 5] = ["resetsat", "resetat", "resettime", "ratelimitreset", "retryat"];
const PAUSES: [&str; 8] = [
    "resetsin",
    "resetsinseconds",
    "resetinseconds",
    "retryafter",
    "retryafterseconds",
    "retryafterms",
    "retrydelay",
    "retrydelayms",
];

/// Returns the rate limit in an agent's error: the time at which it ends, if the agent names one. `zone` is the time
/// zone of times without one.
#[allow(clippy::option_option, reason = "a limit without a time differs from an error that is no limit")]
pub fn rate_limit(error: &RpcError, now: Timestamp, zone: &TimeZone) -> Option<Option<Timestamp>> {
    let said = Said::of(error);
    let is_limit = (error.code == 429 || said.has_kind() || said.has_phrase()) && !said.has(PAID);
    is_limit.then(|| said.end(now, zone))
}

/// The parts of an error.
pub(super) struct Said {
    /// Numbers and texts with their keys, in lower case and without punctuation.
    fields: Vec<(String, Value)>,
    texts: Vec<String>,
}

impl Said {
    pub(super) fn of(error: &RpcError) -> Self {
        let mut said = Self { fields: Vec::new(), texts: Vec::new() };
        said.gather("message", &Value::String(error.message.clone()), DEPTH);
        said.gather("data", error.data.as_ref().unwrap_or(&Value::Null), DEPTH);
        said
    }

    fn gather(&mut self, key: &str, value: &Value, depth: usize) {
        if depth == 0 || self.fields.len() >= VALUES {
            return;
        }
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| self.gather(&plain(key), value, depth - 1)),
            Value::Array(list) => list.iter().for_each(|value| self.gather(key, value, depth - 1)),
            Value::Number(_) => self.fields.push((key.to_owned(), value.clone())),
            Value::String(text) => {
                let text: String = text.chars().take(TEXT).collect();
                let json = text.find('{').map(|at| serde_json::Deserializer::from_str(&text[at..]).into_iter().next());
                if let Some(Some(Ok(json))) = json {
                    self.gather(key, &json, depth - 1);
                }
                self.fields.push((key.to_owned(), Value::String(text.clone())));
                self.texts.push(text);
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Reports whether a text is this word, apart from case and punctuation.
    pub(super) fn has(&self, word: &str) -> bool {
        self.fields.iter().any(|(_, value)| value.as_str().is_some_and(|text| plain(text) == word))
    }

    fn has_kind(&self) -> bool {
        KINDS.iter().any(|kind| self.has(kind)) || self.has_status(429)
    }

    /// Reports whether a field has this HTTP status.
    pub(super) fn has_status(&self, status: u64) -> bool {
        let is_status = |value: &Value| {
            value.as_u64() == Some(status) || value.as_str().is_some_and(|text| text.parse() == Ok(status))
        };
        self.fields.iter().any(|(key, value)| STATUSES.contains(&key.as_str()) && is_status(value))
    }

    fn has_phrase(&self) -> bool {
        self.has_one_of(&PHRASES)
    }

    /// Reports whether a text contains one of these phrases, in lower case.
    pub(super) fn has_one_of(&self, phrases: &[&str]) -> bool {
        let mut texts = self.texts.iter().map(|text| text.to_ascii_lowercase());
        texts.any(|text| phrases.iter().any(|phrase| text.contains(phrase)))
    }

    /// Returns the time at which the limit ends. Fields precede words.
    fn end(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let field = self.fields.iter().find_map(|(key, value)| match key.as_str() {
            key if MOMENTS.contains(&key) => moment_of(value),
            key if PAUSES.contains(&key) => now.checked_add(pause_of(key, value)?).ok(),
            _ => None,
        });
        field.or_else(|| self.texts.iter().find_map(|text| end_in(text, now, zone)))
    }
}

/// Returns a word in lower case and without punctuation.
fn plain(word: &str) -> String {
    word.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns the time in a field: seconds or milliseconds since 1970, or a time in RFC 3339.
fn moment_of(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => text.parse().ok().or_else(|| epoch(text.parse().ok()?)),
        value => epoch(value.as_f64()?),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the number is bounded")]
fn epoch(number: f64) -> Option<Timestamp> {
    match number {
        // From the year 2001 in seconds, and to the year 2286.
        1e9..1e10 => Timestamp::from_second(number as i64).ok(),
        1e12..1e13 => Timestamp::from_millisecond(number as i64).ok(),
        _ => None,
    }
}

/// Returns the duration in a field: a number of seconds or milliseconds, or a text such as `12.5s`.
fn pause_of(key: &str, value: &Value) -> Option<SignedDuration> {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    match number {
        Some(number) => {
            SignedDuration::try_from_secs_f64(if key.ends_with("ms") { number / 1000.0 } else { number }).ok()
        }
        None => duration_in(value.as_str()?),
    }
}

/// Returns the time at which the limit ends, in a text such as `resets 3pm (Europe/Berlin)` or `try again in 2 days`.
fn end_in(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    if let Some((_, digits)) = text.split_once('|') {
        let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
        if let Some(end) = digits.parse().ok().and_then(epoch) {
            return Some(end);
        }
    }
    let lower = text.to_ascii_lowercase();
    let after = |marker: &&str| lower.match_indices(*marker).map(|(at, _)| at + marker.len()).collect::<Vec<_>>();
    let places = ["resets", "reset", "try again", "retry", "available again"].iter().flat_map(after);
    places.into_iter().find_map(|at| {
        let rest = text[at..].trim_start_matches([':', ' ', '\n']);
        let words = |skipped: &[&str]| {
            let (first, rest) = rest.split_once(' ')?;
            skipped.contains(&first.to_ascii_lowercase().as_str()).then(|| rest.trim_start())
        };
        let pause = |text: &str| now.checked_add(duration_in(text)?).ok();
        match (words(&["in", "after"]), words(&["at", "on"])) {
            (Some(rest), _) => pause(rest).or_else(|| moment_in(rest, now, zone)),
            (None, Some(rest)) => moment_in(rest, now, zone),
            (None, None) => moment_in(rest, now, zone).or_else(|| pause(rest)),
        }
    })
}

/// Returns the duration at the beginning of a text, such as `2 days 17 hours and 14 minutes` or `3h 21min`.
fn duration_in(text: &str) -> Option<SignedDuration> {
    let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "and").take(WORDS).collect();
    let ends = (1..=words.len()).rev();
    let spans =
        ends.filter_map(|end| words[..end].join(" ").trim_end_matches(['.', ',', ';', ')']).parse::<Span>().ok());
    spans.into_iter().find_map(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()).ok())
}

/// Formats of times without their date, then with it.
const TIMES: [&str; 3] = ["%I:%M %p", "%I %p", "%H:%M"];
const DATES: [&str; 6] = ["%Y-%m-%d", "%b %d %Y", "%B %d %Y", "%b %d", "%B %d", ""];

/// Returns the time at the beginning of a text: in RFC 3339, or such as `Apr 17, 7pm (Asia/Riyadh)`. A time of day
/// without a date is the next one.
fn moment_in(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let first = text.split_whitespace().next()?.trim_end_matches(['.', ',', ';', ')']);
    if let Ok(time) = first.parse() {
        return Some(time);
    }
    let is_kept = |word: &&str| !word.eq_ignore_ascii_case("at");
    let words: Vec<String> = text.split_whitespace().filter(is_kept).take(WORDS).map(cardinal).collect();
    let text = words.join(" ");
    let formats = DATES.iter().flat_map(|date| TIMES.iter().map(move |time| format!("{date} {time}")));
    let (read, length) =
        formats.into_iter().find_map(|format| BrokenDownTime::parse_prefix(format.trim_start(), &text).ok())?;
    let zone = zone_in(&text[length..]).unwrap_or_else(|| zone.clone());
    let today = now.to_zoned(zone.clone()).date();
    let time = read.to_time().ok()?;
    let at = |date: jiff::civil::Date| zone.to_timestamp(DateTime::from_parts(date, time)).ok();
    match (read.year(), read.month(), read.day()) {
        (Some(_), ..) => at(read.to_date().ok()?),
        (None, Some(month), Some(day)) => {
            let this = jiff::civil::Date::new(today.year(), month, day).ok()?;
            let is_past = this < today.checked_sub(1.day()).ok()?;
            at(if is_past { this.checked_add(1.year()).ok()? } else { this })
        }
        _ => at(today).filter(|time| *time > now).or_else(|| at(today.tomorrow().ok()?)),
    }
}

/// Returns a word of a date without a comma, and without the ending of an ordinal number.
fn cardinal(word: &str) -> String {
    let word = word.trim_end_matches(',');
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_ordinal = ["st", "nd", "rd", "th"].contains(&&word[digits.len()..]);
    (if is_ordinal && !digits.is_empty() { digits } else { word }).to_owned()
}

/// Returns the time zone at the beginning of a text, such as `(Europe/Berlin)`, or `UTC`.
fn zone_in(text: &str) -> Option<TimeZone> {
    let word = text.trim_start().trim_start_matches('(');
    let name = word.split(|c: char| c.is_whitespace() || [')', '.', ',', ';'].contains(&c)).next()?;
    if name.is_empty() { None } else { TimeZone::get(name).ok() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-03-10T12:00:00Z";

    const UNNAMED: &str = "unnamed";

    /// Returns the end of the limit, or `UNNAMED`. `None` if the error is no limit.
    fn read(error: Value) -> Option<String> {
        let error: RpcError = serde_json::from_value(error).unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        rate_limit(&error, NOW.parse().unwrap(), &zone).map(|end| end.map_or(UNNAMED.to_owned(), |end| end.to_string()))
    }

    fn message(text: &str) -> Option<String> {
        read(json!({ "code": -32603, "message": text }))
    }

    #[test]
    fn words_name_a_limit_and_its_end() {
        for (text, end) in [
            ("You've hit your limit · resets 3pm (Europe/Berlin)", Some("2026-03-10T14:00:00Z")),
            ("You've hit your limit · resets 3am (Europe/Berlin)", Some("2026-03-11T02:00:00Z")),
            ("You've hit your limit · resets Mar 17, 7pm (Asia/Riyadh)", Some("2026-03-17T16:00:00Z")),
            ("Weekly limit reached · resets Jan 2 at 10:30am", Some("2027-01-02T08:30:00Z")),
            ("Claude AI usage limit reached|1773154800", Some("2026-03-10T15:00:00Z")),
            ("5-hour limit reached ∙ resets 15:00", Some("2026-03-10T13:00:00Z")),
            (
                "You've hit your usage limit. Upgrade to Pro, or try again in 2 days 17 hours 14 minutes.",
                Some("2026-03-13T05:14:00Z"),
            ),
            ("You've hit your usage limit. Try again at Aug 20th, 2026 7:38 AM.", Some("2026-08-20T05:38:00Z")),
            ("usage limit; resets in 3h 21min", Some("2026-03-10T15:21:00Z")),
            ("You exceeded your current quota. Please retry in 12.5s.", Some("2026-03-10T12:00:12.5Z")),
            ("Rate limit reached for gpt-5. Please try again in 1 hour and 3 minutes", Some("2026-03-10T13:03:00Z")),
            ("429 Too Many Requests, retry after 2026-03-10T12:30:00Z.", Some("2026-03-10T12:30:00Z")),
            ("rate limit exceeded, please try again later", None),
            ("rate limit: resets at the end of time", None),
        ] {
            assert_eq!(message(text), Some(end.unwrap_or(UNNAMED).to_owned()), "{text}");
        }
    }

    #[test]
    fn fields_name_a_limit_and_its_end() {
        let error = |data: Value| read(json!({ "code": -32603, "message": "Internal error", "data": data }));
        let google = r#"got {"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"40s"}]}}"#;
        for (data, end) in [
            (json!({ "errorKind": "rate_limit" }), None),
            (json!({ "codexErrorInfo": "usageLimitExceeded" }), None),
            (json!({ "codexErrorInfo": { "httpConnectionFailed": { "httpStatusCode": 429 } } }), None),
            (json!({ "type": "usage_limit_reached", "resets_at": 1_773_154_800 }), Some("2026-03-10T15:00:00Z")),
            (json!({ "type": "rate_limit_error", "resetsAt": 1_773_154_800_000_u64 }), Some("2026-03-10T15:00:00Z")),
            (json!({ "status": "429", "resets_in_seconds": 90 }), Some("2026-03-10T12:01:30Z")),
            (json!({ "status": 429, "headers": { "Retry-After": "30" } }), Some("2026-03-10T12:00:30Z")),
            (json!({ "status": 429, "retryAfterMs": 1500 }), Some("2026-03-10T12:00:01.5Z")),
            (json!({ "details": google }), Some("2026-03-10T12:00:40Z")),
            (json!(google), Some("2026-03-10T12:00:40Z")),
        ] {
            assert_eq!(error(data.clone()), Some(end.unwrap_or(UNNAMED).to_owned()), "{data}");
        }
        assert_eq!(read(json!({ "code": 429, "message": "no" })), Some(UNNAMED.to_owned()));
    }

    #[test]
    fn other_errors_are_no_limit() {
        for text in [
            "",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "context limit reached; resets are not possible",
            "Reached maximum number of turns (20)",
            "API Error: 529 overloaded",
            "Credit balance is too low",
            "Invalid request: the field 429 is unknown",
        ] {
            assert_eq!(message(text), None, "{text}");
        }
        let paid = json!({ "code": 429, "message": "quota", "data": { "type": "insufficient_quota" } });
        assert_eq!(read(paid), None);
        assert_eq!(read(json!({ "code": -32000, "message": "sign in" })), None);
    }

    #[test]
    fn hostile_errors_are_bounded() {
        let mut deep = json!({ "type": "rate_limit" });
        for _ in 0..100 {
            deep = json!({ "a": deep });
        }
        assert_eq!(read(json!({ "code": 1, "message": "x", "data": deep })), None);
        let wide: Vec<Value> = (0..100_000).map(|number| json!(number)).collect();
        assert_eq!(read(json!({ "code": 429, "message": "x", "data": wide })), Some(UNNAMED.to_owned()));
        for text in
            ["rate limit, resets ü", "rate limit|", "rate limit resets", "rate limit in 99999999999999999999 days"]
        {
            assert_eq!(message(text), Some(UNNAMED.to_owned()), "{text}");
        }
        let far = json!({ "code": 429, "message": "x", "data": { "retryAfter": 1e300, "resetsAt": 1e300 } });
        assert_eq!(read(far), Some(UNNAMED.to_owned()));
    }
}
