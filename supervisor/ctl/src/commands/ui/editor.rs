//! The URL that opens a file in the person's editor: from `--editor`, else from `ui.toml` beside `hosts.toml`.
//!
//! ```toml
//! editor = "vscode"
//! remote_editor = "vscode://vscode-remote/ssh-remote+{host}{path}:{line}"
//! ```

use std::io;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::error::Error;

/// Name of the file.
pub(super) const FILE: &str = "ui.toml";

/// Known editors: the name, the URL for this machine, and the URL for another machine.
const KNOWN: [(&str, &str, Option<&str>); 8] = [
    ("cursor", "cursor://file{path}:{line}", Some("cursor://vscode-remote/ssh-remote+{host}{path}:{line}")),
    ("idea", "idea://open?file={path}&line={line}", None),
    ("textmate", "txmt://open?url=file://{path}&line={line}", None),
    ("vscode", "vscode://file{path}:{line}", Some("vscode://vscode-remote/ssh-remote+{host}{path}:{line}")),
    (
        "vscode-insiders",
        "vscode-insiders://file{path}:{line}",
        Some("vscode-insiders://vscode-remote/ssh-remote+{host}{path}:{line}"),
    ),
    ("vscodium", "vscodium://file{path}:{line}", Some("vscodium://vscode-remote/ssh-remote+{host}{path}:{line}")),
    ("windsurf", "windsurf://file{path}:{line}", Some("windsurf://vscode-remote/ssh-remote+{host}{path}:{line}")),
    ("zed", "zed://file{path}:{line}", Some("zed://ssh/{host}{path}:{line}")),
];
/// Schemes whose URLs run in the page instead of opening a program.
const OF_PAGES: [&str; 4] = ["blob", "data", "javascript", "vbscript"];
/// Characters of a machine's name that need no escape in a URL.
const IN_HOST: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'@');

/// Content of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    editor: Option<String>,
    remote_editor: Option<String>,
}

/// The person's editor.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Editor {
    here: Option<String>,
    elsewhere: Option<String>,
}

impl Editor {
    /// Reads the file, unless `given` names an editor.
    pub(super) fn find(given: Option<&str>, file: &Path) -> Result<Self, Error> {
        if given.is_some() {
            return Self::of(given, None).map_err(|detail| usage(&detail));
        }
        let text = match std::fs::read_to_string(file) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Self::default());
            }
            text => text.map_err(|source| Error::File { path: file.to_owned(), source })?,
        };
        let wrong = |detail: &str| usage(&format!("{} is not valid: {detail}", file.display()));
        let File { editor, remote_editor } = toml::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
        Self::of(editor.as_deref(), remote_editor.as_deref()).map_err(|detail| wrong(&detail))
    }

    fn of(editor: Option<&str>, remote: Option<&str>) -> Result<Self, String> {
        let known = editor.and_then(|editor| KNOWN.iter().find(|(name, ..)| *name == editor));
        let here = known.map(|(_, here, _)| *here).or(editor);
        let elsewhere = remote.or(known.and_then(|(.., elsewhere)| *elsewhere));
        for (url, fields) in [(here, &["path", "line"][..]), (elsewhere, &["path", "line", "host"])] {
            url.map_or(Ok(()), |url| check(url, fields))?;
        }
        Ok(Self { here: here.map(str::to_owned), elsewhere: elsewhere.map(str::to_owned) })
    }

    /// Returns the URL for files of this machine, or of another machine by its name for ssh.
    pub(super) fn url(&self, machine: Option<&str>) -> Option<String> {
        match machine {
            None => self.here.clone(),
            Some(machine) => {
                let machine = utf8_percent_encode(machine, IN_HOST).to_string();
                Some(self.elsewhere.as_ref()?.replace("{host}", &machine))
            }
        }
    }
}

/// Checks the scheme and the fields of a URL.
fn check(url: &str, fields: &[&str]) -> Result<(), String> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let is_scheme = |scheme: &String| {
        scheme.starts_with(|char: char| char.is_ascii_alphabetic())
            && scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char))
    };
    let Some(scheme) = scheme.filter(is_scheme) else {
        let names: Vec<&str> = KNOWN.iter().map(|(name, ..)| *name).collect();
        return Err(format!("{url:?} is neither a known editor ({}) nor a URL with a scheme", names.join(", ")));
    };
    if OF_PAGES.contains(&scheme.as_str()) {
        return Err(format!("a URL with the scheme {scheme} opens no editor"));
    }
    let rest = fields.iter().fold(url.to_owned(), |url, field| url.replace(&format!("{{{field}}}"), ""));
    if !url.contains("{path}") || rest.contains(['{', '}']) {
        let fields: Vec<String> = fields.iter().map(|field| format!("{{{field}}}")).collect();
        return Err(format!("{url:?} must have {{path}}, and no other fields than {}", fields.join(", ")));
    }
    if url.chars().any(|char| char.is_whitespace() || char.is_control()) {
        return Err(format!("{url:?} has a space or a control character"));
    }
    Ok(())
}

fn usage(detail: &str) -> Error {
    let hint = "give a known editor, or a URL such as vscode://file{path}:{line}".to_owned();
    Error::Usage { detail: detail.to_owned(), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_editor_is_valid_and_a_url_stands_for_itself() {
        for (name, here, elsewhere) in KNOWN {
            let editor = Editor::of(Some(name), None).unwrap();
            assert_eq!(editor.url(None).as_deref(), Some(here));
            let remote = elsewhere.map(|url| url.replace("{host}", "kim@lab.example"));
            assert_eq!(editor.url(Some("kim@lab.example")), remote);
        }
        let editor = Editor::of(Some("emacs://open?file={path}"), Some("x://{host}/{path}")).unwrap();
        assert_eq!(editor.url(None).as_deref(), Some("emacs://open?file={path}"));
        assert_eq!(editor.url(Some("a/b c")).as_deref(), Some("x://a%2Fb%20c/{path}"));
        assert_eq!(Editor::of(None, None).unwrap(), Editor::default());
    }

    #[test]
    fn a_url_that_would_run_in_the_page_or_lacks_the_path_is_refused() {
        for url in [
            "javascript:alert({path})",
            "JavaScript:{path}",
            "data:text/html,{path}",
            "vim",
            "://x{path}",
            "vscode://file",
            "vscode://file{path}{column}",
            "vscode://file{path}{host}",
            "vscode://file {path}",
        ] {
            assert!(Editor::of(Some(url), None).is_err(), "{url}");
        }
    }

    #[test]
    fn the_option_counts_before_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        assert_eq!(Editor::find(None, &file).unwrap(), Editor::default());
        std::fs::write(&file, "editor = \"zed\"\n").unwrap();
        assert_eq!(Editor::find(None, &file).unwrap().url(None).unwrap(), "zed://file{path}:{line}");
        assert_eq!(Editor::find(Some("idea"), &file).unwrap().url(None).unwrap(), KNOWN[1].1);
        std::fs::write(&file, "edit = \"zed\"\n").unwrap();
        let error = Editor::find(None, &file).unwrap_err();
        assert!(error.to_string().contains(FILE) && error.to_string().contains("edit"), "{error}");
    }
}
