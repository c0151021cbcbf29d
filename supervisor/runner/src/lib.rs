//! Runs one session from a specification to its result, as the main process of a container.
//!
//! [`run`] keeps a daemon of its own running in a state directory of its own, creates the session through the control
//! endpoint, and follows it. At the end it delivers the result, the journal and the artifacts, and returns an exit
//! status ([`Status`]). Not responsible for the daemon's restarts and for orphans: `agentd-daemon` has both.
//!
//! **Signals.** The first SIGTERM or SIGINT stops the session in order, within the grace. The second kills the agent's
//! process tree. The third ends this process at once, also during the delivery.
//!
//! **Ordering.** `result.json` appears after the journal and the artifacts are complete. Files appear under their names
//! only when they are complete.

mod deliver;
mod follow;
mod input;
mod place;
mod progress;
mod result;
mod signals;
mod status;

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_client::Client;
use agentd_daemon::{DirectoryOptions, InitError, OwnDaemon};

use crate::deliver::{Destination, Sources};
use crate::follow::Follower;
use crate::input::Request;
use crate::place::Place;
use crate::progress::Progress;
use crate::result::RunResult;
use crate::signals::StopSignals;
pub use crate::status::Status;

/// Options of a run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// File with the specification; `-` is standard input.
    pub file: PathBuf,
    /// File with the first prompt; `-` is standard input.
    pub prompt_file: Option<PathBuf>,
    /// The first prompt as the environment of this process has it.
    pub prompt: Option<String>,
    /// Directory below which the daemon has its directories. A temporary directory if absent.
    pub state: Option<PathBuf>,
    /// Directory of the sockets, instead of one below `state`.
    pub runtime_dir: Option<PathBuf>,
    /// Directory that receives the result, the journal and the artifacts.
    pub artifacts: Option<PathBuf>,
    /// Configuration file that replaces the user's own file.
    pub config_file: Option<PathBuf>,
    /// Configuration directory of the user.
    pub config_dir: Option<PathBuf>,
    /// Configuration directory of the administrator, instead of `/etc/agentd`.
    pub system_config_dir: Option<PathBuf>,
    /// Time limit of an orderly stop after a signal.
    pub grace: Duration,
    /// Whether each event is printed as one JSON object a line.
    pub json: bool,
}

/// Patience with keepers that are left at the end. Their agents have ended or were killed before.
const KEEPERS: Duration = Duration::from_secs(1);
/// Number of lines of the daemon's log that explain a failed start.
const LOG_LINES: usize = 10;

/// Runs a session to its result, and returns the exit status.
pub fn run(options: &RunOptions) -> u8 {
    let mut progress = Progress::new(options.json);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            Progress::error(&format!("cannot start: {error}"));
            return Status::Daemon.code();
        }
    };
    let result = runtime.block_on(async {
        // A signal before the handlers are installed is lost for process 1.
        match StopSignals::install() {
            Ok(mut signals) => Box::pin(run_with(options, &mut signals, &mut progress)).await,
            Err(error) => RunResult::early(Status::Daemon, format!("cannot receive signals: {error}")),
        }
    });
    progress.end(&result);
    // A thread that hangs on a disk does not delay the end of the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result.exit_status
}

async fn run_with(options: &RunOptions, signals: &mut StopSignals, progress: &mut Progress) -> RunResult {
    let destination = match options.artifacts.as_deref().map(Destination::open).transpose() {
        Ok(destination) => destination,
        Err(error) => return RunResult::early(Status::Results, error.to_string()),
    };
    let (mut result, place) = match read(options, signals).await {
        Ok(request) => match Place::new(options) {
            Ok(place) => (Box::pin(in_place(options, &request, &place, signals, progress)).await, Some(place)),
            Err(error) => (RunResult::early(Status::Daemon, error.to_string()), None),
        },
        Err(result) => (result, None),
    };
    let sources = place.as_ref().map(|place| Sources::of(place, &result));
    let delivered = match destination {
        Some(destination) => {
            progress.line("delivering the results");
            deliver(destination, sources, &mut result, signals).await
        }
        None => false,
    };
    if let Some(place) = place {
        place.leave(result.created.is_some() && !delivered, progress);
    }
    result
}

/// Reads the request. Standard input may have no end, so a signal ends the wait.
async fn read(options: &RunOptions, signals: &mut StopSignals) -> Result<Request, RunResult> {
    let given = options.clone();
    let reading = tokio::task::spawn_blocking(move || Request::read(&given));
    let read = tokio::select! {
        read = reading => read,
        signal = signals.next() => {
            let reason = "a signal stopped the run before its specification was read".to_owned();
            return Err(RunResult::early(Status::Signal(signal), reason));
        }
    };
    match read {
        Ok(Ok(request)) => Ok(request),
        Ok(Err(error)) => Err(RunResult::early(Status::Usage, error.to_string())),
        Err(error) => Err(RunResult::early(Status::Daemon, error.to_string())),
    }
}

/// Runs the session in its place, with a daemon that ends with it.
async fn in_place(
    options: &RunOptions,
    request: &Request,
    place: &Place,
    signals: &mut StopSignals,
    progress: &mut Progress,
) -> RunResult {
    let places = DirectoryOptions {
        runtime: Some(place.runtime.clone()),
        state: Some(place.state()),
        cache: Some(place.cache()),
        config: Some(place.config.clone()),
        system_config: options.system_config_dir.clone(),
    };
    let daemon_options = agentd_daemon::Options { config_file: options.config_file.clone(), places, background: true };
    let mut daemon = match OwnDaemon::prepare(&daemon_options) {
        Ok(daemon) => daemon,
        Err(error) => return RunResult::early(Status::Daemon, agentd_api::chain(&error)),
    };
    let log_file = daemon.directories().log_file();
    let socket = daemon.directories().control_socket();
    progress.line(&format!("agentd listens at {}", socket.display()));
    let follower = Follower { client: Client::new(socket), request, grace: options.grace, home: place.home() };
    let kept = daemon.keep(Box::pin(follower.run(signals, progress))).await;
    let result = kept.unwrap_or_else(|error| not_started(&error, &log_file));
    daemon.end(KEEPERS).await;
    result
}

/// Describes a daemon that did not start, with the end of its log.
fn not_started(error: &InitError, log_file: &std::path::Path) -> RunResult {
    let log = std::fs::read(log_file).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    let mut reason = agentd_api::chain(error);
    for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
        reason.push_str("\n  | ");
        reason.push_str(line);
    }
    RunResult::early(Status::Daemon, reason)
}

/// Delivers the results. Reports whether all of them were delivered. A third signal ends the delivery.
async fn deliver(
    destination: Destination,
    sources: Option<Sources>,
    result: &mut RunResult,
    signals: &mut StopSignals,
) -> bool {
    let mut given = result.clone();
    let work = tokio::task::spawn_blocking(move || {
        destination.deliver(sources.as_ref(), &mut given);
        given
    });
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                match done {
                    Ok(done) => *result = done,
                    Err(error) => result.undelivered(format!("the delivery failed: {error}")),
                }
                return result.undelivered.is_empty();
            }
            signal = signals.next() => {
                result.signalled(signal);
                if signals.count() > 2 {
                    result.undelivered("a further signal ended the delivery".to_owned());
                    return false;
                }
            }
        }
    }
}

/// The session that a run created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) id: SessionId,
    pub(crate) name: Option<String>,
    /// Session for which the workspace was made.
    pub(crate) workspace: Option<SessionId>,
}
