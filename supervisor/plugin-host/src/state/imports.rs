//! The host's side of each import that is granted or not: what is asked is compared with the grant, what the services
//! answer is bounded once more, and both are put into the words of the interface.

use std::time::{Duration, Instant};

use super::{State, variables};
use crate::bindings::provider::agentd::plugin::{
    command, file, mount, network, process, script, secret, shell_environment, types,
};
use crate::call::Failure;
use crate::grant::Capability;
use crate::services::{
    CONTENT, ENTRIES, ERRORS, Ending, ExchangeEnding, FileKind, Invocation, Liveness, NetworkProblem, RECEIVE, Step,
    Variables,
};

type Answer<T> = wasmtime::Result<Result<T, types::Failure>>;
type Contact<T> = wasmtime::Result<Result<T, network::Problem>>;

impl State {
    fn permitted(&self, capability: Capability, asked: &str) -> Result<(), Failure> {
        if self.grant.permits(capability, asked) {
            return Ok(());
        }
        Err(Failure::NotGranted(format!("the {capability} {asked:?} is outside of what this plugin is granted")))
    }

    /// The time that a plugin asked for, as far as the call has it.
    fn until(&self, milliseconds: u64) -> Instant {
        let asked = Instant::now().checked_add(Duration::from_millis(milliseconds));
        asked.map_or(self.host_deadline, |asked| asked.min(self.host_deadline))
    }
}

fn pairs(variables: Vec<types::Variable>) -> Variables {
    variables.into_iter().map(|variable| (variable.name, variable.value)).collect()
}

fn bounded(what: &str, content: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if content.len() > CONTENT {
        return Err(Failure::TooLarge(format!("{what} is more than {CONTENT} bytes")));
    }
    Ok(content)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl shell_environment::Host for State {
    async fn login(&mut self) -> Answer<Vec<types::Variable>> {
        let work = self.services.login_environment(self.host_deadline);
        Ok(self.bounded("the login shell", work).await.map(variables))
    }
}

impl script::Host for State {
    async fn locate(&mut self, paths: Vec<String>) -> Answer<Vec<Option<String>>> {
        let refused = paths.iter().find_map(|path| self.permitted(Capability::Script, path).err());
        if let Some(refused) = refused {
            return Ok(Err(refused.into()));
        }
        let work = self.services.locate_scripts(paths, self.host_deadline);
        Ok(self.bounded("looking for scripts", work).await)
    }

    async fn source(&mut self, path: String, environment: Vec<types::Variable>) -> Answer<script::Sourced> {
        if let Err(refused) = self.permitted(Capability::Script, &path) {
            return Ok(Err(refused.into()));
        }
        let work = self.services.source_script(&path, pairs(environment), self.host_deadline);
        let sourced = self.bounded(&format!("the script {path:?}"), work).await;
        Ok(sourced.map(|sourced| script::Sourced { path: sourced.path, environment: variables(sourced.environment) }))
    }
}

impl command::Host for State {
    async fn run(&mut self, invocation: command::Invocation) -> Answer<command::Completed> {
        let command::Invocation { program, arguments, environment, directory, input, time } = invocation;
        let deadline = time.map_or(self.host_deadline, |time| self.until(time));
        let what = format!("the program {program:?}");
        let words = arguments.iter().fold(String::new(), |words, argument| format!("{words} {argument}"));
        let allowed = |program: &str| self.grant.permits(Capability::Command, &format!("{program}{words}"));
        let invocation = Invocation { program, arguments, environment: pairs(environment), directory, input };
        let work = self.services.run_command(invocation, &allowed, deadline);
        let completed = self.bounded_by(deadline, &what, work).await;
        let completed = completed.and_then(|mut completed| {
            completed.errors.truncate(ERRORS);
            let output = bounded(&format!("the output of {what}"), completed.output)?;
            let ending = match completed.ending {
                Ending::Exited(status) => command::Ending::Exited(status),
                Ending::Signalled(signal) => command::Ending::Signalled(signal),
            };
            Ok(command::Completed { ending, output, errors: completed.errors })
        });
        Ok(completed.map_err(Into::into))
    }
}

impl file::Host for State {
    async fn inspect(&mut self, path: String) -> Answer<file::Metadata> {
        let allowed = |path: &str| self.grant.permits(Capability::File, path);
        let work = self.services.inspect_file(&path, &allowed, self.host_deadline);
        Ok(self.bounded(&format!("looking at {path:?}"), work).await.map(|metadata| file::Metadata {
            path: metadata.path,
            kind: match metadata.kind {
                FileKind::File => file::Kind::File,
                FileKind::Directory => file::Kind::Directory,
                FileKind::Other => file::Kind::Other,
            },
            size: metadata.size,
            modified: metadata.modified,
        }))
    }

    async fn read(&mut self, path: String) -> Answer<Vec<u8>> {
        let allowed = |path: &str| self.grant.permits(Capability::File, path);
        let what = format!("the file {path:?}");
        let work = self.services.read_file(&path, &allowed, self.host_deadline);
        let content = self.bounded_by(self.host_deadline, &what, work).await;
        Ok(content.and_then(|content| bounded(&what, content)).map_err(Into::into))
    }

    async fn entries(&mut self, path: String) -> Answer<Vec<String>> {
        let allowed = |path: &str| self.grant.permits(Capability::File, path);
        let what = format!("the directory {path:?}");
        let work = self.services.list_directory(&path, &allowed, self.host_deadline);
        let entries = self.bounded_by(self.host_deadline, &what, work).await;
        let few = |entries: Vec<String>| {
            let most = Failure::TooLarge(format!("{what} has more than {ENTRIES} entries"));
            if entries.len() > ENTRIES { Err(most) } else { Ok(entries) }
        };
        Ok(entries.and_then(few).map_err(Into::into))
    }
}

impl network::Host for State {
    async fn resolve(&mut self, host: String) -> Contact<Vec<String>> {
        if let Err(refused) = self.permitted(Capability::Network, &host) {
            return Ok(Err(NetworkProblem::from(refused).into()));
        }
        let work = self.services.resolve_host(&host, self.host_deadline);
        Ok(self.contact(self.host_deadline, &format!("resolving {host:?}"), work).await)
    }

    async fn exchange(
        &mut self,
        host: String,
        port: u16,
        steps: Vec<network::Step>,
        time: u64,
    ) -> Contact<network::Exchanged> {
        if let Err(refused) = self.permitted(Capability::Network, &format!("{host}:{port}")) {
            return Ok(Err(NetworkProblem::from(refused).into()));
        }
        let step =
            |step: network::Step| Step { send: step.send, receive: step.receive.min(RECEIVE), until: step.until };
        let deadline = self.until(time);
        let work = self.services.exchange(&host, port, steps.into_iter().map(step).collect(), deadline);
        let exchanged = self.contact(deadline, &format!("the exchange with {host}:{port}"), work).await;
        Ok(exchanged.map(|exchanged| network::Exchanged {
            address: exchanged.address,
            connected: milliseconds(exchanged.connected),
            received: exchanged.received,
            ending: match exchanged.ending {
                ExchangeEnding::Complete => network::Ending::Complete,
                ExchangeEnding::Closed => network::Ending::Closed,
                ExchangeEnding::TimedOut => network::Ending::TimedOut,
            },
        }))
    }

    async fn interfaces(&mut self) -> Answer<Vec<network::NetworkInterface>> {
        let found = self.bounded("listing interfaces", self.services.interfaces(self.host_deadline)).await;
        let interface = |found: crate::services::Interface| network::NetworkInterface {
            name: found.name,
            up: found.up,
            running: found.running,
            loopback: found.loopback,
            addresses: found.addresses,
        };
        Ok(found.map(|found| found.into_iter().map(interface).collect()))
    }

    async fn routes(&mut self) -> Answer<Vec<network::Route>> {
        let found = self.bounded("listing routes", self.services.routes(self.host_deadline)).await;
        let route = |found: crate::services::Route| network::Route {
            destination: found.destination,
            gateway: found.gateway,
            via: found.via,
            metric: found.metric,
        };
        Ok(found.map(|found| found.into_iter().map(route).collect()))
    }

    async fn way_to(&mut self, address: String) -> Answer<Option<network::Way>> {
        let work = self.services.way_to(&address, self.host_deadline);
        let found = self.bounded(&format!("the way to {address:?}"), work).await;
        Ok(found.map(|found| found.map(|way| network::Way { via: way.via, source: way.source })))
    }

    async fn name_service_facts(&mut self) -> Answer<network::NameService> {
        let found = self.bounded("the name service", self.services.name_service(self.host_deadline)).await;
        Ok(found.map(|found| network::NameService { servers: found.servers, search: found.search }))
    }
}

impl mount::Host for State {
    async fn mounts(&mut self) -> Answer<Vec<mount::Mounted>> {
        let found = self.bounded("the mount table", self.services.mounts(self.host_deadline)).await;
        let granted = |found: &crate::services::Mounted| self.grant.permits(Capability::Mount, &found.path);
        let mounted = |found: crate::services::Mounted| mount::Mounted {
            path: found.path,
            source: found.source,
            kind: found.kind,
            options: found.options,
            device: found.device,
        };
        Ok(found.map(|found| found.into_iter().filter(granted).map(mounted).collect()))
    }

    async fn probe(&mut self, path: String, time: u64) -> Answer<mount::Liveness> {
        if let Err(refused) = self.permitted(Capability::Mount, &path) {
            return Ok(Err(refused.into()));
        }
        let time = self.until(time).saturating_duration_since(Instant::now());
        let work = self.services.probe_mount(&path, time, self.host_deadline);
        Ok(self.bounded(&format!("the look at {path:?}"), work).await.map(|liveness| match liveness {
            Liveness::Answers(device) => mount::Liveness::Answers(device),
            Liveness::Hangs => mount::Liveness::Hangs,
            Liveness::Error(error) => mount::Liveness::Error(error),
        }))
    }
}

impl process::Host for State {
    async fn running(&mut self, name: String) -> Answer<u32> {
        if let Err(refused) = self.permitted(Capability::Process, &name) {
            return Ok(Err(refused.into()));
        }
        let work = self.services.processes(&name, self.host_deadline);
        Ok(self.bounded(&format!("looking for processes {name:?}"), work).await)
    }
}

impl secret::Host for State {
    async fn read(&mut self, name: String) -> Answer<Vec<u8>> {
        if let Err(refused) = self.permitted(Capability::Secret, &name) {
            return Ok(Err(refused.into()));
        }
        let work = self.services.read_secret(&name, self.host_deadline);
        Ok(self.bounded(&format!("the secret {name:?}"), work).await)
    }
}
