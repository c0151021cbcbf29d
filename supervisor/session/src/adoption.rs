//! Takes over the keeper of a session, or makes sure that no process of the session is left. Runs at the daemon's
//! start, and after a connection to a keeper is lost.
//!
//! A keeper belongs to a session only if everything agrees:
//!
//! - it answers on the session's socket
//! - it names the session's id and launch
//! - it is the process that owns the socket
//! - it has the start time that the journal records
//! - under systemd, it runs in the session's unit
//!
//! A keeper that holds the journal and does not answer is waited for ([`super::silent`]): only one process may
//! write the journal.

use std::time::Duration;

use agentd_api::Body;
use agentd_api::event::DaemonRecovered;
use agentd_fault::Point;
use agentd_keeper::protocol::{Hello, ToKeeper};

use super::driver::{Driver, DriverError};
use super::journal_port::{Port, is_held};
use crate::launch::{Launcher, Link, LinkError};
use crate::pulse;
use agentd_decide::batch::Batch;
use agentd_decide::next::next;
use agentd_decide::state::{KeeperId, Run};
use agentd_decide::waits::waits;
use agentd_host::platform;

/// Number of connection attempts while a keeper holds the journal. The keeper may not listen yet, or may be about
/// to release the journal.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// Result of the search for a session's keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeeperSearchResult {
    /// Connected. The keeper has an agent, or the end of an agent that it cannot record yet.
    Connected,
    /// A keeper holds the journal but does not answer.
    Silent,
    /// No keeper. The journal is free, or is about to be.
    Absent,
}

impl Driver {
    /// Reports whether the session needs no task: it has ended, nothing is due, no process is left, and the state
    /// includes the whole journal.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.state.run, Run::Ended(_))
            && !self.may_have_remains
            && next(&self.state, &self.facts()).is_none()
            && waits(&self.state, &self.facts()).is_empty()
            // Test the keeper before the journal: a keeper that is gone has written all its records.
            && !self.generation.daemon.directories.keeper_socket(self.id()).exists()
            && !self.generation.daemon.directories.session_files(self.id()).exists()
            && agentd_journal::last_seq(&self.journal.directory).is_ok_and(|last| last == self.state.seq)
    }

    /// Reads the journal, and takes over the keeper if one lives.
    pub(super) async fn take_over(&mut self) -> Result<(), DriverError> {
        // Search the keeper first: records that it has not announced yet must not be read. Its socket may have
        // been removed.
        let may_live =
            self.generation.daemon.directories.keeper_socket(self.id()).exists() || is_held(&self.journal).await;
        let found = if may_live { self.connect().await } else { KeeperSearchResult::Absent };
        if found == KeeperSearchResult::Silent {
            self.catch_up().await?;
        } else {
            let repaired = self.mend().await?;
            self.catch_up_mended(repaired).await?;
        }
        self.publish();
        if found == KeeperSearchResult::Silent {
            return Ok(());
        }
        let (has_keeper, running) = (found == KeeperSearchResult::Connected, matches!(self.state.run, Run::Running(_)));
        if has_keeper || running {
            let agent_alive = matches!(&self.port, Port::Keeper(link) if link.hello.agent_pid.is_some());
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let recovered = DaemonRecovered { version, agent_alive, killed: 0 };
            self.append(Batch::of(Body::DaemonRecovered(recovered))).await?;
        }
        if has_keeper {
            return Ok(());
        }
        if running {
            return self.bury().await;
        }
        if std::mem::take(&mut self.may_have_remains) {
            // The session has ended, or its agent has no keeper: nothing controls the remaining processes.
            self.generation.daemon.launcher.sweep(self.id()).await;
            let killed = platform::kill_remains(self.id().as_str()).await;
            if killed == 0 {
                return Ok(());
            }
            tracing::warn!(agentd.session = %self.id(), killed, "killed processes that were left of an ended session");
            let recovered =
                DaemonRecovered { version: env!("CARGO_PKG_VERSION").to_owned(), agent_alive: false, killed };
            self.append(Batch::of(Body::DaemonRecovered(recovered))).await?;
        }
        Ok(())
    }

    /// Connects to the session's keeper.
    pub(super) async fn connect(&mut self) -> KeeperSearchResult {
        let (socket, patience) = (self.generation.daemon.directories.keeper_socket(self.id()), self.keeper_patience());
        for _ in 0..TRIES {
            let answer = Link::connect(&socket, &patience).await;
            let is_silent = matches!(answer, Err(LinkError::Silent { .. }));
            match answer {
                Ok(link) => match self.disagreement(&link) {
                    None if agentd_fault::at(Point::DaemonTakeOverConnected).is_err() => {}
                    None => {
                        if self.take(link).await {
                            return KeeperSearchResult::Connected;
                        }
                    }
                    Some(reason) => {
                        tracing::error!(
                            agentd.session = %self.id(), reason,
                            "ignoring a keeper that does not belong to this session"
                        );
                        return KeeperSearchResult::Absent;
                    }
                },
                Err(error) => tracing::debug!(agentd.session = %self.id(), %error, "no keeper answers"),
            }
            if !is_held(&self.journal).await {
                return KeeperSearchResult::Absent;
            }
            if is_silent {
                break;
            }
            pulse::elsewhere(tokio::time::sleep(PAUSE)).await;
        }
        // The announced end of the journal is unknown. The whole journal is read, and read again if the keeper
        // rolls records back.
        self.go_silent(u64::MAX);
        KeeperSearchResult::Silent
    }

    /// Makes a keeper the session's own. A keeper without an agent is asked to end, and the result is then `false`.
    pub(super) async fn take(&mut self, link: Link) -> bool {
        self.generation.daemon.launcher.keepers().enter(link.hello.pid, link.hello.start_time, self.id());
        let has_ended = link.tail().ended;
        if link.hello.agent_pid.is_none() && !has_ended {
            // The keeper has no agent yet, since the daemon ended before it sent the launch record; or its agent
            // has just ended.
            self.dismiss(link).await;
            return false;
        }
        self.port = Port::Keeper(link);
        // An ended agent needs no stop. Its end may wait for room in the journal.
        self.stop_sent = has_ended;
        self.note_keeper();
        true
    }

    async fn dismiss(&self, mut link: Link) {
        let _ = link.call(&ToKeeper::Stop(self.stop_times())).await;
    }

    /// Returns the reason why a keeper does not belong to the session, if there is one.
    pub(super) fn disagreement(&self, link: &Link) -> Option<&'static str> {
        let Hello { session, launch, pid, start_time, .. } = &link.hello;
        if session != self.id().as_str() {
            return Some("it names another session");
        }
        if link.peer.is_some_and(|peer| peer != *pid) {
            return Some("the socket belongs to another process than the one that answers");
        }
        if platform::start_time(*pid).is_some_and(|started| started != *start_time) {
            return Some("another process has its pid by now");
        }
        // A keeper that ended before it had an agent may have been replaced by another one for the same launch.
        let lives = |known: &KeeperId| platform::start_time(known.pid) == Some(known.start_time);
        let known = self.state.keeper.filter(|known| known.launch == *launch && lives(known));
        if known.is_some_and(|known| known.pid != *pid || known.start_time != *start_time) {
            return Some("the journal names another keeper for this launch");
        }
        if *launch < self.state.launches {
            return Some("it belongs to an earlier launch");
        }
        if !Launcher::is_at_home(self.id(), *pid) {
            return Some("it does not run in the session's unit");
        }
        None
    }

    /// Handles the end of the connection to the keeper, by looking for the keeper again.
    pub(super) async fn line_lost(&mut self) -> Result<(), DriverError> {
        self.port = Port::Direct;
        let found = self.connect().await;
        self.catch_up().await?;
        if found == KeeperSearchResult::Absent { self.bury().await } else { Ok(()) }
    }

    /// Handles the end of the keeper. If the end of the agent is not recorded, kills its remaining processes and
    /// records its end.
    pub(super) async fn bury(&mut self) -> Result<(), DriverError> {
        self.port = Port::Direct;
        self.look_for_room_later();
        self.stop_due = None;
        self.catch_up().await?;
        let mut killed = 0;
        if matches!(self.state.run, Run::Running(_)) {
            self.generation.daemon.launcher.sweep(self.id()).await;
            killed = platform::kill_remains(self.id().as_str()).await;
        }
        self.record_end(killed).await
    }
}
