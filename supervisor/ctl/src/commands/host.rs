//! Implements `agentctl host`.

use std::path::PathBuf;

use agentd_remote::{Hosts, NamedHost, THIS};
use serde_json::json;

use super::{Context, hosts_file};
use crate::args::host::HostCommand;
use crate::document::DocumentForm;
use crate::error::Error;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

/// Lists or changes the machines. `socket` is the path of the global option.
pub(super) fn host(command: HostCommand, socket: Option<PathBuf>, form: Option<DocumentForm>) -> Result<u8, Error> {
    let file = hosts_file().map_err(Error::Setup)?;
    match command {
        HostCommand::Ls => ls(&Hosts::read(&file)?, form)?,
        HostCommand::Add { name, address, program } => {
            Hosts::add(&file, &name, &NamedHost { address, program, socket })?;
        }
        HostCommand::Rm { name } => Hosts::remove(&file, &name)?,
        HostCommand::Use { name } => Hosts::set_default(&file, &name)?,
    }
    Ok(0)
}

fn ls(hosts: &Hosts, form: Option<DocumentForm>) -> Result<(), Error> {
    let default = hosts.default.as_deref().unwrap_or(THIS);
    if let Some(form) = form {
        return form.print_value(&json!({ "default": default, "hosts": hosts.hosts }));
    }
    let screen = Screen::stdout();
    let mut table = Table::new(&[("NAME", Cut::Never), ("DEFAULT", Cut::Never), ("ADDRESS", Cut::End)]);
    let this = (THIS, "this machine");
    let named = hosts.hosts.iter().map(|(name, host)| (name.as_str(), host.address.as_str()));
    for (name, address) in [this].into_iter().chain(named) {
        let mark = if name == default { "yes" } else { "" };
        table.row([screen.line(name), mark.to_owned(), screen.line(address)]);
    }
    Context::table(&table)
}
