//! The machine during one call of a plugin: a [`Machine`] together with the call's places.

use std::time::{Duration, Instant};

use agentd_plugin_host::{
    ExchangeResult, Failure, Interface, Invocation, Liveness, MachineServices, Metadata, MountEntry, NameService,
    NetworkProblem, PathFilter, Places, ProgramResult, Route, RouteTo, Step,
};

use super::Machine;

/// Machine services for one call of a plugin.
#[derive(Debug)]
pub struct CallMachine {
    /// The machine.
    pub machine: Machine,
    /// Places of the call, with their links resolved.
    pub places: Places,
    /// Time limit of host calls that have no time limit of their own.
    pub patience: CallTime,
}

/// Time limit of a host call that has no time limit of its own and may hang, such as reading a file or resolving a
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallTime {
    /// The remaining time of the plugin's call.
    All,
    /// Half of the remaining time, so that the plugin can still report its other results.
    Half,
}

impl CallMachine {
    /// Returns the deadline of a host call that has no time limit of its own.
    pub fn own(&self, deadline: Instant) -> Instant {
        let now = Instant::now();
        match self.patience {
            CallTime::All => deadline,
            CallTime::Half => now + deadline.saturating_duration_since(now) / 2,
        }
    }
}

#[async_trait::async_trait]
impl MachineServices for CallMachine {
    async fn run_command(
        &self,
        invocation: Invocation,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<ProgramResult, Failure> {
        self.machine.run(invocation, &self.places, allowed, deadline).await
    }

    async fn inspect_file(&self, path: &str, allowed: PathFilter<'_>, deadline: Instant) -> Result<Metadata, Failure> {
        self.machine.inspect(path, &self.places, allowed, self.own(deadline)).await
    }

    async fn read_file(&self, path: &str, allowed: PathFilter<'_>, deadline: Instant) -> Result<Vec<u8>, Failure> {
        self.machine.read(path, &self.places, allowed, self.own(deadline)).await
    }

    async fn list_directory(
        &self,
        path: &str,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<Vec<String>, Failure> {
        self.machine.entries(path, &self.places, allowed, self.own(deadline)).await
    }

    async fn resolve_host(&self, host: &str, deadline: Instant) -> Result<Vec<String>, NetworkProblem> {
        self.machine.resolve(host, self.own(deadline)).await
    }

    async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: Vec<Step>,
        deadline: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        self.machine.exchange(host, port, &steps, deadline).await
    }

    async fn interfaces(&self, deadline: Instant) -> Result<Vec<Interface>, Failure> {
        self.machine.interfaces(deadline).await
    }

    async fn routes(&self, deadline: Instant) -> Result<Vec<Route>, Failure> {
        self.machine.routes(deadline).await
    }

    async fn way_to(&self, address: &str, deadline: Instant) -> Result<Option<RouteTo>, Failure> {
        self.machine.way_to(address, deadline).await
    }

    async fn name_service(&self, deadline: Instant) -> Result<NameService, Failure> {
        self.machine.name_service(self.own(deadline)).await
    }

    async fn mounts(&self, deadline: Instant) -> Result<Vec<MountEntry>, Failure> {
        self.machine.mounts(deadline).await
    }

    async fn probe_mount(&self, path: &str, time: Duration, deadline: Instant) -> Result<Liveness, Failure> {
        self.machine.probe(path, &self.places, time, deadline).await
    }

    async fn processes(&self, name: &str, deadline: Instant) -> Result<u32, Failure> {
        self.machine.processes(name, deadline).await
    }
}
