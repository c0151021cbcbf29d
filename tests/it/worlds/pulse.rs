//! Check that the daemon answers at once, whatever hangs. A thread of the test repeats `GET /healthz`.
//!
//! Other tests may keep the machine busy, so the check subtracts two delays from each answer's time. One is the time in
//! which a thread of the daemon was ready to run and had no processor. The kernel counts that time in `schedstat`. The
//! other comes from a second thread, which sends requests to a listener in the test itself. The longest answer of that
//! listener within a second around the request shows how slow the machine is. The check subtracts that time twice,
//! because two threads of the daemon handle each request.
//!
//! The remaining time must be less than [`LIMIT`]. On an idle machine the remaining time is the whole answer. A thread
//! that waits for a peer is never ready to run, so the subtraction does not hide such a wait.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::Daemon;

/// A quarter of the shortest time of a check. The kernel may need tens of milliseconds to read pages of the program
/// again.
const LIMIT: Duration = Duration::from_millis(250);
const AROUND: Duration = Duration::from_millis(500);
/// Pause between an answer and the next request. Without it, two threads of each test would take too much processor
/// time from the kernel's threads.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum time of an answer that need not be recorded.
const QUICK: Duration = Duration::from_millis(5);

/// A request with a slow answer.
#[derive(Debug, Clone, Copy)]
struct Slow {
    asked: Instant,
    took: Duration,
    /// Total time, within `took`, in which the answering process's threads waited for a processor.
    queued: Duration,
}

#[derive(Debug, Default)]
struct Asked {
    count: usize,
    slow: Vec<Slow>,
}

pub(crate) struct Pulse {
    over: Arc<AtomicBool>,
    /// The threads that ask the daemon and the test's own listener.
    asking: Option<[JoinHandle<Asked>; 2]>,
    own: PathBuf,
}

impl Pulse {
    /// Starts to ask this daemon. `files` is a directory for a socket.
    pub(crate) fn of(daemon: &Daemon, files: &Path) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let own = files.join("pulse.sock");
        let listener = UnixListener::bind(&own).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut question = [0; 512];
                // A connection without a request ends the listener.
                if stream.read(&mut question).unwrap_or(0) == 0 {
                    return;
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok();
            }
        });
        let asking = |socket: PathBuf, of: u32| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || asking(&socket, of, &over))
        };
        let asking = [asking(daemon.client.socket().to_owned(), daemon.pid()), asking(own.clone(), std::process::id())];
        Self { over, asking: Some(asking), own }
    }

    /// Asserts that no answer was late.
    pub(crate) fn judge(mut self) {
        self.over.store(true, Ordering::Relaxed);
        let [daemon, machine] = self.asking.take().expect("it is judged once").map(|asking| asking.join().unwrap());
        assert!(daemon.count > 1 && machine.count > 1, "{daemon:?} {machine:?}");
        for late in &daemon.slow {
            let end = late.asked + late.took;
            let is_near = |slow: &&Slow| slow.asked < end + AROUND && late.asked < slow.asked + slow.took + AROUND;
            let machines = machine.slow.iter().filter(is_near).map(|slow| slow.took).max().unwrap_or_default();
            let own = late.took.saturating_sub(2 * machines + late.queued);
            assert!(own < LIMIT, "an answer of /healthz took {late:?}, and the machine's own {machines:?}");
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        drop(UnixStream::connect(&self.own));
    }
}

/// Returns the time for which the threads of a process have waited for a processor. It is the second number of each
/// thread's `schedstat` (Documentation/scheduler/sched-stats.rst).
fn queued(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of_thread = |thread: std::fs::DirEntry| -> Option<u64> {
        std::fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').nth(1)?.parse().ok()
    };
    Duration::from_nanos(threads.filter_map(of_thread).sum())
}

fn asking(socket: &Path, of: u32, over: &AtomicBool) -> Asked {
    let mut all = Asked::default();
    while !over.load(Ordering::Relaxed) {
        let before = queued(of);
        let asked = Instant::now();
        let answer = match ask(socket) {
            Ok(answer) => answer,
            // The test failed, and the daemon has already ended.
            Err(_) if over.load(Ordering::Relaxed) => break,
            Err(error) => panic!("{}: {error}", socket.display()),
        };
        let took = asked.elapsed();
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
        all.count += 1;
        std::thread::sleep(PAUSE);
        if took > QUICK {
            all.slow.push(Slow { asked, took, queued: queued(of).saturating_sub(before) });
        }
    }
    all
}

fn ask(socket: &Path) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: agentd\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}
