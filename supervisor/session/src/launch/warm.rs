//! Keepers in standby whose agent is started already ([`agentd_keeper::protocol::Begin`]).
//!
//! A [`WarmKeeper`] has the id of a session that does not exist yet. Dropping it ends the keeper and the agent, and
//! removes what they leave behind. The keeper also ends them when this daemon is gone.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_host::directories::{DirectoryError, make_private};
use agentd_host::{frame, platform};
use agentd_keeper::protocol::{Attributes, Begin, FromKeeper, HoldArgs, LaunchRecord};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::standby::{self, Standby};
use super::{Launcher, Reservation, begin, has_room};
use crate::pulse;

/// A keeper with a started agent that has no session. Dropping the value ends both.
#[derive(Debug)]
pub(crate) struct WarmKeeper {
    /// The keeper, until a launch gets it.
    standby: Option<Standby>,
    args: HoldArgs,
    /// Process id of the agent.
    pub(crate) agent: u32,
    /// Ends the keeper when its time is over.
    watch: Option<JoinHandle<()>>,
}

/// Why no agent is kept warm.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WarmError {
    #[error("cannot start a keeper in standby")]
    Start(#[source] io::Error),
    #[error("the keeper's arguments are too long for a keeper in standby")]
    TooLong,
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("the keeper in standby has ended: the agent exited")]
    Ended,
    #[error("the keeper cannot start the agent: {0}")]
    Refused(String),
    #[error("the agent did not answer initialize within {} s", .0.as_secs())]
    Silent(Duration),
}

impl Launcher {
    /// Reports whether agents can be kept warm. A unit of systemd gets its name and its limits when it is started.
    pub fn has_warm(&self) -> bool {
        self.has_processes()
    }

    /// Starts an agent with its keeper, and waits until the agent has answered its first request.
    pub(crate) async fn warm_up(
        &self,
        args: &HoldArgs,
        record: LaunchRecord,
        limit: Duration,
    ) -> Result<WarmKeeper, WarmError> {
        let args = HoldArgs { core: agentd_keeper::private::core_limit(), ..args.clone() };
        let first = Begin { warm: Some(Box::new(record)), ..begin(&args) };
        if !has_room(&first) {
            return Err(WarmError::TooLong);
        }
        if let Some(runtime) = args.socket.parent() {
            // The next daemon finds an agent that outlives its keeper by this directory.
            make_private(runtime)?;
        }
        let mut standby = standby::start(&self.keeper).map_err(WarmError::Start)?;
        standby.begun = Some(args.clone());
        let mut warm = WarmKeeper { standby: Some(standby), args, agent: 0, watch: None };
        match tokio::time::timeout(limit, warm.begin(&first)).await {
            Ok(initialized) => initialized.map(|()| warm),
            Err(_) => Err(WarmError::Silent(limit)),
        }
    }
}

impl WarmKeeper {
    /// Sends the first frame, and waits for the first output of the agent.
    async fn begin(&mut self, begin: &Begin) -> Result<(), WarmError> {
        let Some(standby) = &mut self.standby else { return Err(WarmError::Ended) };
        frame::write(&mut standby.stream, begin).await.map_err(|_| WarmError::Ended)?;
        loop {
            match frame::read(&mut standby.stream).await {
                Ok(Some(FromKeeper::Launched { pid })) => self.agent = pid,
                Ok(Some(FromKeeper::Warm)) => return Ok(()),
                Ok(Some(FromKeeper::Refused { message, .. })) => return Err(WarmError::Refused(message)),
                _ => return Err(WarmError::Ended),
            }
        }
    }

    /// Ends the keeper after `idle`, and calls `ended` when the keeper has ended or is about to.
    pub(crate) fn watch(&mut self, idle: Duration, ended: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let Some(standby) = &self.standby else { return Ok(()) };
        let stream = std::os::fd::AsFd::as_fd(&standby.stream).try_clone_to_owned()?;
        let mut stream = UnixStream::from_std(stream.into())?;
        self.watch = Some(tokio::spawn(async move {
            if tokio::time::timeout(idle, stream.readable()).await.is_err() {
                let _ = stream.shutdown().await;
            }
            ended();
        }));
        Ok(())
    }

    /// Returns the id of the session that gets the agent.
    pub(crate) fn id(&self) -> Option<SessionId> {
        self.args.session.parse().ok()
    }

    /// Gives the keeper to a launch. `None` if its inherited limits are not those of the daemon any more.
    pub(crate) fn reserve(mut self, launcher: &Launcher) -> Option<Reservation> {
        self.unwatch();
        let is_current = |standby: &mut Standby| standby.inherited == Attributes::inherited();
        let standby = self.standby.take_if(is_current)?;
        Some(Reservation::Process(Box::new(launcher.standbys.reservation_of(standby))))
    }

    fn unwatch(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
    }
}

impl Drop for WarmKeeper {
    fn drop(&mut self) {
        self.unwatch();
        let Some(standby) = self.standby.take() else { return };
        let (state, runtime) = (self.args.state.clone(), self.args.socket.parent().map(PathBuf::from));
        let id = self.args.session.clone();
        // Without a runtime, the daemon is ending, and the keeper ends with it.
        let Ok(tokio_runtime) = tokio::runtime::Handle::try_current() else { return };
        tokio_runtime.spawn(async move {
            standby.end().await;
            let has_session = pulse::blocking(move || state.exists()).await;
            if !has_session {
                platform::kill_remains(&id).await;
                let remove = move || runtime.map_or(Ok(()), std::fs::remove_dir_all);
                if let Err(error) = pulse::blocking(remove).await {
                    tracing::warn!(%error, agentd.session = %id, "cannot remove the directory of a warm agent");
                }
            }
        });
    }
}
