//! The limits of a call, and the resource limiter that enforces them.
//!
//! wasmtime asks the limiter before a memory or table grows. Above the limit the limiter ends the call instead
//! of refusing the growth. A plugin that merely gets no memory would continue in untested ways.

use std::fmt;
use std::time::Duration;

use wasmtime::ResourceLimiter;

/// Limits of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Total time, including host calls.
    pub time: Duration,
    /// Bytes of linear memory over all memories of the component.
    pub memory: usize,
    /// Bytes that the plugin may pass to the host at once: its result, or the arguments of one host call.
    pub output: usize,
    /// Number of log messages. Further messages are counted and dropped.
    pub log: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(30), memory: 64 << 20, output: 4 << 20, log: 200 }
    }
}

/// Stack of a plugin in bytes.
pub(crate) const STACK: usize = 512 << 10;
/// Table entries over all tables. The function table of a Python interpreter has about ten thousand.
pub(crate) const TABLE_ENTRIES: usize = 100_000;
/// Maximum number of core instances. Toolchains that link shared libraries use dozens.
const INSTANCES: usize = 256;
/// Maximum number of memories.
const MEMORIES: usize = 16;
/// Maximum number of tables.
const TABLES: usize = 64;

/// The limit that ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Exceeded {
    #[error("time limit exceeded")]
    Time,
    #[error("memory limit exceeded")]
    Memory,
    #[error("limit of table entries exceeded")]
    TableEntries,
}

/// Counts the memory and the table entries of a store.
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

    /// Returns the size of all memories in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Sets another memory limit. The current memory must be within the limit.
    pub(crate) fn limit(&mut self, limits: &Limits) {
        self.memory_limit = limits.memory;
    }
}

/// Returns the new total after one memory or table grew, or `None` if the total would exceed the limit.
fn grown(account: usize, current: usize, desired: usize, limit: usize) -> Option<usize> {
    let total = account.checked_add(desired.checked_sub(current)?)?;
    (total <= limit).then_some(total)
}

impl ResourceLimiter for Accountant {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false); // the module's own limit, which the module handles
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

/// Formats a number of bytes for people: `64 MiB`, `512 KiB`, `1000 bytes`.
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

/// Formats a duration for people: `5 s`, `200 ms`.
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
