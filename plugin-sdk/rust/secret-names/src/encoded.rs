//! Decodes base64 (RFC 4648). Documents and keys are put into variables in base64, because a variable has one
//! line.

/// Minimum length of a word to decode. A shorter word cannot hold a secret with its name.
const SHORTEST: usize = 24;

/// Returns each word of the value that is base64 of a text, decoded.
pub(crate) fn texts(value: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let words = value.split(|byte| !is_of_alphabet(*byte) && *byte != b'=');
    words.filter(|word| word.len() >= SHORTEST).filter_map(decode).filter(|text| is_text(text))
}

/// Decodes a word of base64 in either alphabet, with or without padding.
pub(crate) fn decode(word: &[u8]) -> Option<Vec<u8>> {
    let end = word.iter().rposition(|byte| *byte != b'=')? + 1;
    let mut decoded = Vec::with_capacity(end * 3 / 4);
    for group in word[..end].chunks(4) {
        let mut bits = 0u32;
        for byte in group {
            bits = bits << 6 | u32::from(six_bits(*byte)?);
        }
        match group.len() {
            4 => decoded.extend(&bits.to_be_bytes()[1..]),
            3 => decoded.extend(&(bits >> 2).to_be_bytes()[2..]),
            2 => decoded.push((bits >> 4).to_be_bytes()[3]),
            _ => return None,
        }
    }
    Some(decoded)
}

fn is_of_alphabet(byte: u8) -> bool {
    six_bits(byte).is_some()
}

fn six_bits(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

fn is_text(bytes: &[u8]) -> bool {
    let is_control = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    !bytes.iter().any(is_control) && std::str::from_utf8(bytes).is_ok()
}
