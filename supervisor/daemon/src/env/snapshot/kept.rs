//! The part of a snapshot that may be on the disk: everything but secrets, of which there are the names.

use std::io;
use std::path::{Path, PathBuf};

use agentd_api::ByteString;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Variables;
use crate::env::secret::is_secret;
use crate::store;

/// A snapshot without its secrets. Mode 0600, as everything that `store` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    version: u32,
    pub(crate) captured: Timestamp,
    variables: Vec<(String, ByteString)>,
    functions: Vec<(String, ByteString)>,
    /// Names of the variables that are missing because they are secret.
    pub(crate) secrets: Vec<String>,
    /// Of a login shell: the files that made it.
    #[serde(default)]
    pub(crate) files: Vec<PathBuf>,
}

const VERSION: u32 = 1;

impl Kept {
    pub(crate) fn of(captured: Timestamp, variables: &Variables, functions: &Variables, files: Vec<PathBuf>) -> Self {
        let owned = |(name, value): &(String, Vec<u8>)| (name.clone(), ByteString::from(value.as_slice()));
        let secret = |(name, value): &&(String, Vec<u8>)| is_secret(name, value);
        let plain = |all: &Variables| all.iter().filter(|one| !secret(one)).map(owned).collect();
        Self {
            version: VERSION,
            captured,
            variables: plain(variables),
            functions: plain(functions),
            secrets: variables.iter().chain(functions).filter(secret).map(|(name, _)| name.clone()).collect(),
            files,
        }
    }

    /// `None` where there is none.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let kept: Self = serde_json::from_slice(&bytes)?;
        if kept.version != VERSION {
            let message = format!("it is of version {}; this agentd knows {VERSION}", kept.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(Some(kept))
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        store::write_json(path, self)
    }

    pub(crate) fn variables(&self) -> Variables {
        self.variables.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect()
    }

    pub(crate) fn functions(&self) -> Variables {
        self.functions.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_kept_comes_back_to_the_byte_and_of_a_secret_there_is_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot.json");
        assert_eq!(Kept::read(&path).unwrap(), None);
        let pair = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
        let plain = [pair("A", b"one\ntwo \xff"), pair("EMPTY", b"")];
        let functions = vec![pair("BASH_FUNC_module%%", b"() {  echo;\n}")];
        let variables =
            [&plain[..], &[pair("API_KEY", b"hunter22"), pair("DATABASE_URL", b"postgres://me:hunter22@db/x")]]
                .concat();
        let kept = Kept::of(Timestamp::UNIX_EPOCH, &variables, &functions, vec!["/etc/profile".into()]);
        kept.write(&path).unwrap();
        let read = Kept::read(&path).unwrap().unwrap();
        assert_eq!(read, kept);
        assert_eq!((read.variables(), read.functions()), (plain.to_vec(), functions));
        assert_eq!(read.secrets, ["API_KEY", "DATABASE_URL"]);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!std::fs::read_to_string(&path).unwrap().contains("hunter22"));

        std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace("\"version\": 1", "\"version\": 2"))
            .unwrap();
        assert!(Kept::read(&path).unwrap_err().to_string().contains("version 2"));
    }
}
