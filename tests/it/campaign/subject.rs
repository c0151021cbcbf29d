//! One session of the campaign, with a record of its clients' requests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use agentd_api::session::{PermissionAnswer, PromptAccepted, SessionView};
use agentd_api::spec::SpecChangeView;
use agentd_api::{Event, SessionId, TurnId};
use serde_json::json;

use super::history::{Answer, Request, Seen, Violation, What};
use crate::harness::{Client, Response, journal, process};

/// Maximum time for one request. It exceeds every `?wait=` of the campaign.
const ANSWERED: Duration = Duration::from_secs(75);

/// One session, its files, and the record of its requests.
pub(crate) struct Subject {
    pub(crate) id: SessionId,
    pub(crate) client: Client,
    pub(crate) state: PathBuf,
    /// The agent's account and pid file.
    pub(crate) account: PathBuf,
    pub(crate) pids: PathBuf,
    /// Lock that a client holds from a stop of the session until its resume, so that no other client stops or resumes
    /// it.
    pub(crate) life: tokio::sync::Mutex<()>,
    record: Mutex<Record>,
    names: AtomicU64,
}

/// Observations of the session's clients.
#[derive(Debug, Default, Clone)]
pub(crate) struct Record {
    pub(crate) requests: Vec<Request>,
    pub(crate) streams: Vec<Vec<Seen>>,
    pub(crate) witnessed: Vec<Violation>,
}

impl Subject {
    pub(crate) fn new(id: SessionId, client: Client, state: PathBuf, account: PathBuf, pids: PathBuf) -> Self {
        let (life, record, names) = (tokio::sync::Mutex::default(), Mutex::default(), AtomicU64::new(1));
        Self { id, client, state, account, pids, life, record, names }
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no client panics while it writes down")
    }

    /// Returns a word that no other prompt and no other change of this session contains.
    pub(crate) fn name(&self) -> String {
        format!("p{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.id)
    }

    pub(crate) fn journal(&self) -> Vec<Event> {
        journal::parsed(&self.state, &self.id)
    }

    /// Returns the last 8 KiB of the journal's current segment.
    pub(crate) fn tail(&self) -> String {
        use std::io::{Read as _, Seek as _, SeekFrom};
        let mut bytes = Vec::new();
        if let Ok(mut file) = std::fs::File::open(journal::path(&self.state, &self.id)) {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            file.seek(SeekFrom::Start(length.saturating_sub(8192))).ok();
            file.read_to_end(&mut bytes).ok();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn witness(&self, rule: &'static str, what: impl Into<String>) {
        self.record().witnessed.push(Violation::new(rule, 0, what));
    }

    pub(crate) fn note(&self, from: SystemTime, what: What, answer: Answer) {
        self.record().requests.push(Request { from, until: SystemTime::now(), what, answer });
    }

    /// Sends one request and returns its response, or `None` if the connection broke. Reports a violation if a live
    /// daemon sends no response in time.
    async fn attempt(&self, method: &str, path: &str, body: &str, key: Option<&str>) -> Option<Response> {
        let answer = self.client.attempt(method, path, body.to_owned(), key);
        let answer = tokio::time::timeout(ANSWERED, answer).await;
        answer.unwrap_or_else(|_| {
            self.witness("every request is answered", format!("{method} {path}: no answer within {ANSWERED:?}"));
            None
        })
    }

    pub(crate) async fn view(&self) -> Option<SessionView> {
        let answer = self.attempt("GET", &self.path(""), "", None).await?;
        (answer.status == 200).then(|| answer.json())
    }

    /// Sends one request and records its answer.
    async fn ask(&self, what: What, method: &str, path: &str, body: String) -> Answer {
        let from = SystemTime::now();
        let answer = viewed(self.attempt(method, path, &body, None).await);
        self.note(from, what, answer.clone());
        answer
    }

    pub(crate) async fn stop(&self, query: &str) -> Answer {
        self.ask(What::Stop, "POST", &self.path(&format!("/stop{query}")), String::new()).await
    }

    pub(crate) async fn resume(&self, query: &str) -> Answer {
        self.ask(What::Resume, "POST", &self.path(&format!("/resume{query}")), String::new()).await
    }

    /// Cancels `turn`, or the running turn if `turn` is `None`.
    pub(crate) async fn cancel(&self, turn: Option<TurnId>) -> Answer {
        let (method, path) = match &turn {
            Some(turn) => ("DELETE", self.path(&format!("/turns/{turn}"))),
            None => ("POST", self.path("/cancel")),
        };
        self.ask(What::Cancel { turn }, method, &path, String::new()).await
    }

    /// Answers the question `permission` with the option `option`.
    pub(crate) async fn permit(&self, permission: String, option: String) -> Answer {
        let body = serde_json::to_string(&PermissionAnswer::Option(option.clone())).expect("an answer is JSON");
        let path = self.path(&format!("/permissions/{permission}"));
        self.ask(What::Permit { permission, option }, "POST", &path, body).await
    }

    /// Changes the session's tags to this one.
    pub(crate) async fn change(&self, tag: String) {
        let from = SystemTime::now();
        let answer = match self.attempt("PATCH", &self.path(""), &json!({ "tags": [tag] }).to_string(), None).await {
            None => Answer::Cut,
            Some(answer) if answer.status == 200 => {
                Answer::Changed { generation: answer.json::<SpecChangeView>().session.generation }
            }
            Some(answer) => refused(&answer),
        };
        self.note(from, What::Change { tag }, answer);
    }

    /// Sends a prompt. With a key, sends the prompt again until the daemon answers or `enough` returns true.
    pub(crate) async fn prompt(&self, text: String, key: Option<String>, enough: impl Fn() -> bool) -> Option<TurnId> {
        let (from, body, path) = (SystemTime::now(), json!({ "prompt": text }).to_string(), self.path("/prompt"));
        let answer = loop {
            let answer = match self.attempt("POST", &path, &body, key.as_deref()).await {
                None => Answer::Cut,
                Some(answer) if answer.status == 202 => Answer::Turn(answer.json::<PromptAccepted>().turn),
                Some(answer) => refused(&answer),
            };
            let definite = matches!(answer, Answer::Turn(_) | Answer::Refused(_));
            if definite || key.is_none() {
                break answer;
            }
            if enough() {
                break Answer::Failed(0);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let turn = if let Answer::Turn(turn) = &answer { Some(turn.clone()) } else { None };
        self.note(from, What::Prompt { text, key }, answer);
        turn
    }

    /// Returns the pids of the session's live keepers.
    pub(crate) fn keepers(&self) -> Vec<u32> {
        running(|arguments| {
            let is_keeper = arguments.first().is_some_and(|program| program.ends_with("agentd-keeper"));
            is_keeper && arguments.get(1).is_some_and(|role| role == "hold") && arguments.contains(&self.id.to_string())
        })
    }

    pub(crate) fn agents(&self) -> Vec<u32> {
        let account = self.account.display().to_string();
        running(|arguments| arguments.contains(&account))
    }

    /// Returns the pid of every live process that carries the session's mark.
    pub(crate) fn marked(&self) -> Vec<u32> {
        let mark = format!("AGENTD_SESSION={}", self.id);
        let carries = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        pids().into_iter().filter(|pid| process::is_alive(*pid) && carries(pid)).collect()
    }
}

/// Converts a response with a view of the session into an [`Answer`].
fn viewed(answer: Option<Response>) -> Answer {
    match answer {
        None => Answer::Cut,
        Some(answer) if answer.status.is_success() => {
            let view: SessionView = answer.json();
            Answer::View { phase: view.status.phase }
        }
        Some(answer) => refused(&answer),
    }
}

fn refused(answer: &Response) -> Answer {
    let status = answer.status.as_u16();
    if status < 500 { Answer::Refused(status) } else { Answer::Failed(status) }
}

fn pids() -> Vec<u32> {
    let processes = std::fs::read_dir(Path::new("/proc")).expect("/proc is mounted");
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn running(is_meant: impl Fn(&[String]) -> bool) -> Vec<u32> {
    let arguments = |pid: u32| -> Vec<String> {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
    };
    pids().into_iter().filter(|pid| is_meant(&arguments(*pid)) && process::is_alive(*pid)).collect()
}
