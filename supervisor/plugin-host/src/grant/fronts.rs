//! Where the fronts of patterns lead: `/bin/ls` in a grant is `/usr/bin/ls` on most machines, and what a plugin asks for is compared
//! after its links were resolved.
//!
//! Only a link that root made widens what is granted, and none below a place that a repository or an agent writes to: a grant of
//! `/opt/tool/**` must not become one of `/etc/**` because somebody put a link there.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use super::path::Places;

/// As many links as the kernel follows.
const LINKS: usize = 40;

/// Fronts that lead elsewhere.
pub(crate) type Fronts = HashMap<String, String>;

/// Whose links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow<'a> {
    /// Those of the owner, but none below the working directory or the session's own.
    OwnedBy(u32, &'a Places),
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

/// Those of the fronts that lead elsewhere. Looks at the file system: it may block for as long as that does.
pub(crate) fn resolve<'a>(fronts: impl Iterator<Item = &'a str>, follow: Follow<'_>) -> Fronts {
    fronts.filter_map(|front| Some((front.to_owned(), resolve_one(Path::new(front), follow)?))).collect()
}

/// Where a front leads, if that is elsewhere. Of names that are not there nobody can say more.
fn resolve_one(front: &Path, follow: Follow<'_>) -> Option<String> {
    let mut resolved = PathBuf::from("/");
    let mut rest: Vec<PathBuf> = names(front);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == Path::new("..") {
            resolved.pop(); // of a link's text: what is resolved so far has no links
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

/// The names of a path, the first one last.
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

    /// `real/name` and `link` to `real`, in a directory without links above it.
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
