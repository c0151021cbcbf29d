//! Applies records to the state of a session. [`State::apply`] is the only way in which a state changes, in normal
//! operation and after a crash alike.
//!
//! The fold is total. A record that does not fit, such as a kind from a later release or an answer without its
//! request, changes only the sequence number. [`super::dialogue`] folds in the lines between agentd and the agent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use agentd_api::context::Progress;
use agentd_api::event::{
    AgentExited, AgentStarted, ConversationOpened, EnvironmentBuilt, LaunchReason, LaunchStarted, PermissionRequested,
    PermissionResolved, SessionCreated, TurnEnded, TurnQueued, TurnStarted,
};
use agentd_api::prompt::shown;
use agentd_api::scripts::ProposedScript;
use agentd_api::session::{Condition, PermissionOrigin};
use agentd_api::workflow::WorkflowChanged;
use agentd_api::{Body, Event, TurnId};
use jiff::{SignedDuration, Timestamp};

use crate::acp::Capabilities;
use crate::exit::describe_exit;
use crate::login::Login;
use crate::options::{AgentOptions, ChangedOptions};
use crate::placed::Placed;
use crate::state::{
    CutTurn, EndReason, Ended, KeeperId, OpenPermission, Opening, Pending, Preparing, PromptKey, QueuedTurn,
    RESTARTING, Run, Running, RunningTurn, STOPPED, State, Title, WAS_STOPPED, prompt_digest,
};
use crate::verdict::supersede;

/// Lifetime of an idempotency key, measured between the times of records.
const KEY_LIFE: SignedDuration = SignedDuration::from_hours(24);
/// Maximum number of idempotency keys kept. Beyond this number the oldest keys are dropped early.
const KEYS: usize = 4096;
/// Age after which a crash no longer counts.
const CRASH_WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// Number of a turn's last stderr lines that its synthetic end quotes.
const LAST_WORDS: usize = 5;

impl State {
    /// Applies one record.
    pub fn apply(&mut self, event: &Event) {
        if self.seq > 0 {
            // States stored by older releases lack this time.
            self.facts.used_since(self.updated);
        }
        self.seq = event.seq;
        self.updated = event.time;
        let before = self.phase();
        self.apply_body(event);
        self.complete(event);
        self.note_times(before);
        self.note_need();
    }

    fn apply_body(&mut self, event: &Event) {
        match &event.body {
            Body::SpecChanged(changed) => {
                self.repositories.spec_changed(changed);
                self.workflow.requested(&changed.spec);
                self.options_wanted(changed);
                self.spec_changed(changed);
            }
            Body::WorkflowChanged(changed) => self.workflow_changed(changed),
            Body::WorkflowFailed(failed) => self.workflow.failed(failed),
            Body::RepositoryChanged(changed) => self.repositories.changed(changed, self.updated),
            Body::SessionCreated(created) => self.created(created),
            Body::LaunchStarted(started) => self.launch_started(started),
            Body::LaunchDegraded(degraded) if degraded.launch == self.launches => {
                self.degraded.clone_from(&degraded.missing);
            }
            Body::LaunchFailed(failed) => self.launch_failed(&failed.message),
            Body::Condition(condition) => self.set_condition(condition),
            Body::KeeperStarted(keeper) => {
                self.keeper = Some(KeeperId {
                    pid: keeper.pid,
                    start_time: keeper.start_time,
                    launch: keeper.launch,
                    protocol: keeper.protocol,
                    fills_contents: keeper.fills_contents,
                });
            }
            Body::EnvironmentBuilt(built) => self.environment_built(built),
            Body::FactsObserved(observed) => self.facts.observed(observed),
            Body::StalenessFound(found) if found.launch == self.launches => self.staleness.found(found),
            Body::EnvironmentRefreshed(refreshed) if refreshed.launch == self.launches => {
                (self.expires, self.renews) = (refreshed.expires_at, refreshed.renew_at.or(refreshed.expires_at));
                self.stale.clone_from(&refreshed.stale);
            }
            Body::PrerequisitesChecked(checked) if checked.launch == self.launches => {
                supersede(&mut self.prerequisites, &checked.reports);
            }
            Body::PrerequisitesChanged(changed) if changed.launch == self.launches => {
                supersede(&mut self.prerequisites, &changed.reports);
            }
            Body::AgentStarted(agent) => self.agent_started(agent),
            Body::PlaceChanged(changed) => self.place_changed(changed),
            Body::AgentResumed(resumed) => self.agent_resumed(resumed),
            Body::AgentOut(line) => {
                self.heard();
                self.agent_out(line);
            }
            Body::AgentStderr(line) => self.agent_stderr(&line.text.display()),
            Body::AgentIn(line) => self.agent_in(line),
            Body::AgentUnusable(unusable) => {
                if let Run::Running(running) = &mut self.run
                    && running.ending.is_none()
                {
                    running.ending = Some(EndReason::Unusable(unusable.message.clone()));
                }
            }
            Body::AgentExited(exited) => self.agent_exited(exited),
            Body::ConversationOpened(opened) => self.conversation_opened(opened),
            Body::TurnQueued(queued) => self.turn_queued(queued),
            Body::TurnStarted(started) => self.turn_started(started),
            Body::TurnLimited(limited) => self.turn_limited(limited),
            Body::TurnReleased(released) => self.turn_released(released),
            Body::TurnEnded(ended) => self.turn_ended(ended),
            Body::TurnCancelling(cancelling) => self.in_turn(&cancelling.turn, |turn| turn.cancelling = true),
            Body::PermissionRequested(requested) => self.permission_requested(requested),
            Body::PermissionResolved(resolved) => {
                if resolved.cause.requester.as_ref().is_some_and(|requester| requester.session.is_none()) {
                    self.observed = Some(event.time);
                }
                self.permission_resolved(resolved);
            }
            Body::StopRequested(_) => self.stop_requested(),
            Body::ContextChanged(_)
            | Body::ContextLoaded(_)
            | Body::HintChanged(_)
            | Body::TitleChanged(_)
            | Body::ProgressReported(_)
            | Body::ScriptProposed(_)
            | Body::SessionObserved(_) => self.remember(event),
            Body::TurnSilent(silent) => self.in_turn(&silent.turn, |turn| turn.silent = true),
            Body::LaunchDegraded(_)
            | Body::EnvironmentRefreshed(_)
            | Body::StalenessFound(_)
            | Body::AnswerChecked(_)
            | Body::SessionCompleting(_)
            | Body::SessionCompleted(_)
            | Body::PrerequisitesChecked(_)
            | Body::PrerequisitesChanged(_)
            | Body::PrerequisitesForced(_)
            | Body::AgentNoise(_)
            | Body::PlaceRead(_)
            | Body::AgentReplayed(_)
            | Body::AgentDropped(_)
            | Body::DaemonRecovered(_)
            | Body::JournalRepaired(_)
            | Body::Unknown { .. } => {}
        }
    }

    /// Applies the last of several agent lines that no rule inspects. The result equals that of applying each line.
    pub fn said(&mut self, seq: u64, time: Timestamp) {
        (self.seq, self.updated) = (seq, time);
        self.heard();
    }

    /// Applies a record of what the session remembers beside its conversation.
    fn remember(&mut self, event: &Event) {
        match &event.body {
            Body::ContextChanged(changed) => {
                self.context = changed.context.clone();
                self.context_missing.retain(|file| self.context.sets.values().any(|items| items.contains(file)));
            }
            Body::ContextLoaded(loaded) => self.context_missing.clone_from(&loaded.missing),
            Body::HintChanged(changed) => self.hint.clone_from(&changed.hint),
            Body::TitleChanged(changed) => self.title.set.clone_from(&changed.title),
            Body::ProgressReported(reported) => {
                let (message, percent) = (reported.message.clone(), reported.percent);
                self.progress = Some(Progress { message, percent, at: event.time });
            }
            Body::ScriptProposed(proposed) => {
                let (digest, explanation) = (proposed.digest.clone(), proposed.explanation.clone());
                self.proposal = Some(ProposedScript { digest, explanation, at: event.time });
            }
            Body::SessionObserved(_) => self.observed = Some(event.time),
            _ => {}
        }
    }

    /// Ends a running agent that has another workflow.
    fn workflow_changed(&mut self, changed: &WorkflowChanged) {
        let is_another = self.workflow.changed(changed);
        if let Run::Running(running) = &mut self.run
            && running.ending.is_none()
            && is_another
        {
            running.ending = Some(EndReason::Switch);
        }
    }

    fn created(&mut self, created: &SessionCreated) {
        let Some(continues) = &created.continues else { return };
        self.conversation = Some(continues.conversation.clone());
        self.is_taken_over = !continues.is_adopted;
        self.conversation_home.clone_from(&continues.home);
        self.conversation_places.clone_from(&continues.places);
        self.conversation_born = continues.created;
        self.conversation_directory.clone_from(&continues.directory);
        self.can_fork = continues.can_fork;
        self.workflow.created(continues);
    }

    fn launch_started(&mut self, started: &LaunchStarted) {
        self.launches = started.launch;
        self.times.ended = None;
        self.conditions.clear();
        self.spec_launched();
        self.keeper = None;
        // `expires` and `renews` are kept: a reused environment keeps its schedule.
        self.stale.clear();
        self.prerequisites.clear();
        self.forced_by.clone_from(&started.forced_by);
        self.degraded_by.clone_from(&started.degraded_by);
        self.degraded.clear();
        self.exceeded = None;
        self.placed = None;
        self.pending_note.launched(started.reason);
        self.facts.launched(self.agent.as_ref());
        self.staleness.launched();
        if started.reason != LaunchReason::Restart {
            self.crashes.clear();
        }
        self.run = Run::Preparing(Preparing {
            launch: started.launch,
            reason: started.reason,
            fresh: started.fresh || self.conversation.is_none(),
            stop: false,
            wait_until: started.wait_until,
        });
    }

    fn environment_built(&mut self, built: &EnvironmentBuilt) {
        self.home.clone_from(&built.home);
        self.places.clone_from(&built.places);
        // A bring-up that begins again, for example under another daemon, reports the missing parts again.
        self.degraded.clear();
        (self.expires, self.renews) = (built.expires_at, built.renew_at.or(built.expires_at));
        self.pending_note.built(built);
        self.workflow.environment_built();
        self.options_built(&built.options);
        self.mcp.clone_from(&built.mcp);
        self.login.clone_from(&built.login);
        self.key_logins.clone_from(&built.key_logins);
        self.facts.built(built);
    }

    fn stop_requested(&mut self) {
        match &mut self.run {
            Run::Preparing(preparing) => preparing.stop = true,
            Run::Running(running) => running.ending = Some(EndReason::Stop),
            Run::Ended(ended @ Ended::Switching) => *ended = Ended::Stopped,
            // The session was about to restart its agent. The stop cancels the restart.
            Run::Ended(Ended::Failed(_)) if !self.crashes.is_empty() => {
                self.crashes.clear();
                self.run = Run::Ended(Ended::Stopped);
                for condition in self.conditions.iter_mut().filter(|condition| condition.reason == RESTARTING) {
                    STOPPED.clone_into(&mut condition.reason);
                    WAS_STOPPED.clone_into(&mut condition.message);
                }
            }
            Run::Ended(_) => {}
        }
    }

    fn launch_failed(&mut self, message: &str) {
        let is_forbidden = self.staleness.forbids();
        match &mut self.run {
            Run::Preparing(preparing) if preparing.stop => self.run = Run::Ended(Ended::Stopped),
            Run::Preparing(preparing) => {
                // A restart that fails before the agent runs counts as another crash. The next pause is longer, and
                // the number of restarts stays limited.
                // A launch that staleness forbids is not repeated.
                if is_forbidden {
                    self.crashes.clear();
                } else if preparing.reason.is_own() {
                    self.crashes.push(self.updated);
                }
                self.run = Run::Ended(Ended::Failed(message.to_owned()));
            }
            // The agent runs already and has to be ended first.
            Run::Running(running) => running.ending = Some(EndReason::Failure(message.to_owned())),
            Run::Ended(_) => {}
        }
    }

    pub(crate) fn set_condition(&mut self, condition: &Condition) {
        self.option_unanswered(condition);
        match self.conditions.iter_mut().find(|known| known.kind == condition.kind) {
            Some(known) => *known = condition.clone(),
            None => self.conditions.push(condition.clone()),
        }
    }

    fn agent_started(&mut self, agent: &AgentStarted) {
        let Run::Preparing(preparing) = &self.run else { return };
        self.run = Run::Running(Box::new(Running {
            launch: agent.launch,
            reason: preparing.reason,
            fresh: preparing.fresh,
            pid: agent.pid,
            start_time: agent.start_time,
            isolation: agent.isolation.clone(),
            pending: BTreeMap::new(),
            asked: Vec::new(),
            opening: Opening::Initializing,
            capabilities: Capabilities::default(),
            is_second_attempt: false,
            options: AgentOptions::default(),
            login: Login::default(),
            editor: BTreeSet::new(),
            calls: VecDeque::new(),
            turn: None,
            idle_since: self.seq,
            ending: preparing.stop.then_some(EndReason::Stop),
        }));
        self.placed = agent.place.clone().map(|place| Placed::submitted(place, agent.resident));
        self.times.started = Some(self.updated);
        self.workflow.agent_started();
    }

    fn agent_exited(&mut self, exited: &AgentExited) {
        if exited.launch != self.launches {
            // The record comes from the keeper of an earlier launch, which ended without `agent.exited`.
            return;
        }
        let (ending, turn, lived) = match &mut self.run {
            Run::Running(running) => {
                let lived = running.opening == Opening::Open || running.reason.is_own();
                let turn = running.turn.take().map(|turn| {
                    let calls = running.names_of(&turn.tool_calls);
                    (turn, calls)
                });
                (running.ending.take(), turn, lived)
            }
            // The agent could not be executed, which ends the launch.
            Run::Preparing(preparing) if exited.exec_error.is_some() => (None, None, preparing.reason.is_own()),
            // The keeper ended before it had an agent. The launch continues without it.
            Run::Preparing(_) => {
                self.keeper = None;
                self.spec_launched();
                return;
            }
            Run::Ended(_) => return,
        };
        let how = describe_exit(exited);
        self.workflow.agent_exited();
        self.exceeded = exited.exceeded;
        self.pending_note.agent_exited(
            self.updated,
            match &ending {
                None if !exited.requested => Some(how.clone()),
                // The message of an unusable agent is the agent's own text.
                Some(EndReason::Unusable(_)) => Some("the agent could not continue its conversation".to_owned()),
                _ => None,
            },
        );
        if let Some((turn, calls)) = turn {
            self.facts.cut(self.seq, self.updated);
            self.cut = Some(CutTurn {
                id: turn.id,
                tool_calls: turn.tool_calls.into_iter().collect(),
                calls,
                detail: how.clone(),
                stderr: turn.stderr.into(),
                answer: turn.answer,
            });
        }
        let crashed = match &ending {
            None => !exited.requested && (exited.reason.is_none() || self.is_lost()) && lived,
            Some(EndReason::Unusable(_)) => true,
            Some(EndReason::Stop | EndReason::Failure(_) | EndReason::Switch) => false,
        };
        if crashed {
            let now = self.updated;
            self.crashes.retain(|crash| now.duration_since(*crash) < CRASH_WINDOW);
            self.crashes.push(now);
        } else {
            // A restart would not help: the end was requested, a limit was exceeded, or the agent never opened a
            // conversation.
            self.crashes.clear();
        }
        self.run = Run::Ended(match ending {
            Some(EndReason::Stop) => Ended::Stopped,
            Some(EndReason::Switch) => Ended::Switching,
            Some(EndReason::Failure(message) | EndReason::Unusable(message)) => Ended::Failed(message),
            None if exited.requested => Ended::Stopped,
            None => Ended::Failed(how),
        });
    }

    fn conversation_opened(&mut self, opened: &ConversationOpened) {
        self.pending_note.opened(opened.by, self.conversation.is_some());
        if self.conversation.as_ref() != Some(&opened.conversation) || self.is_adopting() {
            self.conversation_born = Some(self.updated);
            self.conversation_home.clone_from(&opened.home);
            self.conversation_places.clone_from(&opened.places);
            self.conversation_directory = Some(opened.directory.clone());
            // A copy of a conversation has the options that it was opened with.
            self.changed_options = ChangedOptions::default();
        }
        self.workflow.opened(opened.by);
        self.conversation = Some(opened.conversation.clone());
        self.is_taken_over = false;
        self.facts.opened(self.agent.as_ref(), self.updated);
        let seq = self.seq;
        if let Run::Running(running) = &mut self.run {
            running.opening = Opening::Open;
            running.idle_since = seq;
        }
    }

    fn turn_queued(&mut self, queued: &TurnQueued) {
        self.forget_keys();
        if let Some(key) = &queued.key {
            let digest = prompt_digest(queued);
            let (key, turn, time) = (key.clone(), queued.turn.clone(), Some(self.updated));
            self.keys.push_back(PromptKey { key, turn, digest, seq: self.seq, time });
        }
        if self.title.prompt.is_none() {
            self.title.prompt = Title::of(&shown(&queued.prompt, &queued.parts));
        }
        // A guest's prompt is no look of a person.
        if queued.requester.as_ref().is_some_and(|requester| requester.session.is_none()) {
            self.observed = Some(self.updated);
        }
        let turn = QueuedTurn { id: queued.turn.clone(), prompt: queued.prompt.clone(), parts: queued.parts.clone() };
        if queued.is_startup {
            self.queue.push_front(turn);
        } else {
            self.queue.push_back(turn);
        }
        self.workflow.turn_queued(queued);
        self.next_turn += 1;
    }

    /// Drops expired keys and makes room for one more.
    fn forget_keys(&mut self) {
        let now = self.updated;
        // States stored by older releases have no times. Such a key counts as new.
        self.keys.iter_mut().for_each(|key| _ = key.time.get_or_insert(now));
        self.keys.retain(|key| key.time.is_none_or(|time| now.duration_since(time) < KEY_LIFE));
        while self.keys.len() >= KEYS {
            self.keys.pop_front();
        }
    }

    /// Changes the running turn if it is this one.
    fn in_turn(&mut self, id: &TurnId, change: impl FnOnce(&mut RunningTurn)) {
        if let Some(turn) = self.turn_mut().filter(|turn| turn.id == *id) {
            change(turn);
        }
    }

    fn heard(&mut self) {
        let seq = self.seq;
        if let Some(turn) = self.turn_mut() {
            (turn.heard, turn.silent) = (seq, false);
        }
    }

    fn agent_stderr(&mut self, line: &str) {
        if let Some(turn) = self.turn_mut() {
            if turn.stderr.len() == LAST_WORDS {
                turn.stderr.pop_front();
            }
            turn.stderr.push_back(line.to_owned());
        }
    }

    fn turn_started(&mut self, started: &TurnStarted) {
        let Some(position) = self.queue.iter().position(|queued| queued.id == started.turn) else { return };
        let Run::Running(running) = &mut self.run else { return };
        let Some(queued) = self.queue.remove(position) else { return };
        self.pending_note.turn_started();
        self.workflow.turn_started();
        self.facts.turn_started(self.agent.as_ref(), self.updated);
        self.staleness.accepted.clear();
        running.turn = Some(RunningTurn {
            id: queued.id,
            prompt: queued.prompt,
            parts: queued.parts,
            cancelling: false,
            heard: self.seq,
            silent: false,
            stderr: VecDeque::new(),
            tool_calls: BTreeSet::new(),
            answer: None,
        });
        self.limit_started(&started.turn);
    }

    fn turn_ended(&mut self, ended: &TurnEnded) {
        let id = &ended.turn;
        self.turn_ended_at = Some(self.updated);
        self.queue.retain(|queued| queued.id != *id);
        self.limit_ended(id);
        if let Some(cut) = self.cut.take_if(|cut| cut.id == *id) {
            self.pending_note.turn_ended(self.updated, cut.calls);
        }
        if let Run::Running(running) = &mut self.run
            && running.turn.as_ref().is_some_and(|turn| turn.id == *id)
        {
            self.facts.turn_ended(self.seq, self.updated);
            self.pending_note.turn_ended(self.updated, running.names_of(&ended.interrupted_tool_calls));
            running.turn = None;
            running.calls.clear();
            running.idle_since = self.seq;
            // A response to the prompt that arrives after the end of the turn is ignored.
            running.pending.retain(|_, pending| !matches!(pending, Pending::Prompt(turn) if turn == id));
        }
    }

    fn permission_requested(&mut self, requested: &PermissionRequested) {
        self.next_permission += 1;
        self.permissions.push(OpenPermission { request: requested.request.clone(), rpc: requested.rpc.clone() });
    }

    fn permission_resolved(&mut self, resolved: &PermissionResolved) {
        let position = self.permissions.iter().position(|open| open.request.id == resolved.permission);
        let Some(open) = position.map(|position| self.permissions.remove(position)) else { return };
        if open.request.origin == PermissionOrigin::Agentd {
            self.staleness.answered(&open.request, resolved);
        }
    }
}
