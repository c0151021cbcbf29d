//! A session's journal: append, read from a cursor, repair a torn tail, remove what is old.
//!
//! One record a line, `{"seq":N,"time":"...","kind":"...","data":...}` ([`agentd_api::event::Envelope`]), `seq` from 1 without gap, in
//! `journal.jsonl` in the session's directory. When that would become too long it is put aside as `journal-<seq of its first record, 20
//! digits>.jsonl`, and a new one is begun. A place in a journal is named by a seq and by nothing else, so that a cursor is valid wherever
//! its record stands by now, and how the records are spread over files is this crate's own affair.
//!
//! Not its job: what a record means, what must be kept, who may write (it only sees to it that one does).
//!
//! **Ordering.** A record is written after all those before it, and [`Writer::append`] returns after the records are in the file:
//! a [`Reader`] that is asked then gives them. Several records of one append are one write(2). When the disk takes only a part of
//! them the writer takes that part back, which a reader beside it may for that instant have seen: who follows a journal that is
//! being written reads up to the seq that its writer has announced.

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
pub use repair::{Repair, mend};
pub use reserve::{Need, RESERVE};
pub use retain::{Retain, RetainError, Retained, is_longer, retain};
pub use writer::{AppendError, OpenError, Options, Record, Sync, Writer, is_held, release, sync_behind};

/// The name of the current segment in the session's directory.
pub const JOURNAL: &str = "journal.jsonl";
/// What the one writer holds locked.
pub const LOCK: &str = "journal.lock";
/// The next segment, until it has the place of the current one.
pub(crate) const NEXT: &str = "journal.next";
/// Where the bytes go that a repair cut off.
pub const TORN: &str = "journal.torn";
