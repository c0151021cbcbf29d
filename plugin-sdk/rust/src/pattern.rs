//! Patterns of names as in a shell: `*` is any text including the empty one, and `?` is any one character.

/// Reports whether the whole `text` matches the pattern.
#[inline]
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    // Most patterns of a list differ from a name in the first byte.
    match pattern.first() {
        Some(b'*' | b'?') => match_all(pattern, text),
        first => first == text.first() && match_all(pattern, text),
    }
}

fn match_all(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Position of the last `*`, and the end of the text that it matches. This is the only position to backtrack
    // to.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(b'?') => {
                p += 1;
                t = next(text, t);
            }
            Some(byte) if *byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((star_p, star_t)) = star else { return false };
                let star_t = next(text, star_t);
                star = Some((star_p, star_t));
                p = star_p + 1;
                t = star_t;
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Reports whether the text contains `*` or `?` and so can match more than one name.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Returns the offset after the character at `at`.
fn next(text: &[u8], at: usize) -> usize {
    let continues = |byte: &&u8| (**byte & 0xc0) == 0x80; // UTF-8 (RFC 3629)
    at + 1 + text[at + 1..].iter().take_while(continues).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_are_any_text_and_any_character() {
        for (pattern, text) in [
            ("LC_*", "LC_ALL"),
            ("LC_*", "LC_"),
            ("*", ""),
            ("PS?", "PS1"),
            ("*_KEY*", "A_KEY_B"),
            ("a*b*c", "axbxbxc"),
            ("?", "é"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("LC_*", "LC"), ("PS?", "PS"), ("PS?", "PS12"), ("", "a"), ("a*b", "abc"), ("?", "éé"), ("lc_*", "LC_ALL")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_little_time() {
        assert!(!matches(&format!("{}b", "*a".repeat(50)), &"a".repeat(5000)));
    }
}
