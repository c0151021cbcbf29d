//! Names and facts of the network: what a host's addresses are, which interfaces and routes there are, where names are asked for.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Instant;

use agentd_keeper::look::{Look, Looked, Why};
use agentd_plugins::{CONTENT, Failure, Interface, NameService, NetworkProblem, Route, Way};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use super::file::failure;
use super::look::{Glance, Lot};
use super::{Machine, before, blocking};
use crate::platform;

/// Where resolv.conf(5) is.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// A port that a datagram would be sent to, if one were.
const ANY_PORT: u16 = 9;

impl Machine {
    /// The addresses of a host name, as programs of this machine get them, in that order.
    pub async fn resolve(&self, host: &str, deadline: Instant) -> Result<Vec<String>, NetworkProblem> {
        let addresses = self.addresses(host, ANY_PORT, before(deadline)).await?;
        Ok(addresses.into_iter().map(bare).collect())
    }

    /// The same with a port; at least one.
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
            return Err(NetworkProblem::NoSuchHost(format!("{host:?} is no name of a host")));
        }
        let subject = format!("the name service, asked for {host:?}");
        match self.looks.ask(Lot::Names, subject, Look::Addresses(host.to_owned()), deadline).await? {
            Glance::Hangs(text) => Err(NetworkProblem::NotResolved(text)),
            Glance::Looked(Looked::Addresses(found)) => {
                let found: Vec<SocketAddr> = found.iter().filter_map(|one| literal(one, port)).collect();
                if found.is_empty() {
                    return Err(NetworkProblem::NoSuchHost(format!("the host {host:?} has no address")));
                }
                Ok(found)
            }
            Glance::Looked(Looked::Not { why: Why::NotFound, text }) => {
                Err(NetworkProblem::NoSuchHost(format!("there is no host {host:?}: {text}")))
            }
            Glance::Looked(Looked::Not { text, .. }) => {
                Err(NetworkProblem::NotResolved(format!("cannot resolve {host:?}: {text}")))
            }
            Glance::Looked(other) => Err(failure("resolve", host, other).into()),
        }
    }

    /// The interfaces in the system's order.
    pub async fn interfaces(&self, deadline: Instant) -> Result<Vec<Interface>, Failure> {
        blocking("list the interfaces", deadline, interfaces).await
    }

    /// The main routing table.
    pub async fn routes(&self, deadline: Instant) -> Result<Vec<Route>, Failure> {
        blocking("list the routes", deadline, platform::routes).await
    }

    /// Which way packets to an address go; none where there is no route.
    pub async fn way_to(&self, address: &str, deadline: Instant) -> Result<Option<Way>, Failure> {
        let to = literal(address, ANY_PORT)
            .ok_or_else(|| Failure::Failed(format!("{address:?} is no address; resolve the name first")))?;
        blocking("find the way to the address", deadline, move || way_to(to)).await
    }

    /// What resolv.conf(5) says; nothing where there is none.
    pub async fn name_service(&self, deadline: Instant) -> Result<NameService, Failure> {
        let mut eye = self.looks.open(Lot::Names, format!("{RESOLV_CONF:?}"), before(deadline)).await?;
        match eye.answer(&Look::Resolve(RESOLV_CONF.into())).await? {
            Looked::Path(_) => {}
            Looked::Absent { why: Why::NotFound, .. } => return Ok(NameService::default()),
            other => return Err(failure("read", RESOLV_CONF, other)),
        }
        match eye.answer(&Look::Read { most: CONTENT as u64 }).await? {
            Looked::Content(content) => Ok(name_service(&content.display())),
            other => Err(failure("read", RESOLV_CONF, other)),
        }
    }
}

/// An address in any of its spellings: with brackets, and with an interface, by its name or its number, behind a `%`.
fn literal(text: &str, port: u16) -> Option<SocketAddr> {
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Some((address, zone)) = text.split_once('%') {
        let zone = zone.parse().ok().or_else(|| nix::net::if_::if_nametoindex(zone).ok())?;
        return Some(SocketAddrV6::new(address.parse().ok()?, port, 0, zone).into());
    }
    Some(SocketAddr::new(text.parse().ok()?, port))
}

/// Without its port; [`literal`] takes it back.
pub(super) fn bare(address: SocketAddr) -> String {
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

/// A datagram socket that is connected has its route, and nothing is sent.
fn way_to(to: SocketAddr) -> io::Result<Option<Way>> {
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
        // To one's own address packets never leave the machine.
        if source == to.ip() { interface.loopback } else { has(interface, source) }
    };
    let mut all = interfaces.iter().filter(has).map(|interface| interface.name.clone());
    // Of an address that several have it cannot be told.
    let via = all.next().filter(|_| all.next().is_none());
    Ok(Some(Way { via, source: source.to_string() }))
}

/// Whether this is what the kernel says to who would connect where no route leads; of a route of the type `blackhole` it says that the
/// argument is wrong, of `prohibit` that it is forbidden.
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

/// As the C library reads it: what it does not know is skipped, and of `search` and `domain` the last counts. (The crates that there are
/// refuse the whole file for such a line.)
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
        let of = |text| literal(text, 80).map(bare);
        assert_eq!(of("10.0.0.1"), Some("10.0.0.1".to_owned()));
        assert_eq!(of("[::1]"), Some("::1".to_owned()));
        assert_eq!(of("fe80::1%7"), Some("fe80::1%7".to_owned()));
        assert_eq!((of("localhost"), of("10.0.0"), of(""), of("fe80::1%none")), (None, None, None, None));
    }

    #[test]
    fn resolv_conf_is_read_as_the_c_library_does() {
        let text = "# x\nnameserver 10.0.0.1\nsearch a.example\nnameserver ::1%eth0 ; y\nodd\nnameserver\noptions ndots:5\n\
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
