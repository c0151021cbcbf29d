//! Defines the installed files: the programs beside this program, the units, the completion scripts and the man
//! pages.
//!
//! The units of the repository are part of this program. They name the programs' default directory, which is
//! replaced if another directory is chosen. Completion scripts and man pages are generated
//! ([`crate::documents`]). Only agentd(8) comes from the agentd of the installed build.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::ServiceError;
use super::host::Host;
use super::manager::Service;
use crate::args::Shell;
use crate::documents;

/// Units, with their paths below `units/`.
const UNITS: &[(&str, &str, bool)] = include!(concat!(env!("OUT_DIR"), "/units.rs"));

/// Programs of one build.
pub(crate) const PROGRAMS: [&str; 3] = ["agentd", "agentd-keeper", "agentctl"];

/// Unit, completion script or man page to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Returns the units of a service whose programs are in this directory.
pub(crate) fn units(host: &Host, service: &Service, programs: &Path) -> Result<Vec<TextFile>, ServiceError> {
    let of = |from: &'static str| {
        UNITS.iter().filter_map(move |(name, text, _)| Some((name.strip_prefix(from)?.strip_prefix('/')?, *text)))
    };
    // With the default directory, the unit equals the repository's and fits every home.
    let elsewhere = programs != service.default_programs(host);
    let systemd = |directory: PathBuf, from: &'static str, only: &'static str| {
        let units = of(from).filter(move |(name, _)| name.ends_with(only));
        units.map(move |(name, text)| {
            let text = if elsewhere { for_systemd(text, programs)? } else { text.to_owned() };
            Ok(TextFile { path: directory.join(name), text })
        })
    };
    match service {
        Service::User => systemd(host.home.join(".config/systemd/user"), "systemd/user", "").collect(),
        Service::System { .. } => systemd(host.path("/etc/systemd/system"), "systemd/system", "")
            // The sessions, and their slice, are units of the users' own managers.
            .chain(systemd(host.path("/etc/systemd/user"), "systemd/user", ".slice"))
            .collect(),
        Service::Launchd => of("launchd")
            .map(|(name, text)| {
                let path = host.home.join("Library/LaunchAgents").join(name);
                Ok(TextFile { path, text: for_launchd(text, programs, &host.home)? })
            })
            .collect(),
    }
}

/// Returns the completion scripts and the man pages, with the paths where shells and man(1) look for them.
///
/// `agentd_page` is the text of agentd(8), if the build to install prints it.
pub(crate) fn documents(
    host: &Host,
    service: &Service,
    agentd_page: Option<String>,
) -> Result<Vec<TextFile>, ServiceError> {
    let (share, fish) = match service {
        Service::System { .. } => {
            let share = host.path("/usr/local/share");
            let fish = share.join("fish/vendor_completions.d/agentctl.fish");
            (share, fish)
        }
        Service::User | Service::Launchd => {
            (host.home.join(".local/share"), host.home.join(".config/fish/completions/agentctl.fish"))
        }
    };
    // The data directory of nushell, which differs on macOS (`$nu.vendor-autoload-dirs`).
    let nushell = match service {
        Service::Launchd => host.home.join("Library/Application Support/nushell"),
        Service::User | Service::System { .. } => share.join("nushell"),
    };
    let mut files = Vec::new();
    for (shell, path) in [
        (Shell::Bash, share.join("bash-completion/completions/agentctl")),
        (Shell::Zsh, share.join("zsh/site-functions/_agentctl")),
        (Shell::Fish, fish),
        (Shell::Nushell, nushell.join("vendor/autoload/agentctl.nu")),
        (Shell::Elvish, share.join("elvish/lib/agentctl.elv")),
    ] {
        files.push(TextFile { path, text: documents::completions(shell).map_err(ServiceError::Documents)? });
    }
    let man = share.join("man");
    for page in documents::man_pages().map_err(ServiceError::Documents)? {
        files.push(TextFile { path: man.join("man1").join(page.name), text: page.text });
    }
    files.extend(agentd_page.map(|text| TextFile { path: man.join("man8/agentd.8"), text }));
    Ok(files)
}

/// Replaces the directory of the programs in a unit's commands, which is `%h/.local/bin/` or `/usr/local/bin/`.
fn for_systemd(text: &str, programs: &Path) -> Result<String, ServiceError> {
    let directory = plain(programs)?;
    // systemd refuses a program whose path contains one of these characters, even in quotes.
    if directory.contains(['"', '\'', '\\']) {
        return Err(ServiceError::Directory { path: programs.to_owned() });
    }
    let lines = text.lines().map(|line| for_command(line, directory).unwrap_or_else(|| line.to_owned()));
    Ok(lines.map(|line| line + "\n").collect())
}

/// Rewrites a line of a unit that runs a program of agentd. Returns `None` for other lines.
fn for_command(line: &str, directory: &str) -> Option<String> {
    let (key, command) = line.split_once('=').filter(|(key, _)| key.starts_with("Exec"))?;
    let (program, arguments) = command.split_once(' ')?;
    let name = program.strip_prefix("%h/.local/bin/").or_else(|| program.strip_prefix("/usr/local/bin/"))?;
    // systemd.unit(5): `%` begins a specifier. A dollar is literal only in the path of a program
    // (systemd.service(5)).
    let path = format!("{directory}/{name}").replace('%', "%%");
    let path = if path.contains(char::is_whitespace) { format!("\"{path}\"") } else { path };
    Some(format!("{key}={path} {arguments}"))
}

/// Writes out the home directory, because launchd expands nothing.
fn for_launchd(text: &str, programs: &Path, home: &Path) -> Result<String, ServiceError> {
    let xml = |path: &Path| Ok(plain(path)?.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"));
    Ok(text.replace("@HOME@/.local/bin", &xml(programs)?).replace("@HOME@", &xml(home)?))
}

/// Returns the first string under a key of a property list, at any depth.
pub(crate) fn plist_value(text: &str, key: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<key>{key}</key>"))?;
    let (value, _) = rest.trim_start().strip_prefix("<string>")?.split_once("</string>")?;
    Some(value.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

/// Returns an absolute path in UTF-8 that fits into one line of a unit.
fn plain(path: &Path) -> Result<&str, ServiceError> {
    let refused = || ServiceError::Directory { path: path.to_owned() };
    let text = path.to_str().filter(|_| path.is_absolute()).ok_or_else(refused)?;
    if text.contains(char::is_control) { Err(refused()) } else { Ok(text.trim_end_matches('/')) }
}

/// Returns the hexadecimal SHA-256.
pub(crate) fn digest(bytes: &[u8]) -> String {
    agentd_api::hex(&Sha256::digest(bytes))
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
    fn a_unit_names_programs_in_a_directory_with_spaces_percents_and_dollars_as_systemd_reads_them() {
        let place = tempfile::tempdir().unwrap();
        let programs = place.path().join("my programs/$HOME/${A}/100%h#;/größe");
        std::fs::create_dir_all(&programs).unwrap();
        for name in PROGRAMS {
            std::fs::copy("/bin/true", programs.join(name)).unwrap();
        }
        for service in [Service::User, Service::System { user: None }] {
            let units = units(&Host::of_kim(), &service, &programs).unwrap();
            let unit = units.iter().find(|unit| unit.path.extension().is_some_and(|kind| kind == "service")).unwrap();
            let commands: Vec<&str> = unit.text.lines().filter(|line| line.starts_with("Exec")).collect();
            let path = |name: &str| programs.join(name).display().to_string().replace('%', "%%");
            let (start, reload) = (path("agentd"), path("agentctl"));
            let expected = [format!("ExecStart=\"{start}\" serve"), format!("ExecReload=\"{reload}\" reload")];
            assert_eq!(commands, expected);
            verified(place.path(), &expected);
        }
    }

    /// Verifies that systemd finds the programs of these commands, if systemd is installed.
    fn verified(place: &Path, commands: &[String]) {
        let unit = place.join("probe.service");
        std::fs::write(&unit, format!("[Service]\nType=exec\n{}\n", commands.join("\n"))).unwrap();
        let verify = std::process::Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output();
        match verify {
            Ok(verify) => {
                let said = String::from_utf8_lossy(&verify.stderr).into_owned();
                assert!(verify.status.success() && !said.contains("probe.service"), "{said}");
            }
            Err(error) => {
                let required = std::env::var("AGENTD_TEST_REQUIRE").unwrap_or_default();
                assert!(!required.split(',').any(|name| name == "systemd"), "systemd-analyze: {error}");
            }
        }
    }

    #[test]
    fn a_directory_that_a_unit_would_read_as_something_else_is_refused() {
        for path in ["bin", "/a\"b", "/a'b", "/a\\b", "/a\nExecStart=/bin/sh", "/a\tb"] {
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
