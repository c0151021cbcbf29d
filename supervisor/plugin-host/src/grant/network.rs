//! Patterns of hosts and ports.
//!
//! An address has many notations (`127.1`, `0x7f000001`, `::ffff:127.0.0.1`), and resolvers accept most
//! notations. A host that looks like a number but is not in the usual notation is refused. Addresses are
//! compared in one canonical notation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use agentd_glob::Glob;

/// Maximum length of a host name in bytes.
const LONGEST: usize = 253;

/// A host that a plugin requests, in canonical notation: lower case, without a dot at the end. An address has
/// its canonical text without a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// The text that patterns are compared with.
    text: String,
    /// Other names of the same destination, which a denial may use.
    also: Vec<String>,
    /// The host to connect to. An address keeps its zone.
    pub(crate) target: String,
}

impl Host {
    pub(crate) fn parse(host: &str) -> Result<Self, &'static str> {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let (address, zone) = host.split_once('%').map_or((host, None), |(address, zone)| (address, Some(zone)));
        if let Ok(address) = address.parse::<IpAddr>() {
            let text = address.to_canonical().to_string();
            let target = match zone {
                None => text.clone(),
                Some(zone) if address.is_ipv6() && is_zone(zone) => format!("{address}%{zone}"),
                Some(_) => return Err("has a zone that is not the name of an interface"),
            };
            return Ok(Self { also: reaches(address.to_canonical()), text, target });
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if name.is_empty() || name.len() > LONGEST || !name.split('.').all(is_label) {
            return Err("is neither an address nor a name of letters, digits, \"-\", \"_\" and dots");
        }
        if is_number(&name) {
            return Err("looks like a number but is not an address in the usual notation");
        }
        let also = if is_own_name(&name) { own() } else { Vec::new() };
        Ok(Self { target: name.clone(), text: name, also })
    }
}

/// Reports whether the name always means this machine (RFC 6761, and Debian's /etc/hosts).
fn is_own_name(name: &str) -> bool {
    matches!(name, "localhost" | "ip6-localhost" | "ip6-loopback") || name.ends_with(".localhost")
}

/// Returns names of this machine itself. A service that listens on one of them usually listens on all.
fn own() -> Vec<String> {
    ["127.0.0.1", "::1", "0.0.0.0", "::", "localhost"].map(str::to_owned).to_vec()
}

/// Returns other names of the destination of an address: an unspecified address means the loopback, and an IPv6
/// address may embed an IPv4 address.
fn reaches(address: IpAddr) -> Vec<String> {
    let of_v4 = |v4: Ipv4Addr| {
        let here = v4.is_loopback() || v4.is_unspecified(); // Linux connects 0.0.0.0 to the loopback
        let more = if here { own() } else { Vec::new() };
        std::iter::once(v4.to_string()).chain(more).collect()
    };
    match address {
        IpAddr::V4(v4) => of_v4(v4),
        IpAddr::V6(v6) if v6.is_loopback() || v6.is_unspecified() => own(),
        IpAddr::V6(v6) => embedded(v6).map(of_v4).unwrap_or_default(),
    }
}

/// Returns the IPv4 address embedded in an IPv6 address: NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056) or
/// IPv4-compatible (RFC 4291).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let ([0x64, 0xff9b, 0 | 1, _, _, _, high, low]
    | [0, 0, 0, 0, 0, 0, high, low]
    | [0x2002, high, low, _, _, _, _, _]) = address.segments()
    else {
        return None;
    };
    Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.len() <= 63 && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Reports whether the text can be an interface's name in Linux, or its index.
fn is_zone(zone: &str) -> bool {
    !zone.is_empty() && zone.len() <= 15 && zone.bytes().all(|b| b.is_ascii_graphic() && !b"/:%[]".contains(&b))
}

/// Reports whether a resolver may take the name for an address in another notation, because its last label is a
/// number.
fn is_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    hexadecimal || last.bytes().all(|b| b.is_ascii_digit())
}

/// A pattern of hosts and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkPattern {
    host: Glob,
    ports: RangeInclusive<u16>,
}

impl NetworkPattern {
    pub(crate) fn parse(pattern: &str) -> Result<Self, &'static str> {
        if matches!(pattern, "*" | "**") {
            return Ok(Self { host: Glob::flat("*"), ports: 0..=u16::MAX });
        }
        let (host, ports) = match pattern.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or("an address in brackets is followed by \":\" and its ports")?,
            None => pattern.rsplit_once(':').ok_or("a pattern of the network is HOST:PORT")?,
        };
        let host = host_pattern(host, pattern.starts_with('['))?;
        let ports = match ports.split_once('-') {
            _ if ports == "*" => 0..=u16::MAX,
            None => port(ports)?..=port(ports)?,
            Some((from, to)) => port(from)?..=port(to)?,
        };
        if ports.is_empty() {
            return Err("the end of the port range is smaller than its beginning");
        }
        Ok(Self { host: Glob::flat(&host), ports })
    }

    /// Reports whether the pattern matches every host and port.
    pub(crate) fn is_everything(&self) -> bool {
        self.host.is_everything() && self.is_every_port()
    }

    /// Reports whether the pattern matches every port.
    pub(crate) fn is_every_port(&self) -> bool {
        *self.ports.start() <= 1 && *self.ports.end() == u16::MAX
    }

    /// Reports whether the pattern matches the host with some port.
    pub(crate) fn matches_host(&self, host: &Host) -> bool {
        self.host.matches(&host.text)
    }

    /// Reports whether the pattern matches the host and port.
    pub(crate) fn matches(&self, host: &Host, port: u16) -> bool {
        self.ports.contains(&port) && self.matches_host(host)
    }

    /// Reports whether the pattern denies the host by any of its names.
    pub(crate) fn denies_host(&self, host: &Host) -> bool {
        self.matches_host(host) || host.also.iter().any(|spelling| self.host.matches(spelling))
    }

    /// Reports whether the pattern denies the host and port.
    pub(crate) fn denies(&self, host: &Host, port: u16) -> bool {
        self.ports.contains(&port) && self.denies_host(host)
    }

    /// Reports whether some host and port match both patterns.
    pub(crate) fn may_overlap(&self, other: &Self) -> bool {
        let ports = self.ports.start() <= other.ports.end() && other.ports.start() <= self.ports.end();
        ports && self.host.overlaps(&other.host)
    }
}

/// Parses a port in its usual notation.
fn port(text: &str) -> Result<u16, &'static str> {
    let number = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    number.then(|| text.parse().ok()).flatten().ok_or("a port is a number from 1 to 65535, a range of two, or \"*\"")
}

/// Returns the host part of a pattern in canonical notation.
fn host_pattern(host: &str, brackets: bool) -> Result<String, &'static str> {
    let address = |host: &str| host.parse::<Ipv6Addr>().map(|address| IpAddr::V6(address).to_canonical().to_string());
    if brackets && host.contains('*') {
        let plain = host.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'*');
        return if plain { Ok(host.to_ascii_lowercase()) } else { Err("brackets must contain an IPv6 address") };
    }
    if brackets {
        return address(host).map_err(|_| "brackets must contain an IPv6 address");
    }
    if host.contains(':') {
        return Err("an IPv6 address needs brackets, and a host is followed by one \":\" and its ports");
    }
    if host.contains('*') {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.*".contains(&b);
        let fits = host.bytes().all(plain) && host.len() <= LONGEST;
        let wrong = "a host consists of letters, digits, \"-\", \"_\", dots and \"*\"";
        return if fits { Ok(host.to_ascii_lowercase()) } else { Err(wrong) };
    }
    let host = Host::parse(host).map_err(|_| "a host is a name or an address in the usual notation")?;
    Ok(host.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, host: &str, port: u16) -> bool {
        NetworkPattern::parse(pattern).unwrap().matches(&Host::parse(host).unwrap(), port)
    }

    #[test]
    fn a_host_and_a_port_match_together() {
        for (pattern, host, port, expected) in [
            ("licenses.corp:27000", "licenses.corp", 27000, true),
            ("licenses.corp:27000", "licenses.corp", 27001, false),
            ("licenses.corp:27000", "LICENSES.corp.", 27000, true),
            ("Licenses.Corp.:27000", "licenses.corp", 27000, true),
            ("licenses.corp:27000-27009", "licenses.corp", 27009, true),
            ("licenses.corp:27000-27009", "licenses.corp", 27010, false),
            ("licenses.corp:*", "licenses.corp", 1, true),
            ("*.corp:443", "a.b.corp", 443, true),
            ("*.corp:443", "corp", 443, false),
            ("*.corp:443", "a.corp.evil", 443, false),
            ("*:443", "10.0.0.1", 443, true),
            ("*", "a", 9, true),
            ("10.0.*:22", "10.0.3.4", 22, true),
            ("10.0.0.1:22", "::ffff:10.0.0.1", 22, true),
            ("[::1]:80", "::1", 80, true),
            ("[::1]:80", "[::1]", 80, true),
            ("[::1]:80", "0:0:0:0:0:0:0:1", 80, true),
            ("[0:0::0:1]:80", "::1", 80, true),
            ("[fd00:*]:*", "FD00::5", 7, true),
            ("[fe80::1]:80", "fe80::1%eth0", 80, true),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1", 80, true),
            ("[::1]:80", "::2", 80, false),
        ] {
            assert_eq!(matches(pattern, host, port), expected, "{pattern} {host} {port}");
        }
    }

    #[test]
    fn a_denial_holds_for_every_spelling_of_what_is_reached() {
        let denies =
            |pattern: &str, host: &str| NetworkPattern::parse(pattern).unwrap().denies(&Host::parse(host).unwrap(), 80);
        let own = ["127.0.0.1", "127.0.0.9", "0.0.0.0", "::", "::%lo", "[::]", "::1", "::1%lo", "::ffff:127.0.0.1"];
        let more = ["::ffff:0.0.0.0", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "LOCALHOST.", "x.localhost"];
        for host in own.into_iter().chain(more) {
            for pattern in ["127.0.0.1:80", "127.*:*", "[::1]:80", "localhost:*", "0.0.0.0:80", "*:80"] {
                assert!(denies(pattern, host), "{pattern} {host}");
            }
            assert!(!denies("10.*:80", host) && !denies("127.0.0.1:81", host), "{host}");
        }
        for host in [
            "10.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:10.0.0.1%eth0",
            "64:ff9b::a00:1",
            "64:ff9b:1::a00:1",
            "2002:a00:1:5::7",
        ] {
            assert!(denies("10.0.0.1:80", host) && !denies("127.*:80", host), "{host}");
        }
        assert!(denies("[fe80::1]:80", "fe80::1%eth0") && !denies("127.*:80", "fe80::1%lo"));
        assert!(!denies("127.*:80", "::2"));
        // A grant matches only the host's own notation.
        assert!(!matches("127.0.0.1:80", "0.0.0.0", 80) && !matches("10.0.0.1:80", "64:ff9b::a00:1", 80));
    }

    #[test]
    fn what_is_no_host_and_port_is_no_pattern() {
        for pattern in [
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:01",
            "a:65536",
            "a:-1",
            "a:1-",
            "a:9-1",
            "a:1-2-3",
            "a:x",
            "a b:1",
            "::1:80",
            "[::1]",
            "[::1]80",
            "[a.b]:80",
            "[::1:80",
            "a?:80",
            "http://a:80",
            "127.1:80",
            "0x7f.1:80",
            "a..b:1",
            "[fe80::1%eth0]:1",
            "user@a:1",
            "a\0:1",
            "ä:1",
        ] {
            assert!(NetworkPattern::parse(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn other_spellings_of_an_address_are_no_host() {
        for host in [
            "",
            ".",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "127.0.0.0x1",
            "0177.0.0.1",
            "127.0.0.1.",
            "a b",
            "a/b",
            "a:1",
            "a@b",
            "a\0",
            "-\n",
            "ä",
            "a..b",
            "1.2.3.4%eth0",
            "::1%",
            "::1%a/b",
            "0x",
            "x.0x",
        ] {
            assert!(Host::parse(host).is_err(), "{host:?}");
        }
        assert!(Host::parse(&"a.".repeat(200)).is_err());
        assert_eq!(Host::parse("fe80::1%eth0").unwrap().target, "fe80::1%eth0");
        assert_eq!(Host::parse("[FE80::1]").unwrap().target, "fe80::1");
        for host in ["a", "a-b.c_d", "3com.example", "1.2.3.4"] {
            assert_eq!(Host::parse(host).unwrap().target, host);
        }
    }

    #[test]
    fn ranges_and_hosts_overlap_or_not() {
        for (a, b, expected) in [
            ("*.corp:1-10", "x.corp:10-20", true),
            ("*.corp:1-10", "x.corp:11-20", false),
            ("a:*", "b:*", false),
            ("*:*", "[::1]:5", true),
        ] {
            let (a, b) = (NetworkPattern::parse(a).unwrap(), NetworkPattern::parse(b).unwrap());
            assert_eq!((a.may_overlap(&b), b.may_overlap(&a)), (expected, expected), "{a:?} {b:?}");
        }
        let everything = |pattern| NetworkPattern::parse(pattern).unwrap().is_everything();
        assert!(everything("*") && everything("*:*") && everything("**") && everything("*:1-65535"));
        assert!(!everything("*:443") && !everything("a:*"));
    }
}
