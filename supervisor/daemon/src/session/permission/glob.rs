//! Patterns over texts of which a part may not be known: does a pattern fit whatever that part is, whatever it may be, or never?

/// Stands for text that is not known: what a variable holds, what a substitution prints, which files a `*` finds. It is a noncharacter of
/// Unicode; an agent that sends it itself is read as saying "unknown".
pub(super) const HOLE: char = '\u{10fffe}';

/// Whether something is so. The order counts: of several the least or the greatest decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fits {
    No,
    /// What is known does not tell.
    Perhaps,
    Yes,
}

impl Fits {
    pub(super) fn of(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

/// Matches the whole text; `*` is any text, `?` any character.
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

/// Keeps the set of places in the pattern that the text read so far can have led to, so its time is the product of both lengths.
/// `generous`: a hole may be any text; otherwise only a `*` stands for one.
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
                // Any text leads from a place to every later one.
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
