//! Sessions whose agent runs on a real engine, from the creation to the end of everything that an engine knows.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use agentd_api::Body;
use agentd_api::event::PlaceState;
use agentd_api::place::PlaceView;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, RestartPolicy, SessionSpec, SessionView};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::harness::container::{IMAGE, Podman};
use crate::harness::ctl::ctl;
use crate::harness::slurm::{Options, Slurm};
use crate::harness::sshd::{Far, Login};
use crate::harness::static_keeper::static_keeper;
use crate::harness::{Daemon, Session, paths, process, require, scripted_agent, until};

/// Starts a daemon with the place `farm`, whose keys are given as TOML.
pub(super) async fn daemon(place: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[places.farm]\n{place}\n"));
    daemon.run().await;
    daemon
}

pub(super) fn spec(daemon: &Daemon) -> SessionSpec {
    let place = Some("farm".to_owned());
    SessionSpec { place, restart: Some(RestartPolicy::OnFailure), ..daemon.scripted(&[]) }
}

pub(super) fn ssh(far: &Far, keeper: &str) -> String {
    let config = far.config().display().to_string();
    format!("kind = \"ssh\"\nhost = \"lab\"\nconfig = {config:?}\nkeeper = {keeper:?}")
}

pub(super) fn slurm(slurm: &Slurm) -> String {
    let (conf, keeper) = (slurm.conf().display().to_string(), paths::keeper());
    format!("kind = \"slurm\"\nkeeper = {keeper:?}\npoll = \"300ms\"\nenv = {{ SLURM_CONF = {conf:?} }}")
}

pub(super) fn placed(view: &SessionView) -> &PlaceView {
    view.status.place.as_ref().expect("the session has a place")
}

pub(super) fn condition(view: &SessionView, kind: ConditionType) -> &Condition {
    view.status.conditions.iter().find(|condition| condition.kind == kind).expect("the condition is there")
}

fn host(view: &SessionView) -> &str {
    &placed(view).host.as_ref().expect("the place told its host").host
}

/// Runs the life of a session up to its removal: prompts, a permission, a cancel, a killed daemon, a stop, and a resume
/// with the conversation.
pub(super) async fn whole_life(daemon: &mut Daemon, on: &str) {
    let session = daemon.session(&spec(daemon)).await;
    let view = session.view().await;
    assert_eq!((host(&view), placed(&view).state), (on, PlaceState::Running));
    assert_eq!(condition(&view, ConditionType::Placed).status, ConditionStatus::True);
    assert_eq!(session.turn("say hello").await.text, "hello");
    assert_eq!(session.turn("cwd").await.text, daemon.work().display().to_string());

    let accepted = session.prompt("ask").await;
    let asked = session.wait_for("a permission request", |view| !view.status.permissions.is_empty()).await;
    let path = format!("/permissions/{}", asked.status.permissions[0].id);
    session.post(&path, &json!({ "option": "yes" })).await.expect::<SessionView>(200);
    assert_eq!(session.end_of(&accepted).await.text, "chosen yes");

    let accepted = session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    daemon.kill9();
    daemon.run().await;
    let view = session.view().await;
    assert_eq!((view.status.phase, host(&view)), (Phase::Busy, on), "the agent outlives the daemon");
    session.post("/cancel", &json!({})).await;
    assert_eq!(session.end_of(&accepted).await.ended.stop_reason.as_deref(), Some("cancelled"));

    let environment = session.turn("env").await.text;
    assert!(environment.contains("\"HOME\":") && !environment.contains("SLURM_"), "{environment}");
    assert!(!environment.contains("CARGO_"), "the environment starts from nothing: {environment}");
    let (status, shown, error) = ctl(daemon, &["env", session.id.as_str()]).await.parts();
    assert!(status == Some(0) && shown.contains("HOME") && shown.contains("snapshot"), "{shown}{error}");

    session.stop().await;
    session.resume().await;
    let view = session.wait_for_phase(Phase::Idle).await;
    assert_eq!((view.status.launches, host(&view)), (2, on));
    let remembered = session.turn("remember").await.text;
    assert!(remembered.contains("say hello"), "the conversation continues: {remembered}");
    session.stop().await;
    let (status, _, error) = ctl(daemon, &["rm", session.id.as_str()]).await.parts();
    assert_eq!(status, Some(0), "{error}");
}

#[tokio::test]
async fn a_session_lives_on_another_machine_and_leaves_nothing_there() {
    for login in [Login::Root, Login::Ordinary] {
        let Some(far) = Far::boot(login, "").await else { return };
        if login == Login::Root {
            let mut daemon = daemon(&ssh(&far, paths::keeper())).await;
            whole_life(&mut daemon, "far").await;
        } else {
            // The checkout may be in a directory that only root can enter.
            let copied = |program: &Path| {
                let copy = far.home().join(program.file_name().unwrap());
                std::fs::copy(program, &copy).unwrap();
                std::fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
                copy.display().to_string()
            };
            let daemon = daemon(&ssh(&far, &copied(Path::new(paths::keeper())))).await;
            let command = Some(vec![copied(&scripted_agent())]);
            let session = daemon.session(&SessionSpec { command, directory: far.home(), ..spec(&daemon) }).await;
            assert_eq!(placed(&session.view().await).host.as_ref().map(|host| host.user.as_str()), Some(login.name()));
            assert_eq!(session.turn("cwd").await.text, far.home().display().to_string());
            session.stop().await;
            let session = daemon.create(&SessionSpec { directory: "/root".into(), ..spec(&daemon) }).await;
            let message = session.wait_for_phase(Phase::Failed).await.status.message.unwrap_or_default();
            assert!(message.contains("\"/root\"") && message.contains("Permission denied"), "{message}");
        }
        until("nothing is left on the machine", || far.left().is_empty()).await;
    }
}

#[tokio::test]
async fn a_session_lives_in_a_job_of_slurm_and_leaves_no_job() {
    let Some(slurm_) = Slurm::boot(Options::default()).await else { return };
    let place = format!("{}\noptions = [\"--nodelist=b\"]", slurm(&slurm_));
    let mut daemon = daemon(&place).await;
    whole_life(&mut daemon, "b").await;
    slurm_.empty().await;
    let own = |one: &String| one.contains("agentd-keeper") || one.contains("scripted-agent");
    assert!(!slurm_.left().iter().any(own), "{:?}", slurm_.left());
}

#[tokio::test]
async fn a_session_lives_in_a_container_and_leaves_no_container() {
    let Some(()) = require::podman() else { return };
    let Some(podman) = Podman::boot(&[]) else { return };
    let mut daemon = Daemon::prepare();
    // The scripted agent needs the C library of this machine.
    let shared = ["/usr", "/lib", "/lib64"].map(|path| format!("\"{path}:{path}:ro\""));
    let root = daemon.root().display().to_string();
    let programs = paths::programs().display().to_string();
    let place = format!(
        "kind = \"container\"\nengine = {:?}\nimage = {IMAGE:?}\nkeeper_file = {:?}\npoll = \"300ms\"\n\
         options = [\"--hostname=box\"]\nmounts = [{}, \"{root}:{root}\", \"{programs}:{programs}:ro\"]",
        podman.engine(),
        static_keeper(),
        shared.join(", "),
    );
    daemon.configure(|config| format!("{config}\n[places.farm]\n{place}\n"));
    daemon.run().await;
    whole_life(&mut daemon, "box").await;
    until("no container is left", || podman.containers().is_empty()).await;
}

/// Waits until the session waits in the queue, and returns its view.
async fn queued(session: &Session) -> SessionView {
    session.wait_for("the launch is queued", |view| placed_state(view) == Some(PlaceState::Queued)).await
}

fn placed_state(view: &SessionView) -> Option<PlaceState> {
    view.status.place.as_ref().map(|placed| placed.state)
}

#[tokio::test]
async fn a_queued_launch_has_the_engines_reason_and_is_cancelled_at_once() {
    let Some(slurm_) = Slurm::boot(Options::default()).await else { return };
    let place = format!("{}\nlicenses = [\"flexlm:1\"]", slurm(&slurm_));
    let daemon = daemon(&place).await;
    let holder = daemon.session(&spec(&daemon)).await;
    let waiting = daemon.create(&spec(&daemon)).await;
    let cancelled = daemon.create(&spec(&daemon)).await;
    let has_reason = |view: &SessionView| {
        view.status.place.as_ref().is_some_and(|placed| placed.reason.as_deref() == Some("Licenses"))
    };
    let view = waiting.wait_for("the launch waits for the licence", has_reason).await;
    assert_eq!((view.status.phase, placed(&view).state), (Phase::Waiting, PlaceState::Queued));
    assert!(placed(&view).job.is_some());
    let shown = condition(&view, ConditionType::Placed);
    assert_eq!((shown.status, shown.reason.as_str()), (ConditionStatus::False, "Queued"));

    queued(&cancelled).await;
    let view = cancelled.stop().await;
    assert_eq!(view.status.phase, Phase::Stopped);
    assert_eq!(condition(&view, ConditionType::Placed).reason, "Stopped");
    until("its job is gone", || !slurm_.jobs().contains(cancelled.id.as_str())).await;

    holder.stop().await;
    waiting.wait_for_phase(Phase::Idle).await;
    assert_eq!(waiting.turn("say mine").await.text, "mine");
    let states = waiting.journal().into_iter().filter_map(|event| match event.body {
        Body::PlaceChanged(changed) => Some(changed.state),
        _ => None,
    });
    let states: Vec<PlaceState> = states.collect();
    assert!(states.contains(&PlaceState::Queued) && states.contains(&PlaceState::Running), "{states:?}");
    waiting.stop().await;
    slurm_.empty().await;
}

/// Kills the process that this function finds for a session, and returns its pid.
async fn killed(what: &str, find: impl Fn() -> Option<u32>) -> u32 {
    let mut found = None;
    until(what, || {
        found = find();
        found.is_some()
    })
    .await;
    let pid = found.expect("the wait has found it");
    process::kill9(pid);
    pid
}

/// Returns the process of a launch whose command line has both texts.
fn process_of(name: &str, program: &str) -> Option<u32> {
    let pattern = format!("^{program} .*{name}");
    let output = Command::new("/usr/bin/pgrep").args(["--full", &pattern]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.lines().next()?.parse().ok()
}

#[tokio::test]
async fn a_killed_client_and_a_killed_keeper_leave_no_agent_and_the_session_starts_again() {
    let Some(slurm_) = Slurm::boot(Options::default()).await else { return };
    let daemon = daemon(&slurm(&slurm_)).await;
    let session = daemon.session(&spec(&daemon)).await;
    session.turn("say first").await;
    for (launches, program) in (1..).zip(["srun", "[^ ]*agentd-keeper hold"]) {
        let name = if program == "srun" { format!("{}-{launches}", session.id) } else { session.id.to_string() };
        killed(program, || process_of(&name, program)).await;
        let again = |view: &SessionView| view.status.phase == Phase::Idle && view.status.launches > launches;
        session.wait_for("the session runs again", again).await;
        let remembered = session.turn("remember").await.text;
        assert!(remembered.contains("say first"), "{program}: {remembered}");
    }
    session.stop().await;
    slurm_.empty().await;
}

/// Returns the names of the looks that are queued or run.
fn looks(slurm: &Slurm) -> Vec<String> {
    let jobs = slurm.jobs();
    let names = jobs.lines().filter_map(|job| job.split_whitespace().nth(1));
    names.filter(|name| name.starts_with("agentd-look-")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_look_of_a_killed_daemon_is_swept_and_that_of_another_daemon_is_not() {
    let Some(slurm_) = Slurm::boot(Options::default()).await else { return };
    // A foreign job holds the licence, so each look waits. Its name is that of another daemon's look.
    let foreign = "agentd-look-aaaaaaaaaaaa-1";
    let mut holder = slurm_.srun(0);
    holder.args(["--licenses=flexlm", "--job-name", foreign, "/bin/sleep", "1000"]);
    let mut holder = holder.spawn().unwrap();
    until("the holder runs", || slurm_.jobs().contains(&format!("{foreign} RUNNING"))).await;

    let mut daemon = daemon(&format!("{}\nlicenses = [\"flexlm:1\"]", slurm(&slurm_))).await;
    let client = daemon.client.clone();
    let check = tokio::spawn(async move { client.call("POST", "/v1/places/farm/check", "").await });
    until("the look is queued", || looks(&slurm_).len() == 2).await;
    let own = looks(&slurm_).into_iter().find(|name| name != foreign).unwrap();
    // As by the end of its unit: no process is left that could cancel the job.
    let left = process::of(daemon.root());
    check.abort();
    process::signal_each(&left, Signal::SIGSTOP);
    process::signal_each(&left, Signal::SIGKILL);
    daemon.kill9();
    process::gone(&left).await;
    assert!(looks(&slurm_).contains(&own), "the engine still has it: {}", slurm_.jobs());

    daemon.run().await;
    until("the look is swept", || !looks(&slurm_).contains(&own)).await;
    assert_eq!(looks(&slurm_), [foreign]);
    let stored = daemon.state().join("looks/farm");
    until("the look is forgotten", || std::fs::read_dir(&stored).unwrap().next().is_none()).await;
    holder.kill().unwrap();
    holder.wait().unwrap();
    slurm_.empty().await;
}

/// Stops the session, unless it has failed.
async fn over(session: &Session) {
    session.post("/stop", &json!({})).await;
    session.wait_for("the session is over", |view| view.status.phase.is_over()).await;
}

#[tokio::test]
async fn the_engine_ends_a_launch_and_the_session_has_its_reason() {
    let options =
        Options { node_timeout: Duration::from_secs(5), kill_wait: Duration::from_secs(2), ..Options::default() };
    let Some(mut slurm_) = Slurm::boot(options).await else { return };
    let place = format!("{}\nsilence = \"4s\"\noptions = [\"--nodelist=b\"]", slurm(&slurm_));
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    let job = placed(&session.wait_for("it has a job", |view| placed(view).job.is_some()).await).job.clone().unwrap();
    let scancel = slurm_.client("scancel").arg(&job).status().unwrap();
    assert!(scancel.success());
    let told = |view: &SessionView| {
        let message = view.status.message.as_deref().unwrap_or_default();
        view.status.launches > 1 || message.contains("CANCELLED")
    };
    session.wait_for("the session has the engine's reason, or runs again", told).await;
    over(&session).await;

    let lost = daemon.session(&spec(&daemon)).await;
    slurm_.kill_node("b");
    let noticed = |view: &SessionView| view.status.launches > 1 || view.status.phase == Phase::BackingOff;
    lost.wait_for("the loss of the node is noticed, and the session starts again", noticed).await;
    over(&lost).await;
    slurm_.start_node("b");
    slurm_.empty().await;
}

#[tokio::test]
async fn a_cut_network_ends_the_agent_and_the_session_starts_again_afterwards() {
    let Some(far) = Far::on_a_cable(Login::Root, "").await else { return };
    let place = format!("{}\nsilence = \"2s\"", ssh(&far, paths::keeper()));
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    session.turn("say first").await;
    far.machine().pull_cable();
    session.wait_for("the loss is noticed", |view| view.status.phase == Phase::BackingOff).await;
    until("the agent has ended there", || !far.left().iter().any(|one| one.contains("scripted-agent"))).await;
    far.machine().plug_cable();
    let again = |view: &SessionView| view.status.phase == Phase::Idle && view.status.launches > 1;
    session.wait_for("the session runs again", again).await;
    let remembered = session.turn("remember").await.text;
    assert!(remembered.contains("say first"), "{remembered}");
    assert!(
        session
            .journal()
            .iter()
            .any(|event| matches!(&event.body, Body::PlaceChanged(changed) if changed.state == PlaceState::Lost))
    );
    session.stop().await;
    until("nothing is left", || far.left().is_empty()).await;
}

#[tokio::test]
async fn a_place_that_is_not_reached_fails_the_launch_with_the_words_of_its_client() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let daemon = daemon(&ssh(&far, paths::keeper())).await;
    far.stop().await;
    let session = daemon.create(&spec(&daemon)).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let message = view.status.message.unwrap_or_default();
    assert!(message.contains("place \"farm\"") && message.contains("Connection refused"), "{message}");
}
