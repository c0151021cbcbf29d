//! The capability `clock`. Always granted.

use super::host;

/// Returns the milliseconds since 1970-01-01T00:00:00Z.
pub fn wall() -> u64 {
    host::clock::wall()
}

/// Returns nanoseconds since an arbitrary point. The value never decreases.
pub fn monotonic() -> u64 {
    host::clock::monotonic()
}
