//! agentd as process 1 of a container: in a PID namespace of its own, with nothing but its own processes.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use agentd_api::event::Body;
use agentd_api::session::Phase;
use nix::sys::signal::{Signal, kill};

use crate::harness::requests::meanwhile;
use crate::harness::session::said;
use crate::harness::{Daemon, Session, journal, paths, process, require, until};

const PROGRAMS: [&str; 3] = ["agentd", "agentd-keeper", "agentctl"];

/// A container. The test sees its processes from outside, under other PIDs.
struct Container {
    daemon: Daemon,
    runtime: Option<Child>,
}

impl Container {
    fn prepare() -> Self {
        Self { daemon: Daemon::prepare(), runtime: None }
    }

    async fn start() -> Self {
        let mut container = Self::prepare();
        container.run().await;
        container
    }

    fn command(&self) -> Command {
        let inside = self.daemon.command();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--"]);
        command.arg(inside.get_program()).args(inside.get_args()).env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(self.daemon.root()).stdin(Stdio::null());
        command
    }

    fn spawn(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.daemon.root().join("agentd.log")).unwrap();
        let child = self.command().stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.runtime = Some(child);
    }

    async fn run(&mut self) {
        self.spawn();
        let socket = self.daemon.client.socket().to_owned();
        until("the control socket accepts", || {
            assert!(self.runtime.as_mut().unwrap().try_wait().unwrap().is_none(), "{}", self.daemon.last_words());
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        })
        .await;
        assert_eq!(self.daemon.client.get("/healthz").await.status, 200);
    }

    fn init(&self) -> u32 {
        process::children(self.runtime.as_ref().unwrap().id())[0]
    }

    /// Returns the daemon that runs in the container.
    fn serving(&self) -> Option<u32> {
        let is_daemon = |pid: &u32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|&byte| byte == 0).nth(1) == Some(b"serve")
        };
        process::children(self.init()).into_iter().find(is_daemon)
    }

    async fn ends(&mut self) -> bool {
        let mut runtime = self.runtime.take().unwrap();
        let mut status = None;
        until("the container ends", || {
            status = runtime.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap().success()
    }

    fn counted(&self, session: &Session) -> usize {
        fs::read_to_string(journal::path(&self.daemon.state(), &session.id))
            .unwrap()
            .matches("agent_message_chunk")
            .count()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        process::kill_all_of(self.daemon.root());
        if let Some(mut runtime) = self.runtime.take() {
            runtime.wait().ok();
        }
    }
}

#[tokio::test]
async fn no_request_is_refused_while_the_daemon_is_restarted_killed_and_replaced() {
    let Some(()) = require::root("a PID namespace") else { return };
    let mut container = Container::prepare();
    let programs = container.daemon.root().join("bin");
    fs::create_dir(&programs).unwrap();
    let place = |name: &str| {
        let built = paths::programs().join(name);
        let new = programs.join("new");
        fs::copy(&built, &new).unwrap();
        fs::rename(new, programs.join(name)).unwrap();
    };
    PROGRAMS.into_iter().for_each(place);
    container.daemon.set_program(programs.join("agentd"));
    container.run().await;
    let session = container.daemon.session(&container.daemon.scripted(&[])).await;
    let (before, socket) = (session.view().await.status, container.daemon.client.socket().to_owned());
    let accepted = session.prompt("count 1500 10").await;
    let path = session.path("");

    let next = async |signal: Signal| {
        let serving = container.serving().unwrap();
        kill(process::pid(serving), signal).unwrap();
        until("another daemon serves", || container.serving().is_some_and(|now| now != serving)).await;
    };
    let asked = meanwhile(&socket, &path, 1000, async {
        until("the agent counts", || container.counted(&session) >= 20).await;
        next(Signal::SIGTERM).await;
        PROGRAMS.into_iter().for_each(place);
        next(Signal::SIGTERM).await;
    })
    .await;
    assert!(asked.answered.load(Ordering::Relaxed) >= 1000, "{asked:?}");
    assert_eq!(asked.broken.load(Ordering::Relaxed), 0, "a daemon that ends in order answers whoever it let in");
    let asked = meanwhile(&socket, &path, 200, async {
        for _ in 0..2 {
            next(Signal::SIGKILL).await;
            assert_eq!(container.daemon.client.get("/healthz").await.status, 200);
        }
    })
    .await;
    assert!(asked.answered.load(Ordering::Relaxed) >= 200, "{asked:?}");

    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"));
    let counted: Vec<u32> =
        session.journal().iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect();
    assert_eq!(counted, (1..=1500).collect::<Vec<u32>>());
    let after = session.wait_for_phase(Phase::Idle).await.status;
    assert_eq!((after.agent_pid, after.keeper_pid, after.launches), (before.agent_pid, before.keeper_pid, 1));
    assert_eq!(container.init(), process::children(container.runtime.as_ref().unwrap().id())[0]);
}

#[tokio::test]
async fn the_end_of_the_container_ends_each_session_in_order_and_the_next_container_continues_them() {
    let Some(()) = require::root("a PID namespace") else { return };
    let mut container = Container::start().await;
    let session = container.daemon.session(&container.daemon.scripted(&[])).await;
    session.turn("say remember").await;
    kill(process::pid(container.init()), Signal::SIGTERM).unwrap();
    assert!(container.ends().await, "{}", container.daemon.last_words());
    until("nothing is left", || process::of(container.daemon.root()).is_empty()).await;
    let exits: Vec<bool> = session
        .journal()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::AgentExited(exited) => Some(exited.requested),
            _ => None,
        })
        .collect();
    assert_eq!(exits, [true], "the keeper has written how the agent ended");

    container.run().await;
    assert_eq!(session.view().await.status.phase, Phase::Stopped);
    session.resume().await;
    assert_eq!(session.turn("say again").await.text, "again");
    assert_eq!(session.view().await.status.launches, 2);
}

#[tokio::test]
async fn process_1_reaps_what_is_given_to_it_and_reloads_the_daemon() {
    let Some(()) = require::root("a PID namespace") else { return };
    let container = Container::start().await;
    // The keeper dies before it waits for its child processes, so process 1 inherits the keeper's agent.
    let session = container.daemon.session(&container.daemon.scripted(&[])).await;
    let keepers = process::running(container.daemon.root(), "agentd-keeper", Some("hold"));
    let agents = process::children(keepers[0]);
    assert!(!agents.is_empty());
    process::kill9(keepers[0]);
    session.wait_for_phase(Phase::Failed).await;
    until("they are gone, and nobody's zombies", || {
        keepers.iter().chain(&agents).all(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
    })
    .await;

    container.daemon.configure(|config| format!("{config}\n[plugins.whitelist]\nsettings = {{ allow = [\"X_*\"] }}\n"));
    kill(process::pid(container.init()), Signal::SIGHUP).unwrap();
    let settings = async || {
        let plugin: serde_json::Value = container.daemon.client.get("/v1/plugins/whitelist").await.expect(200);
        plugin["settings"]["allow"][0] == "X_*"
    };
    crate::harness::within("the signal has reloaded it", async {
        while !settings().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_container_whose_first_daemon_cannot_start_ends_with_its_words() {
    let Some(()) = require::root("a PID namespace") else { return };
    let container = Container::prepare();
    // A mistake in the configuration does not prevent a start. Another daemon in the same state directory does.
    let state = container.daemon.root().join("state");
    fs::create_dir_all(&state).unwrap();
    let lock = fs::File::create(state.join("agentd.lock")).unwrap();
    let _held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusiveNonblock).unwrap();
    let output = container.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("another agentd uses")
            && said.contains("first start of the daemon failed"),
        "{said}"
    );
}
