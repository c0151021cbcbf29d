//! Queries of running processes.

use std::time::Instant;

use agentd_plugin_host::Failure;
use async_recursion::async_recursion as boxed;

use super::{Machine, blocking};
use crate::platform;

impl Machine {
    /// Returns the number of processes whose executable file has this name, or which the kernel lists under this
    /// name.
    #[boxed]
    pub async fn processes(&self, name: &str, deadline: Instant) -> Result<u32, Failure> {
        self.only_here("list the processes")?;
        let name = name.to_owned();
        blocking("list the processes", deadline, move || platform::processes(&name)).await
    }
}
