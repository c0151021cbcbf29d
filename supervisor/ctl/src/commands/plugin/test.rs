//! Implements `agentctl plugin test`: runs a component on its author's cases.

use std::ffi::OsString;
use std::fmt::Write as _;

use agentd_api::plugin_tool::{CaseOutcome, CaseRun, TestRun};

use crate::args::plugin::TestArgs;
use crate::commands::{Context, print};
use crate::error::Error;
use crate::tool::ask;
use agentd_screen::terminal::{Screen, TextStyle};

/// Runs the cases. Returns exit status 0 if every case passes or was updated, otherwise 1.
pub(super) async fn test(context: &Context, args: TestArgs) -> Result<u8, Error> {
    let mut arguments = vec![OsString::from("test")];
    if args.update {
        arguments.push("--update".into());
    }
    arguments.push("--".into());
    arguments.push(args.file.into());
    arguments.extend(args.cases.into_iter().map(OsString::from));
    let document = ask::<TestRun>(arguments).await?;
    let failed = document.value.cases.iter().filter(|case| case.outcome == CaseOutcome::Failed).count();
    if context.json {
        context.print_document(&document.raw)?;
    } else {
        let screen = Screen::stdout();
        let cases = document.value.cases;
        for case in &cases {
            print(&shown(screen, case, context.verbose))?;
        }
        let number = cases.len();
        let number = if number == 1 { "1 case".to_owned() } else { format!("{number} cases") };
        print(&if failed == 0 { format!("{number}\n") } else { format!("{number}, {failed} failed\n") })?;
    }
    Ok(u8::from(failed > 0))
}

fn shown(screen: Screen, case: &CaseRun, verbose: bool) -> String {
    let word = match case.outcome {
        CaseOutcome::Passed => "ok     ",
        CaseOutcome::Updated => "updated",
        CaseOutcome::Failed => "FAILED ",
    };
    let file = screen.line(&case.file);
    let mut text = format!("{word} {file}");
    if verbose {
        let _ = write!(text, "  {} µs", case.microseconds);
    }
    text.push('\n');
    let mut line = |indent: &str, look: Option<TextStyle>, line: &str| {
        let line = screen.text(line);
        let line = look.map_or_else(|| line.to_string(), |look| screen.paint(look, &line));
        let _ = writeln!(text, "  {indent}{line}");
    };
    if let Some(problem) = &case.problem {
        problem.message.lines().for_each(|message| line("", None, message));
        if let Some(hint) = &problem.hint {
            line("", None, &format!("hint: {hint}"));
        }
    }
    if !case.difference.is_empty() {
        line("", Some(TextStyle::Dim), "- expected, + came");
        for changed in &case.difference {
            let look = match changed.as_bytes().first() {
                Some(b'-') => Some(TextStyle::Bad),
                Some(b'+') => Some(TextStyle::Good),
                _ => None,
            };
            line("", look, changed);
        }
    }
    for unanswered in &case.unanswered {
        line("", None, &format!("the case has no answer for {}; for example:", unanswered.call));
        unanswered.lines.lines().for_each(|answer| line("    ", None, answer));
    }
    if verbose || case.outcome == CaseOutcome::Failed {
        for logged in &case.log {
            logged.lines().for_each(|logged| line("log: ", Some(TextStyle::Dim), logged));
        }
    }
    text
}
