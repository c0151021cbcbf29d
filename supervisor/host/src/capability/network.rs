//! Queries of the network: addresses of hosts, interfaces, routes and name servers.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Instant;

use agentd_keeper::look::{FailureReason, LookupAnswer, LookupRequest};
use agentd_plugin_host::{CONTENT, Failure, Interface, NameService, NetworkProblem, Route, RouteTo};
use async_recursion::async_recursion as boxed;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use super::file::failure;
use super::look::{LookupResult, Purpose};
use super::{Machine, before, blocking};
use crate::platform;

/// Path of resolv.conf(5).
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Port for socket addresses of which only the IP address matters. No datagram is sent.
const ANY_PORT: u16 = 9;

impl Machine {
    /// Returns the addresses of a host name in the order in which programs of this machine receive them.
    #[boxed]
    pub async fn resolve(&self, host: &str, deadline: Instant) -> Result<Vec<String>, NetworkProblem> {
        let addresses = self.addresses(host, ANY_PORT, before(deadline)).await?;
        Ok(addresses.into_iter().map(without_port).collect())
    }

    /// Returns at least one socket address of a host, with the given port.
    pub(super) async fn addresses(
        &self,
        host: &str,
        port: u16,
        deadline: Instant,
    ) -> Result<Vec<SocketAddr>, NetworkProblem> {
        if let Some(address) = literal(host, port) {
            return Ok(vec![address]);
        }
        if host.is_empty() || host.contains('\0') {
            return Err(NetworkProblem::NoSuchHost(format!("{host:?} is not a host name")));
        }
        let subject = format!("the name service, asked for {host:?}");
        match self.lookers.ask(Purpose::Names, subject, LookupRequest::Addresses(host.to_owned()), deadline).await? {
            LookupResult::TimedOut(text) => Err(NetworkProblem::NotResolved(text)),
            LookupResult::Answer(LookupAnswer::Addresses(found)) => {
                let found: Vec<SocketAddr> = found.iter().filter_map(|one| literal(one, port)).collect();
                if found.is_empty() {
                    return Err(NetworkProblem::NoSuchHost(format!("the host {host:?} has no address")));
                }
                Ok(found)
            }
            LookupResult::Answer(LookupAnswer::Not { why: FailureReason::NotFound, text }) => {
                Err(NetworkProblem::NoSuchHost(format!("there is no host {host:?}: {text}")))
            }
            LookupResult::Answer(LookupAnswer::Not { text, .. }) => {
                Err(NetworkProblem::NotResolved(format!("cannot resolve {host:?}: {text}")))
            }
            LookupResult::Answer(other) => Err(failure("resolve", host, other).into()),
        }
    }

    /// Returns the network interfaces in the system's order.
    #[boxed]
    pub async fn interfaces(&self, deadline: Instant) -> Result<Vec<Interface>, Failure> {
        self.only_here("list the interfaces")?;
        blocking("list the interfaces", deadline, interfaces).await
    }

    /// Returns the main routing table.
    #[boxed]
    pub async fn routes(&self, deadline: Instant) -> Result<Vec<Route>, Failure> {
        self.only_here("list the routes")?;
        blocking("list the routes", deadline, platform::routes).await
    }

    /// Returns the interface and source address for packets to an address. `None` means that no route exists.
    #[boxed]
    pub async fn way_to(&self, address: &str, deadline: Instant) -> Result<Option<RouteTo>, Failure> {
        self.only_here("find the way to an address")?;
        let to = literal(address, ANY_PORT)
            .ok_or_else(|| Failure::Failed(format!("{address:?} is not an address; resolve the name first")))?;
        blocking("find the way to the address", deadline, move || way_to(to)).await
    }

    /// Returns the content of resolv.conf(5). A missing file has no content.
    #[boxed]
    pub async fn name_service(&self, deadline: Instant) -> Result<NameService, Failure> {
        let mut looker = self.lookers.open(Purpose::Names, format!("{RESOLV_CONF:?}"), before(deadline)).await?;
        match looker.answer(&LookupRequest::Resolve(RESOLV_CONF.into())).await? {
            LookupAnswer::Path(_) => {}
            LookupAnswer::Absent { why: FailureReason::NotFound, .. } => return Ok(NameService::default()),
            other => return Err(failure("read", RESOLV_CONF, other)),
        }
        match looker.answer(&LookupRequest::Read { most: CONTENT as u64 }).await? {
            LookupAnswer::Content(content) => Ok(name_service(&content.display())),
            other => Err(failure("read", RESOLV_CONF, other)),
        }
    }
}

/// Parses an address, which may have brackets and a zone: the name or number of an interface after a `%`.
fn literal(text: &str, port: u16) -> Option<SocketAddr> {
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Some((address, zone)) = text.split_once('%') {
        let zone = zone.parse().ok().or_else(|| nix::net::if_::if_nametoindex(zone).ok())?;
        return Some(SocketAddrV6::new(address.parse().ok()?, port, 0, zone).into());
    }
    Some(SocketAddr::new(text.parse().ok()?, port))
}

/// Formats an address without its port. [`literal`] parses the result.
pub(super) fn without_port(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => format!("{}%{}", address.ip(), address.scope_id()),
        address => address.ip().to_string(),
    }
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let four = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    four.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for one in getifaddrs()? {
        let at = found.iter().position(|known| known.name == one.interface_name).unwrap_or(found.len());
        if at == found.len() {
            found.push(Interface {
                up: one.flags.contains(InterfaceFlags::IFF_UP),
                running: one.flags.contains(InterfaceFlags::IFF_RUNNING),
                loopback: one.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                name: one.interface_name,
                addresses: Vec::new(),
            });
        }
        if let Some(address) = one.address.as_ref().and_then(ip) {
            let prefix = one.netmask.as_ref().and_then(ip).map_or(0, ones);
            found[at].addresses.push(format!("{address}/{prefix}"));
        }
    }
    Ok(found)
}

fn ones(mask: IpAddr) -> u32 {
    match mask {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    }
}

/// Determines the route to an address with a connected datagram socket, which sends nothing.
fn way_to(to: SocketAddr) -> io::Result<Option<RouteTo>> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let connected = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    let source = match connected {
        Ok(source) => source.ip(),
        Err(error) if has_no_way(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let interfaces = interfaces()?;
    let has = |interface: &&Interface| {
        // Packets to an own address never leave the machine.
        if source == to.ip() { interface.loopback } else { has(interface, source) }
    };
    let mut all = interfaces.iter().filter(has).map(|interface| interface.name.clone());
    // If several interfaces have the address, the interface is not known.
    let via = all.next().filter(|_| all.next().is_none());
    Ok(Some(RouteTo { via, source: source.to_string() }))
}

/// Reports whether a connect(2) error means that no route exists. For a route of type `blackhole` the kernel returns
/// EINVAL, for `prohibit` EACCES.
pub(super) fn has_no_way(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::NetworkUnreachable
            | Kind::HostUnreachable
            | Kind::NetworkDown
            | Kind::AddrNotAvailable
            | Kind::InvalidInput
            | Kind::PermissionDenied
    )
}

fn has(interface: &Interface, address: IpAddr) -> bool {
    let address = address.to_string();
    interface.addresses.iter().any(|one| one.split('/').next() == Some(address.as_str()))
}

/// Parses resolv.conf(5) as the C library does: unknown lines are skipped, and the last `search` or `domain` line
/// counts. Existing crates refuse the whole file for an unknown line.
fn name_service(text: &str) -> NameService {
    let mut facts = NameService::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => facts.servers.extend(words.next().map(str::to_owned)),
            Some("search" | "domain") => facts.search = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_in_each_of_its_spellings_and_a_name_is_none() {
        let of = |text| literal(text, 80).map(without_port);
        assert_eq!(of("10.0.0.1"), Some("10.0.0.1".to_owned()));
        assert_eq!(of("[::1]"), Some("::1".to_owned()));
        assert_eq!(of("fe80::1%7"), Some("fe80::1%7".to_owned()));
        assert_eq!((of("localhost"), of("10.0.0"), of(""), of("fe80::1%none")), (None, None, None, None));
    }

    #[test]
    fn resolv_conf_is_read_as_the_c_library_does() {
        let text = "# x\nnameserver 10.0.0.1\nsearch a.example\nnameserver ::1%eth0 ; y\nodd\n\
                    nameserver\noptions ndots:5\n\
                    domain b.example\n; nameserver 1.1.1.1\n";
        let facts = name_service(text);
        assert_eq!(facts.servers, ["10.0.0.1", "::1%eth0"]);
        assert_eq!(facts.search, ["b.example"]);
    }

    #[test]
    fn this_machine_has_a_loopback_that_leads_to_itself() {
        let interfaces = interfaces().unwrap();
        let own = interfaces.iter().find(|interface| interface.loopback).unwrap();
        assert!(own.up && own.addresses.contains(&"127.0.0.1/8".to_owned()), "{own:?}");
        let way = way_to(([127, 0, 0, 1], 9).into()).unwrap().unwrap();
        assert_eq!((way.source.as_str(), way.via.as_deref()), ("127.0.0.1", Some(own.name.as_str())));
    }
}
