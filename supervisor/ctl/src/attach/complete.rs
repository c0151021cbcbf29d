//! Completes slash commands at the beginning of the input, and paths after `@`.

use std::path::Path;

use super::facts::SlashCommand;
use agentd_screen::painted;
use agentd_screen::terminal::Screen;

/// Maximum number of entries that are read of a directory.
const ENTRIES: usize = 2_000;
/// Number of alternatives shown at a time.
const SHOWN: usize = 6;

/// An alternative: the text to insert, and a description.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Choice {
    text: String,
    note: String,
    /// Whether the text may be continued: a directory.
    open: bool,
}

/// The alternatives for the word before the cursor.
#[derive(Debug, Default)]
pub(super) struct Completion {
    /// Place of the word in the input.
    start: usize,
    word: String,
    choices: Vec<Choice>,
    selected: Option<usize>,
    /// The user closed the list, or recalled the text from the history. An edit opens it again.
    closed: bool,
}

/// Replacement of the text between a place and the cursor.
pub(super) type Replacement = (usize, String);

impl Completion {
    /// Finds the alternatives after an edit. Without a directory no path is completed.
    pub(super) fn update(&mut self, before: &str, commands: &[SlashCommand], directory: Option<&Path>) {
        *self = Self::default();
        if let Some(word) = before.strip_prefix('/').filter(|word| !word.contains(char::is_whitespace)) {
            let matching = commands.iter().filter(|command| command.name.starts_with(word));
            let choice = |command: &SlashCommand| Choice {
                text: format!("/{}", command.name),
                note: command.description.clone(),
                open: false,
            };
            (self.word, self.choices) = (before.to_owned(), matching.map(choice).collect());
            return;
        }
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        // A space is at most one character of several bytes.
        let start = (start..=before.len()).find(|at| before.is_char_boundary(*at)).unwrap_or(start);
        if let (Some(path), Some(directory)) = (before[start..].strip_prefix('@'), directory) {
            (self.start, self.word) = (start, before[start..].to_owned());
            self.choices = paths(path, directory);
        }
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn is_open(&self) -> bool {
        !self.closed && !self.choices.is_empty()
    }

    /// Selects the next or the previous alternative.
    pub(super) fn select(&mut self, forwards: bool) {
        let count = self.choices.len();
        if count > 0 {
            self.selected = Some(match self.selected {
                None if forwards => 0,
                None => count - 1,
                Some(at) => (at + if forwards { 1 } else { count - 1 }) % count,
            });
        }
    }

    /// Completes as far as the alternatives agree, or selects the next one.
    pub(super) fn tab(&mut self) -> Option<Replacement> {
        let [first, rest @ ..] = self.choices.as_slice() else { return None };
        if rest.is_empty() || self.selected.is_some() {
            return self.chosen(self.selected.unwrap_or(0));
        }
        let common = rest.iter().fold(first.text.as_str(), |common, choice| shared(common, &choice.text));
        if common.len() > self.word.len() {
            return Some((self.start, common.to_owned()));
        }
        self.select(true);
        self.closed = false;
        None
    }

    /// Returns the selected alternative.
    pub(super) fn enter(&mut self) -> Option<Replacement> {
        self.selected.filter(|_| self.is_open()).and_then(|at| self.chosen(at))
    }

    fn chosen(&self, at: usize) -> Option<Replacement> {
        let choice = self.choices.get(at)?;
        let end = if choice.open { "" } else { " " };
        Some((self.start, format!("{}{end}", choice.text)))
    }

    /// Returns the rows with the alternatives.
    pub(super) fn rows(&self, columns: usize, screen: Screen) -> Vec<String> {
        if !self.is_open() {
            return Vec::new();
        }
        let selected = self.selected.unwrap_or(0);
        let first = selected.saturating_sub(SHOWN - 1);
        let shown: Vec<&Choice> = self.choices.iter().skip(first).take(SHOWN).collect();
        let wide = shown.iter().map(|choice| painted::width(&screen.line(&choice.text))).max().unwrap_or(0);
        let wide = wide.min(columns / 2);
        let mut rows = Vec::new();
        for (number, choice) in shown.into_iter().enumerate() {
            let text = painted::clip(&screen.line(&choice.text), wide);
            let space = " ".repeat(wide - painted::width(&text));
            let is_selected = self.selected == Some(first + number);
            let mark = if is_selected { "› " } else { "  " };
            let row = format!("{mark}{text}{space}  {}", screen.line(&choice.note));
            let row = painted::clip(row.trim_end(), columns);
            let look = if is_selected {
                agentd_screen::terminal::TextStyle::Bold
            } else {
                agentd_screen::terminal::TextStyle::Dim
            };
            rows.push(screen.paint(look, &row));
        }
        let more = self.choices.len() - rows.len();
        if more > 0 {
            rows.push(screen.paint(agentd_screen::terminal::TextStyle::Dim, &format!("  {more} more")));
        }
        rows
    }
}

fn shared<'a>(a: &'a str, b: &str) -> &'a str {
    let length = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &a[..length]
}

/// Lists the entries of the session's directory that begin like the path. Hidden ones only after a dot.
fn paths(path: &str, directory: &Path) -> Vec<Choice> {
    let (parent, name) = path.rsplit_once('/').map_or(("", path), |(parent, name)| (parent, name));
    let place =
        if path.starts_with('/') && parent.is_empty() { Path::new("/").to_owned() } else { directory.join(parent) };
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let mut choices = Vec::new();
    for entry in entries.flatten().take(ENTRIES) {
        let found = entry.file_name();
        let Some(found) = found.to_str().filter(|found| found.starts_with(name)) else { continue };
        // A space or a control character would end the path in the prompt.
        let usable = !found.contains(|c: char| c.is_whitespace() || c.is_control());
        if !usable || (found.starts_with('.') && !name.starts_with('.')) {
            continue;
        }
        let open = entry.path().is_dir();
        let prefix = if path.contains('/') { format!("{parent}/") } else { String::new() };
        let text = format!("@{prefix}{found}{}", if open { "/" } else { "" });
        choices.push(Choice { text, note: String::new(), open });
    }
    choices.sort_by(|a, b| a.text.cmp(&b.text));
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> Vec<SlashCommand> {
        let names = [("compact", "Shorten the conversation"), ("commit", "Commit"), ("init", "Begin\x1b[2J")];
        names.map(|(name, description)| SlashCommand { name: name.into(), description: description.into() }).to_vec()
    }

    fn completion(before: &str, directory: &Path) -> Completion {
        let mut completion = Completion::default();
        completion.update(before, &commands(), Some(directory));
        completion
    }

    #[test]
    fn a_slash_lists_the_commands_and_tab_completes_them() {
        let nowhere = Path::new("/nonexistent");
        let screen = Screen { terminal: true, colour: false };
        let rows = completion("/", nowhere).rows(40, screen);
        assert_eq!(rows, ["  /compact  Shorten the conversation", "  /commit   Commit", "  /init     Begin␛[2J"]);
        assert_eq!(completion("/c", nowhere).tab(), Some((0, "/com".into())));
        assert_eq!(completion("/i", nowhere).tab(), Some((0, "/init ".into())));
        let mut two = completion("/com", nowhere);
        assert_eq!((two.enter(), two.tab()), (None, None));
        assert_eq!(two.enter(), Some((0, "/compact ".into())));
        two.select(true);
        assert_eq!(two.enter(), Some((0, "/commit ".into())));
        assert!(!completion("say /c", nowhere).is_open());
        assert!(!completion("/commit now", nowhere).is_open());
    }

    #[test]
    fn a_path_is_completed_after_an_at_sign_one_directory_at_a_time() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("source")).unwrap();
        for file in ["source/main.rs", "some.txt", ".hidden", "two words"] {
            std::fs::write(scratch.path().join(file), "").unwrap();
        }
        let tab = |before: &str| completion(before, scratch.path()).tab();
        assert_eq!(tab("look at @so"), None);
        assert_eq!(tab("look at @sou"), Some((8, "@source/".into())));
        assert_eq!(tab("@source/"), Some((0, "@source/main.rs ".into())));
        assert_eq!(tab("@.h"), Some((0, "@.hidden ".into())));
        assert_eq!(completion("@", scratch.path()).choices.len(), 2);
        assert_eq!(tab("mail me@so"), None);
    }
}
