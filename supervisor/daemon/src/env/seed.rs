//! What a login shell is started with: who the user is and what the machine says to everybody, read from the machine's own files
//! and never from the daemon's environment, so that it is the same however agentd was started.

use std::path::{Path, PathBuf};

use agentd_keeper::protocol::Variable;
use nix::unistd::User;

/// The user whose shell is run.
#[derive(Debug, Clone)]
pub(crate) struct Seed {
    pub(crate) shell: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) name: String,
    /// The file mode mask that a login begins with.
    pub(crate) umask: u32,
    uid: u32,
}

/// What keeps shells from asking questions; it is no part of what the user's files make.
const QUIET: [(&str, &str); 2] = [("TERM", "dumb"), ("DISABLE_AUTO_UPDATE", "true")];

/// Why nobody can be logged in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeedError {
    #[error("the user database has no entry for user {uid}; set environment.home and environment.shell")]
    UnknownUser { uid: u32 },
    #[error("the login shell {shell:?} of user {name:?} lets nobody log in; set environment.shell")]
    LoginForbidden { shell: PathBuf, name: String },
    #[error("the login shell {shell:?} is not there; set environment.shell")]
    ShellMissing { shell: PathBuf },
}

/// login(1) gives this PATH to ordinary users (`ENV_PATH` of login.defs(5)), and the `sbin`s to root (`ENV_SUPATH`).
pub(crate) const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where `pam_env(8)` finds variables for every login, on Debian and on Fedora and Arch.
const FOR_EVERY_LOGIN: [&str; 3] = ["/etc/environment", "/etc/default/locale", "/etc/locale.conf"];

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
        if shell.file_name().is_some_and(|file| file == "nologin" || file == "false") {
            return Err(SeedError::LoginForbidden { shell, name });
        }
        if !shell.is_file() {
            return Err(SeedError::ShellMissing { shell });
        }
        Ok(Self { shell, home, name, umask: umask(), uid: uid.as_raw() })
    }

    /// Whether a variable of a shell's environment is there only because it is in the seed to keep the shell quiet.
    pub(crate) fn is_ours(name: &str, value: &[u8]) -> bool {
        QUIET.iter().any(|(quiet, ours)| *quiet == name && ours.as_bytes() == value)
    }

    /// The files that go into the variables.
    pub(crate) fn files() -> impl Iterator<Item = PathBuf> {
        FOR_EVERY_LOGIN.iter().map(PathBuf::from)
    }

    /// The variables: those of login(1), those of `pam_env(8)`'s files, and two that keep shells from asking questions.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        let text = |name: &str, value: &str| Variable { name: name.into(), value: value.into() };
        let path = |name: &str, value: &Path| Variable { name: name.into(), value: value.as_os_str().into() };
        let mut variables: Vec<Variable> = FOR_EVERY_LOGIN
            .iter()
            .filter_map(|file| std::fs::read_to_string(file).ok())
            .flat_map(|content| parse_environment_file(&content))
            .map(|(name, value)| text(&name, &value))
            .collect();
        let runtime = PathBuf::from(format!("/run/user/{}", self.uid));
        let mut own = vec![
            path("HOME", &self.home),
            path("SHELL", &self.shell),
            text("USER", &self.name),
            text("LOGNAME", &self.name),
        ];
        own.extend(QUIET.map(|(name, value)| text(name, value)));
        if !variables.iter().any(|variable| variable.name.as_bytes() == b"PATH") {
            own.push(text("PATH", if self.uid == 0 { ROOT_PATH } else { USER_PATH }));
        }
        if runtime.is_dir() {
            own.push(path("XDG_RUNTIME_DIR", &runtime));
        }
        variables.retain(|variable| !own.iter().any(|mine| mine.name == variable.name));
        variables.append(&mut own);
        variables
    }
}

/// What login(1) and pam_umask(8) set: `UMASK` of login.defs(5), and 022 where it says nothing.
fn umask() -> u32 {
    let text = std::fs::read_to_string("/etc/login.defs").unwrap_or_default();
    let mut words =
        text.lines().map(str::split_whitespace).filter_map(|mut words| Some((words.next()?, words.next()?)));
    words.find(|(name, _)| *name == "UMASK").and_then(|(_, mask)| u32::from_str_radix(mask, 8).ok()).unwrap_or(0o22)
}

/// `KEY=VAL` lines with `#` comments, an optional `export ` and optional quotes, as `pam_env(8)` reads them.
fn parse_environment_file(content: &str) -> Vec<(String, String)> {
    content
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("export ").unwrap_or(line).split_once('='))
        .map(|(name, value)| (name.trim(), value.trim()))
        .filter(|(name, _)| !name.is_empty() && name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric()))
        .map(|(name, value)| {
            let unquoted = ['"', '\'']
                .iter()
                .find_map(|&quote| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)))
                .unwrap_or(value);
            (name.to_owned(), unquoted.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_files_are_read_as_pam_env_does() {
        let content = "# comment\nLANG=\"de_DE.UTF-8\"\nexport A='x y'\n\n B = c \nno equals\n=x\nB-D=1\nE=\n";
        let pairs = parse_environment_file(content);
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("LANG", "de_DE.UTF-8"), ("A", "x y"), ("B", "c"), ("E", "")]);
    }

    #[test]
    fn a_shell_that_lets_nobody_in_is_named() {
        let error = Seed::find(Some(Path::new("/tmp")), Some(Path::new("/usr/sbin/nologin"))).unwrap_err();
        assert!(error.to_string().contains("environment.shell"), "{error}");
        let error = Seed::find(Some(Path::new("/tmp")), Some(Path::new("/no/such/shell"))).unwrap_err();
        assert!(matches!(error, SeedError::ShellMissing { .. }));
    }
}
