//! A journal whose end a power cut took or damaged is mended before the session goes on. The record `journal.repaired` and the log say so.
//!
//! **It cannot be read on.** Without a keeper the journal is mended ([`agentd_journal::mend`]), and read once more. One that was damaged in
//! the middle is left as it is, and the session is set aside.
//!
//! **It ends before the fold of `session.json`.** Records were lost that the fold knows of, and what is written next would get their numbers:
//! it must not be taken for known. The journal is the truth, so the fold is thrown away and made again from the journal. Where the journal
//! does not have its beginning any more, or is empty, that would lose all that was before: the conversation, the waiting prompts. There the
//! fold is kept as what is known, and goes on from where the journal ends.

use agentd_api::Body;
use agentd_api::event::{InvalidEvent, JournalRepaired};
use agentd_journal::ReadError;

use super::batch::Batch;
use super::driver::{Broken, Driver};
use super::journal_port::Port;
use super::patient::patiently;
use super::state::State;
use crate::env::chain;

impl Driver {
    /// Sees to it that the journal can be read, and that the state is none that it does not reach. What was done is to be
    /// recorded once the journal was read.
    pub(super) async fn mend(&mut self) -> Result<Option<JournalRepaired>, Broken> {
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
            detail.push(format!("{cut_bytes} bytes at the end of the journal were no records and are in journal.torn"));
        }
        if lost_records > 0 {
            let done =
                if rebuilt { "the state was made again from the journal" } else { "what session.json had was kept" };
            detail.push(format!("the journal ends at record {last} and session.json knew {seq}: {done}"));
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
        tracing::error!(agentd.session = %self.id(), "the end of the journal was lost, as by a power cut: {detail}");
        Ok(Some(JournalRepaired { cut_bytes, lost_records, rebuilt, detail }))
    }

    /// Reads what there is, mends the journal once where it cannot be read, and records what was done.
    pub(super) async fn catch_up_mended(&mut self, repaired: Option<JournalRepaired>) -> Result<(), Broken> {
        let mut repaired = repaired;
        if let Err(error) = self.catch_up().await {
            let cut_bytes = self.cut(error).await?;
            self.reader = None;
            let again = self.mend().await?;
            let detail = format!("{cut_bytes} bytes at the end of the journal were no records and are in journal.torn");
            tracing::error!(agentd.session = %self.id(), "the end of the journal was damaged, as by a power cut: {detail}");
            let cut = JournalRepaired { cut_bytes, lost_records: 0, rebuilt: false, detail };
            repaired = [repaired, Some(cut), again].into_iter().flatten().reduce(|first, then| together(&first, &then));
            self.catch_up().await?;
        }
        match repaired {
            Some(repaired) => self.append(Batch::of(Body::JournalRepaired(repaired))).await.map(drop),
            None => Ok(()),
        }
    }

    /// The seqs of the first and of the last record.
    async fn ends(&self) -> Result<(u64, u64), ReadError> {
        patiently(self.id(), &self.world.shutdown, || {
            let directory = self.journal.directory.clone();
            move || Ok((agentd_journal::first_seq(&directory)?, agentd_journal::last_seq(&directory)?))
        })
        .await
    }

    /// Cuts off what cannot be read, where nobody holds the journal; says how many bytes those were.
    async fn cut(&self, error: Broken) -> Result<u64, Broken> {
        let is_damaged = match &error {
            Broken::Read(error) => matches!(error, ReadError::Corrupt { .. } | ReadError::Gap { .. }),
            Broken::Event(error) => matches!(error, InvalidEvent::Envelope(_)),
            Broken::Time { .. } => true,
        };
        if !is_damaged || !matches!(self.port, Port::Direct) {
            return Err(error);
        }
        let mended = patiently(self.id(), &self.world.shutdown, || {
            let directory = self.journal.directory.clone();
            move || agentd_journal::mend(&directory)
        });
        match mended.await {
            Ok(repair) if repair.torn + repair.set_aside > 0 => Ok(repair.torn + repair.set_aside),
            Ok(_) => Err(error),
            Err(failed) => {
                tracing::error!(agentd.session = %self.id(), error = %chain(&failed), "the journal cannot be mended");
                Err(error)
            }
        }
    }
}

/// Two repairs, one after the other, as one.
fn together(first: &JournalRepaired, then: &JournalRepaired) -> JournalRepaired {
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
    fn what_two_repairs_cut_off_and_lost_is_counted_together() {
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
