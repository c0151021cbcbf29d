//! Lists the directories in a directory, for a person who types a path.

use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_keeper::look::{LookupAnswer, LookupRequest};
use agentd_plugin_host::Failure;
use async_recursion::async_recursion as boxed;

use super::Machine;
use super::file::failure;
use super::look::Purpose;

/// Directories in a directory, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subdirectories {
    pub paths: Vec<PathBuf>,
    /// Whether there are more.
    pub is_cut: bool,
}

impl Machine {
    /// Lists at most `most` directories in `directory` whose names begin with `prefix`. Names that are not UTF-8 are
    /// left out, because a person cannot type them.
    #[boxed]
    pub async fn subdirectories(
        &self,
        directory: &Path,
        prefix: &str,
        most: u32,
        deadline: Instant,
    ) -> Result<Subdirectories, Failure> {
        let text = directory.to_string_lossy();
        let subject = self.subject(&text, deadline).await;
        let request = LookupRequest::Directories {
            path: directory.as_os_str().into(),
            prefix: prefix.as_bytes().to_vec().into(),
            most: most.into(),
        };
        match self.lookers.ask(Purpose::Session, subject, request, deadline).await?.answer()? {
            LookupAnswer::Directories { names, is_cut } => {
                let names = names.iter().filter_map(agentd_api::ByteString::as_str);
                Ok(Subdirectories { paths: names.map(|name| directory.join(name)).collect(), is_cut })
            }
            other => Err(failure("list", &text, other)),
        }
    }
}
