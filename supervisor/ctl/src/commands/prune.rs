//! Implements `agentctl prune`.

use agentd_api::prune::{PruneRequest, PruneView, PrunedSession};
use agentd_api::session::Phase;

use super::confirm::confirmed;
use super::{Context, print, tell};
use crate::args::prune::PruneArgs;
use crate::error::{Error, exit};
use agentd_screen::table::{Cut, Table, size, span};
use agentd_screen::terminal::Screen;

pub(super) async fn prune(context: &Context, args: &PruneArgs) -> Result<u8, Error> {
    let request = args.request();
    let found = context.client.prune(&request).await?;
    if context.json && !args.yes {
        context.print_document(&found.raw)?;
    }
    if !context.json {
        show(&found.value, args.yes)?;
    }
    if found.value.sessions.is_empty() {
        if context.json && args.yes {
            context.print_document(&found.raw)?;
        }
        return Ok(0);
    }
    let is_confirmed = match (args.yes, args.dry_run || context.json) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => confirmed(&question(&found.value)).await?,
    };
    match is_confirmed {
        Some(true) => remove(context, request, &found.value.sessions).await,
        Some(false) => Ok(0),
        None => {
            tell("nothing was removed: there is no terminal to ask on; remove the sessions with --yes")?;
            Ok(0)
        }
    }
}

/// Removes the sessions that the user saw, unless they have changed since.
async fn remove(context: &Context, request: PruneRequest, seen: &[PrunedSession]) -> Result<u8, Error> {
    let confirmed = seen.iter().map(|session| (session.id.clone(), session.last_seq)).collect();
    let request = PruneRequest { dry_run: false, confirmed: Some(confirmed), ..request };
    let removed = context.client.prune(&request).await?;
    if context.json {
        context.print_document(&removed.raw)?;
    } else {
        let PruneView { sessions, bytes, .. } = &removed.value;
        print(&format!("removed {}, {} freed\n", count(sessions.len()), size(*bytes)))?;
    }
    let is_seen = |id: &str| seen.iter().any(|session| session.id == id);
    let mut status = 0;
    for kept in removed.value.kept.iter().filter(|kept| is_seen(&kept.id)) {
        status = exit::REFUSED;
        tell(&format!("kept {}: {}", kept.id, kept.reason))?;
    }
    Ok(status)
}

fn show(view: &PruneView, will_remove: bool) -> Result<(), Error> {
    if view.sessions.is_empty() {
        tell("no session matches")?;
    } else {
        Context::table(&table(&view.sessions, Screen::stdout()))?;
        let verb = if will_remove { "removing" } else { "would remove" };
        print(&format!("\n{verb} {}, {}\n", count(view.sessions.len()), size(view.bytes)))?;
    }
    view.kept.iter().try_for_each(|kept| tell(&format!("keeping {}: {}", kept.id, kept.reason)))
}

fn table(sessions: &[PrunedSession], screen: Screen) -> Table {
    let mut table = Table::new(&[
        ("ID", Cut::Never),
        ("NAME", Cut::End),
        ("PHASE", Cut::Never),
        ("UNUSED", Cut::Never),
        ("SIZE", Cut::Never),
        ("REASON", Cut::End),
    ]);
    for session in sessions {
        table.row([
            session.id.clone(),
            session.name.clone().unwrap_or_default(),
            session.phase.map_or("unreadable", Phase::as_str).to_owned(),
            span(session.age_seconds),
            session.bytes.map_or_else(|| "?".to_owned(), size),
            screen.line(&session.reasons.join("; ")),
        ]);
    }
    table
}

fn question(view: &PruneView) -> String {
    format!("Remove {} with all stored data and free {}?", count(view.sessions.len()), size(view.bytes))
}

fn count(sessions: usize) -> String {
    if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") }
}
