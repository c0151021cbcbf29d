//! How the daemon's records get into a session's journal: through the keeper that holds it, or by its own hand where none does.
//!
//! One writer: whoever holds the journal's lock. A keeper holds it from before it listens until after its last record.

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::Body;
use agentd_api::session::ConditionStatus;
use agentd_journal::{AppendError, Need, OpenError, Options, Record, Writer};
use agentd_keeper::protocol::{Append, FromKeeper, NewRecord, ToKeeper};
use jiff::Timestamp;
use serde_json::value::RawValue;

use super::batch::Batch;
use super::silent::Search;
use crate::launch::{Link, LinkError};
use crate::pulse;
use crate::scarce;

/// A session's journal: where it is, and how it is written.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    pub(crate) directory: PathBuf,
    pub(crate) options: Options,
}

/// Who writes.
#[derive(Debug)]
pub(crate) enum Port {
    Keeper(Link),
    /// A keeper that does not answer: nobody can write.
    Silent(Search),
    Direct,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    /// Whether the records were written is not known: the journal says.
    #[error("the line to the keeper broke while it was writing")]
    Lost,
    /// The same; and the keeper is there still.
    #[error("the keeper does not answer")]
    Silent,
    /// Nothing was written: the journal has records that the writer has not read.
    #[error("the journal goes on to record {last}, and was read up to {after}")]
    Behind { last: u64, after: u64 },
    /// Nothing was written; later it may be.
    #[error("the keeper does not write now: {message}")]
    Refused { code: String, message: String, errno: Option<i32> },
    #[error("the journal in {directory:?} cannot be opened")]
    Open { directory: PathBuf, source: OpenError },
    #[error("the journal in {directory:?} cannot be written")]
    Append { directory: PathBuf, source: AppendError },
}

/// How often and how long a journal is tried whose lock a keeper is about to give back.
const HELD_PAUSE: Duration = Duration::from_millis(10);
const HELD_TRIES: u32 = 500;

impl Port {
    /// The seq up to which the journal may be read: what a keeper has not announced, it may have to take back (a disk that is full
    /// in the middle of a write).
    pub(crate) fn reach(&self) -> u64 {
        match self {
            Self::Keeper(link) => link.reach(),
            Self::Silent(search) => search.reach,
            Self::Direct => u64::MAX,
        }
    }

    /// Writes the batch in one piece. After an error other than [`PortError::Lost`] and [`PortError::Silent`] nothing of it is there.
    /// `after` is the last record that was read. Where the journal goes on behind it, nothing is written directly: a keeper may have had
    /// the last word, which the batch would only repeat.
    pub(crate) async fn append(
        &mut self,
        journal: &Journal,
        request: u64,
        after: u64,
        batch: Batch,
    ) -> Result<Written, PortError> {
        let durable = batch.entries.iter().any(|entry| must_outlive_a_power_cut(&entry.body));
        let from_reserve = batch.entries.iter().any(|entry| ends_something(&entry.body));
        match self {
            Self::Keeper(link) => {
                let records = batch
                    .entries
                    .iter()
                    .map(|entry| NewRecord {
                        kind: entry.body.kind().to_owned(),
                        data: entry.body.to_data(),
                        send: entry.send,
                    })
                    .collect();
                let append = ToKeeper::Append(Append { request, records, durable, from_reserve, mute: batch.mute });
                match link.call(&append).await {
                    Ok(FromKeeper::Appended(done)) if done.request == request => {
                        Ok(Written { seq: done.seq, durable, from_reserve })
                    }
                    Err(LinkError::Refused { code, message, errno }) => {
                        Err(PortError::Refused { code, message, errno })
                    }
                    Err(LinkError::Silent { .. }) => Err(PortError::Silent),
                    Ok(_) | Err(_) => Err(PortError::Lost),
                }
            }
            Self::Silent(_) => Err(PortError::Silent),
            Self::Direct => {
                let need = if from_reserve { Need::Final } else { Need::Ordinary };
                let seq = write_directly(journal, after, batch, need, durable).await?;
                Ok(Written { seq, durable, from_reserve })
            }
        }
    }
}

/// What was appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// Of the last record.
    pub(crate) seq: u64,
    /// Everything up to it is on the disk, as far as the configuration wants that.
    pub(crate) durable: bool,
    /// It may have taken room that is kept for last records.
    pub(crate) from_reserve: bool,
}

/// What ends a turn or a session has to; the rest may cost a client its last half second.
fn must_outlive_a_power_cut(body: &Body) -> bool {
    matches!(body, Body::SessionCreated(_) | Body::TurnEnded(_) | Body::LaunchFailed(_) | Body::StopRequested(_))
}

/// What is written on a full disk too: an agent, a turn and a question can be ended without room. Each of these ends what an ordinary record
/// began, so there cannot be more of them than there was room for.
fn ends_something(body: &Body) -> bool {
    match body {
        Body::StopRequested(_)
        | Body::AgentExited(_)
        | Body::TurnEnded(_)
        | Body::TurnCancelling(_)
        | Body::LaunchFailed(_)
        | Body::PermissionResolved(_) => true,
        Body::Condition(condition) => condition.status == ConditionStatus::False,
        _ => false,
    }
}

impl PortError {
    /// The system's own error (errno), where there is one.
    pub(crate) fn errno(&self) -> Option<i32> {
        if let Self::Refused { errno, .. } = self {
            return *errno;
        }
        let mut error: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(current) = error {
            if let Some(error) = current.downcast_ref::<std::io::Error>() {
                return error.raw_os_error();
            }
            error = current.source();
        }
        None
    }
}

async fn write_directly(
    journal: &Journal,
    after: u64,
    batch: Batch,
    need: Need,
    durable: bool,
) -> Result<u64, PortError> {
    let records: Vec<(String, Box<RawValue>)> =
        batch.entries.iter().map(|entry| (entry.body.kind().to_owned(), entry.body.to_data())).collect();
    for _ in 1..HELD_TRIES {
        match write_once(journal.clone(), after, records.clone(), need, durable).await {
            Err(PortError::Open { source: OpenError::Held { .. }, .. }) => {
                pulse::elsewhere(tokio::time::sleep(HELD_PAUSE)).await;
            }
            result => return result,
        }
    }
    write_once(journal.clone(), after, records, need, durable).await
}

async fn write_once(
    Journal { directory, options }: Journal,
    after: u64,
    records: Vec<(String, Box<RawValue>)>,
    need: Need,
    durable: bool,
) -> Result<u64, PortError> {
    let write = move || {
        let (mut writer, _) = Writer::open(&directory, options)
            .map_err(|source| PortError::Open { directory: directory.clone(), source })?;
        if writer.last_seq() > after {
            return Err(PortError::Behind { last: writer.last_seq(), after });
        }
        let records: Vec<Record<'_>> = records.iter().map(|(kind, data)| Record { kind, data }).collect();
        let failed = |source| PortError::Append { directory: directory.clone(), source };
        let seq = writer.append_as(need, Timestamp::now(), &records).map_err(failed)?;
        if durable {
            writer.sync().map_err(failed)?;
        }
        Ok(seq)
    };
    pulse::blocking(write).await
}

/// Whether an ordinary record would find room now, where nobody else writes the journal.
pub(crate) async fn probe(journal: &Journal) -> Result<(), PortError> {
    let Journal { directory, options } = journal.clone();
    let probe = move || match Writer::open(&directory, options) {
        Ok((mut writer, _)) => writer.probe().map_err(|source| {
            let source = AppendError::Write { path: directory.join(agentd_journal::JOURNAL), source };
            PortError::Append { directory, source }
        }),
        // A keeper has it, and says itself how it is.
        Err(OpenError::Held { .. }) => Ok(()),
        Err(source) => Err(PortError::Open { directory, source }),
    };
    pulse::blocking(probe).await
}

/// Whether somebody holds the journal.
pub(crate) async fn is_held(journal: &Journal) -> bool {
    let directory = journal.directory.clone();
    counts_as_held(pulse::blocking(move || agentd_journal::is_held(&directory)).await)
}

fn counts_as_held(held: Result<bool, OpenError>) -> bool {
    match held {
        Ok(held) => held,
        // A keeper that is taken for gone loses its agent. So where descriptors or memory were scarce, it is asked again.
        Err(OpenError::Lock { source, .. }) => scarce::passes(&source),
        // What cannot be told is tried by writing, which says why it fails.
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::event::{Cause, StopRequested};
    use nix::libc;

    use super::*;

    #[test]
    fn a_journal_that_cannot_be_asked_for_its_holder_for_scarcity_counts_as_held() {
        let because = |errno| {
            let (path, source) = (PathBuf::from("lock"), std::io::Error::from_raw_os_error(errno));
            counts_as_held(Err(OpenError::Lock { path, source }))
        };
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR] {
            assert!(because(errno), "{errno}");
        }
        assert!(!because(libc::EACCES) && !because(libc::ENOENT));
        assert!(counts_as_held(Ok(true)) && !counts_as_held(Ok(false)));
    }

    #[tokio::test]
    async fn nothing_is_written_behind_a_record_that_was_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal { directory: directory.path().to_owned(), options: Options::default() };
        let batch =
            || Batch::of(Body::StopRequested(StopRequested { reason: "test".to_owned(), cause: Cause::default() }));
        Port::Direct.append(&journal, 1, 0, batch()).await.unwrap();
        let behind = Port::Direct.append(&journal, 2, 0, batch()).await.unwrap_err();
        assert!(matches!(behind, PortError::Behind { last: 1, after: 0 }), "{behind:?}");
        Port::Direct.append(&journal, 3, 1, batch()).await.unwrap();
        assert_eq!(agentd_journal::last_seq(directory.path()).unwrap(), 2);
    }
}
