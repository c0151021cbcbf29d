//! Implements `agentctl hooks`.

use agentd_api::hook::{HookFault, HookList, HookOutcome, HookTestView};
use agentd_screen::table::{Cut, Table, age};
use agentd_screen::terminal::Screen;
use jiff::Timestamp;

use super::{Context, print, tell};
use crate::args::hooks::HooksCommand;
use crate::error::Error;

pub(super) async fn hooks(context: &Context, command: Option<HooksCommand>) -> Result<u8, Error> {
    match command.unwrap_or(HooksCommand::Ls) {
        HooksCommand::Ls => {
            let list = context.client.hooks().await?;
            if context.json {
                return context.print_document(&list.raw).map(|()| 0);
            }
            Context::table(&table(&list.value, Timestamp::now(), Screen::stdout()))?;
            Ok(0)
        }
        HooksCommand::Test { hook } => {
            let tested = context.client.test_hook(&hook).await?;
            let status = u8::from(tested.value.attempt.outcome != HookOutcome::Delivered);
            if context.json {
                context.print_document(&tested.raw)?;
                return Ok(status);
            }
            show(&tested.value, Screen::stdout())?;
            Ok(status)
        }
    }
}

fn show(tested: &HookTestView, screen: Screen) -> Result<(), Error> {
    let HookTestView { attempt, answer } = tested;
    let status = attempt.status.map(|status| format!(", status {status}")).unwrap_or_default();
    let code = attempt.code.map(|code| format!(", {}", code.code())).unwrap_or_default();
    tell(&format!("{} after {} ms{status}{code}", attempt.outcome.as_str(), attempt.duration_ms))?;
    for text in [&attempt.detail, &attempt.remedy].into_iter().flatten() {
        tell(&screen.line(text))?;
    }
    for line in answer.lines() {
        print(&format!("{}\n", screen.line(line)))?;
    }
    Ok(())
}

fn table(list: &HookList, now: Timestamp, screen: Screen) -> Table {
    let mut table = Table::new(&[
        ("NAME", Cut::Never),
        ("STATE", Cut::Never),
        ("LAST", Cut::Never),
        ("OUTCOME", Cut::Never),
        ("LAG", Cut::Never),
        ("ON", Cut::End),
        ("TARGET", Cut::End),
        ("ERROR", Cut::End),
    ]);
    for view in &list.hooks {
        let attempt = view.last.as_ref();
        let outcome = attempt.map(|attempt| attempt.code.map_or(attempt.outcome.as_str(), HookFault::code).to_owned());
        table.row([
            view.name.clone(),
            view.state.as_str().to_owned(),
            attempt.map(|attempt| format!("{} ago", age(attempt.time, now))).unwrap_or_default(),
            outcome.unwrap_or_default(),
            view.lag.to_string(),
            screen.line(&view.on.join(",")),
            screen.line(&view.target),
            screen.line(attempt.and_then(|attempt| attempt.detail.as_deref()).unwrap_or_default()),
        ]);
    }
    table
}
