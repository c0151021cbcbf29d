//! Implements `agentctl service`: installs, upgrades, inspects and removes agentd as a service of systemd or
//! launchd.
//!
//! [`step`] takes the steps of an install and undoes them. Not responsible for sessions: they continue, unless the
//! user asks to stop them.

mod install;
mod logs;
mod status;
mod step;
#[cfg(test)]
mod tests;
mod uninstall;

use std::path::Path;

use super::{Context, print};
use crate::args::service::ServiceCommand;
use crate::error::Error;
use crate::service::host::Host;
use crate::service::own_directory;
use agentd_screen::terminal::Screen;

pub(super) async fn service(context: &Context, command: ServiceCommand) -> Result<u8, Error> {
    let host = Host::this().map_err(Error::Setup)?;
    on(context, &host, &own_directory()?, command).await
}

/// Runs a command on `host`, with the build in the directory `from`.
async fn on(context: &Context, host: &Host, from: &Path, command: ServiceCommand) -> Result<u8, Error> {
    match command {
        ServiceCommand::Install(args) => install::install(context, host, from, args).await,
        ServiceCommand::Uninstall(args) => uninstall::uninstall(context, host, args).await,
        ServiceCommand::Status(which) => status::status(context, host, from, &which).await,
        ServiceCommand::Logs(args) => logs::logs(context, host, args).await,
    }
}

/// Prints the steps of a dry run.
fn foretell(steps: &[String]) -> Result<(), Error> {
    let screen = Screen::stdout();
    steps.iter().try_for_each(|step| print(&format!("would {}\n", screen.line(step))))
}

/// Prints the next step.
fn report(quiet: bool, step: &str) -> Result<(), Error> {
    if quiet { Ok(()) } else { print(&format!("{}\n", Screen::stdout().line(step))) }
}
