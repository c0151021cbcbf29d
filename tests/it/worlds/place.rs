//! Thread in its own namespaces. Sockets that it opens and processes that it starts are also in these namespaces.
//!
//! The namespaces have no name in /run/netns and need no removal. The kernel frees them with their last process, socket
//! and thread.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, unshare};

type Work = Box<dyn FnOnce() + Send>;

/// Network namespace, and if requested a mount namespace.
pub(crate) struct Place {
    work: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    /// The thread's directory in /proc, for processes that enter its namespaces.
    at: PathBuf,
}

impl Place {
    /// Creates a network that contains only a loopback interface.
    pub(crate) fn network() -> io::Result<Self> {
        Self::new(CloneFlags::CLONE_NEWNET)
    }

    /// Creates a network and a mount table. Mounts in this mount table are not visible outside.
    pub(crate) fn machine() -> io::Result<Self> {
        let place = Self::new(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
        place.run("mount --make-rprivate /");
        Ok(place)
    }

    fn new(flags: CloneFlags) -> io::Result<Self> {
        let (work, orders) = mpsc::channel::<Work>();
        let (begun, begins) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let at = unshare(flags).map_err(io::Error::from).and_then(|()| fs::canonicalize("/proc/thread-self"));
            let lives = at.is_ok();
            begun.send(at).expect("it is waited for");
            while let (true, Ok(order)) = (lives, orders.recv()) {
                order();
            }
        });
        let at = begins.recv().expect("the thread begins")?;
        let place = Self { work: Some(work), thread: Some(thread), at };
        // Interfaces must have only the addresses that a test assigns.
        place.within(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")).ok();
        place.run("ip link set lo up");
        Ok(place)
    }

    /// Runs `what` in these namespaces.
    pub(crate) fn within<T: Send + 'static>(&self, what: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let order: Work = Box::new(move || done.send(what()).expect("it is waited for"));
        self.work.as_ref().expect("it lives").send(order).expect("the thread lives");
        result.recv().expect("what is done there does not panic")
    }

    /// Runs a program in these namespaces and asserts its success. `line` has its words, quoted as in a shell.
    pub(crate) fn run(&self, line: &str) {
        let (status, told) = self.try_run(line);
        assert!(status, "{line}: {told}");
    }

    /// Runs a program in these namespaces, and returns whether it succeeded and what it printed.
    pub(crate) fn try_run(&self, line: &str) -> (bool, String) {
        let words = shlex::split(line).expect("each quote has its end");
        self.within(move || {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).stdin(Stdio::null());
            // A test's PATH need not contain the directory of iproute2.
            command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
            match command.output() {
                Ok(output) => {
                    let said = [output.stdout, output.stderr].concat();
                    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
                }
                Err(error) => (false, error.to_string()),
            }
        })
    }

    /// Returns the path of the network namespace, for a command that moves an interface to it.
    pub(crate) fn net(&self) -> PathBuf {
        self.at.join("ns/net")
    }

    /// Returns the first words of a command that starts a program in these namespaces. The program has the pid of that
    /// command.
    pub(crate) fn entrance(&self) -> Vec<String> {
        let option = |name: &str, file: &Path| format!("--{name}={}", file.display());
        vec!["/usr/bin/nsenter".to_owned(), option("net", &self.net()), option("mount", &self.at.join("ns/mnt"))]
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
