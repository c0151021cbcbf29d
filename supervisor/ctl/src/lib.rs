//! The command line of agentd, `agentctl`, and the demo agent that it can be.
//!
//! It talks to the daemon over its socket as anybody could, and knows nothing that the HTTP interface does not tell.

mod acp;
mod args;
mod attach;
mod client;
mod commands;
mod conversation;
pub mod demo_agent;
mod details;
mod error;
mod failure;
mod input;
mod output;
mod prerequisite;
mod render;
mod start;
mod stream;
mod table;
mod terminal;
mod trust;
mod way;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::error::{Error, exit};

/// The program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
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
    let json = cli.global.json;
    match commands::run(cli) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            error.report(json);
            ExitCode::from(error.exit_status())
        }
    }
}

/// A runtime for one command: everything it does waits for the daemon, so one thread is enough.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Setup)
}
