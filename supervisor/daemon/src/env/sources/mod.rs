//! What a login gives besides the shell: the files that login(1), `pam_env(8)` and the user manager of systemd read before the first
//! start-up file.
//!
//! Each source can be left out (`environment.sources`). They are read from the machine at each capture; the daemon's own environment is
//! no source. Not its job: who the user is (`seed`), and when a change of these files makes a snapshot old (`snapshot`).
//!
//! The order is that of a login under systemd on Debian; what is read later goes before what is read earlier:
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

use serde::Deserialize;

pub(crate) use home::HomeDiffers;

/// Names and values, as far as they are known.
pub(super) type Known = BTreeMap<String, Vec<u8>>;

/// A file of more than this is read no further: execve(2) gives a program about two megabytes of environment in all.
const MOST: u64 = 2 << 20;

/// Where variables of a login come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    /// The PATH of `/etc/login.defs`: `ENV_SUPATH` for root, `ENV_PATH` for others.
    LoginDefs,
    /// The folders of environment.d(5), which the user manager of systemd reads.
    EnvironmentD,
    /// `/etc/security/pam_env.conf`.
    PamEnv,
    /// `/etc/environment`.
    EtcEnvironment,
    /// `/etc/default/locale` and `/etc/locale.conf`.
    Locale,
    /// `~/.pam_environment`, which current versions of PAM leave alone.
    PamEnvironment,
}

impl Source {
    /// Those that are read where the configuration does not say.
    pub(crate) const DEFAULT: [Self; 5] =
        [Self::LoginDefs, Self::EnvironmentD, Self::PamEnv, Self::EtcEnvironment, Self::Locale];
}

/// Whose login it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) name: &'a str,
    pub(super) uid: u32,
    pub(super) home: &'a Path,
    pub(super) shell: &'a Path,
}

/// login(1) gives this PATH to ordinary users where `login.defs` has none, and the `sbin`s to root.
pub(crate) const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const ENVIRONMENT: &str = "etc/environment";
const PAM_CONF: &str = "etc/security/pam_env.conf";
const LOGIN_DEFS: &str = "etc/login.defs";
const LOCALES: [&str; 2] = ["etc/default/locale", "etc/locale.conf"];
const PAM_OF_USER: &str = ".pam_environment";

/// The variables that these sources give, on the machine whose root directory is `root`.
pub(super) fn variables(sources: &[Source], who: Who<'_>, root: &Path) -> Known {
    let has = |source| sources.contains(&source);
    let mut known = who.variables();
    let built_in = if who.uid == 0 { ROOT_PATH } else { USER_PATH };
    let path = if has(Source::LoginDefs) { login_defs::path(&read(&root.join(LOGIN_DEFS)), who.uid) } else { None };
    known.insert("PATH".to_owned(), path.unwrap_or_else(|| built_in.into()));
    if has(Source::EnvironmentD) {
        for file in environment_d::files(root, who.home) {
            environment_d::apply(&read(&file), &mut known);
        }
    }
    let pam_conf = if has(Source::PamEnv) { read(&root.join(PAM_CONF)) } else { Vec::new() };
    pam::apply_conf(&pam_conf, who, &mut known);
    if has(Source::EtcEnvironment) {
        pam::apply_environment(&read(&root.join(ENVIRONMENT)), &mut known);
    }
    // Debian calls the module twice, the second time for the locale, and each call reads its own configuration first.
    if root.join(LOCALES[0]).exists() {
        pam::apply_conf(&pam_conf, who, &mut known);
    }
    if has(Source::Locale) {
        for file in LOCALES {
            pam::apply_environment(&read(&root.join(file)), &mut known);
        }
    }
    if has(Source::PamEnvironment) {
        pam::apply_conf(&read(&who.home.join(PAM_OF_USER)), who, &mut known);
    }
    known.extend(who.variables());
    known
}

/// Every file and folder that the sources read, whether it is there or not: one that appears counts too.
pub(super) fn files(sources: &[Source], home: &Path) -> Vec<PathBuf> {
    let root = Path::new("/");
    let fixed = [LOGIN_DEFS, PAM_CONF, ENVIRONMENT].into_iter().chain(LOCALES).map(|file| root.join(file));
    let of_user = sources.contains(&Source::PamEnvironment).then(|| home.join(PAM_OF_USER));
    let mut all: Vec<PathBuf> = fixed.chain(of_user).collect();
    all.extend(environment_d::folders(root, home));
    all.extend(environment_d::files(root, home));
    all
}

impl Who<'_> {
    /// What every login sets whatever files say.
    fn variables(self) -> Known {
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

/// The content; of what is not there or is no file, nothing.
fn read(path: &Path) -> Vec<u8> {
    let mut content = Vec::new();
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    let read = if is_file {
        File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut content))
    } else {
        return content;
    };
    if let Err(error) = read {
        tracing::warn!(file = %path.display(), %error, "a file with variables for every login cannot be read");
    } else if content.len() as u64 == MOST {
        tracing::warn!(file = %path.display(), "only the first {MOST} bytes of a file with variables are read");
    }
    content
}

/// Whether a variable can have this name.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| *byte == b'_' || byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kim() -> Who<'static> {
        Who { name: "kim", uid: 1000, home: Path::new("/home/kim"), shell: Path::new("/bin/zsh") }
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

    fn value(known: &Known, name: &str) -> Option<String> {
        known.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    #[test]
    fn later_sources_go_before_earlier_ones_and_the_user_before_all() {
        let root = machine(&[
            ("etc/login.defs", "ENV_PATH PATH=/defs\n"),
            ("etc/environment.d/10.conf", "A=systemd\nB=systemd\nPATH=$PATH:/systemd\nHOME=/wrong\n"),
            ("etc/environment", "B=pam\nC=pam\nUSER=wrong\n"),
            ("etc/security/pam_env.conf", "C DEFAULT=conf\nD DEFAULT=${A}/@{HOME}\n"),
            ("etc/locale.conf", "LANG=de_DE.UTF-8\n"),
        ]);
        let known = variables(&Source::DEFAULT, kim(), root.path());
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
        for left_out in Source::DEFAULT {
            let sources: Vec<Source> = Source::DEFAULT.into_iter().filter(|source| *source != left_out).collect();
            let known = variables(&sources, kim(), root.path());
            for source in Source::DEFAULT {
                let there = match source {
                    Source::LoginDefs => value(&known, "PATH").as_deref() == Some("/defs"),
                    _ => known.contains_key(&format!("FROM_{source:?}")),
                };
                assert_eq!(there, source != left_out, "without {left_out:?}: {source:?}");
            }
        }
        assert_eq!(value(&variables(&[], kim(), root.path()), "PATH").as_deref(), Some(USER_PATH));
    }

    #[test]
    fn a_megabyte_of_variables_is_read_in_a_moment_and_what_is_no_file_is_not_waited_for() {
        let lines: Vec<String> = (0..60_000).map(|n| format!("NAME_{n}=value {n}\n")).collect();
        let text = lines.concat();
        let root = machine(&[("etc/environment", &text)]);
        nix::unistd::mkfifo(&root.path().join("etc/locale.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let began = std::time::Instant::now();
        let known = variables(&Source::DEFAULT, kim(), root.path());
        assert_eq!(value(&known, "NAME_59999").as_deref(), Some("value 59999"));
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
