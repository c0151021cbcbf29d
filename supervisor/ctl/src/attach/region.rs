//! Draws the rows at the bottom of the terminal that change: unfinished text, the question, the input, the status.
//!
//! Finished lines go above these rows and scroll away like those of any program. One drawing is one write, inside a
//! synchronized update (mode 2026), so that a terminal shows it as a whole. The region asks the terminal nothing: the
//! cursor's place follows from the rows of the last drawing.

use std::fmt::Write as _;
use std::io::{self, Write};

use agentd_screen::painted;

const BEGIN: &str = "\x1b[?2026h\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?2026l";
/// Clears from the cursor to the end of the screen.
const CLEAR_BELOW: &str = "\x1b[J";

/// Rows to draw, each at most as wide as the terminal, and the place of the cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) rows: Vec<String>,
    /// Row and column of the cursor.
    pub(super) cursor: (usize, usize),
}

#[derive(Debug)]
pub(super) struct Region<W> {
    out: W,
    /// Rows on the screen, and the cursor among them.
    drawn: Rows,
}

impl<W: Write> Region<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, drawn: Rows::default() }
    }

    /// Draws the rows, below these finished lines.
    pub(super) fn draw(&mut self, finished: &str, next: Rows) -> io::Result<()> {
        if finished.is_empty() && next == self.drawn {
            return Ok(());
        }
        let mut text = BEGIN.to_owned();
        if finished.is_empty() && next.rows.len() == self.drawn.rows.len() {
            self.change_rows(&next, &mut text);
        } else {
            self.to_top(&mut text);
            text.push_str(CLEAR_BELOW);
            text.push_str(&finished.replace('\n', "\r\n"));
            text.push_str(&next.rows.join("\r\n"));
            let last = next.rows.len().saturating_sub(1);
            move_rows(last, next.cursor.0, &mut text);
        }
        text.push('\r');
        if next.cursor.1 > 0 {
            let _ = write!(text, "\x1b[{}C", next.cursor.1); // a String takes all
        }
        text.push_str(END);
        self.drawn = next;
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes only the rows that differ, and leaves the cursor in its row.
    fn change_rows(&self, next: &Rows, text: &mut String) {
        let mut at = self.drawn.cursor.0;
        for (number, (row, old)) in next.rows.iter().zip(&self.drawn.rows).enumerate() {
            if row != old {
                move_rows(at, number, text);
                at = number;
                text.push_str("\r\x1b[2K");
                text.push_str(row);
            }
        }
        move_rows(at, next.cursor.0, text);
    }

    /// Adapts to a terminal whose width changed: terminals then wrap the rows on the screen again.
    pub(super) fn resized(&mut self, columns: usize) {
        let heights = |rows: &[String]| -> usize {
            rows.iter().map(|row| painted::width(row).div_ceil(columns.max(1)).max(1)).sum()
        };
        let (row, column) = self.drawn.cursor;
        let above = heights(&self.drawn.rows[..row.min(self.drawn.rows.len())]);
        let total = heights(&self.drawn.rows);
        // Rows without text: only their number and the cursor's row matter for the next drawing.
        self.drawn = Rows { rows: vec!["\0".to_owned(); total], cursor: (above + column / columns.max(1), 0) };
    }

    /// Removes the rows. The cursor is then where the next line of output begins.
    pub(super) fn clear(&mut self, finished: &str) -> io::Result<()> {
        let mut text = BEGIN.to_owned();
        self.to_top(&mut text);
        text.push_str(CLEAR_BELOW);
        text.push_str(&finished.replace('\n', "\r\n"));
        text.push_str(END);
        self.drawn = Rows::default();
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Clears the whole screen, as Ctrl-L does.
    pub(super) fn clear_screen(&mut self) -> io::Result<()> {
        self.drawn = Rows::default();
        self.out.write_all(b"\x1b[2J\x1b[H")
    }

    fn to_top(&self, text: &mut String) {
        move_rows(self.drawn.cursor.0, 0, text);
        text.push('\r');
    }
}

fn move_rows(from: usize, to: usize, text: &mut String) {
    if from > to {
        let _ = write!(text, "\x1b[{}A", from - to);
    } else if to > from {
        let _ = write!(text, "\x1b[{}B", to - from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&str], cursor: (usize, usize)) -> Rows {
        Rows { rows: rows.iter().map(|&row| row.to_owned()).collect(), cursor }
    }

    fn drawn(region: &mut Region<Vec<u8>>, finished: &str, next: Rows) -> String {
        region.out.clear();
        region.draw(finished, next).unwrap();
        String::from_utf8(region.out.clone()).unwrap().replace(BEGIN, "<").replace(END, ">")
    }

    #[test]
    fn finished_lines_replace_the_rows_and_the_rows_follow_below() {
        let mut region = Region::new(Vec::new());
        assert_eq!(drawn(&mut region, "", rows(&["> a", "status"], (0, 3))), "<\r\x1b[J> a\r\nstatus\x1b[1A\r\x1b[3C>");
        assert_eq!(
            drawn(&mut region, "one\ntwo\n", rows(&["> a", "status"], (0, 3))),
            "<\r\x1b[Jone\r\ntwo\r\n> a\r\nstatus\x1b[1A\r\x1b[3C>"
        );
        region.out.clear();
        region.clear("").unwrap();
        assert!(String::from_utf8(region.out.clone()).unwrap().contains("\r\x1b[J"));
    }

    #[test]
    fn only_the_rows_that_differ_are_written() {
        let mut region = Region::new(Vec::new());
        drawn(&mut region, "", rows(&["> a", "1 s"], (0, 3)));
        assert_eq!(drawn(&mut region, "", rows(&["> a", "1 s"], (0, 3))), "");
        assert_eq!(drawn(&mut region, "", rows(&["> a", "2 s"], (0, 3))), "<\x1b[1B\r\x1b[2K2 s\x1b[1A\r\x1b[3C>");
    }

    #[test]
    fn after_a_resize_the_rows_that_the_terminal_divided_are_replaced() {
        let mut region = Region::new(Vec::new());
        drawn(&mut region, "", rows(&["0123456789", "> abc", "status"], (1, 5)));
        region.resized(5);
        let text = drawn(&mut region, "", rows(&["> abc"], (0, 5)));
        assert!(text.starts_with("<\x1b[3A\r\x1b[J> abc"), "{text:?}");
    }
}
