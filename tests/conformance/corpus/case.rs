//! The format of a case's file.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// A home, the keys that are typed there, and the allowed differences between agent and terminal.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    /// The file's path below the folder of cases, without its ending.
    #[serde(skip)]
    pub(super) name: String,
    /// Description of the user's actions, in a sentence.
    about: String,
    /// Programs besides the shell.
    #[serde(default)]
    pub(super) needs: Vec<String>,
    /// The files of the home.
    #[serde(default)]
    home: BTreeMap<String, File>,
    /// The files of the session's directory. If it has files, the person changes to the directory before the command.
    #[serde(default)]
    directory: BTreeMap<String, File>,
    /// Commands for sh(1) that run before the first login, in the session's directory and with HOME set.
    #[serde(default)]
    prepare: String,
    /// Keys that are typed before the command that shows the environment. They answer questions of start-up files, with
    /// `\r` for Enter.
    #[serde(default)]
    pub(super) types: Vec<String>,
    /// Lines for `[environment]` of agentd's configuration.
    #[serde(default)]
    pub(super) environment: String,
    /// Required variables at the terminal, so that the case shows its subject: a value, or `false` for an absent name.
    #[serde(default)]
    pub(super) terminal: BTreeMap<String, Value>,
    /// Names that may differ, and the policy that makes the difference.
    #[serde(default)]
    pub(super) differs: BTreeMap<String, String>,
    /// Whether umask, resource limits and nice value are compared too.
    #[serde(default)]
    pub(super) attributes: bool,
}

/// Expected state of a variable at a terminal.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Is(String),
    There(bool),
}

/// One file of a case.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum File {
    Text(String),
    Mode(Mode),
    Latin1(Latin1),
    Link(Link),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mode {
    text: String,
    mode: u32,
}

/// Text that lies in the file in ISO 8859-1.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Latin1 {
    latin1: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    link: String,
}

/// The cases of a folder, by name.
pub(super) fn load(folder: &Path) -> Vec<Case> {
    let shell = folder.file_name().and_then(|name| name.to_str()).expect("a folder has a name");
    let listed = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = listed.map(|entry| entry.expect("it can be listed").path()).collect();
    files.sort();
    let read = |file: PathBuf| {
        let stem = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".toml"));
        let stem = stem.unwrap_or_else(|| panic!("{}: a case is a file NAME.toml", file.display()));
        let text = fs::read_to_string(&file).expect("it can be read");
        let mut case: Case = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        case.name = format!("{shell}/{stem}");
        assert!(!case.about.is_empty(), "{}: about is empty", case.name);
        assert!(case.differs.values().all(|why| why.len() > 20), "{}: a difference without a reason", case.name);
        case
    };
    files.into_iter().map(read).collect()
}

impl Case {
    /// With the places of the programs instead of `@NAME@` in all texts.
    pub(super) fn with_tools(mut self, tools: &BTreeMap<String, PathBuf>) -> Self {
        let fill = |text: &mut String| {
            for (name, place) in tools {
                *text = text.replace(&format!("@{name}@"), &place.display().to_string());
            }
        };
        for file in self.home.values_mut().chain(self.directory.values_mut()) {
            match file {
                File::Text(text) | File::Mode(Mode { text, .. }) | File::Link(Link { link: text }) => fill(text),
                File::Latin1(Latin1 { latin1 }) => fill(latin1),
            }
        }
        fill(&mut self.prepare);
        self
    }

    pub(super) fn has_directory(&self) -> bool {
        !self.directory.is_empty()
    }

    /// Makes the home and the directory what the case says, whatever is there.
    pub(super) fn prepare(&self, home: &Path, directory: &Path) {
        for (place, files) in [(home, &self.home), (directory, &self.directory)] {
            for entry in fs::read_dir(place).expect("it is there").flatten() {
                remove(&entry.path());
            }
            for (name, file) in files {
                file.write(&place.join(name));
            }
        }
        if self.prepare.is_empty() {
            return;
        }
        let mut sh = Command::new("/bin/sh");
        sh.args(["-e", "-c", &self.prepare]).current_dir(directory).env_clear();
        let output = sh.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", home).output().expect("sh starts");
        assert!(output.status.success(), "{}: prepare: {}", self.name, String::from_utf8_lossy(&output.stderr));
    }
}

/// Removes a file or a directory, though a process that is being killed may still write there.
fn remove(path: &Path) {
    for _ in 0..1000 {
        match try_remove(path) {
            Ok(()) => return,
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => std::thread::yield_now(),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    panic!("{}: it is written to again and again", path.display());
}

fn try_remove(path: &Path) -> std::io::Result<()> {
    let is_directory = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

impl File {
    fn write(&self, path: &Path) {
        fs::create_dir_all(path.parent().expect("it is below the home")).expect("directories can be made");
        match self {
            Self::Text(text) => fs::write(path, text).expect("it can be written"),
            Self::Mode(Mode { text, mode }) => {
                fs::write(path, text).expect("it can be written");
                fs::set_permissions(path, fs::Permissions::from_mode(*mode)).expect("it is ours");
            }
            Self::Latin1(Latin1 { latin1 }) => {
                let byte = |c| u8::try_from(u32::from(c)).expect("a character of ISO 8859-1");
                fs::write(path, latin1.chars().map(byte).collect::<Vec<u8>>()).expect("it can be written");
            }
            Self::Link(Link { link }) => symlink(link, path).expect("it can be made"),
        }
    }
}
