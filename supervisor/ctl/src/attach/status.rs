//! Formats the status line: a sign of work with the elapsed time, the mode, the model, tokens, cost, queue and title.

use std::time::Duration;

use agentd_api::completion::Usage;

use super::facts::Facts;
use agentd_screen::painted;
use agentd_screen::terminal::{Screen, TextStyle};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// Time between two pictures of the spinner.
pub(super) const TICK: Duration = Duration::from_millis(125);
const SEPARATOR: &str = " · ";

/// State of the session as the status line tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// The session accepts no prompts yet, or no more.
    NotReady,
    /// The agent waits for a prompt.
    Idle,
    /// A turn runs, since this time if it is known.
    Busy(Option<Duration>),
    /// A question waits for the user.
    Asked,
}

/// Returns the status line. `frame` counts the ticks.
pub(super) fn line(
    work: Work,
    facts: &Facts,
    queued: usize,
    agent: &str,
    frame: u128,
    columns: usize,
    screen: Screen,
) -> String {
    let spinner = SPINNER[usize::try_from(frame % SPINNER.len() as u128).unwrap_or_default()];
    let sign = match work {
        Work::NotReady => format!("{spinner} not ready"),
        Work::Idle => "ready".to_owned(),
        Work::Busy(since) => {
            let elapsed = since.map(|since| format!(" {}", elapsed(since))).unwrap_or_default();
            format!("{spinner}{elapsed}")
        }
        Work::Asked => "waits for your answer".to_owned(),
    };
    let mut parts = vec![agent.to_owned()];
    parts.extend(facts.model_name().map(str::to_owned));
    parts.extend(facts.mode_name().map(str::to_owned));
    parts.extend(tokens(&facts.usage));
    parts.extend(facts.cost.as_ref().map(|cost| format!("{:.2} {}", cost.amount, cost.currency)));
    parts.extend((queued > 0).then(|| format!("{queued} queued")));
    parts.extend(facts.title.clone());
    // Every part but the first is the agent's text. None of them may be longer than half a line.
    let parts = parts.iter().map(|part| painted::clip(&screen.line(part), columns / 2)).filter(|part| !part.is_empty());
    let rest = parts.fold(String::new(), |rest, part| rest + SEPARATOR + &part);
    let look = if work == Work::Asked { TextStyle::Ask } else { TextStyle::Bold };
    let text = format!("{}{}", screen.paint(look, &sign), screen.paint(TextStyle::Dim, &rest));
    painted::clip(&text, columns)
}

fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3_600, seconds / 60 % 60),
    }
}

fn tokens(usage: &Usage) -> Option<String> {
    match (usage.context_used, usage.context_size, usage.total_tokens) {
        (Some(used), Some(size), _) => Some(format!("{}/{} tokens", short(used), short(size))),
        (Some(used), None, _) | (None, _, Some(used)) => Some(format!("{} tokens", short(used))),
        (None, _, None) => None,
    }
}

fn short(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        1_000..1_000_000 => format!("{}k", number / 1_000),
        _ => format!("{}.{}M", number / 1_000_000, number / 100_000 % 10),
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::completion::Cost;

    use super::*;

    const SCREEN: Screen = Screen { terminal: true, colour: false };

    fn facts() -> Facts {
        Facts {
            mode: Some("plan".into()),
            model: Some("opus".into()),
            title: Some("Fix\nthe \x1b]0;bug\x07".into()),
            usage: Usage { context_used: Some(34_567), context_size: Some(200_000), ..Usage::default() },
            cost: Some(Cost { amount: 0.1234, currency: "USD".into() }),
            ..Facts::default()
        }
    }

    #[test]
    fn the_line_tells_work_time_model_mode_tokens_cost_queue_and_title_and_fits() {
        let line = |columns| line(Work::Busy(Some(Duration::from_secs(72))), &facts(), 2, "claude", 1, columns, SCREEN);
        assert_eq!(
            line(200),
            "⠙ 1 min 12 s · claude · opus · plan · 34k/200k tokens · 0.12 USD · 2 queued · Fix the ␛]0;bug␇"
        );
        assert_eq!(painted::width(&line(40)), 40);
        assert!(line(40).ends_with('…'), "{}", line(40));
    }

    #[test]
    fn what_the_agent_does_not_report_is_left_out() {
        let line = line(Work::Idle, &Facts::default(), 0, "demo", 0, 80, SCREEN);
        assert_eq!(line, "ready · demo");
        assert_eq!((short(999), short(1_234_567)), ("999".into(), "1.2M".into()));
        assert_eq!(
            (elapsed(Duration::from_secs(5)), elapsed(Duration::from_secs(3_725))),
            ("5 s".into(), "1 h 02 min".into())
        );
    }
}
