//! Formats tables as `kubectl` and `systemctl` do: columns without lines, cut to the width of the terminal.

use std::borrow::Cow;

use jiff::Timestamp;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const GAP: usize = 2;
/// Minimum width of a column that is cut.
const NARROWEST: usize = 8;

/// End from which a column may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Never,
    End,
    /// Paths differ at their end, so the start is cut.
    Start,
}

#[derive(Debug)]
pub struct Table {
    columns: Vec<(Cow<'static, str>, Cut)>,
    has_head: bool,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Cut)]) -> Self {
        let columns = columns.iter().map(|(name, cut)| (Cow::Borrowed(*name), *cut)).collect();
        Self { columns, has_head: true, rows: Vec::new() }
    }

    /// Returns a table with titles that are known at run time only.
    pub fn titled(columns: impl IntoIterator<Item = (String, Cut)>) -> Self {
        let columns = columns.into_iter().map(|(name, cut)| (Cow::Owned(name), cut)).collect();
        Self { columns, has_head: true, rows: Vec::new() }
    }

    /// Returns the table without the line of its titles.
    #[must_use]
    pub fn without_head(self) -> Self {
        Self { has_head: false, ..self }
    }

    /// Adds a row; each cell is one line.
    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// Returns the lines, the head first. `columns` is the width of the terminal; without a terminal nothing is
    /// cut.
    pub fn render(&self, columns: Option<usize>) -> String {
        let widths = self.widths(columns);
        let head = self.columns.iter().map(|(name, _)| name.to_string()).collect();
        let mut text = String::new();
        for row in std::iter::once(&head).filter(|_| self.has_head).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), (_, cut)) in row.iter().zip(&widths).zip(&self.columns) {
                let cell = shorten(cell, *width, *cut);
                let space = (width + GAP).saturating_sub(cell.width());
                line.push_str(&cell);
                line.extend(std::iter::repeat_n(' ', space));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> =
            self.columns.iter().map(|(name, _)| if self.has_head { name.width() } else { 0 }).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let Some(limit) = limit else { return widths };
        // The widest column that may be cut shrinks first.
        while widths.iter().sum::<usize>() + GAP * (widths.len() - 1) > limit {
            let candidates = widths.iter_mut().zip(&self.columns).filter(|(_, (_, cut))| *cut != Cut::Never);
            match candidates.map(|(width, _)| width).max() {
                Some(width) if *width > NARROWEST => *width -= 1,
                _ => break,
            }
        }
        widths
    }
}

/// Cuts a text to a width in columns, with an ellipsis for the rest.
pub fn shorten(text: &str, width: usize, cut: Cut) -> String {
    if text.width() <= width || cut == Cut::Never {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let mut fits = |c: &char| {
        let takes = c.width().unwrap_or(0);
        let fits = takes <= room;
        room = if fits { room - takes } else { 0 };
        fits
    };
    if cut == Cut::Start {
        let kept: Vec<char> = text.chars().rev().take_while(|c| fits(c)).collect();
        std::iter::once('…').chain(kept.into_iter().rev()).collect()
    } else {
        text.chars().take_while(|c| fits(c)).chain(['…']).collect()
    }
}

/// Formats the age of a time in its largest unit, as kubectl does.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(since.as_second());
    span(u64::try_from(seconds).unwrap_or(0))
}

/// Formats a size in bytes as du(1) does, with the largest unit and one decimal.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["K", "M", "G", "T"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    // In tenths of the unit, rounded up, so that no size is understated.
    let (mut tenths, mut unit) = (bytes.saturating_mul(10).div_ceil(1024), 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        (tenths, unit) = (tenths.div_ceil(1024), unit + 1);
    }
    format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit])
}

/// Formats a number of seconds in its largest unit.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[("ID", Cut::Never), ("DIRECTORY", Cut::Start), ("TURN", Cut::End)]);
        table.row(["k3m9x2p7qa4z", "/home/somebody/projects/agentd", "show your environment"].map(String::from));
        table.row(["a", "/", ""].map(String::from));
        table
    }

    #[test]
    fn an_age_is_told_in_its_largest_unit_and_a_clock_that_went_back_is_no_age() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        for (since, told) in [
            ("2026-01-01T23:59:30Z", "30s"),
            ("2026-01-01T23:50:30Z", "9m"),
            ("2026-01-01T00:00:01Z", "23h"),
            ("2025-12-30T00:00:00Z", "3d"),
            ("2026-01-02T00:01:00Z", "0s"),
        ] {
            assert_eq!(age(since.parse().unwrap(), now), told);
        }
    }

    #[test]
    fn a_size_has_its_largest_unit() {
        for (bytes, told) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (1_048_576, "1.0M"),
            (12_582_912, "12.0M"),
            (1_073_741_824, "1.0G"),
            (u64::MAX, "1677721.6T"),
        ] {
            assert_eq!(size(bytes), told, "{bytes}");
        }
    }

    #[test]
    fn a_table_fits_the_terminal_and_keeps_the_end_of_a_path() {
        let text = table().render(Some(40));
        assert!(text.lines().all(|line| line.width() <= 40), "{text}");
        assert!(text.contains("agentd  "), "{text}");
        assert!(text.contains("show your e…"), "{text}");
        assert!(text.contains("k3m9x2p7qa4z  …"), "{text}");
    }

    #[test]
    fn where_there_is_no_terminal_nothing_is_cut() {
        let text = table().render(None);
        assert_eq!(text.lines().nth(1).unwrap(), "k3m9x2p7qa4z  /home/somebody/projects/agentd  show your environment");
        assert_eq!(text.lines().nth(2).unwrap(), "a             /");
    }

    #[test]
    fn wide_characters_are_counted_as_the_terminal_does() {
        let mut table = Table::new(&[("NAME", Cut::End), ("X", Cut::Never)]);
        table.row(["日本語日本語日本語", "x"].map(String::from));
        for line in table.render(Some(14)).lines() {
            assert!(line.width() <= 14, "{line}");
        }
    }
}
