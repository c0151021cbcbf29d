//! Scripts of directories. A script never runs if its content is not approved, or if other users can write or replace
//! it.
//!
//! Each script would create a canary file. If a launch is refused and the file does not exist, the script did not run.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentd_api::scripts::{ScriptList, ScriptState};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase};
use agentd_api::{Code, Problem};
use serde_json::json;

use crate::harness::client::in_query;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, paths};

/// A directory with a script, and the canary file that the script creates.
struct Yard<'a> {
    daemon: &'a Daemon,
    directory: PathBuf,
}

impl<'a> Yard<'a> {
    fn new(daemon: &'a Daemon, name: &str) -> Self {
        let directory = daemon.work().join(name);
        fs::create_dir(&directory).unwrap();
        Self { daemon, directory }
    }

    fn script(&self) -> PathBuf {
        self.directory.join(".agentd-env.sh")
    }

    fn canary(&self) -> PathBuf {
        self.directory.join("canary")
    }

    /// Returns a script whose canary contains this word.
    fn text(&self, word: &str) -> String {
        format!("echo {word} >>{}\nexport FROM_SCRIPT={word}\n", quoted(self.canary()))
    }

    fn write(&self, word: &str) {
        write(&self.script(), &self.text(word));
    }

    async fn allow(&self) -> ScriptList {
        let body = json!({ "directory": self.directory });
        self.daemon.client.post("/v1/scripts/allow", &body).await.expect(200)
    }

    async fn listed(&self, query: &str) -> ScriptList {
        let path = format!("/v1/scripts?directory={}{query}", in_query(&self.directory));
        self.daemon.client.get(&path).await.expect(200)
    }

    async fn state(&self) -> ScriptState {
        self.listed("").await.scripts[0].state
    }

    /// Launches a session in the directory. Asserts that its environment cannot be built and no script ran.
    async fn refused(&self) -> Condition {
        let before = fs::read(self.canary()).unwrap_or_default();
        let mut spec = self.daemon.scripted(&[]);
        spec.directory.clone_from(&self.directory);
        let session = self.daemon.create(&spec).await;
        let view = session.wait_for_phase(Phase::Failed).await;
        assert_eq!(fs::read(self.canary()).unwrap_or_default(), before, "the script ran");
        let condition = view.status.conditions.into_iter().find(|one| one.kind == ConditionType::EnvironmentReady);
        let condition = condition.expect("the environment was not made, and a condition says so");
        assert_eq!(
            (condition.status, condition.reason.as_str()),
            (ConditionStatus::False, "ScriptNotApproved"),
            "{condition:?}"
        );
        let command = format!("`agentctl env allow {}`", quoted(&self.directory));
        assert!(condition.message.contains(&command), "{}", condition.message);
        condition
    }

    /// Launches a session in the directory. Asserts that its script ran.
    async fn runs(&self, word: &str) {
        let mut spec = self.daemon.scripted(&[]);
        spec.directory.clone_from(&self.directory);
        let session = self.daemon.session(&spec).await;
        let text = session.turn("env").await.text;
        assert!(text.contains(&format!("\"FROM_SCRIPT\":\"{word}\"")), "{text}");
        session.stop().await;
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    mode(path, 0o644);
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Gives the file to a group without members, which only root can do. Returns whether it succeeded.
fn with_foreign_group(path: &Path) -> bool {
    std::os::unix::fs::chown(path, None, Some(4711)).is_ok()
}

#[tokio::test]
async fn a_script_runs_when_it_was_approved_and_not_before_nor_changed_nor_denied() {
    let daemon = Daemon::start().await;
    let yard = Yard::new(&daemon, "yard");
    yard.write("first");
    assert!(yard.refused().await.message.contains("has not been approved"));
    let list = yard.allow().await;
    assert_eq!(list.scripts[0].state, ScriptState::Approved);
    assert!(list.scripts[0].decided.is_some());
    yard.runs("first").await;

    yard.write("second");
    assert_eq!(yard.state().await, ScriptState::Changed);
    assert!(yard.refused().await.message.contains("has changed since it was approved"));
    let changed = yard.listed("&diff=true").await.scripts.remove(0);
    let diff = changed.diff.expect("what was approved is kept");
    for line in ["\n-export FROM_SCRIPT=first\n", "\n+export FROM_SCRIPT=second\n"] {
        assert!(diff.contains(line), "{diff}");
    }
    yard.allow().await;
    yard.runs("second").await;

    let body = json!({ "directory": yard.directory });
    let denied: ScriptList = daemon.client.post("/v1/scripts/deny", &body).await.expect(200);
    assert_eq!(denied.scripts[0].state, ScriptState::Denied);
    assert!(yard.refused().await.message.contains("was denied"));
    assert_eq!(fs::read_to_string(yard.canary()).unwrap(), "first\nsecond\n");
}

#[tokio::test]
async fn a_symlink_to_what_was_not_approved_never_runs_nor_one_that_was_swapped_since() {
    let daemon = Daemon::start().await;
    let (yard, other) = (Yard::new(&daemon, "yard"), Yard::new(&daemon, "other"));
    let (target, swapped) = (daemon.root().join("target.sh"), daemon.root().join("swapped.sh"));
    write(&target, &yard.text("target"));
    write(&swapped, &yard.text("swapped"));
    symlink(&target, yard.script()).unwrap();
    yard.refused().await;
    let list = yard.allow().await;
    assert_eq!(list.scripts[0].target.as_deref(), Some(target.canonicalize().unwrap().as_path()));
    yard.runs("target").await;

    fs::remove_file(yard.script()).unwrap();
    symlink(&swapped, yard.script()).unwrap();
    assert_eq!(yard.state().await, ScriptState::Changed);
    yard.refused().await;

    // The approval of another directory's script does not hold for this directory.
    write(&other.script(), &yard.text("other"));
    other.allow().await;
    fs::remove_file(yard.script()).unwrap();
    symlink(other.script(), yard.script()).unwrap();
    yard.refused().await;
    assert_eq!(fs::read_to_string(yard.canary()).unwrap(), "target\n");
}

#[tokio::test]
async fn a_script_that_others_can_write_or_replace_never_runs_approved_or_not() {
    let daemon = Daemon::start().await;
    let yard = Yard::new(&daemon, "yard");
    yard.write("script");
    for approved in [false, true] {
        for bits in [0o666, 0o664, 0o646] {
            mode(&yard.script(), bits);
            if bits == 0o664 && !with_foreign_group(&yard.script()) {
                continue; // its group is the user's own
            }
            assert!(yard.refused().await.message.contains("can be written by others"), "{bits:o}");
        }
        mode(&yard.script(), 0o644);
        for (directory, bits) in [(&yard.directory, 0o777), (&yard.directory, 0o775), (&daemon.work(), 0o777)] {
            mode(directory, bits);
            if bits == 0o775 && !with_foreign_group(directory) {
                mode(directory, 0o755);
                continue;
            }
            let condition = yard.refused().await;
            assert!(condition.message.contains("could replace"), "{}", condition.message);
            let refused = yard.listed("").await.scripts.remove(0);
            assert_eq!((refused.state, refused.digest), (ScriptState::Refused, None));
            let allow = daemon.client.post("/v1/scripts/allow", &json!({ "directory": yard.directory })).await;
            assert_eq!(allow.problem().code, Code::InvalidRequest);
            mode(directory, 0o755);
        }
        assert!(!yard.canary().exists());
        if !approved {
            assert_eq!(yard.state().await, ScriptState::NotApproved, "a refused approval leaves none");
            yard.allow().await;
        }
    }
    // In a sticky directory, only the owner of the script and the owner of the directory can replace the script.
    mode(&daemon.work(), 0o1777);
    yard.runs("script").await;
}

#[tokio::test]
async fn what_has_changed_since_it_was_shown_is_not_approved() {
    let daemon = Daemon::start().await;
    let yard = Yard::new(&daemon, "yard");
    yard.write("shown");
    let shown = yard.listed("&diff=true").await.scripts.remove(0);
    assert_eq!(shown.content, Some(yard.text("shown")));
    yard.write("swapped");
    let body = json!({ "directory": yard.directory, "shown": { shown.path.display().to_string(): shown.digest } });
    let problem: Problem = daemon.client.post("/v1/scripts/allow", &body).await.problem();
    assert_eq!(problem.code, Code::ScriptChanged);
    yard.refused().await;
    yard.write("shown");
    daemon.client.post("/v1/scripts/allow", &body).await.expect::<ScriptList>(200);
    yard.runs("shown").await;
}

#[tokio::test]
async fn approvals_outlive_the_daemon_and_what_was_approved_is_for_its_owner_alone() {
    let mut daemon = Daemon::start().await;
    let directory = Yard::new(&daemon, "yard").directory;
    let script = directory.join(".agentd-env.sh");
    write(&script, "export FROM_SCRIPT=kept\n");
    Yard { daemon: &daemon, directory: directory.clone() }.allow().await;
    daemon.kill9();
    daemon.run().await;
    let yard = Yard { daemon: &daemon, directory };
    yard.runs("kept").await;
    let contents: Vec<PathBuf> =
        fs::read_dir(daemon.state().join("approved")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(contents.len(), 1);
    assert_eq!(fs::metadata(&contents[0]).unwrap().permissions().mode() & 0o777, 0o600);
    write(&script, "export FROM_SCRIPT=changed\n");
    let diff = yard.listed("&diff=true").await.scripts.remove(0).diff.unwrap();
    assert!(diff.contains("-export FROM_SCRIPT=kept"), "{diff}");
}

/// Runs `agentctl` with this daemon, without a terminal.
fn agentctl(daemon: &Daemon, args: &[&str]) -> (i32, String, String) {
    let program = paths::agentctl();
    let output = Command::new(program)
        .arg("--socket")
        .arg(daemon.client.socket())
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("agentctl can be executed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("it ended by itself"), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn env_allow_shows_what_it_asks_about_and_approves_nothing_without_an_answer() {
    let daemon = Daemon::start().await;
    let yard = Yard::new(&daemon, "yard");
    let directory = yard.directory.display().to_string();
    let (status, _, stderr) = agentctl(&daemon, &["env", "allow", &directory]);
    assert_eq!(status, 1);
    assert!(stderr.contains("there is no script to approve"), "{stderr}");

    write(&yard.script(), "export FROM_SCRIPT=one\n. ./lib.sh\n");
    write(&yard.directory.join("lib.sh"), "");
    let (status, stdout, stderr) = agentctl(&daemon, &["env", "allow", &directory]);
    assert_eq!(status, 1, "{stderr}");
    assert!(stdout.contains("export FROM_SCRIPT=one\n. ./lib.sh\n"), "the whole script: {stdout}");
    assert!(stderr.contains("--yes"), "{stderr}");
    assert_eq!(yard.state().await, ScriptState::NotApproved);

    let (status, stdout, stderr) = agentctl(&daemon, &["env", "allow", "--yes", &directory]);
    assert_eq!(status, 0, "{stderr}");
    let note = format!(".agentd-env.sh:2 sources ./lib.sh ({directory}/lib.sh): not covered by the approval");
    assert!(stdout.contains(&note), "{stdout}");
    yard.runs("one").await;

    write(&yard.script(), "export FROM_SCRIPT=two\n. ./lib.sh\n");
    let (status, stdout, _) = agentctl(&daemon, &["env", "allow", "--yes", &directory]);
    assert_eq!(status, 0);
    assert!(stdout.contains("\n-export FROM_SCRIPT=one\n+export FROM_SCRIPT=two\n"), "only what changed: {stdout}");
    yard.runs("two").await;

    let digest = yard.listed("").await.scripts[0].digest.clone().unwrap();
    let (status, stdout, _) = agentctl(&daemon, &["env", "scripts", &directory]);
    assert_eq!(status, 0);
    assert!(stdout.contains("approved") && stdout.contains(&digest[..12]) && stdout.contains(&note), "{stdout}");
    let (status, stdout, _) = agentctl(&daemon, &["env", "deny", &directory]);
    assert!(status == 0 && stdout.contains("denied"), "{stdout}");
    yard.refused().await;
}

#[tokio::test]
async fn a_script_listed_by_its_own_path_is_approved_with_the_directory_too() {
    let mut daemon = Daemon::prepare();
    let shared = daemon.root().join("shared.sh");
    daemon.configure(|config| {
        let scripts = format!("[\"{{cwd}}/.caco-env.sh\", \"{}\"]", shared.display());
        format!(
            "{config}\n[[environment.providers]]\nplugin = \"snapshot\"\n\
             [[environment.providers]]\nplugin = \"env-script\"\n\
             settings = {{ scripts = {scripts} }}\n\
             [plugins.env-script]\ngrant = {{ script = [\"{{cwd}}/*\", \"{}\"] }}\n",
            shared.display()
        )
    });
    daemon.run().await;
    let yard = Yard::new(&daemon, "yard");
    write(&shared, &yard.text("shared"));
    yard.refused().await;
    let list = yard.allow().await;
    let paths: Vec<&Path> = list.scripts.iter().map(|script| script.path.as_path()).collect();
    assert_eq!(paths, [shared.canonicalize().unwrap().as_path()]);
    yard.runs("shared").await;
    write(&yard.directory.join(".caco-env.sh"), "export FROM_SCRIPT=named\n");
    let condition = yard.refused().await;
    assert!(condition.message.contains(".caco-env.sh"), "{}", condition.message);
}

#[tokio::test]
async fn an_approved_script_knows_its_own_name_and_finds_what_lies_beside_it() {
    let mut daemon = Daemon::prepare();
    let beside = daemon.root().join("shared place");
    fs::create_dir(&beside).unwrap();
    let shared = beside.join("env.sh");
    daemon.configure(|config| {
        let shared = shared.display();
        let providers =
            "[[environment.providers]]\nplugin = \"snapshot\"\n[[environment.providers]]\nplugin = \"env-script\"\n";
        let settings = format!("settings = {{ scripts = [\"{shared}\"] }}\n");
        let grant = format!("[plugins.env-script]\ngrant = {{ script = [\"{shared}\"] }}\n");
        format!("{config}\n{providers}{settings}{grant}")
    });
    daemon.run().await;
    let place = beside.canonicalize().unwrap();
    let here = "\"$(dirname \"${BASH_SOURCE[0]}\")";
    let bash = format!("source {here}/lib.sh\"\nexport PLACE=\"$(cd {here}/..\" && pwd)\"\n");
    let mut scripts = vec![("", bash, place.parent().unwrap().to_owned())];
    if Path::new("/bin/zsh").exists() {
        let zsh = "source \"${0:A:h}/lib.sh\"\nexport PLACE=${${(%):-%x}:h}\n".to_owned();
        scripts.push(("#!/bin/zsh\n", zsh, place.clone()));
    }
    if Path::new("/usr/bin/fish").exists() {
        let fish = "source (status dirname)/lib.fish\nset -gx PLACE (status dirname)\n".to_owned();
        scripts.push(("#!/usr/bin/fish\n", fish, place.clone()));
    }
    if Path::new("/usr/bin/tcsh").exists() {
        // tcsh does not report a script's path to the script, and runs a copy of the script.
        let tcsh = format!("source {}\nsetenv PLACE none\n", quoted(beside.join("lib.csh")));
        scripts.push(("#!/usr/bin/tcsh -f\n", tcsh, PathBuf::from("none")));
    }
    write(&beside.join("lib.sh"), "export FROM_SCRIPT=beside\n");
    write(&beside.join("lib.fish"), "set -gx FROM_SCRIPT beside\n");
    write(&beside.join("lib.csh"), "setenv FROM_SCRIPT beside\n");
    let yard = Yard::new(&daemon, "yard");
    for (first, text, expected) in scripts {
        write(&shared, &format!("{first}{text}"));
        yard.allow().await;
        let mut spec = daemon.scripted(&[]);
        spec.directory.clone_from(&yard.directory);
        let session = daemon.session(&spec).await;
        let environment = session.turn("env").await.text;
        assert!(environment.contains("\"FROM_SCRIPT\":\"beside\""), "{text}: {environment}");
        assert!(environment.contains(&format!("\"PLACE\":\"{}\"", expected.display())), "{text}: {environment}");
        session.stop().await;
    }
}

#[tokio::test]
async fn a_sessions_own_script_runs_as_it_was_given_and_another_only_when_it_is_approved() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some("export FROM_SCRIPT=given\n".to_owned());
    let session = daemon.session(&spec).await;
    let has = async |word: &str| {
        let environment = session.turn("env").await.text;
        assert!(environment.contains(&format!("\"FROM_SCRIPT\":\"{word}\"")), "{environment}");
    };
    has("given").await;
    session.stop().await;

    // Any process in a session of this user can write to this directory.
    let (script, canary) = (session.directory().join("env-setup.sh"), daemon.root().join("canary"));
    write(&script, &format!("touch {}\nexport FROM_SCRIPT=written\n", quoted(&canary)));
    daemon.client.call("POST", &session.path("/resume?wait=60"), "").await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert!(!canary.exists(), "it ran");
    let refused = view.status.conditions.into_iter().find(|one| one.kind == ConditionType::EnvironmentReady).unwrap();
    assert_eq!(refused.reason, "ScriptNotApproved", "{refused:?}");
    let script = script.canonicalize().unwrap();
    let command = format!("agentctl env allow {}", quoted(&script));
    assert!(refused.message.contains(&command), "{}", refused.message);

    let (status, _, stderr) = agentctl(&daemon, &["env", "allow", "--yes", &script.display().to_string()]);
    assert_eq!(status, 0, "{stderr}");
    session.resume().await;
    has("written").await;
    assert!(canary.exists());
    session.stop().await;
    // A script that was given with the session is approved, regardless of other approvals.
    write(&script, "export FROM_SCRIPT=given\n");
    session.resume().await;
    has("given").await;
}
