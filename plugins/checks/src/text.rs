//! What others said, as a text of one line.

/// Bytes that are shown of what a program or a server said.
const MOST: usize = 300;

/// Without control characters and not longer than is needed; what is no UTF-8 is replaced.
pub fn line(said: &[u8]) -> String {
    let said = &said[..said.len().min(MOST)];
    let text: String = String::from_utf8_lossy(said).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().to_owned()
}

/// Bytes of a protocol, with what is no plain text escaped.
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
