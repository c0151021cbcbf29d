//! Parses lists of licence servers, as variables contain them.
//!
//! Entries are separated by `:`, or by `;` if the list contains one (Windows has colons in its paths). An entry
//! is `port@host`, three of them joined by commas, or the path of a licence file or directory.

use std::ops::RangeInclusive;

use agentd_plugin_checks::address::host;

/// The licence manager, which determines the default ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manager {
    Flexlm,
    Rlm,
}

impl Manager {
    /// Returns the ports of a server whose entry has no port.
    pub(crate) fn ports(self) -> RangeInclusive<u16> {
        match self {
            Self::Flexlm => 27000..=27009,
            Self::Rlm => 5053..=5053,
        }
    }
}

/// A server with one port or a range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) ports: RangeInclusive<u16>,
}

/// One entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Server(Server),
    /// Three redundant servers, of which two must answer.
    Triad(Vec<Server>),
    /// Path of a licence file, or of a directory of licence files.
    Path(String),
    /// An invalid entry, by its index from 0. Its text is not reported, because it may be something
    /// confidential.
    Unread(usize),
}

/// Parses a list. Empty entries are left out.
pub(crate) fn list(text: &str, manager: Manager) -> Vec<Entry> {
    let entries = split(text).into_iter().map(str::trim).filter(|entry| !entry.is_empty());
    entries.enumerate().map(|(before, entry)| read(entry, manager).unwrap_or(Entry::Unread(before))).collect()
}

/// Splits at the separators, except inside the brackets of an address.
fn split(text: &str) -> Vec<&str> {
    let separator = if text.contains(';') { ';' } else { ':' };
    let mut within = false;
    text.split(|c| {
        match c {
            '[' => within = true,
            ']' => within = false,
            _ => {}
        }
        c == separator && !within
    })
    .collect()
}

fn read(entry: &str, manager: Manager) -> Option<Entry> {
    if !entry.contains('@') {
        return Some(Entry::Path(entry.to_owned())).filter(|_| !entry.contains(','));
    }
    let servers: Vec<Server> = entry.split(',').map(|one| server(one.trim(), manager)).collect::<Option<_>>()?;
    match <[Server; 1]>::try_from(servers) {
        Ok([server]) => Some(Entry::Server(server)),
        Err(servers) => (servers.len() == 3).then_some(Entry::Triad(servers)),
    }
}

fn server(text: &str, manager: Manager) -> Option<Server> {
    let (port, named) = text.split_once('@')?;
    let ports = if port.is_empty() {
        manager.ports()
    } else {
        let port = port.parse().ok().filter(|port| *port != 0)?;
        port..=port
    };
    Some(Server { host: host(named)?.to_owned(), ports })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16, host: &str) -> Server {
        Server { host: host.to_owned(), ports: port..=port }
    }

    fn one(port: u16, host: &str) -> Entry {
        Entry::Server(at(port, host))
    }

    fn path(path: &str) -> Entry {
        Entry::Path(path.to_owned())
    }

    #[test]
    fn a_list_is_of_servers_triads_and_files() {
        let any = |host: &str, ports| Entry::Server(Server { host: host.to_owned(), ports });
        for (text, manager, entries) in [
            ("27000@lic1", Manager::Flexlm, vec![one(27000, "lic1")]),
            ("27000@lic1:1717@lic2.corp", Manager::Flexlm, vec![one(27000, "lic1"), one(1717, "lic2.corp")]),
            ("@lic1", Manager::Flexlm, vec![any("lic1", 27000..=27009)]),
            ("@lic1:2000@lic2", Manager::Rlm, vec![any("lic1", 5053..=5053), one(2000, "lic2")]),
            (
                "1@a,2@b,3@c:27000@d",
                Manager::Flexlm,
                vec![Entry::Triad(vec![at(1, "a"), at(2, "b"), at(3, "c")]), one(27000, "d")],
            ),
            (
                "/opt/lic/a.lic:5@a:rel/b.dat",
                Manager::Flexlm,
                vec![path("/opt/lic/a.lic"), one(5, "a"), path("rel/b.dat")],
            ),
            ("C:\\lic\\a.lic;27000@a;", Manager::Flexlm, vec![path("C:\\lic\\a.lic"), one(27000, "a")]),
            ("27000@[fd00::5]:1@10.0.0.5", Manager::Flexlm, vec![one(27000, "fd00::5"), one(1, "10.0.0.5")]),
            (" : :27000@a: ", Manager::Flexlm, vec![one(27000, "a")]),
            ("", Manager::Flexlm, vec![]),
            // Invalid entries are reported by their index.
            ("27000@a:x@b", Manager::Flexlm, vec![one(27000, "a"), Entry::Unread(1)]),
            ("1@a,2@b", Manager::Flexlm, vec![Entry::Unread(0)]),
            ("0@a:65536@a:5@:5@a b:5@a@b:a,b", Manager::Flexlm, (0..6).map(Entry::Unread).collect()),
        ] {
            assert_eq!(list(text, manager), entries, "{text}");
        }
    }
}
