//! Which processes run.

use std::time::Instant;

use agentd_plugins::Failure;

use super::{Machine, blocking};
use crate::platform;

impl Machine {
    /// How many processes run whose program has this name: its file's, or what the kernel calls it.
    pub async fn processes(&self, name: &str, deadline: Instant) -> Result<u32, Failure> {
        let name = name.to_owned();
        blocking("list the processes", deadline, move || platform::processes(&name)).await
    }
}
