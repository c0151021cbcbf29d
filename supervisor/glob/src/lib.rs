//! Text patterns with `*` and `?`, matched in a single pass.
//!
//! A text may have unknown parts ([`HOLE`]). [`fits`] then reports whether the pattern matches for every content of
//! these parts, for some, or for none.
//!
//! Plugins write patterns too, so matching must never be expensive. The matcher keeps the set of possible
//! positions in the pattern as bits and never backtracks. Its cost is the text's length times the pattern's
//! length divided by 64.

/// A placeholder for unknown text of any length. It is a noncharacter of Unicode. [`Glob::fits`] always reads it
/// in a text as unknown text. No character of a pattern equals it.
pub const HOLE: char = '\u{10fffe}';

/// Result of a match with a text that may have holes. The order matters, because results are combined by minimum or
/// maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fits {
    No,
    /// The result depends on unknown text.
    Perhaps,
    Yes,
}

impl Fits {
    pub fn of(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

/// How a match reads a [`HOLE`] in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hole {
    /// As an ordinary character.
    Character,
    /// As every text: only a wildcard for any text matches it.
    EveryText,
    /// As the text that suits the pattern best.
    SomeText,
}

/// The characters that a wildcard matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Any character except `/`.
    Segment,
    /// Any character.
    Anything,
}

/// A condition for one character of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum One {
    Char(char),
    Any(Reach),
}

impl One {
    fn takes(self, c: char) -> bool {
        match self {
            Self::Char(own) => own == c,
            Self::Any(Reach::Segment) => c != '/',
            Self::Any(Reach::Anything) => true,
        }
    }

    /// Reports whether some character satisfies both conditions.
    fn meets(self, other: Self) -> bool {
        match (self, other) {
            (Self::Char(c), one) | (one, Self::Char(c)) => one.takes(c),
            _ => true,
        }
    }
}

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    ones: Vec<One>,
    /// For each position in the pattern, and for its end: whether any text may follow. Has one element
    /// more than `ones`.
    text: Vec<Option<Reach>>,
    bits: Bits,
}

/// The pattern as bit sets. Bit `n` means that the first `n` characters of the pattern are matched.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bits {
    /// For each character of the pattern, sorted: the bits that can be reached by reading it.
    reads: Vec<(char, Vec<u64>)>,
    /// The bits that can be reached by any other character.
    other: Vec<u64>,
    /// The bits that stay set when a `/` is read.
    stays_at_slash: Vec<u64>,
    /// The bits that stay set when any other character is read.
    stays: Vec<u64>,
}

fn set(bits: &mut [u64], n: usize) {
    bits[n / 64] |= 1 << (n % 64);
}

/// Sets all bits after the first set bit: some text leads from a position in the pattern to every later position.
fn fill_after_first(bits: &mut [u64]) {
    let mut below = 0;
    for word in bits {
        if below == 0 && *word != 0 {
            *word |= u64::MAX << word.trailing_zeros();
        } else {
            *word |= below;
        }
        below = if *word == 0 { 0 } else { u64::MAX };
    }
}

impl Bits {
    fn new(ones: &[One], text: &[Option<Reach>]) -> Self {
        let words = text.len().div_ceil(64);
        let empty = vec![0; words];
        let mut chars: Vec<char> =
            ones.iter().filter_map(|one| if let One::Char(c) = one { Some(*c) } else { None }).collect();
        chars.push('/');
        chars.sort_unstable();
        chars.dedup();
        let leads = |takes: &dyn Fn(One) -> bool| {
            let mut bits = empty.clone();
            ones.iter().enumerate().filter(|(_, one)| takes(**one)).for_each(|(n, _)| set(&mut bits, n + 1));
            bits
        };
        let stay = |stays: &dyn Fn(Reach) -> bool| {
            let mut bits = empty.clone();
            text.iter().enumerate().filter(|(_, reach)| reach.is_some_and(stays)).for_each(|(n, _)| set(&mut bits, n));
            bits
        };
        Self {
            reads: chars.into_iter().map(|c| (c, leads(&|one| one.takes(c)))).collect(),
            other: leads(&|one| matches!(one, One::Any(_))),
            stays_at_slash: stay(&|reach| reach == Reach::Anything),
            stays: stay(&|_| true),
        }
    }
}

impl Glob {
    /// Compiles a pattern of text: `*` is any text including the empty one, `?` any one character.
    pub fn flat(pattern: &str) -> Self {
        Self::parse(pattern, Reach::Anything)
    }

    /// Compiles a pattern of paths: `*` is any text without a `/`, `**` any text, `?` any one character except
    /// `/`.
    pub fn path(pattern: &str) -> Self {
        Self::parse(pattern, Reach::Segment)
    }

    fn parse(pattern: &str, short: Reach) -> Self {
        let (mut ones, mut text) = (Vec::new(), vec![None]);
        let mut rest = pattern.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '*' => {
                    let reach = if rest.next_if_eq(&'*').is_some() { Reach::Anything } else { short };
                    let before = &mut text[ones.len()];
                    if *before != Some(Reach::Anything) {
                        *before = Some(reach);
                    }
                    continue;
                }
                '?' => ones.push(One::Any(short)),
                c => ones.push(One::Char(c)),
            }
            text.push(None);
        }
        Self { bits: Bits::new(&ones, &text), ones, text }
    }

    /// Reports whether the pattern matches every text.
    pub fn is_everything(&self) -> bool {
        self.ones.is_empty() && self.text[0] == Some(Reach::Anything)
    }

    /// Reports whether the pattern matches only the empty text.
    pub fn is_empty(&self) -> bool {
        self.ones.is_empty() && self.text[0].is_none()
    }

    /// Reports whether the whole text matches. A hole is an ordinary character.
    pub fn matches(&self, text: &str) -> bool {
        self.reaches_end(text, Hole::Character)
    }

    /// Matches the whole text, in which each [`HOLE`] is unknown text.
    pub fn fits(&self, text: &str) -> Fits {
        if !self.reaches_end(text, Hole::SomeText) {
            Fits::No
        } else if !text.contains(HOLE) || self.reaches_end(text, Hole::EveryText) {
            Fits::Yes
        } else {
            Fits::Perhaps
        }
    }

    fn reaches_end(&self, text: &str, hole: Hole) -> bool {
        let bits = &self.bits;
        let mut now = vec![0_u64; bits.other.len()];
        now[0] = 1;
        for c in text.chars() {
            match hole {
                Hole::SomeText if c == HOLE => {
                    fill_after_first(&mut now);
                    continue;
                }
                // The unknown text may contain a `/`.
                Hole::EveryText if c == HOLE => {
                    now.iter_mut().zip(&bits.stays_at_slash).for_each(|(word, stays)| *word &= stays);
                    continue;
                }
                _ => {}
            }
            let reads = bits.reads.binary_search_by_key(&c, |(c, _)| *c).map_or(&bits.other, |at| &bits.reads[at].1);
            let stays = if c == '/' { &bits.stays_at_slash } else { &bits.stays };
            let (mut carry, mut alive) = (0, 0);
            for (word, (reads, stays)) in now.iter_mut().zip(reads.iter().zip(stays)) {
                let moved = (*word << 1) | carry;
                carry = *word >> 63;
                *word = (moved & reads) | (*word & stays);
                alive |= *word;
            }
            if alive == 0 {
                return false;
            }
        }
        let end = self.ones.len();
        now[end / 64] & (1 << (end % 64)) != 0
    }

    /// Reports whether some text matches both patterns.
    pub fn overlaps(&self, other: &Self) -> bool {
        let columns = other.text.len();
        let mut seen = vec![false; self.text.len() * columns];
        let mut open = vec![(0, 0)];
        seen[0] = true;
        while let Some((mine, theirs)) = open.pop() {
            if mine == self.ones.len() && theirs == other.ones.len() {
                return true;
            }
            // Read one more character of a common text. Each pattern advances by one, or stays at a wildcard for
            // any text.
            for (next_mine, a) in self.moves(mine) {
                for (next_theirs, b) in other.moves(theirs) {
                    let at = next_mine * columns + next_theirs;
                    if a.meets(b) && !std::mem::replace(&mut seen[at], true) {
                        open.push((next_mine, next_theirs));
                    }
                }
            }
        }
        false
    }

    /// Returns the positions that one more character can lead to, each with the condition for the character.
    fn moves(&self, at: usize) -> impl Iterator<Item = (usize, One)> {
        let on = self.ones.get(at).map(|&one| (at + 1, one));
        let stay = self.text[at].map(|reach| (at, One::Any(reach)));
        on.into_iter().chain(stay)
    }
}

/// Reports whether `text` matches the pattern: `*` is any text including the empty one, `?` any one character.
pub fn matches(pattern: &str, text: &str) -> bool {
    matches_simply(pattern, text).unwrap_or_else(|| Glob::flat(pattern).matches(text))
}

/// Matches a pattern that is a name, a beginning or an end, as most are, without compiling it. Returns `None` for
/// another pattern.
fn matches_simply(pattern: &str, text: &str) -> Option<bool> {
    let is_literal = |part: &str| !part.contains(['*', '?']);
    if is_literal(pattern) {
        return Some(pattern == text);
    }
    let start = pattern.strip_suffix('*').filter(|start| is_literal(start));
    let end = pattern.strip_prefix('*').filter(|end| is_literal(end));
    start.map(|start| text.starts_with(start)).or_else(|| end.map(|end| text.ends_with(end)))
}

/// Reports whether a shell would expand the pattern to this file name: a hidden file matches only a pattern that
/// starts with a dot.
pub fn matches_file_name(pattern: &str, name: &str) -> bool {
    (pattern.starts_with('.') || !name.starts_with('.')) && matches(pattern, name)
}

/// Matches the pattern against a text with unknown parts: `*` is any text including the empty one, `?` any one
/// character.
pub fn fits(pattern: &str, text: &str) -> Fits {
    if text.contains(HOLE) { Glob::flat(pattern).fits(text) } else { Fits::of(matches(pattern, text)) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wildcards_of_a_path_stay_within_their_reach() {
        for (pattern, text, expected) in [
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/", true),
            ("/a/*", "/a", false),
            ("/a/*", "/a/b/c", false),
            ("/a/*/c", "/a/b/c", true),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/a", false),
            ("/a/**/c", "/a/b/b/c", true),
            ("/a/**/c", "/a/c", false),
            ("/a/**c", "/a/c", true),
            ("/a/***", "/a/b/c", true),
            ("/a/*.so.?", "/a/x.so.1", true),
            ("/a/*.so.?", "/a/x.so.12", false),
            ("/a?b", "/a/b", false),
            ("/ä/?", "/ä/ö", true),
            ("/**/x/*", "/1/x/2/x/3", true),
            ("/**/x/*", "/1/x/2/3", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Glob::path(pattern).matches(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn wildcards_of_flat_text_cross_everything() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("a?c", "a/c", true),
            ("*a*b", "xaxaxb", true),
            ("*a*b", "xaxax", false),
            ("a*", "ba", false),
            ("a", "A", false),
            ("**", "x", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
            assert_eq!(Glob::flat(pattern).matches(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_simple_pattern_matches_the_same_texts_without_being_compiled() {
        let texts = words("a/b", 3);
        for pattern in words("a/*?", 4) {
            let glob = Glob::flat(&pattern);
            for text in &texts {
                assert_eq!(matches(&pattern, text), glob.matches(text), "{pattern:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_hidden_file_matches_only_a_pattern_that_starts_with_a_dot() {
        for (pattern, name, expected) in
            [("*", "a", true), ("*", ".a", false), ("?a", ".a", false), (".*", ".a", true), (".*", "a", false)]
        {
            assert_eq!(matches_file_name(pattern, name), expected, "{pattern} {name}");
        }
    }

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
            ("\u{10fffe}", "\u{10fffe}", Fits::Perhaps),
            ("a\u{10fffe}*", "a\u{10fffe}", Fits::Perhaps),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_hole_in_a_path_may_contain_a_slash() {
        for (pattern, text, expected) in [
            ("/a/*", "/a/\u{10fffe}", Fits::Perhaps),
            ("/a/**", "/a/\u{10fffe}", Fits::Yes),
            ("/a/*/c", "/\u{10fffe}/c", Fits::Perhaps),
        ] {
            assert_eq!(Glob::path(pattern).fits(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_hole_leads_to_every_later_word_of_bits() {
        let pattern = format!("{}b{}", "a".repeat(70), "c".repeat(130));
        let fits = |text: String| fits(&pattern, &text);
        assert_eq!(fits(format!("{}{HOLE}", "a".repeat(66))), Fits::Perhaps);
        assert_eq!(fits(format!("{}{HOLE}c", "a".repeat(3))), Fits::Perhaps);
        assert_eq!(fits(format!("{}{HOLE}b", "a".repeat(3))), Fits::No);
        assert_eq!(fits(format!("{}b{HOLE}b{HOLE}", "a".repeat(70))), Fits::No);
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

    /// A direct implementation of the grammar, for short texts.
    fn slow(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', '*', rest @ ..] => (0..=text.len()).any(|n| slow(rest, &text[n..])),
            ['*', rest @ ..] => {
                (0..=text.len()).take_while(|&n| !text[..n].contains(&'/')).any(|n| slow(rest, &text[n..]))
            }
            ['?', rest @ ..] => text.first().is_some_and(|&c| c != '/') && slow(rest, &text[1..]),
            [c, rest @ ..] => text.first() == Some(c) && slow(rest, &text[1..]),
        }
    }

    /// Returns all words of up to `length` letters.
    fn words(letters: &str, length: usize) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut last = words.clone();
        for _ in 0..length {
            last = last.iter().flat_map(|word| letters.chars().map(move |c| format!("{word}{c}"))).collect();
            words.extend(last.iter().cloned());
        }
        words
    }

    #[test]
    fn every_short_pattern_means_what_the_grammar_says() {
        let texts = words("a/b", 4);
        for pattern in words("a/*?", 5) {
            let glob = Glob::path(&pattern);
            let chars: Vec<char> = pattern.chars().collect();
            for text in &texts {
                let expected = slow(&chars, &text.chars().collect::<Vec<_>>());
                assert_eq!(glob.matches(text), expected, "{pattern:?} {text:?}");
            }
        }
    }

    #[test]
    fn two_patterns_overlap_if_some_text_matches_both() {
        let texts = words("a/b", 4);
        let globs: Vec<(String, Glob)> = words("a/*?", 3).into_iter().map(|p| (p.clone(), Glob::path(&p))).collect();
        for (a, glob_a) in &globs {
            for (b, glob_b) in &globs {
                let witness = texts.iter().find(|text| glob_a.matches(text) && glob_b.matches(text));
                assert_eq!(glob_a.overlaps(glob_b), witness.is_some(), "{a:?} {b:?} {witness:?}");
            }
        }
    }

    #[test]
    fn the_longest_patterns_are_matched_in_little_time() {
        let start = Instant::now();
        for pattern in ["*a".repeat(2000), "**a".repeat(1300), "?*".repeat(2000), format!("*{}b", "a".repeat(4000))] {
            assert!(!Glob::path(&format!("{pattern}!")).matches(&"a".repeat(100_000)));
            assert!(!Glob::flat(&format!("{pattern}!")).matches(&"a".repeat(100_000)));
        }
        assert!(Glob::flat(&"*a".repeat(40)).matches(&"a".repeat(5000)));
        // Backtracking would not finish in any practical time.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn a_pattern_of_many_words_of_bits_carries_from_one_to_the_next() {
        let text = "abcdefghij".repeat(30);
        assert!(Glob::path(&text).matches(&text));
        assert!(Glob::path(&text.replace('c', "?")).matches(&text));
        assert!(Glob::path(&format!("{}*", &text[..128])).matches(&text));
        assert!(!Glob::path(&text).matches(&text[..299]));
    }
}
