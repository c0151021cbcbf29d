//! Formats the results of prerequisite checks: for the table of checks, for a refusal that lists them, and for
//! a session's conditions.

use agentd_api::prerequisite::{CheckReport, Outcome};

use agentd_screen::terminal::Screen;

/// Formats the outcome and the summary of a check, with the facts and the remedy below.
pub fn described(report: &CheckReport, screen: Screen) -> String {
    let outcome = report.outcome.as_str();
    let mut lines = vec![format!("{} ({outcome}): {}\n", screen.line(&report.name), screen.line(&report.summary))];
    let facts = report.facts.iter().map(|fact| (fact.name.as_str(), fact.value.as_str()));
    let all = facts.chain(report.remedy.as_deref().map(|remedy| ("remedy", remedy)));
    lines.extend(all.map(|(name, value)| format!("  {}: {}\n", screen.line(name), screen.line(value))));
    lines.concat()
}

/// Message of a session's condition, split into its beginning and its checks, each as [`CheckReport::line`]
/// writes it. Text after the last check belongs to the last line.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing<'a> {
    pub begins: &'a str,
    pub lines: Vec<&'a str>,
}

impl<'a> Missing<'a> {
    pub fn of(message: &'a str) -> Self {
        let mut starts: Vec<usize> = OBSTACLES
            .iter()
            .flat_map(|outcome| {
                message.match_indices(&format!(" ({}): ", outcome.as_str())).map(|(at, _)| at).collect::<Vec<_>>()
            })
            .filter_map(|at| start(message, at))
            .collect();
        starts.sort_unstable();
        let ends = starts.iter().skip(1).copied().chain([message.len()]);
        let lines = starts.iter().zip(ends).map(|(&start, end)| message[start..end].trim_end_matches("; "));
        Self { begins: message[..starts.first().copied().unwrap_or(message.len())].trim_end(), lines: lines.collect() }
    }

    fn names(&self) -> Vec<&'a str> {
        self.lines.iter().filter_map(|line| line.split(' ').next()).collect()
    }

    /// Returns the message with the names of the checks first, for a line that may be cut at its end.
    pub fn named_first(&self, message: &str) -> String {
        match self.names().as_slice() {
            [] => message.to_owned(),
            [_] if self.begins.is_empty() => message.to_owned(),
            names => format!("{}: {message}", names.join(", ")),
        }
    }
}

/// Returns a line for each check that a launch waits for, from the message of its condition.
pub fn awaited(message: &str) -> Vec<String> {
    match Missing::of(message).lines.as_slice() {
        [] => vec![format!("waiting: {message}")],
        lines => lines.iter().map(|line| format!("waiting: {line}")).collect(),
    }
}

/// Outcomes that delay or prevent a launch.
const OBSTACLES: [Outcome; 2] = [Outcome::Fail, Outcome::Unknown];

/// Returns the start of the check's name that ends at `end`. A name is at the beginning of the message,
/// after another check, or after the words that introduce all checks. Returns `None` elsewhere.
fn start(message: &str, end: usize) -> Option<usize> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let before = message[..end].trim_end_matches(plain);
    let is_said = before.is_empty() || ["; ", ": ", " is "].iter().any(|end| before.ends_with(end));
    (is_said && before.len() < end).then_some(before.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_several_checks_is_taken_apart_at_their_names() {
        let lines =
            vec!["board (unknown): it is (very) silent; look: there", "vpn (fail): no route; connect it; at once"];
        let all = lines.join("; ");
        for (before, begins) in [
            ("", ""),
            ("the wait is over, and still missing is ", "the wait is over, and still missing is"),
            (
                "launched despite unmet prerequisites, as user 1000 asked: ",
                "launched despite unmet prerequisites, as user 1000 asked:",
            ),
        ] {
            let message = format!("{before}{all}");
            let missing = Missing::of(&message);
            assert_eq!(missing, Missing { begins, lines: lines.clone() });
            assert_eq!(missing.named_first(&message), format!("board, vpn: {message}"));
        }
        let one = "vpn (fail): no route";
        assert_eq!(Missing::of(one).named_first(one), one);
        let over = format!("the wait is over, and still missing is {one}");
        assert_eq!(Missing::of(&over).named_first(&over), format!("vpn: {over}"));
        let other = "the launch ended while it waited for prerequisites";
        assert_eq!(Missing::of(other), Missing { begins: other, lines: Vec::new() });
        assert_eq!(Missing::of(other).named_first(other), other);
    }
}
