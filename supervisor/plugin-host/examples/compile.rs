//! The compiler process for this crate's tests. agentd has the same program as `agentd compile`.

use std::process::ExitCode;

use agentd_plugin_host::{CompileFiles, compile};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (code, way) = match arguments[..] {
        ["compile", "--code", code] => (code, CompileFiles::Standard),
        ["compile", "--code", code, input, output] => {
            (code, CompileFiles::Named { input: input.into(), output: output.into() })
        }
        _ => panic!("usage: compile compile --code CODE [IN OUT]"),
    };
    match compile(&way, code.parse().expect("a kind of code")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let status = error.status();
            eprintln!("{:#}", anyhow::Error::from(error));
            ExitCode::from(status)
        }
    }
}
