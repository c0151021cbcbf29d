//! The machines that the user has named: the file `hosts.toml` in the directory of agentd's configuration.
//!
//! ```toml
//! default = "lab"
//!
//! [hosts.lab]
//! address = "kim@lab.example"
//! program = "/opt/agentd/bin/agentctl"
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml_edit::{DocumentMut, Item, Table, value};

use crate::{RemoteError, SshHost};

/// Name of the machine on which `agentctl` runs.
pub const THIS: &str = "this";
/// Maximum length of a name, in bytes.
pub(crate) const LONGEST_NAME: usize = 64;

/// Content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// Name of the machine of a command without `--host`.
    pub default: Option<String>,
    #[serde(default)]
    pub hosts: BTreeMap<String, NamedHost>,
}

/// A machine that ssh reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedHost {
    /// `[USER@]MACHINE` or `ssh://[USER@]MACHINE[:PORT]`.
    pub address: String,
    /// Path of `agentctl` on the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Path of the control socket on the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

impl NamedHost {
    /// Returns the address for ssh. It is shown to the user as `name`.
    fn target(&self, name: &str) -> Result<SshHost, RemoteError> {
        let host = SshHost::parse(&self.address)?.called(name);
        Ok(host.program(self.program.clone()).socket(self.socket.clone()))
    }
}

impl Hosts {
    /// Returns the path of the file: in `XDG_CONFIG_HOME`, else in `.config` of `home`.
    pub fn file(configuration: Option<PathBuf>, home: impl FnOnce() -> io::Result<PathBuf>) -> io::Result<PathBuf> {
        let directory = match configuration.filter(|path| path.is_absolute()) {
            Some(directory) => directory,
            None => home()?.join(".config"),
        };
        Ok(directory.join("agentd/hosts.toml"))
    }

    /// Reads the file. Without a file no machine is named.
    pub fn read(file: &Path) -> Result<Self, RemoteError> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Self::default());
            }
            Err(source) => return Err(RemoteError::Read { path: file.to_owned(), source }),
        };
        let hosts: Self = toml::from_str(&text).map_err(|error| wrong(file, &error.to_string()))?;
        for (name, host) in &hosts.hosts {
            check_name(name).and_then(|()| host.target(name)).map_err(|error| wrong(file, &error.to_string()))?;
        }
        match &hosts.default {
            Some(name) if name != THIS && !hosts.hosts.contains_key(name) => {
                Err(wrong(file, &format!("default = {name:?} names no machine of the file")))
            }
            _ => Ok(hosts),
        }
    }

    /// Returns the machine that the user gave, by its name or its address. `None` for this machine.
    pub fn find(&self, given: &str) -> Result<Option<SshHost>, RemoteError> {
        match self.hosts.get(given) {
            _ if given == THIS => Ok(None),
            Some(host) => host.target(given).map(Some),
            None => SshHost::parse(given).map(Some),
        }
    }

    /// Returns the named machines in the order of their names, each with its name.
    pub fn machines(&self) -> Result<Vec<(String, SshHost)>, RemoteError> {
        self.hosts.iter().map(|(name, host)| Ok((name.clone(), host.target(name)?))).collect()
    }

    /// Adds a machine to the file, or changes it.
    pub fn add(file: &Path, name: &str, host: &NamedHost) -> Result<(), RemoteError> {
        check_name(name)?;
        host.target(name)?;
        edit(file, |document| {
            let hosts = document.entry("hosts").or_insert_with(|| {
                let mut table = Table::new();
                table.set_implicit(true);
                Item::Table(table)
            });
            let mut entry = Table::new();
            entry["address"] = value(&host.address);
            if let Some(program) = &host.program {
                entry["program"] = value(program);
            }
            if let Some(socket) = &host.socket {
                entry["socket"] = value(socket.display().to_string());
            }
            hosts[name] = Item::Table(entry);
        })
    }

    /// Removes a machine from the file. If it is the default, this machine becomes the default.
    pub fn remove(file: &Path, name: &str) -> Result<(), RemoteError> {
        known(file, name)?;
        edit(file, |document| {
            if let Some(hosts) = document.get_mut("hosts").and_then(Item::as_table_like_mut) {
                hosts.remove(name);
            }
            if document.get("default").and_then(Item::as_str) == Some(name) {
                document.remove("default");
            }
        })
    }

    /// Sets the machine of commands without `--host`.
    pub fn set_default(file: &Path, name: &str) -> Result<(), RemoteError> {
        if name != THIS {
            known(file, name)?;
        }
        edit(file, |document| {
            if name == THIS {
                document.remove("default");
            } else {
                document["default"] = value(name);
            }
        })
    }
}

fn wrong(file: &Path, detail: &str) -> RemoteError {
    RemoteError::File { path: file.to_owned(), detail: detail.trim_end().to_owned() }
}

/// Checks the name of a machine. An address has other characters, or is a name too.
fn check_name(name: &str) -> Result<(), RemoteError> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    let begins = name.starts_with(|char: char| char.is_ascii_alphanumeric());
    if begins && name.len() <= LONGEST_NAME && name.chars().all(is_plain) && name != THIS {
        return Ok(());
    }
    Err(RemoteError::Name { name: name.to_owned() })
}

fn known(file: &Path, name: &str) -> Result<(), RemoteError> {
    let hosts = Hosts::read(file)?;
    if hosts.hosts.contains_key(name) {
        return Ok(());
    }
    Err(RemoteError::Unknown { name: name.to_owned() })
}

/// Changes the file as a whole, and keeps its comments. A reader sees the old or the new content.
fn edit(file: &Path, change: impl FnOnce(&mut DocumentMut)) -> Result<(), RemoteError> {
    Hosts::read(file)?;
    let failed = |source| RemoteError::Write { path: file.to_owned(), source };
    // A link stays, and its target changes.
    let file = &file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut document: DocumentMut = text.parse().map_err(|error| wrong(file, &format!("{error}")))?;
    change(&mut document);
    let directory = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut written = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    written.write_all(document.to_string().as_bytes()).map_err(failed)?;
    written.as_file().sync_all().map_err(failed)?;
    written.persist(file).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab() -> NamedHost {
        NamedHost { address: "kim@lab".to_owned(), program: None, socket: Some("/run/a".into()) }
    }

    #[test]
    fn machines_are_added_changed_and_removed_and_comments_stay() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("agentd/hosts.toml");
        assert_eq!(Hosts::read(&file).unwrap(), Hosts::default());
        Hosts::add(&file, "lab", &lab()).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "[hosts.lab]\naddress = \"kim@lab\"\nsocket = \"/run/a\"\n");
        std::fs::write(&file, format!("{text}\n# mine\n[hosts.other]\naddress = \"other\"\n")).unwrap();
        Hosts::set_default(&file, "lab").unwrap();
        Hosts::add(&file, "farm", &NamedHost { address: "ssh://farm:22".into(), ..lab() }).unwrap();
        let hosts = Hosts::read(&file).unwrap();
        assert_eq!((hosts.default.as_deref(), hosts.hosts.len()), (Some("lab"), 3));
        assert_eq!(hosts.find("lab").unwrap().unwrap().to_string(), "lab");
        assert_eq!(hosts.find("kim@else").unwrap().unwrap().to_string(), "kim@else");
        assert_eq!(hosts.find(THIS).unwrap(), None);
        let names: Vec<String> = hosts.machines().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["farm", "lab", "other"]);
        Hosts::remove(&file, "lab").unwrap();
        let hosts = Hosts::read(&file).unwrap();
        assert_eq!((hosts.default.as_deref(), hosts.hosts.len()), (None, 2));
        assert!(std::fs::read_to_string(&file).unwrap().contains("# mine"));
    }

    #[test]
    fn wrong_names_and_files_are_refused_and_change_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts.toml");
        for name in ["", THIS, "a b", "-x", "a/b", "kim@lab", &"n".repeat(65)] {
            assert!(matches!(Hosts::add(&file, name, &lab()), Err(RemoteError::Name { .. })), "{name:?}");
        }
        assert!(Hosts::add(&file, "lab", &NamedHost { address: "-x".into(), ..lab() }).is_err());
        assert!(Hosts::remove(&file, "lab").is_err() && Hosts::set_default(&file, "lab").is_err() && !file.exists());
        for text in
            ["hosts = 1", "default = \"lab\"", "[hosts.lab]\nadress = \"x\"", "[hosts.this]\naddress = \"x\"", "x ="]
        {
            std::fs::write(&file, text).unwrap();
            let error = Hosts::read(&file).unwrap_err();
            assert!(error.to_string().contains("hosts.toml"), "{error}");
            assert!(Hosts::add(&file, "farm", &lab()).is_err(), "{text}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
