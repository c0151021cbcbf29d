//! Doc comments as data, for the generated reference pages (`tests/it/reference/`).

/// A name of the interface with its doc comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// The name in JSON.
    pub name: &'static str,
    /// Lines of the doc comment, as the compiler passes them to a macro.
    pub doc: &'static [&'static str],
}

impl Named {
    /// Returns the doc comment as one line.
    pub fn meaning(&self) -> String {
        text(self.doc)
    }
}

/// Joins the lines of a doc comment by blanks and leaves out empty lines.
pub(crate) fn text(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use crate::Code;

    #[test]
    fn a_doc_comment_of_two_paragraphs_becomes_one_line() {
        let meaning = Code::ConfigurationInvalid.meaning();
        assert!(meaning.starts_with("The configuration cannot be read") && !meaning.contains("  "), "{meaning}");
        assert!(meaning.contains("positions. After a reload"), "{meaning}");
    }
}
