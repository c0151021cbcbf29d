//! Opens the page in the person's browser.
//!
//! The command line of a browser is visible to every user of the machine. So the browser gets the name of a private
//! file, which leads to the address with the token. Only the user can read the file, and it is removed after the
//! sign-in. It lies in agentd's runtime directory, which guarded sessions do not see.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};

/// Characters of a path that need no escape in a `file` URL.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A browser that was asked to open the page.
#[derive(Debug)]
pub(super) struct Browser {
    /// The program, which may end as soon as another process shows the page.
    pub(super) program: Child,
    /// The private file. Dropping it removes it.
    pub(super) file: NamedTempFile,
}

/// Reason why no browser was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoBrowser {
    #[error("this terminal has no display, and BROWSER is not set")]
    NoDisplay,
    #[error("cannot write the file that leads the browser to the page")]
    File(#[source] io::Error),
    #[error("cannot execute {command:?}")]
    Program { command: String, source: io::Error },
}

/// Opens an address in the first browser that can be executed. `directories` are places for the private file, the best
/// first.
pub(super) fn open(url: &str, directories: &[PathBuf]) -> Result<Browser, NoBrowser> {
    let commands = commands(|name| std::env::var_os(name), std::env::consts::OS);
    let file = leading_to(url, directories).map_err(NoBrowser::File)?;
    let mut failure = NoBrowser::NoDisplay;
    for command in commands {
        match run(&command, &file_url(file.path())) {
            Ok(program) => return Ok(Browser { program, file }),
            Err(source) => failure = NoBrowser::Program { command, source },
        }
    }
    Err(failure)
}

/// Returns the commands that open an address: those of `BROWSER`, else that of the desktop.
fn commands(variable: impl Fn(&str) -> Option<OsString>, system: &str) -> Vec<String> {
    let text =
        |name| variable(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned());
    if let Some(browsers) = text("BROWSER") {
        return browsers.split(':').filter(|command| !command.trim().is_empty()).map(str::to_owned).collect();
    }
    if system == "macos" {
        return vec!["open".to_owned()];
    }
    let has_display = text("DISPLAY").or_else(|| text("WAYLAND_DISPLAY")).is_some();
    has_display.then(|| "xdg-open".to_owned()).into_iter().collect()
}

/// Returns the words of a command of `BROWSER`: `%s` is the place of the address, which otherwise comes last.
fn words(command: &str, url: &str) -> Option<Vec<String>> {
    let mut words = shlex::split(command).filter(|words| !words.is_empty())?;
    if !words.iter().any(|word| word.contains("%s")) {
        words.push("%s".to_owned());
    }
    Some(words.into_iter().map(|word| word.replace("%s", url)).collect())
}

/// Starts a browser. Ctrl-C at the terminal does not end it.
fn run(command: &str, url: &str) -> io::Result<Child> {
    let words = words(command, url).ok_or(io::ErrorKind::InvalidInput)?;
    let mut program = Command::new(&words[0]);
    program.args(&words[1..]).process_group(0);
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    program.spawn()
}

/// Writes a file with the mode 0600 that leads a browser to an address.
fn leading_to(url: &str, directories: &[PathBuf]) -> io::Result<NamedTempFile> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for directory in directories {
        match tempfile::Builder::new().prefix("agentctl-ui-").suffix(".html").tempfile_in(directory) {
            Ok(mut file) => {
                write!(
                    file,
                    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>agentd</title>\n\
                     <meta http-equiv=\"refresh\" content=\"0; url={url}\">\n</head>\n\
                     <body><a href=\"{url}\">Continue to agentd</a></body>\n</html>\n"
                )?;
                file.flush()?;
                return Ok(file);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn file_url(path: &Path) -> String {
    format!("file://{}", percent_encode(path.as_os_str().as_encoded_bytes(), IN_PATH))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn with(variables: &[(&str, &str)], system: &str) -> Vec<String> {
        let of =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        commands(of, system)
    }

    #[test]
    fn the_browsers_of_the_variable_come_first_and_a_desktop_needs_a_display() {
        assert_eq!(with(&[("BROWSER", "firefox:w3m %s"), ("DISPLAY", ":0")], "linux"), ["firefox", "w3m %s"]);
        assert_eq!(with(&[("BROWSER", ""), ("DISPLAY", ":0")], "linux"), ["xdg-open"]);
        assert_eq!(with(&[("WAYLAND_DISPLAY", "wayland-0")], "linux"), ["xdg-open"]);
        assert_eq!(with(&[], "linux"), Vec::<String>::new());
        assert_eq!(with(&[], "macos"), ["open"]);
    }

    #[test]
    fn the_address_stands_where_the_command_has_a_place_for_it() {
        assert_eq!(words("firefox -P work", "u").unwrap(), ["firefox", "-P", "work", "u"]);
        assert_eq!(words("'my browser' --url=%s -n", "u").unwrap(), ["my browser", "--url=u", "-n"]);
        assert_eq!(words("", "u"), None);
    }

    #[test]
    fn the_file_is_private_and_leads_to_the_address() {
        let directory = tempfile::tempdir().unwrap();
        let places = [directory.path().join("missing"), directory.path().to_owned()];
        let file = leading_to("http://127.0.0.1:1/#token=t", &places).unwrap();
        assert_eq!(file.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(file.path()).unwrap().contains("url=http://127.0.0.1:1/#token=t\""));
        assert_eq!(file_url(Path::new("/run/a b/x.html")), "file:///run/a%20b/x.html");
    }
}
