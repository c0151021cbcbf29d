//! Parsers for hosts, ports and networks.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use agentd_plugin_sdk::{CheckRequest, Failure};

/// A host and one of its ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Name or address of the host, without brackets.
    pub host: String,
    /// Port number, not 0.
    pub port: u16,
}

impl Endpoint {
    /// Reads the settings `host` and `port`. Without a default, `port` is required.
    pub fn of(request: &CheckRequest, default_port: Option<u16>) -> Result<Self, Failure> {
        let text = request.required_setting("host")?;
        let wrong =
            || Failure::configuration("host", format!("must be the name of a host or its address, and is {text:?}"));
        let host = host(text).ok_or_else(wrong)?.to_owned();
        match port(request)?.or(default_port) {
            Some(port) => Ok(Self { host, port }),
            None => Err(Failure::configuration("port", "must be set, and is not")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.host, self.port)
    }
}

/// Reads the setting `port`.
pub fn port(request: &CheckRequest) -> Result<Option<u16>, Failure> {
    let Some(number) = request.number("port")? else { return Ok(None) };
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    let wrong = || Failure::configuration("port", format!("must be from 1 to 65535, and is {number}"));
    port.map(Some).ok_or_else(wrong)
}

/// Returns a host's name or address without brackets, or `None` if the text is not valid.
pub fn host(text: &str) -> Option<&str> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    // Only an address may contain a colon: `host:port` is not a host.
    let fits = if bare.contains(':') { ip(bare).is_some() } else { bare.chars().all(is_of_a_name) };
    (fits && !bare.is_empty()).then_some(bare)
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '%')
}

/// Parses an address, without brackets and without a zone after `%`.
pub fn ip(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let bare = bare.split_once('%').map_or(bare, |(address, _)| address);
    // An IPv4-mapped IPv6 address becomes the IPv4 address.
    bare.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// A network: all addresses with the same first bits, for example `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    /// Reads a setting that is a list of networks. Returns `None` if it is not set.
    pub fn of(request: &CheckRequest, key: &str) -> Result<Option<Vec<Self>>, Failure> {
        let Some(texts) = request.settings(key) else { return Ok(None) };
        let parse = |text: &String| {
            text.parse().map_err(|()| {
                Failure::configuration(key, format!("must be networks such as \"10.0.0.0/8\", and has {text:?}"))
            })
        };
        texts.iter().map(parse).collect::<Result<_, _>>().map(Some)
    }

    /// Reports whether the address belongs to the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => same(own.to_bits().into(), other.to_bits().into(), 32, self.prefix),
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), 128, self.prefix),
            _ => false,
        }
    }

    /// Returns the length of the prefix in bits.
    pub fn prefix(&self) -> u32 {
        self.prefix
    }
}

/// Reports whether the first `prefix` of `bits` bits are equal.
fn same(one: u128, other: u128, bits: u32, prefix: u32) -> bool {
    (one ^ other).checked_shr(bits - prefix).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = ();

    /// Parses `ADDRESS/PREFIX`. An address without a prefix is a network of one address.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(drop)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), str::parse).map_err(drop)?;
        if prefix > bits { Err(()) } else { Ok(Self { address, prefix }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_that_begin_as_it_does() {
        for (network, inside, outside) in [
            (
                "10.0.0.0/8",
                &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"][..],
                &["11.0.0.0", "9.255.255.255", "::1"][..],
            ),
            ("192.168.4.0/23", &["192.168.5.255"], &["192.168.6.0", "192.168.3.255"]),
            ("10.1.2.3", &["10.1.2.3"], &["10.1.2.2"]),
            ("10.1.2.3/31", &["10.1.2.2", "10.1.2.3"], &["10.1.2.4"]),
            ("0.0.0.0/0", &["1.2.3.4"], &["::1"]),
            ("fd00::/8", &["fd12::1", "[fd12::1]", "fdff::1%eth0"], &["fc00::1", "10.0.0.1"]),
            ("::/0", &["::1", "fe80::1%3"], &["1.2.3.4"]),
            ("::1", &["::1"], &["::2"]),
        ] {
            let of: Network = network.parse().unwrap();
            for (address, is) in inside.iter().map(|one| (one, true)).chain(outside.iter().map(|one| (one, false))) {
                assert_eq!(of.contains(ip(address).unwrap()), is, "{network} {address}");
            }
        }
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/8/8", "corp"] {
            assert_eq!(wrong.parse::<Network>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_nothing_with_a_port() {
        for (text, is) in [
            ("git.corp.example", "git.corp.example"),
            ("lic_1", "lic_1"),
            ("10.1.2.3", "10.1.2.3"),
            ("[::1]", "::1"),
            ("fe80::1%eth0", "fe80::1%eth0"),
            ("bücher.example", "bücher.example"),
        ] {
            assert_eq!(host(text), Some(is));
        }
        for wrong in ["", "[]", "host:443", "https://host", "a b", "a@b", "host\n", "::1::"] {
            assert_eq!(host(wrong), None, "{wrong:?}");
        }
    }
}
