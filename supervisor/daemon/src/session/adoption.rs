//! Finding the keeper of a session again, or making sure that nothing of it is left: at the daemon's start, and whenever the line to a
//! keeper breaks.
//!
//! A keeper is taken for a session's own only if everything agrees: it answers on the session's socket, says the session's id and
//! launch, is the process that the socket belongs to, has the start time that the journal has for it, and, under systemd, runs in the session's
//! unit. One that holds the journal and does not answer is waited for ([`super::silent`]): nobody else may write meanwhile.

use std::time::Duration;

use agentd_api::Body;
use agentd_api::event::DaemonRecovered;
use agentd_fault::Point;
use agentd_keeper::protocol::{Hello, ToKeeper};

use super::batch::Batch;
use super::driver::{Broken, Driver};
use super::journal_port::{Port, is_held};
use super::next::next;
use super::state::{KeeperId, Run};
use super::waits::waits;
use crate::launch::{Launcher, Link, LinkError};
use crate::platform;
use crate::pulse;

/// How often a keeper is looked for that holds the journal and has no socket, or that is about to let the journal go.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// What there is of a session's keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// One with an agent, or with an agent's end that it cannot write, and a line to it.
    Keeper,
    /// One that does not answer.
    Silent,
    /// None; the journal is free, or about to be.
    Nobody,
}

impl Driver {
    /// Whether nothing is to be done for the session until somebody asks: it has ended, nothing is due, no keeper or agent is left,
    /// and its journal ends where its state does.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.state.run, Run::Ended(_))
            && !self.may_have_remains
            && next(&self.state, &self.facts()).is_none()
            && waits(&self.state, &self.facts()).is_empty()
            // The keeper first: one that is gone has written all that it had.
            && !self.world.directories.keeper_socket(self.id()).exists()
            && !self.world.directories.session_files(self.id()).exists()
            && agentd_journal::last_seq(&self.journal.directory).is_ok_and(|last| last == self.state.seq)
    }

    /// Reads what the journal has and takes the keeper over, if one lives.
    pub(super) async fn take_over(&mut self) -> Result<(), Broken> {
        // The keeper first: what it has not announced yet is not read. Its socket may have been removed.
        let may_live = self.world.directories.keeper_socket(self.id()).exists() || is_held(&self.journal).await;
        let found = if may_live { self.connect().await } else { Found::Nobody };
        if found == Found::Silent {
            self.catch_up().await?;
        } else {
            let repaired = self.mend().await?;
            self.catch_up_mended(repaired).await?;
        }
        self.publish();
        if found == Found::Silent {
            return Ok(());
        }
        let (has_keeper, running) = (found == Found::Keeper, matches!(self.state.run, Run::Running(_)));
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
            // An agent without a keeper, and a session that has ended: whoever is left answers to nobody.
            self.world.launcher.sweep(self.id()).await;
            let killed = platform::kill_remains(self.id().as_str()).await;
            if killed == 0 {
                return Ok(());
            }
            tracing::warn!(agentd.session = %self.id(), killed, "processes of a session that has ended were left, and are killed");
            let recovered =
                DaemonRecovered { version: env!("CARGO_PKG_VERSION").to_owned(), agent_alive: false, killed };
            self.append(Batch::of(Body::DaemonRecovered(recovered))).await?;
        }
        Ok(())
    }

    /// Connects to the session's keeper.
    pub(super) async fn connect(&mut self) -> Found {
        let (socket, patience) = (self.world.directories.keeper_socket(self.id()), self.keeper_patience());
        for _ in 0..TRIES {
            let answer = Link::connect(&socket, &patience).await;
            let is_silent = matches!(answer, Err(LinkError::Silent { .. }));
            match answer {
                Ok(link) => match self.disagreement(&link) {
                    None if agentd_fault::at(Point::DaemonTakeOverConnected).is_err() => {}
                    None => {
                        if self.take(link).await {
                            return Found::Keeper;
                        }
                    }
                    Some(reason) => {
                        tracing::error!(agentd.session = %self.id(), reason, "a keeper that is not this session's is left alone");
                        return Found::Nobody;
                    }
                },
                Err(error) => tracing::debug!(agentd.session = %self.id(), %error, "no keeper answers"),
            }
            if !is_held(&self.journal).await {
                return Found::Nobody;
            }
            if is_silent {
                break;
            }
            pulse::elsewhere(tokio::time::sleep(PAUSE)).await;
        }
        // What the keeper had announced is not known: all that is there is read, and read again if it takes something back.
        self.go_silent(u64::MAX);
        Found::Silent
    }

    /// Makes a keeper the session's own; one without an agent is told to end.
    pub(super) async fn take(&mut self, link: Link) -> bool {
        self.world.launcher.keepers().enter(link.hello.pid, link.hello.start_time, self.id());
        let has_ended = link.tail().ended;
        if link.hello.agent_pid.is_none() && !has_ended {
            // It has no agent yet, and the launch record died with the daemon before; or its agent has just ended.
            self.dismiss(link).await;
            return false;
        }
        self.port = Port::Keeper(link);
        // An agent that has ended need not be told to, and its end may wait for room in the journal.
        self.stop_sent = has_ended;
        self.note_keeper();
        true
    }

    async fn dismiss(&self, mut link: Link) {
        let _ = link.call(&ToKeeper::Stop(self.stop_times())).await;
    }

    /// What about a keeper does not fit the session, if anything.
    pub(super) fn disagreement(&self, link: &Link) -> Option<&'static str> {
        let Hello { session, launch, pid, start_time, .. } = &link.hello;
        if session != self.id().as_str() {
            return Some("it says that it is another session's");
        }
        if link.peer.is_some_and(|peer| peer != *pid) {
            return Some("the socket belongs to another process than the one that answers");
        }
        if platform::start_time(*pid).is_some_and(|started| started != *start_time) {
            return Some("another process has its pid by now");
        }
        // One that ended before it had an agent may have been followed by another of the same launch.
        let lives = |known: &KeeperId| platform::start_time(known.pid) == Some(known.start_time);
        let known = self.state.keeper.filter(|known| known.launch == *launch && lives(known));
        if known.is_some_and(|known| known.pid != *pid || known.start_time != *start_time) {
            return Some("the journal was begun by another keeper of this launch");
        }
        if *launch < self.state.launches {
            return Some("it is of an earlier launch");
        }
        if !Launcher::is_at_home(self.id(), *pid) {
            return Some("it runs in another unit than the session's");
        }
        None
    }

    /// The keeper's socket closed: it ended, in order or not.
    pub(super) async fn line_lost(&mut self) -> Result<(), Broken> {
        self.port = Port::Direct;
        let found = self.connect().await;
        self.catch_up().await?;
        if found == Found::Nobody { self.bury().await } else { Ok(()) }
    }

    /// The keeper is gone. Where it has not said how its agent ended, nothing of it may be left, and the journal says so.
    pub(super) async fn bury(&mut self) -> Result<(), Broken> {
        self.port = Port::Direct;
        self.look_for_room_later();
        self.stop_due = None;
        self.catch_up().await?;
        let mut killed = 0;
        if matches!(self.state.run, Run::Running(_)) {
            self.world.launcher.sweep(self.id()).await;
            killed = platform::kill_remains(self.id().as_str()).await;
        }
        self.record_end(killed).await
    }
}
