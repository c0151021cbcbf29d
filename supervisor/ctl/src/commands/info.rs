//! Implements `agentctl agents` and `agentctl version`.

use super::{Context, print};
use crate::error::Error;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

pub(super) async fn agents(context: &Context) -> Result<u8, Error> {
    let document = context.client.agents().await?;
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    let screen = Screen::stdout();
    let mut table = Table::new(&[("NAME", Cut::Never), ("DEFAULT", Cut::Never), ("COMMAND", Cut::End)]);
    for agent in &document.value.agents {
        let default = if agent.default { "yes" } else { "" };
        table.row([screen.line(&agent.name), default.to_owned(), screen.line(&agent.command.join(" "))]);
    }
    Context::table(&table)?;
    Ok(0)
}

/// Prints the versions. Starts no daemon: without a daemon only the own version is printed, and the exit status
/// is 3.
pub(super) async fn version(context: &Context) -> Result<u8, Error> {
    let client = env!("CARGO_PKG_VERSION");
    let daemon = context.client.version().await;
    if context.json {
        let daemon = match &daemon {
            Ok(document) => serde_json::from_slice(&document.raw).map_err(Error::Request)?,
            Err(_) => serde_json::Value::Null,
        };
        context.print_value(&serde_json::json!({ "client": { "version": client }, "daemon": daemon }))?;
    } else {
        print(&format!("agentctl {client}\n"))?;
    }
    let view = daemon?.value;
    if !context.json {
        let (screen, socket) = (Screen::stdout(), context.client.way().to_string());
        print(&format!(
            "agentd   {} (pid {})\n  socket   {}\n  runtime  {}\n  state    {}\n",
            screen.line(&view.version),
            view.pid,
            screen.line(&socket),
            screen.line(&view.runtime_directory.to_string_lossy()),
            screen.line(&view.state_directory.to_string_lossy()),
        ))?;
        if view.draining {
            print("  drained: agentd launches nothing until `agentctl drain --undo`\n")?;
        }
    }
    Ok(0)
}
