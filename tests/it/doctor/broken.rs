//! Each fault of an agentd that `agentctl doctor` repairs. A test causes the fault, and doctor finds it. The test then
//! runs the commands that doctor prints, and doctor passes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::quote::quoted;
use crate::harness::{paths, process, scripted_agent};

/// Agent that asks for a login until the file `login` is in its directory.
const AGENT: &str = concat!(
    r#"#!/bin/sh
[ ! -e "$(dirname "$0")/login" ] || exec SCRIPTED
while read -r line; do
  id=$(printf %s "$line" | grep -o '"id":[^,}]*' | head -n 1 | cut -c 6-)
  case $line in
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'"$id"',"result":{"protocolVersion":1,"#,
    r#""authMethods":[{"id":"key","name":"Log in"}]}}' ;;
    *) echo '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":-32000,"message":"Authentication required"}}' ;;
  esac
done
"#
);

/// A user's home in which agentctl has started an agentd. A drop ends the processes of the home.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { directory: tempfile::Builder::new().prefix("agentd-").tempdir().expect("a directory") };
        for name in ["home/.config/agentd", "run", "work"] {
            fs::create_dir_all(place.path(name)).expect("it is empty");
        }
        for name in ["run", "home"] {
            fs::set_permissions(place.path(name), Permissions::from_mode(0o700)).expect("it is ours");
        }
        let agent = place.path("home/agent");
        let text = AGENT.replace("SCRIPTED", &quoted(scripted_agent()));
        fs::write(&agent, text).expect("it is ours");
        fs::set_permissions(&agent, Permissions::from_mode(0o700)).expect("it is ours");
        place.configure("");
        fs::write(place.path("home/.profile"), "export EDITOR=ed\n").expect("it is ours");
        fs::write(place.path("home/login"), "").expect("it is ours");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration, which is eight lines and `more`.
    fn configure(&self, more: &str) {
        let (home, agent) = (self.path("home").display().to_string(), [self.path("home/agent")]);
        let config = format!(
            "default_agent = \"scripted\"\n\n[environment]\nhome = {home:?}\nshell = \"/bin/bash\"\n\
             deadline = \"3s\"\n[agents.scripted]\ncommand = {agent:?}\n{more}"
        );
        fs::write(self.path("home/.config/agentd/agentd.toml"), config).expect("it is ours");
    }

    fn sessions(&self) -> PathBuf {
        self.path("home/.local/state/agentd/sessions")
    }

    /// Runs a line in the user's shell.
    fn shell(&self, line: &str) -> Output {
        let programs = paths::programs();
        Command::new("/bin/sh")
            .args(["-c", line])
            .env_clear()
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display()))
            .current_dir(self.path("work"))
            .stdin(Stdio::null())
            .output()
            .expect("a shell can be executed")
    }

    fn types(&self, line: &str) -> String {
        let output = self.shell(line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns doctor's result of one check.
    fn doctor(&self, name: &str) -> Value {
        let output = self.shell("agentctl doctor --json");
        let view: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let checks = view["checks"].as_array().expect("a list");
        checks.iter().find(|check| check["name"] == name).cloned().unwrap_or(Value::Null)
    }

    /// Returns the commands that doctor prints for a check.
    fn printed(&self, name: &str) -> Vec<String> {
        let output = self.shell("agentctl doctor");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let head = format!("{name} (");
        let lines =
            text.lines().skip_while(|line| !line.starts_with(&head)).skip(1).take_while(|line| !line.is_empty());
        lines.filter_map(|line| line.strip_prefix("  run: ")).map(str::to_owned).collect()
    }

    /// Returns the daemon's pid from the daemon's lock file.
    fn daemon(&self) -> String {
        let lock = fs::read(self.path("home/.local/state/agentd/agentd.lock")).expect("a daemon has run");
        serde_json::from_slice::<Value>(&lock).expect("it has a record")["pid"].to_string()
    }

    /// Kills the daemon with SIGKILL, and waits until no process listens on the socket.
    fn kill_daemon(&self) {
        self.types(&format!("kill -KILL {}", self.daemon()));
        self.types("until agentctl --no-start ls >/dev/null 2>&1; [ $? = 3 ]; do sleep 0.05; done");
    }

    /// Asks for a session, which may fail, and returns its id.
    fn session(&self) -> String {
        self.shell("agentctl new --ready 30");
        let list: Value = serde_json::from_str(&self.types("agentctl ls --all --json")).expect("it is JSON");
        list["sessions"][0]["id"].as_str().unwrap_or_else(|| panic!("there is none: {list}")).to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        process::kill_all_of(self.directory.path());
    }
}

/// A fault and its repair.
struct Broken {
    what: &'static str,
    /// Causes the fault in a place with a running daemon.
    breaks: fn(&Place),
    /// Name of the check that finds the fault, and a part of its summary.
    check: &'static str,
    says: &'static str,
    /// Step that only a user can do, with the output of the first command. The other commands run after this step.
    by_hand: Option<fn(&Place, &str)>,
}

/// Unknown key in the tenth line of the configuration.
const MISTAKE: &str = "[limits]\nlaunchs = 3\n";
const PLACE: &str = "agentd.toml:10:1: limits.launchs";

const BROKEN: &[Broken] = &[
    Broken {
        what: "a mistake in the configuration, under a daemon that runs",
        breaks: |place| place.configure(MISTAKE),
        check: "configuration",
        says: PLACE,
        by_hand: Some(|place, _| place.configure("")),
    },
    Broken {
        what: "a mistake in the configuration, under which the daemon was started",
        breaks: |place| {
            place.kill_daemon();
            place.configure(MISTAKE);
            place.types("agentctl ls");
        },
        check: "configuration",
        says: PLACE,
        by_hand: Some(|place, _| place.configure("")),
    },
    Broken {
        what: "a mistake in the configuration, and no daemon",
        breaks: |place| {
            place.kill_daemon();
            place.configure(MISTAKE);
        },
        check: "configuration",
        says: PLACE,
        by_hand: Some(|place, _| place.configure("")),
    },
    Broken {
        what: "the file of the token is missing",
        breaks: |place| {
            let file = place.path("home/token").display().to_string();
            place.configure(&format!("[control]\ntcp = \"127.0.0.1:0\"\ntoken = {{ file = {file:?} }}\n"));
            place.shell("agentctl reload");
        },
        check: "configuration",
        says: "control.token",
        by_hand: Some(|place, _| {
            place.types("umask 077; echo 0123456789abcdef0123456789abcdef >\"$HOME/token\"");
        }),
    },
    Broken {
        what: "the record of approvals was damaged under a daemon that runs",
        breaks: |place| fs::write(place.path("home/.local/state/agentd/trust.json"), "{").expect("it is ours"),
        check: "trust",
        says: "trust.json",
        by_hand: None,
    },
    Broken {
        what: "the record of approvals is of a newer agentd, and the daemon was started with it",
        breaks: |place| {
            place.kill_daemon();
            let newer = "{\"version\":99,\"scripts\":{}}";
            fs::write(place.path("home/.local/state/agentd/trust.json"), newer).expect("it is ours");
            place.types("agentctl ls");
        },
        check: "trust",
        says: "version 99",
        by_hand: None,
    },
    Broken {
        what: "the configuration is newer than what runs",
        breaks: |place| place.configure("[limits]\nqueued_turns = 7\n"),
        check: "configuration",
        says: "not reloaded: limits.queued_turns",
        by_hand: None,
    },
    Broken {
        what: "nobody listens: the daemon was killed",
        breaks: Place::kill_daemon,
        check: "socket",
        says: "does not run",
        by_hand: None,
    },
    Broken {
        what: "the socket's file is gone, and the daemon is stuck",
        breaks: |place| {
            place.types(
                &format!("kill -STOP {} && rm run/agentd/control.sock", place.daemon()).replace("run/", "../run/"),
            );
        },
        check: "lock",
        says: "started without a service manager, holds the state directory and cannot be reached",
        by_hand: None,
    },
    Broken {
        what: "a daemon by hand holds the state directory and serves another socket",
        breaks: |place| {
            place.kill_daemon();
            let other = quoted(place.path("other"));
            place.types(&format!(
                "mkdir -m 700 {other}; agentd serve --background --runtime-dir {other} >/dev/null 2>&1 &"
            ));
            place.types(&format!(
                "for i in $(seq 300); do agentctl --socket {other}/control.sock version && exit 0; sleep 0.1; done; \
                 exit 1"
            ));
        },
        check: "lock",
        says: "serves another socket",
        by_hand: None,
    },
    Broken {
        what: "sessions/ cannot be written in",
        breaks: |place| fs::set_permissions(place.sessions(), Permissions::from_mode(0o500)).expect("it is ours"),
        check: "directories",
        says: "closed to its owner",
        by_hand: None,
    },
    Broken {
        what: "drained and forgotten",
        breaks: |place| {
            place.types("agentctl drain");
        },
        check: "draining",
        says: "drained since",
        by_hand: None,
    },
    Broken {
        what: "a login shell that hangs",
        breaks: |place| fs::write(place.path("home/.profile"), "sleep 1000\n").expect("it is ours"),
        check: "login shell",
        says: "within 3 s",
        by_hand: Some(|place, said| {
            assert!(said.contains("sleep 1000"), "it does not show where it hangs: {said}");
            fs::write(place.path("home/.profile"), "export EDITOR=ed\n").expect("it is ours");
        }),
    },
    Broken {
        what: "a session.json that cannot be read",
        breaks: |place| {
            let id = place.session();
            place.kill_daemon();
            fs::write(place.sessions().join(id).join("session.json"), "{").expect("it is ours");
            place.types("agentctl ls");
        },
        check: "sessions",
        says: "cannot be read",
        by_hand: None,
    },
    Broken {
        what: "an agent without a login",
        breaks: |place| {
            fs::remove_file(place.path("home/login")).expect("it is there");
            place.session();
        },
        check: "login",
        says: "is not logged in",
        by_hand: Some(|place, _| fs::write(place.path("home/login"), "").expect("it is ours")),
    },
];

#[test]
fn each_broken_state_is_found_and_what_doctor_prints_repairs_it() {
    for Broken { what, breaks, check, says, by_hand } in BROKEN {
        let place = Place::new();
        place.types("agentctl ls");
        let before = place.doctor(check);
        assert!(before.is_null() || before["outcome"] == "pass" || *check == "socket", "{what}, before: {before:#}");
        breaks(&place);
        let found = place.doctor(check);
        let summary = found["summary"].as_str().unwrap_or_default();
        assert!(matches!(found["outcome"].as_str(), Some("fail" | "warn")), "{what}: {found:#}");
        assert!(summary.contains(says), "{what}: {found:#}");
        let commands = place.printed(check);
        assert!(!commands.is_empty(), "{what}: nothing to type: {found:#}");
        for (at, command) in commands.iter().enumerate() {
            let typed = place.shell(command);
            let said = String::from_utf8_lossy(&typed.stdout).into_owned();
            match by_hand.filter(|_| at == 0) {
                Some(by_hand) if commands.len() > 1 => by_hand(&place, &said),
                Some(by_hand) => {
                    by_hand(&place, &said);
                    place.types(command);
                }
                None => assert!(typed.status.success(), "{what}: {command}: {typed:?}"),
            }
        }
        let after = place.doctor(check);
        assert_eq!(after["outcome"], "pass", "{what}, after {commands:?}: {after:#}");
    }
}

#[test]
fn a_socket_file_that_was_removed_is_made_anew_by_the_daemon_that_runs_and_doctor_passes() {
    let place = Place::new();
    place.types("agentctl ls");
    let daemon = place.daemon();
    place.types("rm ../run/agentd/control.sock");
    place.types("for i in $(seq 600); do agentctl --no-start ls && exit 0; sleep 0.1; done; exit 1");
    assert_eq!(place.daemon(), daemon, "another daemon was started");
    for name in ["socket", "lock"] {
        let check = place.doctor(name);
        assert_eq!(check["outcome"], "pass", "{check:#}");
    }
}
