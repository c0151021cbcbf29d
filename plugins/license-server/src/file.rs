//! Parses the servers in licence files. The licences themselves are not examined.
//!
//! `FlexLM` has `SERVER host hostid [port]`, `VENDOR name [path] [options] [port=N]` (or `DAEMON`) and
//! `USE_SERVER`. RLM has `HOST host hostid [port]` and `ISV name [path] [options] [port=N]`. Keywords are not
//! case-sensitive. `#` begins a comment, and a `\` at the end of a line continues the line.

use agentd_plugin_checks::address::host;

use crate::entry::{Manager, Server};

/// The servers that a licence file names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Licence {
    /// One server, three redundant servers, or none if no server is needed.
    pub(crate) servers: Vec<Server>,
    /// Vendor daemons with a port in the file, as name and port.
    pub(crate) vendors: Vec<(String, u16)>,
    /// Whether the text has any line of a licence file.
    pub(crate) is_one: bool,
}

/// Parses the text of a licence file.
pub(crate) fn read(text: &str, manager: Manager) -> Licence {
    let mut licence = Licence::default();
    for line in lines(text) {
        let mut words = line.split_whitespace();
        let keyword = words.next().unwrap_or_default().to_ascii_uppercase();
        let words: Vec<&str> = words.collect();
        match keyword.as_str() {
            "SERVER" | "HOST" => licence.servers.extend(server(&words, manager)),
            "VENDOR" | "DAEMON" | "ISV" => licence.vendors.extend(vendor(&words)),
            "USE_SERVER" | "FEATURE" | "INCREMENT" | "PACKAGE" | "UPGRADE" | "LICENSE" => {}
            _ => continue,
        }
        licence.is_one = true;
    }
    licence
}

/// Returns the lines without comments, with continued lines joined.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun = String::new();
    for line in text.lines() {
        let line = line.trim_end();
        if begun.is_empty() && line.trim_start().starts_with('#') {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                begun.push_str(part);
                begun.push(' ');
            }
            None => lines.push(std::mem::take(&mut begun) + line),
        }
    }
    lines.push(begun);
    lines
}

fn server(words: &[&str], manager: Manager) -> Option<Server> {
    let named = host(words.first()?)?;
    // On the machine with the file, this name means the machine itself.
    let named = if named.eq_ignore_ascii_case("this_host") { "localhost" } else { named };
    // The port follows the host id. Older versions of `FlexLM` put the protocol in front of the port.
    let port = words.iter().skip(2).find_map(|word| {
        let word = word.to_ascii_uppercase();
        let number = word.strip_prefix("TCP:").or_else(|| word.strip_prefix("PORT=")).unwrap_or(&word);
        number.parse().ok().filter(|port| *port != 0)
    });
    let ports = port.map_or_else(|| manager.ports(), |port| port..=port);
    Some(Server { host: named.to_owned(), ports })
}

fn vendor(words: &[&str]) -> Option<(String, u16)> {
    let (name, options) = words.split_first()?;
    let port = options.iter().find_map(|word| {
        let word = word.to_ascii_uppercase();
        word.strip_prefix("PORT=").unwrap_or(&word).parse().ok().filter(|port| *port != 0)
    })?;
    Some(((*name).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, ports: std::ops::RangeInclusive<u16>) -> Server {
        Server { host: host.to_owned(), ports }
    }

    #[test]
    fn the_servers_and_the_daemons_with_ports_are_read_and_nothing_else() {
        let text = "\
# SERVER commented ANY 1
SERVER lic1.corp 001122334455 27020
VENDOR snpslmd /opt/snps/snpslmd \\
    OPTIONS=/opt/snps/options \\
    PORT=27021
DAEMON mgcld
USE_SERVER
INCREMENT SSS snpslmd 1.0 31-dec-2030 10 ABCDEF \\
    SERVER=no SIGN=\"00 11\"
";
        let licence = read(text, Manager::Flexlm);
        assert_eq!(licence.servers, [at("lic1.corp", 27020..=27020)]);
        assert_eq!((licence.vendors, licence.is_one), (vec![("snpslmd".to_owned(), 27021)], true));
    }

    #[test]
    fn a_line_of_a_server_is_read_in_each_of_its_forms() {
        for (line, manager, server) in [
            ("SERVER lic ANY 27000", Manager::Flexlm, at("lic", 27000..=27000)),
            ("server this_host ANY", Manager::Flexlm, at("localhost", 27000..=27009)),
            ("SERVER lic 0011 TCP:1700 PRIMARY_IS_MASTER", Manager::Flexlm, at("lic", 1700..=1700)),
            ("SERVER lic 17002155 PORT=1700", Manager::Flexlm, at("lic", 1700..=1700)),
            ("  SERVER\tlic 12345\r", Manager::Flexlm, at("lic", 27000..=27009)),
            ("SERVER lic \\\n INTERNET=10.0.0.1 \\\n 27005", Manager::Flexlm, at("lic", 27005..=27005)),
            ("HOST lic ANY", Manager::Rlm, at("lic", 5053..=5053)),
            ("HOST lic ANY 2764", Manager::Rlm, at("lic", 2764..=2764)),
        ] {
            assert_eq!(read(line, manager).servers, [server], "{line}");
        }
        for (line, vendor) in [
            ("VENDOR v 27001", Some(("v".to_owned(), 27001))),
            ("VENDOR v /a/v /a/options port=27001", Some(("v".to_owned(), 27001))),
            ("ISV v v.bin v.opt 4444", Some(("v".to_owned(), 4444))),
            ("VENDOR v /a/v", None),
            ("VENDOR", None),
        ] {
            assert_eq!(read(line, Manager::Flexlm).vendors, Vec::from_iter(vendor), "{line}");
        }
    }

    #[test]
    fn what_is_no_licence_file_is_none() {
        for text in ["", "\\", "hello\nworld", "SERVERS x", "#SERVER a ANY 1 \\\nSERVERX"] {
            let licence = read(text, Manager::Flexlm);
            assert!(!licence.is_one && licence.servers.is_empty(), "{text:?}");
        }
        let local = read("FEATURE x v 1.0 permanent uncounted HOSTID=0011 SIGN=0", Manager::Flexlm);
        assert!(local.is_one && local.servers.is_empty());
    }
}
