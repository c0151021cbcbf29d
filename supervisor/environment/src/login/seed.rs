//! Collects the variables that a login shell starts with: facts about the user and settings of the machine. They
//! come from the machine's own files and never from the daemon's environment. The result therefore does not depend
//! on how agentd was started.

use std::path::{Path, PathBuf};

use agentd_keeper::protocol::Variable;
use nix::unistd::User;

pub(crate) use super::sources::USER_PATH;
use super::sources::{self, LoginUser};
use agentd_config::LoginSource;

/// The user whose shell is run.
#[derive(Debug, Clone)]
pub struct Seed {
    pub shell: PathBuf,
    pub home: PathBuf,
    pub name: String,
    uid: u32,
    sources: Vec<LoginSource>,
    /// Whether the user is that of a place, whose files are not read.
    is_elsewhere: bool,
}

/// The user of a place, as its host reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceUser {
    /// Name of the user.
    pub name: String,
    /// Number of the user.
    pub uid: u32,
    /// Home directory on the place.
    pub home: PathBuf,
    /// Login shell on the place.
    pub shell: PathBuf,
}

/// Variables that keep shells from asking questions. They are no part of the user's environment.
const QUIET: [(&str, &str); 2] = [("TERM", "dumb"), ("DISABLE_AUTO_UPDATE", "true")];

/// Variables that describe the capture instead of the user, each with its meaning. A trailing `*` matches any
/// suffix.
const OF_THE_CAPTURE: [(&str, &str); 12] = [
    ("SHLVL", "counts the shells above the agent, and the capture's is none of them"),
    ("COLUMNS", "the width of the capture's window"),
    ("LINES", "the height of the capture's window"),
    ("TERM_PROGRAM*", "the terminal emulator; the capture is in none, or in a multiplexer of its own"),
    ("DIRENV_DIFF", "what direnv undoes when it leaves the directory of the capture"),
    ("DIRENV_DIR", "where direnv was in the capture"),
    ("DIRENV_FILE", "the file that direnv read in the capture"),
    ("DIRENV_WATCHES", "the files that direnv looks at while the capture's shell lives"),
    ("MISE_SHELL", "the shell that mise is active in"),
    ("__MISE_*", "what mise undoes when it leaves the directory of the capture"),
    ("AGENTD_DUMPED", "a mark of the capture"),
    ("AGENTD_STATUS", "a mark of the capture"),
];

/// Reason why no login shell can be run.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    #[error("the user database has no entry for user {uid}; set environment.home and environment.shell")]
    UnknownUser { uid: u32 },
    #[error("the login shell {shell:?} does not exist; set environment.shell")]
    ShellMissing { shell: PathBuf },
}

impl Seed {
    /// Finds the user's home directory and shell. The configuration takes precedence over the user database.
    /// `$SHELL` and `$HOME` of the daemon are ignored.
    pub fn find(home: Option<&Path>, shell: Option<&Path>) -> Result<Self, SeedError> {
        let uid = nix::unistd::getuid();
        let user = User::from_uid(uid).ok().flatten();
        let (home, shell) = match (home, shell, &user) {
            (Some(home), Some(shell), _) => (home.to_owned(), shell.to_owned()),
            (_, _, None) => return Err(SeedError::UnknownUser { uid: uid.as_raw() }),
            (home, shell, Some(user)) => {
                (home.unwrap_or(&user.dir).to_owned(), shell.unwrap_or(&user.shell).to_owned())
            }
        };
        let name = user.map_or_else(|| uid.to_string(), |user| user.name);
        // passwd(5): an empty shell field means /bin/sh.
        let shell = if shell.as_os_str().is_empty() { PathBuf::from("/bin/sh") } else { shell };
        if !shell.is_file() {
            return Err(SeedError::ShellMissing { shell });
        }
        let (uid, sources) = (uid.as_raw(), LoginSource::DEFAULT.to_vec());
        Ok(Self { shell, home, name, uid, sources, is_elsewhere: false })
    }

    /// Returns the seed of the login shell on a place.
    pub fn of_place(user: &PlaceUser) -> Self {
        let PlaceUser { name, uid, home, shell } = user.clone();
        Self { shell, home, name, uid, sources: Vec::new(), is_elsewhere: true }
    }

    /// Reports whether the user database names a program that is no interactive shell.
    pub fn has_no_shell(&self) -> bool {
        const NONE: [&str; 8] = ["nologin", "false", "true", "env", "sync", "halt", "shutdown", "git-shell"];
        self.shell.file_name().is_some_and(|file| NONE.iter().any(|none| file == *none))
    }

    /// Returns the user with a shell that exists on every system.
    #[must_use]
    pub fn with_a_shell(&self) -> Self {
        let shell = ["/bin/bash", "/bin/sh"].into_iter().map(PathBuf::from).find(|shell| shell.is_file());
        Self { shell: shell.unwrap_or_else(|| "/bin/sh".into()), ..self.clone() }
    }

    /// Reports whether the shell is that of a place.
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// Sets the sources that the login reads before its first start-up file.
    #[must_use]
    pub fn with_sources(self, sources: Vec<LoginSource>) -> Self {
        let sources = if self.is_elsewhere { Vec::new() } else { sources };
        Self { sources, ..self }
    }

    /// Reports whether agentd's capture alone set a variable of a shell's environment.
    pub fn is_ours(name: &str, value: &[u8]) -> bool {
        let runtime = || format!("/run/user/{}", nix::unistd::getuid());
        QUIET.iter().any(|(quiet, ours)| *quiet == name && ours.as_bytes() == value)
            // A login creates the directory. The agent has the directory of its own service, or no such directory.
            || (name == "XDG_RUNTIME_DIR" && value == runtime().as_bytes())
            || OF_THE_CAPTURE.iter().any(|(pattern, _)| agentd_glob::matches(pattern, name))
    }

    /// Returns the files from which the variables are read.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let files = if self.is_elsewhere { Vec::new() } else { sources::files(&self.sources, &self.home) };
        files.into_iter()
    }

    /// Returns the variables of the sources, and two variables that keep shells from asking questions.
    pub fn variables(&self) -> Vec<Variable> {
        let who = LoginUser { name: &self.name, uid: self.uid, home: &self.home, shell: &self.shell };
        let mut known = sources::variables(&self.sources, who, Path::new("/"));
        known.extend(QUIET.map(|(name, value)| (name.to_owned(), value.into())));
        let runtime = format!("/run/user/{}", self.uid);
        if !self.is_elsewhere && Path::new(&runtime).is_dir() {
            known.insert("XDG_RUNTIME_DIR".to_owned(), runtime.into());
        }
        known.into_iter().map(|(name, value)| Variable { name: name.into(), value: value.into() }).collect()
    }
}

/// Returns the file mode creation mask of a login, which login(1) and `pam_umask(8)` set: `UMASK` of login.defs(5), or
/// 022 without an entry.
pub(crate) fn umask() -> u32 {
    let text = std::fs::read_to_string("/etc/login.defs").unwrap_or_default();
    let mut words =
        text.lines().map(str::split_whitespace).filter_map(|mut words| Some((words.next()?, words.next()?)));
    words.find(|(name, _)| *name == "UMASK").and_then(|(_, mask)| u32::from_str_radix(mask, 8).ok()).unwrap_or(0o22)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_shell_is_recognised_and_replaced() {
        let found = |shell: &str| Seed::find(Some(Path::new("/tmp")), Some(Path::new(shell)));
        let seed = found("/usr/bin/env").unwrap();
        assert!(seed.has_no_shell() && !found("/bin/sh").unwrap().has_no_shell());
        assert!(!seed.with_a_shell().has_no_shell() && seed.with_a_shell().home == seed.home);
        assert!(matches!(found("/no/such/shell"), Err(SeedError::ShellMissing { .. })));
    }

    #[test]
    fn variables_of_the_capture_are_distinguished_from_settings() {
        for name in ["SHLVL", "COLUMNS", "TERM_PROGRAM_VERSION", "DIRENV_DIFF", "MISE_SHELL", "__MISE_DIFF"] {
            assert!(Seed::is_ours(name, b"x"), "{name}");
        }
        for name in ["DIRENV_CONFIG", "MISE_DATA_DIR", "PAGER", "XDG_RUNTIME_DIR", "TERM"] {
            assert!(!Seed::is_ours(name, b"x"), "{name}");
        }
        assert!(Seed::is_ours("TERM", b"dumb"));
    }
}
