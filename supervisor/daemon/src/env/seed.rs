//! What a login shell is started with: who the user is and what the machine says to everybody, read from the machine's own files
//! and never from the daemon's environment, so that it is the same however agentd was started.

use std::path::{Path, PathBuf};

use agentd_keeper::protocol::Variable;
use nix::unistd::User;

pub(crate) use super::sources::USER_PATH;
use super::sources::{self, Source, Who};

/// The user whose shell is run.
#[derive(Debug, Clone)]
pub(crate) struct Seed {
    pub(crate) shell: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) name: String,
    /// The file mode mask that a login begins with.
    pub(crate) umask: u32,
    uid: u32,
    sources: Vec<Source>,
}

/// What keeps shells from asking questions; it is no part of what the user's files make.
const QUIET: [(&str, &str); 2] = [("TERM", "dumb"), ("DISABLE_AUTO_UPDATE", "true")];

/// Variables that say something of the capture and nothing of the user, each with what it is. A `*` stands for any end.
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

/// Why nobody can be logged in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeedError {
    #[error("the user database has no entry for user {uid}; set environment.home and environment.shell")]
    UnknownUser { uid: u32 },
    #[error("the login shell {shell:?} is not there; set environment.shell")]
    ShellMissing { shell: PathBuf },
}

impl Seed {
    /// The configuration's say goes before the user database's; `$SHELL` and `$HOME` of the daemon are not asked.
    pub(crate) fn find(home: Option<&Path>, shell: Option<&Path>) -> Result<Self, SeedError> {
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
        Ok(Self { shell, home, name, umask: umask(), uid: uid.as_raw(), sources: Source::DEFAULT.to_vec() })
    }

    /// Whether the user database names a program that gives no shell, whatever is typed.
    pub(crate) fn has_no_shell(&self) -> bool {
        const NONE: [&str; 8] = ["nologin", "false", "true", "env", "sync", "halt", "shutdown", "git-shell"];
        self.shell.file_name().is_some_and(|file| NONE.iter().any(|none| file == *none))
    }

    /// The user with a shell that is there on every system.
    pub(crate) fn with_a_shell(&self) -> Self {
        let shell = ["/bin/bash", "/bin/sh"].into_iter().map(PathBuf::from).find(|shell| shell.is_file());
        Self { shell: shell.unwrap_or_else(|| "/bin/sh".into()), ..self.clone() }
    }

    /// Sets the sources that the login reads before its first start-up file.
    pub(crate) fn with_sources(self, sources: Vec<Source>) -> Self {
        Self { sources, ..self }
    }

    /// Whether a variable of a shell's environment is there only because it is in the seed to keep the shell quiet.
    pub(crate) fn is_ours(name: &str, value: &[u8]) -> bool {
        let runtime = || format!("/run/user/{}", nix::unistd::getuid());
        QUIET.iter().any(|(quiet, ours)| *quiet == name && ours.as_bytes() == value)
            // A login makes it; the agent has that of its service, or none.
            || (name == "XDG_RUNTIME_DIR" && value == runtime().as_bytes())
            || OF_THE_CAPTURE.iter().any(|(prefix, _)| match prefix.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == *prefix,
            })
    }

    /// The files that go into the variables.
    pub(crate) fn files(&self) -> impl Iterator<Item = PathBuf> + use<> {
        sources::files(&self.sources, &self.home).into_iter()
    }

    /// The variables: those of the sources, and two that keep shells from asking questions.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        let who = Who { name: &self.name, uid: self.uid, home: &self.home, shell: &self.shell };
        let mut known = sources::variables(&self.sources, who, Path::new("/"));
        known.extend(QUIET.map(|(name, value)| (name.to_owned(), value.into())));
        let runtime = format!("/run/user/{}", self.uid);
        if Path::new(&runtime).is_dir() {
            known.insert("XDG_RUNTIME_DIR".to_owned(), runtime.into());
        }
        known.into_iter().map(|(name, value)| Variable { name: name.into(), value: value.into() }).collect()
    }
}

/// What login(1) and `pam_umask(8)` set: `UMASK` of login.defs(5), and 022 where it says nothing.
fn umask() -> u32 {
    let text = std::fs::read_to_string("/etc/login.defs").unwrap_or_default();
    let mut words =
        text.lines().map(str::split_whitespace).filter_map(|mut words| Some((words.next()?, words.next()?)));
    words.find(|(name, _)| *name == "UMASK").and_then(|(_, mask)| u32::from_str_radix(mask, 8).ok()).unwrap_or(0o22)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_shell_is_known_and_has_one_in_its_place() {
        let found = |shell: &str| Seed::find(Some(Path::new("/tmp")), Some(Path::new(shell)));
        let seed = found("/usr/bin/env").unwrap();
        assert!(seed.has_no_shell() && !found("/bin/sh").unwrap().has_no_shell());
        assert!(!seed.with_a_shell().has_no_shell() && seed.with_a_shell().home == seed.home);
        assert!(matches!(found("/no/such/shell"), Err(SeedError::ShellMissing { .. })));
    }

    #[test]
    fn what_the_capture_itself_makes_is_told_from_settings() {
        for name in ["SHLVL", "COLUMNS", "TERM_PROGRAM_VERSION", "DIRENV_DIFF", "MISE_SHELL", "__MISE_DIFF"] {
            assert!(Seed::is_ours(name, b"x"), "{name}");
        }
        for name in ["DIRENV_CONFIG", "MISE_DATA_DIR", "PAGER", "XDG_RUNTIME_DIR", "TERM"] {
            assert!(!Seed::is_ours(name, b"x"), "{name}");
        }
        assert!(Seed::is_ours("TERM", b"dumb"));
    }
}
