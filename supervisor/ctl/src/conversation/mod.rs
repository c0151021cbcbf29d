//! Turns a session's events into the items that a user sees, and tracks the state that decides which actions
//! are possible.
//!
//! Pure: no clock, no terminal, no connection. History and live events take the same path. If reading began in
//! the middle of the journal, [`Conversation::adopt`] takes the state over from the daemon's view of that
//! point.

use std::collections::{HashMap, VecDeque};

use agentd_api::completion::Completion;
use agentd_api::event::{
    AgentExited, AnsweredBy, Exceeded, LaunchFailed, OpenedBy, PermissionOutcome, PermissionResolved, SyntheticCause,
    TurnEnded, TurnLimited, TurnStarted,
};
use agentd_api::prerequisite::{CheckReport, Outcome};
use agentd_api::prompt::shown;
use agentd_api::reason::{AUTHENTICATION_REQUIRED, is_progress};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, PermissionRequest, Phase, SessionStatus};
use agentd_api::staleness::{StaleFinding, StalePolicy};
use agentd_api::{Body, Event, TurnId};

use crate::acp::{self, PlanEntry, ToolUpdate, Update};
use crate::error::exit;
use crate::failure::{Failure, LastWords};
use crate::prerequisite::awaited;
use agentd_screen::change::Change;

/// Item to show to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// A turn began with this prompt.
    Prompt {
        turn: TurnId,
        prompt: String,
    },
    /// A prompt from before the adoption of the conversation.
    Earlier(String),
    Answer(String),
    Thought(String),
    ToolBegan {
        title: String,
        kind: Option<String>,
    },
    /// The note that the agent got before the prompt.
    Note {
        turn: TurnId,
        note: String,
    },
    /// Tool output since the previous item.
    ToolOutput(String),
    /// Change of a file by a tool.
    ToolChange(Change),
    ToolEnded {
        title: String,
        status: String,
    },
    Plan(Vec<PlanEntry>),
    /// A permission request was answered, by any client or policy.
    Answered {
        title: String,
        how: String,
    },
    /// A turn ended, with the failure unless it was shown before.
    TurnEnded(TurnEnded, Option<Failure>),
    Warning(String),
    /// Prerequisite that the launch waits for.
    Progress(String),
    /// A launch or the agent failed. Shown once, even if several events report it.
    Failed {
        failure: Failure,
        /// The failure came before the conversation was open.
        starting: bool,
    },
    /// Shown only with `--verbose`.
    Detail(String),
}

/// State of a tool call that has not ended.
#[derive(Debug, Default)]
struct Tool {
    title: String,
    shown: String,
    /// Source of the output that was shown. Agents repeat an output elsewhere, which is not shown again.
    source: Option<Source>,
    changes: Vec<Change>,
}

/// Field of an update that has a tool's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Content,
    Terminal,
    Raw,
}

impl Tool {
    /// Returns the part of the output that is not shown yet. Output that does not continue the shown part is new.
    fn output(&mut self, source: Source, output: &str) -> Option<String> {
        let source = *self.source.get_or_insert(source);
        let new = output.strip_prefix(self.shown.as_str()).unwrap_or(output).to_owned();
        let is_repeated = source == Source::Terminal && self.shown.trim_end() == output.trim_end();
        output.clone_into(&mut self.shown);
        Some(new).filter(|new| !new.is_empty() && !is_repeated)
    }
}

/// State of a session after the events applied so far.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    running: Option<TurnId>,
    waiting: VecDeque<(TurnId, String)>,
    permissions: Vec<PermissionRequest>,
    ready: bool,
    /// Set when the agent's process or its launch has ended; the next launch clears it.
    down: Option<Down>,
    /// A stop was requested during this launch.
    stopping: bool,
    tools: HashMap<String, Tool>,
    stderr: LastWords,
    /// Condition that is not shown yet: the end of the launch may follow with the same message.
    held: Option<Condition>,
    /// Failure of this launch or its agent; already shown.
    failure: Option<Failure>,
    /// Message of the condition after the agent refused the running turn for lack of a login.
    login: Option<String>,
    first_turn: Option<TurnId>,
}

/// Final state of a session, as far as its events show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Down {
    /// A stop was requested.
    Stopped,
    /// The session was not interactive, and its prompts are done.
    Completed,
    Failed,
}

impl Conversation {
    pub(crate) fn running(&self) -> Option<&TurnId> {
        self.running.as_ref()
    }

    /// Reports whether a turn is running or queued.
    pub(crate) fn has_work(&self) -> bool {
        self.running.is_some() || !self.waiting.is_empty()
    }

    /// Returns the number of queued turns.
    pub(crate) fn queued(&self) -> usize {
        self.waiting.len()
    }

    /// Reports whether the session accepts prompts.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    pub(crate) fn down(&self) -> Option<Down> {
        self.down
    }

    /// Returns the failure that ended the session, if these events contain it.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Returns the open permission requests, oldest first.
    pub(crate) fn permissions(&self) -> &[PermissionRequest] {
        &self.permissions
    }

    /// Returns the first turn that these events contain.
    pub(crate) fn first_turn(&self) -> Option<&TurnId> {
        self.first_turn.as_ref()
    }

    /// Takes the state over from the daemon's view, as of the last event applied.
    pub(crate) fn adopt(&mut self, status: &SessionStatus) {
        self.running = status.turn.as_ref().map(|turn| turn.id.clone());
        self.waiting = status.queue.iter().map(|turn| (turn.id.clone(), turn.prompt.clone())).collect();
        self.permissions.clone_from(&status.permissions);
        self.ready = status.phase.is_ready();
        self.down = match status.phase {
            Phase::Stopped => Some(Down::Stopped),
            Phase::Completed => Some(Down::Completed),
            Phase::Failed | Phase::BackingOff => Some(Down::Failed),
            _ => None,
        };
    }

    /// Applies one event and returns the items to show.
    pub(crate) fn apply(&mut self, event: &Event) -> Vec<Item> {
        let held = match &event.body {
            // Messages of the agent in between do not concern the launch.
            Body::AgentOut(_) | Body::AgentStderr(_) | Body::AgentNoise(_) => None,
            Body::LaunchFailed(failed) => self.held.take().filter(|held| held.message != failed.message),
            _ => self.held.take(),
        };
        let mut items: Vec<Item> = held.iter().map(warning).collect();
        items.extend(self.take_in(&event.body));
        items
    }

    fn take_in(&mut self, body: &Body) -> Vec<Item> {
        match body {
            Body::AgentOut(message) => self.update(acp::interpret(message)),
            Body::AgentStderr(text) | Body::AgentNoise(text) => {
                let line = text.text.display().trim_end().to_owned();
                self.stderr.push(&line);
                vec![Item::Detail(format!("agent: {line}"))]
            }
            Body::AgentDropped(dropped) => vec![Item::Warning(format!(
                "{} of the agent's messages ({} bytes) were dropped from the journal: {}",
                dropped.lines, dropped.bytes, dropped.reason
            ))],
            Body::LaunchStarted(launch) => {
                (self.down, self.ready, self.stopping) = (None, false, false);
                self.stderr.clear();
                self.failure = None;
                vec![Item::Detail(format!("launch {} started", launch.launch))]
            }
            Body::LaunchFailed(failed) => self.launch_failed(failed),
            Body::Condition(condition) => self.condition(condition),
            // The condition has the summaries and remedies.
            Body::PrerequisitesChecked(checked) => facts(&checked.reports),
            Body::PrerequisitesChanged(changed) => facts(&changed.reports),
            Body::ConversationOpened(opened) => {
                self.ready = true;
                match opened.by {
                    OpenedBy::NewAfterLoss => vec![Item::Warning(
                        "the agent could not restore the conversation: it starts a new one without the earlier \
                         messages"
                            .into(),
                    )],
                    _ => vec![Item::Detail(format!("conversation {} is open", opened.conversation))],
                }
            }
            Body::AgentStarted(started) => {
                vec![Item::Detail(format!("{} runs as process {}", started.command.join(" "), started.pid))]
            }
            Body::AgentUnusable(unusable) => {
                self.fall(Down::Failed);
                vec![Item::Warning(unusable.message.clone())]
            }
            Body::AgentExited(exited) => self.exited(exited),
            Body::TurnQueued(queued) => {
                self.first_turn.get_or_insert_with(|| queued.turn.clone());
                self.waiting.push_back((queued.turn.clone(), shown(&queued.prompt, &queued.parts)));
                Vec::new()
            }
            Body::TurnStarted(started) => self.turn_started(started),
            Body::TurnLimited(limited) => self.turn_limited(limited),
            Body::TurnEnded(ended) => {
                let failure = self.failure_of(ended);
                self.waiting.retain(|(turn, _)| *turn != ended.turn);
                if self.running.as_ref() == Some(&ended.turn) {
                    self.running = None;
                    self.login = None;
                    self.tools.clear();
                }
                vec![Item::TurnEnded(ended.clone(), failure)]
            }
            Body::StalenessFound(found) => found.findings.iter().map(stale).collect(),
            Body::PermissionRequested(requested) => {
                self.permissions.push(requested.request.clone());
                Vec::new() // asked from the state, and only when it is still open
            }
            Body::PermissionResolved(resolved) => self.resolved(resolved),
            Body::StopRequested(stop) => {
                (self.ready, self.stopping) = (false, true);
                if self.down.is_some() {
                    // The session waited for its restart, which is now cancelled.
                    self.down = Some(Down::Stopped);
                }
                vec![Item::Detail(format!("stop requested: {}{}", stop.reason, stop.cause))]
            }
            Body::SessionCompleting(completing) => {
                (self.ready, self.stopping) = (false, true);
                vec![Item::Detail(format!("the session ends: {}", completing.reason))]
            }
            Body::SessionCompleted(done) => self.completed(done),
            Body::AnswerChecked(checked) if !checked.errors.is_empty() && !checked.fails => {
                let errors: Vec<String> = checked.errors.iter().map(ToString::to_string).collect();
                let text = "the answer does not satisfy its schema, and the agent is asked once more";
                vec![Item::Warning(format!("{text}: {}", errors.join("; ")))]
            }
            Body::EnvironmentRefreshed(refreshed) if !refreshed.files.is_empty() => {
                vec![Item::Detail(format!("files rewritten: {}", refreshed.files.join(", ")))]
            }
            Body::ScriptProposed(proposed) => {
                let why = proposed.explanation.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
                vec![Item::Warning(format!(
                    "a script was proposed for this session{why}; `agentctl env allow --session SESSION` shows it and \
                     asks"
                ))]
            }
            Body::DaemonRecovered(recovered) => {
                vec![Item::Detail(format!("agentd {} took over the session", recovered.version))]
            }
            Body::Unknown { kind, .. } => {
                vec![Item::Detail(format!("event {kind:?} is unknown to this version of agentctl"))]
            }
            body => remembered(body).into_iter().map(Item::Detail).collect(),
        }
    }

    fn completed(&mut self, done: &Completion) -> Vec<Item> {
        // A view that was adopted can be newer than the agent's end and older than this record.
        self.down = Some(Down::Completed);
        vec![Item::Detail(format!("the session is {}: {}", done.outcome.as_str(), done.reason))]
    }

    fn turn_started(&mut self, started: &TurnStarted) -> Vec<Item> {
        let turn = &started.turn;
        self.running = Some(turn.clone());
        self.login = None;
        let at = self.waiting.iter().position(|(waiting, _)| waiting == turn);
        let prompt = at.and_then(|at| self.waiting.remove(at)).map(|(_, prompt)| prompt).unwrap_or_default();
        let failed = |error| format!("the note has the built-in template, since the configured one failed: {error}");
        let error = started.note_error.iter().map(|error| Item::Warning(failed(error)));
        let note = started.note.iter().map(|note| Item::Note { turn: turn.clone(), note: note.clone() });
        let prompt = (!started.again).then(|| Item::Prompt { turn: turn.clone(), prompt });
        error.chain(note).chain(prompt).collect()
    }

    fn turn_limited(&mut self, limited: &TurnLimited) -> Vec<Item> {
        if self.running.as_ref() == Some(&limited.turn) {
            self.running = None;
            self.tools.clear();
        }
        // The condition has the agent's words and the time.
        let (turn, until) = (&limited.turn, limited.until);
        vec![Item::Detail(format!("{turn} waits until {until} for the end of a rate limit"))]
    }

    fn update(&mut self, update: Option<Update>) -> Vec<Item> {
        match update {
            None => Vec::new(),
            Some(Update::Answer(text) | Update::Thought(text)) if text.is_empty() => Vec::new(),
            Some(Update::Answer(text)) => vec![Item::Answer(text)],
            Some(Update::Thought(text)) => vec![Item::Thought(text)],
            // During a turn some agents repeat the prompt.
            Some(Update::Prompt(text)) if self.running.is_none() => vec![Item::Earlier(text)],
            Some(Update::Prompt(_)) => vec![Item::Detail("agent: user_message_chunk".to_owned())],
            Some(Update::Tool(update)) => self.tool(update),
            Some(Update::Plan(entries)) => vec![Item::Plan(entries)],
            Some(Update::Other(name)) => vec![Item::Detail(format!("agent: {name}"))],
        }
    }

    fn tool(&mut self, update: ToolUpdate) -> Vec<Item> {
        let mut items = Vec::new();
        let known = self.tools.contains_key(&update.id);
        let tool = self.tools.entry(update.id.clone()).or_default();
        if !known {
            tool.title = update.title.clone().unwrap_or_else(|| update.id.clone());
            items.push(Item::ToolBegan { title: tool.title.clone(), kind: update.kind });
        } else if let Some(title) = update.title.filter(|title| *title != tool.title) {
            // Agents announce a call before they know its title.
            tool.title = title;
            items.push(Item::ToolBegan { title: tool.title.clone(), kind: update.kind });
        }
        if let Some(more) = update.more {
            tool.source.get_or_insert(Source::Terminal);
            tool.shown.push_str(&more);
            items.push(Item::ToolOutput(more));
        }
        // Each update has the complete output.
        if let Some(output) = update.output {
            items.extend(tool.output(Source::Content, &output).map(Item::ToolOutput));
        }
        if let Some(output) = update.raw.filter(|_| tool.source.is_none_or(|source| source == Source::Raw)) {
            items.extend(tool.output(Source::Raw, &output).map(Item::ToolOutput));
        }
        items.extend(
            update.changes.iter().filter(|change| !tool.changes.contains(change)).cloned().map(Item::ToolChange),
        );
        tool.changes.extend(update.changes);
        if let Some(status) = update.status.filter(|status| status == "completed" || status == "failed") {
            items.push(Item::ToolEnded { title: tool.title.clone(), status });
            self.tools.remove(&update.id);
        }
        items
    }

    fn condition(&mut self, condition: &Condition) -> Vec<Item> {
        if is_progress(&condition.reason) && condition.status != ConditionStatus::True && !self.stopping {
            return awaited(&condition.message).into_iter().map(Item::Progress).collect();
        }
        let bad = match condition.kind {
            ConditionType::EnvironmentDrifted | ConditionType::Degraded | ConditionType::RateLimited => {
                ConditionStatus::True
            }
            // The failed launch or turn has the same words.
            ConditionType::AuthenticationRequired => {
                let is_required = condition.status == ConditionStatus::True;
                self.login = is_required.then(|| condition.message.clone());
                return vec![Item::Detail(text_of(condition))];
            }
            _ => ConditionStatus::False,
        };
        // A condition that ended with the agent, or ends because of the stop, is not news.
        if condition.status != bad || self.down.is_some() || self.stopping {
            return vec![Item::Detail(text_of(condition))];
        }
        let step = matches!(
            condition.kind,
            ConditionType::EnvironmentReady | ConditionType::AgentStarted | ConditionType::ConversationReady
        );
        let may_end_the_launch = step || !self.ready;
        if may_end_the_launch {
            self.held = Some(condition.clone());
            return Vec::new();
        }
        vec![warning(condition)]
    }

    fn launch_failed(&mut self, failed: &LaunchFailed) -> Vec<Item> {
        let starting = !self.ready;
        if self.stopping || failed.reason == "Stopped" {
            self.fall(Down::Stopped);
            return vec![Item::Detail(failed.message.clone())];
        }
        self.fall(Down::Failed);
        if self.failure.is_some() {
            return vec![Item::Detail(failed.message.clone())];
        }
        self.fail(&failed.reason, failed.message.clone(), starting)
    }

    fn exited(&mut self, exited: &AgentExited) -> Vec<Item> {
        let starting = !self.ready;
        let (reason, message) = match (&exited.reason, exited.exceeded, &exited.exec_error) {
            (Some(why), Some(Exceeded::Memory), _) => ("OutOfMemory", format!("the session ran out of memory: {why}")),
            (Some(why), Some(Exceeded::Tasks), _) => {
                ("TooManyTasks", format!("the session had too many processes: {why}"))
            }
            (Some(why), ..) => ("AgentExited", format!("the agent was ended: {why}")),
            (None, _, Some(error)) => ("NotExecuted", format!("the agent could not be started: {error}")),
            (None, ..) => (
                "AgentExited",
                match (exited.status, exited.signal) {
                    (Some(status), _) => format!("the agent exited with status {status}"),
                    (None, Some(signal)) => format!("the agent was ended by signal {signal}"),
                    (None, None) => "the agent ended".to_owned(),
                },
            ),
        };
        if self.failure.is_some() {
            // agentd ended the agent because the launch had failed.
            self.fall(Down::Failed);
            return vec![Item::Detail(message)];
        }
        if exited.requested || self.stopping {
            self.fall(Down::Stopped);
            return vec![Item::Detail(message)];
        }
        self.fall(Down::Failed);
        self.fail(reason, message, starting)
    }

    /// Stores a failure and returns the item that shows it.
    fn fail(&mut self, reason: &str, message: String, starting: bool) -> Vec<Item> {
        let failure = Failure { reason: reason.to_owned(), message, stderr: self.stderr.take() };
        self.failure = Some(failure.clone());
        vec![Item::Failed { failure, starting }]
    }

    /// Returns the failure of a turn that agentd ended. Returns `None` if the agent's exit was shown and is the
    /// reason.
    fn failure_of(&mut self, ended: &TurnEnded) -> Option<Failure> {
        let synthetic = ended.synthetic.as_ref()?;
        if synthetic.cause == SyntheticCause::AgentExited && self.failure.is_some() {
            return None;
        }
        let login = self.login.take().filter(|_| self.running.as_ref() == Some(&ended.turn));
        let (reason, message) = match (synthetic.cause, login) {
            (SyntheticCause::AgentExited, _) => ("AgentExited", synthetic.detail.clone()),
            (SyntheticCause::AgentError, Some(message)) => (AUTHENTICATION_REQUIRED, message),
            _ => ("", synthetic.detail.clone()),
        };
        self.stderr.clear();
        Some(Failure { reason: reason.to_owned(), message, stderr: synthetic.stderr.clone() })
    }

    fn resolved(&mut self, resolved: &PermissionResolved) -> Vec<Item> {
        let at = self.permissions.iter().position(|request| request.id == resolved.permission);
        let request = at.map(|at| self.permissions.remove(at));
        let title = request.as_ref().map_or_else(|| resolved.permission.to_string(), |request| request.title.clone());
        let answer = match &resolved.outcome {
            PermissionOutcome::Cancelled => "cancelled".to_owned(),
            PermissionOutcome::Selected(_) if resolved.form.as_ref().is_some_and(|form| !form.is_empty()) => {
                crate::form::filled(resolved.form.as_ref().expect("it has values"))
            }
            PermissionOutcome::Selected(id) => {
                let options = request.iter().flat_map(|request| &request.options);
                options.into_iter().find(|option| option.id == *id).map_or(id, |option| &option.name).clone()
            }
        };
        let how = if resolved.by == AnsweredBy::Policy { format!("{answer}, by policy") } else { answer };
        vec![Item::Answered { title, how }]
    }

    fn fall(&mut self, down: Down) {
        self.ready = false;
        self.down = Some(down);
        self.permissions.clear();
    }
}

fn text_of(condition: &Condition) -> String {
    format!("{:?}: {}", condition.kind, condition.message)
}

fn stale(finding: &StaleFinding) -> Item {
    let text = format!("the session is stale ({}): {}", finding.kind.as_str(), finding.message);
    if finding.policy >= StalePolicy::Warn { Item::Warning(text) } else { Item::Detail(text) }
}

fn warning(condition: &Condition) -> Item {
    Item::Warning(text_of(condition))
}

/// Returns the facts of checks that did not pass.
fn facts(reports: &[CheckReport]) -> Vec<Item> {
    let not_passed = reports.iter().filter(|report| report.outcome != Outcome::Pass);
    let facts = not_passed.flat_map(|report| report.facts.iter().map(move |fact| (&report.name, fact)));
    facts.map(|(name, fact)| Item::Detail(format!("{name}: {}: {}", fact.name, fact.value))).collect()
}

/// Returns the exit status for the end of a turn.
pub(crate) fn exit_of(ended: &TurnEnded) -> u8 {
    match (&ended.synthetic, ended.stop_reason.as_deref()) {
        (Some(synthetic), _) if synthetic.cause == SyntheticCause::Dropped => exit::CANCELLED,
        (Some(synthetic), _) if synthetic.cause == SyntheticCause::AnswerInvalid => exit::SCHEMA,
        (None, Some("end_turn")) => 0,
        (None, Some("cancelled")) => exit::CANCELLED,
        _ => exit::FAILED,
    }
}

/// Returns the lines about a record that changes nothing in the conversation.
fn remembered(body: &Body) -> Vec<String> {
    match body {
        Body::ContextChanged(changed) => {
            let items = changed.context.sets.iter().map(|(set, items)| format!("{set}: {}", items.join(", ")));
            vec![format!("context: {}", items.collect::<Vec<_>>().join("; "))]
        }
        Body::ContextLoaded(loaded) => {
            loaded.missing.iter().map(|file| format!("the context's file {file} is missing")).collect()
        }
        Body::HintChanged(changed) => {
            vec![format!("environment hint: {}", changed.hint.as_deref().unwrap_or("removed"))]
        }
        Body::TitleChanged(changed) => vec![format!("title: {}", changed.title.as_deref().unwrap_or("removed"))],
        Body::TurnReleased(released) => {
            vec![format!("{} is sent again before the end of its rate limit", released.turn)]
        }
        Body::ProgressReported(reported) => vec![format!("progress: {}", reported.message)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
