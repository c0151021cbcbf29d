//! Reads files for plugins. A separate process that can be killed resolves a path. The grant is checked, and the
//! resolved file is then opened.

use std::path::Path;
use std::time::Instant;

use agentd_keeper::look::{FailureReason, Kind, LookupAnswer, LookupRequest};
use agentd_plugin_host::{CONTENT, ENTRIES, Failure, FileKind, Metadata, PathFilter, Places};

use super::look::{Looker, Purpose};
use super::{Machine, absolute, before, text};

impl Machine {
    /// Returns the metadata of a file.
    pub async fn inspect(
        &self,
        path: &str,
        places: &Places,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<Metadata, Failure> {
        let (mut looker, resolved) = self.resolved(path, places, allowed, deadline).await?;
        match looker.answer(&LookupRequest::Inspect).await? {
            LookupAnswer::Metadata(seen) => Ok(Metadata {
                path: resolved,
                kind: match seen.kind {
                    Kind::File => FileKind::File,
                    Kind::Directory => FileKind::Directory,
                    Kind::Other => FileKind::Other,
                },
                size: seen.size,
                modified: seen.modified,
            }),
            other => Err(failure("look at", &resolved, other)),
        }
    }

    /// Returns the content of a regular file, at most [`CONTENT`] bytes.
    pub async fn read(
        &self,
        path: &str,
        places: &Places,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let (mut looker, resolved) = self.resolved(path, places, allowed, deadline).await?;
        match looker.answer(&LookupRequest::Read { most: CONTENT as u64 }).await? {
            LookupAnswer::Content(content) => Ok(content.0),
            other => Err(failure("read", &resolved, other)),
        }
    }

    /// Returns the sorted names in a directory, at most [`ENTRIES`]. Names that are not UTF-8 are left out, because
    /// the plugin interface cannot represent them.
    pub async fn entries(
        &self,
        path: &str,
        places: &Places,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<Vec<String>, Failure> {
        let (mut looker, resolved) = self.resolved(path, places, allowed, deadline).await?;
        match looker.answer(&LookupRequest::Entries { most: ENTRIES as u64 }).await? {
            LookupAnswer::Names(names) => {
                Ok(names.into_iter().filter_map(|name| String::from_utf8(name.0).ok()).collect())
            }
            other => Err(failure("list", &resolved, other)),
        }
    }

    /// Resolves the path and checks the grant. Returns the lookup process that has selected the file, and the
    /// resolved path.
    async fn resolved(
        &self,
        path: &str,
        places: &Places,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<(Looker, String), Failure> {
        let asked = absolute(path, places)?;
        let subject = self.subject(&asked, deadline).await;
        let mut looker = self.lookers.open(Purpose::Plugin, subject, before(deadline)).await?;
        let answer = looker.answer(&LookupRequest::Resolve(asked.into())).await?;
        // Only a granted path may reveal that a file does not exist. Otherwise a plugin could test any path.
        let (LookupAnswer::Path(resolved) | LookupAnswer::Absent { path: resolved, .. }) = &answer else {
            return Err(failure("resolve", path, answer));
        };
        let resolved = text(Path::new(resolved.as_os_str()))?.to_owned();
        if !allowed(&resolved) {
            return Err(not_granted("file", path, &resolved));
        }
        if matches!(answer, LookupAnswer::Path(_)) {
            Ok((looker, resolved))
        } else {
            Err(failure("look at", &resolved, answer))
        }
    }
}

pub(super) fn not_granted(what: &str, asked: &str, resolved: &str) -> Failure {
    let which = if asked == resolved { String::new() } else { format!(", which is {resolved:?},") };
    Failure::NotGranted(format!("the {what} {asked:?}{which} is outside of this plugin's grant"))
}

/// Converts the failed answer of a lookup to a failure of the action.
pub(super) fn failure(action: &str, subject: &str, looked: LookupAnswer) -> Failure {
    let (LookupAnswer::Not { why, text } | LookupAnswer::Absent { why, text, .. }) = looked else {
        return Failure::Failed(format!(
            "cannot {action} {subject:?}: internal error: the answer belongs to another request"
        ));
    };
    let text = format!("cannot {action} {subject:?}: {text}");
    match why {
        FailureReason::NotFound => Failure::NotFound(text),
        FailureReason::Unusable | FailureReason::Changed => Failure::Unavailable(text),
        FailureReason::TooLarge => Failure::TooLarge(text),
        FailureReason::Other => Failure::Failed(text),
    }
}
