//! Reads the identity of a session's directory: the numbers by which it is recognised, whatever its path.

use std::path::Path;
use std::time::Instant;

use agentd_api::event::PlaceHost;
use agentd_api::facts::DirectoryIdentity;
use agentd_keeper::look::{LookupAnswer, LookupRequest};
use agentd_plugin_host::Failure;
use async_recursion::async_recursion as boxed;

use super::Machine;
use super::file::failure;
use super::look::{LookupResult, Purpose};
use super::path_state::{mount_of, subject};

/// A directory that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExaminedDirectory {
    /// Absent if its file system has no lasting numbers.
    pub identity: Option<DirectoryIdentity>,
    /// Whether git may find a repository from this directory.
    pub may_have_repository: bool,
}

impl Machine {
    /// Returns facts about the machine and the user of its programs.
    ///
    /// # Errors
    ///
    /// The machine does not answer until the deadline. The message has the words of the client of a place.
    #[boxed]
    pub async fn host(&self, deadline: Instant) -> Result<PlaceHost, Failure> {
        let subject = "the host".to_owned();
        match self.lookers.ask(Purpose::Session, subject, LookupRequest::Host, deadline).await?.answer()? {
            LookupAnswer::Host(host) => Ok(*host),
            other => Err(failure("examine", "the host", other)),
        }
    }

    /// Examines a directory. Returns `None` if it cannot be examined.
    #[boxed]
    pub async fn examine_directory(&self, path: &Path, deadline: Instant) -> Option<ExaminedDirectory> {
        let mounts = self.mounted(deadline).await;
        let (subject, look) = (subject(path, &mounts), LookupRequest::Identity(path.as_os_str().into()));
        if self.lookers.hanging_message(&subject).is_some() {
            return None;
        }
        let mut looker = self.lookers.open(Purpose::Session, subject, deadline).await.ok()?;
        match looker.ask(&look).await {
            Ok(LookupResult::Answer(LookupAnswer::Identity { path, identity, may_have_repository })) => {
                let mount = mount_of(Path::new(path.as_os_str()), &mounts);
                // A program behind FUSE invents the numbers, often other ones at each mount.
                let is_invented = mount.is_some_and(|mount| mount.kind.starts_with("fuse") && mount.kind != "fuseblk");
                Some(ExaminedDirectory { identity: (!is_invented).then_some(identity), may_have_repository })
            }
            _ => None,
        }
    }
}
