//! Explains a failed connection: a short reason, and facts about the network.
//!
//! A fact that cannot be determined is reported as unknown and does not prevent the report.

use std::time::Duration;

use agentd_plugin_sdk::network::{self, NetworkInterface, Problem, Route};
use agentd_plugin_sdk::{Failure, Report};

use crate::address::{Endpoint, Network, ip};
use crate::time::shown;

/// Returns the reason for a summary. A problem that is not one of the network or the peer is a failure of the
/// check.
pub fn reason(problem: &Problem, to: &Endpoint, time: Duration) -> Result<String, Failure> {
    let host = &to.host;
    match problem {
        Problem::NoSuchHost(_) => Ok(format!("the name {host} is unknown")),
        Problem::NotResolved(_) => Ok(format!("the name service did not resolve {host}")),
        Problem::Refused(_) => Ok(format!("{to} refuses the connection")),
        Problem::Unreachable(_) => Ok(format!("there is no route to {host}")),
        Problem::TimedOut(_) => Ok(format!("{to} does not answer within {}", shown(time))),
        Problem::Other(failure) => Err(failure.clone()),
    }
}

/// Reports whether resolving the name failed, and not the connection.
pub fn is_of_the_name(problem: &Problem) -> bool {
    matches!(problem, Problem::NoSuchHost(_) | Problem::NotResolved(_))
}

/// Adds facts about a failed connection.
///
/// The first fact is the host's error text. If resolving the name failed, the name service follows. Otherwise
/// the addresses follow, with the route to the first address.
#[must_use]
pub fn connection(report: Report, problem: &Problem, to: &Endpoint) -> Report {
    let report = report.fact("error", problem.message());
    if is_of_the_name(problem) {
        return name_service(report);
    }
    match network::resolve(&to.host) {
        Ok(found) => {
            let report = addresses(report, &found);
            found.first().map_or_else(|| report.clone(), |address| way(report.clone(), address))
        }
        Err(problem) => report.fact("addresses", unknown(problem.message())),
    }
}

/// Adds the name servers and the search domains.
#[must_use]
pub fn name_service(report: Report) -> Report {
    match network::name_service() {
        Err(failure) => report.fact("name servers", unknown(failure.message())),
        Ok(facts) if facts.servers.is_empty() => report.fact("name servers", "none are configured"),
        Ok(facts) => {
            let report = report.fact("name servers", facts.servers.join(", "));
            let searched = facts.search.join(", ");
            if searched.is_empty() { report } else { report.fact("searched domains", searched) }
        }
    }
}

/// Adds the addresses of a name.
#[must_use]
pub fn addresses(report: Report, found: &[String]) -> Report {
    report.fact("addresses", if found.is_empty() { "none".to_owned() } else { found.join(", ") })
}

/// Adds the route to an address.
#[must_use]
pub fn way(report: Report, address: &str) -> Report {
    let name = format!("route to {address}");
    match network::way_to(address) {
        Err(failure) => report.fact(name, unknown(failure.message())),
        Ok(None) => report.fact(name, "none"),
        Ok(Some(way)) => {
            let via = way.via.map_or_else(String::new, |via| format!("through {via}, "));
            report.fact(name, format!("{via}from {}", way.source))
        }
    }
}

/// Adds the state of an interface.
#[must_use]
pub fn interface(report: Report, name: &str, interfaces: &Result<Vec<NetworkInterface>, Failure>) -> Report {
    let told = match interfaces {
        Err(failure) => unknown(failure.message()),
        Ok(all) => all.iter().find(|one| one.name == name).map_or_else(|| absent(all), state),
    };
    report.fact(format!("interface {name}"), told)
}

fn absent(all: &[NetworkInterface]) -> String {
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    format!("does not exist; existing interfaces: {}", names.join(", "))
}

fn state(interface: &NetworkInterface) -> String {
    let addresses = match &interface.addresses[..] {
        [] => "no address".to_owned(),
        addresses => addresses.join(", "),
    };
    let carrier = if interface.running { "running" } else { "not running" };
    if interface.up { format!("up, {carrier}, {addresses}") } else { format!("down, {addresses}") }
}

/// Reports whether the interface is up and has a carrier and an address.
pub fn carries(interface: &NetworkInterface) -> bool {
    interface.up && interface.running && !interface.addresses.is_empty()
}

/// Adds the routes that match the address, the most specific first.
#[must_use]
pub fn routes(report: Report, address: &str) -> Report {
    let name = format!("routes to {address}");
    match network::routes() {
        Err(failure) => report.fact(name, unknown(failure.message())),
        Ok(all) => {
            let matching = matching(&all, address);
            let told: Vec<String> = matching.iter().map(|route| route_text(route)).collect();
            report.fact(name, if told.is_empty() { "none".to_owned() } else { told.join("; ") })
        }
    }
}

fn matching<'a>(all: &'a [Route], address: &str) -> Vec<&'a Route> {
    let Some(address) = ip(address) else { return Vec::new() };
    let network = |route: &Route| route.destination.parse::<Network>().ok();
    let mut matching: Vec<(Network, &Route)> = all
        .iter()
        .filter_map(|route| Some((network(route)?, route)))
        .filter(|(network, _)| network.contains(address))
        .collect();
    matching.sort_by_key(|(network, route)| (u32::MAX - network.prefix(), route.metric));
    matching.into_iter().map(|(_, route)| route).collect()
}

fn route_text(route: &Route) -> String {
    let gateway = route.gateway.as_ref().map_or_else(String::new, |gateway| format!(" by {gateway}"));
    format!("{}{gateway} through {}", route.destination, route.via)
}

fn unknown(why: &str) -> String {
    format!("unknown: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::fake::Host;
    use agentd_plugin_sdk::network::{NameService, Way};

    fn route(destination: &str, gateway: Option<&str>, via: &str, metric: u32) -> Route {
        Route { destination: destination.to_owned(), gateway: gateway.map(str::to_owned), via: via.to_owned(), metric }
    }

    fn facts(report: Report) -> Vec<(String, String)> {
        report.facts.into_iter().map(|fact| (fact.name, fact.value)).collect()
    }

    #[test]
    fn of_the_routes_those_that_match_are_told_the_closest_first() {
        let host = Host::new().routes(vec![
            route("0.0.0.0/0", Some("192.168.1.1"), "eth0", 100),
            route("::/0", None, "eth0", 1),
            route("10.0.0.0/8", None, "wg0", 50),
            route("10.1.0.0/16", Some("10.8.0.1"), "wg0", 50),
            route("10.0.0.0/8", None, "wg1", 5),
            route("172.16.0.0/12", None, "docker0", 0),
        ]);
        let told = facts(host.run(|| routes(routes(Report::fail(""), "10.1.2.3"), "8.8.8.8")));
        assert_eq!(
            told[0].1,
            "10.1.0.0/16 by 10.8.0.1 through wg0; 10.0.0.0/8 through wg1; 10.0.0.0/8 through wg0; 0.0.0.0/0 by \
                192.168.1.1 through eth0"
        );
        assert_eq!(told[1], ("routes to 8.8.8.8".to_owned(), "0.0.0.0/0 by 192.168.1.1 through eth0".to_owned()));
        assert_eq!(facts(Host::new().routes(Vec::new()).run(|| routes(Report::fail(""), "::1")))[0].1, "none");
    }

    #[test]
    fn an_interface_is_told_with_all_that_keeps_it_from_carrying_anything() {
        let one = |up, running, addresses: &[&str]| NetworkInterface {
            name: "wg0".to_owned(),
            up,
            running,
            loopback: false,
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
        };
        for (of, told, able) in [
            (one(true, true, &["10.8.0.2/24", "fd00::2/64"]), "up, running, 10.8.0.2/24, fd00::2/64", true),
            (one(true, false, &["10.8.0.2/24"]), "up, not running, 10.8.0.2/24", false),
            (one(true, true, &[]), "up, running, no address", false),
            (one(false, false, &["10.8.0.2/24"]), "down, 10.8.0.2/24", false),
        ] {
            assert_eq!((state(&of).as_str(), carries(&of)), (told, able));
        }
        let all = Ok(vec![one(true, true, &[])]);
        let fact = facts(interface(Report::fail(""), "tun0", &all));
        assert_eq!(fact, [("interface tun0".to_owned(), "does not exist; existing interfaces: wg0".to_owned())]);
        let fact = facts(interface(Report::fail(""), "tun0", &Err(Failure::unavailable("not here"))));
        assert_eq!(fact[0].1, "unknown: not here");
    }

    #[test]
    fn a_name_is_explained_by_the_name_service_and_a_way_by_addresses() {
        let to = Endpoint { host: "a.example".to_owned(), port: 80 };
        let host = Host::new()
            .name_service(NameService { servers: vec!["10.0.0.1".into()], search: vec!["corp".into()] })
            .resolves("a.example", Ok(vec!["10.1.2.3".to_owned()]))
            .way_to("10.1.2.3", Some(Way { via: Some("wg0".to_owned()), source: "10.8.0.2".to_owned() }));
        let names = |problem: Problem| -> Vec<String> {
            let report = host.run(|| connection(Report::fail(""), &problem, &to));
            report.facts.into_iter().map(|fact| format!("{}: {}", fact.name, fact.value)).collect()
        };
        let said = "said".to_owned();
        assert_eq!(
            names(Problem::NoSuchHost(said.clone())),
            ["error: said", "name servers: 10.0.0.1", "searched domains: corp"]
        );
        assert_eq!(
            names(Problem::Refused(said.clone())),
            ["error: said", "addresses: 10.1.2.3", "route to 10.1.2.3: through wg0, from 10.8.0.2"]
        );
        let time = Duration::from_secs(3);
        for (problem, words) in [
            (Problem::NoSuchHost(said.clone()), "the name a.example is unknown"),
            (Problem::NotResolved(said.clone()), "the name service did not resolve a.example"),
            (Problem::Refused(said.clone()), "a.example port 80 refuses the connection"),
            (Problem::Unreachable(said.clone()), "there is no route to a.example"),
            (Problem::TimedOut(said), "a.example port 80 does not answer within 3 s"),
        ] {
            assert_eq!(reason(&problem, &to, time).as_deref(), Ok(words));
        }
        let failure = Failure::NotGranted("no".to_owned());
        assert_eq!(reason(&Problem::Other(failure.clone()), &to, time), Err(failure));
    }
}
