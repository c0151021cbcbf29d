//! A podman with a store of its own, and an image of busybox and given static programs. It needs no registry, no
//! network and no server.
//!
//! Containers share the network of this machine, so that they reach servers of a test on the loopback interface.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::machine::{self, PATH, UID, USER};
use super::quote::quoted;
use super::sshd::install;
use super::{process, require};

/// Name of the image.
pub(crate) const IMAGE: &str = "localhost/agentd-test";

const APPLETS: [&str; 17] = [
    "cat", "date", "dd", "env", "false", "head", "hostname", "id", "kill", "ls", "printf", "ps", "setsid", "sh",
    "sleep", "touch", "true",
];

/// A store with an image. Dropping it ends and removes its containers and all files.
pub(crate) struct Podman {
    /// Time until the image was ready.
    pub(crate) boot_time: Duration,
    directory: TempDir,
}

impl Podman {
    /// Makes the store and the image, with these static programs in `/bin` under these names. Skips the test if the
    /// machine lacks a requirement.
    pub(crate) fn boot(programs: &[(&str, &Path)]) -> Option<Self> {
        require::podman()?;
        let begun = Instant::now();
        let directory = tempfile::Builder::new().prefix("agentd-podman-").tempdir().expect("a temporary directory");
        let mut podman = Self { boot_time: Duration::ZERO, directory };
        podman.configure();
        podman.import(programs);
        podman.boot_time = begun.elapsed();
        Some(podman)
    }

    /// Returns the directory of all files of the store.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the program that runs podman with this store.
    pub(crate) fn engine(&self) -> PathBuf {
        self.root().join("podman")
    }

    fn configure(&self) {
        let at = self.root();
        let shown = at.display();
        // Without CAP_SYS_RESOURCE podman must not raise a limit, and it does by default.
        let containers = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\nnetns = \"host\"\n\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nlock_type = \"file\"\n\
             runtime = \"runc\"\nstatic_dir = \"{shown}/root/libpod\"\ntmp_dir = \"{shown}/tmp\"\n\
             volume_path = \"{shown}/root/volumes\"\n"
        );
        let storage = format!("[storage]\ndriver = \"vfs\"\ngraphroot = \"{shown}/root\"\nrunroot = \"{shown}/run\"\n");
        let (containers_file, storage_file) = (at.join("containers.conf"), at.join("storage.conf"));
        fs::write(&containers_file, containers).expect("the directory is new");
        fs::write(&storage_file, storage).expect("the directory is new");
        let script = format!(
            "#!/bin/sh\nexport CONTAINERS_CONF={} CONTAINERS_STORAGE_CONF={} PATH={PATH}\n\
             exec /usr/bin/podman \"$@\"\n",
            quoted(&containers_file),
            quoted(&storage_file)
        );
        install(&script, &self.engine());
    }

    /// Makes the image from a directory.
    fn import(&self, programs: &[(&str, &Path)]) {
        let tree = self.root().join("tree");
        for name in ["bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "work"] {
            fs::create_dir_all(tree.join(name)).expect("the directory is new");
            machine::readable(&tree.join(name));
        }
        fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("root may");
        machine::readable(&tree);
        machine::home(&tree.join("home").join(USER), UID);
        for (name, program) in [("busybox", Path::new("/bin/busybox"))].iter().chain(programs) {
            fs::copy(program, tree.join("bin").join(name)).expect("the program can be copied");
        }
        for applet in APPLETS {
            symlink("busybox", tree.join("bin").join(applet)).expect("no applet has another's name");
        }
        let passwd = format!("root:x:0:0:root:/root:/bin/sh\n{USER}:x:{UID}:{UID}::/home/{USER}:/bin/sh\n");
        for (name, text) in [("passwd", passwd), ("group", format!("root:x:0:\n{USER}:x:{UID}:\n"))] {
            fs::write(tree.join("etc").join(name), text).expect("the directory is new");
            machine::readable(&tree.join("etc").join(name));
        }
        let archive = self.root().join("image.tar");
        let packed = Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&archive).arg(".").status();
        assert!(packed.expect("tar can be executed").success());
        let archive = archive.to_str().expect("the tests' places have names in UTF-8");
        self.run(&["import", "--quiet", archive, IMAGE]);
        fs::remove_file(archive).expect("it is there");
        fs::remove_dir_all(tree).expect("it is there");
    }

    /// Builds a command of podman.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.engine());
        command.args(arguments).env_clear().current_dir("/").stdin(Stdio::null());
        command
    }

    /// Runs a command of podman, which must succeed, and returns its standard output.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("podman can be executed");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("it prints UTF-8")
    }

    /// Returns the names of all containers, also of those that have ended.
    pub(crate) fn containers(&self) -> Vec<String> {
        self.run(&["ps", "--all", "--format", "{{.Names}}"]).lines().map(str::to_owned).collect()
    }

    /// Returns the outer pids of a container's processes.
    pub(crate) fn processes(&self, container: &str) -> Vec<u32> {
        of_container(self.run(&["inspect", "--format", "{{.Id}}", container]).trim())
    }

    /// Returns the processes of conmon, which holds the stdio of one container each.
    pub(crate) fn conmons(&self) -> Vec<u32> {
        process::running(self.root(), "conmon", None)
    }
}

/// Returns the processes of a container. Its id is the name of its cgroup.
fn of_container(id: &str) -> Vec<u32> {
    let group = format!("libpod-{id}");
    let is_of =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(&group));
    process::all().filter(is_of).collect()
}

impl Drop for Podman {
    fn drop(&mut self) {
        let run = |arguments: &[&str]| self.command(arguments).output();
        let ids = run(&["ps", "--all", "--quiet", "--no-trunc"]).map(|output| output.stdout).unwrap_or_default();
        let removed = run(&["rm", "--force", "--all", "--time", "0"]);
        if !removed.is_ok_and(|output| output.status.success()) {
            eprintln!("podman did not remove its containers");
        }
        for id in String::from_utf8_lossy(&ids).lines() {
            process::signal_each(&of_container(id), Signal::SIGKILL);
        }
        process::kill_all_of(self.root());
        // A container whose conmon was killed leaves its mounts.
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(|path| path.replace("\\040", " "));
        let own: Vec<String> = mounts.filter(|path| Path::new(path).starts_with(self.root())).collect();
        for mount in own.iter().rev() {
            let _ = Command::new("umount").args(["--lazy", mount]).stderr(Stdio::null()).status();
        }
    }
}
