//! Lays out a table: columns as wide as their cells, or narrower with wrapped cells.

use pulldown_cmark::Alignment;

use super::lines::{Spans, Style};

/// Smallest width to which a column is narrowed.
const NARROWEST: usize = 6;
const SEPARATOR: &str = " │ ";

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) alignments: Vec<Alignment>,
    pub(super) rows: Vec<Vec<Spans>>,
}

impl Table {
    /// Returns the lines of the table. The first row is the head.
    pub(super) fn lines(&self, width: usize, colour: bool) -> Vec<String> {
        let widths = self.widths(width);
        let mut lines = Vec::new();
        for (number, row) in self.rows.iter().enumerate() {
            let cells: Vec<Vec<(String, usize)>> =
                row.iter().zip(&widths).map(|(cell, width)| cell.wrap(*width, colour)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or_default();
            for line in 0..height {
                let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                    let (text, used) = cell.get(line).cloned().unwrap_or_default();
                    self.aligned(column, &text, width.saturating_sub(used))
                });
                let separator = Style::DIM.paint(SEPARATOR, colour);
                lines.push(cells.collect::<Vec<_>>().join(&separator).trim_end().to_owned());
            }
            if number == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                lines.push(Style::DIM.paint(&rule.join("─┼─"), colour));
            }
        }
        lines
    }

    fn aligned(&self, column: usize, text: &str, room: usize) -> String {
        let (left, right) = match self.alignments.get(column) {
            Some(Alignment::Right) => (room, 0),
            Some(Alignment::Center) => (room / 2, room - room / 2),
            _ => (0, room),
        };
        format!("{}{text}{}", " ".repeat(left), " ".repeat(right))
    }

    /// Returns the widths of the columns. The widest columns are narrowed until the table fits.
    fn widths(&self, width: usize) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let mut widths: Vec<usize> =
            (0..columns).map(|column| cells(column).map(Spans::width).max().unwrap_or_default().max(1)).collect();
        let room = width.saturating_sub(SEPARATOR.chars().count() * columns.saturating_sub(1));
        while widths.iter().sum::<usize>() > room {
            match widths.iter_mut().max() {
                Some(widest) if *widest > NARROWEST => *widest -= 1,
                _ => break,
            }
        }
        widths
    }
}
