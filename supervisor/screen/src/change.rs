//! A change of a file, as an agent reports it: the lines that differ, with their numbers.

/// Number of equal lines shown around a difference.
const CONTEXT: usize = 2;

/// The lines of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    path: String,
    /// Number of the first line that differs.
    first: usize,
    removed: Vec<String>,
    added: Vec<String>,
    before: Vec<String>,
    after: Vec<String>,
}

/// Kind of a line of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Equal,
    Removed,
    Added,
}

impl Change {
    /// Finds the lines that differ. The texts are the whole file, or a part that begins at the line `place`.
    pub fn new(path: &str, old: &str, new: &str, place: Option<usize>) -> Self {
        let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
        let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
        let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
        let (removed, added) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
        let owned = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        // With the whole file, an agent names a line that differs. With a part, it names the part's first line.
        let differs = head + 1..=head + removed.len().max(added.len()).max(1);
        let begin = place.filter(|place| !differs.contains(place)).map_or(1, |place| place.max(1));
        let end = old.len() - tail;
        Self {
            path: path.to_owned(),
            first: begin + head,
            removed: owned(removed),
            added: owned(added),
            before: owned(&old[head.saturating_sub(CONTEXT)..head]),
            after: owned(&old[end..(end + CONTEXT).min(old.len())]),
        }
    }

    /// Returns the file with the line, and the lines that differ.
    pub fn plain(&self) -> String {
        let mut text = format!("{}:{}\n", self.path, self.first);
        for (sign, lines) in [('-', &self.removed), ('+', &self.added)] {
            for line in lines {
                text.extend([sign, ' ']);
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the lines with their numbers, and equal lines around them.
    pub fn numbered(&self) -> Vec<(usize, Side, &str)> {
        let mut lines = number(self.first - self.before.len(), Side::Equal, &self.before);
        lines.extend(number(self.first, Side::Removed, &self.removed));
        lines.extend(number(self.first, Side::Added, &self.added));
        lines.extend(number(self.first + self.added.len(), Side::Equal, &self.after));
        lines
    }
}

fn number(first: usize, side: Side, lines: &[String]) -> Vec<(usize, Side, &str)> {
    lines.iter().enumerate().map(|(at, line)| (first + at, side, line.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_around_a_change_have_their_numbers_in_the_file() {
        let change = Change::new("/a", "1\n2\n3\n4\n5\n6\n", "1\n2\n3\nfour\nand more\n5\n6\n", Some(10));
        assert_eq!(
            change.numbered(),
            [
                (11, Side::Equal, "2"),
                (12, Side::Equal, "3"),
                (13, Side::Removed, "4"),
                (13, Side::Added, "four"),
                (14, Side::Added, "and more"),
                (15, Side::Equal, "5"),
                (16, Side::Equal, "6"),
            ]
        );
    }

    #[test]
    fn a_new_file_and_an_unchanged_one_are_no_error() {
        assert_eq!(Change::new("/a", "", "one\ntwo\n", None).plain(), "/a:1\n+ one\n+ two\n");
        assert_eq!(Change::new("/a", "one\n", "one\n", Some(1)).plain(), "/a:2\n");
    }
}
