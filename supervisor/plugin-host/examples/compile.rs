//! The compiler child of this crate's own tests; agentd has it as `agentd compile`.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [word, input, output] if word == "compile" => Ok(agentd_plugins::compile(Path::new(input), Path::new(output))?),
        _ => anyhow::bail!("usage: compile compile IN OUT"),
    }
}
