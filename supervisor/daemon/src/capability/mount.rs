//! File systems: the mount table, and whether one answers.

use std::time::{Duration, Instant};

use agentd_keeper::look::{Look, Looked};
use agentd_plugins::{Failure, Liveness, Mounted, Places};

use super::file::failure;
use super::look::{Glance, Lot};
use super::{Machine, absolute, before, blocking};
use crate::platform;

impl Machine {
    /// The whole mount table, in its order.
    pub async fn mounts(&self, deadline: Instant) -> Result<Vec<Mounted>, Failure> {
        blocking("read the mount table", deadline, platform::mounts).await
    }

    /// Whether the file system at a path answers within `time`.
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
            .looks
            .ask(Lot::Asked, format!("the file system at {path:?}"), Look::Device(path.as_str().into()), before(until))
            .await?
        {
            Glance::Looked(Looked::Device(device)) => Ok(Liveness::Answers(device)),
            Glance::Looked(Looked::Not { text, .. }) => Ok(Liveness::Error(text)),
            Glance::Looked(other) => Err(failure("look at", &path, other)),
            Glance::Hangs(_) => Ok(Liveness::Hangs),
        }
    }
}
