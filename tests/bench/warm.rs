//! A new session whose agent takes half a second until its first answer. An agent that was kept warm is compared with
//! an agent that the launch starts.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::client::Client;
use crate::daemon::{Daemon, Pipeline, wait};
use crate::table::{Table, median};

/// Number of sessions of each kind.
const TURNS: usize = 30;
/// Time until the first answer of the agent, in milliseconds.
const INITIALIZE: &str = "500";

/// Adds the row to a table.
pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let mut daemon = Daemon::prepare(Pipeline::Default)?;
    let command = [std::env::current_exe()?, "slow-agent".into(), daemon.root().to_owned(), INITIALIZE.into()];
    let file = daemon.root().join("config/agentd.toml");
    let entry =
        |name: &str, keys: &str| format!("[agents.{name}]\nlike = \"opencode\"\ncommand = {command:?}\n{keys}\n");
    let config = fs::read_to_string(&file)?;
    fs::write(&file, format!("{config}\n{}{}", entry("cold", ""), entry("warm", "warm = 1")))?;
    daemon.serve()?;
    let mut client = daemon.client()?;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    session(&daemon, &mut client, "warm")?;
    for _ in 0..TURNS {
        cold.push(session(&daemon, &mut client, "cold")?);
        is_warm(&mut client)?;
        warm.push(session(&daemon, &mut client, "warm")?);
    }
    table.times("slow agent, POST to idle, warm against started", median(warm), median(cold));
    Ok(())
}

/// Returns the time from the request to an idle session.
fn session(daemon: &Daemon, client: &mut Client, agent: &str) -> Result<Duration> {
    let spec = json!({ "directory": daemon.root().join("work"), "agent": agent });
    let begun = Instant::now();
    let view = client.post("/v1/sessions?wait=120", &spec)?;
    let took = begun.elapsed();
    ensure!(view["status"]["phase"] == "idle", "the session is not idle: {view}");
    Ok(took)
}

/// Waits until an agent is kept warm.
fn is_warm(client: &mut Client) -> Result<()> {
    wait("an agent is kept warm", Duration::from_millis(5), || {
        let list = client.get("/v1/catalogue?agent=warm")?;
        Ok((list["agents"][0]["warm"]["ready"] == 1).then_some(()))
    })
}
