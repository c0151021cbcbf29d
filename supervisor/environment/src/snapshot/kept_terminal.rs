//! Keeps a terminal's environment in a file, for a session that a schedule creates later. The file is always sealed,
//! because it has every variable of the terminal.

use std::io;
use std::path::Path;

use super::Snapshots;
use crate::store::StoredSnapshot;

impl Snapshots {
    /// Writes the held environment with this id to a file. Returns `false` if no such environment is held.
    ///
    /// # Errors
    ///
    /// The key is not available, or the file cannot be written.
    pub fn keep_terminal(&self, id: &str, path: &Path) -> io::Result<bool> {
        let Some(taken) = self.terminals.get(Some(id), None) else { return Ok(false) };
        let whole = StoredSnapshot::whole(taken.captured, (&taken.variables, &taken.functions));
        whole.write_sealed(path, &self.slots.vault()).map(|()| true)
    }

    /// Holds the environment of a file again, under the id that it had. Returns `false` if there is no file.
    ///
    /// # Errors
    ///
    /// The file cannot be read or opened.
    pub fn restore_terminal(&self, id: &str, path: &Path) -> io::Result<bool> {
        let Some(stored) = StoredSnapshot::read(path, &self.slots.vault())? else { return Ok(false) };
        self.terminals.put(id, stored.captured, (stored.variables(), stored.functions()));
        Ok(true)
    }
}
