//! Implements `agentctl man`: prints the man page of agentctl, or writes the pages of all commands into a
//! directory.

use std::fs;
use std::path::Path;

use super::print;
use crate::documents;
use crate::error::Error;

/// Prints agentctl(1), or writes every page into `directory`. Returns the exit status.
pub(super) fn man(directory: Option<&Path>) -> Result<u8, Error> {
    let pages = documents::man_pages().map_err(Error::Setup)?;
    let Some(directory) = directory else {
        let own = pages.iter().find(|page| page.name == "agentctl.1");
        print(own.map_or("", |page| &page.text))?;
        return Ok(0);
    };
    fs::create_dir_all(directory).map_err(|source| Error::Write { path: directory.to_owned(), source })?;
    for page in &pages {
        let path = directory.join(&page.name);
        fs::write(&path, &page.text).map_err(|source| Error::Write { path, source })?;
    }
    Ok(0)
}
