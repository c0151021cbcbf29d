//! Runs the daemon: loads the configuration, prepares directories, opens the sessions and the endpoint, and waits for
//! signals.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::doctor::Clocks;
use crate::health::Health;
use crate::init::{self, InitError};
use crate::log;
use agentd_control::{AcpService, Audit, Endpoint, EndpointError, Hub, Served};
use agentd_host::files::open_private_log;
use agentd_session::daemon::{Daemon, Programs};
use agentd_session::generation::{Generation, Generations};

use crate::reload::{Outputs, Reload};
use crate::supervisor::Supervisor;
use agentd_api::chain;
use agentd_api::feed::{DaemonStarted, DaemonStopping, Notice, PluginsFailed};
use agentd_config::{self as config, Loaded};
use agentd_control::{ReadOnlyEndpoint, TcpEndpoint};
use agentd_environment::Trust;
use agentd_environment::sources::HomeDiffers;
use agentd_feed::Feed;
use agentd_hooks::Hooks;
use agentd_host::directories::{Directories, DirectoryError, DirectoryOptions};
use agentd_host::disk::DiskWatch;
use agentd_host::lock::{self, LockError};
use agentd_host::manager;
use agentd_host::platform;
use agentd_metrics::Metrics;
use agentd_session::place;
use agentd_session::schedules::Schedules;
use agentd_session::warm::keep_warm;
use agentd_session::{Measure, Sessions, recheck};
use agentd_traces::Traces;

/// Options from the command line.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Configuration file that replaces the user's own file.
    pub config_file: Option<PathBuf>,
    pub places: DirectoryOptions,
    /// Whether to detach from the caller's terminal and process session, and to log to a file.
    pub background: bool,
}

/// Reason why the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Init(#[from] InitError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(
        "agentd cannot run inside its own session {session}: start it from a terminal outside of the sessions, \
         or as a service (agentctl service install)"
    )]
    Inside { session: String },
    #[error("cannot read the sessions in {path:?}")]
    Sessions { path: PathBuf, source: io::Error },
    #[error("cannot detach to the background with the log file {path:?}")]
    Background { path: PathBuf, source: io::Error },
    #[error("cannot start: {0}")]
    Start(#[source] io::Error),
    #[error("cannot find the directory of agentd's programs")]
    Programs(#[source] io::Error),
}

/// Time limit for ending the drivers, even if their keepers do not respond.
const DRIVERS: Duration = Duration::from_secs(10);
/// Interval of the cleanup of leftover keepers, unfinished files and oversized journals.
const TIDY: Duration = Duration::from_mins(10);
/// Time limit for the traces that wait for their collector at the end.
const LAST_TRACES: Duration = Duration::from_secs(2);
/// Interval at which the status line is checked for changes.
const STATUS: Duration = Duration::from_secs(5);

/// Runs the daemon until SIGTERM or SIGINT. Sessions continue without the daemon. As process 1, keeps a daemon
/// running until the container ends. `acp` serves the clients of `/acp`.
pub fn serve(options: &Options, acp: Arc<dyn AcpService>) -> Result<(), ServeError> {
    agentd_keeper::private::protect_memory(None).map_err(ServeError::Start)?;
    let directories = Directories::find_and_create(&options.places)?;
    if options.background {
        go_to_background(&directories.log_file())?;
    }
    let traces = log::start(options.background.then(|| directories.log_file()));
    if init::is_this() {
        return Ok(init::run(&directories.control_socket())?);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // The daemon mostly waits; one thread per core would waste memory.
        .worker_threads(2)
        // Each blocking thread costs a stack. Many sessions may wait for each other's disk writes at once.
        .max_blocking_threads(32)
        .enable_all()
        .build()
        .map_err(ServeError::Start)?;
    let served = runtime.block_on(run(options, directories, acp, traces.clone()));
    traces.end(LAST_TRACES);
    // A thread that hangs on a disk does not delay the end of the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Refuses to start below one of the daemon's own keepers. Such a daemon would end with that session, and the keepers
/// of the other sessions would not accept it.
fn not_inside(directories: &Directories) -> Result<(), ServeError> {
    let sessions = directories.sessions();
    let below = |argument: Vec<u8>| {
        let path = PathBuf::from(OsString::from_vec(argument));
        Some(path.strip_prefix(&sessions).ok()?.to_string_lossy().into_owned()).filter(|session| !session.is_empty())
    };
    let mut arguments = agentd_caller::keepers_around().into_iter().flat_map(platform::arguments);
    arguments.find_map(below).map_or(Ok(()), |session| Err(ServeError::Inside { session }))
}

async fn run(
    options: &Options,
    directories: Directories,
    acp: Arc<dyn AcpService>,
    traces: Traces,
) -> Result<(), ServeError> {
    let sources = directories.sources(options.config_file.clone());
    let loaded = config::load(&sources);
    not_inside(&directories)?;
    let _lock = manager::extending(lock::take(&directories.state, &directories.control_socket())).await?;
    agentd_fault::arm(&directories.state.join("faults"));
    let started = SystemTime::now();
    let trust = Trust::begin(&directories.state);
    let programs = programs().map_err(ServeError::Programs)?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(ServeError::Start)?;
    let (endpoint, read_only) = open_sockets(&directories.control_socket())?;
    let (generations, audit) = first_generation(loaded, directories, (trust, programs, started))?;
    let (tcp, clocks) = (Arc::new(TcpEndpoint::default()), Clocks::now());
    let generation = generations.now();
    let outputs = Outputs { tcp: Arc::clone(&tcp), read_only: Arc::clone(&read_only), traces };
    begin(&generation, &outputs).await;
    let opening = Instant::now();
    let (sessions, schedules) = open(&generations).await?;
    let measure = Measure::new(Arc::clone(&generations), Arc::clone(&sessions), opening);
    let feed = Arc::new(begin_feed(&generation, &sessions).map_err(ServeError::Start)?);
    let hooks = Arc::new(begin_hooks(&generations, &sessions, &feed));
    let reload = Arc::new(Reload::new(sources, Arc::clone(&generations), Arc::clone(&sessions), outputs));
    report_start(&generation, &tcp, &read_only);
    generation.keep_spare();
    let (closing, socket) = (CancellationToken::new(), endpoint.socket_state());
    let served = Served {
        generations: Arc::clone(&generations),
        sessions: Arc::clone(&sessions),
        schedules: Arc::clone(&schedules),
        operations: Arc::new(Supervisor {
            reload: Arc::clone(&reload),
            generations: Arc::clone(&generations),
            sessions: Arc::clone(&sessions),
            schedules: Arc::clone(&schedules),
            hooks: Arc::clone(&hooks),
            started: clocks,
        }),
        tcp,
        read_only: Arc::clone(&read_only),
        audit: Arc::new(audit),
        feed: Arc::clone(&feed),
        acp: Arc::new(Hub::new(acp)),
        lists: Arc::default(),
        closing: closing.clone(),
    };
    let serving = tokio::spawn(endpoint.serve(served));
    manager::ready();
    let mut reading = tokio::spawn(read(Arc::clone(&sessions)));
    let mut is_read = false;
    tokio::spawn(Arc::clone(&schedules).wait());
    tokio::spawn(Arc::clone(&hooks).run());
    tokio::spawn(recheck(Arc::clone(&generations), Arc::clone(&sessions)));
    tokio::spawn(place::watch(Arc::clone(&generations), Arc::clone(&sessions)));
    tokio::spawn(keep_warm(Arc::clone(&generations), Arc::clone(&sessions)));
    tokio::spawn(measure.run());
    load_plugins(generation);

    let health = Health::begin(Arc::clone(&generations.now().daemon.pulses)).map_err(ServeError::Start)?;
    let mut beat = tokio::time::interval(STATUS);
    let mut tidying = tokio::time::interval(TIDY);
    let mut shown = String::new();
    loop {
        tokio::select! {
            signal = signals.next() => {
                if signal == Some(SIGHUP) {
                    let reload = Arc::clone(&reload);
                    // The log shows the result.
                    tokio::spawn(async move { reload.reload().await });
                    continue;
                }
                tracing::info!(?signal, "agentd is shutting down; its sessions continue");
                break;
            }
            read = &mut reading, if !is_read => {
                read.map_err(io::Error::other)
                    .flatten()
                    .map_err(|source| {
                        let path = generations.now().daemon.directories.sessions();
                        ServeError::Sessions { path, source }
                    })?;
                is_read = true;
                beat.reset_immediately();
            }
            _ = beat.tick(), if is_read => {
                let generation = generations.now();
                let now = health.line(&generation, &sessions, socket.trouble().or_else(|| read_only.trouble()));
                if now != shown {
                    manager::status(&now);
                    shown = now;
                }
            }
            _ = tidying.tick(), if is_read => {
                let sessions = Arc::clone(&sessions);
                tokio::task::spawn_blocking(move || sessions.tidy(started));
            }
        }
    }
    manager::stopping();
    let kept = (&*sessions, &*schedules, &*hooks, &*feed);
    manager::extending(end(&generations, kept, &closing, serving, (!is_read).then_some(reading))).await;
    Ok(())
}

/// Opens the control socket, and takes the sockets that the service manager handed over.
fn open_sockets(control: &Path) -> Result<(Endpoint, Arc<ReadOnlyEndpoint>), EndpointError> {
    let mut sockets = platform::activated_sockets().map_err(EndpointError::HandedOver)?;
    let read_only = ReadOnlyEndpoint::new(control.to_owned(), &mut sockets)?;
    Ok((Endpoint::open(control, sockets.control)?, read_only))
}

/// Creates the first generation with its daemon, and begins the audit log.
fn first_generation(
    Loaded { config, read }: Loaded,
    directories: Directories,
    (trust, programs, started): (Trust, Programs, SystemTime),
) -> Result<(Arc<Generations>, Audit), ServeError> {
    let metrics = metrics(started);
    let audit = Audit::begin(&directories.state, Arc::clone(&metrics)).map_err(ServeError::Start)?;
    let disk = DiskWatch::begin(&directories.state).map_err(ServeError::Start)?;
    let daemon = Daemon::new(&config, read, directories, trust, programs, metrics);
    // The daemon is new, so the watch is not set yet.
    let _ = daemon.disk.set(disk);
    Ok((Arc::new(Generations::new(Generation::first(config, Arc::new(daemon))?)), audit))
}

/// Creates the metrics of a daemon that started at this time.
fn metrics(started: SystemTime) -> Arc<Metrics> {
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let since = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    metrics.start_time.set([], since.as_secs_f64());
    Arc::new(metrics)
}

/// Writes the start to the log, with the places of the daemon.
fn report_start(generation: &Generation, tcp: &TcpEndpoint, read_only: &ReadOnlyEndpoint) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        state = %generation.daemon.directories.state.display(),
        socket = %generation.daemon.directories.control_socket().display(),
        tcp = ?tcp.address(),
        %read_only,
        sessions_run_as = generation.daemon.launcher.describe(),
        configuration = ?generation.read.files,
        "agentd is ready"
    );
}

/// Takes over the sessions that have a keeper, and reads the schedules.
async fn open(generations: &Arc<Generations>) -> Result<(Arc<Sessions>, Arc<Schedules>), ServeError> {
    let failed = |error| ServeError::Start(io::Error::other(error));
    let of_sessions = Arc::clone(generations);
    let opened = agentd_host::work::blocking(move || Sessions::open(of_sessions));
    let sessions = Arc::new(manager::extending(opened).await.map_err(failed)?);
    let (generations, of_schedules) = (Arc::clone(generations), Arc::clone(&sessions));
    let opened = agentd_host::work::blocking(move || Schedules::open(generations, of_schedules));
    Ok((sessions, Arc::new(opened.await.map_err(failed)??)))
}

/// Starts the feed of events.
fn begin_feed(generation: &Generation, sessions: &Arc<Sessions>) -> io::Result<Feed> {
    let Daemon { directories, changes, .. } = &*generation.daemon;
    let options = agentd_feed::Options {
        directory: directories.state.join(agentd_feed::DIRECTORY),
        sessions: directories.sessions(),
    };
    let started = DaemonStarted { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() };
    changes.note(Notice::DaemonStarted(started));
    Feed::begin(options, Arc::clone(sessions), Arc::clone(changes))
}

/// Creates the hooks, which read the feed.
fn begin_hooks(generations: &Arc<Generations>, sessions: &Arc<Sessions>, feed: &Arc<Feed>) -> Hooks {
    let directory = generations.now().daemon.directories.hooks();
    Hooks::new(Arc::clone(generations), Arc::clone(sessions), Arc::clone(feed), directory)
}

/// Opens TCP and the read-only socket. Logs the configuration's mistakes, and a home directory other than the user's.
/// Neither prevents the daemon's start, because its sessions may be running.
async fn begin(generation: &Generation, Outputs { tcp, read_only, traces }: &Outputs) {
    let mut mistakes = generation.read.mistakes.clone();
    if let Err(error) = tcp.apply(&generation.config).await {
        mistakes.push(error.mistake(&generation.read, tcp.address()));
    }
    if let Err(error) = read_only.apply(&generation.config).await {
        mistakes.push(error.mistake(&generation.read, read_only.path().as_deref()));
    }
    send_traces(generation, traces);
    for mistake in &mistakes {
        tracing::error!("{mistake}; {}", mistake.consequence.explained());
    }
    generation.daemon.standing.set(mistakes);
    if let Some(differs) = HomeDiffers::find(generation.config.environment.home.as_deref()) {
        tracing::warn!(code = HomeDiffers::CODE, "{differs}");
    }
}

/// Sends the traces where the configuration demands.
pub(crate) fn send_traces(generation: &Generation, traces: &Traces) {
    if let Err(error) = traces.send_to(generation.config.traces.endpoint.as_deref()) {
        tracing::error!("{}", chain(&error));
    }
}

/// Ends the endpoint, then the drivers, the hooks, and the feed of the events.
async fn end(
    generations: &Generations,
    (sessions, schedules, hooks, feed): (&Sessions, &Schedules, &Hooks, &Feed),
    closing: &CancellationToken,
    serving: JoinHandle<()>,
    reading: Option<JoinHandle<io::Result<()>>>,
) {
    generations.now().daemon.changes.note(Notice::DaemonStopping(DaemonStopping {}));
    // Requests already accepted are answered first, which requires the drivers.
    closing.cancel();
    let _ = serving.await;
    generations.now().daemon.shutdown.cancel();
    let ended = async {
        if let Some(reading) = reading {
            // Drivers started by the reading task are ended together with the others.
            let _ = reading.await;
        }
        schedules.closed().await;
        sessions.closed().await;
    };
    if tokio::time::timeout(DRIVERS, ended).await.is_err() {
        tracing::warn!("some session drivers did not end within {} s; their sessions continue", DRIVERS.as_secs());
    }
    hooks.close().await;
    feed.close().await;
}

/// Reads the sessions without a keeper. The takeover of sessions with a keeper gets a head start.
async fn read(sessions: Arc<Sessions>) -> io::Result<()> {
    sessions.wait_for_takeover().await;
    agentd_host::work::blocking(move || sessions.read()).await.map_err(io::Error::other).flatten()
}

/// Compiles the plugins before the first session needs them. Logs a plugin's failure; the launch reports it again.
fn load_plugins(generation: Arc<Generation>) {
    tokio::spawn(async move {
        if let Err(error) = generation.plugins().await {
            tracing::error!(error = %chain(&error), "cannot load plugins; no session can be launched");
            let detail = chain(&error);
            generation.daemon.changes.note(Notice::PluginsFailed(PluginsFailed { detail }));
        }
    });
}

/// Returns the paths of the programs next to this one. The paths are determined once: an upgrade in place replaces
/// the running program's file.
fn programs() -> io::Result<Programs> {
    let daemon = std::env::current_exe()?;
    let beside = |name: &str| daemon.with_file_name(name);
    Ok(Programs { keeper: beside("agentd-keeper"), ctl: beside("agentctl"), daemon })
}

/// Detaches from the terminal: a new process session, no stdin, and the log in a file.
fn go_to_background(log_file: &Path) -> Result<(), ServeError> {
    let failed = |source: io::Error| ServeError::Background { path: log_file.to_owned(), source };
    let file = open_private_log(log_file).map_err(failed)?;
    let null = File::open("/dev/null").map_err(failed)?;
    nix::unistd::dup2_stdin(null.as_fd()).map_err(|errno| failed(errno.into()))?;
    nix::unistd::dup2_stdout(file.as_fd()).map_err(|errno| failed(errno.into()))?;
    nix::unistd::dup2_stderr(file.as_fd()).map_err(|errno| failed(errno.into()))?;
    // The leader of a process group cannot create a process session. Such a process was started in a group of its own
    // already.
    let _ = nix::unistd::setsid();
    std::env::set_current_dir("/").map_err(failed)
}
