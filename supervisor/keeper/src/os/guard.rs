//! Linux: isolation at level `guard`. A user namespace and a mount namespace hide agentd's files. A Landlock domain
//! blocks signals, tracing and abstract sockets to processes outside.
//!
//! ```text
//!   user's namespaces ── outer: owns the covers ── inner: the agent, for which every cover is locked
//! ```
//!
//! **Two namespaces.** A process with rights in the namespace of a mount can remove the mount, and root keeps its
//! rights at exec. The covers are therefore mounted in an outer namespace. The agent runs in an inner namespace,
//! where mounts of the outer namespace are locked (`mount_namespaces(7)`, "Restrictions on mount namespaces").
//!
//! **Pins.** The agent could rename a directory above a cover and put another in its place for agentd to find. A
//! mount point cannot be renamed, so each such directory is bind-mounted onto itself. As a result, rename(2) and
//! link(2) into or out of it return EXDEV.
//!
//! **The current directory** of the caller still leads to the hidden files. The caller must enter it again by its
//! path.
//!
//! Rights over other users' files do not change, because ids map to themselves. If root may write a full id map, root
//! keeps all ids.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use agentd_api::isolation::IsolationMissing;
use landlock::{CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, RulesetCreated, RulesetStatus, Scope};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{AccessFlags, ForkResult, access, fork, getegid, geteuid, getpid};

use crate::protocol::{Enclosure, VisibleDirectory};

/// Returns the path of this process's program, also if its file was replaced.
#[allow(clippy::unnecessary_wraps, reason = "this function can fail on other systems")]
pub(crate) fn own_program() -> io::Result<PathBuf> {
    Ok(PathBuf::from("/proc/self/exe"))
}

/// Hides agentd's files from this process and its descendants. An error names the missing part and its remedy. If the
/// configuration allows it, returns a weakness by which the agent can still replace agentd's files.
pub(crate) fn hide(enclosure: &Enclosure, directory: &Path) -> Result<Option<String>, String> {
    let hidden = Hidden::find(enclosure, directory)?;
    // Root could replace every link, also the system's, and this level does not confine root.
    let loose = hidden.loose.as_ref().filter(|_| !geteuid().is_root()).map(|link| {
        format!(
            "agentd's directories are reached by the link {}, which the agent can replace; \
             name the directory itself in agentd's options",
            link.display()
        )
    });
    if let Some(reason) = loose.as_ref().filter(|_| enclosure.missing == IsolationMissing::Fail) {
        return Err(reason.clone());
    }
    // A process that is not dumpable does not own its files in /proc, and could not write its id maps.
    let _ = prctl::set_dumpable(true);
    enter_namespaces().map_err(|error| no_namespaces(&error))?;
    hidden.cover().map_err(|error| no_mounts(&error))?;
    enter_namespaces().map_err(|error| no_namespaces(&error))?;
    Ok(loose)
}

/// Failed step with its errno.
type Failed = (String, Errno);

fn at(step: impl Into<String>) -> impl FnOnce(Errno) -> Failed {
    let step = step.into();
    move |errno| (step, errno)
}

fn of_io(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Kernel switches for user namespaces: file, the value that forbids them, and the remedy.
const SWITCHES: [(&str, &str, &str); 3] = [
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "an AppArmor profile with `userns,` for agentd-keeper, or \
         sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
];

fn no_namespaces((step, errno): &Failed) -> String {
    let switch = SWITCHES.iter().find(|(file, off, _)| fs::read_to_string(file).is_ok_and(|text| text.trim() == *off));
    let remedy = match switch {
        Some((file, value, remedy)) => format!("{file} is {value}; as root: {remedy}"),
        None => {
            "a container or a service may forbid them (seccomp, RestrictNamespaces=); allow unshare(2) there".into()
        }
    };
    format!("user and mount namespaces: {step}: {}; {remedy}", errno.desc())
}

fn no_mounts((step, errno): &Failed) -> String {
    let text = no_namespaces(&(step.clone(), *errno));
    // Ubuntu allows creating the namespace, and removes all rights in it.
    if matches!(errno, Errno::EACCES | Errno::EPERM) { text } else { format!("mounts: {step}: {}", errno.desc()) }
}

/// Enters a user namespace that maps every id to itself, and a mount namespace owned by it.
fn enter_namespaces() -> Result<(), Failed> {
    let flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
    let (uid, gid) = (geteuid(), getegid());
    let maps = [own_map("uid"), own_map("gid")];
    let is_single = maps.iter().all(|map| map.lines().count() == 1 && map.trim_end().ends_with(" 1"));
    if uid.is_root() && !is_single {
        // Only a process outside the namespace may map more than one id.
        let (mut go, went) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
            .map(|(reader, writer)| (File::from(writer), File::from(reader)))
            .map_err(at("pipe"))?;
        let pid = getpid();
        let mapper = child(move || {
            let mut word = [0];
            (&went).read_exact(&mut word)?;
            for (name, map) in ["uid_map", "gid_map"].iter().zip(&maps) {
                fs::write(format!("/proc/{pid}/{name}"), map)?;
            }
            Ok(())
        })
        .map_err(at("fork"))?;
        unshare(flags).map_err(at("unshare"))?;
        let _ = go.write_all(b"x");
        drop(go);
        if ended_well(mapper) {
            return Ok(());
        }
    } else {
        unshare(flags).map_err(at("unshare"))?;
    }
    let write = |name: &str, text: String| {
        fs::write(format!("/proc/self/{name}"), text).map_err(|error| (format!("write {name}"), of_io(&error)))
    };
    // Otherwise an ordinary user may not map a group (user_namespaces(7)).
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{gid} {gid} 1"))?;
    write("uid_map", format!("{uid} {uid} 1"))
}

/// Returns the map that maps every id known to this process to itself.
fn own_map(of: &str) -> String {
    let known = fs::read_to_string(format!("/proc/self/{of}_map")).unwrap_or_default();
    let lines = known.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (first, _, count) = (words.next()?, words.next()?, words.next()?);
        Some(format!("{first} {first} {count}\n"))
    });
    lines.collect()
}

/// Runs a function in a child process, which then exits.
#[allow(unsafe_code, reason = "fork has no safe form")]
fn child(what: impl FnOnce() -> io::Result<()>) -> nix::Result<nix::unistd::Pid> {
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let status = i32::from(what().is_err());
            // SAFETY: _exit ends this process without running the parent's exit handlers.
            unsafe { libc::_exit(status) }
        }
    }
}

fn ended_well(pid: nix::unistd::Pid) -> bool {
    loop {
        match waitpid(pid, None) {
            Err(Errno::EINTR) => {}
            ended => return matches!(ended, Ok(WaitStatus::Exited(_, 0))),
        }
    }
}

/// Tries a function in a child process and returns its error. The calling process must have a single thread.
pub(crate) fn attempt<T>(what: impl FnOnce() -> Result<T, String>) -> Result<(), String> {
    let (mut reader, mut writer) = io::pipe().map_err(|error| error.to_string())?;
    let tried = child(move || {
        if let Err(reason) = what() {
            writer.write_all(reason.as_bytes())?;
            return Err(io::ErrorKind::Other.into());
        }
        Ok(())
    });
    let pid = tried.map_err(|errno| errno.desc().to_owned())?;
    let mut reason = String::new();
    let _ = reader.read_to_string(&mut reason);
    if ended_well(pid) { Ok(()) } else { Err(reason) }
}

/// Paths to hide and to show, without symbolic links.
#[derive(Debug, Default)]
struct Hidden {
    /// Directories to hide; each comes before the directories inside it.
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    shown: Vec<VisibleDirectory>,
    /// Link on the way to a directory that this user could replace.
    loose: Option<PathBuf>,
}

impl Hidden {
    fn find(enclosure: &Enclosure, directory: &Path) -> Result<Self, String> {
        let (mut directories, mut loose) = (Vec::new(), None);
        for path in &enclosure.directories {
            // The agent could create a missing directory, with a configuration in it.
            let _ = agentd_directory::create(path);
            match path.canonicalize() {
                Ok(real) => {
                    loose = loose.or_else(|| link_of_ones_own(path));
                    directories.push(real);
                }
                // No process of this user can create the directory either.
                Err(error) if matches!(of_io(&error), Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR) => {}
                Err(error) => return Err(format!("the directory {} cannot be covered: {error}", path.display())),
            }
        }
        directories.sort_by_key(|path| path.components().count());
        directories.dedup();
        let files = enclosure.files.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let own = VisibleDirectory { path: directory.to_owned(), read_only: false };
        let mut shown = Vec::new();
        for VisibleDirectory { path: named, read_only } in enclosure.shown.iter().chain([&own]) {
            let Ok(path) = named.canonicalize() else { continue };
            if directories.contains(&path) {
                let text = format!("the session's directory {} is a directory of agentd's own", named.display());
                return Err(format!("{text}; use another one"));
            }
            if !directories.iter().any(|hidden| path.starts_with(hidden)) {
                continue;
            }
            // An agent could replace its own directory with a link, and see the link's target at the next launch.
            let is_named_so = enclosure.directories.iter().chain(&directories).any(|hidden| {
                let below = named.strip_prefix(hidden).ok();
                below.is_some_and(|below| hidden.canonicalize().is_ok_and(|hidden| hidden.join(below) == path))
            });
            if !is_named_so {
                let text = format!("the directory {} leads by a link into agentd's own directories", named.display());
                return Err(format!("{text}; name the directory itself"));
            }
            shown.push(VisibleDirectory { path, read_only: *read_only });
        }
        Ok(Self { directories, files, shown, loose })
    }

    /// Returns the directories above that could be renamed, the outer ones first.
    fn pins(&self) -> Vec<PathBuf> {
        let all = self.directories.iter().chain(&self.files).flat_map(|path| path.ancestors().skip(1));
        let can_be_renamed = |path: &&Path| path.parent().is_some_and(is_ones_own);
        let mut pins: Vec<PathBuf> = all.filter(can_be_renamed).map(Path::to_owned).collect();
        pins.sort();
        pins.dedup();
        pins
    }

    /// Hides all paths in this mount namespace.
    fn cover(&self) -> Result<(), Failed> {
        // Later mounts from outside must appear here, and mounts from here must not appear outside.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SLAVE | MsFlags::MS_REC, None::<&str>)
            .map_err(at("make the mounts slaves"))?;
        for path in self.pins() {
            bind(&path, &path)?;
        }
        // Opened now, because the paths stop working when they are covered.
        let open = |path: &Path| {
            let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
            found.map(OwnedFd::from).map_err(|error| (format!("open {}", path.display()), of_io(&error)))
        };
        let shown: Vec<(&VisibleDirectory, OwnedFd)> =
            self.shown.iter().map(|shown| Ok((shown, open(&shown.path)?))).collect::<Result<_, Failed>>()?;
        let mut covers: Vec<&Path> = Vec::new();
        for path in &self.directories {
            // A directory inside a hidden one is hidden too, unless it is in a shown directory.
            if path.exists() && !covers.contains(&path.as_path()) {
                empty(path)?;
                for (shown, fd) in shown.iter().filter(|(shown, _)| shown.path.starts_with(path)) {
                    show(shown, fd)?;
                }
                covers.push(path);
            }
        }
        if let Some(first) = covers.first() {
            self.cover_files(&first.join(".empty"))?;
        }
        covers.into_iter().try_for_each(close)
    }

    /// Covers the files with an empty file that is created for this and then unlinked.
    fn cover_files(&self, nothing: &Path) -> Result<(), Failed> {
        let failed = |step: &str, error: &io::Error| (format!("{step} {}", nothing.display()), of_io(error));
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(nothing)
            .map_err(|error| failed("make", &error))?;
        for file in self.files.iter().filter(|file| file.exists()) {
            bind(nothing, file)?;
            close(file)?;
        }
        fs::remove_file(nothing).map_err(|error| failed("unlink", &error))
    }
}

/// Reports whether this user can change the directory's entries, or can gain the permission to.
fn is_ones_own(directory: &Path) -> bool {
    access(directory, AccessFlags::W_OK).is_ok()
        || directory.metadata().is_ok_and(|metadata| metadata.uid() == geteuid().as_raw())
}

/// Returns the first link on a path that this user can replace.
fn link_of_ones_own(path: &Path) -> Option<PathBuf> {
    let ways = path.ancestors().collect::<Vec<_>>().into_iter().rev();
    let mut links = ways.filter(|way| way.is_symlink());
    links.find(|link| link.parent().is_some_and(is_ones_own)).map(Path::to_owned)
}

/// Bind-mounts a path with all mounts below it. In an ordinary user's namespace, these mounts are locked together.
fn bind(from: &Path, to: &Path) -> Result<(), Failed> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(at(format!("bind {}", to.display())))
}

/// Mounts an empty directory over the path.
fn empty(path: &Path) -> Result<(), Failed> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("agentd-guard"), path, Some("tmpfs"), flags, Some("mode=0755,size=64k,nr_inodes=256"))
        .map_err(at(format!("cover {}", path.display())))
}

/// Makes a directory visible at its own path inside the cover.
fn show(shown: &VisibleDirectory, fd: &OwnedFd) -> Result<(), Failed> {
    let VisibleDirectory { path, read_only } = shown;
    fs::create_dir_all(path).map_err(|error| (format!("make {}", path.display()), of_io(&error)))?;
    bind(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd())), path)?;
    if *read_only { close(path) } else { Ok(()) }
}

/// Makes a mount read-only. Its other flags are locked and must be repeated.
fn close(path: &Path) -> Result<(), Failed> {
    let now = statvfs(path).map_err(at(format!("look at {}", path.display())))?.flags();
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    for (is, flag) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        flags.set(flag, now.contains(is));
    }
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).map_err(at(format!("close {}", path.display())))
}

/// Enters a Landlock domain: no signal, trace or abstract socket connection leaves it. Set-user-id programs no longer
/// gain rights, because the kernel requires that for a domain. The domain does not restrict files, so mounting still
/// works.
pub(crate) fn scope() -> Result<(), String> {
    let entered = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scope::Signal | Scope::AbstractUnixSocket)
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self);
    match entered {
        Ok(status) if status.ruleset == RulesetStatus::FullyEnforced => Ok(()),
        Ok(status) => Err(no_landlock(&format!("{:?}", status.ruleset))),
        Err(error) => Err(no_landlock(&error.to_string())),
    }
}

fn no_landlock(error: &str) -> String {
    format!(
        "Landlock with scopes for signals and abstract sockets (ABI 6): {error}; it needs Linux 6.12, with \
         landlock in lsm= of its command line"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn enclosure(directories: &[PathBuf]) -> Enclosure {
        Enclosure { directories: directories.to_vec(), ..Enclosure::default() }
    }

    #[test]
    fn a_directory_below_a_hidden_one_is_shown_only_by_its_own_name() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().canonicalize().unwrap().join(name);
        let hidden = enclosure(&[at("state")]);
        for name in ["state/projects/one", "state/sessions", "work"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let found = |name: &str| Hidden::find(&hidden, &at(name));
        assert!(found("work").unwrap().shown.is_empty());
        assert_eq!(found("state/projects/one").unwrap().shown[0].path, at("state/projects/one"));
        assert!(found("state").unwrap_err().contains("agentd's own; use another"));
        symlink(at("state/sessions"), at("work/link")).unwrap();
        symlink("../sessions", at("state/projects/link")).unwrap();
        for link in ["work/link", "state/projects/link"] {
            assert!(found(link).unwrap_err().contains("leads by a link into agentd's own"), "{link}");
        }
    }

    #[test]
    fn a_replaceable_link_is_found_and_a_missing_directory_is_created() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().canonicalize().unwrap().join(name);
        fs::create_dir_all(at("dotfiles/agentd")).unwrap();
        symlink(at("dotfiles/agentd"), at("config")).unwrap();
        let find = |name: &str| Hidden::find(&enclosure(&[at(name)]), Path::new("/")).unwrap();
        assert_eq!(find("config").loose, Some(at("config")));
        assert_eq!(find("config/below").loose, Some(at("config")));
        let made = find("none/yet");
        assert!(made.loose.is_none() && at("none/yet").is_dir());
        assert!(made.pins().contains(&at("none")) && made.pins().is_sorted());
        assert!(!made.pins().contains(&at("none/yet")), "a cover is a mount itself");
    }
}
