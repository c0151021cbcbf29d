//! Matches patterns against texts with unknown parts: a pattern matches for every content of the unknown parts, for
//! some, or for none.

/// A placeholder for unknown text: the value of a variable, the output of a substitution, the files that a `*`
/// matches. It is a noncharacter of Unicode. If an agent sends it, it counts as unknown text.
pub(super) const HOLE: char = '\u{10fffe}';

/// Result of a match. The order matters, because results are combined by minimum or maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fits {
    No,
    /// The result depends on unknown text.
    Perhaps,
    Yes,
}

impl Fits {
    pub(super) fn of(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

/// Matches the whole text. `*` matches any text, `?` any character.
pub(super) fn fits(pattern: &str, text: &str) -> Fits {
    let pattern: Vec<char> = pattern.chars().collect();
    if !walk(&pattern, text, true) {
        Fits::No
    } else if !text.contains(HOLE) || walk(&pattern, text, false) {
        Fits::Yes
    } else {
        Fits::Perhaps
    }
}

/// Matches with the set of pattern positions that the text so far can reach, so the time is the product of both
/// lengths. If `generous`, a hole can be any text. Otherwise only a `*` matches a hole.
fn walk(pattern: &[char], text: &str, generous: bool) -> bool {
    let mut places = vec![false; pattern.len() + 1];
    places[0] = true;
    skip_stars(pattern, &mut places);
    for c in text.chars() {
        let mut next = vec![false; places.len()];
        for (at, _) in places.iter().enumerate().filter(|(_, is_place)| **is_place) {
            match pattern.get(at) {
                Some('*') => next[at] = true,
                Some('?') if c != HOLE => next[at + 1] = true,
                Some(own) if *own == c && c != HOLE => next[at + 1] = true,
                _ => {}
            }
            if generous && c == HOLE {
                // Any text leads from a position to every later one.
                next[at..].fill(true);
                break;
            }
        }
        places = next;
        skip_stars(pattern, &mut places);
        if !places.contains(&true) {
            return false;
        }
    }
    places[pattern.len()]
}

fn skip_stars(pattern: &[char], places: &mut [bool]) {
    for (at, c) in pattern.iter().enumerate() {
        if *c == '*' && places[at] {
            places[at + 1] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pattern_fits_wholly_and_a_hole_perhaps() {
        for (pattern, text, expected) in [
            ("git push*", "git push origin", Fits::Yes),
            ("git push*", "git pull", Fits::No),
            ("git push*", "git \u{10fffe}", Fits::Perhaps),
            ("git push*", "git push \u{10fffe}", Fits::Yes),
            ("git push*", "\u{10fffe} push", Fits::Perhaps),
            ("git push*", "echo \u{10fffe}", Fits::No),
            ("*", "\u{10fffe}", Fits::Yes),
            ("", "\u{10fffe}", Fits::Perhaps),
            ("a?c", "abc", Fits::Yes),
            ("a?c", "a\u{10fffe}c", Fits::Perhaps),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn what_fits_with_a_hole_filled_was_at_least_perhaps(
            pattern in "[ab*?]{0,8}", before in "[ab]{0,4}", filled in "[ab]{0,4}", after in "[ab]{0,4}",
        ) {
            let known = fits(&pattern, &format!("{before}{filled}{after}"));
            let unknown = fits(&pattern, &format!("{before}{HOLE}{after}"));
            prop_assert!(unknown == Fits::Perhaps || unknown == known);
        }
    }
}
