//! Implements `agentctl place`.

use std::time::Duration;

use agentd_api::place::{PlaceCheck, PlaceList};
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

use super::{Context, print};
use crate::args::place::PlaceCommand;
use crate::error::{Error, exit};

/// Time limit of an answer without `--timeout`, in this program and in the daemon.
const DEFAULT: Duration = Duration::from_mins(1);

pub(super) async fn place(context: &Context, command: PlaceCommand) -> Result<u8, Error> {
    match command {
        PlaceCommand::Ls => {
            let list = context.client.places().await?;
            if context.json {
                return context.print_document(&list.raw).map(|()| 0);
            }
            Context::table(&table(&list.value, Screen::stdout()))?;
            Ok(0)
        }
        PlaceCommand::Check { place, timeout } => {
            // A daemon of an earlier version knows only the default.
            let limit = Some(timeout.0).filter(|limit| *limit != DEFAULT);
            let checked = context.client.check_place(&place, limit).await?;
            if context.json {
                context.print_document(&checked.raw)?;
            } else {
                print(&steps(&checked.value, Screen::stdout()))?;
            }
            Ok(if checked.value.ok { 0 } else { exit::FAILED })
        }
    }
}

fn table(list: &PlaceList, screen: Screen) -> Table {
    let mut table =
        Table::new(&[("NAME", Cut::Never), ("KIND", Cut::Never), ("TARGET", Cut::End), ("SESSIONS", Cut::Never)]);
    for place in &list.places {
        table.row([
            place.name.to_string(),
            screen.line(&place.kind),
            screen.line(place.target.as_deref().unwrap_or_default()),
            place.sessions.to_string(),
        ]);
    }
    table
}

/// Formats each step as a line. A message is not cut, because it has the words of the engine.
fn steps(check: &PlaceCheck, screen: Screen) -> String {
    let line = |step: &agentd_api::place::PlaceStep| {
        let mark = if step.ok { "ok" } else { "FAILED" };
        format!("{:<8} {:<7} {:>6} ms  {}\n", screen.line(&step.name), mark, step.ms, screen.line(&step.message))
    };
    check.steps.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { terminal: true, colour: false };

    #[test]
    fn a_list_has_the_target_and_the_number_of_sessions() {
        let list = serde_json::json!({ "places": [
            { "name": "farm", "kind": "slurm", "target": "all", "sessions": 3 },
            { "name": "own", "kind": "slurm", "sessions": 0 },
        ]});
        let text = table(&serde_json::from_value(list).unwrap(), SCREEN).render(None);
        let expected = "NAME  KIND   TARGET  SESSIONS\nfarm  slurm  all     3\nown   slurm          0\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_check_has_a_line_for_each_step() {
        let check = serde_json::json!({ "place": "farm", "ok": false, "steps": [
            { "name": "program", "ok": true, "message": "/usr/bin/srun", "ms": 0 },
            { "name": "answer", "ok": false, "message": "no\u{1b}[31m answer", "ms": 60000 },
        ]});
        let text = steps(&serde_json::from_value(check).unwrap(), SCREEN);
        assert!(
            text.starts_with("program  ok           0 ms  /usr/bin/srun\nanswer   FAILED   60000 ms  no"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
