//! Tests install, upgrade, status and uninstall against stand-ins for the managers' programs, and against an
//! imitation of the daemon. The stand-ins record their calls, and keep enabled and active units in files. The
//! daemon answers only the requests of these tests.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use agentd_api::Route;
use agentd_api::route;
use clap::Parser as _;
use tempfile::TempDir;

use std::path::PathBuf;

use super::*;
use crate::args::{Cli, Command};
use crate::error::exit;
use crate::service::{ServiceError, material};
use agentd_client::{Client, Error as ClientError};

/// Imitation of systemctl: fails if `state/fail` has the beginning of the call.
const SYSTEMCTL: &str = r#"cd "$(dirname "$0")/../state"
[ "$1" != --user ] || shift
[ "$1" = show ] || [ "$1" = list-units ] || echo "systemctl $*" >> calls
if [ -e fail ] && [ "$(cat fail)" = "$1 $2" ]; then rm fail; echo "no such luck" >&2; exit 1; fi
case $1 in
  show)
    for unit; do :; done
    case $* in *--property=Listen*--value*) echo "$PWD/control.sock (Stream)"; exit;; esac
    file=$(echo "$unit" | sed 's/@.*[.]/@./')
    [ -e "../home/.config/systemd/user/$unit" ] || [ -e "../etc/systemd/system/$file" ] &&
      echo LoadState=loaded || echo LoadState=not-found
    echo "ActiveState=$(cat "active-$unit" 2>/dev/null || echo inactive)"
    echo "UnitFileState=$(cat "enabled-$unit" 2>/dev/null || echo disabled)"
    echo MainPID=0; echo NeedDaemonReload=no ;;
  enable) echo enabled > "enabled-$2" ;;
  disable) rm "enabled-$2" ;;
  start) echo active > "active-$2" ;;
  stop) rm -f "active-$2" ;;
  list-units) for unit in active-agentd@*.socket; do [ ! -e "$unit" ] || echo "${unit#active-} loaded active"; done ;;
  try-restart|restart) for bin in ../home/.local/bin ../usr/local/bin; do
    [ ! -e $bin/agentd ] || $bin/agentd --version > answers; done ;;
esac
"#;

const LOGINCTL: &str = r#"cd "$(dirname "$0")/../state"
[ "$1" = show-user ] || echo "loginctl $*" >> calls
case $1 in
  show-user) cat linger 2>/dev/null || echo no ;;
  enable-linger) [ ! -e refuse-linger ] || { echo "Access denied" >&2; exit 1; }; echo yes > linger ;;
esac
"#;

/// Imitation of launchctl: a job survives its bootout for some checks, and until then a bootstrap fails with 5.
const LAUNCHCTL: &str = r#"cd "$(dirname "$0")/../state"
[ "$1" = print ] || echo "launchctl $*" >> calls
case $1 in
  print)
    if [ -s leaving ]; then sed -i 1d leaving; [ -s leaving ] || rm -f leaving loaded; fi
    [ -e loaded ] && echo "	state = running" || exit 113 ;;
  bootstrap)
    if [ -e loaded ] || [ -e refuse ]; then rm -f refuse; echo "Bootstrap failed: 5: Input/output error" >&2; exit 5; fi
    : > loaded ;;
  bootout) printf '1\n2\n3\n' > leaving; echo "Boot-out failed: 36: Operation now in progress" >&2; exit 36 ;;
esac
"#;

/// Machine with a home, a build to install, and stand-ins.
struct Machine {
    directory: TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { directory: tempfile::tempdir().unwrap() };
        for name in ["home", "bin", "state", "build", "run/systemd/system"] {
            fs::create_dir_all(machine.path(name)).unwrap();
        }
        machine.program("bin/systemctl", SYSTEMCTL);
        machine.program("bin/loginctl", LOGINCTL);
        machine.program("bin/launchctl", LAUNCHCTL);
        machine.program("bin/journalctl", "echo \"journalctl $*\" >> \"$(dirname \"$0\")/../state/calls\"\n");
        machine.program("bin/tail", "echo \"tail $*\" >> \"$(dirname \"$0\")/../state/calls\"\n");
        machine.build("1.0.0", 1);
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        crate::testing::program(&self.path(name), script);
    }

    /// Replaces the build to install by a build that reads documents of one version.
    fn build(&self, version: &str, documents: u32) {
        for name in ["agentd-keeper", "agentctl"] {
            self.program(&format!("build/{name}"), &format!("echo {name} {version}\n"));
        }
        let knows = compatibility(version, documents);
        let agentd = format!(
            "case $1 in --version) echo agentd {version};; compatibility) echo '{knows}';; \
                              man) echo .TH agentd 8;; esac\n"
        );
        self.program("build/agentd", &agentd);
    }

    fn host(&self) -> Host {
        Host {
            os: "linux",
            uid: 1000,
            user: "kim".into(),
            home: self.path("home"),
            search: format!("{}:/usr/bin:/bin", self.path("bin").display()).into(),
            root: self.directory.path().to_owned(),
        }
    }

    fn agentctl(&self, line: &str) -> Result<u8, Error> {
        self.agentctl_of(1000, line)
    }

    fn agentctl_of(&self, uid: u32, line: &str) -> Result<u8, Error> {
        self.agentctl_with(uid, &line.split(' ').collect::<Vec<_>>())
    }

    fn agentctl_with(&self, uid: u32, words: &[&str]) -> Result<u8, Error> {
        let cli = Cli::try_parse_from(["agentctl", "service"].iter().chain(words)).unwrap();
        let Command::Service(command) = cli.command else { panic!("{words:?}") };
        let client = Client::new(self.path("state/control.sock"));
        let context = Context {
            client,
            options: Vec::new(),
            starter: None,
            json: cli.global.json,
            form: crate::document::DocumentForm::Json,
            verbose: false,
            no_start: true,
        };
        crate::runtime().unwrap().block_on(on(&context, &Host { uid, ..self.host() }, &self.path("build"), command))
    }

    /// Returns the calls of the managers' programs since the last call of this function.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("state/calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("state/calls"));
        calls.lines().map(str::to_owned).collect()
    }

    /// Stores a session while no daemon runs.
    fn session(&self, id: &str, name: &str) {
        let directory = self.path("home/.local/state/agentd/sessions").join(id);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("session.json"), format!(r#"{{"spec":{{"name":"{name}"}}}}"#)).unwrap();
    }

    fn installed(&self, name: &str) -> String {
        fs::read_to_string(self.path("home/.local/bin").join(name)).unwrap_or_default()
    }

    /// Returns every file below the home.
    fn files(&self) -> Vec<String> {
        let (mut found, mut left) = (Vec::new(), vec![self.path("home")]);
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    left.push(path);
                } else {
                    found.push(path.strip_prefix(self.path("home")).unwrap().display().to_string());
                }
            }
        }
        found.sort();
        found
    }

    /// Starts a daemon that answers with the version in `state/answers`; each version has another pid.
    fn daemon(&self, unit: &str) {
        fs::write(self.path(&format!("state/active-{unit}")), "active").unwrap();
        fs::write(self.path("state/answers"), "agentd 1.0.0").unwrap();
        let listener = UnixListener::bind(self.path("state/control.sock")).unwrap();
        let answers = self.path("state/answers");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = String::new();
                BufReader::new(&stream).read_line(&mut request).unwrap();
                let state = answers.parent().unwrap();
                let said = fs::read_to_string(&answers).unwrap_or_default();
                let version = said.trim().trim_start_matches("agentd ");
                let pid = 1_000_000_000 + version.bytes().map(u32::from).sum::<u32>();
                let mut words = request.split(' ');
                let (method, address) = (words.next().unwrap(), words.next().unwrap());
                let path = address.split('?').next().unwrap();
                let called = route::find(method, path);
                let body = if called == Some(Route::Version) {
                    let knows = compatibility(version, 1);
                    format!(
                        r#"{{"version":"{version}","pid":{pid},"runtime_directory":"/r","state_directory":"/s","compatibility":{knows}}}"#
                    )
                } else if called == Some(Route::Stop) {
                    let id = route::session_in(path).unwrap();
                    fs::write(state.join("stopped"), id).unwrap();
                    session(id, "stopped")
                } else {
                    let kept = fs::read_to_string(state.join("sessions")).unwrap_or_default();
                    format!(r#"{{"sessions":[{kept}],"unreadable":[]}}"#)
                };
                let length = body.len();
                let kind = "content-type: application/json\r\nconnection: close";
                write!(stream, "HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
            }
        });
    }
}

/// Returns the view of a session in this phase.
fn session(id: &str, phase: &str) -> String {
    let time = "2026-01-01T00:00:00Z";
    let status = format!(
        r#"{{"phase":"{phase}","observed_generation":1,"launches":1,"last_seq":9,"updated":"{time}","conditions":[]}}"#
    );
    format!(r#"{{"id":"{id}","generation":1,"created":"{time}","spec":{{"directory":"/d"}},"status":{status}}}"#)
}

#[test]
fn a_drain_before_an_uninstall_stops_a_session_that_waits_for_its_restart() {
    let machine = Machine::new();
    machine.agentctl("install --no-linger").unwrap();
    machine.daemon("agentd.service");
    fs::write(machine.path("state/sessions"), session("kmdn0eq26qgf", "backing-off")).unwrap();
    assert_eq!(machine.agentctl("uninstall --drain").unwrap(), 0);
    assert_eq!(fs::read_to_string(machine.path("state/stopped")).unwrap(), "kmdn0eq26qgf");
}

#[test]
fn a_session_of_some_user_needs_the_users_name() {
    let machine = Machine::new();
    let result = machine.agentctl_of(0, "logs --manager systemd --system --session kmdn0eq26qgf");
    assert!(matches!(&result, Err(Error::Usage { hint, .. }) if hint.contains("--user")), "{result:?}");
    assert_eq!(machine.calls(), Vec::<String>::new());
}

fn compatibility(version: &str, documents: u32) -> String {
    format!(
        r#"{{"version":"{version}","keeper_protocols":[1],"session_documents":[{documents}],"trust_records":[1],"environments":[3]}}"#
    )
}

fn refused(result: Result<u8, Error>) -> ServiceError {
    match result {
        Err(Error::Service(error)) => error,
        other => panic!("{other:?}"),
    }
}

const UNITS: &str = "home/.config/systemd/user";

#[test]
fn an_install_puts_programs_and_units_starts_the_socket_and_a_second_one_changes_nothing() {
    let machine = Machine::new();
    assert_eq!(machine.agentctl("install --dry-run").unwrap(), 0);
    assert_eq!((machine.files(), machine.calls()), (Vec::new(), Vec::new()), "a dry run");
    assert_eq!(machine.agentctl("install --no-linger").unwrap(), 0);
    assert_eq!(
        machine.calls(),
        ["systemctl daemon-reload", "systemctl enable agentd.socket", "systemctl start agentd.socket"]
    );
    assert_eq!(machine.installed("agentd"), fs::read_to_string(machine.path("build/agentd")).unwrap());
    let mode = machine.path("home/.local/bin/agentd-keeper").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    let before = machine.files();
    assert!(!before.iter().any(|file| file.contains("/.")), "something is left of it: {before:?}");
    assert_eq!(machine.agentctl("install --no-linger").unwrap(), 0);
    assert_eq!((machine.files(), machine.calls()), (before, Vec::new()), "the second one");
    assert_eq!(machine.agentctl("status").unwrap(), exit::UNREACHABLE, "nothing runs");
}

#[test]
fn linger_is_enabled_only_where_it_was_agreed_to_and_a_refusal_leaves_the_rest_in_place() {
    let machine = Machine::new();
    machine.agentctl("install").unwrap();
    assert!(!machine.calls().iter().any(|call| call.starts_with("loginctl")), "nobody was asked");
    fs::write(machine.path("state/refuse-linger"), "").unwrap();
    let error = refused(machine.agentctl("install --linger"));
    assert!(matches!(&error, ServiceError::NoLinger { said, .. } if said.contains("Access denied")), "{error}");
    assert!(machine.path(UNITS).join("agentd.socket").exists());
    fs::remove_file(machine.path("state/refuse-linger")).unwrap();
    machine.calls();
    machine.agentctl("install --linger").unwrap();
    assert_eq!(machine.calls(), ["loginctl enable-linger kim"]);
    machine.agentctl("install --linger").unwrap();
    assert_eq!(machine.calls(), Vec::<String>::new(), "it is so already");
}

#[test]
fn a_step_that_fails_leaves_everything_as_it_was() {
    let machine = Machine::new();
    fs::write(machine.path("state/fail"), "start agentd.socket").unwrap();
    let error = refused(machine.agentctl("install --no-linger"));
    assert!(error.to_string().contains("every earlier step was undone"), "{error}");
    assert_eq!(machine.files(), Vec::<String>::new());
    let calls = machine.calls();
    assert_eq!(calls[calls.len() - 2..], ["systemctl disable agentd.socket", "systemctl daemon-reload"]);
    assert!(!machine.path("state/enabled-agentd.socket").exists());
}

#[test]
fn what_somebody_changed_is_not_written_over_unasked_and_drop_ins_stay() {
    let machine = Machine::new();
    machine.agentctl("install --no-linger").unwrap();
    let (unit, drop_in) =
        (machine.path(UNITS).join("agentd.service"), machine.path(UNITS).join("agentd.service.d/own.conf"));
    fs::create_dir_all(drop_in.parent().unwrap()).unwrap();
    fs::write(&drop_in, "[Service]\n").unwrap();
    fs::write(&unit, "# mine\n").unwrap();
    fs::write(machine.path("home/.local/bin/agentd-keeper"), "#!/bin/sh\necho something else\n").unwrap();
    let error = refused(machine.agentctl("install --no-linger"));
    let ServiceError::Foreign { paths } = &error else { panic!("{error}") };
    assert_eq!(paths.len(), 2, "{error}");
    assert_eq!(fs::read_to_string(&unit).unwrap(), "# mine\n");
    machine.agentctl("install --no-linger --force").unwrap();
    assert!(fs::read_to_string(&unit).unwrap().contains("ExecStart="));
    fs::write(&unit, "# mine\n").unwrap();
    machine.agentctl("uninstall").unwrap();
    assert_eq!(
        machine.files(),
        [".config/systemd/user/agentd.service", ".config/systemd/user/agentd.service.d/own.conf"]
    );
}

#[test]
fn an_upgrade_replaces_the_programs_restarts_agentd_and_waits_until_the_new_one_answers() {
    let machine = Machine::new();
    machine.agentctl("install --no-linger").unwrap();
    machine.daemon("agentd.service");
    machine.calls();
    machine.build("2.0.0", 1);
    assert_eq!(machine.agentctl("install --no-linger").unwrap(), 0);
    assert_eq!(machine.calls(), ["systemctl try-restart agentd.service"]);
    assert!(machine.installed("agentd").contains("2.0.0"));
    assert_eq!(machine.agentctl("status").unwrap(), 0);
}

#[test]
fn a_build_that_cannot_take_over_is_refused_before_anything_is_changed() {
    let machine = Machine::new();
    machine.agentctl("install --no-linger").unwrap();
    machine.build("2.0.0", 9);
    let error = refused(machine.agentctl("install --no-linger"));
    assert!(matches!(&error, ServiceError::CannotTakeOver { .. }), "what is installed wrote the documents: {error}");
    machine.daemon("agentd.service");
    let error = refused(machine.agentctl("install --no-linger --force"));
    assert!(matches!(&error, ServiceError::CannotTakeOver { reasons } if reasons.len() == 1), "{error}");
    assert!(machine.installed("agentd").contains("1.0.0"));
}

#[test]
fn an_upgrade_whose_daemon_does_not_start_brings_the_one_before_back() {
    let machine = Machine::new();
    machine.agentctl("install --no-linger").unwrap();
    machine.daemon("agentd.service");
    machine.calls();
    machine.build("2.0.0", 1);
    fs::write(machine.path("state/fail"), "try-restart agentd.service").unwrap();
    let error = refused(machine.agentctl("install --no-linger"));
    assert!(error.to_string().contains("every earlier step was undone"), "{error}");
    assert_eq!(machine.calls(), ["systemctl try-restart agentd.service", "systemctl restart agentd.service"]);
    assert!(machine.installed("agentd").contains("1.0.0"));
    assert_eq!(machine.agentctl("status").unwrap(), 0, "it runs again");
}

#[test]
fn uninstall_removes_what_was_installed_and_nothing_else() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("home/.local/bin")).unwrap();
    fs::write(machine.path("home/.local/bin/other"), "").unwrap();
    assert!(matches!(refused(machine.agentctl("uninstall")), ServiceError::NotInstalled { .. }));
    machine.agentctl("install --no-linger").unwrap();
    machine.calls();
    let before = machine.files();
    assert_eq!(machine.agentctl("uninstall --dry-run").unwrap(), 0);
    assert_eq!((machine.files(), machine.calls()), (before, Vec::new()), "a dry run");
    assert_eq!(machine.agentctl("uninstall").unwrap(), 0);
    assert_eq!(machine.files(), [".local/bin/other"]);
    assert!(!machine.path("home/.local/share/agentd").exists());
    let calls = machine.calls();
    assert_eq!(calls, ["systemctl stop agentd.socket", "systemctl disable agentd.socket", "systemctl daemon-reload"]);
}

#[test]
fn completion_scripts_and_man_pages_lie_where_shells_and_man_look_and_a_changed_one_is_kept() {
    let machine = Machine::new();
    machine.agentctl("install --no-linger").unwrap();
    let bash = ".local/share/bash-completion/completions/agentctl";
    let files = machine.files();
    for file in [
        bash,
        ".local/share/zsh/site-functions/_agentctl",
        ".config/fish/completions/agentctl.fish",
        ".local/share/nushell/vendor/autoload/agentctl.nu",
        ".local/share/elvish/lib/agentctl.elv",
        ".local/share/man/man1/agentctl.1",
        ".local/share/man/man1/agentctl-service-install.1",
        ".local/share/man/man8/agentd.8",
    ] {
        assert!(files.iter().any(|found| found == file), "{file}: {files:?}");
    }
    let path = machine.path("home").join(bash);
    let installed = fs::read_to_string(&path).unwrap();
    fs::write(&path, "# mine\n").unwrap();
    let error = refused(machine.agentctl("install --no-linger"));
    assert!(matches!(&error, ServiceError::Foreign { paths } if *paths == [path.clone()]), "{error}");
    machine.agentctl("install --no-linger --force").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), installed);
    // A script of another build is replaced, and agentd is not restarted for it.
    let record = machine.path("home/.local/share/agentd/installed.json");
    let known = fs::read_to_string(&record).unwrap();
    let digest = |text: &str| material::digest(text.as_bytes());
    fs::write(&record, known.replace(&digest(&installed), &digest("# older\n"))).unwrap();
    fs::write(&path, "# older\n").unwrap();
    machine.daemon("agentd.service");
    machine.calls();
    machine.agentctl("install --no-linger").unwrap();
    assert_eq!((fs::read_to_string(&path).unwrap(), machine.calls()), (installed, Vec::new()));
    fs::write(&path, "# mine\n").unwrap();
    machine.agentctl("uninstall").unwrap();
    assert_eq!(machine.files(), [bash]);
}

#[test]
fn an_administrators_completion_scripts_and_man_pages_are_for_every_user() {
    let machine = Machine::new();
    machine.agentctl_of(0, "install --manager systemd --system").unwrap();
    let files = [
        "bash-completion/completions/agentctl",
        "zsh/site-functions/_agentctl",
        "fish/vendor_completions.d/agentctl.fish",
        "nushell/vendor/autoload/agentctl.nu",
        "elvish/lib/agentctl.elv",
        "man/man1/agentctl-run.1",
        "man/man8/agentd.8",
    ];
    let exist = || files.map(|file| machine.path("usr/local/share").join(file).exists());
    assert_eq!(exist(), [true; 7]);
    machine.agentctl_of(0, "uninstall --manager systemd --system").unwrap();
    assert_eq!(exist(), [false; 7]);
}

#[test]
fn programs_go_where_one_says_and_later_installs_and_the_units_follow() {
    let machine = Machine::new();
    let chosen = machine.path("chosen for this");
    let given = chosen.to_str().unwrap();
    machine.agentctl_with(1000, &["install", "--no-linger", "--bin-dir", given]).unwrap();
    let unit = fs::read_to_string(machine.path(UNITS).join("agentd.service")).unwrap();
    assert!(unit.contains(&format!("ExecStart=\"{given}/agentd\" serve")), "{unit}");
    machine.build("1.0.1", 1);
    machine.agentctl("install --no-linger").unwrap();
    assert!(fs::read_to_string(chosen.join("agentd")).unwrap().contains("1.0.1"));
    assert!(!machine.path("home/.local/bin").exists());
    machine.agentctl("uninstall").unwrap();
    assert_eq!(fs::read_dir(chosen).unwrap().count(), 0);
}

#[test]
fn launchd_is_given_the_plist_with_the_home_in_it_and_told_to_load_and_to_forget_it() {
    let machine = Machine::new();
    assert_eq!(machine.agentctl("install --manager launchd").unwrap(), 0);
    let plist = machine.path("home/Library/LaunchAgents/dev.agentd.agentd.plist");
    let text = fs::read_to_string(&plist).unwrap();
    assert!(text.contains(&machine.path("home").display().to_string()) && !text.contains("@HOME@"), "{text}");
    let log = material::plist_value(&text, "StandardErrorPath").unwrap();
    assert!(Path::new(&log).parent().unwrap().is_dir());
    assert_eq!(machine.calls(), [format!("launchctl bootstrap gui/1000 {}", plist.display())]);
    assert_eq!(machine.agentctl("install --manager launchd").unwrap(), 0);
    assert_eq!(machine.calls(), Vec::<String>::new());
    // With the property list of an older build, the job is loaded again once it is gone and launchd is ready.
    let record = machine.path("home/.local/share/agentd/installed.json");
    let older = text.replace("<integer>10</integer>", "<integer>11</integer>");
    let known = fs::read_to_string(&record).unwrap();
    let digest = |text: &str| material::digest(text.as_bytes());
    fs::write(&record, known.replace(&digest(&text), &digest(&older))).unwrap();
    fs::write(&plist, older).unwrap();
    fs::write(machine.path("state/refuse"), "").unwrap();
    assert_eq!(machine.agentctl("install --manager launchd").unwrap(), 0);
    let (bootout, bootstrap) =
        ("launchctl bootout gui/1000/dev.agentd.agentd", format!("launchctl bootstrap gui/1000 {}", plist.display()));
    assert_eq!(machine.calls(), [bootout.to_owned(), bootstrap.clone(), bootstrap]);
    assert!(machine.path("state/loaded").exists() && !machine.path("state/leaving").exists());
    machine.agentctl("logs --manager launchd --lines 3").unwrap();
    assert_eq!(machine.calls(), [format!("tail -n 3 {log}")]);
    assert_eq!(machine.agentctl("uninstall --manager launchd").unwrap(), 0);
    assert_eq!(machine.calls(), ["launchctl bootout gui/1000/dev.agentd.agentd"]);
    assert!(!plist.exists());
}

#[test]
fn the_log_is_asked_of_the_journal_that_has_it() {
    let machine = Machine::new();
    machine.session("kmdn0eq26qgf", "tests");
    machine.agentctl("logs -n 5 --since -1h").unwrap();
    machine.agentctl("logs --follow --session kmdn0eq26qgf").unwrap();
    let calls = machine.calls();
    let asked: Vec<&String> = calls.iter().filter(|call| !call.contains("--output=cat")).collect();
    assert_eq!(
        asked,
        [
            "journalctl --lines=5 --since=-1h --user-unit=agentd.service --user-unit=agentd-session-*.service",
            "journalctl --follow AGENTD_SESSION=kmdn0eq26qgf + _SYSTEMD_USER_UNIT=agentd-session-kmdn0eq26qgf.service",
        ],
        "the users have no journals of their own"
    );
    machine.program("bin/journalctl", "echo \"journalctl $*\" >> \"$(dirname \"$0\")/../state/calls\"; echo line\n");
    machine.agentctl("logs").unwrap();
    let calls = machine.calls();
    assert_eq!(calls.last().unwrap(), "journalctl --user --unit=agentd.service --unit=agentd-session-*.service");
}

#[test]
fn the_log_of_a_session_is_asked_for_by_the_beginning_of_its_id_or_by_its_name_and_not_for_one_that_is_not_there() {
    let machine = Machine::new();
    machine.session("kmdn0eq26qgf", "tests");
    machine.session("kz00000000000", "other");
    let asked = |given: &str| {
        machine.calls();
        let result = machine.agentctl(&format!("logs --session {given}"));
        (result, machine.calls().iter().any(|call| call.contains("AGENTD_SESSION=kmdn0eq26qgf ")))
    };
    for given in ["kmdn0eq26qgf", "km", "tests"] {
        let (result, found) = asked(given);
        assert!(result.is_ok() && found, "{given}: {result:?}");
    }
    let (result, _) = asked("nothing");
    assert!(matches!(refused(result), ServiceError::NoSession { given } if given == "nothing"));
    assert_eq!(machine.calls(), Vec::<String>::new());
    let (result, _) = asked("k");
    assert!(
        matches!(&result, Err(Error::Client(ClientError::Ambiguous { candidates, .. })) if candidates.len() == 2),
        "{result:?}"
    );
}

#[test]
fn without_a_manager_it_says_so() {
    let machine = Machine::new();
    fs::remove_dir_all(machine.path("run")).unwrap();
    assert!(matches!(refused(machine.agentctl("install")), ServiceError::NoManager));
    assert!(matches!(refused(machine.agentctl("install --manager launchd --system")), ServiceError::NoTemplate));
    assert!(matches!(refused(machine.agentctl("install --manager systemd --system")), ServiceError::NotRoot));
}

#[test]
fn an_administrator_installs_the_template_for_a_named_user_upgrades_what_runs_and_takes_it_away() {
    let machine = Machine::new();
    let as_root = |line: &str| machine.agentctl_of(0, &format!("{line} --manager systemd --system"));
    assert!(matches!(refused(as_root("install --user no-such-user")), ServiceError::NoUser { .. }));
    let own = machine.path("run/user/0/agentd/control.sock");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, "").unwrap();
    assert!(matches!(refused(as_root("install --user root")), ServiceError::OwnAgentd { .. }));
    fs::remove_file(own).unwrap();

    assert_eq!(as_root("install --user root --linger").unwrap(), 0);
    let enable = ["enable", "start"].map(|verb| format!("systemctl {verb} agentd@root.socket"));
    let [enabled, started] = &enable;
    assert_eq!(machine.calls(), ["systemctl daemon-reload", enabled, started, "loginctl enable-linger root"]);
    let template = machine.path("etc/systemd/system/agentd@.service");
    for path in
        ["usr/local/bin/agentd-keeper", "etc/systemd/system/agentd@.socket", "etc/systemd/user/agentd-sessions.slice"]
    {
        assert!(machine.path(path).exists(), "{path}");
    }
    assert!(template.exists() && machine.files().is_empty(), "nothing is in a home: {:?}", machine.files());

    machine.daemon("agentd@root.service");
    machine.build("2.0.0", 1);
    assert_eq!(as_root("install").unwrap(), 0);
    assert_eq!(machine.calls(), ["systemctl try-restart agentd@root.service"]);
    assert_eq!(as_root("status --user root").unwrap(), 0);
    assert_eq!(as_root("status --user nobody").unwrap(), exit::UNREACHABLE);
    machine.agentctl_of(0, "logs --manager systemd --system --user root").unwrap();
    let own = "_SYSTEMD_UNIT=agentd@root.service + UNIT=agentd@root.service";
    let sessions = "_SYSTEMD_USER_SLICE=agentd-sessions.slice _UID=0";
    assert_eq!(machine.calls(), [format!("journalctl {own} + {sessions}")]);

    assert_eq!(as_root("uninstall --user root").unwrap(), 0);
    let calls = machine.calls();
    assert_eq!(calls[..2], ["systemctl stop agentd@root.socket", "systemctl stop agentd@root.service"], "{calls:?}");
    assert!(calls.contains(&"systemctl disable agentd@root.socket".to_owned()) && template.exists());
    assert_eq!(as_root("uninstall").unwrap(), 0);
    assert!(!template.exists() && !machine.path("usr/local/bin/agentd").exists());
}
