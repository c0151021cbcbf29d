//! Campaign against one daemon with many busy sessions. Clients connect, work and leave. Meanwhile the test kills and
//! stops the daemon, the keepers and the agents, at random moments and at named points of the code. A model of a
//! session's promises then checks each session's history.
//!
//! ```text
//!  clients ─► requests and answers ─┐
//!  agents ──► their own account ────┼─► History ─► model: violations, each by the name of its rule
//!  keepers ─► the journal ──────────┘
//! ```
//!
//! A campaign has several rounds. In each round, clients work while the test kills processes. Then the test waits until
//! every session is at rest, and the model checks each session's whole history. The kills and stops are in
//! `strikes.rs`, and the rules are in `model.rs` and `clients_model.rs`.
//!
//! The test prints the seed, and a variable sets it. The seed determines the actions, but not how the kernel schedules
//! them. The variables are described in tests/README.md.

mod clients;
mod clients_model;
mod history;
mod model;
mod model_tests;
mod strikes;
mod subject;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use agentd_api::session::{Phase, SessionSpec, SessionView};
use agentd_api::{Body, Event};
use tokio::sync::watch;

use clients::Ctl;
use history::{History, Note, RESTART_FIRST_MS, Rest, Violation};
use strikes::Field;
use subject::Subject;

use crate::harness::random::Random;
use crate::harness::{Daemon, paths, process, scripted_agent, session};

/// Kills in one round.
const ROUND: u64 = 100;
/// Maximum time in which a session must come to rest after the clients and kills of a round have ended.
const RESTS: Duration = Duration::from_mins(4);
/// Clients that read each session's events.
const READERS: usize = 2;
/// Maximum number of violations that the report shows for a session.
const SHOWN: usize = 5;

const SEED: &str = "AGENTD_CAMPAIGN_SEED";
const SESSIONS: &str = "AGENTD_CAMPAIGN_SESSIONS";
const KILLS: &str = "AGENTD_CAMPAIGN_KILLS";
const MORE: &str = "AGENTD_CAMPAIGN_MORE";

fn size(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |size| size.parse().expect("a size is a number"))
}

/// State that stays the same during the whole campaign.
struct Campaign {
    seed: String,
    sessions: u64,
    kills: u64,
    field: Field,
    ctl: Arc<Ctl>,
    /// Last `seq` that each session's readers must see before they leave; `None` until the last round ends.
    targets: Vec<watch::Sender<Option<u64>>>,
    readers: Vec<tokio::task::JoinHandle<()>>,
}

impl Campaign {
    async fn begin(random: &mut Random) -> Self {
        let seed = random.seed().to_string();
        let (sessions, kills) = (size(SESSIONS, 6), size(KILLS, 30));
        let mut daemon = Daemon::prepare();
        daemon.configure(|config| {
            config.replace("restart = \"never\"", "restart = \"on-failure\"")
                + &format!("restart_first = \"{RESTART_FIRST_MS}ms\"\nrestart_longest = \"1s\"\n")
                + "\n[limits]\nconnections_per_caller = 512\nstreams_per_caller = 512\n"
        });
        configure(&daemon, random);
        std::fs::create_dir_all(daemon.state().join("faults")).expect("the state directory is there");
        daemon.run().await;
        let mut subjects = Vec::new();
        for number in 0..sessions {
            subjects.push(Arc::new(subject(&daemon, number).await));
        }
        let mut campaign = Self {
            seed,
            sessions,
            kills,
            ctl: Arc::new(Ctl::new(daemon.root(), daemon.client.socket())),
            field: Field::new(daemon, subjects, points(), std::env::var(MORE).ok()),
            targets: Vec::new(),
            readers: Vec::new(),
        };
        campaign.send_readers(random);
        campaign
    }

    fn send_readers(&mut self, random: &mut Random) {
        for subject in &self.field.subjects {
            let (target, seen) = watch::channel(None);
            self.targets.push(target);
            for place in 0..READERS {
                subject.record().streams.push(Vec::new());
                let reader = clients::follow(Arc::clone(subject), place, random.fork(), seen.clone());
                self.readers.push(tokio::spawn(reader));
            }
        }
    }

    /// Runs the clients, and kills and stops processes until `kills` kills have happened.
    async fn round(&self, kills: u64, random: &mut Random) {
        configure(&*self.field.daemon.lock().await, random);
        self.field.left.store(kills, Ordering::Relaxed);
        self.field.hung.store(false, Ordering::Relaxed);
        let (over, is_over) = watch::channel(false);
        let mut clients = Vec::new();
        for subject in &self.field.subjects {
            clients.push(tokio::spawn(clients::talk(Arc::clone(subject), random.fork(), is_over.clone())));
            let owner = clients::own(Arc::clone(subject), random.fork(), is_over.clone(), Arc::clone(&self.ctl));
            clients.push(tokio::spawn(owner));
        }
        let person =
            clients::type_commands(self.field.subjects.clone(), random.fork(), is_over.clone(), Arc::clone(&self.ctl));
        clients.push(tokio::spawn(person));
        tokio::join!(self.field.strike_daemon(random.fork()), self.field.strike_others(random.fork()));
        over.send_replace(true);
        for client in clients {
            client.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
    }

    /// Waits until every session is at rest, and checks each session's history.
    async fn rest(&self, all_stopped: bool, random: &mut Random) {
        let may_be_down: Vec<bool> = self.field.subjects.iter().map(|_| all_stopped || random.below(4) == 0).collect();
        let mut rests = self.all_at_rest(&may_be_down).await;
        // The daemon may still read the prompt of an agentctl that was killed. A session at rest then becomes active
        // again.
        while !self.rest_still(&rests).await {
            rests = self.all_at_rest(&may_be_down).await;
        }
        if all_stopped {
            for (rest, target) in rests.iter().zip(&self.targets) {
                target.send_replace(rest.map(|rest| rest.last_seq));
            }
        }
        let mut found = Vec::new();
        for (subject, rest) in self.field.subjects.iter().zip(rests) {
            if let Some(rest) = rest {
                seen_by_all(subject, rest.last_seq).await;
            }
            let record = subject.record().clone();
            let history = History {
                journal: subject.journal(),
                requests: record.requests,
                streams: record.streams,
                account: Note::read(&subject.account),
                killed: self.field.tally.lock().expect("nobody panics while it counts").killed.clone(),
                rest,
                witnessed: record.witnessed,
            };
            let violations = history.violations();
            if !violations.is_empty() {
                found.push((Arc::clone(subject), history, violations));
            }
        }
        assert!(found.is_empty(), "{}", self.report(&found));
        self.only_these_live().await;
    }

    async fn all_at_rest(&self, may_be_down: &[bool]) -> Vec<Option<Rest>> {
        let subjects = self.field.subjects.iter().cloned().zip(may_be_down.iter().copied());
        let resting: Vec<_> =
            subjects.map(|(subject, down)| tokio::spawn(async move { at_rest(&subject, down).await })).collect();
        let mut rests = Vec::new();
        for resting in resting {
            rests.push(resting.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
        }
        rests
    }

    /// Whether every session at rest still has the `last_seq` of its rest. `at_rest` already reported a session that
    /// did not come to rest.
    async fn rest_still(&self, rests: &[Option<Rest>]) -> bool {
        for (subject, rest) in self.field.subjects.iter().zip(rests) {
            let Some(rest) = rest else { return true };
            let view = subject.view().await;
            if view.is_some_and(|view| view.status.last_seq != rest.last_seq) {
                return false;
            }
        }
        true
    }

    /// Asserts that only expected processes live: the daemon, and for each active session its keeper, its last agent
    /// and that agent's children.
    async fn only_these_live(&self) {
        let daemon = self.field.daemon.lock().await;
        let give_up = Instant::now() + RESTS;
        loop {
            let mut expected = BTreeSet::from([daemon.pid()]);
            for subject in &self.field.subjects {
                let Some(view) = subject.view().await else { continue };
                expected.extend(view.status.keeper_pid.filter(|_| view.status.phase.is_active()));
                let started = process::pid_file(&subject.pids);
                let last = started.iter().rposition(|(role, _)| role == "agent").unwrap_or_default();
                if view.status.phase.is_active() {
                    expected.extend(started[last..].iter().map(|(_, pid)| *pid).filter(|pid| process::is_alive(*pid)));
                }
            }
            let found: BTreeSet<u32> = process::of(daemon.root()).into_iter().collect();
            if found == expected {
                return;
            }
            if Instant::now() > give_up {
                let expected: Vec<u32> = expected.into_iter().collect();
                process::assert_only(&expected, daemon.root(), &format!("no process is left behind; {}", self.again()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asserts that the campaign tried every strike and saw every kind of request and ending. A rule that had nothing
    /// to check proves nothing. A short campaign skips this assertion.
    fn something_of_each_kind_was_tried(&self) {
        let untried = self.field.tally.lock().expect("nobody panics while it counts").untried();
        assert!(untried.is_empty(), "these strikes were not tried: {untried:?}; {}", self.again());
        let mut seen = BTreeSet::new();
        for subject in &self.field.subjects {
            seen.extend(subject.record().requests.iter().filter_map(history::Request::kind));
            seen.extend(subject.journal().iter().filter_map(model::ending));
            let account = Note::read(&subject.account);
            seen.extend(
                account
                    .iter()
                    .any(|note| matches!(note, Note::Answered(_)))
                    .then_some("an agent that notes its answer"),
            );
        }
        let expected = history::REQUESTS.iter().chain(&model::ENDINGS).chain(&["an agent that notes its answer"]);
        let missing: Vec<&str> = expected.copied().filter(|kind| !seen.contains(kind)).collect();
        assert!(missing.is_empty(), "none of these was seen: {missing:?}; {}", self.again());
    }

    /// Returns the command that repeats this campaign.
    fn again(&self) -> String {
        let more = std::env::var(MORE).map(|more| format!("{MORE}={more} ")).unwrap_or_default();
        format!(
            "once more with: {SEED}={} {SESSIONS}={} {KILLS}={} {more}cargo test -p agentd --test it -- campaign::",
            self.seed, self.sessions, self.kills
        )
    }

    /// Describes the violations. Copies the histories and the daemon's log to a directory that remains after the test.
    fn report(&self, found: &[(Arc<Subject>, History, Vec<Violation>)]) -> String {
        let mut text = format!("{} of {} sessions are not what they promise\n", found.len(), self.sessions);
        let directory = paths::kept().join("campaign").join(&self.seed);
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        let log = self.field.daemon.try_lock().expect("no strike runs while a report is made").words();
        std::fs::write(directory.join("agentd.log"), log).expect("a file can be written");
        for (subject, history, violations) in found {
            let kept = keep(subject, history, &directory);
            let _ = writeln!(text, "\nsession {} ({kept}), {} violations", subject.id, violations.len());
            for violation in violations.iter().take(SHOWN) {
                let _ = writeln!(text, "* {violation}\n{}", excerpt(&history.journal, violation.seq));
            }
        }
        text + "\n" + &self.again()
    }
}

/// Sets the journal's configuration for the next start of the daemon, at random, because a kill has other effects with
/// another configuration.
fn configure(daemon: &Daemon, random: &mut Random) {
    let durability = ["turn", "record", "none"][usize::try_from(random.below(3)).expect("it is small")];
    // The daemon closes tiny segments in the middle of a turn.
    let rotate = if random.below(2) == 0 { 4096 } else { 1 << 20 };
    daemon.configure(|config| {
        let rest = config.split("\n[journal]").next().unwrap_or_default().to_owned();
        rest + &format!("\n[journal]\nrotate = {rotate}\ndurability = \"{durability}\"\n")
    });
}

async fn subject(daemon: &Daemon, number: u64) -> Subject {
    let own = daemon.root().join(format!("agent-{number}"));
    std::fs::create_dir(&own).expect("the directory is new");
    let (account, pids) = (own.join("account"), own.join("pids"));
    let mut command = vec![scripted_agent().display().to_string()];
    for (flag, path) in [("--account", &account), ("--pidfile", &pids), ("--store", &own)] {
        command.extend([flag.to_owned(), path.display().to_string()]);
    }
    // Half of the agents replay their history when the daemon loads their conversation.
    command.extend(number.is_multiple_of(2).then(|| "--resume".to_owned()));
    let spec: SessionSpec = session::spec(daemon.work(), command);
    let session = daemon.session(&spec).await;
    Subject::new(session.id.clone(), daemon.client.clone(), daemon.state(), account, pids)
}

/// Waits until the session is at rest. Answers its questions, cancels turns without an end, and resumes a session that
/// is down unless `may_be_down` is set.
async fn at_rest(subject: &Subject, may_be_down: bool) -> Option<Rest> {
    let give_up = Instant::now() + RESTS;
    let mut last: Option<SessionView> = None;
    while Instant::now() < give_up {
        if let Some(view) = subject.view().await {
            if let Some(rest) = rest_of(subject, &view, may_be_down) {
                return Some(rest);
            }
            let status = &view.status;
            if clients::is_over(&view) && !may_be_down {
                subject.resume("").await;
            }
            for question in &status.permissions {
                subject.permit(question.id.to_string(), question.options[0].id.clone()).await;
            }
            if let Some(turn) = status.turn.as_ref().filter(|turn| turn.prompt.starts_with("hang")) {
                subject.cancel(Some(turn.id.clone())).await;
            }
            last = Some(view);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    subject.witness("a session comes to rest", format!("it did not within {RESTS:?}: {last:#?}"));
    None
}

fn rest_of(subject: &Subject, view: &SessionView, may_be_down: bool) -> Option<Rest> {
    let status = &view.status;
    let rest = Rest {
        phase: status.phase,
        generation: view.generation,
        launches: status.launches,
        last_seq: status.last_seq,
        turn_open: status.turn.is_some(),
        queued: status.queue.len(),
        permissions: status.permissions.len(),
    };
    let idle = rest.phase == Phase::Idle && !rest.turn_open && rest.queued == 0;
    let down = may_be_down && clients::is_over(view);
    let read = || subject.journal().last().map(|event| event.seq) == Some(rest.last_seq);
    ((idle || down) && read()).then_some(rest)
}

/// Waits until every reader of the session has seen the record `seq`. The model reports readers that have not seen it
/// in time.
async fn seen_by_all(subject: &Subject, seq: u64) {
    let give_up = Instant::now() + RESTS;
    let seen = || subject.record().streams.iter().all(|stream| stream.last().is_some_and(|seen| seen.seq >= seq));
    while !seen() && Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn points() -> Vec<String> {
    let output = Command::new(paths::agentd()).arg("fault-points").output().expect("agentd can be executed");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("names are text");
    // The campaign creates and removes no sessions. The fault matrix tests those points.
    let passed = |point: &&str| !point.starts_with("daemon.create.") && !point.starts_with("daemon.remove.");
    text.lines().filter(passed).map(str::to_owned).collect()
}

/// Copies the history of a session to the directory, which remains after the test.
fn keep(subject: &Subject, history: &History, directory: &Path) -> String {
    let (journal, rest) = (directory.join(format!("{}.journal", subject.id)), format!("{:#?}", history.requests));
    let lines: String = history.journal.iter().map(|event| line(event) + "\n").collect();
    std::fs::write(&journal, lines).expect("a file can be written");
    std::fs::write(directory.join(format!("{}.requests", subject.id)), rest).expect("a file can be written");
    std::fs::copy(&subject.account, directory.join(format!("{}.account", subject.id))).ok();
    journal.display().to_string()
}

fn line(event: &Event) -> String {
    let data = event.body.to_data();
    format!("{} {} {} {}", event.seq, event.time, event.body.kind(), data.get().chars().take(300).collect::<String>())
}

/// Returns the journal's records around the record `seq`.
fn excerpt(journal: &[Event], seq: u64) -> String {
    const AROUND: u64 = 12;
    let is_near = |event: &&Event| seq > 0 && event.seq + AROUND >= seq && event.seq <= seq + AROUND / 3;
    let tells = |event: &&Event| !matches!(event.body, Body::Condition(_) | Body::EnvironmentBuilt(_));
    let lines = journal.iter().filter(is_near).filter(tells).map(|event| format!("    {}", line(event)));
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_keep_their_promises_while_daemon_keepers_and_agents_are_killed_at_random() {
    let mut random = Random::from_environment(SEED);
    let mut campaign = Campaign::begin(&mut random).await;
    let begun = Instant::now();
    let mut left = campaign.kills;
    while left > 0 {
        let kills = left.min(ROUND);
        left -= kills;
        campaign.round(kills, &mut random).await;
        campaign.rest(false, &mut random).await;
        eprintln!("{} of {} kills after {:?}", campaign.kills - left, campaign.kills, begun.elapsed());
    }
    for subject in &campaign.field.subjects {
        subject.stop("?wait=60").await;
    }
    campaign.rest(true, &mut random).await;
    for reader in campaign.readers.drain(..) {
        reader.await.expect("a reader leaves when it has seen all");
    }
    if campaign.kills >= ROUND {
        campaign.something_of_each_kind_was_tried();
    }
    let tally = campaign.field.tally.lock().expect("nobody panics while it counts");
    eprintln!(
        "{} sessions, {} kills, {} named points, {} times SIGSTOP, in {:?}; the slowest start of the daemon took {:?}",
        campaign.sessions,
        tally.kills,
        tally.points,
        tally.stops,
        begun.elapsed(),
        tally.slowest
    );
}
