//! Repairs a journal whose end was lost or damaged by a power cut, before the session continues. The record
//! `journal.repaired` and the log report the repair.
//!
//! **The journal cannot be read.** Without a keeper the journal is repaired ([`agentd_journal::mend`]) and read
//! again. A journal that is damaged in the middle stays unchanged, and the session is set aside.
//!
//! **The journal ends before the state in `session.json`.** Records that the state contains were lost, and new
//! records would get their numbers. So the state is discarded and folded again from the journal. A journal that is
//! empty or has lost its beginning would lose the conversation and the waiting prompts. In that case the state is
//! kept, and continues from the end of the journal.

use agentd_api::event::{InvalidEvent, JournalRepaired};
use agentd_journal::ReadError;

use super::DriverError;
use super::recorder::Recorder;
use crate::journal_port::Port;
use crate::patient::patiently;
use agentd_api::chain;
use agentd_decide::state::State;

impl Recorder {
    /// Makes sure that the journal can be read and that the state is not ahead of the journal. Returns the record
    /// of the repair, to be written after the journal was read.
    pub(super) async fn mend(&mut self) -> Result<Option<JournalRepaired>, DriverError> {
        let cut_bytes = match self.ends().await {
            Ok(_) => 0,
            Err(error) => self.cut(error.into()).await?,
        };
        let (first, last) = self.ends().await?;
        let seq = self.state.seq;
        if last >= seq && cut_bytes == 0 {
            return Ok(None);
        }
        let lost_records = seq.saturating_sub(last);
        let rebuilt = lost_records > 0 && first == 1 && last > 0;
        let mut detail = Vec::new();
        if cut_bytes > 0 {
            detail.push(format!(
                "{cut_bytes} bytes at the end of the journal were not valid records and were moved to journal.torn"
            ));
        }
        if lost_records > 0 {
            let done = if rebuilt {
                "the state was folded again from the journal"
            } else {
                "the state of session.json was kept"
            };
            detail.push(format!(
                "the journal ends at record {last}, but session.json contained the state of record {seq}: {done}"
            ));
        }
        if rebuilt {
            self.state = State::new(self.document.created);
        } else if lost_records > 0 {
            self.state.seq = last;
            for key in &mut self.state.keys {
                key.seq = key.seq.min(last);
            }
        }
        if lost_records > 0 {
            (self.remembered, self.durable, self.reader) = (0, 0, None);
        }
        let detail = detail.join("; ");
        tracing::error!("the end of the journal was lost, probably by a power cut: {detail}");
        Ok(Some(JournalRepaired { cut_bytes, lost_records, rebuilt, detail }))
    }

    /// Returns the sequence numbers of the first and of the last record.
    async fn ends(&self) -> Result<(u64, u64), ReadError> {
        patiently(&self.shutdown, || {
            let directory = self.journal.directory.clone();
            move || Ok((agentd_journal::first_seq(&directory)?, agentd_journal::last_seq(&directory)?))
        })
        .await
    }

    /// Cuts off the unreadable end of a journal without a keeper. Returns the number of bytes, or `error` if there
    /// is nothing to cut.
    pub(super) async fn cut(&self, error: DriverError) -> Result<u64, DriverError> {
        let is_damaged = match &error {
            DriverError::Read(error) => matches!(error, ReadError::Corrupt { .. } | ReadError::Gap { .. }),
            DriverError::Event(error) => matches!(error, InvalidEvent::Envelope(_)),
            DriverError::Time { .. } => true,
        };
        if !is_damaged || !matches!(self.port, Port::Direct) {
            return Err(error);
        }
        let mended = patiently(&self.shutdown, || {
            let directory = self.journal.directory.clone();
            move || agentd_journal::truncate_torn_tail(&directory)
        });
        match mended.await {
            Ok(repair) if repair.torn + repair.set_aside > 0 => Ok(repair.torn + repair.set_aside),
            Ok(_) => Err(error),
            Err(failed) => {
                tracing::error!(error = %chain(&failed), "cannot repair the journal");
                Err(error)
            }
        }
    }
}

/// Merges two successive repairs into one record.
pub(super) fn together(first: &JournalRepaired, then: &JournalRepaired) -> JournalRepaired {
    JournalRepaired {
        cut_bytes: first.cut_bytes + then.cut_bytes,
        lost_records: first.lost_records + then.lost_records,
        rebuilt: first.rebuilt || then.rebuilt,
        detail: format!("{}; {}", first.detail, then.detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_losses_of_two_repairs_are_added() {
        let repaired = |cut_bytes, lost_records, rebuilt, detail: &str| JournalRepaired {
            cut_bytes,
            lost_records,
            rebuilt,
            detail: detail.to_owned(),
        };
        let both = together(&repaired(10, 0, false, "torn"), &repaired(5, 3, true, "rebuilt"));
        assert_eq!(both, repaired(15, 3, true, "torn; rebuilt"));
    }
}
