//! The input: text that the user edits, its history, and the keys.
//!
//! The crate reedline edits the text with the keys of Emacs. This module decides which keys end the input, recall a
//! prompt, or belong to the attachment. It neither reads keys nor draws.

use crossterm::event::Event;
use reedline::{EditCommand, EditMode as _, Emacs, KeyCode, KeyModifiers, Reedline, ReedlineEvent, ReedlineRawEvent};

use agentd_screen::painted;
use agentd_screen::terminal::harmless;

/// Meaning of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    /// The text changed, or nothing happened.
    Edited,
    Enter,
    Tab,
    BackTab,
    Escape,
    Up,
    Down,
    Interrupt,
    /// Ctrl-D without text.
    End,
    Search,
    Suspend,
    ClearScreen,
}

pub(super) struct Draft {
    editor: Reedline,
    keys: Emacs,
    history: Vec<String>,
    /// Recalled prompt, and the text before the recall.
    recalled: Option<(usize, String)>,
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft")
            .field("text", &self.text())
            .field("history", &self.history.len())
            .finish_non_exhaustive()
    }
}

impl Draft {
    pub(super) fn new() -> Self {
        let mut bindings = reedline::default_emacs_keybindings();
        // Ctrl-Z suspends the program, as everywhere in a shell. Terminals send Ctrl-_ as Ctrl-7.
        bindings.remove_binding(KeyModifiers::CONTROL, KeyCode::Char('z'));
        for undo in ['7', '_', '/'] {
            let undo = KeyCode::Char(undo);
            bindings.add_binding(KeyModifiers::CONTROL, undo, ReedlineEvent::Edit(vec![EditCommand::Undo]));
        }
        Self { editor: Reedline::create(), keys: Emacs::new(bindings), history: Vec::new(), recalled: None }
    }

    pub(super) fn text(&self) -> &str {
        self.editor.current_buffer_contents()
    }

    /// Returns the cursor's place in the text, in bytes.
    pub(super) fn cursor(&self) -> usize {
        self.editor.current_insertion_point()
    }

    /// Interprets a key, a paste or another event, and edits the text.
    pub(super) fn key(&mut self, event: Event) -> Key {
        if let Event::Paste(text) = event {
            self.insert(&text.replace("\r\n", "\n").replace('\r', "\n"));
            return Key::Edited;
        }
        if let Event::Key(key) = &event {
            match (key.code, key.modifiers) {
                (KeyCode::Tab, _) => return Key::Tab,
                (KeyCode::BackTab, _) => return Key::BackTab,
                (KeyCode::Char('z'), KeyModifiers::CONTROL) => return Key::Suspend,
                _ => {}
            }
        }
        let Ok(event) = ReedlineRawEvent::try_from(event) else { return Key::Edited };
        match last(self.keys.parse_event(event)) {
            ReedlineEvent::Edit(commands) => {
                let before = self.text().to_owned();
                self.edit(&commands);
                if self.text() != before {
                    self.recalled = None;
                }
                Key::Edited
            }
            ReedlineEvent::Left => self.edit(&[EditCommand::MoveLeft { select: false }]),
            ReedlineEvent::Right => self.edit(&[EditCommand::MoveRight { select: false }]),
            ReedlineEvent::ToStart => self.edit(&[EditCommand::MoveToStart { select: false }]),
            ReedlineEvent::ToEnd => self.edit(&[EditCommand::MoveToEnd { select: false }]),
            ReedlineEvent::Enter | ReedlineEvent::Submit | ReedlineEvent::SubmitOrNewline => Key::Enter,
            ReedlineEvent::Up => Key::Up,
            ReedlineEvent::Down => Key::Down,
            ReedlineEvent::Esc => Key::Escape,
            ReedlineEvent::CtrlC => Key::Interrupt,
            ReedlineEvent::CtrlD if self.text().is_empty() => Key::End,
            ReedlineEvent::CtrlD => self.edit(&[EditCommand::Delete]),
            ReedlineEvent::SearchHistory => Key::Search,
            ReedlineEvent::ClearScreen => Key::ClearScreen,
            _ => Key::Edited,
        }
    }

    fn edit(&mut self, commands: &[EditCommand]) -> Key {
        self.editor.run_edit_commands(commands);
        Key::Edited
    }

    pub(super) fn insert(&mut self, text: &str) {
        self.edit(&[EditCommand::InsertString(text.to_owned())]);
    }

    pub(super) fn replace(&mut self, text: &str) {
        self.edit(&[EditCommand::Clear, EditCommand::InsertString(text.to_owned())]);
    }

    /// Replaces the text from this place up to the cursor.
    pub(super) fn complete(&mut self, start: usize, text: &str) {
        let cursor = self.cursor();
        let mut whole = self.text().to_owned();
        whole.replace_range(start..cursor, text);
        let place = start + text.len();
        self.edit(&[
            EditCommand::Clear,
            EditCommand::InsertString(whole),
            EditCommand::MoveToPosition { position: place, select: false },
        ]);
    }

    /// Ends the line at the cursor: Enter after a backslash, which it replaces. Reports whether there was one.
    pub(super) fn continue_line(&mut self) -> bool {
        let (text, cursor) = (self.text(), self.cursor());
        if cursor != text.len() || !text.ends_with('\\') {
            return false;
        }
        self.edit(&[EditCommand::Backspace, EditCommand::InsertNewline]);
        true
    }

    /// Removes the text and returns it. It becomes the newest prompt of the history.
    pub(super) fn take(&mut self) -> String {
        let text = self.text().to_owned();
        self.clear();
        self.remember(text.clone());
        text
    }

    pub(super) fn clear(&mut self) {
        self.recalled = None;
        self.edit(&[EditCommand::Clear]);
    }

    /// Reports whether the text was recalled from the history.
    pub(super) fn is_recalled(&self) -> bool {
        self.recalled.is_some()
    }

    /// Returns the prompts, oldest first.
    pub(super) fn history(&self) -> &[String] {
        &self.history
    }

    /// Adds a prompt to the history, unless it is the newest one.
    pub(super) fn remember(&mut self, prompt: String) {
        if !prompt.trim().is_empty() && self.history.last() != Some(&prompt) {
            self.history.push(prompt);
        }
    }

    /// Puts earlier prompts before the history.
    pub(super) fn remember_earlier(&mut self, mut prompts: Vec<String>) {
        let added = prompts.len();
        prompts.append(&mut self.history);
        self.history = prompts;
        if let Some((at, _)) = &mut self.recalled {
            *at += added;
        }
    }

    /// Moves up a line of the text, or recalls the prompt before.
    pub(super) fn up(&mut self) {
        if self.text()[..self.cursor()].contains('\n') {
            self.edit(&[EditCommand::MoveLineUp { select: false }]);
            return;
        }
        let at = self.recalled.as_ref().map_or(self.history.len(), |(at, _)| *at);
        let Some(earlier) = at.checked_sub(1) else { return };
        let typed = self.recalled.take().map_or_else(|| self.text().to_owned(), |(_, typed)| typed);
        let prompt = self.history[earlier].clone();
        self.replace(&prompt);
        self.recalled = Some((earlier, typed));
    }

    /// Moves down a line of the text, or recalls the next prompt, and last the text before the recall.
    pub(super) fn down(&mut self) {
        if self.text()[self.cursor()..].contains('\n') {
            self.edit(&[EditCommand::MoveLineDown { select: false }]);
            return;
        }
        let Some((at, typed)) = self.recalled.take() else { return };
        match self.history.get(at + 1).cloned() {
            Some(prompt) => {
                self.replace(&prompt);
                self.recalled = Some((at + 1, typed));
            }
            None => self.replace(&typed),
        }
    }

    /// Returns the rows of the text with its mark, and the cursor's row and column.
    pub(super) fn rows(&self, mark: &str, columns: usize) -> (Vec<String>, (usize, usize)) {
        let room = columns.saturating_sub(painted::width(mark) + 1).max(2);
        let margin = " ".repeat(painted::width(mark));
        let (mut rows, mut cursor, mut begin) = (Vec::new(), (0, 0), 0);
        for line in self.text().split('\n') {
            let divided = painted::rows(&shown(line), room);
            let within = self.cursor().checked_sub(begin).filter(|within| *within <= line.len());
            if let Some(within) = within {
                let before = painted::rows(&shown(&line[..within]), room);
                let column = before.last().map_or(0, |row| painted::width(row));
                cursor = (rows.len() + before.len() - 1, margin.len() + column);
            }
            begin += line.len() + 1;
            for row in divided {
                let before = if rows.is_empty() { mark } else { &margin };
                rows.push(format!("{before}{row}"));
            }
        }
        (rows, cursor)
    }
}

/// Returns typed or pasted text as the terminal may show it.
fn shown(text: &str) -> String {
    harmless(text).replace('\t', "    ")
}

/// Returns the alternative that applies without a menu and without hints: the last one.
fn last(event: ReedlineEvent) -> ReedlineEvent {
    match event {
        ReedlineEvent::UntilFound(mut events) => events.pop().map_or(ReedlineEvent::None, last),
        event => event,
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::KeyEvent;

    use super::*;

    fn press(draft: &mut Draft, code: KeyCode, modifiers: KeyModifiers) -> Key {
        draft.key(Event::Key(KeyEvent::new(code, modifiers)))
    }

    fn types(draft: &mut Draft, text: &str) {
        for c in text.chars() {
            press(draft, KeyCode::Char(c), KeyModifiers::NONE);
        }
    }

    #[test]
    fn the_keys_of_emacs_edit_the_text() {
        let mut draft = Draft::new();
        types(&mut draft, "fix teh bug");
        press(&mut draft, KeyCode::Char('w'), KeyModifiers::CONTROL);
        assert_eq!(draft.text(), "fix teh ");
        press(&mut draft, KeyCode::Char('y'), KeyModifiers::CONTROL);
        press(&mut draft, KeyCode::Char('a'), KeyModifiers::CONTROL);
        assert_eq!((draft.text(), draft.cursor()), ("fix teh bug", 0));
        press(&mut draft, KeyCode::Char('d'), KeyModifiers::CONTROL);
        press(&mut draft, KeyCode::Right, KeyModifiers::NONE);
        assert_eq!((draft.text(), draft.cursor()), ("ix teh bug", 1));
        draft.clear();
        assert_eq!(press(&mut draft, KeyCode::Char('d'), KeyModifiers::CONTROL), Key::End);
        assert_eq!(press(&mut draft, KeyCode::Char('c'), KeyModifiers::CONTROL), Key::Interrupt);
        assert_eq!(press(&mut draft, KeyCode::Char('r'), KeyModifiers::CONTROL), Key::Search);
        assert_eq!(press(&mut draft, KeyCode::Char('z'), KeyModifiers::CONTROL), Key::Suspend);
        assert_eq!(press(&mut draft, KeyCode::Char('j'), KeyModifiers::CONTROL), Key::Enter);
    }

    #[test]
    fn a_prompt_has_several_lines_after_alt_enter_a_backslash_or_a_paste() {
        let mut draft = Draft::new();
        types(&mut draft, "one");
        press(&mut draft, KeyCode::Enter, KeyModifiers::ALT);
        types(&mut draft, "two\\");
        assert_eq!(press(&mut draft, KeyCode::Enter, KeyModifiers::NONE), Key::Enter);
        assert!(draft.continue_line());
        draft.key(Event::Paste("three\r\nfour\rfive".into()));
        assert_eq!(draft.text(), "one\ntwo\nthree\nfour\nfive");
        assert!(!draft.continue_line());
        let (rows, cursor) = draft.rows("> ", 80);
        assert_eq!(rows, ["> one", "  two", "  three", "  four", "  five"]);
        assert_eq!(cursor, (4, 6));
    }

    #[test]
    fn the_history_is_recalled_and_left_again() {
        let mut draft = Draft::new();
        for prompt in ["one", "two", "two"] {
            draft.remember(prompt.into());
        }
        types(&mut draft, "typed");
        draft.up();
        draft.up();
        draft.up();
        assert_eq!(draft.text(), "one");
        draft.remember_earlier(vec!["zero".into()]);
        draft.up();
        assert_eq!(draft.text(), "zero");
        for expected in ["one", "two", "typed", "typed"] {
            draft.down();
            assert_eq!(draft.text(), expected);
        }
    }

    #[test]
    fn long_lines_and_wide_characters_have_the_cursor_at_its_place() {
        let mut draft = Draft::new();
        draft.insert("日本語日本語");
        let (rows, cursor) = draft.rows("> ", 9); // room for 6 columns
        assert_eq!(rows, ["> 日本語", "  日本語"]);
        assert_eq!(cursor, (1, 8));
        draft.replace("a\x1b[2J\tb");
        assert_eq!(draft.rows("> ", 40).0, ["> a␛[2J    b"]);
    }
}
