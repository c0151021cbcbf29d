//! Hostile clients at full size. Meanwhile another client makes calls, and the daemon's memory stays bounded.
//!
//! The attacker is this process. The other client is a process in a process session of its own, so it has its own share
//! of the connections. Its calls are `GET /healthz` and `GET /v1/sessions`, each on a new connection.

mod connections;
mod http2;
mod requests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::harness::{Daemon, process, scripted_agent, until, within};

/// A call may take as long as this without any attack. The machine of the tests has two cores for the daemon, the
/// attacker, the other client and other tests. Each of these may get a core for several time slices first.
const NOISE: Duration = Duration::from_millis(100);
/// Largest time of 99 % of the calls during an attack, as a multiple of that without an attack.
const SLOWER: u32 = 3;
/// Rounds of calls before the attack, and in each measurement during the attack.
const QUIET_ROUNDS: usize = 150;
const ROUNDS: usize = 25;
/// Least number of calls of each kind during an attack. Of 100 calls, the slowest is not counted.
const CALLS: usize = 100;
/// Memory in KiB that the daemon may keep after an attack. Its allocator keeps freed memory of its threads.
const KEPT: u64 = 24 << 10;
/// Connections of the attacker at once, below the limit of one caller (64).
const AT_ONCE: usize = 40;

/// Times of calls in microseconds, by path.
type Times = BTreeMap<String, Vec<u64>>;

/// The other client.
struct Neighbour {
    child: Child,
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Neighbour {
    fn of(daemon: &Daemon) -> Self {
        let mut command = Command::new(scripted_agent());
        command.arg("neighbour").arg(daemon.client.socket()).current_dir(daemon.root());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the scripted agent starts");
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, answers: BufReader::new(stdout).lines() }
    }

    /// Makes this number of rounds of calls. Every call must succeed.
    async fn calls(&mut self, rounds: usize) -> Times {
        self.stdin.write_all(format!("{rounds}\n").as_bytes()).await.expect("the other client reads");
        let answer = within("the calls of another client", self.answers.next_line()).await.unwrap();
        let Some(answer) = answer else { panic!("a call of another client failed: {:?}", self.child.wait().await) };
        serde_json::from_str(&answer).unwrap()
    }
}

/// Returns the time in microseconds that 99 % of the calls do not exceed.
fn p99(times: &[u64]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    Duration::from_micros(times[(times.len() * 99 / 100).min(times.len() - 1)])
}

/// A daemon that is about to be attacked.
struct Target {
    daemon: Daemon,
    neighbour: Neighbour,
    quiet: Times,
    /// Memory of the daemon in KiB before the attacks.
    before: u64,
    /// Memory in KiB that the daemon may keep after an attack.
    kept: u64,
}

impl Target {
    /// Starts a daemon with these lines behind its configuration, and two sessions.
    async fn with(lines: &str) -> Self {
        let mut daemon = Daemon::prepare();
        daemon.configure(|config| format!("{config}\n{lines}\n"));
        daemon.run().await;
        for _ in 0..2 {
            daemon.session(&daemon.scripted(&[])).await;
        }
        Self::of(daemon).await
    }

    async fn of(daemon: Daemon) -> Self {
        let mut neighbour = Neighbour::of(&daemon);
        let quiet = neighbour.calls(QUIET_ROUNDS).await;
        let before = process::resident(daemon.pid());
        Self { daemon, neighbour, quiet, before, kept: KEPT }
    }

    /// Measures the next attack against the present memory, of which it may keep this much more in KiB.
    fn begin_again(&mut self, kept: u64) {
        (self.before, self.kept) = (process::resident(self.daemon.pid()), kept);
    }

    fn socket(&self) -> PathBuf {
        self.daemon.client.socket().to_owned()
    }

    /// Attacks while the other client makes calls. `growth` is the memory in KiB that the attack itself may take.
    async fn holds(&mut self, what: &str, growth: u64, attack: impl Future<Output = ()>) {
        process::forget_peak(self.daemon.pid());
        let (is_over, begun) = (Cell::new(false), Instant::now());
        let mut during = Times::new();
        let attacking = async {
            attack.await;
            is_over.set(true);
        };
        let calling = async {
            while !is_over.get() || during.values().any(|times| times.len() < CALLS) {
                for (path, times) in self.neighbour.calls(ROUNDS).await {
                    during.entry(path).or_default().extend(times);
                }
            }
        };
        tokio::join!(attacking, calling);
        let took = begun.elapsed();
        let peak = process::peak(self.daemon.pid()).saturating_sub(self.before);
        let grown = || process::resident(self.daemon.pid()).saturating_sub(self.before);
        for (path, times) in &during {
            let (quiet, during) = (p99(&self.quiet[path]), p99(times));
            eprintln!("{what}: {path} p99 {quiet:.1?} quiet, {during:.1?} of {} calls", times.len());
            assert!(during <= SLOWER * quiet.max(NOISE), "{what}: {path} took {during:?}, and {quiet:?} without");
        }
        eprintln!("{what}: {took:.1?}, {} KiB more at most, {} KiB more afterwards", peak, grown());
        assert!(peak <= growth + self.kept, "{what}: the daemon grew by {peak} KiB");
        let kept = self.kept;
        until(&format!("{what}: at most {kept} KiB of memory are kept"), || grown() <= kept).await;
        assert_eq!(self.daemon.client.get("/healthz").await.status, 200, "{what}");
    }
}

/// Connects. While the queue of the socket is full, it tries again.
async fn connect(socket: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => return stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads until the daemon closes the connection. A reset ends it too.
async fn rest(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let _ = within("the end of a connection", stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Does something [`AT_ONCE`] times at once, `count` times altogether. The argument is the number of the time.
async fn crowd<F: Future<Output = ()> + Send + 'static>(count: usize, one: impl Fn(usize) -> F) {
    let mut running = JoinSet::new();
    for number in 0..count {
        if running.len() >= AT_ONCE {
            running.join_next().await.expect("there are some").unwrap();
        }
        running.spawn(one(number));
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}
