//! The daemon's life: configuration, directories, sessions, endpoint; then signals until the end.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::config;
use crate::control::{Endpoint, EndpointError, Served};
use crate::directories::{Directories, DirectoryError, Places};
use crate::env::sources::HomeDiffers;
use crate::env::{Trust, chain};
use crate::health::Health;
use crate::init::{self, InitError};
use crate::lock::{self, LockError};
use crate::log;
use crate::manager;
use crate::platform;
use crate::reload::Reload;
use crate::session::{Sessions, recheck};
use crate::world::{Programs, World, Worlds};

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Read this file in place of the user's own.
    pub config_file: Option<PathBuf>,
    pub places: Places,
    /// Leave the caller's terminal and process session, and write the log to a file.
    pub background: bool,
}

/// Why the daemon does not run.
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
        "agentd does not start from inside the session {session}, which is one of its own: start it from a terminal outside of the \
         sessions, or as a service (agentctl service install)"
    )]
    Inside { session: String },
    #[error("cannot read the sessions in {path:?}")]
    Sessions { path: PathBuf, source: io::Error },
    #[error("cannot go to the background, with the log in {path:?}")]
    Background { path: PathBuf, source: io::Error },
    #[error("cannot start: {0}")]
    Start(#[source] io::Error),
    #[error("cannot tell where agentd's own programs are")]
    Programs(#[source] io::Error),
}

/// How long the drivers may take to end, whatever their keepers do.
const DRIVERS: Duration = Duration::from_secs(10);
/// How often what lies about is looked for.
const TIDY: Duration = Duration::from_mins(10);
/// How often the status line is looked at.
const STATUS: Duration = Duration::from_secs(5);

/// Runs the daemon until SIGTERM or SIGINT. Sessions live on. As process 1, keeps one running until the container ends.
pub fn serve(options: &Options) -> Result<(), ServeError> {
    agentd_keeper::private::close(None).map_err(ServeError::Start)?;
    let directories = Directories::prepare(&options.places)?;
    if options.background {
        go_to_background(&directories.log_file())?;
    }
    log::start(options.background.then(|| directories.log_file()));
    if init::is_this() {
        return Ok(init::run(&directories.control_socket())?);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // A daemon waits more than it works; a thread a core would be memory for nothing.
        .worker_threads(2)
        // Each is a stack: many sessions at once may wait for one another's disk writes.
        .max_blocking_threads(32)
        .enable_all()
        .build()
        .map_err(ServeError::Start)?;
    let served = runtime.block_on(run(options, directories));
    // A thread that hangs on a disk holds up nobody's end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// A daemon below one of its own keepers would end with that session, and the keepers of the others do not speak with it.
fn not_inside(directories: &Directories) -> Result<(), ServeError> {
    let sessions = directories.sessions();
    let below = |argument: Vec<u8>| {
        let path = PathBuf::from(OsString::from_vec(argument));
        Some(path.strip_prefix(&sessions).ok()?.to_string_lossy().into_owned()).filter(|session| !session.is_empty())
    };
    let mut arguments = agentd_keeper::caller::keepers_around().into_iter().flat_map(platform::arguments);
    arguments.find_map(below).map_or(Ok(()), |session| Err(ServeError::Inside { session }))
}

async fn run(options: &Options, directories: Directories) -> Result<(), ServeError> {
    let sources = directories.sources(options.config_file.clone());
    let loaded = config::load(&sources);
    not_inside(&directories)?;
    let _lock = manager::extending(lock::take(&directories.state, &directories.control_socket())).await?;
    agentd_fault::arm(&directories.state.join("faults"));
    let started = SystemTime::now();
    let trust = Trust::begin(&directories.state);
    let programs = programs().map_err(ServeError::Programs)?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(ServeError::Start)?;
    let endpoint = Endpoint::open(&directories.control_socket())?;
    let audit = Audit::begin(&directories.state).map_err(ServeError::Start)?;
    let worlds = Arc::new(Worlds::new(World::new(loaded, directories, trust, programs)?));
    let world = worlds.now();
    begin(&world).await;
    if let Some(differs) = HomeDiffers::find(world.config.environment.home.as_deref()) {
        tracing::warn!(code = HomeDiffers::CODE, "{differs}");
    }
    let sessions = {
        let worlds = Arc::clone(&worlds);
        let opened = tokio::task::spawn_blocking(move || Sessions::open(worlds));
        Arc::new(manager::extending(opened).await.map_err(io::Error::other).map_err(ServeError::Start)?)
    };
    let reload = Arc::new(Reload::new(sources, Arc::clone(&worlds), Arc::clone(&sessions)));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        state = %world.directories.state.display(),
        socket = %world.directories.control_socket().display(),
        tcp = ?world.tcp.address(),
        sessions_run_as = world.launcher.describe(),
        configuration = ?world.read.files,
        "agentd is ready"
    );
    let (closing, socket) = (CancellationToken::new(), endpoint.socket_state());
    let served = Served {
        worlds: Arc::clone(&worlds),
        sessions: Arc::clone(&sessions),
        reload: Arc::clone(&reload),
        audit: Arc::new(audit),
        closing: closing.clone(),
    };
    let serving = tokio::spawn(endpoint.serve(served));
    manager::ready();
    let mut reading = tokio::spawn(read(Arc::clone(&sessions)));
    let mut is_read = false;
    tokio::spawn(recheck(Arc::clone(&worlds), Arc::clone(&sessions)));
    load_plugins(world);

    let health = Health::begin(Arc::clone(&worlds.now().pulses)).map_err(ServeError::Start)?;
    let mut beat = tokio::time::interval(STATUS);
    let mut tidying = tokio::time::interval(TIDY);
    let mut shown = String::new();
    loop {
        tokio::select! {
            signal = signals.next() => {
                if signal == Some(SIGHUP) {
                    let reload = Arc::clone(&reload);
                    // What came of it is in the log.
                    tokio::spawn(async move { reload.reload().await });
                    continue;
                }
                tracing::info!(?signal, "agentd ends; its sessions live on");
                break;
            }
            read = &mut reading, if !is_read => {
                read.map_err(io::Error::other)
                    .flatten()
                    .map_err(|source| ServeError::Sessions { path: worlds.now().directories.sessions(), source })?;
                is_read = true;
                beat.reset_immediately();
            }
            _ = beat.tick(), if is_read => {
                let world = worlds.now();
                let now = health.line(&world, &sessions, socket.trouble());
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
    manager::extending(end(&worlds, &sessions, &closing, serving, (!is_read).then_some(reading))).await;
    Ok(())
}

/// Opens TCP and says what is wrong with the configuration. Neither keeps the daemon from starting: its sessions may be running.
async fn begin(world: &World) {
    let mut mistakes = world.read.mistakes.clone();
    if let Err(error) = world.tcp.apply(&world.config).await {
        mistakes.push(error.mistake(&world.read, world.tcp.address()));
    }
    for mistake in &mistakes {
        tracing::error!("{mistake}; {}", mistake.consequence.explained());
    }
    world.standing.set(mistakes);
}

/// Ends the endpoint, then the drivers.
async fn end(
    worlds: &Worlds,
    sessions: &Sessions,
    closing: &CancellationToken,
    serving: JoinHandle<()>,
    reading: Option<JoinHandle<io::Result<()>>>,
) {
    // Whoever was let in is answered, and that is the drivers' work.
    closing.cancel();
    let _ = serving.await;
    worlds.now().shutdown.cancel();
    let ended = async {
        if let Some(reading) = reading {
            // What it starts is ended with the rest.
            let _ = reading.await;
        }
        sessions.closed().await;
    };
    if tokio::time::timeout(DRIVERS, ended).await.is_err() {
        tracing::warn!("some sessions could not be let go in {} s; they live on", DRIVERS.as_secs());
    }
}

/// Reads the sessions that are not taken over.
async fn read(sessions: Arc<Sessions>) -> io::Result<()> {
    sessions.go_first().await;
    tokio::task::spawn_blocking(move || sessions.read()).await.map_err(io::Error::other).flatten()
}

/// Compiles the plugins before the first session waits for them; what is wrong with one is in the log, and said again at the launch.
fn load_plugins(world: Arc<World>) {
    tokio::spawn(async move {
        if let Err(error) = world.plugins().await {
            tracing::error!(error = %chain(&error), "no plugin can be loaded, and so no session be launched");
        }
    });
}

/// The programs beside our own. The path is taken once: after an upgrade in place the running program's file is another.
fn programs() -> io::Result<Programs> {
    let daemon = std::env::current_exe()?;
    let beside = |name: &str| daemon.with_file_name(name);
    Ok(Programs { keeper: beside("agentd-keeper"), ctl: beside("agentctl"), daemon })
}

/// Leaves the terminal: a process session of our own, nothing on stdin, the log in a file.
fn go_to_background(log_file: &Path) -> Result<(), ServeError> {
    let failed = |source: io::Error| ServeError::Background { path: log_file.to_owned(), source };
    let file = log::open(log_file).map_err(failed)?;
    let null = File::open("/dev/null").map_err(failed)?;
    nix::unistd::dup2_stdin(null.as_fd()).map_err(|errno| failed(errno.into()))?;
    nix::unistd::dup2_stdout(file.as_fd()).map_err(|errno| failed(errno.into()))?;
    nix::unistd::dup2_stderr(file.as_fd()).map_err(|errno| failed(errno.into()))?;
    // The leader of a process group cannot make a process session, and need not: it was started in a group of its own.
    let _ = nix::unistd::setsid();
    std::env::set_current_dir("/").map_err(failed)
}
