//! Duration of a call of a plugin in its sandbox, compiled and interpreted. The calls go to the three built-in
//! providers, with an environment of eighty variables and a host that answers from memory. Each call has its own
//! instance.
//!
//! The comparisons are the same sources as native code in this program ([`native`]), and as a child process. The child
//! is started for each call with the request on its stdin, and shows the cost of a provider without a sandbox. Also
//! measures the memory of the daemon with three plugins and with thirty.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_plugin_host::{
    Call, Code, Failure, Host, HostOptions, Limits, LogLevel, Places, Plugin, Services, SessionFacts, Source,
    SourcedScript, Variables, World, builtin,
};
use anyhow::{Context as _, Result, ensure};

use crate::daemon::{Daemon, Pipeline};
use crate::memory::{beside, settled};
use crate::native::{self, SCRIPT, SET};
use crate::process::rss;
use crate::table::{Table, kib, median, ratio};
use crate::{bare, table};

const VARIABLES: usize = 80;
/// Number of calls of a kind, each timed separately.
const CALLS: usize = 501;
/// Number of starts of a child process.
const CHILDREN: usize = 101;
/// Numbers of plugins of a daemon with few plugins and of a daemon with many.
const FEW: usize = 3;
const MANY: usize = 30;

pub(crate) fn measure() -> Result<Table> {
    let environment = environment();
    let directory = tempfile::Builder::new().prefix("agentd-bench-").tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut table = Table::new(format!("plugins: a call with {VARIABLES} variables; median of {CALLS}"));
    for name in builtin().iter().filter(|built_in| built_in.world == World::Provider).map(|built_in| built_in.name) {
        let (native, changes) = native::call(name, &environment, CALLS)?;
        let child = child(name, &environment)?;
        for (code, words) in [(Code::Native, "compiled"), (Code::Interpreted, "interpreted")] {
            let mut options = HostOptions::new(directory.path().join("cache"), env!("CARGO_BIN_EXE_agentd"));
            options.code = Some(code);
            let host = Host::new(options)?;
            let (fresh, made) = runtime.block_on(boxed(&host, name, &environment, changes))?;
            pair(&mut table, format!("{name}, {words}, against native code"), fresh, native);
            pair(&mut table, format!("{name}, {words}, its instance made before"), made, native);
            pair(&mut table, format!("{name}, {words}, against a child process"), fresh, child);
        }
    }
    let few = weight(FEW)?;
    let many = weight(MANY)?;
    beside(&mut table, "PSS of the daemon with 30 plugins, against 3", many.0, few.0);
    beside(&mut table, "RSS of the daemon with 30 plugins, against 3", many.1, few.1);
    table.alone("PSS of each of the 27 others", kib(many.0.saturating_sub(few.0) / (MANY - FEW) as u64));
    Ok(table)
}

fn pair(table: &mut Table, figure: String, ours: Duration, against: Duration) {
    table.pair(figure, table::rate(ours), table::rate(against), ratio(ours, against));
}

/// Returns an environment with a typical number and typical lengths of a login shell's variables.
fn environment() -> Vec<(String, Vec<u8>)> {
    let own = ["PATH", "HOME", "LANG", "EDITOR", "TERM", "SHLVL", "GITHUB_TOKEN", "JAVA_HOME"];
    let own = own.iter().map(|&name| (name.to_owned(), b"/usr/local/bin:/usr/bin:/bin".to_vec()));
    let more = (own.len()..VARIABLES)
        .map(|n| (format!("BENCH_{n}"), format!("/home/somebody/.local/share/something/{n}").into_bytes()));
    own.chain(more).collect()
}

/// A host that answers from memory.
struct Known(Variables);

#[async_trait::async_trait]
impl Services for Known {
    fn log(&self, _: LogLevel, _: &str) {}

    async fn login_environment(&self, _: Instant) -> Result<Variables, Failure> {
        Ok(self.0.clone())
    }

    async fn locate_scripts(&self, paths: Vec<String>, _: Instant) -> Result<Vec<Option<String>>, Failure> {
        Ok(paths.into_iter().map(|path| (path == SCRIPT).then_some(path)).collect())
    }

    async fn source_script(
        &self,
        path: &str,
        mut environment: Variables,
        _: Instant,
    ) -> Result<SourcedScript, Failure> {
        environment.push((SET.0.to_owned(), SET.1.into()));
        Ok(SourcedScript { path: path.to_owned(), environment })
    }
}

/// Returns the duration of a whole call, and of a call with an instance that was made before. Fails if the answer has
/// another number of changes than the answer of native code.
async fn boxed(
    host: &Host,
    name: &str,
    environment: &[(String, Vec<u8>)],
    changes: usize,
) -> Result<(Duration, Duration)> {
    let built_in = builtin().iter().find(|built_in| built_in.name == name).context("no such provider")?;
    let source = Source::BuiltIn { name: built_in.name, bytes: built_in.bytes };
    let plugin = host.load(source, &built_in.grant()).await?;
    let services: Arc<dyn Services> = Arc::new(Known(environment.to_vec()));
    let call = || Call {
        session: Some(SessionFacts {
            id: "bench".to_owned(),
            name: None,
            agent: "demo".to_owned(),
            directory: "/tmp".to_owned(),
            launch: 1,
        }),
        environment: environment.to_vec(),
        foreign: Vec::new(),
        settings: Vec::new(),
        places: Places::default(),
        services: Arc::clone(&services),
        limits: Limits::default(),
    };
    let given = plugin.provide(call()).await?.len();
    ensure!(given == changes, "{name} gave {given} changes in its box, and {changes} outside of it");
    Ok((timed(&plugin, &call, false).await?, timed(&plugin, &call, true).await?))
}

async fn timed(plugin: &Plugin, call: &impl Fn() -> Call, prepared: bool) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let call = call();
        if prepared {
            plugin.warm_up(call.limits).await;
        }
        let begun = Instant::now();
        plugin.provide(call).await?;
        times.push(begun.elapsed());
    }
    Ok(median(times))
}

/// Returns the time from a child's start until its answer was read and it has ended.
fn child(name: &str, environment: &[(String, Vec<u8>)]) -> Result<Duration> {
    let request = native::encode(environment);
    let mut times = Vec::new();
    for _ in 0..CHILDREN {
        let begun = Instant::now();
        let mut child = bare::myself()?
            .args(["provide", name])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("this program cannot be started")?;
        child.stdin.take().context("the child has no stdin")?.write_all(&request)?;
        let output = child.wait_with_output()?;
        times.push(begun.elapsed());
        ensure!(output.status.success() && !output.stdout.is_empty(), "the child ended with {}", output.status);
    }
    Ok(median(times))
}

/// Returns PSS and RSS, in KiB, of a daemon with this number of plugins after all of them took part in a build.
fn weight(plugins: usize) -> Result<(u64, u64)> {
    let daemon = Daemon::start(Pipeline::Plugins(plugins))?;
    let mut client = daemon.client()?;
    daemon.session(&mut client)?;
    let pss = settled(daemon.pid()?)?;
    Ok((pss, rss(daemon.pid()?)?))
}
