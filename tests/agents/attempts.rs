//! Attempts of a process inside a session, for the table of the isolation levels (`it/guard.rs`). Each attempt is a
//! process of its own and changes nothing: its signal has no effect, and renamed files are renamed back.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::print_raw;
use crate::processes::myself;

/// Tries each attempt in the file's `names`, and prints `NAME yes` or `NAME no REASON` for each. With a name, tries
/// only that attempt.
pub(crate) fn attempts(file: &Path, name: Option<&str>) {
    let text = fs::read_to_string(file).expect("the file says what there is");
    let there: Value = serde_json::from_str(&text).expect("it is JSON");
    if let Some(name) = name {
        let tried = Targets(there).attempt(name);
        if let Err(error) = &tried {
            print_raw(error.to_string().as_bytes());
        }
        std::process::exit(i32::from(tried.is_err()));
    }
    for name in there["names"].as_array().expect("a list").iter().filter_map(Value::as_str) {
        let tried = myself()
            .args(["attempt".as_ref(), file.as_os_str(), name.as_ref()])
            .stdin(Stdio::null())
            .output()
            .expect("an attempt can be started");
        let worked = if tried.status.success() { "yes" } else { "no" };
        let reason = String::from_utf8_lossy(&tried.stdout).replace(['\n', '\t'], " ");
        print_raw(format!("{name}\t{worked}\t{reason}\n").as_bytes());
    }
}

/// Targets of the attempts.
struct Targets(Value);

fn never(text: &str) -> io::Error {
    io::Error::other(text.to_owned())
}

impl Targets {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.0[name].as_str().unwrap_or_else(|| panic!("there is no {name}")))
    }

    fn pid(&self, name: &str) -> i32 {
        i32::try_from(self.0[name].as_i64().unwrap_or_else(|| panic!("there is no {name}"))).expect("a pid fits")
    }

    /// Sends a request to the control endpoint in `AGENTD_SOCKET`.
    fn ask(&self, path: &str) -> io::Result<()> {
        let told = std::env::var_os("AGENTD_SOCKET").map(PathBuf::from);
        let mut stream = UnixStream::connect(told.unwrap_or_else(|| self.path("control")))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: agentd\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(never(answer.lines().next().unwrap_or_default())) }
    }

    /// Writes a line to a helper that listens in its own directory, and reads whether the call was answered.
    fn by_helper(&self) -> io::Result<()> {
        let mut helper = UnixStream::connect(self.path("work").join("helper"))?;
        writeln!(helper, "/v1/sessions/{}", self.0["other"].as_str().unwrap_or_default())?;
        let mut answer = String::new();
        helper.read_to_string(&mut answer)?;
        if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(never(answer.lines().next().unwrap_or_default())) }
    }

    #[allow(clippy::too_many_lines, reason = "a table")]
    fn attempt(&self, name: &str) -> io::Result<()> {
        let read = |path: PathBuf| match fs::read(&path)? {
            bytes if bytes.is_empty() => Err(never("it is empty")),
            _ => Ok(()),
        };
        let of = |pid: &str, rest: &str| PathBuf::from(format!("/proc/{}/{rest}", self.pid(pid)));
        let signal = |pid: &str| Ok(kill(Pid::from_raw(self.pid(pid)), Signal::SIGCONT)?);
        let through = |pid: &str, way: &str, path: &str| {
            let inside = self.path(path);
            let below = inside.strip_prefix("/").expect("it is absolute").to_owned();
            read(of(pid, way).join(below).join("agentd.toml"))
        };
        let append = |path: &Path| OpenOptions::new().append(true).open(path).map(drop);
        let none = None::<&str>;
        match name {
            "read agentd's configuration" => read(self.path("config").join("agentd.toml")),
            "change agentd's configuration" => append(&self.path("config").join("agentd.toml")),
            "read another session's journal" => read(self.path("journal")),
            "put an approval into agentd's state" => {
                let file = self.path("state").join("approved-by-me");
                fs::write(&file, "x").and_then(|()| fs::remove_file(file))
            }
            "read a file that [secrets] names" => read(self.path("secret")),
            "change a file that [secrets] names" => append(&self.path("secret")),
            "connect to agentd's own control socket" => UnixStream::connect(self.path("control")).map(drop),
            "connect to the user's service manager" => {
                UnixStream::connect(self.path("runtime").join("systemd/private")).map(drop)
            }
            "connect to the session bus" => UnixStream::connect(self.path("runtime").join("bus")).map(drop),
            "have a helper outside call agentd for it" => self.by_helper(),
            "connect to another session's keeper" => UnixStream::connect(self.path("keeper-socket")).map(drop),
            "see another session" => {
                self.ask(&format!("/v1/sessions/{}", self.0["other"].as_str().unwrap_or_default()))
            }
            "see its own session" => self.ask(&format!("/v1/sessions/{}", self.0["own"].as_str().unwrap_or_default())),
            "signal agentd" => signal("daemon"),
            "signal its own keeper" => signal("own-keeper"),
            "signal another session's agent" => signal("other-agent"),
            "read the memory of another session's agent" => read_memory(self.pid("other-agent")),
            "read the environment of another session's agent" => read(of("other-agent", "environ")),
            "connect to the abstract socket of a process outside" => {
                let address = SocketAddr::from_abstract_name(self.0["abstract"].as_str().unwrap_or_default())?;
                UnixStream::connect_addr(&address).map(drop)
            }
            "connect to a port of this machine" => {
                TcpStream::connect(("127.0.0.1", u16::try_from(self.pid("port")).expect("a port"))).map(drop)
            }
            "read and write in its own directory" => {
                let file = self.path("work").join("made-inside");
                fs::write(&file, "x").and_then(|()| read(file.clone())).and_then(|()| fs::remove_file(file))
            }
            "read and write its own configuration in the home directory" => {
                let file = self.path("home").join(".config/opencode/made-inside");
                fs::create_dir_all(file.parent().expect("it has one"))?;
                fs::write(&file, "x").and_then(|()| read(file.clone())).and_then(|()| fs::remove_file(file))
            }
            "write the shell's start-up files" => append(&self.path("home").join(".profile")),
            "read another session's directory" => fs::read_dir(self.path("other-work")).map(drop),
            "signal a process that it started" => {
                let mut child = Command::new("/bin/sleep").arg("600").spawn()?;
                kill(Pid::from_raw(i32::try_from(child.id()).expect("a pid fits")), Signal::SIGTERM)?;
                child.wait().map(drop)
            }
            // Indirect ways.
            "configuration through agentd's root" => through("daemon", "root", "config"),
            "configuration through the keeper's root" => through("own-keeper", "root", "config"),
            "configuration through another agent's root" => through("other-agent", "root", "config"),
            "configuration through the first process's root" => {
                let below = self.path("config").strip_prefix("/").expect("absolute").join("agentd.toml");
                read(Path::new("/proc/1/root").join(below))
            }
            "configuration above the directory it is in" => {
                let above = self.path("config").join("agentd.toml");
                let root = self.path("root");
                let depth = std::env::current_dir()?.components().count() - root.components().count();
                read(
                    "../"
                        .repeat(depth)
                        .parse::<PathBuf>()
                        .expect("a path")
                        .join(above.strip_prefix(&root).expect("below")),
                )
            }
            "memory of agentd" => read_memory(self.pid("daemon")),
            "memory of its keeper" => read_memory(self.pid("own-keeper")),
            "environment of agentd" => read(of("daemon", "environ")),
            "signal another session's keeper" => signal("other-keeper"),
            "take the cover away" => Ok(umount2(&self.path("config"), MntFlags::MNT_DETACH)?),
            "take a file's cover away" => Ok(umount2(&self.path("secret"), MntFlags::MNT_DETACH)?),
            "move the cover" => {
                let to = self.path("work").join("moved");
                fs::create_dir_all(&to)?;
                Ok(mount(Some(&self.path("config")), &to, none, MsFlags::MS_MOVE, none)?)
            }
            "write in the cover" => fs::write(self.path("config").join("agentd.toml"), "x"),
            "make the cover writable" => {
                let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
                mount(none, &self.path("config"), none, flags, none)?;
                fs::write(self.path("config").join("agentd.toml"), "x")
            }
            "make the cover writable in namespaces of its own" => {
                own_namespaces()?;
                let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
                mount(none, &self.path("config"), none, flags, none)?;
                fs::write(self.path("config").join("agentd.toml"), "x")
            }
            "take the cover away in namespaces of its own" => {
                own_namespaces()?;
                umount2(&self.path("config"), MntFlags::MNT_DETACH)?;
                read(self.path("config").join("agentd.toml"))
            }
            "bind what is around the cover in namespaces of its own" => {
                own_namespaces()?;
                let to = self.path("work").join("bound");
                fs::create_dir_all(&to)?;
                mount(Some(&self.path("root")), &to, none, MsFlags::MS_BIND, none)?;
                read(to.join("config/agentd.toml"))
            }
            "bind with everything in namespaces of its own" => {
                own_namespaces()?;
                let to = self.path("work").join("bound");
                fs::create_dir_all(&to)?;
                mount(Some(&self.path("root")), &to, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
                let _ = umount2(&to.join("config"), MntFlags::MNT_DETACH);
                read(to.join("config/agentd.toml"))
            }
            "lay an overlay over what is around the cover" => {
                own_namespaces()?;
                let to = self.path("work").join("overlay");
                fs::create_dir_all(&to)?;
                let below = format!("lowerdir={}:{}", self.path("root").display(), to.display());
                mount(Some("overlay"), &to, Some("overlay"), MsFlags::empty(), Some(below.as_str()))?;
                read(to.join("config/agentd.toml"))
            }
            "enter agentd's mount namespace" => {
                setns(fs::File::open(of("daemon", "ns/mnt"))?, CloneFlags::CLONE_NEWNS)?;
                read(self.path("config").join("agentd.toml"))
            }
            "enter agentd's user namespace" => {
                Ok(setns(fs::File::open(of("daemon", "ns/user"))?, CloneFlags::CLONE_NEWUSER)?)
            }
            "enter the user namespace around its own" => {
                // The ioctl NS_GET_USERNS (ioctl_ns(2)) applies to the mount namespace, and NS_GET_PARENT to the own
                // namespace.
                Ok(setns(fs::File::open("/proc/self/ns/user")?, CloneFlags::CLONE_NEWUSER)?)
            }
            "put another configuration directory in its place" => renamed(&self.path("config")),
            "put another directory above it in its place" => renamed(&self.path("root")),
            "unlink a file that [secrets] names" => fs::remove_file(self.path("secret")),
            "put something beside its socket" => {
                let told = PathBuf::from(std::env::var_os("AGENTD_SOCKET").expect("AGENTD_SOCKET is set"));
                fs::write(told.with_file_name("other"), "x")
            }
            "take its socket's place" => {
                let told = PathBuf::from(std::env::var_os("AGENTD_SOCKET").expect("AGENTD_SOCKET is set"));
                fs::remove_file(told)
            }
            "change another session over its socket" => {
                let told = std::env::var_os("AGENTD_SOCKET").expect("AGENTD_SOCKET is set");
                let mut stream = UnixStream::connect(told)?;
                let path = format!("/v1/sessions/{}/cancel", self.0["own"].as_str().unwrap_or_default());
                write!(
                    stream,
                    "POST {path} HTTP/1.1\r\nHost: agentd\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                if answer.starts_with("HTTP/1.1 2") {
                    Ok(())
                } else {
                    Err(never(answer.lines().next().unwrap_or_default()))
                }
            }
            _ => panic!("{name:?} is no attempt"),
        }
    }
}

/// Reads some bytes of a process's memory like an ordinary program.
fn read_memory(pid: i32) -> io::Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let first = maps.lines().find_map(|line| line.split_once('-')).ok_or_else(|| never("it has no memory"))?;
    let at = u64::from_str_radix(first.0, 16).map_err(io::Error::other)?;
    let mut memory = OpenOptions::new().read(true).custom_flags(0).open(format!("/proc/{pid}/mem"))?;
    memory.seek(io::SeekFrom::Start(at))?;
    memory.read_exact(&mut [0; 16])
}

/// Enters namespaces in which this process has all capabilities.
fn own_namespaces() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    Ok(())
}

/// Renames a directory and renames it back.
fn renamed(path: &Path) -> io::Result<()> {
    let away = path.with_extension("away");
    fs::rename(path, &away)?;
    fs::rename(away, path)
}
