//! Rules for a session's journal that hold for every kill at every moment. One walk over the records checks them, with
//! the state that the earlier records imply.
//!
//! Each rule has a name, and a violation reports that name. `model_tests.rs` has a history that breaks each rule.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use agentd_api::event::{AgentExited, LaunchReason, LaunchStarted, SyntheticCause, TurnEnded, TurnStarted};
use agentd_api::session::Phase;
use agentd_api::{Body, Event, PermissionId, TurnId};
use jiff::Timestamp;
use serde_json::Value;

use super::history::{CRASH_WINDOW_S, CRASHES, EXITS, History, RESTART_FIRST_MS, Request, Violation, What};
use crate::harness::process::Identity;
use crate::harness::session::said;

/// The agent's answer to a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AgentAnswer {
    Stop(String),
    Error,
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is something that has happened to it, in any order")]
struct Turn {
    prompt: String,
    /// The id of the turn's `session/prompt`, after the turn has started.
    rpc: Option<u64>,
    sent: bool,
    cancelling: bool,
    answer: Option<AgentAnswer>,
    /// Number up to which the agent has counted in this turn.
    counted: u64,
    /// Whether the agent ended before it answered this turn.
    cut: bool,
    ended: bool,
}

impl Turn {
    fn is_open(&self) -> bool {
        self.rpc.is_some() && !self.ended
    }
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is something that has happened in it, in any order")]
struct Launch {
    number: u64,
    restart: bool,
    agent_started: bool,
    /// The launch's keeper and agent.
    processes: Vec<Identity>,
    opened: bool,
    exits: u32,
    /// Whether the journal contains `launch.failed`.
    failed: bool,
    /// Whether a client asked for a stop since this launch began.
    stop: bool,
    /// Whether the keeper must end the agent because it has become unusable, which counts as a crash.
    unusable: bool,
    /// Time at which the agent crashed, or at which the restart failed. From then on another restart is due.
    crashed: Option<Timestamp>,
}

impl Launch {
    fn agent_runs(&self) -> bool {
        self.agent_started && self.exits == 0
    }
}

struct Walk<'a> {
    requests: &'a [Request],
    /// Generation of the specification.
    generation: u64,
    killed: &'a BTreeSet<Identity>,
    found: Vec<Violation>,
    seq: u64,
    now: Timestamp,
    launch: Launch,
    /// Times of the crashes since the last launch by a client, within the window in which crashes count.
    crashes: Vec<Timestamp>,
    turns: BTreeMap<TurnId, Turn>,
    /// Turns in the order in which they were queued, until they start or end.
    queue: Vec<TurnId>,
    running: Option<TurnId>,
    permissions: BTreeMap<PermissionId, String>,
    answered: BTreeSet<String>,
}

/// Endings of a turn. A long campaign must see each ending.
pub(crate) const ENDINGS: [&str; 5] = [
    "a turn that ends with end_turn",
    "a turn that is cancelled",
    "a turn whose agent answers with an error",
    "a turn that is cut",
    "a turn that is dropped",
];

/// Returns the element of [`ENDINGS`] that describes the record.
pub(crate) fn ending(event: &Event) -> Option<&'static str> {
    let Body::TurnEnded(ended) = &event.body else { return None };
    let cause = ended.synthetic.as_ref().map(|synthetic| synthetic.cause);
    let place = match (ended.stop_reason.as_deref(), cause) {
        (Some("end_turn"), None) => 0,
        (Some("cancelled"), None) => 1,
        (None, Some(SyntheticCause::AgentError)) => 2,
        (None, Some(SyntheticCause::AgentExited)) => 3,
        (None, Some(SyntheticCause::Dropped)) => 4,
        _ => return None,
    };
    Some(ENDINGS[place])
}

/// Returns the violations that the journal shows by itself or in comparison with the daemon's view at rest.
pub(crate) fn journal(history: &History) -> Vec<Violation> {
    let mut walk = Walk {
        requests: &history.requests,
        generation: 1,
        killed: &history.killed,
        found: Vec::new(),
        seq: 0,
        now: Timestamp::UNIX_EPOCH,
        launch: Launch::default(),
        crashes: Vec::new(),
        turns: BTreeMap::new(),
        queue: Vec::new(),
        running: None,
        permissions: BTreeMap::new(),
        answered: BTreeSet::new(),
    };
    for event in &history.journal {
        walk.step(event);
    }
    walk.at_rest(history);
    walk.found
}

fn is_cancel_of(what: &What, id: &TurnId) -> bool {
    matches!(what, What::Cancel { turn } if turn.as_ref().is_none_or(|turn| turn == id))
}

impl Walk<'_> {
    /// Whether a client had already sent such a request. The answer does not matter.
    fn was_asked(&self, is_meant: impl Fn(&What) -> bool) -> bool {
        let now = SystemTime::from(self.now);
        self.requests.iter().any(|request| request.from <= now && is_meant(&request.what))
    }

    /// Checks that the agent ended for a reason: a stop, a kill, a lost keeper or conversation, or an `exit` prompt.
    fn ends_for_a_reason(&mut self, exited: &AgentExited) {
        let running = self.running.as_ref().and_then(|id| self.turns.get(id));
        let prompted = running.is_some_and(|turn| turn.sent && turn.prompt.starts_with("exit "));
        let killed = self.launch.processes.iter().any(|process| self.killed.contains(process));
        let ended = self.launch.stop || self.launch.unusable || self.launch.failed || killed;
        let by_itself = prompted && exited.status == Some(EXITS);
        // A keeper that never had an agent also writes `agent.exited`.
        let had_none = !self.launch.agent_started;
        self.check(ended || by_itself || had_none, "nobody ends by himself", || {
            format!("the agent of launch {} ended, and nobody had ended it: {exited:?}", exited.launch)
        });
    }

    fn violation(&mut self, rule: &'static str, what: impl Into<String>) {
        self.found.push(Violation::new(rule, self.seq, what));
    }

    fn check(&mut self, holds: bool, rule: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            let what = what();
            self.violation(rule, what);
        }
    }

    fn step(&mut self, event: &Event) {
        let expected = self.seq + 1;
        self.seq = event.seq;
        self.now = event.time;
        self.check(event.seq == expected, "sequence", || {
            format!("record {} stands where {expected} should", event.seq)
        });
        match &event.body {
            Body::LaunchStarted(started) => self.launch_started(started),
            Body::LaunchFailed(failed) => {
                let repeated = self.launch.failed;
                self.check(failed.launch == self.launch.number && !repeated, "launches", || {
                    format!("launch {} failed twice, or is not the one under way", failed.launch)
                });
                self.launch.failed = true;
                if self.launch.restart && !self.launch.agent_started && !self.launch.stop {
                    self.crashed();
                }
            }
            Body::AgentStarted(started) => {
                let fits = started.launch == self.launch.number && !self.launch.agent_started;
                self.check(fits, "launches", || {
                    format!("an agent was started for launch {} once more", started.launch)
                });
                self.launch.agent_started = true;
                self.launch.processes.push(Identity { pid: started.pid, start_time: started.start_time });
            }
            Body::KeeperStarted(started) => {
                self.launch.processes.push(Identity { pid: started.pid, start_time: started.start_time });
            }
            Body::AgentUnusable(unusable) => {
                // The agent may end after the answer that shows its loss and before this record.
                let fits = unusable.launch == self.launch.number
                    && self.launch.agent_started
                    && self.launch.opened
                    && !self.launch.unusable;
                self.check(fits, "launches", || "an agent without a conversation cannot have lost it".into());
                self.launch.unusable = true;
            }
            Body::AgentExited(exited) => self.agent_exited(exited),
            Body::ConversationOpened(opened) => {
                // The agent may end after the answer that opens the conversation and before this record.
                let fits = opened.launch == self.launch.number && self.launch.agent_started && !self.launch.opened;
                self.check(fits, "launches", || "a conversation was opened without an agent, or twice".into());
                self.launch.opened = true;
            }
            Body::AgentOut(message) => {
                let fits = self.launch.agent_runs();
                self.check(fits, "agent speaks", || "an agent that does not run said something".into());
                self.heard(event, &serde_json::from_str(message.get()).expect("the journal holds JSON"));
            }
            Body::AgentIn(message) => {
                let fits = self.launch.agent_runs();
                self.check(fits, "agent is sent", || "an agent that does not run was sent something".into());
                self.sent(&serde_json::from_str(message.get()).expect("the journal holds JSON"));
            }
            Body::TurnQueued(queued) => {
                let fits = queued.turn == TurnId::numbered(self.turns.len() as u64 + 1);
                self.check(fits, "turns are numbered", || format!("turn {} is out of order", queued.turn));
                let twice = self.turns.values().any(|turn| turn.prompt == queued.prompt);
                self.check(!twice, "a prompt is one turn", || format!("{:?} was queued twice", queued.prompt));
                let turn = Turn { prompt: queued.prompt.clone(), ..Turn::default() };
                self.turns.insert(queued.turn.clone(), turn);
                self.queue.push(queued.turn.clone());
            }
            Body::SpecChanged(changed) => {
                self.generation += 1;
                let (generation, tags) = (self.generation, changed.spec.tags.clone());
                self.check(changed.generation == generation, "generations", || {
                    format!("the specification has generation {} where {generation} should be", changed.generation)
                });
                let asked = self.was_asked(|what| matches!(what, What::Change { tag } if tags == [tag.as_str()]));
                self.check(asked, "somebody asks for it", || format!("no client sent the tags {tags:?}"));
            }
            Body::TurnStarted(started) => self.turn_started(started),
            Body::TurnCancelling(cancelling) => {
                let runs = self.running.as_ref() == Some(&cancelling.turn);
                self.check(runs, "cancels", || format!("turn {} does not run and is cancelled", cancelling.turn));
                let asked = self.was_asked(|what| is_cancel_of(what, &cancelling.turn));
                self.check(asked, "somebody asks for it", || format!("nobody has cancelled turn {}", cancelling.turn));
                if let Some(turn) = self.turns.get_mut(&cancelling.turn) {
                    turn.cancelling = true;
                }
            }
            Body::TurnEnded(ended) => self.turn_ended(ended),
            Body::PermissionRequested(requested) => {
                let rpc = requested.rpc.to_string();
                let known = self.permissions.insert(requested.request.id.clone(), rpc).is_some();
                self.check(!known, "permissions", || format!("{} was asked twice", requested.request.id));
            }
            Body::PermissionResolved(resolved) => {
                let open = self.permissions.remove(&resolved.permission).is_some();
                self.check(open, "permissions", || format!("{} is not open and was answered", resolved.permission));
            }
            Body::StopRequested(_) => {
                self.launch.stop = true;
                let asked = self.was_asked(|what| matches!(what, What::Stop));
                self.check(asked, "somebody asks for it", || "nobody has asked for a stop".into());
            }
            _ => {}
        }
    }

    fn launch_started(&mut self, started: &LaunchStarted) {
        let expected = self.launch.number + 1;
        self.check(started.launch == expected, "launches", || {
            format!("launch {} follows launch {}", started.launch, expected - 1)
        });
        self.check(!self.launch.agent_runs(), "one agent.exited a launch", || {
            format!("launch {} began, and the agent of the one before has not ended", started.launch)
        });
        let open = self.turns.iter().find(|(_, turn)| turn.is_open()).map(|(id, _)| id.clone());
        if let Some(turn) = open {
            self.violation(
                "no launch beside an open turn",
                format!("launch {} began while turn {turn} is cut and not ended", started.launch),
            );
        }
        let asked = self.permissions.len();
        self.check(asked == 0, "permissions", || format!("{asked} questions are open at the beginning of a launch"));
        let restart = started.reason == LaunchReason::Restart;
        if restart {
            match self.launch.crashed {
                _ if self.launch.stop => {
                    self.violation("a stop wins", "a session that was stopped was started again");
                }
                None => self.violation("restarts", "a restart follows no crash"),
                Some(_) if self.crashes.len() > CRASHES => {
                    self.violation("restarts", format!("it was started again after {} crashes", self.crashes.len()));
                }
                Some(crashed) => {
                    let pause = self.now.duration_since(crashed).as_millis();
                    // The wall clock may change by some milliseconds while the campaign runs.
                    let enough = pause >= i128::from(RESTART_FIRST_MS - 20);
                    self.check(enough, "restarts", || format!("it was started again after {pause} ms"));
                }
            }
        } else {
            self.crashes.clear();
        }
        self.launch = Launch { number: started.launch, restart, ..Launch::default() };
    }

    fn agent_exited(&mut self, exited: &AgentExited) {
        let fits = exited.launch == self.launch.number;
        self.check(fits, "one agent.exited a launch", || format!("launch {} is not under way", exited.launch));
        self.launch.exits += 1;
        let exits = self.launch.exits;
        self.check(exits == 1, "one agent.exited a launch", || {
            format!("agent.exited of launch {} stands there {exits} times", exited.launch)
        });
        if exits > 1 {
            return;
        }
        self.ends_for_a_reason(exited);
        if let Some(id) = self.running.take()
            && let Some(turn) = self.turns.get_mut(&id)
        {
            turn.cut = turn.answer.is_none();
        }
        let lived = self.launch.opened || self.launch.restart;
        let unasked = (!exited.requested && exited.reason.is_none()) || self.launch.unusable;
        let unasked = unasked && !self.launch.stop && !self.launch.failed;
        if unasked && lived && (self.launch.agent_started || exited.exec_error.is_some()) {
            self.crashed();
        }
    }

    fn crashed(&mut self) {
        let now = self.now;
        self.crashes.retain(|crash| now.duration_since(*crash).as_secs() < CRASH_WINDOW_S);
        self.crashes.push(now);
        self.launch.crashed = Some(now);
    }

    fn turn_started(&mut self, started: &TurnStarted) {
        let busy = self.running.clone();
        if let Some(other) = busy.filter(|other| self.turns.get(other).is_some_and(Turn::is_open)) {
            self.violation("one turn at a time", format!("turn {} began beside turn {other}", started.turn));
        }
        let may = self.launch.agent_runs() && self.launch.opened;
        self.check(may, "a turn has an agent", || format!("turn {} began without a conversation", started.turn));
        let next = self.queue.first() == Some(&started.turn);
        self.check(next, "turns wait in order", || {
            format!("turn {} began, and it was not the next that waits", started.turn)
        });
        self.queue.retain(|id| *id != started.turn);
        if let Some(turn) = self.turns.get_mut(&started.turn) {
            turn.rpc = Some(started.rpc);
        }
        self.running = Some(started.turn.clone());
    }

    /// Checks a line that the keeper sent to the agent.
    fn sent(&mut self, message: &Value) {
        if message["method"] == "session/prompt" {
            let rpc = message["id"].as_u64();
            let turn = self.running.as_ref().and_then(|id| self.turns.get_mut(id)).filter(|turn| turn.rpc == rpc);
            match turn {
                Some(turn) if !turn.sent => turn.sent = true,
                _ => self.violation("a prompt is sent once", "the agent was prompted for no turn, or twice for one"),
            }
        } else if message["method"].is_null() {
            let rpc = format!("{}/{}", self.launch.number, message["id"]);
            let first = self.answered.insert(rpc);
            self.check(first, "permissions", || format!("the agent's request {} was answered twice", message["id"]));
        }
    }

    /// Checks a line that the agent wrote.
    fn heard(&mut self, event: &Event, message: &Value) {
        let running = self.running.clone();
        if let Some(number) = said(event).and_then(|text| text.trim().parse::<u64>().ok()) {
            let turn = running.as_ref().and_then(|id| self.turns.get_mut(id)).filter(|turn| turn.answer.is_none());
            let Some(turn) = turn else {
                return self.violation("numbers", format!("the agent counted {number} in no turn"));
            };
            let expected = turn.counted + 1;
            turn.counted = number;
            return self.check(number == expected, "numbers", || format!("{number} follows {}", expected - 1));
        }
        if !message["method"].is_null() {
            return;
        }
        let rpc = message["id"].as_u64();
        let turn = running.as_ref().and_then(|id| self.turns.get_mut(id)).filter(|turn| turn.rpc == rpc);
        let Some(turn) = turn else { return };
        let answer = match message["result"]["stopReason"].as_str() {
            Some(reason) => AgentAnswer::Stop(reason.to_owned()),
            None => AgentAnswer::Error,
        };
        turn.answer = Some(answer.clone());
        let (counted, cancelling) = (turn.counted, turn.cancelling);
        let promised =
            turn.prompt.lines().find_map(|line| line.strip_prefix("count ")?.split(' ').next()?.parse().ok());
        if answer == AgentAnswer::Stop("end_turn".into()) {
            let whole = promised.is_none_or(|promised: u64| promised == counted);
            self.check(whole, "numbers", || {
                format!("{counted} of {promised:?} numbers were said in a turn that ended")
            });
        }
        let asked = answer != AgentAnswer::Stop("cancelled".into()) || cancelling;
        self.check(asked, "cancels", || "the agent says that its turn was cancelled, and nobody asked for that".into());
    }

    fn turn_ended(&mut self, ended: &TurnEnded) {
        let id = &ended.turn;
        let agent_runs = self.launch.agent_runs();
        let (stopped, waiting) = (self.launch.stop, self.queue.contains(id));
        self.queue.retain(|queued| queued != id);
        let Some(turn) = self.turns.get_mut(id) else {
            return self.violation("a turn ends once", format!("turn {id} ended and was never queued"));
        };
        if turn.ended {
            return self.violation("a turn ends once", format!("turn {id} ended twice"));
        }
        turn.ended = true;
        let cause = ended.synthetic.as_ref().map(|synthetic| synthetic.cause);
        let (started, answer, cut) = (turn.rpc.is_some(), turn.answer.clone(), turn.cut);
        if self.running.as_ref() == Some(id) {
            self.running = None;
        }
        let found = format!("turn {id} ended with stop reason {:?} and cause {cause:?}", ended.stop_reason);
        if !started {
            let fits = waiting && ended.stop_reason.is_none() && cause == Some(SyntheticCause::Dropped);
            self.check(fits, "how a waiting turn ends", || {
                format!("{found}, and it had only waited (stop: {stopped})")
            });
            let id = id.clone();
            let explained =
                stopped || self.was_asked(|what| matches!(what, What::Cancel { turn: Some(turn) } if *turn == id));
            self.check(explained || !fits, "somebody asks for it", || {
                format!("{found}, and nobody had stopped the session or cancelled it")
            });
            return;
        }
        match answer {
            Some(AgentAnswer::Stop(reason)) => {
                let fits = ended.stop_reason.as_ref() == Some(&reason) && cause.is_none();
                self.check(fits, "an answered turn ends with its answer", || {
                    format!("{found}, and the agent had answered {reason:?}")
                });
            }
            Some(AgentAnswer::Error) => {
                let fits = ended.stop_reason.is_none() && cause == Some(SyntheticCause::AgentError);
                self.check(fits, "an answered turn ends with its answer", || {
                    format!("{found}, and the agent had answered with an error")
                });
            }
            None => {
                let fits = ended.stop_reason.is_none() && cause == Some(SyntheticCause::AgentExited);
                self.check(fits, "a cut turn says so", || format!("{found}, and the agent had not answered"));
                self.check(cut && !agent_runs, "a turn ends with an answer or an end", || {
                    format!("{found}, while its agent runs")
                });
            }
        }
    }

    /// Checks the journal and the daemon's view against the rules for a session at rest.
    fn at_rest(&mut self, history: &History) {
        let Some(rest) = history.rest else { return };
        let open: Vec<String> =
            self.turns.iter().filter(|(_, turn)| turn.is_open()).map(|(id, _)| id.to_string()).collect();
        self.check(open.is_empty(), "no turn stays open", || format!("turns {open:?} have not ended"));
        let agrees =
            rest.last_seq == self.seq && rest.launches == self.launch.number && rest.generation == self.generation;
        self.check(agrees, "the view is the journal", || format!("{rest:?}, and the journal says otherwise"));
        let (asked, waiting) = (self.permissions.len(), self.queue.len());
        // The daemon keeps the queued turns of a failed session until the next resume.
        let may_wait = rest.phase == Phase::Failed;
        let queue = rest.queued == waiting && (may_wait || waiting == 0);
        let quiet = !rest.turn_open && queue && rest.permissions == 0 && asked == 0;
        self.check(quiet, "nothing waits", || {
            format!("{rest:?}, {asked} questions and {waiting} turns in the journal")
        });
        let runs = self.launch.agent_runs();
        let fits = match rest.phase {
            Phase::Idle => runs && self.launch.opened,
            Phase::Stopped => !runs && self.launch.stop,
            Phase::Failed => !runs,
            _ => false,
        };
        self.check(fits, "the view is the journal", || format!("{rest:?}, and the agent runs: {runs}"));
        let due = self.launch.crashed.is_some() && !self.launch.stop && self.crashes.len() <= CRASHES;
        let crashes = self.crashes.len();
        self.check(!due || rest.phase == Phase::Idle, "restarts", || {
            format!("it rests after {crashes} crashes and was not started again")
        });
        let lost = rest.phase == Phase::Failed && self.launch.agent_started && self.launch.exits == 0;
        self.check(!lost, "one agent.exited a launch", || "the last agent's end is not in the journal".into());
    }
}
