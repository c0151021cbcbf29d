//! Stores the demo agent's conversations: one file of JSON lines per conversation.
//!
//! A reader skips an incomplete line, which a kill can leave behind. The next append ends that line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    role: String,
    pub(super) text: String,
}

impl Entry {
    pub(super) fn user(text: &str) -> Self {
        Self { role: "user".into(), text: text.into() }
    }

    pub(super) fn agent(text: &str) -> Self {
        Self { role: "agent".into(), text: text.into() }
    }

    pub(super) fn is_user(&self) -> bool {
        self.role == "user"
    }
}

pub(super) struct Store {
    directory: PathBuf,
}

impl Store {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Creates a conversation and returns its id.
    pub(super) fn create(&self) -> io::Result<String> {
        fs::create_dir_all(&self.directory)?;
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let id = format!("demo-{:x}-{:x}", now.as_nanos(), std::process::id());
            match File::create_new(self.path(&id)) {
                Ok(_) => return Ok(id),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the messages of a conversation; `None` if the conversation does not exist.
    pub(super) fn read(&self, id: &str) -> io::Result<Option<Vec<Entry>>> {
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Ok(None); // an id is never a path
        }
        match fs::read(self.path(id)) {
            Ok(bytes) => {
                Ok(Some(bytes.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Appends to a conversation that [`Self::create`] created.
    pub(super) fn append(&self, id: &str, entry: &Entry) -> io::Result<()> {
        let mut file = OpenOptions::new().read(true).append(true).open(self.path(id))?;
        let mut bytes = serde_json::to_vec(entry)?;
        bytes.push(b'\n');
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                bytes.insert(0, b'\n');
            }
        }
        file.write_all(&bytes)
    }

    /// Formats an error of the store for the user.
    pub(super) fn trouble(&self, error: &io::Error) -> String {
        format!("cannot keep the conversation in {}: {error}", self.directory.display())
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.jsonl"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_a_kill_tore_costs_that_line_only() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().into());
        let id = store.create().unwrap();
        store.append(&id, &Entry::user("one")).unwrap();
        let mut file = OpenOptions::new().append(true).open(store.path(&id)).unwrap();
        file.write_all(br#"{"role":"agent","te"#).unwrap();
        store.append(&id, &Entry::user("two")).unwrap();
        assert_eq!(store.read(&id).unwrap(), Some(vec![Entry::user("one"), Entry::user("two")]));
    }

    #[test]
    fn an_id_is_never_a_path() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("secret.jsonl"), b"").unwrap();
        let store = Store::new(directory.path().join("inner"));
        assert_eq!(store.read("../secret").unwrap(), None);
    }
}
