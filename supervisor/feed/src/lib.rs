//! The feed: one stream of the events of all sessions and of the daemon, with one cursor.
//!
//! The feed is a journal of its own in `feed/` of the state directory. An event of a session is stored there by
//! reference: session and sequence number. The record itself stays in the session's journal alone. Other events
//! ([`agentd_api::feed::Notice`]) are stored whole.
//!
//! One thread writes (`writer`). It learns from [`agentd_session::changes`] which sessions published a state, and
//! appends their new events. So the feed has only applied records, and no driver waits for the feed.
//!
//! **Cursors.** A cursor is the start of the feed's era in microseconds since 1970, plus the number of the event in
//! the era. An era survives restarts and crashes of the daemon. A power cut may lose the end of the files, so the next
//! daemon begins another era. Cursors of former eras are recognised, and never mean another event.
//!
//! **Order.** The events of a session have the order of its journal. `session.state` follows the events that caused
//! the change. No event is left out or repeated: the next daemon finds in the feed's own files how far each session
//! was fed.
//!
//! This crate does not know HTTP.

mod brief;
mod entry;
mod fetch;
mod filter;
mod look;
mod recent;
mod store;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_journal::ReadError;
use agentd_session::Sessions;
use agentd_session::changes::Changes;
use tokio::sync::{oneshot, watch};

pub use filter::Filter;
pub use look::{FeedError, FeedReader, Start};
pub use recent::Item;

use recent::Shared;
use writer::FeedWriter;

/// Directory of the feed, below the state directory.
pub const DIRECTORY: &str = "feed";
/// Time for which the end of the daemon waits for the last events.
const LAST: Duration = Duration::from_secs(3);
/// Number of further attempts to open a reader.
const ATTEMPTS: usize = 10;
/// Time for which a new reader waits until the present events are stored.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Places of a feed.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the feed.
    pub directory: PathBuf,
    /// Directory of the sessions.
    pub sessions: PathBuf,
}

/// The feed of one daemon.
#[derive(Debug)]
pub struct Feed {
    options: Options,
    shared: Arc<Shared>,
    changes: Arc<Changes>,
    ended: tokio::sync::Mutex<Option<oneshot::Receiver<()>>>,
}

impl Feed {
    /// Starts the thread that writes the feed. Trouble with the files is no error: the thread tries again.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn begin(options: Options, sessions: Arc<Sessions>, changes: Arc<Changes>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (ending, ended) = oneshot::channel();
        let writer = FeedWriter::new(options.clone(), Arc::clone(&shared), sessions, Arc::clone(&changes));
        std::thread::Builder::new().name("feed".to_owned()).spawn(move || {
            writer.run();
            let _ = ending.send(());
        })?;
        Ok(Self { options, shared, changes, ended: tokio::sync::Mutex::new(Some(ended)) })
    }

    /// Returns a receiver of the cursor of the last event.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.shared.watch()
    }

    /// Returns the number of receivers of the cursor.
    pub fn watchers(&self) -> usize {
        self.shared.watchers()
    }

    /// Returns why the feed cannot be written now.
    pub fn trouble(&self) -> Option<String> {
        self.shared.lock().trouble.clone()
    }

    /// Waits until everything that happened before is in the feed, for at most two seconds.
    pub async fn catch_up(&self) {
        let _ = tokio::time::timeout(CATCH_UP, self.changes.barrier()).await;
    }

    /// Reports whether the feed has the session that the filter names, and whether the filter takes its events.
    pub fn has(&self, filter: &Filter) -> bool {
        let brief = |id: &SessionId| self.shared.lock().brief(id);
        filter.session.as_ref().is_none_or(|id| brief(id).is_some_and(|brief| filter.takes_session(id, Some(&brief))))
    }

    /// Returns the last known state of a session, also of a session that was removed recently.
    pub fn brief(&self, id: &SessionId) -> Option<Arc<agentd_api::feed::SessionBrief>> {
        self.shared.lock().brief(id)
    }

    /// Opens a reader, and returns the events with which its stream begins. Without `follow` the stream ends with the
    /// present events. Blocks.
    ///
    /// # Errors
    ///
    /// The files cannot be read.
    pub fn open(
        &self,
        (start, follow): (Start, bool),
        filter: &Filter,
    ) -> Result<(FeedReader, Vec<Arc<Item>>), FeedError> {
        let open =
            || FeedReader::open(Arc::clone(&self.shared), &self.options.sessions, (start, follow), filter.clone());
        let mut opened = open();
        // The oldest events may be removed in the middle of the look.
        for _ in 0..ATTEMPTS {
            if !matches!(opened, Err(FeedError::Read(ReadError::Gone { .. }))) {
                break;
            }
            opened = open();
        }
        opened
    }

    /// Stores the last events and ends the thread. The drivers have ended before.
    pub async fn close(&self) {
        self.changes.close();
        let Some(ended) = self.ended.lock().await.take() else { return };
        if tokio::time::timeout(LAST, ended).await.is_err() {
            tracing::warn!("the feed of events did not end in time; the next daemon completes it");
        }
    }
}
