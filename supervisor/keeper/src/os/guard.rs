//! Linux: the walls of the level `guard`. A user namespace and a mount namespace in which agentd's files are not there, and a Landlock
//! domain beyond whose border no signal, no trace and no abstract socket leads.
//!
//! ```text
//!   user's namespaces ── outer: owns the covers ── inner: the agent, for which every cover is locked
//! ```
//!
//! **Two namespaces.** A mount can be taken away by a process with rights in the namespace that made it, and root keeps its rights at exec.
//! So the covers are made in an outer namespace, and the agent runs in an inner one, where mounts of the outer are locked
//! (`mount_namespaces(7)`, "Restrictions on mount namespaces").
//!
//! **Pins.** A directory above a cover could be renamed, and another put in its place for agentd to find. A mount point cannot be renamed, so
//! each such directory is bound onto itself. rename(2) and link(2) into or out of it therefore give EXDEV.
//!
//! **The current directory** of the caller still leads to what is covered: it must be entered anew by its path.
//!
//! Rights over other users' files are as before: ids map to themselves. Root's whole map is kept where root may write it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
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

use crate::protocol::{Enclosure, Shown};

/// The program that this process runs, also where its file was replaced since.
#[allow(clippy::unnecessary_wraps, reason = "another system may fail at it")]
pub(crate) fn own_program() -> io::Result<PathBuf> {
    Ok(PathBuf::from("/proc/self/exe"))
}

/// Makes agentd's files disappear for this process and all that comes of it. The error says what is missing and how it can be had. Gives what
/// could be changed under agentd all the same, where that is allowed.
pub(crate) fn hide(enclosure: &Enclosure, directory: &Path) -> Result<Option<String>, String> {
    let hidden = Hidden::find(enclosure, directory)?;
    // Root could replace every link, also those of the system; for root it is no wall anyway.
    let loose = hidden.loose.as_ref().filter(|_| !geteuid().is_root()).map(|link| {
        format!(
            "agentd's directories are reached by the link {}, which the agent can replace; name the directory itself in agentd's options",
            link.display()
        )
    });
    if let Some(reason) = loose.as_ref().filter(|_| enclosure.missing == IsolationMissing::Fail) {
        return Err(reason.clone());
    }
    // A process that cannot be dumped does not own its files in /proc, and could not write its maps.
    let _ = prctl::set_dumpable(true);
    enter_namespaces().map_err(|error| no_namespaces(&error))?;
    hidden.cover().map_err(|error| no_mounts(&error))?;
    enter_namespaces().map_err(|error| no_namespaces(&error))?;
    Ok(loose)
}

/// A step that failed, with what it was about.
type Failed = (String, Errno);

fn at(step: impl Into<String>) -> impl FnOnce(Errno) -> Failed {
    let step = step.into();
    move |errno| (step, errno)
}

fn of_io(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Where the kernel says whether ordinary users may have user namespaces, and what the value is that forbids it.
const SWITCHES: [(&str, &str, &str); 3] = [
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "an AppArmor profile with `userns,` for agentd-keeper, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
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
    // Ubuntu lets the namespace be made, and takes all rights in it.
    if matches!(errno, Errno::EACCES | Errno::EPERM) { text } else { format!("mounts: {step}: {}", errno.desc()) }
}

/// Enters a user namespace in which every id is itself, and a mount namespace of it.
fn enter_namespaces() -> Result<(), Failed> {
    let flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
    let (uid, gid) = (geteuid(), getegid());
    let maps = [own_map("uid"), own_map("gid")];
    let is_single = maps.iter().all(|map| map.lines().count() == 1 && map.trim_end().ends_with(" 1"));
    if uid.is_root() && !is_single {
        // Only a process outside may map more than itself.
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
    // Without it an ordinary user may not map a group (user_namespaces(7)).
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{gid} {gid} 1"))?;
    write("uid_map", format!("{uid} {uid} 1"))
}

/// The map under which every id that this process knows stays itself.
fn own_map(of: &str) -> String {
    let known = fs::read_to_string(format!("/proc/self/{of}_map")).unwrap_or_default();
    let lines = known.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (first, _, count) = (words.next()?, words.next()?, words.next()?);
        Some(format!("{first} {first} {count}\n"))
    });
    lines.collect()
}

/// Runs this in a child of its own, which ends with it.
#[allow(unsafe_code, reason = "fork has no safe form")]
fn child(what: impl FnOnce() -> io::Result<()>) -> nix::Result<nix::unistd::Pid> {
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let status = i32::from(what().is_err());
            // SAFETY: it ends this process and runs nothing of what the parent registered for its own end.
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

/// Does this in a child of its own, and tells how it ended. To be called in a process with one thread.
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

/// What is to be covered, by paths without links.
#[derive(Debug, Default)]
struct Hidden {
    /// The outer before what is in them.
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    shown: Vec<Shown>,
    /// A link on the way to a directory that could be replaced.
    loose: Option<PathBuf>,
}

impl Hidden {
    fn find(enclosure: &Enclosure, directory: &Path) -> Result<Self, String> {
        let (mut directories, mut loose) = (Vec::new(), None);
        for path in &enclosure.directories {
            // One that is not there could be made by the agent, with a configuration in it.
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(path);
            match path.canonicalize() {
                Ok(real) => {
                    loose = loose.or_else(|| link_of_ones_own(path));
                    directories.push(real);
                }
                // No process of this user can make it either.
                Err(error) if matches!(of_io(&error), Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR) => {}
                Err(error) => return Err(format!("the directory {} cannot be covered: {error}", path.display())),
            }
        }
        directories.sort_by_key(|path| path.components().count());
        directories.dedup();
        let files = enclosure.files.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let own = Shown { path: directory.to_owned(), read_only: false };
        let mut shown = Vec::new();
        for Shown { path: named, read_only } in enclosure.shown.iter().chain([&own]) {
            let Ok(path) = named.canonicalize() else { continue };
            if directories.contains(&path) {
                let text = format!("the session's directory {} is a directory of agentd's own", named.display());
                return Err(format!("{text}; use another one"));
            }
            if !directories.iter().any(|hidden| path.starts_with(hidden)) {
                continue;
            }
            // An agent could make a link of its own directory, and be shown what the link leads to at the next launch.
            let is_named_so = enclosure.directories.iter().chain(&directories).any(|hidden| {
                let below = named.strip_prefix(hidden).ok();
                below.is_some_and(|below| hidden.canonicalize().is_ok_and(|hidden| hidden.join(below) == path))
            });
            if !is_named_so {
                let text = format!("the directory {} leads by a link into agentd's own directories", named.display());
                return Err(format!("{text}; name the directory itself"));
            }
            shown.push(Shown { path, read_only: *read_only });
        }
        Ok(Self { directories, files, shown, loose })
    }

    /// The directories above that could be renamed, the outer first.
    fn pins(&self) -> Vec<PathBuf> {
        let all = self.directories.iter().chain(&self.files).flat_map(|path| path.ancestors().skip(1));
        let can_be_renamed = |path: &&Path| path.parent().is_some_and(is_ones_own);
        let mut pins: Vec<PathBuf> = all.filter(can_be_renamed).map(Path::to_owned).collect();
        pins.sort();
        pins.dedup();
        pins
    }

    /// Makes all of it disappear in this mount namespace.
    fn cover(&self) -> Result<(), Failed> {
        // What is mounted outside later is to be seen, and nothing of here outside.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SLAVE | MsFlags::MS_REC, None::<&str>)
            .map_err(at("make the mounts slaves"))?;
        for path in self.pins() {
            bind(&path, &path)?;
        }
        // By descriptors: their paths lead nowhere soon.
        let open = |path: &Path| {
            let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
            found.map(OwnedFd::from).map_err(|error| (format!("open {}", path.display()), of_io(&error)))
        };
        let shown: Vec<(&Shown, OwnedFd)> =
            self.shown.iter().map(|shown| Ok((shown, open(&shown.path)?))).collect::<Result<_, Failed>>()?;
        let mut covers: Vec<&Path> = Vec::new();
        for path in &self.directories {
            // One that is in another is gone with it, unless it is in a directory that is shown.
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

    /// Covers the files with an empty one, which is made for this and unlinked again.
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

/// Whether this user can change what is in the directory, or can give itself the right to.
fn is_ones_own(directory: &Path) -> bool {
    access(directory, AccessFlags::W_OK).is_ok()
        || directory.metadata().is_ok_and(|metadata| metadata.uid() == geteuid().as_raw())
}

/// The first link of a path that this user can replace.
fn link_of_ones_own(path: &Path) -> Option<PathBuf> {
    let ways = path.ancestors().collect::<Vec<_>>().into_iter().rev();
    let mut links = ways.filter(|way| way.is_symlink());
    links.find(|link| link.parent().is_some_and(is_ones_own)).map(Path::to_owned)
}

/// Binds with everything that is mounted below: in a namespace of an ordinary user mounts are locked together.
fn bind(from: &Path, to: &Path) -> Result<(), Failed> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(at(format!("bind {}", to.display())))
}

/// Mounts an empty directory.
fn empty(path: &Path) -> Result<(), Failed> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("agentd-guard"), path, Some("tmpfs"), flags, Some("mode=0755,size=64k,nr_inodes=256"))
        .map_err(at(format!("cover {}", path.display())))
}

/// Shows a directory at its own path in what covers it.
fn show(shown: &Shown, fd: &OwnedFd) -> Result<(), Failed> {
    let Shown { path, read_only } = shown;
    fs::create_dir_all(path).map_err(|error| (format!("make {}", path.display()), of_io(&error)))?;
    bind(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd())), path)?;
    if *read_only { close(path) } else { Ok(()) }
}

/// Makes a mount read-only. Its other flags are locked here and have to be said again.
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

/// Enters a Landlock domain: from here on no signal, no trace and no abstract socket leads out of it. Set-user-id programs get no rights
/// any more, since the kernel allows a domain only so. Nothing of the file system is handled, and so mounting stays as it was.
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
        "Landlock with scopes for signals and abstract sockets (ABI 6): {error}; it needs Linux 6.12, with landlock in lsm= of its command \
         line"
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
    fn a_link_that_the_agent_can_replace_is_found_and_what_is_not_there_is_made() {
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
