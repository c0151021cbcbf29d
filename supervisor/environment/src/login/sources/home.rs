//! Compares agentd's own `HOME` with the home directory of logins.

use agentd_api::reason;
use std::fmt;
use std::path::{Path, PathBuf};

/// `HOME` of agentd differs from the home in the user database, which sessions receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeDiffers {
    pub own: PathBuf,
    pub database: PathBuf,
}

impl HomeDiffers {
    pub const CODE: &'static str = reason::HOME_DIFFERS;

    /// Compares the two directories. Returns `None` if they are equal, or if the configuration sets the home
    /// directory.
    pub fn find(configured: Option<&Path>) -> Option<Self> {
        if configured.is_some() {
            return None;
        }
        let own = PathBuf::from(std::env::var_os("HOME")?);
        let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten()?;
        Self::compare(own, user.dir)
    }

    fn compare(own: PathBuf, database: PathBuf) -> Option<Self> {
        let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let differs = own.is_absolute() && place(&own) != place(&database);
        differs.then_some(Self { own, database })
    }
}

impl fmt::Display for HomeDiffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, database } = self;
        write!(
            f,
            "HOME of agentd is {}, but the user database has {}, which sessions use; \
             set environment.home = \"{}\" to use the former",
            own.display(),
            database.display(),
            own.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_under_two_names_does_not_differ() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (directory.path().join("real"), directory.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(HomeDiffers::compare(link, real.clone()), None);
        assert_eq!(HomeDiffers::compare("relative".into(), real.clone()), None);
        let differs = HomeDiffers::compare("/other".into(), real).unwrap();
        assert!(differs.to_string().contains("environment.home = \"/other\""), "{differs}");
    }
}
