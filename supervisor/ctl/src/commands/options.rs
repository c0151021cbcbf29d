//! Implements `agentctl options`: lists the options of a session's agent.

use agentd_api::options::OptionView;

use super::{Context, label, tell};
use crate::error::Error;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

/// Number of values of an option that the list has. Agents offer some hundred models.
const VALUES: usize = 12;

pub(super) async fn options(context: &Context, session: &str) -> Result<u8, Error> {
    let view = context.client.find(session).await?.value;
    let document = context.client.options(view.id.as_str()).await?;
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    let options = &document.value.options;
    if options.is_empty() {
        let name = label(&view);
        tell(&if view.status.phase.is_active() {
            format!("the agent of {name} offers no options")
        } else {
            format!("no agent runs in {name}; agentctl resume {name} starts it")
        })?;
        return Ok(0);
    }
    Context::table(&table(options, Screen::stdout()))?;
    tell(&format!("set one with: agentctl set {} mode=VALUE, model=VALUE or options.ID=VALUE", label(&view)))?;
    Ok(0)
}

fn table(options: &[OptionView], screen: Screen) -> Table {
    let mut table = Table::new(&[("ID", Cut::Never), ("NAME", Cut::End), ("VALUE", Cut::Never), ("OFFERED", Cut::End)]);
    for option in options {
        let mut offered: Vec<&str> = option.values.iter().take(VALUES).map(|value| value.value.as_str()).collect();
        let more = format!("and {} more", option.values.len().saturating_sub(VALUES));
        if option.values.len() > VALUES {
            offered.push(&more);
        }
        table.row([
            screen.line(&option.id),
            screen.line(&option.name),
            screen.line(option.value.as_deref().unwrap_or_default()),
            screen.line(&offered.join(", ")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_models_is_cut_and_hostile_names_are_made_harmless() {
        let values: Vec<_> = (0..30).map(|n| serde_json::json!({ "value": format!("m{n}"), "name": "M" })).collect();
        let option: OptionView = serde_json::from_value(serde_json::json!({
            "id": "model", "name": "Mo\u{1b}[2Jdel", "value": "m1", "values": values,
        }))
        .unwrap();
        let text = table(&[option], Screen { terminal: true, colour: false }).render(None);
        assert!(text.contains("m11, and 18 more") && !text.contains('\u{1b}'), "{text}");
    }
}
