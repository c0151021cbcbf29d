//! Clocks. Always granted.

use super::host;

/// Milliseconds since 1970-01-01T00:00:00Z.
pub fn wall() -> u64 {
    host::clock::wall()
}

/// Nanoseconds from an arbitrary point; never goes back.
pub fn monotonic() -> u64 {
    host::clock::monotonic()
}
