//! Output of programs and servers as one line of text.

/// Maximum number of bytes that are shown.
const MOST: usize = 300;

/// Returns the text on one line without control characters, cut at the maximum. Bytes that are not UTF-8 are
/// replaced.
pub fn line(said: &[u8]) -> String {
    let said = &said[..said.len().min(MOST)];
    let text: String = String::from_utf8_lossy(said).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().to_owned()
}

/// Returns bytes of a protocol in quotes, with non-printable bytes escaped.
pub fn escaped(bytes: &[u8]) -> String {
    let shown = bytes[..bytes.len().min(MOST)].escape_ascii();
    if bytes.len() > MOST { format!("\"{shown}\" and more") } else { format!("\"{shown}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_one_line_that_moves_no_cursor() {
        assert_eq!(line(b" \x1b[31mno\tlicence\r\n"), "[31mno licence");
        assert_eq!(line(b"caf\xe9 \xc3\xa9"), "caf\u{fffd} é");
        assert_eq!(line(&[b'x'; 1000]).len(), MOST);
        assert_eq!(escaped(b"SSH-2.0\r\n\xff"), r#""SSH-2.0\r\n\xff""#);
        assert!(escaped(&[b'x'; 1000]).ends_with("\" and more"));
    }
}
