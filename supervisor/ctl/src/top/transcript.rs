//! The part of a conversation that is in memory: painted lines, a window on the journal, and the place of the reader.
//!
//! Pure. The window is bounded: at its end the oldest lines go, and while the reader is above the end, the newest. The
//! place of the reader stays at its text when lines come at either end.

use std::collections::VecDeque;
use std::fmt::Write as _;

use agentd_screen::painted;

/// Maximum number of lines, and of bytes in them.
const MAX_LINES: usize = 4_000;
const MAX_BYTES: usize = 4 << 20;
/// Maximum length of a line in bytes, and maximum number of lines of one record.
const MAX_LINE: usize = 4_000;
const MAX_PIECE: usize = 1_000;

/// One line before it is divided into rows.
#[derive(Debug, Default)]
struct Line {
    /// Sequence number of the record in which the line begins.
    seq: u64,
    text: String,
    /// Number of bytes that are left out at the end.
    hidden: usize,
}

impl Line {
    fn push(&mut self, text: &str) {
        if self.hidden > 0 {
            self.hidden += text.len();
            return;
        }
        let room = MAX_LINE.saturating_sub(self.text.len());
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // A style is not cut.
        if end < text.len()
            && let Some(style) = text[..end].rfind('\u{1b}')
            && !text[style..end].contains('m')
        {
            end = style;
        }
        self.text.push_str(&text[..end]);
        self.hidden = text.len() - end;
    }

    fn rows(&self, columns: usize) -> Vec<String> {
        let mut text = self.text.clone();
        if self.hidden > 0 {
            let _ = write!(text, "\x1b[0m … {} more bytes", self.hidden); // a String takes all
        }
        painted::words(&text, columns)
    }
}

/// Place of the last row that the reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// Number of the line. Lines keep their numbers when others come or go.
    line: i64,
    row: usize,
}

/// The lines in memory.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Transcript {
    lines: VecDeque<Line>,
    bytes: usize,
    /// Number of the first line.
    first: i64,
    /// Whether the last line may continue.
    is_open: bool,
    /// Place of the reader; `None` at the end.
    place: Option<Place>,
    /// Whether lines at the end were left out, because the reader is above the end.
    is_cut: bool,
    /// Columns and rows of the last view.
    size: (usize, usize),
    /// Whether the last view showed the first row.
    is_at_top: bool,
    /// Whether lines at the beginning were left out since the last page of earlier records.
    is_trimmed: bool,
}

impl Transcript {
    /// Adds the painted text of a record. The text must be harmless.
    pub(super) fn push(&mut self, seq: u64, text: &str) {
        if self.is_cut {
            return;
        }
        for (number, piece) in text.split_inclusive('\n').enumerate() {
            if number == MAX_PIECE {
                self.add(seq, &format!("… {} more lines", text.lines().count() - MAX_PIECE));
                self.is_open = false;
                break;
            }
            let ends = piece.ends_with('\n');
            self.add(seq, &piece.trim_end_matches('\n').replace('\t', "    "));
            self.is_open = !ends;
        }
        if self.place.is_none() {
            self.trim();
        } else if self.is_too_large() {
            // The end is read again once the reader returns to it.
            self.is_cut = true;
        }
    }

    fn add(&mut self, seq: u64, text: &str) {
        if !self.is_open || self.lines.is_empty() {
            self.lines.push_back(Line { seq, ..Line::default() });
        }
        if let Some(line) = self.lines.back_mut() {
            let before = line.text.len();
            line.push(text);
            self.bytes += line.text.len() - before;
        }
    }

    fn is_too_large(&self) -> bool {
        self.lines.len() > MAX_LINES || (self.bytes > MAX_BYTES && self.lines.len() > 1)
    }

    fn drop_first(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.text.len();
            self.first += 1;
        }
    }

    /// Adds the lines of earlier records before the first line. With `joins`, the first line continues their last.
    pub(super) fn prepend(&mut self, mut earlier: Self, joins: bool) {
        self.is_open |= self.lines.is_empty() && earlier.is_open;
        if joins
            && earlier.is_open
            && let (Some(last), Some(first)) = (earlier.lines.back_mut(), self.lines.front())
        {
            last.push(&first.text);
            last.hidden += first.hidden;
            self.drop_first();
        }
        self.first -= i64::try_from(earlier.lines.len()).unwrap_or_default();
        earlier.lines.append(&mut self.lines);
        self.lines = earlier.lines;
        self.bytes = self.lines.iter().map(|line| line.text.len()).sum();
        while self.place.is_some() && self.is_too_large() {
            let dropped = self.lines.pop_back();
            self.bytes -= dropped.map_or(0, |line| line.text.len());
            (self.is_cut, self.is_open) = (true, false);
        }
        self.is_trimmed = false;
        self.trim();
    }

    fn trim(&mut self) {
        while self.is_too_large() {
            self.drop_first();
            self.is_trimmed = true;
        }
    }

    /// Returns the sequence number of the record with the first line, if earlier lines were in memory before.
    pub(super) fn trimmed_to(&self) -> Option<u64> {
        self.lines.front().filter(|_| self.is_trimmed).map(|line| line.seq)
    }

    /// Reports whether the end must be read again to be shown.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Reports whether the reader sees the last line in memory.
    pub(super) fn is_at_end(&self) -> bool {
        self.place.is_none()
    }

    /// Reports whether the last view showed the first row.
    pub(super) fn is_at_top(&self) -> bool {
        self.is_at_top
    }

    /// Moves the reader to the end.
    pub(super) fn go_to_end(&mut self) {
        self.place = None;
    }

    /// Moves the reader to the first line.
    pub(super) fn go_to_top(&mut self) {
        self.place = Some(Place { line: self.first, row: 0 });
    }

    /// Moves the reader down by this number of rows, or up if negative.
    pub(super) fn scroll(&mut self, rows: isize) {
        let last = self.first + i64::try_from(self.lines.len()).unwrap_or_default() - 1;
        let Some(end) = self.rows(last) else { return };
        let mut place = self.place.unwrap_or(Place { line: last, row: end.len() - 1 });
        for _ in 0..rows.unsigned_abs() {
            let moved = if rows < 0 { self.above(place) } else { self.below(place) };
            match moved {
                Some(moved) => place = moved,
                None => break,
            }
        }
        self.place = (place != Place { line: last, row: end.len() - 1 }).then_some(place);
    }

    /// Moves the reader by pages.
    pub(super) fn page(&mut self, pages: isize) {
        let rows = self.size.1.saturating_sub(1).max(1).cast_signed();
        self.scroll(rows.saturating_mul(pages));
    }

    fn rows(&self, line: i64) -> Option<Vec<String>> {
        let at = usize::try_from(line.checked_sub(self.first)?).ok()?;
        Some(self.lines.get(at)?.rows(self.size.0))
    }

    fn above(&self, place: Place) -> Option<Place> {
        if let Some(row) = place.row.checked_sub(1) {
            return Some(Place { row, ..place });
        }
        let line = place.line - 1;
        self.rows(line).map(|rows| Place { line, row: rows.len() - 1 })
    }

    fn below(&self, place: Place) -> Option<Place> {
        if place.row + 1 < self.rows(place.line)?.len() {
            return Some(Place { row: place.row + 1, ..place });
        }
        let line = place.line + 1;
        self.rows(line).map(|_| Place { line, row: 0 })
    }

    /// Returns the painted rows for a view of this size. The view is full if there are enough rows.
    pub(super) fn view(&mut self, columns: usize, height: usize) -> Vec<String> {
        self.size = (columns, height);
        let last = self.first + i64::try_from(self.lines.len()).unwrap_or_default() - 1;
        let mut rows = VecDeque::new();
        let (mut line, mut upto) = match self.place {
            Some(place) => (place.line.clamp(self.first, last.max(self.first)), Some(place.row)),
            None => (last, None),
        };
        let below = line;
        let mut is_whole = false;
        while rows.len() < height {
            let Some(mut found) = self.rows(line) else { break };
            if let Some(row) = upto.take() {
                found.truncate(row + 1);
            }
            is_whole = found.len() <= height - rows.len();
            for row in found.into_iter().rev().take(height - rows.len()) {
                rows.push_front(row);
            }
            line -= 1;
        }
        self.is_at_top = self.lines.is_empty() || (line < self.first && is_whole);
        if rows.len() < height && self.place.is_some() {
            self.fill_below(&mut rows, below, height);
        }
        rows.into()
    }

    /// Adds rows below the place of the reader, who is near the top.
    fn fill_below(&mut self, rows: &mut VecDeque<String>, line: i64, height: usize) {
        let row = self.place.map_or(0, |place| place.row);
        let row = row.min(self.rows(line).map_or(0, |rows| rows.len().saturating_sub(1)));
        let mut place = Place { line, row };
        while rows.len() < height {
            let Some(next) = self.below(place) else {
                self.place = None;
                return;
            };
            place = next;
            rows.extend(self.rows(place.line).and_then(|rows| rows.into_iter().nth(place.row)));
        }
        self.place = Some(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(numbers: std::ops::RangeInclusive<u64>) -> Transcript {
        let mut transcript = Transcript::default();
        for number in numbers {
            transcript.push(number, &format!("line {number}\n"));
        }
        transcript
    }

    #[test]
    fn text_in_pieces_is_one_line_and_long_lines_have_rows() {
        let mut transcript = Transcript::default();
        for (seq, piece) in [(1, "ab"), (2, "cd\ne"), (3, "f\n"), (4, "日本語\n")] {
            transcript.push(seq, piece);
        }
        assert_eq!(transcript.view(3, 9), ["abc", "d", "ef", "日", "本", "語"]);
        assert_eq!(transcript.view(80, 2), ["ef", "日本語"]);
        assert!(!transcript.is_at_top() && transcript.is_at_end());
    }

    #[test]
    fn the_reader_stays_at_a_text_when_lines_come_at_both_ends() {
        let mut transcript = numbered(51..=100);
        assert_eq!(transcript.view(80, 3), ["line 98", "line 99", "line 100"]);
        transcript.scroll(-10);
        let seen = ["line 88", "line 89", "line 90"];
        assert_eq!(transcript.view(80, 3), seen);
        transcript.push(101, "line 101\n");
        assert_eq!(transcript.view(80, 3), seen);
        transcript.prepend(numbered(1..=50), false);
        assert_eq!(transcript.view(80, 3), seen);
        assert_eq!(transcript.trimmed_to(), None);
        transcript.go_to_top();
        assert_eq!(transcript.view(80, 3), ["line 1", "line 2", "line 3"]);
        assert!(transcript.is_at_top() && !transcript.is_at_end());
        transcript.page(1);
        assert_eq!(transcript.view(80, 3), ["line 3", "line 4", "line 5"]);
        transcript.page(1_000);
        assert_eq!(transcript.view(80, 3), ["line 99", "line 100", "line 101"]);
        assert!(transcript.is_at_end());
    }

    #[test]
    fn what_is_in_memory_is_bounded_at_the_end_and_above_it() {
        let mut transcript = numbered(1..=10_000);
        assert_eq!((transcript.lines.len(), transcript.trimmed_to()), (MAX_LINES, Some(6_001)));
        transcript.scroll(-5);
        let seen = transcript.view(80, 2);
        for seq in 10_001..20_000 {
            transcript.push(seq, "more\n");
        }
        assert!(transcript.is_cut() && transcript.lines.len() <= MAX_LINES + 1);
        assert_eq!(transcript.view(80, 2), seen);
        transcript.go_to_top();
        transcript.view(80, 2);
        transcript.prepend(numbered(5_001..=6_000), false);
        assert!(transcript.lines.len() <= MAX_LINES && transcript.is_cut());
        assert_eq!(transcript.view(80, 2), ["line 6001", "line 6002"]);
    }

    #[test]
    fn a_line_of_ten_megabytes_and_a_record_of_many_lines_are_cut() {
        let mut transcript = Transcript::default();
        transcript.push(1, &"x".repeat(10 << 20));
        transcript.push(2, "more\n");
        assert!(transcript.bytes <= MAX_LINE);
        let rows = transcript.view(80, 100);
        assert!(rows.last().unwrap().ends_with(&format!("… {} more bytes", (10 << 20) + 4 - MAX_LINE)), "{rows:?}");
        let mut transcript = Transcript::default();
        transcript.push(1, &"日\x1b[31m".repeat(MAX_LINE));
        assert!(transcript.lines[0].text.ends_with('m') || transcript.lines[0].text.ends_with('日'));
        let mut transcript = Transcript::default();
        transcript.push(1, &"y\n".repeat(5_000));
        assert_eq!(transcript.lines.len(), MAX_PIECE + 1);
        assert_eq!(transcript.view(80, 1), ["… 4000 more lines"]);
    }

    #[test]
    fn an_answer_that_two_pages_divide_is_one_line() {
        let mut later = Transcript::default();
        later.push(9, "ning\nnext\n");
        let mut earlier = Transcript::default();
        earlier.push(8, "begin");
        later.prepend(earlier, true);
        assert_eq!(later.view(80, 5), ["beginning", "next"]);
        let (mut later, mut earlier) = (Transcript::default(), Transcript::default());
        later.push(9, "ning\n");
        earlier.push(8, "begin");
        later.prepend(earlier, true);
        later.push(10, "next");
        assert_eq!(later.view(80, 5), ["beginning", "next"]);
    }

    #[test]
    fn a_view_without_room_shows_nothing() {
        let mut transcript = numbered(1..=3);
        assert!(transcript.view(0, 0).is_empty());
        transcript.scroll(-2);
        transcript.page(-1);
        transcript.page(1);
        assert_eq!(transcript.view(1, 1).len(), 1);
        let mut empty = Transcript::default();
        empty.scroll(-1);
        empty.go_to_top();
        assert!(empty.view(10, 10).is_empty() && empty.is_at_top());
    }
}
