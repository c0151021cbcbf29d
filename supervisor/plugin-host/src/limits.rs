//! The limits of a call, and the accountant that ends a call which goes over one.
//!
//! wasmtime asks before a memory or a table grows; the answer is no longer "no" but the end of the call, with the limit
//! as its reason, since a guest that merely gets no memory goes on in ways nobody tested.

use std::fmt;
use std::time::Duration;

use wasmtime::ResourceLimiter;

/// What one call may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In all, host calls included.
    pub time: Duration,
    /// Bytes of linear memory, over all memories of the component.
    pub memory: usize,
    /// Bytes that the plugin may hand to the host at once: the result, or the arguments of one host call.
    pub output: usize,
    /// Messages to the log; what is more is counted and dropped.
    pub log: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(30), memory: 64 << 20, output: 4 << 20, log: 200 }
    }
}

/// Stack of the guest, in bytes.
pub(crate) const STACK: usize = 512 << 10;
/// Table entries over all tables; a table of functions of a whole Python interpreter has some ten thousand.
pub(crate) const TABLE_ENTRIES: usize = 100_000;
/// Core instances, memories and tables; toolchains that link shared libraries use dozens of instances.
const INSTANCES: usize = 256;
const MEMORIES: usize = 16;
const TABLES: usize = 64;

/// The limit that ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Exceeded {
    #[error("the time is over")]
    Time,
    #[error("the memory is used up")]
    Memory,
    #[error("the table entries are used up")]
    TableEntries,
}

/// Counts what a store has.
#[derive(Debug)]
pub(crate) struct Accountant {
    memory_limit: usize,
    memory: usize,
    entries: usize,
}

impl Accountant {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { memory_limit: limits.memory, memory: 0, entries: 0 }
    }

    /// Bytes of all memories together.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// From now on the memory may grow to another limit; what there is already must be within it.
    pub(crate) fn limit(&mut self, limits: &Limits) {
        self.memory_limit = limits.memory;
    }
}

/// The account after one memory or table of it grew, or nothing if that is over the limit.
fn grown(account: usize, current: usize, desired: usize, limit: usize) -> Option<usize> {
    let total = account.checked_add(desired.checked_sub(current)?)?;
    (total <= limit).then_some(total)
}

impl ResourceLimiter for Accountant {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false); // its own limit, which it declared and knows how to meet
        }
        self.memory = grown(self.memory, current, desired, self.memory_limit).ok_or(Exceeded::Memory)?;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.entries = grown(self.entries, current, desired, TABLE_ENTRIES).ok_or(Exceeded::TableEntries)?;
        Ok(true)
    }

    fn instances(&self) -> usize {
        INSTANCES
    }

    fn tables(&self) -> usize {
        TABLES
    }

    fn memories(&self) -> usize {
        MEMORIES
    }
}

/// A number of bytes for people: `64 MiB`, `512 KiB`, `1000 bytes`.
pub(crate) struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1 << 20 && n % (1 << 20) == 0 => write!(f, "{} MiB", n >> 20),
            n if n >= 1 << 10 && n % (1 << 10) == 0 => write!(f, "{} KiB", n >> 10),
            n => write!(f, "{n} bytes"),
        }
    }
}

/// A time for people: `5 s`, `200 ms`.
pub(crate) struct Seconds(pub Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_millis() == 0 {
            write!(f, "{} s", self.0.as_secs())
        } else {
            write!(f, "{} ms", self.0.as_millis())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_counted_over_all_memories_and_the_limit_itself_is_allowed() {
        assert_eq!(grown(0, 0, 64, 64), Some(64));
        assert_eq!(grown(64, 0, 1, 64), None);
        assert_eq!(grown(60, 20, 24, 64), Some(64));
        assert_eq!(grown(60, 20, 25, 64), None);
        assert_eq!(grown(usize::MAX, 0, 1, usize::MAX), None);
    }

    #[test]
    fn sizes_and_times_are_written_as_people_write_them() {
        assert_eq!(Bytes(64 << 20).to_string(), "64 MiB");
        assert_eq!(Bytes(1536).to_string(), "1536 bytes");
        assert_eq!(Bytes(512 << 10).to_string(), "512 KiB");
        assert_eq!(Seconds(Duration::from_secs(30)).to_string(), "30 s");
        assert_eq!(Seconds(Duration::from_millis(1500)).to_string(), "1500 ms");
    }
}
