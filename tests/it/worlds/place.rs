//! A thread that lives in namespaces of its own: what it opens and starts is there too, and stays there.
//!
//! The namespaces have no name in /run/netns and nothing to be taken away: with the last process, socket and thread in them they are gone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, unshare};

type Work = Box<dyn FnOnce() + Send>;

/// A network, and where it is asked for a mount table, of its own.
pub(crate) struct Place {
    work: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    /// The thread's directory in /proc, for those that enter.
    at: PathBuf,
}

impl Place {
    /// A network with nothing in it but a loopback.
    pub(crate) fn network() -> io::Result<Self> {
        Self::new(CloneFlags::CLONE_NEWNET)
    }

    /// The same with a mount table of its own: what is mounted there is seen nowhere else.
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
        // Interfaces have the addresses that they are given, and no others.
        place.within(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")).ok();
        place.run("ip link set lo up");
        Ok(place)
    }

    /// Does this there.
    pub(crate) fn within<T: Send + 'static>(&self, what: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let order: Work = Box::new(move || done.send(what()).expect("it is waited for"));
        self.work.as_ref().expect("it lives").send(order).expect("the thread lives");
        result.recv().expect("what is done there does not panic")
    }

    /// Runs a program there, which must succeed; its words are written as a shell has them.
    pub(crate) fn run(&self, line: &str) {
        let (status, told) = self.try_run(line);
        assert!(status, "{line}: {told}");
    }

    /// Whether it succeeds, and what it says.
    pub(crate) fn try_run(&self, line: &str) -> (bool, String) {
        let words = shlex::split(line).expect("each quote has its end");
        self.within(move || {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).stdin(Stdio::null());
            // Where iproute2 is, which need not be in a test's PATH.
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

    /// Its network, for who moves an interface to it.
    pub(crate) fn net(&self) -> PathBuf {
        self.at.join("ns/net")
    }

    /// What a command begins with whose program is to run there, as the very process that was started.
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
