//! The machine of the daemon: its paths are those of this machine, or of the machine of `--host`.

use std::io;
use std::path::{Path, PathBuf};

use agentd_client::Client;

use crate::error::Error;

/// Machine on which the daemon and its agents run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Machine {
    This,
    /// Another machine, by the name that the user gave.
    Other(String),
}

impl Machine {
    /// Returns the machine of a client's daemon.
    pub(crate) fn of(client: &Client) -> Self {
        client.way().machine().map_or(Self::This, |host| Self::Other(host.to_owned()))
    }

    /// Returns the name of another machine.
    pub(crate) fn other(&self) -> Option<&str> {
        match self {
            Self::This => None,
            Self::Other(host) => Some(host),
        }
    }

    /// Makes a path absolute, because the daemon has another working directory. Only the daemon refuses a missing path.
    /// A path of another machine must be absolute already, and stays unchanged.
    pub(crate) fn absolute(&self, path: &Path) -> Result<PathBuf, Error> {
        let absolute = match self {
            Self::This => path.canonicalize().or_else(|_| std::path::absolute(path)).map_err(|source| {
                if source.kind() == io::ErrorKind::NotFound {
                    let detail = "the current directory was removed".to_owned();
                    let hint = "change to a directory that exists, or name one by --dir".to_owned();
                    return Error::Usage { detail, hint };
                }
                Error::File { path: path.to_owned(), source }
            })?,
            Self::Other(_) if path.is_absolute() => path.to_owned(),
            Self::Other(host) => {
                return Err(Error::Usage {
                    detail: format!("{:?} is relative to a directory of this machine", path.display().to_string()),
                    hint: format!("give the absolute path on {host}"),
                });
            }
        };
        if absolute.to_str().is_none() {
            let shown = absolute.as_os_str().as_encoded_bytes().escape_ascii();
            let detail = format!("the name of the directory \"{shown}\" is not UTF-8");
            return Err(Error::Usage { detail, hint: "rename it, or choose another directory".to_owned() });
        }
        Ok(absolute)
    }

    /// Returns the directory of a new session: the given one, or on this machine the current one.
    pub(crate) fn directory(&self, given: Option<&Path>) -> Result<PathBuf, Error> {
        match (self, given) {
            (Self::Other(host), None) => Err(Error::Usage {
                detail: format!("the current directory of this machine is none of {host}"),
                hint: format!("give --dir with an absolute path on {host}"),
            }),
            (_, given) => self.absolute(given.unwrap_or(Path::new("."))),
        }
    }

    /// Refuses, with another machine, `what` that only this machine has.
    pub(crate) fn only_this(&self, what: &str) -> Result<(), Error> {
        match self {
            Self::This => Ok(()),
            Self::Other(host) => Err(Error::Usage {
                detail: format!("{what} is a matter of this machine, and --host names {host}"),
                hint: format!("log in to {host} and run the command there"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_another_machine_is_absolute_and_stays_as_it_is() {
        let other = Machine::Other("lab".to_owned());
        assert_eq!(other.absolute(Path::new("/proc/self/../x")).unwrap(), Path::new("/proc/self/../x"));
        for wrong in ["", ".", "src", "~/src"] {
            let error = other.absolute(Path::new(wrong)).unwrap_err();
            assert!(matches!(&error, Error::Usage { hint, .. } if hint.contains("lab")), "{error:?}");
        }
        assert!(other.directory(None).is_err());
        assert_eq!(other.directory(Some(Path::new("/srv"))).unwrap(), Path::new("/srv"));
        assert!(other.only_this("the service").is_err());
    }

    #[test]
    fn a_path_of_this_machine_is_relative_to_the_current_directory() {
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(Machine::This.directory(None).unwrap(), here);
        assert_eq!(Machine::This.absolute(Path::new("none")).unwrap(), here.join("none"));
    }
}
