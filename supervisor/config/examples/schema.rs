//! Prints the JSON Schema of the configuration: `cargo run -p agentd-config --features schema --example schema`.

fn main() -> Result<(), serde_json::Error> {
    println!("{}", serde_json::to_string_pretty(&agentd_config::schema())?);
    Ok(())
}
