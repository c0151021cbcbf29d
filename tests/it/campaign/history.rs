//! What is known of one session of the campaign from every side: its journal, its clients, its agents.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::time::SystemTime;

use agentd_api::session::Phase;
use agentd_api::{Event, TurnId};

use crate::harness::process::Identity;

/// The rules of a session's restarts, as the campaign configures them.
pub(crate) const RESTART_FIRST_MS: i64 = 100;
/// After so many crashes since the last launch that a client asked for, a session is left as it is.
pub(crate) const CRASHES: usize = 5;
/// Crashes further back than this count no more.
pub(crate) const CRASH_WINDOW_S: i64 = 600;

/// The status of an agent that was prompted to end by itself.
pub(crate) const EXITS: i32 = 17;

/// One session from every side.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) journal: Vec<Event>,
    pub(crate) requests: Vec<Request>,
    /// What each client saw, over all its connections.
    pub(crate) streams: Vec<Vec<Seen>>,
    /// What the session's agents noted themselves, in order.
    pub(crate) account: Vec<Note>,
    /// Agents and keepers that were ended by a signal.
    pub(crate) killed: BTreeSet<Identity>,
    /// What the daemon shows once nothing is to be done any more; `None` while the session is still in motion.
    pub(crate) rest: Option<Rest>,
    /// What was found wrong at the moment at which it happened.
    pub(crate) witnessed: Vec<Violation>,
}

/// A session at rest, as the daemon shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    pub(crate) phase: Phase,
    pub(crate) launches: u64,
    pub(crate) last_seq: u64,
    pub(crate) turn_open: bool,
    pub(crate) queued: usize,
    pub(crate) permissions: usize,
}

/// An event as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) seq: u64,
    pub(crate) digest: u64,
}

impl Seen {
    pub(crate) fn of(event: &Event) -> Self {
        let mut hasher = DefaultHasher::new();
        event.time.hash(&mut hasher);
        event.body.kind().hash(&mut hasher);
        event.body.to_data().get().hash(&mut hasher);
        Self { seq: event.seq, digest: hasher.finish() }
    }
}

/// A line of an agent's account (tests/agents/account.rs).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    Began(Identity),
    Overlapped(Identity),
    Asked(String),
    Said(String),
    Answered(String),
}

impl Note {
    /// Every whole line of the account.
    pub(crate) fn read(path: &Path) -> Vec<Self> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .map(|line| {
                let (word, text) = line.split_once(' ').expect("a word and a text");
                let text: String = serde_json::from_str(text).expect("the text is a JSON string");
                let process = || Identity::parse(&text).expect("a line of stat");
                match word {
                    "began" => Self::Began(process()),
                    "overlapped" => Self::Overlapped(process()),
                    "asked" => Self::Asked(text),
                    "said" => Self::Said(text),
                    "answered" => Self::Answered(text),
                    other => panic!("an account has no word {other:?}"),
                }
            })
            .collect()
    }
}

/// What a client asked, when, and what came of it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
    pub(crate) what: What,
    pub(crate) answer: Answer,
}

/// What clients have to have asked for, with what came of it, before a long campaign says anything.
pub(crate) const REQUESTS: [&str; 9] = [
    "a prompt that is accepted",
    "a prompt by agentctl that is answered",
    "a cancel of the turn that runs",
    "a cancel of a turn by its id",
    "a cancel that is refused",
    "a stop",
    "a stop by agentctl",
    "a resume",
    "an answer to a question",
];

impl Request {
    /// Which of [`REQUESTS`] it is.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        let place = match (&self.what, &self.answer) {
            (What::Prompt { .. }, Answer::Turn(_)) => 0,
            (What::CtlPrompt { .. }, Answer::Printed(_)) => 1,
            (What::Cancel { turn: None }, Answer::View { .. }) => 2,
            (What::Cancel { turn: Some(_) }, Answer::View { .. }) => 3,
            (What::Cancel { .. }, Answer::Refused(_)) => 4,
            (What::Stop, Answer::View { .. }) => 5,
            (What::Stop, Answer::Printed(_)) => 6,
            (What::Resume, Answer::View { .. }) => 7,
            (What::Permit { .. }, Answer::View { .. }) => 8,
            _ => return None,
        };
        Some(REQUESTS[place])
    }
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    /// Its text is in no other prompt. With a key it was asked again until there was an answer.
    Prompt {
        text: String,
        key: Option<String>,
    },
    /// A prompt by `agentctl`, which waits for the turn's end.
    CtlPrompt {
        text: String,
    },
    /// Of this turn, or of the one that runs.
    Cancel {
        turn: Option<TurnId>,
    },
    Stop,
    Resume,
    Permit {
        permission: String,
        option: String,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// No answer came: the connection broke, or no daemon listened.
    Cut,
    /// The daemon, or `agentctl` for it, said that it was not done.
    Refused(u16),
    /// The daemon failed: whether it was done is not known.
    Failed(#[expect(dead_code, reason = "it is shown with the requests of a session that failed")] u16),
    Turn(TurnId),
    /// A view of the session after it was done.
    View {
        phase: Phase,
    },
    /// `agentctl` ended with status 0, and what it had printed.
    Printed(String),
    /// `agentctl` ended with 130: the turn was cancelled.
    Cancelled,
}

/// What must not be, where it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    /// The record it was seen at; 0 where it is none of the journal's.
    pub(crate) seq: u64,
    pub(crate) what: String,
}

impl Violation {
    pub(crate) fn new(rule: &'static str, seq: u64, what: impl Into<String>) -> Self {
        Self { rule, seq, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at record {}): {}", self.rule, self.seq, self.what)
    }
}

impl History {
    /// Everything about this session that must not be.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let mut found = self.witnessed.clone();
        found.extend(super::model::journal(self));
        found.extend(super::clients_model::clients(self));
        found.extend(super::clients_model::account(self));
        found
    }
}
