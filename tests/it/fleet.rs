//! `agentctl ls --all-hosts`: several machines through a real sshd, one of them dead and one silent.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agentd_api::session::SessionSpec;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};

use crate::harness::ctl::{Said, agentctl, end_of};
use crate::harness::sshd::Sshd;
use crate::harness::{Daemon, Session, paths, process, until, within};

/// This machine and, through ssh, the machine `far` with another daemon.
struct Fleet {
    here: Daemon,
    far: Daemon,
    _sshd: Sshd,
    bin: PathBuf,
    hosts: String,
}

impl Fleet {
    async fn start() -> Option<Self> {
        let (here, far) = (Daemon::start().await, Daemon::start().await);
        let sshd = Sshd::start(here.root().join("ssh"), "").await?;
        fs::create_dir(here.root().join("x")).unwrap();
        let bin = sshd.client();
        let mut fleet = Self { here, far, _sshd: sshd, bin, hosts: String::new() };
        let socket = fleet.far.client.socket().display().to_string();
        fleet.add("far", "root@lab", Some(&socket));
        Some(fleet)
    }

    /// Names a machine in `hosts.toml`.
    fn add(&mut self, name: &str, address: &str, socket: Option<&str>) {
        let program = paths::agentctl();
        let socket = socket.map(|socket| format!("socket = {socket:?}\n")).unwrap_or_default();
        let table = format!("[hosts.{name}]\naddress = {address:?}\nprogram = {program:?}\n{socket}");
        self.hosts.push_str(&table);
        let directory = self.here.root().join("c/agentd");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("hosts.toml"), &self.hosts).unwrap();
    }

    /// Adds a machine whose port is closed.
    fn add_dead(&mut self) {
        self.add("dead", "ssh://root@127.0.0.1:1", None);
    }

    /// Adds a machine that accepts connections and says nothing.
    fn add_mute(&mut self) -> TcpListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.add("mute", &format!("ssh://root@127.0.0.1:{}", listener.local_addr().unwrap().port()), None);
        listener
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = agentctl(&self.here, &["ls", "--all-hosts"]);
        command.args(arguments).env("XDG_CONFIG_HOME", self.here.root().join("c"));
        command.env("PATH", format!("{}:/usr/bin:/bin", self.bin.display()));
        command.env("XDG_RUNTIME_DIR", self.here.root().join("x"));
        command
    }

    /// Runs the command to its end, and checks that no ssh is left.
    async fn ls(&self, arguments: &[&str]) -> Said {
        let said = end_of(self.command(arguments).spawn().unwrap()).await;
        self.no_ssh().await;
        said
    }

    async fn no_ssh(&self) {
        let mut left = Vec::new();
        until("no ssh is left", || {
            left = process::running(self.here.root(), "ssh", None);
            left.is_empty()
        })
        .await;
        let shared = self.here.root().join("x/agentctl-ssh");
        assert!(!shared.exists() || fs::read_dir(shared).unwrap().count() == 0, "a shared login is left");
    }

    fn watch(&self, arguments: &[&str]) -> Watch {
        let mut command = tokio::process::Command::from(self.command(arguments));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watch { child, lines }
    }
}

/// A running `ls --watch`.
struct Watch {
    child: tokio::process::Child,
    lines: Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Watch {
    async fn next(&mut self) -> String {
        within("a line", self.lines.next_line()).await.unwrap().expect("it watches")
    }

    /// Returns the first item that `wanted` selects.
    async fn item(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        within(what, async {
            loop {
                let item: Value = serde_json::from_str(&self.next().await).unwrap();
                if wanted(&item) {
                    return item;
                }
            }
        })
        .await
    }
}

async fn named(daemon: &Daemon, name: &str) -> Session {
    daemon.session(&SessionSpec { name: name.parse().ok(), ..daemon.scripted(&[]) }).await
}

#[tokio::test]
async fn the_sessions_of_all_machines_are_one_list_in_each_form() {
    let Some(fleet) = Fleet::start().await else { return };
    let near = named(&fleet.here, "near").await;
    let away = named(&fleet.far, "away").await;
    fleet.far.failed("broken").await;
    let ls = async |arguments: &[&str]| {
        let said = fleet.ls(&[&["--timeout", "50s"], arguments].concat()).await;
        assert_eq!(said.status, Some(0), "{arguments:?}: {said:?}");
        said.out
    };
    let table = ls(&[]).await;
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("HOST") && rows.len() == 4, "{table}");
    // The failed session is first, over all machines.
    assert!(rows[1].starts_with("far ") && rows[1].contains("broken"), "{table}");
    assert!(rows[2].starts_with("this ") && rows[2].contains("near"), "{table}");
    assert!(rows[3].starts_with("far ") && rows[3].contains("away"), "{table}");
    assert_eq!(ls(&["-q", "--phase", "idle"]).await, format!("this/{}\nfar/{}\n", near.id, away.id));
    assert_eq!(ls(&["-o", "name", "--sort", "name"]).await, "far/away\nfar/broken\nthis/near\n");
    let columns = ls(&["-o", "custom-columns=NAME:.spec.name", "--phase", "failed"]).await;
    assert_eq!(columns, "HOST  NAME\nfar   broken\n");
    let document: Value = serde_json::from_str(&ls(&["-o", "json"]).await).unwrap();
    let hosts: Vec<&str> =
        document["hosts"].as_array().unwrap().iter().map(|host| host["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["this", "far"], "{document}");
    assert_eq!(document["hosts"][0]["sessions"][0]["spec"]["name"], "near", "{document}");
    assert_eq!(document["hosts"][1]["sessions"].as_array().unwrap().len(), 2, "{document}");
    let yaml = ls(&["-o", "yaml"]).await;
    assert!(yaml.starts_with("---\nhosts:\n") && yaml.contains("name: away"), "{yaml}");
    let stale = fleet.ls(&["--stale", "--timeout", "50s"]).await;
    assert!(stale.status == Some(0) && stale.err.contains("no session is stale"), "{stale:?}");
}

#[tokio::test]
async fn a_machine_that_fails_or_is_silent_is_a_line_and_holds_nothing_up() {
    let Some(mut fleet) = Fleet::start().await else { return };
    fleet.add_dead();
    let _mute = fleet.add_mute();
    named(&fleet.here, "near").await;
    named(&fleet.far, "away").await;
    let begun = Instant::now();
    let said = fleet.ls(&["--timeout", "10s", "-o", "name"]).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "the silent machine holds nothing up for long: {said:?}");
    assert_eq!((said.status, said.out.as_str()), (Some(0), "this/near\nfar/away\n"), "{said:?}");
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(lines.len(), 2, "{said:?}");
    assert!(lines[0].starts_with("agentctl: dead: ") && lines[0].contains("refused"), "{said:?}");
    assert!(lines[1].starts_with("agentctl: mute: "), "{said:?}");

    let said = fleet.ls(&["-o", "json", "--timeout", "10s"]).await;
    let document: Value = serde_json::from_str(&said.out).unwrap();
    let hosts = document["hosts"].as_array().unwrap();
    let of = |name: &str| hosts.iter().find(|host| host["host"] == name).unwrap_or_else(|| panic!("{document}"));
    assert_eq!(hosts.len(), 4, "{document}");
    assert_eq!(of("dead")["error"]["code"], "unreachable", "{document}");
    assert!(of("dead")["error"]["hint"].as_str().unwrap().contains("ssh"), "{document}");
    // ssh gives up at the same time as agentctl.
    assert!(["no-answer", "unreachable"].contains(&of("mute")["error"]["code"].as_str().unwrap()), "{document}");
    assert_eq!((of("far")["sessions"].as_array().unwrap().len(), said.err.lines().count()), (1, 2), "{said:?}");
}

#[tokio::test]
async fn without_an_answer_of_any_machine_the_status_is_that_of_the_first_failure() {
    let Some(mut fleet) = Fleet::start().await else { return };
    fleet.add_dead();
    fleet.here.kill9();
    fleet.far.kill9();
    let said = fleet.ls(&[]).await;
    assert_eq!((said.status, said.err.lines().count()), (Some(3), 3), "{said:?}");
    for wrong in [["--host", "far"], ["--socket", "/x"], ["--url", "http://127.0.0.1:1"]] {
        let said = fleet.ls(&wrong).await;
        assert!(said.status == Some(2) && said.err.contains("--all-hosts"), "{said:?}");
    }
    assert_eq!(end_of(agentctl(&fleet.here, &["ls", "--timeout", "1s"]).spawn().unwrap()).await.status, Some(2));
}

#[tokio::test]
async fn a_signal_ends_each_ssh_and_what_ssh_started() {
    let Some(mut fleet) = Fleet::start().await else { return };
    let _mute = fleet.add_mute();
    let config = fleet.here.root().join("ssh/ssh_config");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}Host behind\nProxyCommand sleep 1000\n")).unwrap();
    fleet.add("behind", "root@behind", None);
    for (signal, status) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let child = fleet.command(&["--timeout", "60s"]).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        // Two processes of ssh hang, and one has a helper.
        let of = |program: &str| process::running(fleet.here.root(), program, None).len();
        until("two of ssh hang", || of("ssh") == 2 && of("sleep") == 1).await;
        kill(pid, signal).unwrap();
        let said = end_of(child).await;
        assert_eq!(said.status, Some(status), "{said:?}");
        fleet.no_ssh().await;
        until("the helper of ssh is gone", || of("sleep") == 0).await;
    }
    let said = fleet.ls(&["--timeout", "5s"]).await;
    assert!(said.status == Some(0) && said.err.contains("behind: ") && said.err.contains("mute: "), "{said:?}");
    assert!(process::running(fleet.here.root(), "sleep", None).is_empty());
}

#[tokio::test]
async fn a_watch_follows_each_machine_over_its_absence() {
    let Some(mut fleet) = Fleet::start().await else { return };
    fleet.add_dead();
    named(&fleet.here, "near").await;
    let mut watch = fleet.watch(&["--watch", "-o", "json", "--timeout", "20s"]);
    let is = |item: &Value, change: &str, host: &str| item["change"] == change && item["host"] == host;
    let mut begun: Vec<String> = Vec::new();
    while begun.len() < 2 {
        let item: Value = serde_json::from_str(&watch.next().await).unwrap();
        begun.push(format!("{} {}", item["change"].as_str().unwrap(), item["host"].as_str().unwrap()));
    }
    begun.sort();
    assert_eq!(begun, ["added this", "unreachable dead"]);
    let away = named(&fleet.far, "away").await;
    let item = watch.item("the new session", |item| is(item, "added", "far")).await;
    assert_eq!(item["session"]["id"], away.id.as_str());
    fleet.far.terminate().await;
    let item = watch.item("the absence", |item| is(item, "unreachable", "far")).await;
    assert!(item["error"]["detail"].as_str().unwrap().contains("far"), "{item}");
    fleet.far.run().await;
    watch.item("the return", |item| is(item, "reached", "far")).await;
    away.stop().await;
    fleet.far.client.call("DELETE", &away.path(""), "").await;
    let item = watch.item("the removal", |item| is(item, "removed", "far")).await;
    assert_eq!(item["session"]["spec"]["name"], "away");
    let pid = Pid::from_raw(i32::try_from(watch.child.id().unwrap()).unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    assert_eq!(within("the watch ends", watch.child.wait()).await.unwrap().code(), Some(130));
    fleet.no_ssh().await;
}
