//! Writes the daemon's records to a session's journal: through the keeper that holds the journal, or directly if
//! none does.
//!
//! The holder of the journal's lock is the only writer. A keeper holds the lock from before it listens until after
//! its last record.

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::Body;
use agentd_api::session::ConditionStatus;
use agentd_journal::{AppendError, OpenError, Options, Record, ReserveUse, Sync, Writer};
use agentd_keeper::output::{OutputRun, RULES};
use agentd_keeper::protocol::{Append, FromKeeper, NewRecord, ToKeeper};
use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::keeper_search::KeeperSearch;
use crate::launch::{Connection, LinkError};
use crate::pulse;
use agentd_decide::batch::Batch;
use agentd_host::exhausted;

/// A session's journal: its directory and its options.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    pub directory: PathBuf,
    pub options: Options,
}

/// The writer of a journal.
#[derive(Debug)]
pub(crate) enum Port {
    Keeper(Box<dyn Connection>),
    /// A keeper that does not answer: no process can write.
    Silent(KeeperSearch),
    Direct,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    /// The connection was lost, so the records may or may not be written. The journal shows which.
    #[error("the connection to the keeper was lost during the write")]
    Lost,
    /// The keeper still runs but does not answer, so the records may or may not be written.
    #[error("the keeper does not answer")]
    Silent,
    /// Nothing was written: the journal has records that the driver has not read.
    #[error("the journal ends at record {last}, but was read up to record {after}")]
    Behind { last: u64, after: u64 },
    /// Nothing was written. A later attempt may succeed.
    #[error("the keeper cannot write the records: {message}")]
    Refused { code: String, message: String, errno: Option<i32> },
    #[error("cannot open the journal in {directory:?}")]
    Open { directory: PathBuf, source: OpenError },
    #[error("cannot write the journal in {directory:?}")]
    Append { directory: PathBuf, source: AppendError },
}

/// Pause between attempts on a journal whose lock a keeper is about to release, and their number below.
const HELD_PAUSE: Duration = Duration::from_millis(10);
const HELD_TRIES: u32 = 500;

impl Port {
    /// Returns the sequence number up to which the journal may be read. A keeper may have to roll back records
    /// that it has not announced, for example when the disk fills during a write.
    pub(crate) fn reach(&self) -> u64 {
        match self {
            Self::Keeper(link) => link.reach(),
            Self::Silent(search) => search.reach,
            Self::Direct => u64::MAX,
        }
    }

    /// Returns the output at the end of the journal that need not be read, if the keeper has reported it by the same
    /// rules.
    pub(crate) fn output(&self) -> Option<OutputRun> {
        let Self::Keeper(link) = self else { return None };
        link.tail().output.filter(|run| run.rules == RULES)
    }

    /// Writes the batch as a whole, or not at all. Only after [`PortError::Lost`] and [`PortError::Silent`] the
    /// result is unknown. `after` is the last record that was read. A direct write fails if the journal has
    /// further records: a keeper may have written its last record, which the batch would repeat.
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
                        fill: entry.fill,
                        contents: entry.contents,
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
                let need = if from_reserve { ReserveUse::Final } else { ReserveUse::Ordinary };
                let seq = write_directly(journal, after, batch, need, durable).await?;
                Ok(Written { seq, durable, from_reserve })
            }
        }
    }
}

/// Result of a successful append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// Sequence number of the last record.
    pub seq: u64,
    /// Whether everything up to this record is on the disk, as far as the configuration demands that.
    pub durable: bool,
    /// Whether the batch may have used the reserve for last records.
    pub from_reserve: bool,
}

/// Reports whether the record must be synced at once: a creation, an end, a rate limit, a failed launch, a stop, or a
/// confirmed change. Other records of the last half second may be lost in a power cut.
fn must_outlive_a_power_cut(body: &Body) -> bool {
    matches!(
        body,
        Body::SessionCreated(_)
            | Body::TurnEnded(_)
            | Body::TurnLimited(_)
            | Body::LaunchFailed(_)
            | Body::StopRequested(_)
            | Body::SessionCompleting(_)
            | Body::SessionCompleted(_)
            | Body::SpecChanged(_)
            | Body::RepositoryChanged(_)
            | Body::WorkflowChanged(_)
            | Body::ContextChanged(_)
            | Body::HintChanged(_)
            | Body::TitleChanged(_)
            | Body::ScriptProposed(_)
    )
}

/// Reports whether the record may use the reserve of a full disk: an agent, a turn and a question can be ended
/// without free space. Each ends what an ordinary record began, so ordinary records bound their number.
fn ends_something(body: &Body) -> bool {
    match body {
        Body::StopRequested(_)
        | Body::AgentExited(_)
        | Body::TurnEnded(_)
        | Body::TurnCancelling(_)
        | Body::SessionCompleting(_)
        | Body::LaunchFailed(_)
        | Body::PermissionResolved(_) => true,
        Body::Condition(condition) => condition.status == ConditionStatus::False,
        _ => false,
    }
}

impl PortError {
    /// Returns the operating system's error number (errno), if there is one.
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
    need: ReserveUse,
    durable: bool,
) -> Result<u64, PortError> {
    let records = records(&batch);
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
    journal: Journal,
    after: u64,
    records: Vec<(String, Box<RawValue>)>,
    need: ReserveUse,
    durable: bool,
) -> Result<u64, PortError> {
    pulse::blocking(move || write_now(&journal, after, &records, need, durable)).await
}

/// Writes the first records of a journal without a sync, unless the configuration demands one for each record.
pub(crate) fn write_first(journal: &Journal, batch: &Batch) -> Result<(), PortError> {
    let sync = if journal.options.sync == Sync::Always { Sync::Always } else { Sync::Never };
    let journal = Journal { options: Options { sync, ..journal.options }, ..journal.clone() };
    write_now(&journal, 0, &records(batch), ReserveUse::Ordinary, false).map(drop)
}

fn records(batch: &Batch) -> Vec<(String, Box<RawValue>)> {
    batch.entries.iter().map(|entry| (entry.body.kind().to_owned(), entry.body.to_data())).collect()
}

/// Writes the records on this thread.
fn write_now(
    Journal { directory, options }: &Journal,
    after: u64,
    records: &[(String, Box<RawValue>)],
    need: ReserveUse,
    durable: bool,
) -> Result<u64, PortError> {
    let (mut writer, _) =
        Writer::open(directory, *options).map_err(|source| PortError::Open { directory: directory.clone(), source })?;
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
}

/// Tests whether an ordinary record could be written now. Succeeds without a test if another process holds the
/// journal.
pub(crate) async fn probe(journal: &Journal) -> Result<(), PortError> {
    let Journal { directory, options } = journal.clone();
    let probe = move || match Writer::open(&directory, options) {
        Ok((mut writer, _)) => writer.probe().map_err(|source| {
            let source = AppendError::Write { path: directory.join(agentd_journal::JOURNAL), source };
            PortError::Append { directory, source }
        }),
        // A keeper holds the journal, and reports its state itself.
        Err(OpenError::Held { .. }) => Ok(()),
        Err(source) => Err(PortError::Open { directory, source }),
    };
    pulse::blocking(probe).await
}

/// Reports whether a process holds the journal.
pub(crate) async fn is_held(journal: &Journal) -> bool {
    let directory = journal.directory.clone();
    counts_as_held(pulse::blocking(move || agentd_journal::is_held(&directory)).await)
}

fn counts_as_held(held: Result<bool, OpenError>) -> bool {
    match held {
        Ok(held) => held,
        // A keeper that is mistaken for gone would lose its agent. So after an error of scarcity the journal
        // counts as held, and the question is repeated.
        Err(OpenError::Lock { source, .. }) => exhausted::passes(&source),
        // In other cases, the attempt to write reports the error.
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::event::{Cause, StopRequested};
    use nix::libc;

    use super::*;

    #[test]
    fn a_journal_whose_lock_cannot_be_tested_for_scarcity_counts_as_held() {
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
    async fn a_direct_write_fails_after_an_unread_record() {
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
