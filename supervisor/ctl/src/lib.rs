//! The command line of agentd, `agentctl`.
//!
//! `agentctl` uses only the public HTTP interface of the daemon. The daemon itself runs a part of this crate: the
//! server behind `agentctl acp`, for the clients of `/acp`.

mod acp;
mod args;
mod asking;
mod attach;
mod commands;
mod compatibility;
mod completed_names;
mod connector;
mod content;
mod conversation;
mod document;
mod documents;
mod editor;
mod error;
mod forget;
mod input;
mod keys;
mod machine;
mod mcp;
mod output;
mod parent;
mod reach;
mod render;
mod repository;
mod running_agent;
mod service;
mod spec;
mod spec_patch;
mod start;
mod terminal_variables;
#[cfg(test)]
mod testing;
mod tool;
mod top;
mod workflow;

use std::process::ExitCode;

use agentd_describe::{completion, details, failure, form, prerequisite, session};

use crate::args::Cli;
pub use crate::connector::Dial;
pub use crate::editor::serve_inside;
use crate::error::{Error, exit};

/// Runs `agentctl` and returns its exit status.
pub fn main() -> ExitCode {
    let cli = match args::called::parse(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(cli) => cli,
        Err(error) => {
            let printed = error.print(); // help goes to standard output, and its reader may go away
            return match printed {
                Err(_) => ExitCode::from(exit::BROKEN_PIPE),
                Ok(()) if error.use_stderr() => ExitCode::from(exit::USAGE),
                Ok(()) => ExitCode::SUCCESS,
            };
        }
    };
    let form = cli.global.form();
    match commands::run(cli) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            error.report(form);
            ExitCode::from(error.exit_status())
        }
    }
}

/// Returns the definition of the command line, for the generated reference page.
pub fn command_line() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Builds the runtime of one command. One thread is enough: a command mostly waits for the daemon.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Setup)
}
