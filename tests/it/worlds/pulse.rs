//! Whether the daemon answers at once, whatever hangs: `GET /healthz` again and again, from a thread of its own.
//!
//! The machine may be busy with other tests. What it takes from an answer is taken from what is judged, by two measures. The time in which a
//! thread of the daemon had work and no processor, of which the kernel keeps account (`schedstat`). And what another thread had to wait at
//! worst, in the second around, that asks a listener of the test's own in the same way: that is what the machine makes of
//! a wake-up and an answer, and the daemon's answer passes through two threads. What is left is the daemon's own and must be less than
//! [`LIMIT`]; on a quiet machine that is the whole answer, and whoever waits for what does not answer has work at no time.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::Daemon;

/// A quarter of the shortest time that a check has. Pages of the program that the machine has to read again take tens of milliseconds.
const LIMIT: Duration = Duration::from_millis(250);
const AROUND: Duration = Duration::from_millis(500);
/// Between an answer and the next question: without it two threads of each test keep the kernel's own from the processors.
const PAUSE: Duration = Duration::from_millis(5);
/// What is quicker need not be remembered.
const QUICK: Duration = Duration::from_millis(5);

/// One question that was not answered quickly.
#[derive(Debug, Clone, Copy)]
struct Slow {
    asked: Instant,
    took: Duration,
    /// Of that, how long threads of who was asked waited for a processor, all together.
    queued: Duration,
}

#[derive(Debug, Default)]
struct Asked {
    count: usize,
    slow: Vec<Slow>,
}

pub(crate) struct Pulse {
    over: Arc<AtomicBool>,
    /// The daemon, and the test's own listener.
    asking: Option<[JoinHandle<Asked>; 2]>,
    own: PathBuf,
}

impl Pulse {
    /// Of this daemon, from now on; `files` is a directory for a socket.
    pub(crate) fn of(daemon: &Daemon, files: &Path) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let own = files.join("pulse.sock");
        let listener = UnixListener::bind(&own).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut question = [0; 512];
                // Whoever connects and asks nothing ends it.
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

    /// Fails if an answer was late.
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

/// How long the threads of a process have waited for a processor so far: the second number of each (Documentation/scheduler/sched-stats.rst).
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
            // The test failed, and the daemon is gone.
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
