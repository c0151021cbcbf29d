//! `agentctl`: the command line client. The library of the same name implements it.

use std::process::ExitCode;

fn main() -> ExitCode {
    agentctl::main()
}
