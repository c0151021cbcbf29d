//! The dashboards of the book (`docs/dashboards/`): each shows sessions, questions and failures of a real daemon over
//! its restart, with one connection at a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use agentd_api::session::{Phase, SessionSpec};
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};

use crate::harness::{Daemon, paths, require, until};

/// Maximum number of lines of a dashboard.
const LONGEST: usize = 60;

/// Connections of a program to the daemon.
#[derive(Debug, Default)]
struct Connections {
    open: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

/// Passes connections on to the daemon, and counts them. A connection ends with the daemon's side.
fn counted(socket: &Path, daemon: PathBuf) -> Arc<Connections> {
    let (connections, counter) = (Arc::new(Connections::default()), UnixListener::bind(socket).unwrap());
    let counts = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut program, _)) = counter.accept().await {
            let (counts, daemon) = (Arc::clone(&counts), daemon.clone());
            tokio::spawn(async move {
                // While no daemon runs, the program is refused and tries again.
                let Ok(mut daemon) = UnixStream::connect(daemon).await else { return };
                counts.all.fetch_add(1, Ordering::SeqCst);
                counts.most.fetch_max(counts.open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let (mut up, mut down) = (vec![0; 4096], vec![0; 4096]);
                loop {
                    tokio::select! {
                        read = program.read(&mut up) => match read {
                            Ok(length) if length > 0 && daemon.write_all(&up[..length]).await.is_ok() => {}
                            _ => break,
                        },
                        read = daemon.read(&mut down) => match read {
                            Ok(length) if length > 0 && program.write_all(&down[..length]).await.is_ok() => {}
                            _ => break,
                        },
                    }
                }
                counts.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    connections
}

/// A running dashboard. Dropping the value ends it with its children.
struct Dashboard {
    child: Child,
    output: PathBuf,
}

impl Dashboard {
    fn start(daemon: &Daemon, program: &str, file: &str, socket: &Path) -> Self {
        use std::os::unix::process::CommandExt as _;
        let file = paths::checkout().join("docs/dashboards").join(file);
        let output = daemon.root().join("dashboard");
        let child = Command::new(program)
            .arg(file)
            .arg(socket)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(fs::File::create(&output).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        Self { child, output }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until the dashboard has shown all these words in one line.
    async fn shows(&self, words: &[&str]) {
        until(&format!("the dashboard shows {words:?}"), || {
            self.said().lines().any(|line| words.iter().all(|word| line.contains(word)))
        })
        .await;
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the dashboard showed\n{}\n---", self.said());
        }
        let group = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).ok();
        self.child.wait().ok();
    }
}

/// Runs a dashboard beside sessions that ask and fail, and kills the daemon in between.
async fn shows_everything(program: &str, file: &str) {
    let mut daemon = Daemon::start().await;
    let named = |daemon: &Daemon, name: &str| SessionSpec { name: Some(name.parse().unwrap()), ..daemon.scripted(&[]) };
    let early = daemon.session(&named(&daemon, "early")).await;
    let socket = daemon.root().join("counted.sock");
    let connections = counted(&socket, daemon.client.socket().to_owned());
    let dashboard = Dashboard::start(&daemon, program, file, &socket);

    // The list, then a session, its question and the answer.
    dashboard.shows(&["early", "idle", early.id.as_str()]).await;
    let asking = daemon.session(&named(&daemon, "asking")).await;
    dashboard.shows(&["asking", "idle", asking.id.as_str()]).await;
    let asked = asking.prompt("ask").await;
    dashboard.shows(&["question", asking.id.as_str(), "p1"]).await;

    // The answer to a question, and a session of the next daemon.
    daemon.kill9();
    until("the connection is closed", || connections.open.load(Ordering::SeqCst) == 0).await;
    daemon.run().await;
    let late = daemon.session(&named(&daemon, "late")).await;
    dashboard.shows(&["late", "idle", late.id.as_str()]).await;
    let answer = serde_json::json!({ "option": "yes" });
    assert_eq!(asking.post("/permissions/p1", &answer).await.status, 200);
    asking.end_of(&asked).await;

    // An agent that ends by itself in a turn, and a launch that fails.
    late.prompt("exit 7").await;
    late.wait_for_phase(Phase::Failed).await;
    dashboard.shows(&["late", "failed"]).await;
    dashboard.shows(&["failure", late.id.as_str()]).await;
    let missing = SessionSpec { command: Some(vec!["/no/such/agent".to_owned()]), ..named(&daemon, "missing") };
    let missing = daemon.create(&missing).await;
    missing.wait_for_phase(Phase::Failed).await;
    dashboard.shows(&["failure", missing.id.as_str()]).await;

    let Connections { open, most, all } = &*connections;
    let counts = [open, most, all].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(counts, [1, 1, 2], "open now, open at once, and in all: one before and one after the restart");
}

#[tokio::test]
async fn the_dashboard_in_the_shell_shows_everything_over_a_restart() {
    if require::dashboards().is_some() {
        shows_everything("sh", "dashboard.sh").await;
    }
}

#[tokio::test]
async fn the_dashboard_in_python_shows_everything_over_a_restart() {
    if require::dashboards().is_some() {
        shows_everything("python3", "dashboard.py").await;
    }
}

#[test]
fn the_dashboards_are_short_and_make_no_call_but_that_of_the_feed() {
    let directory = paths::checkout().join("docs/dashboards");
    for file in ["dashboard.sh", "dashboard.py"] {
        let text = fs::read_to_string(directory.join(file)).unwrap();
        assert!(text.lines().count() <= LONGEST, "{file} has more than {LONGEST} lines");
        let calls: Vec<&str> = text.match_indices("/v1/").map(|(at, _)| &text[at..at + 10]).collect();
        assert_eq!(calls, ["/v1/events"], "{file}");
    }
}
