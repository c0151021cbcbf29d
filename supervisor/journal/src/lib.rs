//! Append-only journal of one session: append, read from a cursor, repair after a crash, remove old records.
//!
//! Each record is one line, `{"seq":N,"time":"...","kind":"...","data":...}` ([`agentd_api::event::Envelope`]). `seq`
//! starts at 1, has no gaps, and is at most 2^63 - 1. A line with another number is not a record. New records go to the
//! current segment, `journal.jsonl`, in the session's directory.
//! Before the current segment exceeds its size limit, the writer renames it to `journal-<seq of its first record, 20
//! digits>.jsonl`. The segment is then closed, and the writer starts a new current segment.
//!
//! A `seq` is the only way to name a position in a journal. A cursor therefore stays valid when its record moves to
//! another file. The distribution of records over files is private to this crate.
//!
//! This crate does not interpret records, decide which records to keep, or choose the writer. It only ensures that
//! a journal has at most one writer.
//!
//! **Ordering.** The writer writes a record after all records with a smaller `seq`. [`Writer::append`] returns after
//! the records are in the file; from then on every [`Reader`] returns them. The records of one append go to the file
//! in one write(2). If the disk takes only some bytes, the writer removes these bytes again. A concurrent reader can
//! see the partial write for that moment, so a follower must not read beyond the last `seq` that the writer
//! announced.

mod line;
mod reader;
mod repair;
mod reserve;
mod retain;
mod scan;
mod segments;
mod writer;

pub use line::Parts;
pub use reader::{Line, ReadError, Reader, first_seq, last_seq, size};
pub use repair::{Repair, truncate_torn_tail};
pub use reserve::{RESERVE, ReserveUse};
pub use retain::{Retain, RetainError, Retained, is_longer, retain};
pub use writer::{AppendError, OpenError, Options, Record, Sync, Writer, is_held, release_reserve, sync_behind};

/// File name of the current segment in the session's directory.
pub const JOURNAL: &str = "journal.jsonl";
/// File name of the lock that the journal's only writer holds.
pub const LOCK: &str = "journal.lock";
/// File name of the next segment until the writer renames it to [`JOURNAL`].
pub(crate) const NEXT: &str = "journal.next";
/// File name of the file that collects the bytes a repair cuts off.
pub const TORN: &str = "journal.torn";
