//! Turns painted text into styled text of ratatui, and makes text of a session safe for the screen.

use std::borrow::Cow;

use agentd_screen::table::{Cut, shorten};
use agentd_screen::terminal::harmless;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Returns a painted row as styled text. The only control sequences of painted text are styles.
pub(super) fn styled(painted: &str) -> Line<'static> {
    let mut spans = Vec::new();
    let (mut style, mut rest) = (Style::new(), painted);
    while let Some(at) = rest.find("\x1b[") {
        if at > 0 {
            spans.push(Span::styled(rest[..at].to_owned(), style));
        }
        let sequence = &rest[at + 2..];
        let end = sequence.find('m').unwrap_or(sequence.len());
        style = match &sequence[..end] {
            "1" => style.add_modifier(Modifier::BOLD),
            "2" => style.add_modifier(Modifier::DIM),
            "31" => style.fg(Color::Red),
            "32" => style.fg(Color::Green),
            "33" => style.fg(Color::Yellow),
            _ => Style::new(),
        };
        rest = sequence.get(end + 1..).unwrap_or_default();
    }
    if !rest.is_empty() {
        spans.push(Span::styled(rest.to_owned(), style));
    }
    Line::from(spans)
}

/// Returns text of a session on one line, safe for the screen.
pub(super) fn one(text: &str) -> String {
    let text: Cow<'_, str> = harmless(text);
    text.replace(['\n', '\t'], " ")
}

/// Returns text of a session in exactly this number of columns.
pub(super) fn cell(text: &str, width: usize, cut: Cut) -> String {
    let mut text = if width == 0 { String::new() } else { shorten(&one(text), width, cut) };
    let used = agentd_screen::painted::width(&text);
    text.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn painted_text_keeps_its_styles_and_loses_its_sequences() {
        let line = styled("a\x1b[1mb\x1b[31mc\x1b[0md\x1b[");
        let parts: Vec<_> = line.spans.iter().map(|span| (span.content.as_ref(), span.style)).collect();
        let bold = Style::new().add_modifier(Modifier::BOLD);
        assert_eq!(parts, [("a", Style::new()), ("b", bold), ("c", bold.fg(Color::Red)), ("d", Style::new())]);
        assert!(styled("").spans.is_empty());
    }

    #[test]
    fn a_cell_has_its_width_whatever_is_in_it() {
        for (text, cut, shown) in [
            ("ab", Cut::End, "ab   "),
            ("日本語", Cut::End, "日本…"),
            ("/a/b/c/d", Cut::Start, "…/c/d"),
            ("a\nb\x1b[2J", Cut::End, "a b␛…"),
            ("\u{202e}x", Cut::End, "\u{fffd}x   "),
        ] {
            assert_eq!(cell(text, 5, cut), shown);
        }
        assert_eq!(cell("abc", 0, Cut::End), "");
    }
}
