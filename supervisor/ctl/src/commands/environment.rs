//! env: what an agent's environment holds and who put it there.

use agentd_api::environment::{EnvironmentView, VariableView};

use super::{Context, print, print_document, scripts, tell};
use crate::args::EnvArgs;
use crate::error::Error;
use crate::table::{Cut, Table};
use crate::terminal::Screen;

pub(super) async fn env(context: &Context, args: EnvArgs) -> Result<u8, Error> {
    match args.scripts {
        None => variables(context, &args).await,
        Some(command) => scripts::scripts(context, command).await,
    }
}

async fn variables(context: &Context, args: &EnvArgs) -> Result<u8, Error> {
    let session = args.session.as_deref().unwrap_or_default();
    let id = context.client.find(session).await?.value.id;
    let document = context.client.environment(id.as_str(), args.values).await?;
    if context.json {
        print_document(&document.raw)?;
        return Ok(0);
    }
    let (view, screen) = (document.value, Screen::stdout());
    if args.dropped {
        Context::table(&dropped_table(&view, screen))?;
        return Ok(0);
    }
    if args.values {
        // A value may be long, and half a value is worse than a long line.
        print(&screen.text(&variable_table(&view, screen, true).render(None)))?;
    } else {
        Context::table(&variable_table(&view, screen, false))?;
    }
    if !view.dropped.is_empty() && Screen::stderr().terminal {
        tell(&format!("{} were dropped: agentctl env {session} --dropped", view.dropped.len()))?;
    }
    Ok(0)
}

fn variable_table(view: &EnvironmentView, screen: Screen, values: bool) -> Table {
    let columns = [("NAME", Cut::Never), ("PROVIDER", Cut::Never), ("ORIGIN", Cut::Start), ("VALUE", Cut::Never)];
    let mut table = Table::new(&columns[..if values { 4 } else { 3 }]);
    for variable in &view.variables {
        let origin = variable.origin.as_ref().map(|path| path.to_string_lossy()).unwrap_or_default();
        let mut row = vec![screen.line(&variable.name), screen.line(&variable.provider), screen.line(&origin)];
        if values {
            row.push(shown_value(variable, screen));
        }
        table.row(row);
    }
    table
}

fn shown_value(variable: &VariableView, screen: Screen) -> String {
    match &variable.value {
        _ if variable.secret => "‹secret›".to_owned(),
        // A table has a line for each; the exact bytes are in --json.
        Some(value) => screen.line(&value.display()),
        None => String::new(),
    }
}

fn dropped_table(view: &EnvironmentView, screen: Screen) -> Table {
    let mut table = Table::new(&[("NAME", Cut::Never), ("PROVIDER", Cut::Never), ("REASON", Cut::End)]);
    for dropped in &view.dropped {
        let reason = dropped.reason.as_deref().unwrap_or_default();
        table.row([screen.line(&dropped.name), screen.line(&dropped.provider), screen.line(reason)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secrets_value_is_not_shown_even_if_the_daemon_sent_it() {
        let view: EnvironmentView = serde_json::from_value(serde_json::json!({
            "captured": "2026-01-01T00:00:00Z", "launch": 1, "digest": "",
            "variables": [
                { "name": "KEY", "value": "hunter2", "provider": "env-script", "step": 3, "origin": "/s.sh", "secret": true },
                { "name": "TWO", "value": "a\nb", "provider": "snapshot", "step": 1 },
            ],
        }))
        .unwrap();
        let screen = Screen { terminal: true, colour: false };
        let text = variable_table(&view, screen, true).render(None);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["KEY", "env-script", "/s.sh", "‹secret›"]);
        assert_eq!(rows[2], ["TWO", "snapshot", "a", "b"]);
        assert!(!variable_table(&view, screen, false).render(None).contains("VALUE"));
    }
}
