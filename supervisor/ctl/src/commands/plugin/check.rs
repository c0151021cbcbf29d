//! Implements `agentctl plugin check`: compares a component with the configuration.

use std::ffi::OsString;
use std::fmt::Write as _;

use agentd_api::plugin_tool::Check;

use crate::args::plugin::CheckArgs;
use crate::commands::{Context, print};
use crate::error::{Error, exit};
use crate::tool::ask;
use agentd_screen::terminal::{Screen, TextStyle};

/// Checks a component. Returns exit status 0 if agentd would load it and refuse none of its requests.
pub(super) async fn check(context: &Context, args: CheckArgs) -> Result<u8, Error> {
    let mut arguments = vec![OsString::from("check")];
    if let Some(name) = args.name {
        arguments.extend(["--name".into(), name.into()]);
    }
    for case in args.cases {
        arguments.extend(["--case".into(), case.into()]);
    }
    arguments.extend(["--".into(), args.file.into()]);
    let document = ask::<Check>(arguments).await?;
    if context.json {
        context.print_document(&document.raw)?;
    } else {
        print(&shown(Screen::stdout(), &document.value))?;
    }
    let fine = document.value.problem.is_none() && document.value.refused.is_empty();
    Ok(if fine { 0 } else { exit::FAILED })
}

fn shown(screen: Screen, check: &Check) -> String {
    let line = |text: &str| screen.line(text);
    let plugin = &check.inspection;
    let mut text =
        format!("{} is {} {}, a {}\n", line(&plugin.file), line(&plugin.name), line(&plugin.version), plugin.world);
    let _ = match &check.declared_in {
        Some(file) => writeln!(text, "declared as plugins.{} in {}", line(&check.name), line(file)),
        None => writeln!(text, "declared nowhere"),
    };
    if let Some(pin) = &check.pin {
        let _ = if pin.matches {
            writeln!(text, "pin matches")
        } else {
            writeln!(text, "pinned is {}\nthis is   {}", line(&pin.pinned), plugin.sha256)
        };
    }
    let bad = |text: &str| screen.paint(TextStyle::Bad, text);
    for refusal in &check.refused {
        let hint = refusal.hint.as_ref().map(|hint| format!("; {}", line(hint))).unwrap_or_default();
        let _ = writeln!(text, "{} {}{hint}", bad("refused:"), line(&refusal.what));
    }
    for unused in &check.unused {
        let _ = writeln!(text, "granted but not requested: {}", line(unused));
    }
    if let Some(undecided) = &check.undecided {
        let _ = writeln!(text, "not checked: {}", line(undecided));
    }
    let _ = match (&check.problem, check.refused.is_empty()) {
        (Some(problem), _) => {
            let hint = problem.hint.as_ref().map(|hint| format!("\n  hint: {}", line(hint))).unwrap_or_default();
            writeln!(text, "{} {}{hint}", bad("agentd would not load it:"), line(&problem.message))
        }
        (None, false) => writeln!(text, "agentd would load it, but refuse some of its requests"),
        (None, true) => writeln!(text, "{}", screen.paint(TextStyle::Good, "agentd would load it, and refuse nothing")),
    };
    if let Some(lines) = &check.lines {
        let whose = if check.declared_in.is_some() { "replacing the present lines" } else { "if you trust it" };
        let _ = writeln!(
            text,
            "\nthese lines of the configuration allow it, {whose}:\n\n{}",
            screen.text(lines.trim_end())
        );
    }
    text
}
