//! Prints documents for programs: the JSON of the daemon unchanged, or the same data as YAML.
//!
//! Each command with `--json` prints through this module, so that each has `--yaml` too.

use std::io::{self, Write as _};

use agentd_screen::terminal::Screen;
use serde::Serialize;
use serde_json::Value;

use crate::error::Error;

/// Form of documents for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentForm {
    /// One line of JSON.
    Json,
    /// A YAML document that begins with `---`, so that several documents are a YAML stream. Keys are sorted.
    Yaml,
}

impl DocumentForm {
    /// Returns a JSON document in this form, with a newline at the end. JSON stays byte for byte.
    fn bytes(self, raw: &[u8]) -> Result<Vec<u8>, Error> {
        let raw = raw.trim_ascii();
        match self {
            Self::Json => Ok([raw, b"\n"].concat()),
            Self::Yaml => {
                let value: Value = serde_json::from_slice(raw).map_err(|error| no_yaml(&error))?;
                let text = serde_saphyr::to_string(&value).map_err(|error| no_yaml(&error))?;
                Ok(format!("---\n{}\n", Screen::stdout().text(text.trim_end())).into_bytes())
            }
        }
    }

    /// Prints a JSON document on standard output.
    pub(crate) fn print(self, raw: &[u8]) -> Result<(), Error> {
        let text = self.bytes(raw)?;
        let mut out = io::stdout();
        out.write_all(&text).and_then(|()| out.flush()).map_err(Error::Output)
    }

    /// Prints a value on standard output.
    pub(crate) fn print_value(self, value: &impl Serialize) -> Result<(), Error> {
        self.print(&serde_json::to_vec(value).map_err(Error::Request)?)
    }
}

fn no_yaml(error: &dyn std::error::Error) -> Error {
    Error::NoYaml { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn yaml(value: &Value) -> String {
        String::from_utf8(DocumentForm::Yaml.bytes(value.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn json_stays_byte_for_byte_and_ends_with_one_newline() {
        assert_eq!(DocumentForm::Json.bytes(b" {\"b\": 1,\"a\":2}\n\n").unwrap(), b"{\"b\": 1,\"a\":2}\n");
    }

    #[test]
    fn yaml_has_the_same_data_whatever_the_texts_look_like() {
        let hostile = [
            "",
            " ",
            "yes",
            "no",
            "null",
            "~",
            "0x10",
            "017",
            "1e3",
            ".inf",
            "- a",
            "a: b",
            "a #b",
            "#",
            "---",
            "...",
            "&a",
            "*a",
            "!t",
            "%x",
            "@",
            "`",
            "{",
            "[",
            "|",
            ">",
            "'",
            "\"",
            "\\",
            "two\nlines\n",
            "\n",
            "\ttab",
            "é",
            "\u{1b}[31m",
            "\u{0}",
            "\u{85}",
            "\u{2028}",
            "\u{feff}",
            "2026-01-01",
            "trailing ",
            ":",
            "?",
            "=",
            "<<",
            "line one is long enough to be folded by a writer that folds lines at eighty columns, as this one may do",
        ];
        for text in hostile {
            let value =
                json!({ "text": text, "list": [text, [text], {}], text: { "deep": [] }, "n": [1, -1, 1.5, null] });
            let written = yaml(&value);
            assert!(written.starts_with("---\n") && written.ends_with('\n'), "{written}");
            let read: Value =
                serde_saphyr::from_str(&written).unwrap_or_else(|error| panic!("{text:?}: {error}\n{written}"));
            assert_eq!(read, value, "{text:?}\n{written}");
        }
        let two = yaml(&json!({ "a": u64::MAX })) + &yaml(&json!([1]));
        let read: Vec<Value> = serde_saphyr::from_multiple(&two).unwrap();
        assert_eq!(read, [json!({ "a": u64::MAX }), json!([1])]);
    }

    #[test]
    fn what_is_no_json_cannot_become_yaml() {
        let error = DocumentForm::Yaml.bytes(b"{\"a\":").unwrap_err();
        assert!(matches!(error, Error::NoYaml { .. }) && error.hint().unwrap().contains("--json"), "{error:?}");
    }
}
