//! Defines the part of a snapshot that may be stored on disk: the variables that pipelines kept, without secrets.
//! Other variables are stored by name only.
//!
//! The file is sealed if `environment.encryption` is on. A sealed file is bound to its place and cannot be opened
//! under another name.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use agentd_api::ByteString;
use agentd_keeper::protocol::Attributes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Content, Document, Vault, version};
use crate::login::capture::Variables;
use agentd_config::secret::is_secret;
use agentd_host::files::write_json;

/// Name of the file in a session's directory that holds the session's start environment.
pub(crate) const SESSION_SNAPSHOT: &str = "snapshot.json";

/// The stored part of a snapshot. Its file has mode 0600, like every file of this folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredSnapshot {
    pub captured: Timestamp,
    variables: Vec<(String, ByteString)>,
    functions: Vec<(String, ByteString)>,
    /// Names of the variables that are missing because they are secret.
    pub secrets: Vec<String>,
    /// Names of the variables that are missing because no pipeline kept them.
    #[serde(default)]
    pub dropped: Vec<String>,
    /// Process attributes that a child of the shell inherits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Whether the file was of version 1.
    #[serde(skip)]
    pub is_first: bool,
}

/// Version 1 stored every variable that did not look like a secret in clear text, without `content`.
const FIRST: u64 = 1;
const VERSION: u32 = 2;
/// Purpose of sealed files, which the seal includes beside their place.
const NAME: &str = "snapshot";

impl StoredSnapshot {
    /// Keeps the variables and functions whose names are in `names` and that are no secrets.
    pub(crate) fn of(
        captured: Timestamp,
        (variables, functions): (&Variables, &Variables),
        names: &BTreeSet<String>,
    ) -> Self {
        let owned = |(name, value): &(String, Vec<u8>)| (name.clone(), ByteString::from(value.as_slice()));
        let secret = |(name, value): &&(String, Vec<u8>)| is_secret(name, value);
        let is_kept = |(name, _): &&(String, Vec<u8>)| names.contains(name);
        let plain = |all: &Variables| all.iter().filter(|one| is_kept(one) && !secret(one)).map(owned).collect();
        let all = || variables.iter().chain(functions);
        Self {
            captured,
            variables: plain(variables),
            functions: plain(functions),
            secrets: all().filter(secret).map(|(name, _)| name.clone()).collect(),
            dropped: all().filter(|one| !is_kept(one) && !secret(one)).map(|(name, _)| name.clone()).collect(),
            attributes: None,
            is_first: false,
        }
    }

    /// Keeps every variable and function, secrets too. Such a snapshot is only ever written by [`Self::write_sealed`].
    pub(crate) fn whole(captured: Timestamp, (variables, functions): (&Variables, &Variables)) -> Self {
        let all = |all: &Variables| {
            all.iter().map(|(name, value)| (name.clone(), ByteString::from(value.as_slice()))).collect()
        };
        let (secrets, dropped) = (Vec::new(), Vec::new());
        let (variables, functions) = (all(variables), all(functions));
        Self { captured, variables, functions, secrets, dropped, attributes: None, is_first: false }
    }

    pub(crate) fn with_attributes(self, attributes: Option<Attributes>) -> Self {
        Self { attributes, ..self }
    }

    /// Reads the file. Returns `None` if it does not exist.
    pub(crate) fn read(path: &Path, vault: &Vault) -> io::Result<Option<Self>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match version(&bytes)? {
            FIRST => Ok(Some(Self { is_first: true, ..serde_json::from_slice(&bytes)? })),
            found if found == u64::from(VERSION) => match serde_json::from_slice::<Document<Self>>(&bytes)?.content {
                Content::Clear(kept) => Ok(Some(kept)),
                Content::Sealed(sealed) => {
                    Ok(Some(serde_json::from_slice(&vault.open(NAME, &owner(path), &sealed)?)?))
                }
            },
            other => {
                let message = format!("it is of version {other}; this agentd knows {VERSION}");
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
        }
    }

    pub(crate) fn write(&self, path: &Path, vault: &Vault) -> io::Result<()> {
        let _writing = vault.writing();
        self.put(path, vault)
    }

    /// Writes the file sealed, whether or not `environment.encryption` is on.
    pub(crate) fn write_sealed(&self, path: &Path, vault: &Vault) -> io::Result<()> {
        let _writing = vault.writing();
        let sealed = vault.seal_always(NAME, &owner(path), &serde_json::to_vec(self)?)?;
        write_json(path, &Document { version: VERSION, content: Content::<Self>::Sealed(sealed) })
    }

    fn put(&self, path: &Path, vault: &Vault) -> io::Result<()> {
        let sealed = vault.seal(NAME, &owner(path), &serde_json::to_vec(self)?)?;
        let content = sealed.map_or_else(|| Content::Clear(self.clone()), Content::Sealed);
        write_json(path, &Document { version: VERSION, content })
    }

    pub(crate) fn variables(&self) -> Variables {
        self.variables.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect()
    }

    pub(crate) fn functions(&self) -> Variables {
        self.functions.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect()
    }

    /// Returns the number of stored variables and functions.
    pub(crate) fn len(&self) -> usize {
        self.variables.len() + self.functions.len()
    }
}

/// Returns the name to which a file is bound: the names of its directory and of the file. The directory of a
/// session is named by its id.
fn owner(path: &Path) -> String {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{}/{}", path.parent().map(name).unwrap_or_default(), name(path))
}

/// Seals a snapshot's file again with the current key. The caller holds [`Vault::writing`].
pub(crate) fn reseal(path: &Path, vault: &Vault) -> io::Result<()> {
    StoredSnapshot::read(path, vault)?.map_or(Ok(()), |kept| kept.put(path, vault))
}

/// Seals all files of a directory again. Reports whether every file was sealed.
pub(crate) fn reseal_all(directory: &Path, vault: &Vault) -> bool {
    each(directory, |path| {
        let resealed = reseal(path, vault);
        if let Err(error) = &resealed {
            tracing::warn!(file = %path.display(), %error, "cannot seal a stored snapshot with the new key");
        }
        resealed.is_ok()
    })
}

/// Seals all files of a cache again. Removes a file that cannot be sealed, because a cache can be rebuilt.
pub(crate) fn reseal_or_remove(directory: &Path, vault: &Vault) {
    each(directory, |path| reseal(path, vault).is_ok() || std::fs::remove_file(path).is_ok());
}

fn each(directory: &Path, one: impl Fn(&Path) -> bool) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let documents = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    documents.filter(|path| !one(path)).count() == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use agentd_config::{Encryption, KeySource};

    fn vault(state: &Path, enabled: bool) -> Vault {
        let key = KeySource::Generated;
        Vault::new(&Encryption { enabled, key, previous: Vec::new() }, None, state)
    }

    fn pair(name: &str, value: &[u8]) -> (String, Vec<u8>) {
        (name.to_owned(), value.to_vec())
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn kept_variables_are_restored_exactly_and_others_by_name_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot.json");
        for encrypted in [false, true] {
            let vault = vault(directory.path(), encrypted);
            let _ = std::fs::remove_file(&path);
            assert_eq!(StoredSnapshot::read(&path, &vault).unwrap(), None);
            let plain = [pair("A", b"one\ntwo \xff"), pair("EMPTY", b"")];
            let functions = vec![pair("BASH_FUNC_module%%", b"() {  echo;\n}")];
            let others = [
                pair("API_KEY", b"hunter22"),
                pair("DATABASE_URL", b"postgres://me:hunter22@db/x"),
                pair("MY_THING", b"hunter22"),
            ];
            let variables = [&plain[..], &others].concat();
            let keep = names(&["A", "EMPTY", "API_KEY", "DATABASE_URL", "BASH_FUNC_module%%"]);
            let kept = StoredSnapshot::of(Timestamp::UNIX_EPOCH, (&variables, &functions), &keep);
            kept.write(&path, &vault).unwrap();
            let read = StoredSnapshot::read(&path, &vault).unwrap().unwrap();
            assert_eq!(read, kept);
            assert_eq!((read.variables(), read.functions()), (plain.to_vec(), functions));
            assert_eq!(read.secrets, ["API_KEY", "DATABASE_URL"]);
            assert_eq!(read.dropped, ["MY_THING"]);
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("hunter22") && text.contains("EMPTY") != encrypted, "{text}");

            std::fs::write(&path, text.replace("\"version\": 2", "\"version\": 3")).unwrap();
            assert!(StoredSnapshot::read(&path, &vault).unwrap_err().to_string().contains("version 3"));
        }
    }

    #[test]
    fn a_sealed_snapshot_opens_only_in_its_place_and_with_its_key() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let session = directory.path().join(name);
            std::fs::create_dir_all(&session).unwrap();
            session.join(SESSION_SNAPSHOT)
        };
        let vault = vault(directory.path(), true);
        let variables = vec![pair("A", b"one")];
        let kept = StoredSnapshot::of(Timestamp::UNIX_EPOCH, (&variables, &Vec::new()), &names(&["A"]));
        kept.write(&at("a1"), &vault).unwrap();
        std::fs::copy(at("a1"), at("b2")).unwrap();
        assert!(StoredSnapshot::read(&at("b2"), &vault).is_err(), "it is another session's");

        vault.renew();
        let before = std::fs::read(at("a1")).unwrap();
        reseal(&at("a1"), &vault).unwrap();
        assert_ne!(std::fs::read(at("a1")).unwrap(), before);
        assert_eq!(StoredSnapshot::read(&at("a1"), &vault).unwrap(), Some(kept));
    }

    #[test]
    fn a_file_of_the_first_version_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot.json");
        let text = r#"{"version": 1, "captured": "2026-01-01T00:00:00Z", "variables": [["A", "one"]],
                       "functions": [], "secrets": ["API_KEY"]}"#;
        std::fs::write(&path, text).unwrap();
        let kept = StoredSnapshot::read(&path, &vault(directory.path(), false)).unwrap().unwrap();
        assert_eq!((kept.variables(), kept.secrets), (vec![pair("A", b"one")], vec!["API_KEY".to_owned()]));
    }
}
