//! `vpn`: checks that this machine is in the inside network. The proof is that an inside host's name resolves
//! to an inside address and that a TCP connection to it opens. The name of an interface proves little, so
//! interfaces, routes and name servers only explain the result.
//!
//! The check connects before it resolves the name separately. The connection has the check's time limit, while
//! a name service behind the VPN may never answer.
//!
//! If the name service is silent and this machine explains why, the prerequisite fails. Such reasons are an
//! interface that is down, or no route to a name server. Without a reason the outcome is unknown.

use std::net::IpAddr;
use std::time::Duration;

use agentd_plugin_checks::address::{Endpoint, Network, ip};
use agentd_plugin_checks::explain;
use agentd_plugin_checks::or_unknown;
use agentd_plugin_checks::time::{self, Budget};
use agentd_plugin_sdk::network::{self, Exchanged, NetworkInterface, Problem};
use agentd_plugin_sdk::{
    Capability, CheckDescription, CheckRequest, Description, Failure, Moment, Outcome, Prerequisite, Report,
    export_prerequisite,
};

const DEFAULT_TIME: Duration = Duration::from_secs(3);
const DEFAULT_PORT: u16 = 443;

struct Vpn;

impl Prerequisite for Vpn {
    fn describe() -> CheckDescription {
        Description::new("vpn", env!("CARGO_PKG_VERSION"), "an inside host resolves to an inside address and answers")
            .required_setting("host", "a host name that only the inside network resolves, or an inside address")
            .required_setting("network", "a list of the inside networks, such as [\"10.0.0.0/8\"]")
            .setting("port", "an open port of the host; default: 443")
            .setting("interface", "the VPN's interface, such as wg0; only explains a failure; default: none")
            .setting("timeout", "time limit including name resolution, such as \"3s\"; default: 3s")
            .wants(Capability::Network, ["*:*"], "connects to the host of its settings, and explains why it cannot")
            .checked(Moment::BeforeEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        let networks = Network::of(request, "network")?.unwrap_or_default();
        if networks.is_empty() {
            return Err(Failure::configuration("network", "must have at least one network, and is empty"));
        }
        let check = Check {
            to: Endpoint::of(request, Some(DEFAULT_PORT))?,
            networks,
            interface: request.setting("interface")?,
            time: time::timeout(request, DEFAULT_TIME)?,
        };
        or_unknown(check.run())
    }
}

export_prerequisite!(Vpn);

/// The settings of one check.
struct Check<'a> {
    to: Endpoint,
    networks: Vec<Network>,
    interface: Option<&'a str>,
    time: Duration,
}

impl Check<'_> {
    fn run(&self) -> Result<Report, Failure> {
        let budget = Budget::new(self.time);
        let problem = match network::exchange(&self.to.host, self.to.port, &[], self.time) {
            Ok(exchanged) if self.is_inside(&exchanged.address) => return Ok(self.passed(&exchanged)),
            Ok(_) => None,
            Err(Problem::Other(failure)) => return Err(failure),
            Err(problem) if explain::is_of_the_name(&problem) => return Ok(self.nameless(&problem)),
            Err(problem) => Some(problem),
        };
        // The lookup is fast, because the name service has just answered.
        let addresses = match network::resolve(&self.to.host) {
            Ok(addresses) => addresses,
            Err(Problem::Other(failure)) => return Err(failure),
            Err(problem) => return Ok(self.nameless(&problem)),
        };
        let inside: Vec<&String> = addresses.iter().filter(|address| self.is_inside(address)).collect();
        match problem {
            _ if inside.is_empty() => Ok(self.outside(&addresses)),
            Some(problem) => self.missed(&problem, self.time, &addresses, inside[0]),
            None => self.through_inside(&addresses, &inside, &budget),
        }
    }

    /// Connects to the inside addresses of a host that also has outside addresses, after an outside address
    /// answered.
    fn through_inside(&self, addresses: &[String], inside: &[&String], budget: &Budget) -> Result<Report, Failure> {
        let mut missed = None;
        for (at, address) in inside.iter().enumerate() {
            let time = budget.share(inside.len() - at);
            match network::exchange(address, self.to.port, &[], time) {
                Ok(exchanged) => return Ok(self.passed(&exchanged)),
                Err(Problem::Other(failure)) => return Err(failure),
                Err(problem) => missed = missed.or(Some((problem, time, *address))),
            }
        }
        match missed {
            Some((problem, time, address)) => self.missed(&problem, time, addresses, address),
            None => Ok(self.outside(addresses)),
        }
    }

    fn is_inside(&self, address: &str) -> bool {
        let contains = |address: IpAddr| self.networks.iter().any(|network| network.contains(address));
        ip(address).is_some_and(contains)
    }

    fn passed(&self, exchanged: &Exchanged) -> Report {
        let Exchanged { address, connected, .. } = exchanged;
        let report = Report::pass(format!("{} answers from inside", self.to)).fact("address", address.as_str());
        explain::way(report.fact("connected after", format!("{connected} ms")), address)
    }

    /// Makes the report if the name has no address: it is unknown, or the name service does not answer.
    fn nameless(&self, problem: &Problem) -> Report {
        let interfaces = network::interfaces();
        let host = &self.to.host;
        let mut report = Report::fail("");
        let local = self.local_reason(&interfaces);
        (report.outcome, report.summary) = match (problem, local) {
            (Problem::NoSuchHost(_), _) => (Outcome::Fail, format!("the name {host} is unknown here")),
            (_, Some(reason)) => (Outcome::Fail, format!("the address of {host} is unavailable: {reason}")),
            (_, None) => (
                Outcome::Unknown,
                format!("the name service did not resolve {host}, and nothing on this machine explains why"),
            ),
        };
        let report = explain::name_service(report.fact("error", problem.message()));
        let report = servers().iter().fold(report, |report, server| explain::way(report, server));
        self.remedied(self.interface_of(report, &interfaces))
    }

    /// Returns a reason on this machine for which the name service cannot answer.
    fn local_reason(&self, interfaces: &Result<Vec<NetworkInterface>, Failure>) -> Option<String> {
        if let (Some(name), Ok(all)) = (self.interface, interfaces) {
            match all.iter().find(|one| one.name == name) {
                None => return Some(format!("the interface {name} does not exist")),
                Some(one) if !explain::carries(one) => return Some(format!("the interface {name} is not connected")),
                Some(_) => {}
            }
        }
        let servers = servers();
        let no_way = |server: &String| matches!(network::way_to(server), Ok(None));
        (!servers.is_empty() && servers.iter().all(no_way)).then(|| "there is no route to a name server".to_owned())
    }

    fn outside(&self, addresses: &[String]) -> Report {
        let networks: Vec<String> = self.networks.iter().map(Network::to_string).collect();
        let summary = format!("{} resolves to {}, which is outside", self.to.host, addresses.join(", "));
        let report = explain::name_service(Report::fail(summary));
        let report = explain::addresses(report, addresses).fact("inside", networks.join(", "));
        self.remedied(self.interface_of(report, &network::interfaces()))
    }

    /// Makes the report if the name resolves to inside addresses but no connection opens.
    fn missed(
        &self,
        problem: &Problem,
        time: Duration,
        addresses: &[String],
        address: &str,
    ) -> Result<Report, Failure> {
        let report = Report::fail(explain::reason(problem, &self.to, time)?).fact("error", problem.message());
        let report = explain::addresses(explain::name_service(report), addresses);
        let report = self.interface_of(explain::way(report, address), &network::interfaces());
        let report = explain::routes(report, address);
        Ok(match problem {
            // A host in the inside network refused the connection.
            Problem::Refused(_) => report.remedy(format!(
                "check whether {} runs and listens at port {}, or set another host or port",
                self.to.host, self.to.port
            )),
            _ => self.remedied(report),
        })
    }

    fn interface_of(&self, report: Report, interfaces: &Result<Vec<NetworkInterface>, Failure>) -> Report {
        match self.interface {
            Some(name) => explain::interface(report, name, interfaces),
            None => report,
        }
    }

    fn remedied(&self, report: Report) -> Report {
        report.remedy(match self.interface {
            Some(name) => format!("connect the VPN: its interface is {name}"),
            None => "connect the VPN".to_owned(),
        })
    }
}

/// Returns the name servers, or none if they are unknown.
fn servers() -> Vec<String> {
    network::name_service().map(|facts| facts.servers).unwrap_or_default()
}

#[cfg(test)]
mod tests;
