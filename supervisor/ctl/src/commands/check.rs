//! Implements `agentctl check`: checks the prerequisites of sessions now.
//!
//! The daemon runs the checks concurrently, and a failed check does not affect the others. A check of an
//! environment needs a session; without a session its last result is shown.

use std::io::{self, Write};
use std::time::Duration;

use agentd_api::prerequisite::{Moment, Outcome, PrerequisiteList, PrerequisiteView};
use agentd_api::{Code, Problem, SessionId};
use jiff::Timestamp;
use tokio::task::JoinSet;

use super::{Context, print, tell};
use crate::args::CheckArgs;
use crate::error::{Error, exit};
use crate::prerequisite;
use agentd_client::Error as ClientError;
use agentd_screen::table::age;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::{self, Screen, TextStyle};

/// Pause between two rounds of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);
/// Moves the cursor to the top left, and clears the rest of the screen.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";
const CLEAR_LINE: &str = "\r\x1b[K";

/// A prerequisite, and whether it was checked in this round.
#[derive(Debug)]
struct Row {
    view: PrerequisiteView,
    checked: bool,
}

pub(super) async fn check(context: &Context, args: CheckArgs) -> Result<u8, Error> {
    let session = match &args.session {
        Some(session) => Some(context.client.find(session).await?.value.id),
        None => None,
    };
    let (name, session) = (args.name.as_deref(), session.as_ref());
    let (stdout, stderr) = (Screen::stdout(), Screen::stderr());
    if !args.watch {
        let rows = round(context, name, session, stderr.terminal && !context.json).await?;
        show(context, &rows)?;
        return Ok(if rows.iter().any(fails) { exit::FAILED } else { 0 });
    }
    let mut before: Option<Vec<Row>> = None;
    loop {
        // Only the first round has no earlier results to show.
        let progress = before.is_none() && stdout.terminal && stderr.terminal && !context.json;
        let rows = round(context, name, session, progress).await?;
        match &before {
            Some(before) if !context.json && !stdout.terminal => print(&changes(before, &rows, Timestamp::now()))?,
            _ => {
                if stdout.terminal && !context.json {
                    io::stdout().write_all(CLEAR_SCREEN.as_bytes()).map_err(Error::Output)?;
                }
                show(context, &rows)?;
            }
        }
        before = Some(rows);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Runs every check that is possible.
async fn round(
    context: &Context,
    name: Option<&str>,
    session: Option<&SessionId>,
    progress: bool,
) -> Result<Vec<Row>, Error> {
    // A check requested by name need not be a prerequisite of the session.
    let of = session.filter(|_| name.is_none());
    let mut views = context.client.prerequisites(of).await?.prerequisites;
    if let Some(name) = name {
        views.retain(|view| view.name == name);
        if views.is_empty() {
            let problem = Problem::new(Code::NoSuchPrerequisite, format!("there is no prerequisite {name:?}"));
            return Err(problem.hint("`agentctl check` lists them").into());
        }
    }
    let mut rows: Vec<Row> = views.into_iter().map(|view| Row { view, checked: false }).collect();
    let mut checks = JoinSet::new();
    for (at, row) in rows.iter().enumerate() {
        // For a single check the daemon's refusal is reported.
        if row.view.moment == Moment::AfterEnvironment && session.is_none() && name.is_none() {
            continue;
        }
        let (client, checked, session) = (context.client.clone(), row.view.name.clone(), session.cloned());
        checks.spawn(async move { (at, client.check(&checked, session).await) });
    }
    let all = checks.len();
    loop {
        if progress {
            say_progress(&rows, all, checks.len())?;
        }
        let Some(made) = checks.join_next().await else { break };
        let (at, result) = made.map_err(|error| Error::Setup(io::Error::other(error)))?;
        let row = &mut rows[at];
        row.checked = true;
        match result {
            Ok(report) => row.view.report = Some(report),
            Err(ClientError::Problem { problem, .. }) if name.is_none() => row.view.problem = Some(problem.detail),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rows)
}

/// Rewrites the progress line, and clears it at the end.
fn say_progress(rows: &[Row], all: usize, left: usize) -> Result<(), Error> {
    let mut line = CLEAR_LINE.to_owned();
    if left > 0 {
        let done = all - left;
        let failing: Vec<&str> = rows.iter().filter(|row| fails(row)).map(|row| row.view.name.as_str()).collect();
        let failing = if failing.is_empty() { String::new() } else { format!(", failed: {}", failing.join(" ")) };
        let text = Screen::stderr().line(&format!("checked {done} of {all}{failing}"));
        // A wrapped line could not be cleared.
        let room = terminal::columns().unwrap_or(80).saturating_sub(1);
        line.push_str(&text.chars().take(room).collect::<String>());
    }
    let mut stderr = io::stderr();
    stderr.write_all(line.as_bytes()).and_then(|()| stderr.flush()).map_err(Error::Output)
}

fn show(context: &Context, rows: &[Row]) -> Result<(), Error> {
    if context.json {
        let list = PrerequisiteList { prerequisites: rows.iter().map(|row| row.view.clone()).collect() };
        return context.print_value(&list);
    }
    let screen = Screen::stdout();
    if rows.is_empty() {
        return tell("no prerequisites: see [prerequisites.NAME] in the configuration");
    }
    Context::table(&table(rows, screen, Timestamp::now()))?;
    print(&remarks(rows, screen))?;
    let unchecked: Vec<&str> = rows.iter().filter(|row| !row.checked).map(|row| row.view.name.as_str()).collect();
    if !unchecked.is_empty() {
        let names = unchecked.join(", ");
        // On a terminal this is the last of several paragraphs.
        let begin = if Screen::stderr().terminal { "\n" } else { "" };
        let text = "needs a session's environment, and was not checked";
        tell(&format!("{begin}{text}: {names}: agentctl check --session S"))?;
    }
    Ok(())
}

/// Reports whether this round's check failed or had no definite result.
fn fails(row: &Row) -> bool {
    row.checked && matches!(outcome(row), Some(Outcome::Fail | Outcome::Unknown))
}

/// Returns the outcome of a prerequisite: unknown if the check was impossible, `None` if it never ran.
fn outcome(row: &Row) -> Option<Outcome> {
    match (&row.view.problem, &row.view.report) {
        (Some(_), _) => Some(Outcome::Unknown),
        (None, report) => report.as_ref().map(|report| report.outcome),
    }
}

fn table(rows: &[Row], screen: Screen, now: Timestamp) -> Table {
    let mut table = Table::new(&[
        ("NAME", Cut::End),
        ("OUTCOME", Cut::Never),
        ("CHECKED", Cut::Never),
        ("TOOK", Cut::Never),
        ("SUMMARY", Cut::End),
    ]);
    for row in rows {
        let (report, problem) = (row.view.report.as_ref(), row.view.problem.as_ref());
        let report = report.filter(|_| problem.is_none());
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let summary = problem.or(report.map(|report| &report.summary)).map(String::as_str).unwrap_or_default();
        table.row([
            screen.line(&row.view.name),
            or_dash(outcome(row).map(|outcome| outcome.as_str().to_owned())),
            or_dash(report.map(|report| age(report.checked_at, now))),
            or_dash(report.map(|report| format!("{}ms", report.took_ms))),
            screen.line(summary),
        ]);
    }
    table
}

/// Formats the facts and the remedy of each check that did not pass.
fn remarks(rows: &[Row], screen: Screen) -> String {
    let mut text = Vec::new();
    for row in rows {
        let look = match outcome(row) {
            None | Some(Outcome::Pass) => continue,
            Some(Outcome::Warn) => TextStyle::Ask,
            Some(Outcome::Fail | Outcome::Unknown) => TextStyle::Bad,
        };
        let described = match (&row.view.problem, &row.view.report) {
            (Some(problem), _) => format!("{} (unknown): {}\n", screen.line(&row.view.name), screen.line(problem)),
            (None, Some(report)) => prerequisite::described(report, screen),
            (None, None) => continue,
        };
        let (first, rest) = described.split_once('\n').unwrap_or((&described, ""));
        text.push(format!("\n{}\n{rest}", screen.paint(look, first)));
    }
    text.concat()
}

/// Formats a line for each outcome that changed.
fn changes(before: &[Row], rows: &[Row], now: Timestamp) -> String {
    let known = |name: &str| before.iter().find(|row| row.view.name == name).and_then(outcome);
    let mut text = Vec::new();
    for row in rows {
        let (was, is) = (known(&row.view.name), outcome(row));
        if was != is {
            let summary = row.view.problem.as_ref().or(row.view.report.as_ref().map(|report| &report.summary));
            let screen = Screen { terminal: false, colour: false };
            let word = is.map_or("-", Outcome::as_str);
            let summary = screen.line(summary.map(String::as_str).unwrap_or_default());
            text.push(format!("{now:.0} {} ({word}): {summary}\n", row.view.name));
        }
    }
    text.concat()
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    const SCREEN: Screen = Screen { terminal: true, colour: false };

    fn now() -> Timestamp {
        "2026-01-01T00:00:07Z".parse().unwrap()
    }

    fn row(name: &str, report: serde_json::Value) -> Row {
        let mut view = serde_json::json!({
            "name": name, "plugin": "vpn", "moment": "before-environment", "on_failure": "fail",
            "required_by": { "all": true },
            "settings": {}, "used_by": [],
        });
        if let serde_json::Value::Object(mut report) = report {
            let given = [("name", name.into()), ("on_failure", "fail".into()), ("took_ms", 12.into())];
            report.extend(given.map(|(key, value)| (key.to_owned(), value)));
            report.insert("checked_at".into(), "2026-01-01T00:00:04Z".into());
            view["report"] = report.into();
        }
        Row { view: serde_json::from_value(view).unwrap(), checked: true }
    }

    fn rows() -> Vec<Row> {
        let facts = serde_json::json!([{ "name": "route", "value": "none\nat \
             all" }, { "name": "interface", "value": "wg0: down" }]);
        vec![
            row("lab", serde_json::json!({ "outcome": "pass", "summary": "it answers" })),
            row(
                "vpn",
                serde_json::json!({
                    "outcome": "fail", "summary": "git.corp.example resolves to no address of the inside \
                         network 10.0.0.0/8",
                    "facts": facts, "remedy": "connect the VPN",
                }),
            ),
        ]
    }

    #[test]
    fn the_table_fits_a_terminal_and_what_does_not_pass_is_told_in_full_below_it() {
        let rows = rows();
        let text = table(&rows, SCREEN, now()).render(Some(60));
        assert!(text.lines().all(|line| line.width() <= 60), "{text}");
        let cells: Vec<Vec<&str>> = text.lines().map(|line| line.splitn(5, "  ").map(str::trim).collect()).collect();
        assert_eq!(
            text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(),
            ["NAME", "OUTCOME", "CHECKED", "TOOK", "SUMMARY"]
        );
        assert_eq!(cells[1][0], "lab");
        assert_eq!(
            text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>(),
            ["lab", "pass", "3s", "12ms", "it", "answers"]
        );
        assert!(text.lines().nth(2).unwrap().ends_with('…'), "{text}");
        let below = "\nvpn (fail): git.corp.example resolves to no address of the inside network 10.0.0.0/8\n  \
                     route: none at all\n  interface: wg0: down\n  remedy: connect the VPN\n";
        assert_eq!(remarks(&rows, SCREEN), below);
        assert_eq!(rows.iter().map(fails).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn what_could_not_be_checked_fails_and_what_was_not_is_told_as_it_was_last() {
        let mut broken = row("mount", serde_json::json!({ "outcome": "pass", "summary": "it was there" }));
        broken.view.problem = Some("the plugin is suspended".to_owned());
        let mut last = row("licence", serde_json::json!({ "outcome": "fail", "summary": "none left" }));
        last.checked = false;
        let mut never = row("new", serde_json::Value::Null);
        never.checked = false;
        let rows = [broken, last, never];
        let text = table(&rows, SCREEN, now()).render(None);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines[1..],
            ["mount unknown - - the plugin is suspended", "licence fail 3s 12ms none left", "new - - -"]
        );
        assert_eq!(rows.iter().map(fails).collect::<Vec<_>>(), [true, false, false]);
        assert!(remarks(&rows, SCREEN).starts_with("\nmount (unknown): the plugin is suspended\n\nlicence (fail): "));
    }

    #[test]
    fn what_is_watched_into_a_file_is_a_line_for_each_change() {
        let (before, mut after) = (rows(), rows());
        assert_eq!(changes(&before, &after, now()), "");
        after[0] = row("lab", serde_json::json!({ "outcome": "unknown", "summary": "silent\nnow" }));
        assert_eq!(changes(&before, &after, now()), "2026-01-01T00:00:07Z lab (unknown): silent now\n");
    }
}
