//! What is installed: the programs beside this one, and the units, which this program carries as they lie in the repository.
//!
//! Units name the programs where the units' README puts them; another directory takes its place here.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::ServiceError;
use super::host::Host;
use super::manager::Service;

/// As they lie below `units/`.
const UNITS: &[(&str, &str, bool)] = include!(concat!(env!("OUT_DIR"), "/units.rs"));

/// The programs that belong together.
pub(super) const PROGRAMS: [&str; 3] = ["agentd", "agentd-keeper", "agentctl"];

/// A unit as it is to lie on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct Unit {
    pub(in crate::commands) path: PathBuf,
    pub(super) text: String,
}

/// The units of a service whose programs are in this directory.
pub(super) fn units(host: &Host, service: &Service, programs: &Path) -> Result<Vec<Unit>, ServiceError> {
    let of = |from: &'static str| {
        UNITS.iter().filter_map(move |(name, text, _)| Some((name.strip_prefix(from)?.strip_prefix('/')?, *text)))
    };
    // Where they are looked for anyway, the unit is the repository's, and good for every home.
    let elsewhere = programs != service.default_programs(host);
    let systemd = |directory: PathBuf, from: &'static str, only: &'static str| {
        let units = of(from).filter(move |(name, _)| name.ends_with(only));
        units.map(move |(name, text)| {
            let text = if elsewhere { for_systemd(text, programs)? } else { text.to_owned() };
            Ok(Unit { path: directory.join(name), text })
        })
    };
    match service {
        Service::User => systemd(host.home.join(".config/systemd/user"), "systemd/user", "").collect(),
        Service::System { .. } => systemd(host.path("/etc/systemd/system"), "systemd/system", "")
            // The sessions are units of the users' own managers, and their slice too.
            .chain(systemd(host.path("/etc/systemd/user"), "systemd/user", ".slice"))
            .collect(),
        Service::Launchd => of("launchd")
            .map(|(name, text)| {
                let path = host.home.join("Library/LaunchAgents").join(name);
                Ok(Unit { path, text: for_launchd(text, programs, &host.home)? })
            })
            .collect(),
    }
}

/// `%h/.local/bin/` and `/usr/local/bin/` are where the units look for the programs.
fn for_systemd(text: &str, programs: &Path) -> Result<String, ServiceError> {
    let directory = plain(programs)?;
    // A space would end the word, and quotes in the middle of one are not taken off in every version.
    if directory.contains(char::is_whitespace) {
        return Err(ServiceError::Directory { path: programs.to_owned() });
    }
    // systemd.unit(5): `%` begins a specifier.
    let directory = format!("{}/", directory.replace('%', "%%"));
    let lines = text.lines().map(|line| {
        if line.starts_with("Exec") {
            line.replace("%h/.local/bin/", &directory).replace("/usr/local/bin/", &directory)
        } else {
            line.to_owned()
        }
    });
    Ok(lines.map(|line| line + "\n").collect())
}

/// launchd expands nothing, so the home directory is written out.
fn for_launchd(text: &str, programs: &Path, home: &Path) -> Result<String, ServiceError> {
    let xml = |path: &Path| Ok(plain(path)?.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"));
    Ok(text.replace("@HOME@/.local/bin", &xml(programs)?).replace("@HOME@", &xml(home)?))
}

/// The string that a property list has under a key, wherever in it that is.
pub(super) fn plist_value(text: &str, key: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<key>{key}</key>"))?;
    let (value, _) = rest.trim_start().strip_prefix("<string>")?.split_once("</string>")?;
    Some(value.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

/// A path that can stand in a unit.
fn plain(path: &Path) -> Result<&str, ServiceError> {
    let refused = || ServiceError::Directory { path: path.to_owned() };
    let text = path.to_str().filter(|_| path.is_absolute()).ok_or_else(refused)?;
    let odd = |c: char| c.is_control() || "\"'\\$".contains(c);
    if text.contains(odd) { Err(refused()) } else { Ok(text.trim_end_matches('/')) }
}

/// Hexadecimal SHA-256.
pub(super) fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a string takes all
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_start_the_programs_of_the_directory_that_was_chosen() {
        let services = [Service::User, Service::System { user: None }, Service::Launchd];
        for service in services {
            for unit in units(&Host::of_kim(), &service, Path::new("/opt/a%b/bin")).unwrap() {
                for line in unit.text.lines().filter(|line| line.contains("/bin/agent")) {
                    let directory = if service == Service::Launchd { "/opt/a%b/bin/" } else { "/opt/a%%b/bin/" };
                    assert!(line.contains(directory), "{}: {line}", unit.path.display());
                }
                assert!(!unit.text.contains("@HOME@"), "{}", unit.text);
            }
        }
        let own = units(&Host::of_kim(), &Service::User, Path::new("/opt/bin")).unwrap();
        let service = own.iter().find(|unit| unit.path.ends_with("agentd.service")).unwrap();
        assert!(service.text.contains("\nExecStart=/opt/bin/agentd serve\n"), "{}", service.text);
        assert_eq!(service.path, Path::new("/home/kim/.config/systemd/user/agentd.service"));
    }

    #[test]
    fn a_directory_that_a_unit_would_read_as_something_else_is_refused() {
        for path in ["bin", "/a b", "/a\"b", "/a$HOME", "/a\nExecStart=/bin/sh"] {
            assert!(units(&Host::of_kim(), &Service::User, Path::new(path)).is_err(), "{path:?}");
        }
        let mut host = Host::of_kim();
        host.home = "/Users/Kim & Co".into();
        let plist = &units(&host, &Service::Launchd, Path::new("/Users/Kim & Co/bin")).unwrap()[0].text;
        assert!(plist.contains("Kim &amp; Co"), "{plist}");
        let log = plist_value(plist, "StandardErrorPath").unwrap();
        assert_eq!(log, "/Users/Kim & Co/Library/Logs/agentd/agentd.log");
    }
}
