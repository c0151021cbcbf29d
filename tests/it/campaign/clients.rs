//! Clients of the campaign. They send prompts, cancel turns, answer questions, change specifications, stop and resume
//! sessions, read events, and leave.
//!
//! The random pauses produce the load. No client uses a pause to wait for a condition.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use agentd_api::session::{Phase, SessionView};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::watch;

use super::history::{Answer, EXITS, Seen, What};
use super::subject::Subject;
use crate::harness::paths;
use crate::harness::random::Random;

/// Maximum time in which a keeper must end on a busy machine.
const ENDS: Duration = Duration::from_secs(30);
/// Maximum time for which a reader waits for a record before it reconnects. A session at rest has no new records.
const READS: Duration = Duration::from_secs(10);
/// Maximum run time of an `agentctl` before the test kills it. Most wait for a turn, and the agent may be stopped
/// meanwhile.
const CTL_LIMIT: Duration = Duration::from_secs(20);

async fn pause(random: &mut Random, longest_ms: u64) {
    tokio::time::sleep(Duration::from_millis(random.below(longest_ms))).await;
}

/// Sends prompts, cancels turns, answers questions and changes the specification until `over` is true.
pub(crate) async fn talk(subject: Arc<Subject>, mut random: Random, over: watch::Receiver<bool>) {
    let mut last = None;
    while !*over.borrow() {
        match random.below(20) {
            0..12 => {
                let (text, name) = (prompt(&mut random), subject.name());
                let text = format!("{text}\n{name}");
                let key = (random.below(2) == 0).then(|| name.clone());
                last = subject.prompt(text, key, || *over.borrow()).await.or(last);
            }
            18..20 => subject.change(subject.name()).await,
            12..15 => {
                let turn = last.clone().filter(|_| random.below(2) == 0);
                subject.cancel(turn).await;
            }
            _ => {
                if let Some(view) = subject.view().await {
                    answer(&subject, &view, &mut random).await;
                }
            }
        }
        pause(&mut random, 250).await;
    }
}

/// Returns a random instruction for the agent, the first line of a prompt. The second line is the prompt's name in the
/// session.
fn prompt(random: &mut Random) -> String {
    match random.below(18) {
        // The agent ends by itself during its turn.
        17 => format!("exit {EXITS}"),
        // The agent forgets its conversation. The next prompt then fails, and the daemon restarts the agent.
        16 => "lose".to_owned(),
        0 => "error".to_owned(),
        1 => "hang".to_owned(),
        2..4 => "ask".to_owned(),
        4 => "setsid-child".to_owned(),
        5..8 => "count 3 0".to_owned(),
        // This turn lasts longer than most daemons live.
        8 => "count 300 10".to_owned(),
        _ => format!("count {} {}", 1 + random.below(40), random.below(12)),
    }
}

/// Answers each open question with one of its options.
async fn answer(subject: &Subject, view: &SessionView, random: &mut Random) {
    for question in &view.status.permissions {
        let place = usize::try_from(random.below(question.options.len() as u64)).expect("there are few");
        subject.permit(question.id.to_string(), question.options[place].id.clone()).await;
    }
}

/// Until `over` is true, stops the session at random moments, and resumes it after each end, also after a failure.
pub(crate) async fn own(subject: Arc<Subject>, mut random: Random, over: watch::Receiver<bool>, ctl: Arc<Ctl>) {
    while !*over.borrow() {
        pause(&mut random, 2500).await;
        let alone = subject.life.lock().await;
        let Some(view) = subject.view().await else { continue };
        if is_over(&view) {
            resume(&subject, &mut random, &ctl).await;
        } else if random.below(3) == 0 {
            stop(&subject, &mut random, &ctl).await;
        }
        drop(alone);
    }
}

/// Whether the session has ended, and only a client can start it again.
pub(crate) fn is_over(view: &SessionView) -> bool {
    matches!(view.status.phase, Phase::Stopped | Phase::Failed)
}

async fn stop(subject: &Subject, random: &mut Random, ctl: &Ctl) {
    let ended = match random.below(4) {
        0 => matches!(ctl.stop(subject).await, Answer::Printed(_)),
        1 => {
            subject.stop("").await;
            false
        }
        _ => matches!(subject.stop("?wait=20").await, Answer::View { phase: Phase::Stopped, .. }),
    };
    if ended {
        none_lives(subject).await;
    }
}

/// Checks after a completed stop that no agent is left, and that the keeper ends soon.
pub(crate) async fn none_lives(subject: &Subject) {
    let (agents, marked) = (subject.agents(), subject.marked());
    if !(agents.is_empty() && marked.is_empty()) {
        let what = format!("the session is stopped, and its agents {agents:?} live, or others of its mark {marked:?}");
        subject.witness("nothing is left of a stopped session", what);
    }
    let give_up = Instant::now() + ENDS;
    while !subject.keepers().is_empty() {
        if Instant::now() > give_up {
            let what = format!("the session is stopped, and its keeper has not ended within {ENDS:?}");
            return subject.witness("nothing is left of a stopped session", what);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn resume(subject: &Subject, random: &mut Random, ctl: &Ctl) {
    match random.below(4) {
        0 => drop(ctl.resume(subject).await),
        1 => drop(subject.resume("").await),
        _ => drop(subject.resume("?wait=20").await),
    }
}

/// Reads the session's events as the client `place`. The client leaves after some records, and comes back with its
/// cursor until it has seen `target`.
pub(crate) async fn follow(
    subject: Arc<Subject>,
    place: usize,
    mut random: Random,
    mut target: watch::Receiver<Option<u64>>,
) {
    let mut cursor = 0;
    loop {
        let at_target =
            |target: &watch::Receiver<Option<u64>>, cursor| target.borrow().is_some_and(|seq| cursor >= seq);
        if at_target(&target, cursor) {
            return;
        }
        let Some(mut events) = subject.client.try_events(subject.id.as_str(), cursor, random.below(2) == 0).await
        else {
            // No daemon listens. The reader tries again after a while, as a real client would.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        for _ in 0..=random.below(400) {
            let next = tokio::select! {
                event = tokio::time::timeout(READS, events.next()) => event.unwrap_or_default(),
                changed = target.changed() => {
                    changed.expect("the campaign outlives its clients");
                    if at_target(&target, cursor) {
                        return;
                    }
                    continue;
                }
            };
            let Some(event) = next else { break };
            cursor = event.seq;
            subject.record().streams[place].push(Seen::of(&event));
            if at_target(&target, cursor) {
                return;
            }
        }
    }
}

/// Runs `agentctl` with the socket of one daemon.
pub(crate) struct Ctl {
    root: std::path::PathBuf,
    socket: std::path::PathBuf,
}

impl Ctl {
    pub(crate) fn new(root: &std::path::Path, socket: &std::path::Path) -> Self {
        Self { root: root.to_owned(), socket: socket.to_owned() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(paths::agentctl());
        command
            .arg("--socket")
            .arg(&self.socket)
            .args(arguments)
            .env_clear()
            .env("HOME", self.root.join("home"))
            .env("XDG_RUNTIME_DIR", self.root.join("run"))
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, subject: &Subject, what: What, arguments: &[&str]) -> Answer {
        let from = SystemTime::now();
        let output = tokio::time::timeout(CTL_LIMIT, self.command(arguments).output()).await;
        let answer = match output {
            Err(_) => Answer::Cut,
            Ok(output) => {
                let output = output.expect("agentctl can be executed");
                match output.status.code() {
                    Some(0) => Answer::Printed(String::from_utf8(output.stdout).expect("what it prints is text")),
                    Some(4) => Answer::Refused(4),
                    Some(130) => Answer::Cancelled,
                    // The turn or the launch failed, or no daemon listened.
                    Some(1 | 3) => Answer::Failed(1),
                    _ => {
                        subject.witness("agentctl tells the truth", format!("{arguments:?} ended: {}", output.status));
                        Answer::Failed(0)
                    }
                }
            }
        };
        subject.note(from, what, answer.clone());
        answer
    }

    async fn stop(&self, subject: &Subject) -> Answer {
        self.run(subject, What::Stop, &["stop", subject.id.as_str()]).await
    }

    async fn resume(&self, subject: &Subject) -> Answer {
        self.run(subject, What::Resume, &["resume", subject.id.as_str()]).await
    }

    async fn prompt(&self, subject: &Subject) {
        let text = format!("say {}", subject.name());
        self.run(subject, What::CtlPrompt { text: text.clone() }, &["prompt", subject.id.as_str(), &text]).await;
    }

    /// Attaches, types some prompts, and leaves: with the end of the input or with a kill.
    async fn attach(&self, subject: &Subject, random: &mut Random) {
        let from = SystemTime::now();
        let mut child = self.command(&["attach", subject.id.as_str()]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("agentctl can be executed");
        let mut input = child.stdin.take().expect("stdin is a pipe");
        for _ in 0..random.below(3) {
            let text = format!("say {}", subject.name());
            // `agentctl` may have ended already, so the write may fail.
            input.write_all(format!("{text}\n").as_bytes()).await.ok();
            subject.note(from, What::Prompt { text, key: None }, Answer::Cut);
            pause(random, 200).await;
        }
        if random.below(2) == 0 {
            drop(input);
            tokio::time::timeout(CTL_LIMIT, child.wait()).await.ok();
        }
        child.kill().await.ok();
    }
}

/// Runs one user's `agentctl` commands, one after the other, in random sessions.
pub(crate) async fn type_commands(
    subjects: Vec<Arc<Subject>>,
    mut random: Random,
    over: watch::Receiver<bool>,
    ctl: Arc<Ctl>,
) {
    while !*over.borrow() {
        let subject = &subjects[usize::try_from(random.below(subjects.len() as u64)).expect("there are few")];
        match random.below(3) {
            0 => ctl.attach(subject, &mut random).await,
            _ => ctl.prompt(subject).await,
        }
        pause(&mut random, 400).await;
    }
}
