//! Resolves the symbolic links in the fixed beginnings ("fronts") of patterns.
//!
//! `/bin/ls` in a grant is `/usr/bin/ls` on most machines, and the host compares resolved paths.
//!
//! Only links that root owns widen a grant, and only outside the directories that a repository or an agent can
//! write to. A grant of `/opt/tool/**` must not become a grant of `/etc/**` because another user created a
//! link.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use super::path::Places;

/// Maximum number of links in a path, as in the Linux kernel (`path_resolution(7)`).
const LINKS: usize = 40;

/// Fronts with their resolved form, if it differs.
pub(crate) type Fronts = HashMap<String, String>;

/// Which symbolic links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow<'a> {
    /// Links with this owner, except those below the working directory and the session's directory.
    OwnedBy(u32, &'a Places),
    /// All links.
    All,
}

impl Follow<'_> {
    fn follows(self, link: &Path, owner: u32) -> bool {
        let Self::OwnedBy(trusted, places) = self else { return true };
        let written_to = [&places.cwd, &places.session].into_iter().flatten();
        let below = written_to.filter(|place| *place != "/").any(|place| link.starts_with(place));
        owner == trusted && !below
    }
}

/// Returns the fronts whose resolved form differs. Accesses the file system, which may block.
pub(crate) fn resolve<'a>(fronts: impl Iterator<Item = &'a str>, follow: Follow<'_>) -> Fronts {
    fronts.filter_map(|front| Some((front.to_owned(), resolve_one(Path::new(front), follow)?))).collect()
}

/// Returns the resolved form of a front, or `None` if it is equal. Names that do not exist are kept unchanged.
fn resolve_one(front: &Path, follow: Follow<'_>) -> Option<String> {
    let mut resolved = PathBuf::from("/");
    let mut rest: Vec<PathBuf> = names(front);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == Path::new("..") {
            resolved.pop(); // `..` from a link's target; the resolved part has no links
            continue;
        }
        resolved.push(&name);
        let Ok(metadata) = fs::symlink_metadata(&resolved) else { continue };
        if !metadata.is_symlink() {
            continue;
        }
        links += 1;
        if links > LINKS || !follow.follows(&resolved, metadata.uid()) {
            return None;
        }
        let target = fs::read_link(&resolved).ok()?;
        resolved.pop();
        if target.is_absolute() {
            resolved = PathBuf::from("/");
        }
        rest.extend(names(&target));
    }
    let resolved = resolved.into_os_string().into_string().ok()?;
    (Path::new(&resolved) != front).then_some(resolved)
}

/// Returns the names of a path in reverse order.
fn names(path: &Path) -> Vec<PathBuf> {
    let name = |component| match component {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes `real/name` and the symlink `link` to `real`, in a directory without links above it.
    fn tree() -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir(root.join("real")).unwrap();
        fs::write(root.join("real/name"), "").unwrap();
        symlink("real", root.join("link")).unwrap();
        symlink("../real/../link/name", root.join("real/far")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        (directory, root.into_os_string().into_string().unwrap())
    }

    fn own() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    #[test]
    fn a_front_leads_where_its_links_do() {
        let (_directory, root) = tree();
        let places = Places::default();
        for follow in [Follow::All, Follow::OwnedBy(own(), &places)] {
            for (front, leads) in [
                ("link", Some("real")),
                ("link/name", Some("real/name")),
                ("link/absent/x", Some("real/absent/x")),
                ("link/far", Some("real/name")),
                ("real", None),
                ("real/name", None),
                ("absent", None),
                ("loop", None),
            ] {
                let front = format!("{root}/{front}");
                let leads = leads.map(|leads| format!("{root}/{leads}"));
                assert_eq!(resolve([front.as_str()].into_iter(), follow).get(&front).cloned(), leads, "{front}");
            }
        }
    }

    #[test]
    fn a_link_of_somebody_else_or_in_the_working_directory_leads_nowhere() {
        let (_directory, root) = tree();
        let places = Places { cwd: Some(root.clone()), ..Places::default() };
        let link = format!("{root}/link");
        let leads = |follow| !resolve([link.as_str()].into_iter(), follow).is_empty();
        assert!(leads(Follow::All));
        let nowhere = Places::default();
        assert!(leads(Follow::OwnedBy(own(), &nowhere)));
        assert!(!leads(Follow::OwnedBy(own() + 1, &nowhere)));
        assert!(!leads(Follow::OwnedBy(own(), &places)));
        let session = Places { session: Some(root.clone()), ..Places::default() };
        assert!(!leads(Follow::OwnedBy(own(), &session)));
        let elsewhere = Places { cwd: Some(format!("{root}/lin")), session: Some("/".to_owned()), ..Places::default() };
        assert!(leads(Follow::OwnedBy(own(), &elsewhere)));
    }
}
