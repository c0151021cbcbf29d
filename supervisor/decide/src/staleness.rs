//! Decides whether a session is stale: compares the state in which its agent last worked with the present state. Pure.
//!
//! [`compare`] is the comparison. The other functions return the records of a launch and its [`Outcome`]. A launch
//! compares at three points: before the environment is built, after that, and after the agent's answer to
//! `initialize`. A question to the clients ends the bring-up. An accepting answer begins it again, and the findings
//! that were accepted are not asked about again until the agent has worked.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use agentd_api::Body;
use agentd_api::event::{AnsweredBy, PermissionOutcome, PermissionRequested, PermissionResolved};
use agentd_api::facts::{FactsMoment, FactsObserved, Repository, RepositoryFacts, ScriptDigests, SessionFacts};
use agentd_api::permission::ToolDetails;
use agentd_api::reason;
use agentd_api::session::{
    AgentInfo, ConditionStatus, ConditionType, PermissionOption, PermissionOrigin, PermissionRequest,
};
use agentd_api::staleness::{StaleFinding, StaleKind, StalePolicy, StalenessFound};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::batch::Batch;
use crate::facts::Baseline;
use crate::next::{Facts, condition, fail_launch};
use crate::state::{OpenPermission, Run, State};

/// Maximum number of names in one message.
const NAMED: usize = 20;
/// Number of characters of a commit's id in a message.
const ABBREVIATED: usize = 12;

/// The policy of each kind, and the limit of `unused`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StalenessSettings {
    pub directory: StalePolicy,
    pub repository: StalePolicy,
    pub branch: StalePolicy,
    pub head: StalePolicy,
    pub scripts: StalePolicy,
    pub unused: StalePolicy,
    pub environment: StalePolicy,
    pub agent_version: StalePolicy,
    pub unused_after: Duration,
}

impl StalenessSettings {
    /// Returns settings that look for nothing.
    pub const IGNORE: Self = Self::all(StalePolicy::Ignore, Duration::MAX);

    /// Returns settings with one policy for all kinds.
    pub const fn all(policy: StalePolicy, unused_after: Duration) -> Self {
        Self {
            directory: policy,
            repository: policy,
            branch: policy,
            head: policy,
            scripts: policy,
            unused: policy,
            environment: policy,
            agent_version: policy,
            unused_after,
        }
    }

    pub fn policy(&self, kind: StaleKind) -> StalePolicy {
        match kind {
            StaleKind::Directory => self.directory,
            StaleKind::Repository => self.repository,
            StaleKind::Branch => self.branch,
            StaleKind::Head => self.head,
            StaleKind::Scripts => self.scripts,
            StaleKind::Unused => self.unused,
            StaleKind::Environment => self.environment,
            StaleKind::AgentVersion => self.agent_version,
            StaleKind::Unknown => StalePolicy::Ignore,
        }
    }

    fn looks_for(&self, kind: StaleKind) -> bool {
        self.policy(kind) != StalePolicy::Ignore
    }
}

/// The present state of a session's surroundings.
#[derive(Debug, Clone, Copy)]
pub struct Present<'a> {
    /// The session's directory.
    pub directory: &'a Path,
    pub facts: &'a SessionFacts,
    /// Digests of the scripts that a launch would run; `None` if they were not read.
    pub scripts: Option<&'a ScriptDigests>,
    pub time: Timestamp,
}

/// Result of one comparison, in the form of a condition. False means stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub kind: StaleKind,
    pub status: ConditionStatus,
    pub reason: &'static str,
    pub message: String,
}

impl Comparison {
    fn holds(kind: StaleKind, message: &str) -> Self {
        Self { kind, status: ConditionStatus::True, reason: reason::UNCHANGED, message: message.to_owned() }
    }

    fn stale(kind: StaleKind, reason: &'static str, message: String) -> Self {
        Self { kind, status: ConditionStatus::False, reason, message }
    }

    /// Returns the finding if the session is stale in this way.
    pub fn finding(&self, settings: &StalenessSettings) -> Option<StaleFinding> {
        (self.status == ConditionStatus::False).then(|| StaleFinding {
            kind: self.kind,
            reason: self.reason.to_owned(),
            message: self.message.clone(),
            policy: settings.policy(self.kind),
        })
    }
}

/// Compares the baseline with the present state. Kinds with the policy `ignore` are left out, and so are kinds of
/// which a side is unknown. The environment and the agent's version are compared by the launch itself.
pub fn compare(baseline: &Baseline, present: &Present<'_>, settings: &StalenessSettings) -> Vec<Comparison> {
    let mut found = Vec::new();
    if let Some(before) = &baseline.facts {
        found.extend(directory(before, present));
        let of_repository = repository(before, present.facts);
        let is_other = of_repository.iter().any(|one| one.status != ConditionStatus::True);
        found.extend(of_repository);
        // The branch of another repository tells nothing, unless a move is ignored.
        if let (Some(before), Some(now)) = (before.repository.found(), present.facts.repository.found())
            && !(is_other && settings.looks_for(StaleKind::Repository))
        {
            let of_branch = branch(before, now);
            let is_other = of_branch.status != ConditionStatus::True;
            found.push(of_branch);
            // Another branch has another head.
            if !(is_other && settings.looks_for(StaleKind::Branch)) {
                found.push(head(before, now));
            }
        }
    }
    found.extend(baseline.scripts.as_deref().zip(present.scripts).map(|(before, now)| scripts(before, now)));
    found.extend(baseline.used.map(|used| unused(used, present.time, settings.unused_after)));
    found.retain(|one| settings.looks_for(one.kind));
    found
}

fn directory(before: &SessionFacts, present: &Present<'_>) -> Option<Comparison> {
    let (before, now) = before.directory.as_ref().zip(present.facts.directory.as_ref())?;
    Some(if now.differs(before) {
        let message = format!("another directory is at {} than the one of before", present.directory.display());
        Comparison::stale(StaleKind::Directory, reason::DIRECTORY_REPLACED, message)
    } else {
        Comparison { reason: reason::FRESH, ..Comparison::holds(StaleKind::Directory, EXISTS) }
    })
}

/// Message of the condition `NotStale` while the directory is unchanged.
pub const EXISTS: &str = "the working directory exists";

fn repository(before: &SessionFacts, now: &SessionFacts) -> Option<Comparison> {
    let kind = StaleKind::Repository;
    let stale = |reason, message| Some(Comparison::stale(kind, reason, message));
    match (&before.repository, &now.repository) {
        (Repository::None, Repository::None) => {
            let message = "the directory is in no repository";
            Some(Comparison { reason: reason::NO_REPOSITORY, ..Comparison::holds(kind, message) })
        }
        (Repository::None, Repository::Found(now)) => {
            stale(reason::REPOSITORY_NEW, format!("the directory is now in the repository {}", now.root.display()))
        }
        (Repository::Found(before), Repository::None) => {
            stale(reason::REPOSITORY_GONE, format!("the repository {} of before is gone", before.root.display()))
        }
        (Repository::Found(before), Repository::Found(now)) if before.root != now.root => {
            let (before, now) = (before.root.display(), now.root.display());
            stale(reason::REPOSITORY_MOVED, format!("the repository is {now}, and was {before}"))
        }
        (Repository::Found(before), Repository::Found(now)) if before.remotes != now.remotes => {
            let names = changes(&before.remotes, &now.remotes);
            stale(reason::REMOTES_CHANGED, format!("the repository has other remotes than before: {names}"))
        }
        (Repository::Found(_), Repository::Found(_)) => {
            Some(Comparison::holds(kind, "the repository has its top directory and its remotes of before"))
        }
        (Repository::Unread(unread), _) | (_, Repository::Unread(unread)) => Some(Comparison {
            kind,
            status: ConditionStatus::Unknown,
            reason: reason::REPOSITORY_UNREAD,
            message: format!("the repository cannot be compared: {}", unread.message),
        }),
        (Repository::Unknown, _) | (_, Repository::Unknown) => None,
    }
}

fn branch(before: &RepositoryFacts, now: &RepositoryFacts) -> Comparison {
    let kind = StaleKind::Branch;
    if before.branch == now.branch {
        return Comparison::holds(kind, "the repository is on its branch of before");
    }
    let name = |facts: &RepositoryFacts| match &facts.branch {
        Some(branch) => format!("on the branch {branch:?}"),
        None => "on no branch".to_owned(),
    };
    let message = format!("the repository is {}, and was {}", name(now), name(before));
    Comparison::stale(kind, reason::BRANCH_CHANGED, message)
}

fn head(before: &RepositoryFacts, now: &RepositoryFacts) -> Comparison {
    let kind = StaleKind::Head;
    if before.head == now.head {
        return Comparison::holds(kind, "the head of the repository is at its commit of before");
    }
    let commit = |facts: &RepositoryFacts| match &facts.head {
        Some(head) => format!("at the commit {}", head.chars().take(ABBREVIATED).collect::<String>()),
        None => "at no commit".to_owned(),
    };
    let message = format!("the head of the repository is {}, and was {}", commit(now), commit(before));
    Comparison::stale(kind, reason::HEAD_CHANGED, message)
}

fn scripts(before: &ScriptDigests, now: &ScriptDigests) -> Comparison {
    let kind = StaleKind::Scripts;
    if before == now {
        return Comparison::holds(kind, "the environment's scripts are those of before");
    }
    let message = format!("the environment's scripts differ from those of before: {}", changes(before, now));
    Comparison::stale(kind, reason::SCRIPTS_CHANGED, message)
}

fn unused(used: Timestamp, now: Timestamp, limit: Duration) -> Comparison {
    let idle = now.duration_since(used);
    let is_recent = SignedDuration::try_from(limit).map_or(true, |limit| idle <= limit);
    let message = format!("the session was last used at {}", used.strftime("%Y-%m-%dT%H:%M:%SZ"));
    if is_recent {
        return Comparison { reason: reason::USED, ..Comparison::holds(StaleKind::Unused, &message) };
    }
    Comparison::stale(StaleKind::Unused, reason::UNUSED, format!("{message}, {} ago", time(idle)))
}

/// Formats a duration in its largest unit.
fn time(duration: SignedDuration) -> String {
    match duration.as_secs() {
        seconds if seconds >= 2 * 86_400 => format!("{} days", seconds / 86_400),
        seconds if seconds >= 2 * 3600 => format!("{} hours", seconds / 3600),
        seconds if seconds >= 120 => format!("{} minutes", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// Lists the keys that were added, changed and removed.
fn changes<V: PartialEq>(before: &BTreeMap<String, V>, now: &BTreeMap<String, V>) -> String {
    let changed = now.iter().filter_map(|(key, value)| match before.get(key) {
        None => Some(format!("{key:?} is new")),
        Some(known) if known != value => Some(format!("{key:?} has changed")),
        Some(_) => None,
    });
    let removed = before.keys().filter(|key| !now.contains_key(*key)).map(|key| format!("{key:?} is gone"));
    limited(changed.chain(removed).collect())
}

fn limited(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let text = names.join(", ");
    if more == 0 { text } else { format!("{text}, and {more} more") }
}

/// Staleness of a session, as its last launch found it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Staleness {
    /// Findings of the last launch.
    pub findings: Vec<StaleFinding>,
    /// Findings that a client accepted since the agent last worked.
    pub accepted: Vec<StaleFinding>,
    /// The refusing answer to agentd's question, for people.
    pub refused: Option<String>,
}

impl Staleness {
    pub(crate) fn launched(&mut self) {
        self.findings.clear();
        self.refused = None;
    }

    pub(crate) fn found(&mut self, found: &StalenessFound) {
        self.findings.retain(|known| !found.findings.iter().any(|new| new.kind == known.kind));
        self.findings.extend(found.findings.iter().cloned());
    }

    /// Applies the answer to a question of agentd.
    pub(crate) fn answered(&mut self, request: &PermissionRequest, resolved: &PermissionResolved) {
        let is_allowed =
            |id: &String| request.options.iter().any(|option| option.id == *id && option.kind.starts_with("allow"));
        match (&resolved.outcome, resolved.by) {
            (PermissionOutcome::Selected(id), _) if is_allowed(id) => {
                let asked: Vec<StaleFinding> = self.open().cloned().collect();
                self.accepted.extend(asked);
            }
            (_, AnsweredBy::Cancel) => {}
            (_, AnsweredBy::Expiry) => {
                self.refused = Some("no client answered within limits.permission".to_owned());
            }
            _ => self.refused = Some("a client decided not to continue".to_owned()),
        }
    }

    /// Reports whether staleness fails the launch. Another attempt by agentd itself would fail as well.
    pub fn forbids(&self) -> bool {
        self.refused.is_some() || self.findings.iter().any(|finding| finding.policy == StalePolicy::Refuse)
    }

    /// Returns the findings that a client has to accept.
    fn open(&self) -> impl Iterator<Item = &StaleFinding> {
        self.findings.iter().filter(|finding| finding.policy == StalePolicy::Ask && !self.accepted.contains(finding))
    }
}

/// Returns the open question of agentd itself.
pub fn question(state: &State) -> Option<&OpenPermission> {
    state.permissions.iter().find(|open| open.request.origin == PermissionOrigin::Agentd)
}

/// Consequence of a comparison for the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The launch continues.
    Continue,
    /// The launch waits for a client's answer.
    Ask,
    /// The launch fails.
    Fail,
}

/// Returns the records of the facts that a launch has read, and their consequence.
pub fn observed(state: &State, observed: FactsObserved, facts: &Facts<'_>) -> (Batch, Outcome) {
    let (present, scripts) = (observed.facts.clone(), observed.scripts.clone());
    let batch = Batch::of(Body::FactsObserved(observed));
    if state.launches <= 1 {
        // The creation. The bring-up itself reports that the directory exists.
        return (batch, Outcome::Continue);
    }
    let present =
        Present { directory: &facts.spec.directory, facts: &present, scripts: scripts.as_ref(), time: facts.now };
    let mut compared = compare(&state.facts.baseline, &present, facts.staleness);
    if !compared.iter().any(|one| one.kind == StaleKind::Directory) {
        let exists = Comparison { reason: reason::FRESH, ..Comparison::holds(StaleKind::Directory, EXISTS) };
        compared.insert(0, exists);
    }
    consequence(state, batch, &compared, facts)
}

/// Returns the records about the environment that a launch has built, and their consequence.
pub fn built(state: &State, facts: &Facts<'_>) -> (Batch, Outcome) {
    let kind = StaleKind::Environment;
    if state.launches <= 1 || !facts.staleness.looks_for(kind) {
        return (Batch::default(), Outcome::Continue);
    }
    let (baseline, drifted) = (&state.facts.baseline, state.condition(ConditionType::EnvironmentDrifted));
    let compared = if !baseline.changed.is_empty() && baseline.environment != state.facts.environment {
        let names = limited(baseline.changed.iter().cloned().collect());
        let message = format!("variables have changed since the agent last worked: {names}");
        Comparison::stale(kind, reason::ENVIRONMENT_CHANGED, message)
    } else if let Some(drifted) = drifted.filter(|drifted| drifted.status == ConditionStatus::True) {
        Comparison::stale(kind, reason::DRIFTED, drifted.message.clone())
    } else {
        Comparison::holds(kind, "no variable has changed since the agent last worked")
    };
    consequence(state, Batch::default(), &[compared], facts)
}

/// Returns the records about the agent's name and version, before the conversation is opened. Returns `None` if they
/// are recorded already.
pub(crate) fn introduced(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let kind = StaleKind::AgentVersion;
    let (before, now) = state.facts.baseline.agent.as_ref().zip(state.agent.as_ref())?;
    if state.launches <= 1 || !facts.staleness.looks_for(kind) || state.condition(kind.condition()).is_some() {
        return None;
    }
    let name = |agent: &AgentInfo| match &agent.version {
        Some(version) => format!("{:?} {version:?}", agent.name),
        None => format!("{:?}", agent.name),
    };
    let compared = if (&before.name, &before.version) == (&now.name, &now.version) {
        Comparison::holds(kind, "the agent has its name and version of before")
    } else {
        let message = format!("the agent is {}, and was {}", name(now), name(before));
        Comparison::stale(kind, reason::AGENT_CHANGED, message)
    };
    Some(consequence(state, Batch::default(), &[compared], facts).0)
}

/// Returns the records that end a launch after a refusing answer.
pub(crate) fn refusal(state: &State, launch: u64, facts: &Facts<'_>) -> Option<Batch> {
    let refused = state.staleness.refused.as_ref()?;
    let open: Vec<&StaleFinding> = state.staleness.open().collect();
    let first = open.first()?;
    let message = format!("{}; {refused}; `agentctl resume` asks again", messages(&open));
    Some(fail_launch(state, launch, first.kind.condition(), &first.reason, &message, facts))
}

/// Adds the conditions, the findings and the consequence to the batch.
fn consequence(state: &State, batch: Batch, compared: &[Comparison], facts: &Facts<'_>) -> (Batch, Outcome) {
    let is_known = |one: &&Comparison| {
        let known = state.condition(one.kind.condition());
        known.is_none_or(|known| {
            (known.status, &*known.reason, &known.message) != (one.status, one.reason, &one.message)
        })
    };
    let batch = compared.iter().filter(is_known).fold(batch, |batch, one| {
        batch.record(condition(state, facts, one.kind.condition(), one.status, one.reason, one.message.clone()))
    });
    let findings: Vec<StaleFinding> = compared.iter().filter_map(|one| one.finding(facts.staleness)).collect();
    if findings.is_empty() {
        return (batch, Outcome::Continue);
    }
    let launch = state.launches;
    let batch = batch.record(Body::StalenessFound(StalenessFound { launch, findings: findings.clone() }));
    let with = |policy| findings.iter().filter(move |finding| finding.policy == policy).collect::<Vec<_>>();
    let refused = with(StalePolicy::Refuse);
    if let Some(first) = refused.first() {
        let keys: Vec<String> = refused.iter().map(|finding| format!("staleness.{}", key(finding.kind))).collect();
        let message = format!("{}; restore it, or change {} in agentd.toml", messages(&refused), keys.join(" and "));
        let failed = fail_launch(state, launch, first.kind.condition(), &first.reason, &message, facts);
        return (failed.entries.into_iter().fold(batch, |batch, entry| batch.record(entry.body)), Outcome::Fail);
    }
    let mut asked = with(StalePolicy::Ask);
    asked.retain(|finding| !state.staleness.accepted.contains(finding));
    if asked.is_empty() {
        return (batch, Outcome::Continue);
    }
    (batch.record(Body::PermissionRequested(ask(state, &asked))), Outcome::Ask)
}

/// Returns the key of a kind in `[staleness]`.
pub fn key(kind: StaleKind) -> &'static str {
    if kind == StaleKind::AgentVersion { "agent_version" } else { kind.as_str() }
}

fn messages(findings: &[&StaleFinding]) -> String {
    findings.iter().map(|finding| finding.message.as_str()).collect::<Vec<_>>().join("; ")
}

/// Builds agentd's question. It belongs to no request of the agent.
fn ask(state: &State, asked: &[&StaleFinding]) -> PermissionRequested {
    let option = |id: &str, name: &str, kind: &str| PermissionOption {
        id: id.to_owned(),
        name: name.to_owned(),
        kind: kind.to_owned(),
    };
    let request = PermissionRequest {
        elicitation: None,
        id: state.next_permission_id(),
        origin: PermissionOrigin::Agentd,
        title: format!("continue although {}", messages(asked)),
        tool_kind: None,
        details: ToolDetails::default(),
        options: vec![
            option("continue", "Continue the session", "allow_once"),
            option("refuse", "Do not start the agent", "reject_once"),
        ],
    };
    PermissionRequested { request, rpc: Value::Null }
}

/// Reports whether a client may answer the question now: the launch that asks is in progress.
pub(crate) fn is_asking(state: &State) -> bool {
    match &state.run {
        Run::Ended(_) => false,
        Run::Preparing(preparing) => !preparing.stop,
        Run::Running(running) => running.ending.is_none(),
    }
}

/// Returns the record of facts that were read after the agent's work, or `None` if nothing is new.
pub fn reread(state: &State, moment: FactsMoment, read: SessionFacts) -> Option<Batch> {
    let is_new = state.facts.last.as_ref().is_none_or(|last| !last.equals(&read));
    let record = FactsObserved { launch: state.launches, moment, facts: read.into(), scripts: None };
    is_new.then(|| Batch::of(Body::FactsObserved(record)))
}
