//! Collects the variables that a login sets before the shell starts. They come from the files that login(1),
//! `pam_env(8)` and systemd's user manager read.
//!
//! Each source can be left out (`environment.sources`). The sources are read at each capture, and the daemon's own
//! environment is ignored. The module `seed` finds the user, and `snapshot` decides when a change of these files
//! makes a snapshot outdated.
//!
//! The order is that of a login under systemd on Debian. Later sources override earlier sources:
//!
//! ```text
//! login.defs ► environment.d ► pam_env.conf ► /etc/environment ► pam_env.conf ► locale ► ~/.pam_environment
//! ```

mod environment_d;
mod home;
mod login_defs;
mod pam;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

pub use home::HomeDiffers;

use agentd_config::LoginSource;

/// Variables collected so far, by name.
pub(super) type VariableMap = BTreeMap<String, Vec<u8>>;

/// Maximum number of bytes that are read of a file. The limit of execve(2) for a whole environment is about two
/// megabytes.
const MOST: u64 = 2 << 20;

/// The user who logs in.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoginUser<'a> {
    pub(super) name: &'a str,
    pub(super) uid: u32,
    pub(super) home: &'a Path,
    pub(super) shell: &'a Path,
}

/// PATH that login(1) sets for ordinary users if `login.defs` has no PATH. Root's PATH adds the `sbin` directories.
pub const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const ENVIRONMENT: &str = "etc/environment";
const PAM_CONF: &str = "etc/security/pam_env.conf";
const LOGIN_DEFS: &str = "etc/login.defs";
const LOCALES: [&str; 2] = ["etc/default/locale", "etc/locale.conf"];
const PAM_OF_USER: &str = ".pam_environment";

/// Returns the variables from these sources, on the machine whose root directory is `root`.
pub(super) fn variables(sources: &[LoginSource], who: LoginUser<'_>, root: &Path) -> VariableMap {
    let has = |source| sources.contains(&source);
    let mut known = who.variables();
    let built_in = if who.uid == 0 { ROOT_PATH } else { USER_PATH };
    let path =
        if has(LoginSource::LoginDefs) { login_defs::path(&read(&root.join(LOGIN_DEFS)), who.uid) } else { None };
    known.insert("PATH".to_owned(), path.unwrap_or_else(|| built_in.into()));
    if has(LoginSource::EnvironmentD) {
        for file in environment_d::files(root, who.home) {
            environment_d::apply(&read(&file), &mut known);
        }
    }
    let pam_conf = if has(LoginSource::PamEnv) { read(&root.join(PAM_CONF)) } else { Vec::new() };
    pam::apply_conf(&pam_conf, who, &mut known);
    if has(LoginSource::EtcEnvironment) {
        pam::apply_environment(&read(&root.join(ENVIRONMENT)), &mut known);
    }
    // Debian runs the PAM module twice, the second time for the locale. Each run reads the module's own
    // configuration first.
    if root.join(LOCALES[0]).exists() {
        pam::apply_conf(&pam_conf, who, &mut known);
    }
    if has(LoginSource::Locale) {
        for file in LOCALES {
            pam::apply_environment(&read(&root.join(file)), &mut known);
        }
    }
    if has(LoginSource::PamEnvironment) {
        pam::apply_conf(&read(&who.home.join(PAM_OF_USER)), who, &mut known);
    }
    known.extend(who.variables());
    known
}

/// Returns every file and folder that the sources read. Missing files are included, because a new file counts as a
/// change.
pub(super) fn files(sources: &[LoginSource], home: &Path) -> Vec<PathBuf> {
    let root = Path::new("/");
    let fixed = [LOGIN_DEFS, PAM_CONF, ENVIRONMENT].into_iter().chain(LOCALES).map(|file| root.join(file));
    let of_user = sources.contains(&LoginSource::PamEnvironment).then(|| home.join(PAM_OF_USER));
    let mut all: Vec<PathBuf> = fixed.chain(of_user).collect();
    all.extend(environment_d::folders(root, home));
    all.extend(environment_d::files(root, home));
    all
}

impl LoginUser<'_> {
    /// Returns the variables that every login sets, regardless of files.
    fn variables(self) -> VariableMap {
        use std::os::unix::ffi::OsStrExt as _;
        let path = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let own = [
            ("HOME", path(self.home)),
            ("SHELL", path(self.shell)),
            ("USER", self.name.into()),
            ("LOGNAME", self.name.into()),
        ];
        own.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Returns the content. A missing path or a path that is no file gives an empty result.
fn read(path: &Path) -> Vec<u8> {
    let mut content = Vec::new();
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    let read = if is_file {
        File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut content))
    } else {
        return content;
    };
    if let Err(error) = read {
        tracing::warn!(file = %path.display(), %error, "cannot read a file with login variables");
    } else if content.len() as u64 == MOST {
        tracing::warn!(file = %path.display(), "reading only the first {MOST} bytes of a file with login variables");
    }
    content
}

/// Reports whether a variable can have this name.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| *byte == b'_' || byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kim() -> LoginUser<'static> {
        LoginUser { name: "kim", uid: 1000, home: Path::new("/home/kim"), shell: Path::new("/bin/zsh") }
    }

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        root
    }

    fn value(known: &VariableMap, name: &str) -> Option<String> {
        known.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    #[test]
    fn later_sources_override_earlier_sources_and_the_users_file_overrides_all() {
        let root = machine(&[
            ("etc/login.defs", "ENV_PATH PATH=/defs\n"),
            ("etc/environment.d/10.conf", "A=systemd\nB=systemd\nPATH=$PATH:/systemd\nHOME=/wrong\n"),
            ("etc/environment", "B=pam\nC=pam\nUSER=wrong\n"),
            ("etc/security/pam_env.conf", "C DEFAULT=conf\nD DEFAULT=${A}/@{HOME}\n"),
            ("etc/locale.conf", "LANG=de_DE.UTF-8\n"),
        ]);
        let known = variables(&LoginSource::DEFAULT, kim(), root.path());
        for (name, expected) in [
            ("A", "systemd"),
            ("B", "pam"),
            ("C", "pam"),
            ("D", "systemd//home/kim"),
            ("PATH", "/defs:/systemd"),
            ("HOME", "/home/kim"),
            ("USER", "kim"),
            ("LANG", "de_DE.UTF-8"),
        ] {
            assert_eq!(value(&known, name).as_deref(), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_source_that_is_left_out_gives_nothing() {
        let root = machine(&[
            ("etc/login.defs", "ENV_PATH PATH=/defs\n"),
            ("etc/environment.d/10.conf", "FROM_EnvironmentD=1\n"),
            ("etc/environment", "FROM_EtcEnvironment=1\n"),
            ("etc/security/pam_env.conf", "FROM_PamEnv DEFAULT=1\n"),
            ("etc/default/locale", "FROM_Locale=1\n"),
        ]);
        for left_out in LoginSource::DEFAULT {
            let sources: Vec<LoginSource> =
                LoginSource::DEFAULT.into_iter().filter(|source| *source != left_out).collect();
            let known = variables(&sources, kim(), root.path());
            for source in LoginSource::DEFAULT {
                let there = match source {
                    LoginSource::LoginDefs => value(&known, "PATH").as_deref() == Some("/defs"),
                    _ => known.contains_key(&format!("FROM_{source:?}")),
                };
                assert_eq!(there, source != left_out, "without {left_out:?}: {source:?}");
            }
        }
        assert_eq!(value(&variables(&[], kim(), root.path()), "PATH").as_deref(), Some(USER_PATH));
    }

    #[test]
    fn a_megabyte_of_variables_is_read_quickly_and_a_pipe_does_not_block() {
        let lines: Vec<String> = (0..60_000).map(|n| format!("NAME_{n}=value {n}\n")).collect();
        let text = lines.concat();
        let root = machine(&[("etc/environment", &text)]);
        nix::unistd::mkfifo(&root.path().join("etc/locale.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let began = std::time::Instant::now();
        let known = variables(&LoginSource::DEFAULT, kim(), root.path());
        assert_eq!(value(&known, "NAME_59999").as_deref(), Some("value 59999"));
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
