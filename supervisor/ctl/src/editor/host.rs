//! The surroundings of the editor's sessions: the way to the daemon, the options of the command, and the output.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agentd_api::Code;
use agentd_api::session::{Phase, SessionSpec, SessionView};
use tokio::time::{Instant, sleep, timeout};

use super::permission::Shows;
use super::requests::Offers;
use super::wire::Out;
use crate::error::Error;
use crate::reach::reach;
use crate::start::Starter;
use agentd_client::Absence as _;
use agentd_client::{Client, Terms};

/// Time for which a daemon that is being restarted is waited for.
const AWAY: Duration = Duration::from_secs(5);
/// Time limit of the end of a session that is to be started again.
const ENDING: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit of a look at two directories, which may be on a file system that does not respond.
const LOOK: Duration = Duration::from_secs(2);

/// Options of `agentctl acp`.
#[derive(Debug)]
pub(crate) struct Options {
    /// Specification of new sessions, without the directory.
    pub(crate) spec: SessionSpec,
    pub(crate) terms: Terms,
}

/// The surroundings of a session. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Host {
    pub(super) client: Client,
    pub(super) starter: Option<Starter>,
    pub(super) options: Arc<Options>,
    pub(super) out: Out,
    /// Directory with the editor's positions.
    pub(super) seen: Option<PathBuf>,
    /// Questions that the editor can show.
    pub(super) shows: Shows,
    /// Requests of agents that the editor carries out.
    pub(super) offers: Offers,
}

impl Host {
    /// Returns a client of a daemon that answers. Starts a daemon if this program may.
    pub(super) async fn reach(&self) -> Result<Client, Error> {
        let since = Instant::now();
        loop {
            let mut client = self.client.clone();
            match reach(self.starter.as_ref(), &mut client).await {
                Ok(()) => return Ok(client),
                Err(error) if error.is_absence() && since.elapsed() < AWAY => sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts the agent of a session that has ended, and returns the session. A running session stays unchanged.
    pub(super) async fn woken(&self, client: &Client, id: &str) -> Result<SessionView, Error> {
        let since = Instant::now();
        loop {
            let view = client.session(id).await?.value;
            let phase = view.status.phase;
            if phase == Phase::Stopping && since.elapsed() < ENDING {
                sleep(PAUSE).await;
                continue;
            }
            if !phase.is_over() {
                return Ok(view);
            }
            match client.resume(id, None, false, self.options.terms).await {
                // Another client was faster.
                Err(error) if error.problem_code() == Some(Code::WrongPhase) && since.elapsed() < ENDING => {
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
                Ok(resumed) => return Ok(resumed.value),
            }
        }
    }
}

/// Reports whether two paths name one directory.
pub(super) async fn is_same_directory(a: &Path, b: &Path) -> bool {
    if a == b {
        return true;
    }
    let (a, b) = (a.to_owned(), b.to_owned());
    let look =
        tokio::task::spawn_blocking(move || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b));
    matches!(timeout(LOOK, look).await, Ok(Ok(true)))
}

/// Receiver of the remarks for the user. Without it, they go to standard error.
pub(super) static REMARKS: OnceLock<fn(session: &str, text: &str)> = OnceLock::new();

/// Tells the user something. Editors show or log the standard error of an agent.
pub(super) fn tell(session: &str, text: &str) {
    use std::io::Write as _;

    if let Some(remark) = REMARKS.get() {
        return remark(session, text);
    }
    let text = agentd_screen::terminal::for_stderr(&format!("agentctl acp: session {session}: {text}\n")).to_string();
    // An editor that closed it reads nothing.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
