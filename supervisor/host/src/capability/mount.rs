//! Queries of file systems: the mount table, and whether a file system answers.

use std::time::{Duration, Instant};

use agentd_keeper::look::{LookupAnswer, LookupRequest};
use agentd_plugin_host::{Failure, Liveness, MountEntry, Places};
use async_recursion::async_recursion as boxed;

use super::file::failure;
use super::look::{LookupResult, Purpose};
use super::{Machine, absolute, before, blocking};

impl Machine {
    /// Returns the mount table in its order.
    #[boxed]
    pub async fn mounts(&self, deadline: Instant) -> Result<Vec<MountEntry>, Failure> {
        self.only_here("read the mount table")?;
        let mounts = self.mounts.clone();
        blocking("read the mount table", deadline, move || mounts.current().map(|table| Vec::clone(&table))).await
    }

    /// Reports whether the file system at a path answers within `time`.
    #[boxed]
    pub async fn probe(
        &self,
        path: &str,
        places: &Places,
        time: Duration,
        deadline: Instant,
    ) -> Result<Liveness, Failure> {
        let path = absolute(path, places)?;
        let until = Instant::now().checked_add(time).map_or(deadline, |until| until.min(deadline));
        match self
            .lookers
            .ask(
                Purpose::Plugin,
                format!("the file system at {path:?}"),
                LookupRequest::Device(path.as_str().into()),
                before(until),
            )
            .await?
        {
            LookupResult::Answer(LookupAnswer::Device(device)) => Ok(Liveness::Answers(device)),
            LookupResult::Answer(LookupAnswer::Not { text, .. }) => Ok(Liveness::Error(text)),
            LookupResult::Answer(other) => Err(failure("look at", &path, other)),
            LookupResult::TimedOut(_) => Ok(Liveness::Hangs),
        }
    }
}
