//! A far machine for an engine: processes, mounts, host name and accounts of its own, and a network if a test cuts it.
//!
//! Its files are those of this machine, except for those that [`Blueprint::mount`] replaces. Its processes have other
//! pids inside than outside; this module names the outer pids.
//!
//! The end of a machine ends all its processes, also those that have left their session and their parent. A machine
//! ends too if the test program ends without dropping it: its first process reads from a pipe of the test program.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::process;

/// The first process: names the machine, mounts its files, and reads until the test program closes the pipe. bash
/// waits for the orphans that it adopts.
const FIRST: &str = r#"set -eu
echo "$1" > /proc/sys/kernel/hostname
shift
while [ $# -gt 0 ]; do mount --bind "$1" "$2"; shift 2; done
echo ready
while read -r _; do :; done
"#;

/// Search path of a machine's programs.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Time within which the kernel ends a machine's processes.
const END_TIME: Duration = Duration::from_secs(20);

/// The account of a machine's user who is not root.
pub(crate) const USER: &str = "agentd-test-far";
/// The number of that user. It has no account outside of the machine.
pub(crate) const UID: u32 = 60_127;

/// A machine that runs. Dropping it ends all its processes.
pub(crate) struct Machine {
    name: String,
    runtime: Child,
    /// Outer pid of the machine's process 1.
    init: u32,
    cable: Option<Cable>,
}

/// A machine's only connection to this machine.
struct Cable {
    /// Name of the interface on this machine.
    near: String,
    far_address: Ipv4Addr,
}

/// Description of a machine to boot.
pub(crate) struct Blueprint {
    name: String,
    mounts: Vec<(PathBuf, PathBuf)>,
    has_cable: bool,
}

impl Blueprint {
    /// Describes a machine with this host name.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), mounts: Vec::new(), has_cable: false }
    }

    /// Replaces a file or directory of the machine.
    pub(crate) fn mount(mut self, source: impl Into<PathBuf>, place: impl Into<PathBuf>) -> Self {
        self.mounts.push((source.into(), place.into()));
        self
    }

    /// Replaces the databases of users: root and [`USER`] have these home directories. Their login shell is bash.
    pub(crate) fn accounts(self, directory: &Path, root: &Path, user: &Path) -> Self {
        let (passwd, group) = (directory.join("passwd"), directory.join("group"));
        let others = fs::read_to_string("/etc/passwd").expect("it can be read");
        let others: Vec<&str> = others.lines().filter(|line| !line.starts_with("root:")).collect();
        let accounts = [
            format!("root:x:0:0:root:{}:/bin/bash\n", root.display()),
            format!("{USER}:x:{UID}:{UID}:Far Away:{}:/bin/bash\n", user.display()),
        ];
        fs::write(&passwd, format!("{}{}\n", accounts.concat(), others.join("\n"))).expect("it can be written");
        let groups = fs::read_to_string("/etc/group").expect("it can be read");
        fs::write(&group, format!("{groups}{USER}:x:{UID}:\n")).expect("it can be written");
        readable(&passwd);
        readable(&group);
        self.mount(passwd, "/etc/passwd").mount(group, "/etc/group")
    }

    /// Gives the machine a network of its own, which a cable connects with this machine.
    pub(crate) fn cable(mut self) -> Self {
        self.has_cable = true;
        self
    }

    /// Boots the machine.
    pub(crate) fn boot(self) -> Machine {
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["--pid", "--mount", "--uts", "--fork", "--kill-child=KILL", "--mount-proc"]);
        command.args(["--propagation", "private"]);
        if self.has_cable {
            command.arg("--net");
        }
        command.args(["--", "/bin/bash", "-c", FIRST, "first"]).arg(&self.name);
        for (source, place) in &self.mounts {
            command.arg(source).arg(place);
        }
        command.env_clear().env("PATH", PATH).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut runtime = command.spawn().expect("unshare can be executed");
        let mut line = String::new();
        BufReader::new(runtime.stdout.take().expect("it is a pipe")).read_line(&mut line).expect("it can be read");
        assert_eq!(line, "ready\n", "the machine {:?} does not boot; its stderr is above", self.name);
        let init = process::children(runtime.id())[0];
        let mut machine = Machine { name: self.name, runtime, init, cable: None };
        if self.has_cable {
            machine.plug();
        }
        machine
    }
}

impl Machine {
    /// Builds a command that runs a program of the machine as root. The command's own process waits outside for the
    /// program's end.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("/usr/bin/nsenter");
        command.args([
            "--target",
            &self.init.to_string(),
            "--pid",
            "--mount",
            "--uts",
            "--net",
            "--wd=/",
            "--",
            program,
        ]);
        command.env_clear().env("PATH", PATH).current_dir("/").stdin(Stdio::null());
        command
    }

    /// Returns the living processes without the first.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.init);
        process::all().filter(|&pid| pid != self.init && own.is_some() && namespace(pid) == own).collect()
    }

    /// Returns the processes of this program.
    pub(crate) fn running(&self, program: &str) -> Vec<u32> {
        self.processes().into_iter().filter(|&pid| process::name(pid) == program).collect()
    }

    /// Describes the processes of all programs but these.
    pub(crate) fn others(&self, programs: &[&str]) -> Vec<String> {
        let is_other = |pid: &u32| !programs.contains(&process::name(*pid).as_str());
        self.processes().into_iter().filter(is_other).map(process::described).collect()
    }

    /// Connects the machine with this machine by a pair of interfaces. The kernel removes both with the machine.
    fn plug(&mut self) {
        let number = random() % (1 << 15);
        let [high, low] = u16::try_from(number).expect("it has 15 bits").to_be_bytes();
        let part = |last: u8| Ipv4Addr::new(198, 18 + (high >> 6), high << 2 | low >> 6, low << 2 | last);
        let (near, far_address) = (format!("agentd-{number:04x}"), part(2));
        let ip = |line: &str| run(Command::new("/usr/sbin/ip").args(line.split(' ')));
        let there = |line: &str| run(self.command("/usr/sbin/ip").args(line.split(' ')));
        ip(&format!("link add {near} type veth peer name cable netns {}", self.init));
        ip(&format!("addr add {}/30 dev {near}", part(1)));
        ip(&format!("link set {near} up"));
        there("link set lo up");
        there(&format!("addr add {far_address}/30 dev cable"));
        there("link set cable up");
        self.cable = Some(Cable { near, far_address });
    }

    /// Returns the machine's address on the cable.
    pub(crate) fn address(&self) -> Option<Ipv4Addr> {
        self.cable.as_ref().map(|cable| cable.far_address)
    }

    /// Pulls the cable: all packets are lost in both directions, and neither side gets an error.
    pub(crate) fn pull_cable(&self) {
        run(self.command("/usr/sbin/ip").args(["link", "set", "cable", "down"]));
    }

    /// Reports whether a packet for the machine was lost, and is sent again.
    pub(crate) fn sends_again(&self) -> bool {
        let address = self.address().expect("it has a cable").to_string();
        let mut sockets = Command::new("/usr/bin/ss");
        sockets.args(["-H", "--tcp", "--info", "--numeric", "dst", &address]);
        let output = sockets.output().expect("ss can be executed");
        String::from_utf8_lossy(&output.stdout).contains("backoff:")
    }

    /// Plugs the cable in again.
    pub(crate) fn plug_cable(&self) {
        run(self.command("/usr/sbin/ip").args(["link", "set", "cable", "up"]));
    }
}

impl Machine {
    /// Ends all processes of the machine, and waits for their end.
    pub(crate) fn end(&mut self) {
        let _ = self.runtime.kill(); // --kill-child also kills process 1, and with it the machine
        let _ = self.runtime.wait();
        let begun = Instant::now();
        while process::is_alive(self.init) && begun.elapsed() < END_TIME {
            std::thread::yield_now();
        }
        if process::is_alive(self.init) {
            eprintln!("the machine {:?} does not end: {}", self.name, process::described(self.init));
        }
        if let Some(cable) = self.cable.take() {
            // The kernel removes the network later. The name and the address of the interface are free at once.
            let removal =
                Command::new("/usr/sbin/ip").args(["link", "delete", &cable.near]).stderr(Stdio::null()).status();
            let _ = removal;
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("it can be executed");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn random() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

/// Returns four loopback addresses that no other test uses, and at which the port is free. A server can end there and
/// start again at the same port, because no connection gets such an address by chance.
pub(crate) fn loopback(port: u16) -> [Ipv4Addr; 4] {
    loop {
        let [high, middle, low, ..] = random().to_be_bytes();
        // 127.0.0.0/16 has the addresses of other programs.
        let block = [0, 1, 2, 3].map(|last| Ipv4Addr::new(127, high.max(1), middle, low & !3 | last));
        if block.iter().all(|&address| TcpListener::bind((address, port)).is_ok()) {
            return block;
        }
    }
}

/// Lets all users read a file or enter a directory, whatever the umask is.
pub(crate) fn readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is this user's");
}

/// Creates a directory of a user of a machine.
pub(crate) fn home(path: &Path, uid: u32) {
    fs::create_dir(path).expect("the directory is new");
    readable(path);
    std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("root may");
}
