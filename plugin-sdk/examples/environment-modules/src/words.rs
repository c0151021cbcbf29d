//! Parses the standard error of `modulecmd` into errors and other messages.

/// Returns the errors, each on one line, and the other messages.
pub(crate) fn split(said: &[u8]) -> (Vec<String>, Vec<String>) {
    let said = String::from_utf8_lossy(said);
    let (mut errors, mut notes) = (Vec::new(), Vec::new());
    let mut lines = said.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(words) = error(line) {
            let hint = lines.next_if(|line| line.trim().starts_with("HINT:")).map(str::trim).unwrap_or_default();
            errors.push(plain(format!("{words} {hint}").trim()));
        } else if !line.trim().is_empty() {
            notes.push(plain(line.trim()));
        }
    }
    (errors, notes)
}

/// Returns the message of an error line: `  ERROR: …` and `  Module ERROR: …` in releases 4 and 5,
/// `ModuleCmd_Load.c(213):ERROR:105: …` in release 3.
fn error(line: &str) -> Option<&str> {
    let (before, words) = line.split_once("ERROR:")?;
    match before.trim() {
        "" | "Module" => Some(words.trim()),
        place if place.ends_with("):") => {
            let number = words.find(|c: char| !c.is_ascii_digit()).unwrap_or(words.len());
            Some(words[number..].trim_start_matches(':').trim())
        }
        _ => None,
    }
}

/// Reports whether an error says that the module does not exist.
pub(crate) fn is_missing(error: &str) -> bool {
    error.starts_with("Unable to locate a modulefile for")
}

/// Replaces control characters by spaces.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(said: &str) -> Vec<String> {
        split(said.as_bytes()).0
    }

    #[test]
    fn an_error_is_told_in_its_own_words_whichever_release_says_it() {
        for (said, error) in [
            ("ERROR: Unable to locate a modulefile for 'gcc/99'\n", "Unable to locate a modulefile for 'gcc/99'"),
            ("\nLoading conf\n  ERROR: Conflicting odd is loaded\n", "Conflicting odd is loaded"),
            (
                "Loading conf\n  ERROR: Module cannot be loaded due to a conflict.\n    HINT: Might try \
                    \"module unload odd\" first.\n",
                "Module cannot be loaded due to a conflict. HINT: Might try \"module unload odd\" first.",
            ),
            (
                "Loading bad\n  Module ERROR: invalid command name \"x\"\n        while executing\n    \"x\"\n",
                "invalid command name \"x\"",
            ),
            (
                "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'gcc'\n",
                "Unable to locate a modulefile for 'gcc'",
            ),
        ] {
            assert_eq!(errors(said), [error], "{said}");
        }
        assert_eq!(errors("Loading pre\n  ERROR: one\n  ERROR: two\n"), ["one", "two"]);
    }

    #[test]
    fn a_note_is_no_error() {
        let (errors, notes) = split("a note\nthis ERROR: is mine\n\n  WARNING: old\n\x1b[1mbold\n".as_bytes());
        assert_eq!(errors, [""; 0]);
        assert_eq!(notes, ["a note", "this ERROR: is mine", "WARNING: old", " [1mbold"]);
    }

    #[test]
    fn what_is_missing_is_told_from_what_fails() {
        assert!(is_missing("Unable to locate a modulefile for 'gcc'"));
        assert!(!is_missing("Conflicting odd is loaded"));
    }
}
