//! `agentctl --host`: the daemon of another machine, through a real sshd on the loopback.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use agentd_api::Event;
use agentd_api::session::{Phase, SessionView};

use crate::harness::ctl::{Said, agentctl, end_of};
use crate::harness::sshd::Sshd;
use crate::harness::terminal::Terminal;
use crate::harness::{Daemon, paths, process, until};

/// A daemon, and an sshd through which the machine `lab` reaches it.
pub(crate) struct Lab {
    pub(crate) daemon: Daemon,
    _sshd: Sshd,
    bin: PathBuf,
}

impl Lab {
    /// Starts both. `more` is added to the configuration of sshd.
    pub(crate) async fn start(more: &str) -> Option<Self> {
        let daemon = Daemon::start().await;
        let socket = daemon.client.socket().display();
        let config = format!("SetEnv \"AGENTD_SOCKET={socket}\"\n{more}\n");
        let sshd = Sshd::start(daemon.root().join("ssh"), &config).await?;
        fs::create_dir(daemon.root().join("x")).unwrap();
        let bin = sshd.client();
        Some(Self { daemon, _sshd: sshd, bin })
    }

    /// Builds a command of a user whose only way to the daemon is ssh.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = agentctl(&self.daemon, &["--host", "lab"]);
        command.env_remove("AGENTD_SOCKET").args(arguments);
        command.env("PATH", format!("{}:/usr/bin:/bin", self.bin.display()));
        command.env("XDG_RUNTIME_DIR", self.daemon.root().join("x"));
        command.env("AGENTD_HOST_PROGRAM", paths::agentctl());
        command
    }

    /// Runs a command without `--host`.
    pub(crate) async fn plain(&self, arguments: &[&str]) -> Said {
        let mut command = agentctl(&self.daemon, arguments);
        command.env_remove("AGENTD_SOCKET").env("XDG_CONFIG_HOME", self.daemon.root().join("c"));
        command.env("PATH", format!("{}:/usr/bin:/bin", self.bin.display()));
        end_of(command.spawn().unwrap()).await
    }

    async fn ctl(&self, arguments: &[&str]) -> Said {
        end_of(self.command(arguments).spawn().unwrap()).await
    }

    /// Runs the command, and returns its output.
    async fn good(&self, arguments: &[&str]) -> String {
        let said = self.ctl(arguments).await;
        assert_eq!(said.status, Some(0), "{arguments:?}: {said:?}");
        said.out
    }

    /// Kills the client's side of every connection, as a lost network would.
    pub(crate) fn cut(&self) {
        let connections = process::running(self.daemon.root(), "ssh", None);
        assert!(!connections.is_empty(), "a connection is open");
        connections.into_iter().for_each(process::kill9);
    }
}

#[tokio::test]
async fn a_daemon_of_another_machine_is_reached_through_ssh() {
    let Some(lab) = Lab::start("").await else { return };
    let directory = lab.daemon.work().display().to_string();
    let out = lab.good(&["new", "--agent", "scripted", "--name", "far", "--dir", &directory, "--ready", "60s"]).await;
    assert!(!out.trim().is_empty());
    assert!(lab.good(&["ls"]).await.contains("far"));
    assert_eq!(lab.good(&["prompt", "far", "say hello from afar"]).await, "hello from afar\n");
    let view: SessionView = serde_json::from_str(&lab.good(&["show", "far", "--json"]).await).unwrap();
    assert_eq!(view.spec.directory, lab.daemon.work());
    let events = lab.good(&["events", "far", "--no-follow"]).await;
    assert!(events.lines().count() as u64 >= view.status.last_seq, "{events}");
    // A file's content is sent; its path names another file there.
    let file = lab.daemon.root().join("near.txt");
    fs::write(&file, "content of this machine").unwrap();
    let parts = lab.good(&["prompt", "far", "parts", "--file", &file.display().to_string()]).await;
    assert!(parts.contains("content of this machine") && parts.contains("attachment:near.txt"), "{parts}");
    lab.good(&["stop", "far"]).await;
    lab.good(&["rm", "far"]).await;
    assert!(!lab.good(&["ls", "--all"]).await.contains("far"));
    // The connections shared one login.
    assert_eq!(fs::read_dir(lab.daemon.root().join("x/agentctl-ssh")).unwrap().count(), 1);
}

#[tokio::test]
async fn an_attachment_continues_after_its_connection_was_killed_in_the_middle_of_a_turn() {
    let Some(lab) = Lab::start("").await else { return };
    let session = lab.daemon.session(&lab.daemon.scripted(&[])).await;
    let seen = lab.daemon.root().join("seen");
    let mut follower = lab.command(&["events", session.id.as_str()]);
    let follower = follower.stdout(fs::File::create(&seen).unwrap()).spawn().unwrap();
    until("the follower is connected", || fs::metadata(&seen).unwrap().len() > 0).await;
    let mut terminal = Terminal::run(&lab.command(&["attach", session.id.as_str()]), 100);
    terminal.shows("ready").await;
    terminal.types("count 60 40\r");
    terminal.shows("5\r\n").await;
    lab.cut();
    terminal.shows("60\r\n").await;
    session.wait_for_phase(Phase::Idle).await;
    terminal.types("say again\r");
    terminal.shows("again\r\n").await;
    terminal.types("\u{4}");
    assert!(terminal.ends().await.success());
    let shown = terminal.shown();
    assert!((1..=60).all(|number| shown.contains(&format!("{number}\r\n"))), "{shown}");
    session.stop().await;
    let last = session.view().await.status;
    assert_eq!(last.launches, 1);
    lab.good(&["rm", session.id.as_str()]).await;
    // The follower ends with its session. It has seen each record once.
    let ended = end_of(follower).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let lines = fs::read_to_string(&seen).unwrap();
    let seqs = lines.lines().map(|line| Event::parse(line.as_bytes()).unwrap().seq);
    assert_eq!(seqs.collect::<Vec<_>>(), (1..=last.last_seq).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_named_machine_is_reached_by_its_name_and_as_the_default() {
    let Some(lab) = Lab::start("").await else { return };
    let session = lab.daemon.session(&lab.daemon.scripted(&[])).await;
    let program = paths::agentctl();
    for arguments in [&["host", "add", "far", "root@lab", "--program", program][..], &["host", "use", "far"]] {
        let said = lab.plain(arguments).await;
        assert_eq!(said.parts(), (Some(0), String::new(), String::new()));
    }
    let list = lab.plain(&["host", "ls"]).await;
    assert_eq!(list.out, "NAME  DEFAULT  ADDRESS\nthis           this machine\nfar   yes      root@lab\n");
    for arguments in [&["ls", "--all"][..], &["--host", "far", "ls", "--all"]] {
        let said = lab.plain(arguments).await;
        assert!(said.out.contains(session.id.as_str()), "{arguments:?}: {said:?}");
    }
    // The default is no matter of a command about this machine, nor of an agent.
    assert_ne!(lab.plain(&["config", "check"]).await.status, Some(2));
    let this = lab.plain(&["--host", "this", "--no-start", "ls"]).await;
    assert!(this.status == Some(3) && !this.err.contains("far"), "{this:?}");
    assert_eq!(lab.plain(&["host", "rm", "far"]).await.status, Some(0));
    let gone = lab.plain(&["host", "use", "far"]).await;
    assert!(gone.status == Some(2) && gone.err.contains("no machine has the name"), "{gone:?}");
    let unnamed = lab.plain(&["--no-start", "ls"]).await;
    assert_eq!(unnamed.status, Some(3), "{unnamed:?}");
}

#[tokio::test]
async fn what_the_shell_of_the_machine_prints_first_is_skipped() {
    let noise = "ForceCommand echo 'Welcome to the lab.'; printf 'no newline'; echo; eval \"$SSH_ORIGINAL_COMMAND\"";
    let Some(lab) = Lab::start(noise).await else { return };
    lab.good(&["ls"]).await;
}

#[tokio::test]
async fn a_machine_that_cannot_be_reached_is_named_with_the_cause_and_a_remedy() {
    let Some(mut lab) = Lab::start("").await else { return };
    let missing = end_of(lab.command(&["ls"]).env("AGENTD_HOST_PROGRAM", "/none/agentctl").spawn().unwrap()).await;
    assert_eq!(missing.status, Some(3), "{missing:?}");
    assert!(missing.err.contains("no program /none/agentctl") && missing.err.contains("AGENTD_HOST_PROGRAM"));

    let elsewhere = ["--host", "ssh://root@127.0.0.1:1", "ls"];
    let mut command = agentctl(&lab.daemon, &elsewhere);
    command.env_remove("AGENTD_SOCKET").env("PATH", "/usr/bin:/bin");
    let refused = end_of(command.spawn().unwrap()).await;
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(refused.err.contains("ssh could not connect") && refused.err.contains("refused"), "{refused:?}");

    lab.daemon.kill9();
    let absent = lab.ctl(&["ls"]).await;
    assert_eq!(absent.status, Some(3), "{absent:?}");
    assert!(absent.err.contains("status 3") && absent.err.contains("cannot reach agentd"), "{absent:?}");
    lab.daemon.run().await;
    lab.good(&["ls"]).await;
}

#[tokio::test]
async fn what_only_one_machine_has_is_refused_with_another_one() {
    let Some(lab) = Lab::start("").await else { return };
    for (arguments, expected) in [
        (&["run", "hello"][..], "--dir"),
        (&["new", "--dir", "src"], "absolute path on lab"),
        (&["new", "--dir", "/", "--env-from", "terminal"], "environment of this terminal"),
        (&["service", "status"], "the service"),
        (&["doctor"], "the installation"),
        (&["config", "check"], "a configuration file"),
        (&["--url", "http://127.0.0.1:1", "ls"], "cannot be used with"),
    ] {
        let said = lab.ctl(arguments).await;
        assert_eq!(said.status, Some(2), "{arguments:?}: {said:?}");
        assert!(said.err.contains(expected), "{arguments:?}: {said:?}");
    }
    let wrong = agentctl(&lab.daemon, &["--host", "-oProxyCommand=touch x", "ls"]).spawn().unwrap();
    assert_eq!(end_of(wrong).await.status, Some(2));
    until("no session was created", || fs::read_dir(lab.daemon.state().join("sessions")).unwrap().count() == 0).await;
}
