//! Duration of a build of an environment with 80 variables when all inputs are known. The inputs are the login shell's
//! variables, three providers, and a script that declares its dependencies.
//!
//! The comparison is the usual way to get an environment in a program: to start a login shell or direnv. One login
//! shell reads little, and another reads as much as version managers and completions add. Each starts with an empty
//! environment, as a service would.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::agent::wall;
use crate::bare;
use crate::capture;
use crate::client::Client;
use crate::daemon::{Daemon, Pipeline};
use crate::table::{Table, median, millis};

/// Number of measured launches, and of launches before them that fill the caches.
const LAUNCHES: usize = 100;
const FIRST: usize = 5;
/// Number of builds outside of a launch.
const BUILDS: usize = 500;
/// Number of runs of each comparison.
const RUNS: usize = 15;
/// Number of variables in the environment, including those that agentd and the login shell add.
const VARIABLES: usize = 80;
/// Maximum duration of a warm build alone, and in the middle of a launch.
const GOAL: Duration = Duration::from_micros(500);
const LAUNCH_GOAL: Duration = Duration::from_micros(700);

pub(crate) fn measure() -> Result<Table> {
    let daemon = Daemon::start(Pipeline::Bench)?;
    let home = daemon.root().join("home");
    fs::write(home.join(".profile"), profile(VARIABLES - 7))?;
    fs::write(daemon.root().join("config/env-setup.sh"), "# agentd-depends: $HOME\nexport BENCH_SCRIPT=\"$HOME\"\n")?;
    let mut client = daemon.client()?;
    let mut launches = Vec::new();
    for _ in 0..FIRST + LAUNCHES {
        launches.push(launch(&daemon, &mut client)?);
    }
    let alone = builds(&daemon, &mut client)?;
    let mut warm = launches.split_off(FIRST);
    let variables = warm.last().map_or(0, |launch| launch.variables);
    let (cold, main) = (launches.first().map_or(Duration::ZERO, |launch| launch.built), median_of(&warm, |l| l.main));
    let built = median_of(&warm, |launch| launch.built);
    warm.sort_unstable_by_key(|launch| launch.built);
    let p99 = warm.get(warm.len() * 99 / 100).map_or(Duration::ZERO, |launch| launch.built);

    let mut table =
        Table::new(format!("environment: {variables} variables, three providers; median of {LAUNCHES} launches"));
    let plain = repeated(|| login(&home, "plain", "-lc"))?;
    table.times("warm build, against `bash -lc true`, a profile of 73 exports", alone, plain);
    table.goal(format!("<= {}", millis(GOAL)), alone <= GOAL);
    let heavy = daemon.root().join("heavy");
    heavy_home(&heavy)?;
    table.times(
        "the same, against it with version managers and completions",
        alone,
        repeated(|| login(&heavy, "heavy", "-lc"))?,
    );
    if Command::new("direnv").arg("version").stdout(Stdio::null()).status().is_ok() {
        table.times("the same, against `direnv exec`, an .envrc of one line", alone, direnv(daemon.root())?);
    }
    table.alone("warm build in the middle of a launch", millis(built));
    table.goal(format!("<= {}", millis(LAUNCH_GOAL)), built <= LAUNCH_GOAL);
    table.alone("the same, the 99th of 100", millis(p99));
    table.alone("the first build of a daemon", millis(cold));
    capture::measure(&mut table, &daemon, &mut client, "a profile of 73 exports")?;
    heavy_home(&home)?;
    capture::measure(&mut table, &daemon, &mut client, "version managers and completions")?;
    table.times(
        "from the request to the agent's main(), warm, against posix_spawn",
        main,
        repeated(|| bare_main(daemon.root()))?,
    );
    Ok(table)
}

/// Measures warm builds outside of a launch, one after the other, by the daemon's own figure (`at=now`).
fn builds(daemon: &Daemon, client: &mut Client) -> Result<Duration> {
    let id = daemon.session(client)?;
    let mut took = Vec::new();
    for _ in 0..BUILDS {
        let view = client.get(&format!("/v1/sessions/{id}/environment?at=now"))?;
        took.push(Duration::from_micros(view["duration_us"].as_u64().context("the view has no duration_us")?));
    }
    client.delete(&format!("/v1/sessions/{id}?force=true"))?;
    Ok(median(took))
}

/// Durations of one launch.
#[derive(Debug)]
pub(crate) struct Launch {
    built: Duration,
    /// From the request to the agent's `main()`.
    pub(crate) main: Duration,
    variables: u64,
}

fn median_of(launches: &[Launch], of: impl Fn(&Launch) -> Duration) -> Duration {
    median(launches.iter().map(of).collect())
}

/// Starts a session, and removes it when its agent has told its start time.
pub(crate) fn launch(daemon: &Daemon, client: &mut Client) -> Result<Launch> {
    let asked = wall()?;
    let id = daemon.session(client)?;
    let events = client.bytes(&format!("/v1/sessions/{id}/events?follow=false"))?;
    client.post(&format!("/v1/sessions/{id}/stop?wait=60"), &json!({}))?;
    client.delete(&format!("/v1/sessions/{id}"))?;
    let records: Vec<Value> =
        events.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let built = records.iter().find(|record| record["kind"] == "environment.built").context("no environment.built")?;
    let began = records.iter().find_map(|record| record["data"]["result"]["_meta"]["began"].as_u64());
    let took = built["data"]["duration_us"].as_u64().context("environment.built has no duration_us")?;
    Ok(Launch {
        built: Duration::from_micros(took),
        main: Duration::from_micros(began.context("the agent did not say when it began")?.saturating_sub(asked)),
        variables: built["data"]["variables"].as_u64().unwrap_or_default(),
    })
}

/// Starts the same agent, and asks it for its start time.
fn bare_main(directory: &Path) -> Result<Duration> {
    let asked = wall()?;
    let mut agent = bare::agent(directory)?;
    let stdin = agent.stdin.as_mut().context("the agent has no stdin")?;
    writeln!(stdin, "{}", json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} }))?;
    let mut answer = String::new();
    BufReader::new(agent.stdout.as_mut().context("the agent has no stdout")?).read_line(&mut answer)?;
    drop(agent.stdin.take());
    agent.wait()?;
    let answer: Value = serde_json::from_str(&answer)?;
    let began = answer["result"]["_meta"]["began"].as_u64().context("the agent did not say when it began")?;
    Ok(Duration::from_micros(began.saturating_sub(asked)))
}

fn repeated(mut work: impl FnMut() -> Result<Duration>) -> Result<Duration> {
    work()?;
    Ok(median((0..RUNS).map(|_| work()).collect::<Result<_>>()?))
}

/// Starts a login shell that reads this home's start-up files and runs no program.
fn login(home: &Path, what: &str, flags: &str) -> Result<Duration> {
    timed(Command::new("bash").args([flags, "true"]).env("HOME", home))
        .with_context(|| format!("the {what} login shell"))
}

fn timed(command: &mut Command) -> Result<Duration> {
    command
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let begun = Instant::now();
    let status = command.status()?;
    ensure!(status.success(), "it ended with {status}");
    Ok(begun.elapsed())
}

fn direnv(root: &Path) -> Result<Duration> {
    let directory = root.join("direnv");
    fs::create_dir(&directory)?;
    fs::write(directory.join(".envrc"), "export BENCH_ENVRC=1\n")?;
    let command = |arguments: &[&str]| {
        let mut command = Command::new("direnv");
        command.args(arguments).env_clear().env("HOME", root.join("home")).current_dir(&directory);
        command
    };
    timed(&mut command(&["allow", "."]))?;
    repeated(|| timed(&mut command(&["exec", ".", "true"])))
}

fn profile(variables: usize) -> String {
    let mut text = String::new();
    for n in 0..variables {
        let _ = writeln!(text, "export BENCH_{n}=/home/somebody/.local/share/something/{n}"); // to a String
    }
    text
}

/// Creates a home like that of a user with nvm, pyenv and completions: 4,000 lines of functions, 30 programs to start,
/// and their variables. It imitates the originals, which this repository does not contain.
fn heavy_home(home: &Path) -> Result<()> {
    fs::create_dir_all(home.join("bin"))?;
    let tool = home.join("bin/version-manager");
    fs::write(&tool, "#!/bin/sh\necho \"export MANAGED_$1=$HOME/versions/$1\"\n")?;
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755))?;
    let mut text = String::new();
    for n in 0..400 {
        let _ = writeln!(
            text,
            "_completion_{n}() {{\n  local current=\"${{COMP_WORDS[COMP_CWORD]}}\"\n  case \"$current\" in\n    \
             -*)\n      \
             COMPREPLY=($(compgen -W \"--help --version --option-{n}\" -- \"$current\"))\n      ;;\n    \
             *)\n      COMPREPLY=()\n      \
             ;;\n  esac\n}}\ncomplete -F _completion_{n} tool-{n} 2> /dev/null"
        );
    }
    for n in 0..30 {
        let _ = writeln!(text, "eval \"$($HOME/bin/version-manager {n})\"");
    }
    text.push_str(&profile(60));
    fs::write(home.join(".bashrc"), text)?;
    Ok(fs::write(home.join(".profile"), ". \"$HOME/.bashrc\"\n")?)
}
