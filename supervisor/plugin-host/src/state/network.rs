//! The capability `network`: connections to granted hosts, and facts of the machine's network.

use std::net::IpAddr;
use std::time::Instant;

use super::permit::refused;
use super::words::milliseconds;
use super::{Answer, CallState};
use crate::bindings::provider::agentd::plugin::network;
use crate::call::Failure;
use crate::grant::{Host, Outside, ResolvedFronts};
use crate::services::{self, ExchangeEnding, ExchangeResult, NetworkProblem, RECEIVE, Step};
use crate::text::shown;

/// Maximum number of steps of an exchange.
const STEPS: usize = 64;
/// Maximum number of addresses of a host.
const ADDRESSES: usize = 64;

/// Result of an imported function that uses the network.
type Contact<T> = wasmtime::Result<Result<T, network::Problem>>;

fn host_of(what: &str, host: &str) -> Result<Host, Failure> {
    Host::parse(host).map_err(|problem| Failure::Failed(format!("{what} {problem}")))
}

impl CallState {
    async fn resolved(&self, host: &str) -> Result<Vec<String>, NetworkProblem> {
        let what = format!("the host {}", shown(host));
        let host = host_of(&what, host)?;
        let verdict = self.bounds.rules.judge_apart(
            &self.places,
            &ResolvedFronts::default(),
            |patterns| patterns.host(&host),
            |patterns| patterns.whole_host(&host),
        );
        verdict.map_err(|outside| refused(&what, outside))?;
        self.addresses(&host, &what, self.host_deadline).await
    }

    async fn addresses(&self, host: &Host, what: &str, deadline: Instant) -> Result<Vec<String>, NetworkProblem> {
        let work = self.services.machine().resolve_host(&host.target, deadline);
        let mut addresses = self.bounded_by(deadline, &format!("resolving {what}"), work).await?;
        addresses.truncate(ADDRESSES);
        Ok(addresses)
    }

    async fn exchanged(
        &self,
        host: &str,
        port: u16,
        steps: Vec<network::Step>,
        time: u64,
    ) -> Result<ExchangeResult, NetworkProblem> {
        let what = format!("the host {} with the port {port}", shown(host));
        let host = host_of(&what, host)?;
        let verdict = self.bounds.rules.judge_apart(
            &self.places,
            &ResolvedFronts::default(),
            |patterns| patterns.exchange(&host, port),
            |patterns| patterns.denied_exchange(&host, port),
        );
        verdict.map_err(|outside| refused(&what, outside))?;
        if steps.len() > STEPS {
            return Err(Failure::TooLarge(format!("an exchange with {what} has more than {STEPS} steps")).into());
        }
        let step =
            |step: network::Step| Step { send: step.send, receive: step.receive.min(RECEIVE), until: step.until };
        let steps: Vec<Step> = steps.into_iter().map(step).collect();
        let deadline = self.until(time);
        if self.bounds.rules.denied.has_network() {
            return self.exchanged_by_address(&host, port, steps, &what, deadline).await;
        }
        self.exchange_with(&host.target, port, steps, &what, deadline).await
    }

    /// Connects to the host's addresses one after the other, except denied ones. A denial of an address thus
    /// covers every name of the address.
    async fn exchanged_by_address(
        &self,
        host: &Host,
        port: u16,
        steps: Vec<Step>,
        what: &str,
        deadline: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        let mut last = NetworkProblem::NoSuchHost(format!("{what} has no address"));
        for address in self.addresses(host, what, deadline).await? {
            let target = host_of(what, &address)?;
            if self.bounds.rules.denies(&target, port) {
                last = refused(&format!("{what} is {address}, which"), Outside::Denied).into();
                continue;
            }
            match self.exchange_with(&target.target, port, steps.clone(), what, deadline).await {
                Err(problem @ (NetworkProblem::Refused(_) | NetworkProblem::Unreachable(_))) => last = problem,
                other => return other,
            }
        }
        Err(last)
    }

    async fn exchange_with(
        &self,
        target: &str,
        port: u16,
        steps: Vec<Step>,
        what: &str,
        deadline: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        let most: Vec<usize> = steps.iter().map(|step| step.receive as usize).collect();
        let work = self.services.machine().exchange(target, port, steps, deadline);
        let mut exchanged = self.bounded_by(deadline, &format!("the exchange with {what}"), work).await?;
        exchanged.received.truncate(most.len());
        exchanged.received.iter_mut().zip(most).for_each(|(received, most)| received.truncate(most));
        Ok(exchanged)
    }

    /// Checks that the plugin may read facts of the machine's network. Any plugin with a network grant may.
    fn facts(&self) -> Result<(), Failure> {
        match self.bounds.rules.wanted {
            Some(_) => Ok(()),
            None => Err(refused("the network", Outside::NotDescribed)),
        }
    }

    async fn way(&self, address: &str) -> Result<Option<services::RouteTo>, Failure> {
        self.facts()?;
        let what = format!("the way to {}", shown(address));
        let address: IpAddr =
            address.parse().map_err(|_| Failure::Failed(format!("{what} is unknown: it is not an address")))?;
        let address = address.to_string();
        let work = self.services.machine().way_to(&address, self.host_deadline);
        self.bounded(&what, work).await
    }
}

impl network::Host for CallState {
    async fn resolve(&mut self, host: String) -> Contact<Vec<String>> {
        Ok(self.resolved(&host).await.map_err(Into::into))
    }

    async fn exchange(
        &mut self,
        host: String,
        port: u16,
        steps: Vec<network::Step>,
        time: u64,
    ) -> Contact<network::Exchanged> {
        let exchanged = self.exchanged(&host, port, steps, time).await.map(|exchanged| network::Exchanged {
            address: exchanged.address,
            connected: milliseconds(exchanged.connected),
            received: exchanged.received,
            ending: match exchanged.ending {
                ExchangeEnding::Complete => network::Ending::Complete,
                ExchangeEnding::Closed => network::Ending::Closed,
                ExchangeEnding::TimedOut => network::Ending::TimedOut,
            },
        });
        Ok(exchanged.map_err(Into::into))
    }

    async fn interfaces(&mut self) -> Answer<Vec<network::NetworkInterface>> {
        if let Err(refused) = self.facts() {
            return Ok(Err(refused.into()));
        }
        let found = self.bounded("listing interfaces", self.services.machine().interfaces(self.host_deadline)).await;
        let interface = |found: services::Interface| network::NetworkInterface {
            name: found.name,
            up: found.up,
            running: found.running,
            loopback: found.loopback,
            addresses: found.addresses,
        };
        Ok(found.map(|found| found.into_iter().map(interface).collect()).map_err(Into::into))
    }

    async fn routes(&mut self) -> Answer<Vec<network::Route>> {
        if let Err(refused) = self.facts() {
            return Ok(Err(refused.into()));
        }
        let found = self.bounded("listing routes", self.services.machine().routes(self.host_deadline)).await;
        let route = |found: services::Route| network::Route {
            destination: found.destination,
            gateway: found.gateway,
            via: found.via,
            metric: found.metric,
        };
        Ok(found.map(|found| found.into_iter().map(route).collect()).map_err(Into::into))
    }

    async fn way_to(&mut self, address: String) -> Answer<Option<network::Way>> {
        let found = self.way(&address).await;
        Ok(found.map(|found| found.map(|way| network::Way { via: way.via, source: way.source })).map_err(Into::into))
    }

    async fn name_service_facts(&mut self) -> Answer<network::NameService> {
        if let Err(refused) = self.facts() {
            return Ok(Err(refused.into()));
        }
        let found = self.bounded("the name service", self.services.machine().name_service(self.host_deadline)).await;
        let facts =
            |found: services::NameService| network::NameService { servers: found.servers, search: found.search };
        Ok(found.map(facts).map_err(Into::into))
    }
}
