//! The life of a session on each engine with a real agent, its environment there, and the search for its secrets.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use agentd_api::environment::EnvironmentView;
use agentd_api::session::{PermissionPolicy, SessionSpec, SessionView};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::sessions;
use crate::harness::container::{IMAGE, Podman};
use crate::harness::ctl::ctl;
use crate::harness::machine::UID;
use crate::harness::planted::{Planted, Watch, found_below, found_in};
use crate::harness::slurm::{Options, Slurm};
use crate::harness::sshd::{Far, Login};
use crate::harness::static_keeper::static_keeper;
use crate::harness::{Daemon, Session, paths, process, require, until};
use crate::opencode::opencode;
use crate::private::as_user;
use crate::real_agent::Model;
use crate::secrets::private;

/// Variable that agentd, sshd and the engines have, and that no agent may get.
const CANARY: &str = "AGENTD_TEST_CANARY";

/// An engine that has booted.
pub(super) enum Engine {
    Ssh(Far),
    Slurm(Slurm),
    /// The second directory is the home directory in the container.
    Container(Podman, TempDir),
}

impl Engine {
    async fn ssh() -> Option<Self> {
        Far::boot(Login::Root, &format!("SetEnv {CANARY}=sshd\n")).await.map(Self::Ssh)
    }

    async fn slurm(has_cgroups: bool) -> Option<Self> {
        Slurm::boot(Options { has_cgroups, ..Options::default() }).await.map(Self::Slurm)
    }

    pub(super) fn container() -> Option<Self> {
        let podman = Podman::boot(&[])?;
        let home = tempfile::Builder::new().prefix("agentd-home-").tempdir().unwrap();
        Some(Self::Container(podman, home))
    }

    /// Returns the keys of the place. A container has the daemon's directory, these directories, and the programs of
    /// this machine with their C library.
    fn keys(&self, daemon: &Daemon, programs: &[&Path]) -> String {
        match self {
            Self::Ssh(far) => sessions::ssh(far, paths::keeper()),
            Self::Slurm(slurm) => format!("{}\noptions = [\"--nodelist=b\"]", sessions::slurm(slurm)),
            Self::Container(podman, home) => {
                let system = ["/usr:/usr:ro", "/usr/bin:/bin:ro", "/usr/lib:/lib:ro", "/lib64:/lib64:ro"];
                let mut mounts: Vec<String> = system.map(str::to_owned).to_vec();
                mounts.push(format!("{}:/root", home.path().display()));
                mounts.extend([daemon.root()].iter().chain(programs).map(|path| format!("{0}:{0}", path.display())));
                format!(
                    "kind = \"container\"\nengine = \"{}\"\nimage = {IMAGE:?}\nkeeper_file = \"{}\"\npoll = \"300ms\"\n\
                     options = [\"--hostname=box\", \"--env={CANARY}=podman\"]\nmounts = {mounts:?}",
                    podman.engine().display(),
                    static_keeper().display(),
                )
            }
        }
    }

    /// Returns the name of the host on which an agent runs.
    fn host(&self) -> &'static str {
        match self {
            Self::Ssh(_) => "far",
            Self::Slurm(_) => "b",
            Self::Container(..) => "box",
        }
    }

    /// Returns the home directory there, by its name there and by its name here.
    fn home(&self) -> (PathBuf, PathBuf) {
        match self {
            Self::Ssh(far) => (far.home(), far.home()),
            Self::Slurm(slurm) => (slurm.home(0), slurm.home(0)),
            Self::Container(_, home) => ("/root".into(), home.path().to_owned()),
        }
    }

    /// Returns all directories of the engine and of its users.
    fn directories(&self) -> Vec<PathBuf> {
        match self {
            Self::Ssh(far) => vec![far.root().to_owned()],
            Self::Slurm(slurm) => vec![slurm.root().to_owned()],
            Self::Container(podman, home) => vec![podman.root().to_owned(), home.path().to_owned()],
        }
    }

    /// Waits until the engine has no process, no job and no container of a session.
    pub(super) async fn empty(&self) {
        match self {
            Self::Ssh(far) => until("nothing is left on the machine", || far.left().is_empty()).await,
            Self::Slurm(slurm) => slurm.empty().await,
            Self::Container(podman, _) => until("no container is left", || podman.containers().is_empty()).await,
        }
    }

    /// Starts a daemon with this engine as the place `farm`. `more` is added to the configuration.
    pub(super) async fn daemon(&self, programs: &[&Path], more: impl FnOnce(&Daemon) -> String) -> Daemon {
        let mut daemon = Daemon::prepare();
        let (keys, more) = (self.keys(&daemon, programs), more(&daemon));
        daemon.configure(|config| format!("{config}\n[places.farm]\n{keys}\n{more}\n"));
        daemon.set_environment([("PATH", "/usr/bin:/bin"), (CANARY, "agentd")]);
        daemon.run().await;
        daemon
    }
}

fn placed(spec: SessionSpec) -> SessionSpec {
    SessionSpec { place: Some("farm".to_owned()), isolation: None, ..spec }
}

/// Allows the next request of the agent.
async fn allow(session: &Session) {
    let asked = session.wait_for("a permission request", |view| !view.status.permissions.is_empty()).await;
    let path = format!("/permissions/{}", asked.status.permissions[0].id);
    session.post(&path, &json!("allow")).await.expect::<SessionView>(200);
}

/// Runs opencode through the life of a session: a tool with its permission, a cancel, a stop, and a resume with the
/// conversation. After the removal nothing is left.
async fn opencode_lives_on(engine: Engine, program: &Path) {
    let model = Model::start("bash").await;
    let installed = fs::canonicalize(program).unwrap();
    // An npm package, beside the packages with its parts.
    let installed = installed.ancestors().find(|path| path.join("node_modules").exists()).unwrap_or(Path::new("/usr"));
    let parent = program.parent().unwrap();
    let daemon = engine.daemon(&[installed, parent], |_| String::new()).await;
    let agent = opencode(program, &model);
    let spec = SessionSpec { permissions: PermissionPolicy::Ask, ..placed(agent.spec(&daemon)) };
    let session = daemon.session(&spec).await;

    let accepted = session.prompt("run: echo the word is plum; uname -n > ran").await;
    allow(&session).await;
    assert_eq!(session.end_of(&accepted).await.text, "the tool ran");
    assert_eq!(fs::read_to_string(daemon.work().join("ran")).unwrap(), format!("{}\n", engine.host()));

    let accepted = session.prompt("take your time").await;
    model.heard("take your time").await;
    session.post("/cancel", &json!({})).await;
    assert_eq!(session.end_of(&accepted).await.ended.stop_reason.as_deref(), Some("cancelled"));
    model.release();

    session.stop().await;
    session.resume().await;
    let text = session.turn("which word was it?").await.text;
    assert!(text.contains("the word is plum"), "the conversation continues: {text}");
    session.stop().await;
    engine.empty().await;
    let (status, _, error) = ctl(&daemon, &["rm", session.id.as_str()]).await.parts();
    assert_eq!(status, Some(0), "{error}");
    until("only the daemon is left", || process::of(daemon.root()) == [daemon.pid()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_comes_through_its_life_on_another_machine() {
    let Some(program) = require::opencode() else { return };
    let Some(engine) = Engine::ssh().await else { return };
    opencode_lives_on(engine, &program).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_comes_through_its_life_in_jobs_of_slurm() {
    let Some(program) = require::opencode() else { return };
    let Some(engine) = Engine::slurm(false).await else { return };
    opencode_lives_on(engine, &program).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_comes_through_its_life_in_jobs_of_slurm_with_cgroups() {
    let Some(program) = require::opencode() else { return };
    let Some(engine) = Engine::slurm(true).await else { return };
    opencode_lives_on(engine, &program).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_comes_through_its_life_in_containers() {
    let Some(program) = require::opencode() else { return };
    let Some(engine) = Engine::container() else { return };
    opencode_lives_on(engine, &program).await;
}

/// Compares the environment of an agent with the description of agentd.
async fn environment_starts_from_nothing(engine: Engine) {
    let (there, here) = engine.home();
    fs::write(here.join(".profile"), "export EDITOR=far-ed\nexport FROM_PROFILE=dropped\n").unwrap();
    let daemon = engine.daemon(&[paths::programs()], |_| String::new()).await;
    let session = daemon.session(&placed(daemon.scripted(&[]))).await;
    let printed = session.turn("env").await.text;
    let agents: BTreeMap<String, String> = serde_json::from_str(&printed).unwrap();
    let view: EnvironmentView = daemon.client.get(&session.path("/environment?values=true")).await.expect(200);
    let told = |one: &agentd_api::environment::VariableView| {
        let value = one.value.as_ref().map(|value| String::from_utf8_lossy(&value.0).into_owned());
        (one.name.clone(), value.unwrap_or_default())
    };
    let reported: BTreeMap<String, String> = view.variables.iter().map(told).collect();
    assert_eq!(agents, reported);

    // The login shell of the place is captured there.
    assert_eq!(agents["HOME"], there.display().to_string());
    assert_eq!(agents["EDITOR"], "far-ed");
    assert!(!agents.contains_key("FROM_PROFILE"), "the whitelist drops it: {agents:?}");
    let foreign = ["SLURM_", "SSH_", "CONTAINER", "CARGO_", CANARY];
    let leaked = agents.keys().filter(|name| foreign.iter().any(|prefix| name.starts_with(prefix)));
    assert_eq!(leaked.collect::<Vec<_>>(), [""; 0]);
    for (name, value) in [("HOME", there.to_str().unwrap()), ("EDITOR", "far-ed")] {
        let (status, shown, error) = ctl(&daemon, &["env", session.id.as_str(), "--explain", name]).await.parts();
        assert_eq!(status, Some(0), "{error}");
        assert!(shown.contains(name) && shown.contains(value), "{shown}");
    }
    session.stop().await;
    engine.empty().await;
}

#[tokio::test]
async fn the_environment_on_another_machine_starts_from_nothing_and_is_explained() {
    let Some(engine) = Engine::ssh().await else { return };
    environment_starts_from_nothing(engine).await;
}

#[tokio::test]
async fn the_environment_in_a_job_of_slurm_starts_from_nothing_and_is_explained() {
    let Some(engine) = Engine::slurm(false).await else { return };
    environment_starts_from_nothing(engine).await;
}

#[tokio::test]
async fn the_environment_in_a_container_starts_from_nothing_and_is_explained() {
    let Some(engine) = Engine::container() else { return };
    environment_starts_from_nothing(engine).await;
}

/// The secrets of a session by their source: a file here, a command here, and the login shell there.
fn secrets() -> [Planted; 3] {
    [("FROM_FILE", "{}"), ("FROM_COMMAND", "a word {}"), ("HF_TOKEN", "hf_{}")]
        .map(|(name, shape)| Planted::new(name, shape))
}

/// Describes the processes with a secret in their arguments or in their environment. The agent is left out, because
/// the secrets are for its environment.
fn holders(planted: &[Planted]) -> Vec<String> {
    let holds = |pid: &u32| {
        ["environ", "cmdline"]
            .iter()
            .any(|file| !found_in(&fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default(), planted).is_empty())
    };
    let is_agent = |pid: u32| process::name(pid) == "scripted-agent";
    process::all().filter(|&pid| !is_agent(pid)).filter(holds).map(process::described).collect()
}

/// Returns the files with a secret, on both sides, apart from the sources of the secrets and the agent's own files.
fn leaks(engine: &Engine, daemon: &Daemon, planted: &[Planted]) -> Vec<String> {
    let sources = [daemon.root().join("file"), daemon.root().join("command"), engine.home().1.join(".profile")];
    let agents = daemon.root().join("conversation-");
    let is_source = |found: &String| {
        let is_of_agent = found.starts_with(&agents.display().to_string());
        is_of_agent || sources.iter().any(|file| found.starts_with(&format!("{}: ", file.display())))
    };
    let directories = [vec![daemon.root().to_owned()], engine.directories()].concat();
    directories.iter().flat_map(|directory| found_below(directory, planted)).filter(|found| !is_source(found)).collect()
}

/// Searches for the secrets of a session on both sides, while it runs and afterwards.
async fn secrets_are_nowhere_else(engine: Engine) {
    let planted = secrets();
    let profile = engine.home().1.join(".profile");
    private(&profile, &format!("export HF_TOKEN={}\n", planted[2].value));
    let programs = [paths::programs()];
    let daemon = engine
        .daemon(&programs, |daemon| {
            let root = daemon.root();
            private(&root.join("file"), &planted[0].value);
            private(&root.join("command"), &planted[1].value);
            let root = root.display();
            format!(
                "[secrets.FROM_FILE]\nfile = \"{root}/file\"\n\n[secrets.FROM_COMMAND]\n\
                 command = [\"cat\", \"{root}/command\"]\n\n[secrets.HF_TOKEN]\nsnapshot = \"HF_TOKEN\"\n"
            )
        })
        .await;
    let watch = Watch::begin(&planted);
    let session = daemon.session(&placed(daemon.scripted(&[]))).await;
    watch.has_seen_all().await;
    let printed = session.turn("env").await.text;
    assert_eq!(printed.matches("‹secret›").count(), planted.len(), "the agent has all of them: {printed}");
    assert_eq!(holders(&planted), [""; 0]);
    // The agent ends with its secrets, and a second launch gets them by the other role of the keeper.
    session.stop().await;
    session.resume().await;
    assert_eq!(holders(&planted), [""; 0]);
    let watched = watch.end();
    assert!(watched.found.is_empty(), "in arguments: {:?}", watched.found);
    assert!(watched.roles.contains("enter") && watched.roles.contains("place"), "{:?}", watched.roles);
    assert_eq!(leaks(&engine, &daemon, &planted), [""; 0], "while the agent runs");
    session.stop().await;
    engine.empty().await;
    assert_eq!(leaks(&engine, &daemon, &planted), [""; 0]);
    let view: Value = daemon.client.get(&session.path("")).await.expect(200);
    assert!(found_in(view.to_string().as_bytes(), &planted).is_empty(), "{view}");

    // A planted secret proves that the search finds secrets.
    private(&engine.directories()[0].join("planted"), &planted[1].value);
    assert_eq!(leaks(&engine, &daemon, &planted).len(), 1);
}

#[tokio::test]
async fn a_secret_is_on_another_machine_only_in_the_environment_of_the_agent() {
    let Some(engine) = Engine::ssh().await else { return };
    secrets_are_nowhere_else(engine).await;
}

#[tokio::test]
async fn a_secret_is_in_a_job_of_slurm_only_in_the_environment_of_the_agent() {
    let Some(engine) = Engine::slurm(false).await else { return };
    secrets_are_nowhere_else(engine).await;
}

#[tokio::test]
async fn a_secret_is_in_a_container_only_in_the_environment_of_the_agent() {
    let Some(engine) = Engine::container() else { return };
    secrets_are_nowhere_else(engine).await;
}

#[tokio::test]
async fn a_session_of_an_ordinary_user_lives_in_jobs_of_slurm_with_and_without_cgroups() {
    for has_cgroups in [false, true] {
        let Some(engine) = Engine::slurm(has_cgroups).await else { return };
        let mut daemon = Daemon::prepare();
        let keys = engine.keys(&daemon, &[]);
        daemon.configure(|config| format!("{config}\n[places.farm]\n{keys}\n"));
        let user = as_user(&mut daemon, UID);
        daemon.enter(user);
        daemon.run().await;
        let session = daemon.session(&placed(daemon.scripted(&[]))).await;
        let view = session.view().await;
        let host = view.status.place.and_then(|place| place.host).expect("the place told its host");
        assert_eq!((host.host.as_str(), host.uid), (engine.host(), UID));
        assert_eq!(session.turn("say first").await.text, "first");
        // A daemon of the agent, which has left its session and its parent.
        session.turn("daemonize").await;
        session.stop().await;
        session.resume().await;
        assert!(session.turn("remember").await.text.contains("say first"), "the conversation continues");
        session.stop().await;
        engine.empty().await;
    }
}
