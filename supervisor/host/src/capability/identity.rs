//! Reads the identity of a session's directory: the numbers by which it is recognised, whatever its path.

use std::path::Path;
use std::time::Instant;

use agentd_api::facts::DirectoryIdentity;
use agentd_keeper::look::{LookupAnswer, LookupRequest};
use async_recursion::async_recursion as boxed;

use super::Machine;
use super::look::{LookupResult, Purpose};
use super::path_state::{mount_of, subject};

impl Machine {
    /// Returns the identity of a directory that answers; `None` inside if its file system has no lasting numbers. The
    /// outer `None` means that the directory cannot be examined.
    #[boxed]
    pub async fn directory_identity(&self, path: &Path, deadline: Instant) -> Option<Option<DirectoryIdentity>> {
        let mounts = self.mounted(deadline).await;
        let (subject, look) = (subject(path, &mounts), LookupRequest::Identity(path.as_os_str().into()));
        if self.lookers.hanging_message(&subject).is_some() {
            return None;
        }
        let mut looker = self.lookers.open(Purpose::Session, subject, deadline).await.ok()?;
        match looker.ask(&look).await {
            Ok(LookupResult::Answer(LookupAnswer::Identity { path, identity })) => {
                let mount = mount_of(Path::new(path.as_os_str()), &mounts);
                // A program behind FUSE invents the numbers, often other ones at each mount.
                let is_invented = mount.is_some_and(|mount| mount.kind.starts_with("fuse") && mount.kind != "fuseblk");
                Some((!is_invented).then_some(identity))
            }
            _ => None,
        }
    }
}
