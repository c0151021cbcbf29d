//! An agent on a place: a machine behind ssh, a job of Slurm, a container. Measures the time to the agent's `main()`,
//! and its output.
//!
//! The comparison is the place's bare client, `ssh`, `srun` or `podman run`, that starts the same agent there and
//! whose stdout is copied to a file. The places are those of the tests, on this machine ([`crate::harness`]).

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::agent::wall;
use crate::bare;
use crate::daemon::{Daemon, prompt, wait_idle};
use crate::environment;
use crate::harness::container::{IMAGE, Podman};
use crate::harness::paths;
use crate::harness::slurm::{Options, Slurm};
use crate::harness::sshd::{Far, Login};
use crate::harness::static_keeper::static_keeper;
use crate::table::{Table, median, millis};

/// Number of measured starts, and of starts before them that fill the caches.
const TURNS: usize = 15;
const FIRST: usize = 2;
/// Number of measured outputs.
const RUNS: usize = 7;
/// Output of the agent.
const LINES: u64 = 65_536;
const BYTES: u64 = 4096;
/// Longest start, as a multiple of the bare client's, and the time that is added.
const GOAL_START: f64 = 1.3;
const GOAL_MORE: Duration = Duration::from_millis(50);
/// Slowest output, as a part of the bare client's.
const GOAL_OUTPUT: f64 = 0.7;

/// An engine on this machine.
enum Engine {
    Ssh(Far),
    Slurm(Slurm),
    Container(Podman),
}

/// Names of the engines, and the functions that boot them.
const ENGINES: [&str; 3] = ["ssh", "srun", "podman run"];

impl Engine {
    async fn boot(name: &str) -> Option<Self> {
        match name {
            "ssh" => Far::boot(Login::Root, "").await.map(Self::Ssh),
            "srun" => Slurm::boot(Options::default()).await.map(Self::Slurm),
            _ => Podman::boot(&[]).map(Self::Container),
        }
    }

    /// Returns the keys of the place.
    fn keys(&self, root: &Path) -> String {
        let keeper = crate::agentd().with_file_name("agentd-keeper");
        let keeper = keeper.display();
        match self {
            Self::Ssh(far) => {
                let config = far.config();
                let config = config.display();
                format!("kind = \"ssh\"\nhost = \"lab\"\nconfig = \"{config}\"\nkeeper = \"{keeper}\"\n")
            }
            Self::Slurm(slurm) => format!(
                "kind = \"slurm\"\nkeeper = \"{keeper}\"\noptions = [\"--nodelist=b\"]\n\
                 env = {{ SLURM_CONF = \"{}\" }}\n",
                slurm.conf().display()
            ),
            Self::Container(podman) => format!(
                "kind = \"container\"\nengine = \"{}\"\nimage = {IMAGE:?}\nkeeper_file = \"{}\"\nmounts = {:?}\n",
                podman.engine().display(),
                static_keeper().display(),
                mounts(root)
            ),
        }
    }

    /// Builds the bare client that starts the agent.
    fn client(&self, root: &Path) -> Result<Command> {
        let bench = std::env::current_exe()?;
        let agent = [bench.display().to_string(), "agent".to_owned(), root.display().to_string()];
        Ok(match self {
            Self::Ssh(far) => far.command(&format!("exec '{}'", agent.join("' '"))),
            Self::Slurm(slurm) => {
                let mut srun = slurm.client("srun");
                srun.args(["--quiet", "--nodes=1", "--ntasks=1", "--mpi=none", "--chdir=/", "--nodelist=b"])
                    .args(agent);
                srun
            }
            Self::Container(podman) => {
                let volumes = mounts(root).into_iter().map(|mount| format!("--volume={mount}"));
                let mut run = podman.command(&["run", "--rm", "--interactive", "--network=host", "--log-driver=none"]);
                run.args(volumes).arg(IMAGE).args(agent);
                run
            }
        })
    }
}

/// The programs of this machine, and the directory of the daemon.
fn mounts(root: &Path) -> Vec<String> {
    let system = ["/usr:/usr:ro", "/usr/bin:/bin:ro", "/usr/lib:/lib:ro", "/lib64:/lib64:ro"];
    let own = [root, paths::programs()].map(|path| format!("{0}:{0}", path.display()));
    system.map(str::to_owned).into_iter().chain(own).collect()
}

pub(crate) fn measure() -> Result<Table> {
    let mut table = Table::new(format!(
        "places: start of an agent, median of {TURNS}; {} MB of output in lines of {BYTES} B, median of {RUNS}",
        LINES * BYTES / 1_000_000
    ));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for name in ENGINES {
        match runtime.block_on(Engine::boot(name)) {
            Some(engine) => compare(&mut table, name, &engine)?,
            None => _ = table.absent(format!("start, against {name}"), "not here"),
        }
    }
    Ok(table)
}

fn compare(table: &mut Table, name: &str, engine: &Engine) -> Result<()> {
    let daemon = Daemon::on_a_place(|root| engine.keys(root))?;
    let mut client = daemon.client()?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..FIRST + TURNS {
        ours.push(environment::launch(&daemon, &mut client)?.main);
        let (agent, took) = Agent::start(engine.client(daemon.root())?)?;
        agent.end()?;
        bare.push(took);
    }
    let (ours, bare) = (median(ours.split_off(FIRST)), median(bare.split_off(FIRST)));
    table.times(format!("start, against {name}"), ours, bare);
    let goal = bare.mul_f64(GOAL_START) + GOAL_MORE;
    table.goal(format!("<= {GOAL_START} x + {} = {}", millis(GOAL_MORE), millis(goal)), ours <= goal);

    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.push(kept(&daemon)?);
        bare.push(copied(engine, daemon.root())?);
    }
    let speed = |times| megabytes() / median(times).as_secs_f64();
    let (ours, bare) = (speed(ours), speed(bare));
    table.pair(format!("output, against {name}"), format!("{ours:.0} MB/s"), format!("{bare:.0} MB/s"), ours / bare);
    table.goal(format!("ratio >= {GOAL_OUTPUT}"), ours / bare >= GOAL_OUTPUT);
    Ok(())
}

fn megabytes() -> f64 {
    u32::try_from(LINES * BYTES / 1_000_000).map_or(f64::INFINITY, f64::from)
}

/// Lets agentd read the agent's output.
fn kept(daemon: &Daemon) -> Result<Duration> {
    nix::unistd::sync();
    let mut client = daemon.client()?;
    let id = daemon.session(&mut client)?;
    let begun = Instant::now();
    let before = prompt(&mut client, &id, &format!("print {LINES} {BYTES}"))?;
    let last = wait_idle(&mut client, &id, before)?;
    let took = begun.elapsed();
    ensure!(last - before >= LINES, "{} of {LINES} lines are in the journal", last - before);
    client.delete(&format!("/v1/sessions/{id}?force=true"))?;
    Ok(took)
}

/// Copies the agent's output to a file.
fn copied(engine: &Engine, root: &Path) -> Result<Duration> {
    nix::unistd::sync();
    let file = root.join("copy");
    let (mut agent, _) = Agent::start(engine.client(root)?)?;
    let stdout = agent.child.stdout.take().context("the client has no stdout")?;
    let mut copy = bare::myself()?.arg("bare-copy").arg(&file).stdin(Stdio::from(stdout)).spawn()?;
    let begun = Instant::now();
    let params = json!({ "prompt": [{ "type": "text", "text": format!("print {LINES} {BYTES}") }] });
    agent.ask(2, "session/prompt", &params)?;
    drop(agent.child.stdin.take());
    let status = copy.wait()?;
    let took = begun.elapsed();
    agent.end()?;
    ensure!(status.success(), "the bare loop failed: {status}");
    let size = std::fs::metadata(&file)?.len();
    ensure!(size >= LINES * BYTES, "{size} bytes came from the bare client");
    std::fs::remove_file(file)?;
    Ok(took)
}

/// An agent behind a bare client.
struct Agent {
    child: Child,
}

impl Agent {
    /// Starts the client. Returns the time until the agent's `main()`.
    fn start(mut client: Command) -> Result<(Self, Duration)> {
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let asked = wall()?;
        let mut agent = Self { child: client.spawn().context("the client cannot be started")? };
        agent.ask(1, "initialize", &json!({}))?;
        let mut stdout = BufReader::new(agent.child.stdout.take().context("the client has no stdout")?);
        let mut answer = String::new();
        stdout.read_line(&mut answer)?;
        // The agent prints nothing more before it is asked.
        agent.child.stdout = Some(stdout.into_inner());
        let answer: Value = serde_json::from_str(&answer).with_context(|| format!("the agent answered {answer:?}"))?;
        let began = answer["result"]["_meta"]["began"].as_u64().context("the agent did not say when it began")?;
        Ok((agent, Duration::from_micros(began.saturating_sub(asked))))
    }

    fn ask(&mut self, id: u32, method: &str, params: &Value) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("the client has no stdin")?;
        writeln!(stdin, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "the bare client ended with {status}");
        Ok(())
    }
}
