//! Bytes as hexadecimal digits.

/// Returns two lower-case hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    ::hex::encode(bytes)
}
