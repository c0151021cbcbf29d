//! Implements `agentctl secret`: lists the named secrets of the configuration, and checks whether they are
//! available.

use agentd_api::secret::{SecretList, SecretView};

use super::Context;
use crate::args::SecretCommand;
use crate::error::{Error, exit};
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

pub(super) async fn secret(context: &Context, command: SecretCommand) -> Result<u8, Error> {
    let document = match command {
        SecretCommand::Ls => context.client.secrets().await?,
        SecretCommand::Check => context.client.check_secrets().await?,
    };
    if context.json {
        context.print_document(&document.raw)?;
    } else {
        Context::table(&table(&document.value, Screen::stdout()))?;
    }
    let is_missed = |secret: &SecretView| secret.required && secret.available == Some(false);
    Ok(if document.value.secrets.iter().any(is_missed) { exit::FAILED } else { 0 })
}

fn table(list: &SecretList, screen: Screen) -> Table {
    let checked = list.secrets.iter().any(|secret| secret.available.is_some());
    let answer = if checked { "AVAILABLE" } else { "GIVEN TO" };
    let columns = [("NAME", Cut::Never), ("VARIABLE", Cut::Never), ("FROM", Cut::Start), (answer, Cut::Never)];
    let mut table = Table::new(&columns);
    for secret in &list.secrets {
        let from = format!("{} {}", secret.source.kind, secret.source.place);
        let answer = if checked { availability(secret) } else { receivers(secret) };
        let cells = [&secret.name, &secret.variable, &from, &answer];
        table.row(cells.map(|cell| screen.line(cell)));
    }
    table
}

fn receivers(secret: &SecretView) -> String {
    let agents = if secret.agents.is_empty() { "all agents".to_owned() } else { secret.agents.join(", ") };
    let place =
        if secret.directories.is_empty() { String::new() } else { format!(" in {}", secret.directories.join(", ")) };
    let need = if secret.required { "" } else { ", if available" };
    format!("{agents}{place}{need}")
}

fn availability(secret: &SecretView) -> String {
    match (secret.available, &secret.reason) {
        (Some(true), _) => "yes".to_owned(),
        (_, Some(reason)) => format!("no: {reason}"),
        (_, None) => "no".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(list: &serde_json::Value) -> Vec<String> {
        let list = serde_json::from_value(list.clone()).unwrap();
        let text = table(&list, Screen { terminal: true, colour: false }).render(None);
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_list_says_who_gets_a_secret_and_a_check_says_why_it_cannot_be_had() {
        let mut list = serde_json::json!({ "secrets": [
            { "name": "key", "variable": "API_KEY", "from": { "kind": "file", "where": "/k" }, "required": true,
              "agents": ["claude"], "directories": ["/work/*"] },
            { "name": "B", "variable": "B", "from": { "kind": "command", "where": "pass show b" }, "required": false },
        ] });
        assert_eq!(
            rows(&list),
            [
                "NAME VARIABLE FROM GIVEN TO",
                "key API_KEY file /k claude in /work/*",
                "B B command pass show b all agents, if available",
            ]
        );
        list["secrets"][0]["available"] = true.into();
        list["secrets"][1]["available"] = false.into();
        list["secrets"][1]["reason"] = "it ended with status 1".into();
        let rows = rows(&list);
        assert_eq!(rows[1], "key API_KEY file /k yes");
        assert_eq!(rows[2], "B B command pass show b no: it ended with status 1");
    }
}
