//! Costs of sessions on a place: memory, files, and queries of the engine. An administrator multiplies them.
//!
//! The engine is a directory with two shell scripts in place of Slurm's programs. `srun` starts the far side on this
//! machine. `squeue` prints a list and counts its own calls. So everything is real except for the cluster.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::daemon::{Daemon, Pipeline, prompt, wait, wait_idle};
use crate::memory::settled;
use crate::process::{cpu_time, parent, pss_of};
use crate::table::{Table, kib, median, millis};

const SESSIONS: usize = 100;
/// Number of jobs that the engine lists, of which all but those of the sessions belong to other daemons of the user.
const JOBS: usize = 10_000;
/// Time between two queries, shorter than the default of 5 s so that a run has many.
const POLL: Duration = Duration::from_millis(500);
/// Number of polls of each measurement.
const POLLS: u32 = 20;
/// A turn of an agent: lines, and bytes of each line.
const TURN: (u64, u64) = (100, 400);
/// Number of runs of the bare engine's program.
const RUNS: usize = 15;
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Starts the far side, whose command line is in the last two arguments.
const SRUN: &str = "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nexec \"$@\"\n";

pub(crate) fn measure() -> Result<Table> {
    let mut table =
        Table::new(format!("fleet: a place of Slurm, {SESSIONS} sessions; a query each {} ms", POLL.as_millis()));
    let mut daemon = Daemon::prepare(Pipeline::Empty)?;
    let engine = Engine::new(daemon.root())?;
    engine.configure(&daemon)?;
    daemon.serve()?;
    let idle = settled(daemon.pid()?)?;

    let mut ids = daemon.launch(1)?;
    engine.list(&ids, 0)?;
    let one = engine.polled(&daemon)?;
    ids.extend(daemon.launch(SESSIONS - 1)?);
    engine.list(&ids, 0)?;
    engine.polled(&daemon)?;
    memory(&mut table, &daemon, idle)?;
    files(&mut table, &daemon, &ids)?;

    let many = engine.polled(&daemon)?;
    table.alone("queries of the engine for each poll, 1 session", per_poll(&one));
    table.alone(format!("the same, {SESSIONS} sessions"), per_poll(&many));
    table.goal("<= 1", many.queries <= many.polls() && one.queries <= one.polls());
    table.alone("processor of the daemon for each query", millis(many.each()));
    engine.list(&ids, JOBS - ids.len())?;
    engine.polled(&daemon)?;
    let full = engine.polled(&daemon)?;
    table.alone(format!("the same, {JOBS} jobs of the user"), millis(full.each()));
    let ours = median(Engine::durations(&daemon)?);
    let bare = median((0..RUNS).map(|_| engine.bare()).collect::<Result<_>>()?);
    table.times(format!("a query of {JOBS} jobs, against its program alone"), ours, bare);
    let page = daemon.client()?.bytes("/metrics")?;
    let series =
        page.split(|&byte| byte == b'\n').filter(|line| line.first().is_some_and(|&byte| byte != b'#')).count();
    table.alone("series of the daemon's metrics", series.to_string());
    table.alone("size of a scrape", kib(u64::try_from(page.len())?.div_ceil(1024)));
    Ok(table)
}

/// Adds the memory of a session: the daemon's share, the keeper, and the far side.
fn memory(table: &mut Table, daemon: &Daemon, idle: u64) -> Result<()> {
    let count = u64::try_from(SESSIONS)?;
    let many = settled(daemon.pid()?)?;
    let list = daemon.client()?.get("/v1/sessions?fields=status.keeper_pid,status.place")?;
    let sessions = list["sessions"].as_array().context("the list has no sessions")?;
    let pid = |value: &Value| value.as_u64().and_then(|pid| u32::try_from(pid).ok());
    let (mut keepers, mut far) = (Vec::new(), Vec::new());
    for session in sessions {
        let status = &session["status"];
        keepers.push(pid(&status["keeper_pid"]).context("a session has no keeper")?);
        far.push(parent(pid(&status["place"]["host"]["agent_pid"]).context("an agent has no place")?)?);
    }
    let share = many.saturating_sub(idle) / count;
    let (keeper, far) = (pss_of(&keepers)? / count, pss_of(&far)? / count);
    table.alone("memory of a session: share of the daemon", kib(share));
    table.alone("memory of a session: its keeper", kib(keeper));
    table.alone("memory of a session on the place: agentd-keeper enter", kib(far));
    table.alone("the daemon itself", kib(idle));
    Ok(())
}

/// Adds the size of an idle session's files, and their growth by a turn.
fn files(table: &mut Table, daemon: &Daemon, ids: &[String]) -> Result<()> {
    let count = u64::try_from(ids.len())?;
    let sum = ids.iter().map(|id| daemon.size(id)).sum::<Result<u64>>()?;
    table.alone("files of an idle session", format!("{} B", sum / count));
    let (mut client, id) = (daemon.client()?, ids.first().context("there is no session")?);
    let before = daemon.size(id)?;
    let after = prompt(&mut client, id, &format!("print {} {}", TURN.0, TURN.1))?;
    wait_idle(&mut client, id, after)?;
    let (grown, printed) = (daemon.size(id)?.saturating_sub(before), TURN.0 * TURN.1);
    table.alone(format!("growth by a turn of {printed} B in {} lines", TURN.0), format!("{grown} B"));
    Ok(())
}

/// A measurement of several polls.
struct Polled {
    queries: u32,
    time: Duration,
    processor: Duration,
}

impl Polled {
    /// Number of polls in the time, rounded up.
    fn polls(&self) -> u32 {
        u32::try_from(self.time.as_millis().div_ceil(POLL.as_millis())).unwrap_or(u32::MAX)
    }

    fn each(&self) -> Duration {
        self.processor / self.queries.max(1)
    }
}

fn per_poll(polled: &Polled) -> String {
    format!("{:.2}", f64::from(polled.queries) * POLL.as_secs_f64() / polled.time.as_secs_f64())
}

/// The programs that the daemon takes for Slurm's.
struct Engine {
    directory: PathBuf,
}

impl Engine {
    fn new(root: &Path) -> Result<Self> {
        let engine = Self { directory: root.join("slurm") };
        fs::create_dir(&engine.directory)?;
        let (calls, list) = (engine.calls(), engine.directory.join("list"));
        let squeue = format!("#!/bin/sh\nprintf . >> {}\nexec cat {}\n", calls.display(), list.display());
        for (name, text) in
            [("srun", SRUN), ("squeue", &squeue), ("scancel", "#!/bin/sh\n"), ("scontrol", "#!/bin/sh\n")]
        {
            let file = engine.directory.join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, Permissions::from_mode(0o755))?;
        }
        fs::write(calls, "")?;
        engine.list(&[], 0)?;
        Ok(engine)
    }

    fn calls(&self) -> PathBuf {
        self.directory.join("calls")
    }

    /// Adds the place to the configuration. All sessions of the bench run on it.
    fn configure(&self, daemon: &Daemon) -> Result<()> {
        use std::io::Write as _;
        let keeper = crate::agentd().with_file_name("agentd-keeper");
        let config = daemon.root().join("config/agentd.toml");
        write!(
            fs::File::options().append(true).open(config)?,
            "\n[places.farm]\nkind = \"slurm\"\nkeeper = {:?}\nbin = {:?}\npoll = \"{}ms\"\n\n\
             [directories.{:?}]\nplace = \"farm\"\n",
            keeper.display().to_string(),
            self.directory.display().to_string(),
            POLL.as_millis(),
            daemon.root().join("work").display().to_string(),
        )?;
        Ok(())
    }

    /// Makes `squeue` list the sessions as running jobs, and other jobs of the user.
    fn list(&self, ids: &[String], others: usize) -> Result<()> {
        use std::fmt::Write as _;
        let mut text = String::new();
        for (number, id) in ids.iter().enumerate() {
            writeln!(text, "agentd-{id}-1|{}|RUNNING|NONE|1700000000|node{}|None", number + 1, number % 500)?;
        }
        for number in ids.len()..ids.len() + others {
            writeln!(text, "agentd-elsewhere{number}-1|{}|PENDING|NONE|N/A||Resources", number + 1)?;
        }
        let (new, file) = (self.directory.join("list.new"), self.directory.join("list"));
        fs::write(&new, text)?;
        Ok(fs::rename(new, file)?)
    }

    fn count(&self) -> Result<u32> {
        Ok(u32::try_from(fs::metadata(self.calls())?.len())?)
    }

    /// Measures several polls, from one query on.
    fn polled(&self, daemon: &Daemon) -> Result<Polled> {
        let first = self.count()?;
        wait("a query of the engine", PAUSE, || Ok((self.count()? > first).then_some(())))?;
        let (begun, before, processor) = (Instant::now(), self.count()?, cpu_time(daemon.pid()?)?);
        thread::sleep(POLL * POLLS);
        let queries = self.count()? - before;
        Ok(Polled { queries, time: begun.elapsed(), processor: cpu_time(daemon.pid()?)?.saturating_sub(processor) })
    }

    /// Returns the durations of queries as the daemon measures them: the mean between two looks at its metrics.
    fn durations(daemon: &Daemon) -> Result<Vec<Duration>> {
        let mut client = daemon.client()?;
        let mut look = || -> Result<(f64, f64)> {
            let page = String::from_utf8(client.bytes("/metrics")?.to_vec())?;
            let value = |name: &str| {
                let begin = format!("agentd_place_query_duration_seconds_{name}{{place=\"farm\",outcome=\"ok\"}} ");
                let line = page.lines().find_map(|line| line.strip_prefix(&begin));
                line.and_then(|value| value.parse::<f64>().ok()).with_context(|| format!("the page has no {begin}"))
            };
            Ok((value("sum")?, value("count")?))
        };
        let mut durations = Vec::new();
        let mut last = look()?;
        for _ in 0..RUNS {
            let now = wait("a measured query", PAUSE, || Ok(Some(look()?).filter(|now| now.1 > last.1)))?;
            durations.push(Duration::try_from_secs_f64((now.0 - last.0) / (now.1 - last.1))?);
            last = now;
        }
        Ok(durations)
    }

    /// Runs the engine's program, and reads its output.
    fn bare(&self) -> Result<Duration> {
        let begun = Instant::now();
        let output = Command::new(self.directory.join("squeue")).stdin(Stdio::null()).output()?;
        ensure!(String::from_utf8(output.stdout)?.lines().count() == JOBS, "the list is not complete");
        Ok(begun.elapsed())
    }
}
