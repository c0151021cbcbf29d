//! Styled text, and its division into lines that fit the width.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr};

use crate::terminal::harmless;

/// Styles of a piece of text, as a set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Style(u8);

impl Style {
    pub(super) const BOLD: Self = Self(1);
    pub(super) const ITALIC: Self = Self(1 << 1);
    pub(super) const STRUCK: Self = Self(1 << 2);
    pub(super) const CODE: Self = Self(1 << 3);
    pub(super) const LINK: Self = Self(1 << 4);
    pub(super) const DIM: Self = Self(1 << 5);

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Paints text. The colours are among the first eight, which a terminal adapts to its background.
    pub(super) fn paint(self, text: &str, colour: bool) -> String {
        if !colour || self == Self::default() || text.is_empty() {
            return text.to_owned();
        }
        let codes = [
            (Self::BOLD, "1"),
            (Self::ITALIC, "3"),
            (Self::STRUCK, "9"),
            (Self::CODE, "36"),
            (Self::LINK, "4"),
            (Self::DIM, "2"),
        ];
        let codes: Vec<&str> =
            codes.into_iter().filter(|(style, _)| self.0 & style.0 != 0).map(|(_, code)| code).collect();
        format!("\x1b[{}m{text}\x1b[0m", codes.join(";"))
    }
}

/// A paragraph, a heading or a cell: text with styles. A newline is a line break.
#[derive(Debug, Clone, Default)]
pub(super) struct Spans(Vec<(String, Style)>);

impl Spans {
    /// Adds text, without control characters.
    pub(super) fn push(&mut self, text: &str, style: Style) {
        let text = harmless(text).replace('\t', "    ");
        match self.0.last_mut() {
            Some((last, same)) if *same == style => last.push_str(&text),
            _ => self.0.push((text, style)),
        }
    }

    pub(super) fn ends_with(&self, text: &str) -> bool {
        self.0.last().is_some_and(|(last, _)| last.ends_with(text))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|(text, _)| text.is_empty())
    }

    /// Returns the width of the widest line.
    pub(super) fn width(&self) -> usize {
        let text: String = self.0.iter().map(|(text, _)| text.as_str()).collect();
        text.lines().map(UnicodeWidthStr::width).max().unwrap_or_default()
    }

    /// Divides the text into lines of at most this width, between words where possible. Returns each line painted,
    /// with its width.
    pub(super) fn wrap(&self, width: usize, colour: bool) -> Vec<(String, usize)> {
        let width = width.max(1);
        let mut lines = vec![Line::default()];
        for (text, style) in &self.0 {
            for (number, part) in text.split('\n').enumerate() {
                if number > 0 {
                    lines.push(Line::default());
                }
                for word in words(part) {
                    place(&mut lines, word, *style, width);
                }
            }
        }
        lines.into_iter().map(|line| line.painted(colour)).collect()
    }
}

#[derive(Default)]
struct Line {
    parts: Vec<(String, Style)>,
    width: usize,
}

impl Line {
    fn push(&mut self, text: &str, style: Style) {
        self.width += text.width();
        match self.parts.last_mut() {
            Some((last, same)) if *same == style => last.push_str(text),
            _ => self.parts.push((text.to_owned(), style)),
        }
    }

    /// Removes the end of the line after its last space, unless the line has no other text.
    fn take_last_word(&mut self) -> Vec<(String, Style)> {
        let mut word = Vec::new();
        while let Some((text, style)) = self.parts.pop() {
            match text.rfind(' ') {
                Some(space) => {
                    word.insert(0, (text[space + 1..].to_owned(), style));
                    self.parts.push((text[..=space].to_owned(), style));
                    break;
                }
                None => word.insert(0, (text, style)),
            }
        }
        if self.parts.is_empty() {
            std::mem::swap(&mut self.parts, &mut word);
        }
        word.retain(|(text, _)| !text.is_empty());
        self.width = self.parts.iter().map(|(text, _)| text.width()).sum();
        word
    }

    fn painted(self, colour: bool) -> (String, usize) {
        let text: String = self.parts.iter().map(|(text, _)| text.as_str()).collect();
        let excess = text.len() - text.trim_end_matches(' ').len();
        let mut parts = self.parts;
        let mut left = excess;
        while left > 0
            && let Some((last, _)) = parts.last_mut()
        {
            let spaces = (last.len() - last.trim_end_matches(' ').len()).min(left);
            last.truncate(last.len() - spaces);
            left -= spaces;
            if last.is_empty() {
                parts.pop();
            }
        }
        (parts.iter().map(|(text, style)| style.paint(text, colour)).collect(), self.width - excess)
    }
}

/// Divides a text into words, each with the spaces after it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

/// Puts a word on the last line, or on a new one.
fn place(lines: &mut Vec<Line>, word: &str, style: Style, width: usize) {
    let Some(line) = lines.last_mut() else { return };
    if line.width + word.trim_end_matches(' ').width() <= width {
        line.push(word, style);
        return;
    }
    // The word may begin in the text before, which has another style: "**bold**," is one word.
    let begun = line.take_last_word();
    let mut next = Line::default();
    for (text, style) in begun {
        next.push(&text, style);
    }
    if line.width > 0 {
        lines.push(next);
    } else {
        *line = next;
    }
    let Some(line) = lines.last_mut() else { return };
    if line.width + word.trim_end_matches(' ').width() <= width {
        line.push(word, style);
        return;
    }
    // Longer than a line.
    let mut part = String::new();
    let mut used = line.width;
    for c in word.chars() {
        let columns = c.width().unwrap_or_default();
        if used + columns > width && c != ' ' {
            if let Some(line) = lines.last_mut() {
                line.push(&part, style);
            }
            lines.push(Line::default());
            part.clear();
            used = 0;
        }
        part.push(c);
        used += columns;
    }
    if let Some(line) = lines.last_mut() {
        line.push(&part, style);
    }
}
