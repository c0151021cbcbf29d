//! History of one session of the campaign, from its journal, its clients and its agents.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::time::SystemTime;

use agentd_api::session::Phase;
use agentd_api::{Event, TurnId};

use crate::harness::process::Identity;

/// Delay before a session's first restart, as the campaign configures it.
pub(crate) const RESTART_FIRST_MS: i64 = 100;
/// Number of crashes, since the last launch by a client, after which the daemon does not restart the session.
pub(crate) const CRASHES: usize = 5;
/// Age in seconds from which a crash no longer counts.
pub(crate) const CRASH_WINDOW_S: i64 = 600;

/// Exit status of an agent that ends because of an `exit` prompt.
pub(crate) const EXITS: i32 = 17;

/// Observations of one session by its journal, its clients and its agents.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) journal: Vec<Event>,
    pub(crate) requests: Vec<Request>,
    /// Events that each client saw, over all its connections.
    pub(crate) streams: Vec<Vec<Seen>>,
    /// Notes of the session's agents, in order.
    pub(crate) account: Vec<Note>,
    /// Agents and keepers that the campaign killed with a signal.
    pub(crate) killed: BTreeSet<Identity>,
    /// The daemon's view of the session at rest; `None` if the session did not come to rest.
    pub(crate) rest: Option<Rest>,
    /// Violations that clients and strikes found while the round ran.
    pub(crate) witnessed: Vec<Violation>,
}

/// The daemon's view of a session at rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    pub(crate) phase: Phase,
    pub(crate) generation: u64,
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
    /// Reads all complete lines of the account.
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

/// A client's request, its time and its answer.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
    pub(crate) what: What,
    pub(crate) answer: Answer,
}

/// Kinds of requests that must occur in a long campaign, or the campaign fails.
pub(crate) const REQUESTS: [&str; 10] = [
    "a prompt that is accepted",
    "a prompt by agentctl that is answered",
    "a cancel of the turn that runs",
    "a cancel of a turn by its id",
    "a cancel that is refused",
    "a stop",
    "a stop by agentctl",
    "a resume",
    "an answer to a question",
    "a change of the specification",
];

impl Request {
    /// Returns the element of [`REQUESTS`] that describes this request.
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
            (What::Change { .. }, Answer::Changed { .. }) => 9,
            _ => return None,
        };
        Some(REQUESTS[place])
    }
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    /// A prompt with a text that no other prompt has. The client repeated a prompt with a key until the daemon
    /// answered.
    Prompt {
        text: String,
        key: Option<String>,
    },
    /// A prompt by `agentctl`, which waits until the turn ends.
    CtlPrompt {
        text: String,
    },
    /// A cancel of `turn`, or of the running turn if `turn` is `None`.
    Cancel {
        turn: Option<TurnId>,
    },
    Stop,
    Resume,
    Permit {
        permission: String,
        option: String,
    },
    /// A change of the specification, to a tag that no other change has.
    Change {
        tag: String,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// No answer came: the connection broke, or no daemon listened.
    Cut,
    /// The daemon or `agentctl` answered that it refused the request.
    Refused(u16),
    /// The daemon failed, and may or may not have done the work.
    Failed(#[expect(dead_code, reason = "it is shown with the requests of a session that failed")] u16),
    Turn(TurnId),
    /// A view of the session after the request.
    View {
        phase: Phase,
    },
    /// The specification has this generation after the request.
    Changed {
        generation: u64,
    },
    /// `agentctl` ended with status 0 and printed this text.
    Printed(String),
    /// `agentctl` ended with status 130, because the turn was cancelled.
    Cancelled,
}

/// A broken rule, and the place in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    /// The `seq` of the record that breaks the rule; 0 if the violation belongs to no record.
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
    /// Returns all violations of this session.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let mut found = self.witnessed.clone();
        found.extend(super::model::journal(self));
        found.extend(super::clients_model::clients(self));
        found.extend(super::clients_model::account(self));
        found
    }
}
