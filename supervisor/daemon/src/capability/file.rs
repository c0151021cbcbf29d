//! Files, to read: resolved, shown to who may refuse, and opened as they were resolved, in a process that can be thrown away.

use std::path::Path;
use std::time::Instant;

use agentd_keeper::look::{Kind, Look, Looked, Why};
use agentd_plugins::{Allowed, CONTENT, ENTRIES, Failure, FileKind, Metadata, Places};

use super::look::{Eye, Lot};
use super::{Machine, absolute, before, text};

impl Machine {
    /// What a path is.
    pub async fn inspect(
        &self,
        path: &str,
        places: &Places,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<Metadata, Failure> {
        let (mut eye, resolved) = self.resolved(path, places, allowed, deadline).await?;
        match eye.answer(&Look::Inspect).await? {
            Looked::Metadata(seen) => Ok(Metadata {
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

    /// A regular file's content, at most [`CONTENT`] bytes.
    pub async fn read(
        &self,
        path: &str,
        places: &Places,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let (mut eye, resolved) = self.resolved(path, places, allowed, deadline).await?;
        match eye.answer(&Look::Read { most: CONTENT as u64 }).await? {
            Looked::Content(content) => Ok(content.0),
            other => Err(failure("read", &resolved, other)),
        }
    }

    /// The names in a directory, sorted, at most [`ENTRIES`]. Those that are not UTF-8 cannot be spoken of, and are left out.
    pub async fn entries(
        &self,
        path: &str,
        places: &Places,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<Vec<String>, Failure> {
        let (mut eye, resolved) = self.resolved(path, places, allowed, deadline).await?;
        match eye.answer(&Look::Entries { most: ENTRIES as u64 }).await? {
            Looked::Names(names) => Ok(names.into_iter().filter_map(|name| String::from_utf8(name.0).ok()).collect()),
            other => Err(failure("list", &resolved, other)),
        }
    }

    /// What the path is with everything resolved, and who is ready to look at that.
    async fn resolved(
        &self,
        path: &str,
        places: &Places,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<(Eye, String), Failure> {
        let asked = absolute(path, places)?;
        let subject = self.subject(&asked, deadline).await;
        let mut eye = self.looks.open(Lot::Asked, subject, before(deadline)).await?;
        let looked = eye.answer(&Look::Resolve(asked.into())).await?;
        // That there is no file is told only of what may be read: else it could be found out of any.
        let (Looked::Path(resolved) | Looked::Absent { path: resolved, .. }) = &looked else {
            return Err(failure("resolve", path, looked));
        };
        let resolved = text(Path::new(resolved.as_os_str()))?.to_owned();
        if !allowed(&resolved) {
            return Err(not_granted("file", path, &resolved));
        }
        if matches!(looked, Looked::Path(_)) { Ok((eye, resolved)) } else { Err(failure("look at", &resolved, looked)) }
    }
}

pub(super) fn not_granted(what: &str, asked: &str, resolved: &str) -> Failure {
    let which = if asked == resolved { String::new() } else { format!(", which is {resolved:?},") };
    Failure::NotGranted(format!("the {what} {asked:?}{which} is outside of what this plugin is granted"))
}

/// Why something was not seen.
pub(super) fn failure(action: &str, subject: &str, looked: Looked) -> Failure {
    let (Looked::Not { why, text } | Looked::Absent { why, text, .. }) = looked else {
        return Failure::Failed(format!("cannot {action} {subject:?}: who looked gave the answer to another question"));
    };
    let text = format!("cannot {action} {subject:?}: {text}");
    match why {
        Why::NotFound => Failure::NotFound(text),
        Why::Unusable | Why::Changed => Failure::Unavailable(text),
        Why::TooLarge => Failure::TooLarge(text),
        Why::Other => Failure::Failed(text),
    }
}
