//! The compiler child of this crate's own tests; agentd has it as `agentd compile`.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [word, flag, code, input, output] if word == "compile" && flag == "--code" => {
            let code = code.to_string_lossy().parse()?;
            Ok(agentd_plugins::compile(Path::new(input), Path::new(output), code)?)
        }
        _ => anyhow::bail!("usage: compile compile --code CODE IN OUT"),
    }
}
