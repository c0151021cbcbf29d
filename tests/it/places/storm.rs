//! Fifty batch sessions for four processors of Slurm. They start in order. Some are stopped, reach the time limit, or
//! lose their node or the controller.
//!
//! Beside agentd, a thread asks Slurm itself. Afterwards each answer of Slurm is compared with the journals.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agentd_api::Body;
use agentd_api::completion::Outcome;
use agentd_api::event::PlaceState;
use agentd_api::session::{ConditionType, Phase, SessionSpec, SessionView};
use futures_util::future::join_all;
use jiff::Timestamp;

use super::sessions::{self, condition};
use crate::harness::slurm::{Options, Slurm};
use crate::harness::{Daemon, Session, process, until};

/// Number of sessions that run to their end, or are stopped while they are queued.
const WORK: usize = 39;
const CANCELLED: usize = 6;
/// Number of jobs that run at once: two nodes of two processors.
const SLOTS: usize = 4;
/// Pause between two questions of the places (`sessions::slurm`).
const POLL: Duration = Duration::from_millis(300);
/// Time in which a loaded machine answers a question and records the answer.
const TOLERANCE: Duration = Duration::from_secs(2);
/// Pause between two questions of the test.
const SAMPLE: Duration = Duration::from_millis(150);
/// Time limit of the test.
const LIMIT: Duration = Duration::from_mins(1);

/// An answer of `squeue`: state and reason of each job, by the name of its session.
type Answer = BTreeMap<String, (String, String)>;

/// A thread that asks Slurm until it is ended.
struct Watcher {
    end: mpsc::Sender<()>,
    thread: JoinHandle<Vec<(Timestamp, Option<Answer>)>>,
}

impl Watcher {
    fn start(slurm: &Slurm) -> Self {
        let mut squeue = slurm.client("squeue");
        squeue.args(["--noheader", "--states=all", "--format=%j|%T|%r"]);
        let (end, ended) = mpsc::channel();
        let watch = move || {
            let mut answers = Vec::new();
            while ended.recv_timeout(SAMPLE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let answer = ask(&mut squeue);
                answers.push((Timestamp::now(), answer));
            }
            answers
        };
        Self { end, thread: std::thread::spawn(watch) }
    }

    fn end(self) -> Vec<(Timestamp, Option<Answer>)> {
        drop(self.end);
        self.thread.join().unwrap()
    }
}

/// Returns nothing while the controller does not answer.
fn ask(squeue: &mut Command) -> Option<Answer> {
    let output = squeue.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let job = |line: &str| {
        let mut fields = line.split('|');
        let session = fields.next()?.strip_prefix("agentd-")?.strip_suffix("-1")?;
        Some((session.to_owned(), (fields.next()?.to_owned(), fields.next()?.to_owned())))
    };
    output.status.success().then(|| text.lines().filter_map(job).collect())
}

/// An answer about one job that Slurm repeated for some time.
struct Span {
    first: Timestamp,
    last: Timestamp,
    state: String,
    reason: String,
}

fn spans(answers: &[(Timestamp, Option<Answer>)], session: &str) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut is_open = false;
    for (at, answer) in answers {
        let Some((state, reason)) = answer.as_ref().and_then(|answer| answer.get(session)) else {
            is_open = false;
            continue;
        };
        match spans.last_mut().filter(|span| is_open && (&span.state, &span.reason) == (state, reason)) {
            Some(span) => span.last = *at,
            None => spans.push(Span { first: *at, last: *at, state: state.clone(), reason: reason.clone() }),
        }
        is_open = true;
    }
    spans
}

/// Facts about the only launch of a session, from its journal.
#[derive(Debug, Default)]
struct Told {
    job: Option<u64>,
    states: Vec<(Timestamp, PlaceState, Option<String>)>,
    exited: Option<Timestamp>,
}

impl Told {
    fn of(session: &Session) -> Self {
        let mut told = Self::default();
        for event in session.journal() {
            match event.body {
                Body::PlaceChanged(changed) => {
                    told.job = changed.job.and_then(|job| job.parse().ok()).or(told.job);
                    told.states.push((event.time, changed.state, changed.reason));
                }
                Body::AgentExited(_) => told.exited = Some(event.time),
                _ => {}
            }
        }
        told
    }

    fn begun(&self) -> Option<Timestamp> {
        self.states.iter().find(|(_, state, _)| *state == PlaceState::Running).map(|(at, ..)| *at)
    }

    /// Returns the state and the reason at a time, and whether the agent has ended.
    fn at(&self, time: Timestamp) -> (Option<PlaceState>, Option<&str>, bool) {
        let last = self.states.iter().rev().find(|(at, ..)| *at <= time);
        let is_over = self.exited.is_some_and(|exited| exited <= time);
        (last.map(|(_, state, _)| *state), last.and_then(|(.., reason)| reason.as_deref()), is_over)
    }

    /// Reports whether an answer of Slurm agrees with the journal at a time.
    fn agrees(&self, span: &Span, time: Timestamp) -> bool {
        let (state, reason, is_over) = self.at(time);
        match span.state.as_str() {
            // A client is stopped before its job is cancelled.
            "PENDING" => is_over || state == Some(PlaceState::Queued) && reason == Some(&span.reason),
            "RUNNING" => is_over || !matches!(state, None | Some(PlaceState::Submitted | PlaceState::Queued)),
            // The processes of the job end.
            "COMPLETING" => true,
            _ => is_over,
        }
    }

    /// Returns when the journal agreed with an answer of Slurm that was given this long. Fails if that was too late.
    fn lateness(&self, span: &Span) -> Option<Duration> {
        let due = span.first + (POLL + TOLERANCE);
        if span.last < due {
            return None;
        }
        let of_span = self.states.iter().map(|(at, ..)| *at).chain(self.exited);
        let during = || of_span.clone().filter(|at| (span.first..=span.last).contains(at));
        for at in [due].into_iter().chain(during().filter(|at| *at > due)) {
            let shown = (&span.state, &span.reason);
            assert!(
                self.agrees(span, at),
                "{} to {}: Slurm shows {shown:?}, and agentd {self:?}",
                span.first,
                span.last
            );
        }
        let agreed = [span.first].into_iter().chain(during()).filter(|at| self.agrees(span, *at)).min();
        Some(agreed.map_or(Duration::ZERO, |at| at.duration_since(span.first).unsigned_abs()))
    }
}

fn batch(daemon: &Daemon, place: &str, prompt: &str) -> SessionSpec {
    SessionSpec {
        interactive: false,
        initial_prompt: Some(prompt.to_owned()),
        place: Some(place.to_owned()),
        ..daemon.scripted(&[])
    }
}

fn state(view: &SessionView) -> Option<PlaceState> {
    view.status.place.as_ref().map(|place| place.state)
}

async fn is_queued(session: &Session) {
    session.wait_for("it is queued", |view| state(view) == Some(PlaceState::Queued)).await;
}

/// Reports whether the message of the session contains this word.
fn says(view: &SessionView, word: &str) -> bool {
    view.status.message.as_ref().is_some_and(|message| message.contains(word))
}

/// Stops a session that is queued. Its job is gone at once.
async fn cancel(slurm: &Slurm, session: &Session) {
    let begun = Instant::now();
    session.stop().await;
    assert!(!slurm.jobs().contains(session.id.as_str()), "{}", slurm.jobs());
    assert!(begun.elapsed() < 2 * TOLERANCE, "{:?}", begun.elapsed());
    let told = Told::of(session);
    assert!(told.begun().is_none(), "{told:?}");
}

/// Fails unless at most [`SLOTS`] agents ran at once, and unless the jobs of `work` started in the order of their
/// numbers.
fn ran_in_order(all: &[Told], work: &[Told]) {
    for told in all {
        let Some(begun) = told.begun() else { continue };
        let runs = |other: &&Told| other.begun().is_some_and(|at| at <= begun) && other.exited.unwrap() > begun;
        let at_once = all.iter().filter(runs).count();
        assert!(at_once <= SLOTS, "{at_once} agents ran at {begun}");
    }
    let mut started: Vec<_> = work.iter().map(|told| (told.job.unwrap(), told.begun().unwrap())).collect();
    started.sort_unstable();
    for (at, (job, begun)) in started.iter().enumerate() {
        let first = started[at..].iter().map(|(_, later)| *later).min().unwrap();
        assert!(*begun <= first + TOLERANCE, "job {job} started after a later job: {started:?}");
    }
}

/// Compares all that Slurm showed with the journals.
fn were_true(answers: &[(Timestamp, Option<Answer>)], sessions: &[&Session]) {
    let (mut compared, mut reasons, mut latest) = (0, BTreeSet::new(), Duration::ZERO);
    for session in sessions {
        let told = Told::of(session);
        for span in spans(answers, session.id.as_str()) {
            if let Some(late) = told.lateness(&span) {
                compared += 1;
                latest = latest.max(late);
                reasons.insert(format!("{} {}", span.state, span.reason));
            }
        }
    }
    eprintln!("{compared} answers of {} questions agree after at most {latest:?}: {reasons:?}", answers.len());
    for expected in ["PENDING Priority", "PENDING Resources", "RUNNING None", "COMPLETED None"] {
        assert!(reasons.contains(expected), "{expected}: {reasons:?}");
    }
    assert!(compared > sessions.len());
}

#[tokio::test]
async fn fifty_sessions_share_four_processors_and_each_status_is_true() {
    let (node_timeout, kill_wait) = (Duration::from_secs(5), Duration::from_secs(2));
    let Some(mut slurm) = Slurm::boot(Options { node_timeout, kill_wait, ..Options::default() }).await else { return };
    let mut daemon = Daemon::prepare();
    let keys = format!("{}\nsilence = \"3s\"\nrequeue = true", sessions::slurm(&slurm));
    daemon.configure(|config| {
        format!(
            "{config}\n[places.farm]\n{keys}\n\n[places.b]\n{keys}\noptions = [\"--nodelist=b\"]\n\n\
             [places.short]\n{keys}\ntime = \"1m\"\noptions = [\"--nodelist=a\"]\n"
        )
    });
    daemon.run().await;
    let watcher = Watcher::start(&slurm);
    let begun = Instant::now();
    let done = |what: &str| eprintln!("{:>5.1} s: {what}", begun.elapsed().as_secs_f64());

    // Four sessions have all processors.
    let limited = daemon.create(&batch(&daemon, "short", "hang")).await;
    let lost = [daemon.create(&batch(&daemon, "b", "hang")).await, daemon.create(&batch(&daemon, "b", "hang")).await];
    for session in lost.iter().chain([&limited]) {
        session.wait_for_phase(Phase::Busy).await;
    }
    let holder = daemon.create(&batch(&daemon, "farm", "hang")).await;
    holder.wait_for_phase(Phase::Busy).await;
    done("four sessions run");
    let (mut work, mut cancelled) = (Vec::new(), Vec::new());
    for number in 0..WORK {
        work.push(daemon.create(&batch(&daemon, "farm", &format!("count 10 100\nsay done {number}"))).await);
        if cancelled.len() < CANCELLED {
            cancelled.push(daemon.create(&batch(&daemon, "farm", "say never")).await);
        }
    }
    join_all(work.iter().chain(&cancelled).map(is_queued)).await;
    let newest = work.last().expect("there are sessions");
    let has_reason = |view: &SessionView| {
        let placed = condition(view, ConditionType::Placed);
        placed.reason == "Queued" && placed.message.contains("Priority, jobs with a higher priority are before it")
    };
    newest.wait_for("the condition has the reason of the queue", has_reason).await;
    done("all others are queued");
    join_all(cancelled.iter().map(|session| cancel(&slurm, session))).await;
    done("some of them are stopped");

    // The controller loses the job that it has not saved.
    for session in &work {
        slurm.saved(session.id.as_str()).await;
    }
    let saved = slurm.copy_of_jobs();
    let forgotten = daemon.create(&batch(&daemon, "farm", "say never")).await;
    is_queued(&forgotten).await;
    slurm.kill_controller().await;
    slurm.restore_jobs(&saved);
    slurm.start_controller();
    until("the controller answers", || slurm.node_state("a") == "allocated").await;
    assert!(!slurm.squeue().contains(forgotten.id.as_str()));
    done("the controller is back");

    slurm.kill_node("b");
    slurm.set_down("b").await;
    for session in &lost {
        let has_reason = |view: &SessionView| view.status.phase.is_over() && says(view, "NODE_FAIL");
        let view = session.wait_for("it has failed with its node", has_reason).await;
        assert_eq!((view.status.phase, view.status.launches), (Phase::Failed, 1), "a batch session is not repeated");
        assert_eq!(view.status.completion.unwrap().outcome, Outcome::Failed);
    }
    slurm.start_node("b");
    holder.stop().await;
    done("node b was lost");

    for (number, session) in work.iter().enumerate() {
        let view = session.wait_for("its end", |view| view.status.phase.is_over()).await;
        let completion = view.status.completion.as_ref().expect("it has a result");
        assert_eq!(completion.outcome, Outcome::Completed, "{:?}", view.status.message);
        let answer = completion.answer.clone().unwrap_or_default();
        assert!(answer.ends_with(&format!("done {number}")), "{answer}");
    }
    done("the others are done");
    for session in &cancelled {
        assert_eq!(session.view().await.status.completion.unwrap().outcome, Outcome::Cancelled);
    }
    let view = limited.wait_for_phase(Phase::Failed).await;
    let completion = view.status.completion.as_ref().expect("it has a result");
    assert_eq!(completion.outcome, Outcome::Failed);
    assert!(completion.reason.contains("TimeLimit") && says(&view, "TimeLimit"), "{:?}", view.status);
    limited.wait_for("Slurm has ended its job", |view| state(view) == Some(PlaceState::Ended)).await;
    let place = limited.view().await.status.place.expect("it has a place");
    assert_eq!(place.reason.as_deref(), Some("TimeLimit"), "{place:?}");
    let view = forgotten.wait_for_phase(Phase::Failed).await;
    let placed = condition(&view, ConditionType::Placed);
    assert!(says(&view, "Forgotten") && placed.message.contains("Forgotten"), "{:?}", view.status);

    slurm.empty().await;
    until("only the daemon is left", || process::of(daemon.root()) == [daemon.pid()]).await;
    done("nothing is left");
    let answers = watcher.end();
    let all: Vec<&Session> =
        work.iter().chain(&cancelled).chain(&lost).chain([&limited, &holder, &forgotten]).collect();
    assert_eq!(all.len(), 50);
    let told: Vec<Told> = all.iter().map(|session| Told::of(session)).collect();
    ran_in_order(&told, &told[..WORK]);
    were_true(&answers, &all);
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
}
