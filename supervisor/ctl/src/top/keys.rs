//! The keys of the view: what each means, and the lines of the help.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Request of a key while the list has the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Quit,
    Suspend,
    Redraw,
    Help,
    /// Select the session this many places below.
    Step(isize),
    NextInNeed,
    /// Scroll the question or the conversation by pages, or by rows.
    Page(isize),
    Row(isize),
    Top,
    End,
    Filter,
    ClearFilter,
    Attach,
    Cancel,
    Stop,
    Resume,
    /// A key that can only be the answer to a question.
    Answer(char),
}

impl Command {
    /// Returns the meaning of a key, if it has one.
    pub(super) fn of(key: KeyEvent) -> Option<Self> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        Some(match key.code {
            KeyCode::Char(c) if control => match c {
                'c' => Self::Quit,
                'z' => Self::Suspend,
                'l' => Self::Redraw,
                'b' => Self::Page(-1),
                'f' => Self::Page(1),
                'p' => Self::Step(-1),
                'n' => Self::Step(1),
                _ => return None,
            },
            _ if key.modifiers.intersects(KeyModifiers::ALT | KeyModifiers::SUPER) => return None,
            KeyCode::Up if key.modifiers.contains(KeyModifiers::SHIFT) => Self::Row(-1),
            KeyCode::Down if key.modifiers.contains(KeyModifiers::SHIFT) => Self::Row(1),
            KeyCode::Up | KeyCode::Char('k') => Self::Step(-1),
            KeyCode::Down | KeyCode::Char('j') => Self::Step(1),
            KeyCode::Tab => Self::NextInNeed,
            KeyCode::PageUp | KeyCode::Char('b') => Self::Page(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => Self::Page(1),
            KeyCode::Home | KeyCode::Char('g') => Self::Top,
            KeyCode::End | KeyCode::Char('G') => Self::End,
            KeyCode::Enter | KeyCode::Char('a') => Self::Attach,
            KeyCode::Esc => Self::ClearFilter,
            KeyCode::Char(c) => match c {
                'q' => Self::Quit,
                '?' => Self::Help,
                '/' => Self::Filter,
                'c' => Self::Cancel,
                's' => Self::Stop,
                'r' => Self::Resume,
                'y' | 'n' | '1'..='9' => Self::Answer(c),
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Keys and their meanings, as the help shows them.
pub(super) const HELP: &[(&str, &str)] = &[
    ("Up, Down, k, j", "select a session"),
    ("Tab", "select the next session that needs you"),
    ("PgUp, PgDn, b, Space", "scroll the conversation, or a long question"),
    ("Shift-Up, Shift-Down", "scroll the conversation by one row"),
    ("Home, g", "go to the first row; earlier pages are read then"),
    ("End, G", "go to the end, and follow it"),
    ("y, n, 1 to 9", "answer the question that is shown"),
    ("a, Enter", "attach to the session; Ctrl-D comes back"),
    ("c", "cancel the running turn"),
    ("s", "stop the session, after a question"),
    ("r", "resume the session"),
    ("/", "filter by words and labels, as in: team=web idle"),
    ("Esc", "clear the filter"),
    ("Ctrl-L", "draw the screen anew"),
    ("Ctrl-Z", "suspend agentctl; fg continues it"),
    ("q, Ctrl-C", "quit; sessions continue"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(code: KeyCode, modifiers: KeyModifiers) -> Option<Command> {
        Command::of(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn keys_with_and_without_modifiers_differ() {
        let of = |c| KeyCode::Char(c);
        for (code, modifiers, command) in [
            (of('q'), KeyModifiers::NONE, Some(Command::Quit)),
            (of('c'), KeyModifiers::CONTROL, Some(Command::Quit)),
            (of('c'), KeyModifiers::NONE, Some(Command::Cancel)),
            (of('c'), KeyModifiers::ALT, None),
            (of('G'), KeyModifiers::SHIFT, Some(Command::End)),
            (of('y'), KeyModifiers::NONE, Some(Command::Answer('y'))),
            (of('0'), KeyModifiers::NONE, None),
            (of('x'), KeyModifiers::CONTROL, None),
            (KeyCode::Up, KeyModifiers::SHIFT, Some(Command::Row(-1))),
            (KeyCode::Up, KeyModifiers::NONE, Some(Command::Step(-1))),
            (KeyCode::F(5), KeyModifiers::NONE, None),
        ] {
            assert_eq!(pressed(code, modifiers), command, "{code:?} {modifiers:?}");
        }
    }
}
