//! Rules that compare the clients' answers and the agents' notes with the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use agentd_api::event::{AnsweredBy, LaunchReason, PermissionOutcome, SyntheticCause, TurnEnded};
use agentd_api::session::Phase;
use agentd_api::{Body, Event, TurnId};

use super::history::{Answer, History, Note, Request, Seen, Violation, What};
use crate::harness::process::Identity;
use crate::harness::session::said;

/// The wall clock may change by some milliseconds while the campaign runs.
const CLOCK: Duration = Duration::from_millis(20);

/// Returns the violations in answers and event streams.
pub(crate) fn clients(history: &History) -> Vec<Violation> {
    let mut found = streams(history);
    let journal = Index::of(&history.journal);
    for request in &history.requests {
        let wrong = match &request.what {
            What::Prompt { text, key } => prompt(&journal, text, key.is_some(), &request.answer),
            What::CtlPrompt { text } => ctl_prompt(&journal, text, &request.answer),
            What::Cancel { turn } => cancel(&journal, turn.as_ref(), request),
            What::Stop => stop(&journal, request),
            What::Resume => resume(&journal, request),
            What::Permit { permission, option } => permit(&journal, permission, option, request),
            What::Change { tag } => change(&journal, tag, &request.answer),
        };
        found.extend(wrong);
    }
    let asked: BTreeSet<&str> = history.requests.iter().filter_map(|request| request.what.text()).collect();
    for (text, turns) in &journal.by_text {
        if !asked.contains(text) {
            found.push(Violation::new("a prompt is one turn", 0, format!("nobody asked for {text:?} ({turns:?})")));
        }
    }
    found
}

impl What {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Prompt { text, .. } | Self::CtlPrompt { text } => Some(text),
            Self::Cancel { .. } | Self::Stop | Self::Resume | Self::Permit { .. } | Self::Change { .. } => None,
        }
    }
}

/// The journal's turns, by their prompts and ids.
struct Index<'a> {
    events: &'a [Event],
    by_text: BTreeMap<&'a str, Vec<&'a TurnId>>,
    ends: BTreeMap<&'a TurnId, &'a TurnEnded>,
}

impl<'a> Index<'a> {
    fn of(events: &'a [Event]) -> Self {
        let mut index = Self { events, by_text: BTreeMap::new(), ends: BTreeMap::new() };
        for event in events {
            match &event.body {
                Body::TurnQueued(queued) => index.by_text.entry(&queued.prompt).or_default().push(&queued.turn),
                Body::TurnEnded(ended) => drop(index.ends.insert(&ended.turn, ended)),
                _ => {}
            }
        }
        index
    }

    fn turns(&self, text: &str) -> &[&'a TurnId] {
        self.by_text.get(text).map_or(&[], Vec::as_slice)
    }

    /// Returns the records written before this moment. The daemon sends an answer after it has written the answer's
    /// records. The view in the answer may be older, because the daemon shows an end only after it has closed
    /// everything.
    fn before(&self, time: SystemTime) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(move |event| SystemTime::from(event.time) <= time)
    }
}

fn streams(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (client, stream) in history.streams.iter().enumerate() {
        for (place, seen) in stream.iter().enumerate() {
            let expected = place as u64 + 1;
            if seen.seq != expected {
                let what = format!("client {client} got record {} where {expected} comes", seen.seq);
                found.push(Violation::new("streams", seen.seq, what));
                break;
            }
            if history.journal.get(place).map(Seen::of).as_ref() != Some(seen) {
                let what = format!("client {client} got a record {} that the journal does not have", seen.seq);
                found.push(Violation::new("streams", seen.seq, what));
                break;
            }
        }
        if let Some(rest) = history.rest.filter(|rest| rest.last_seq > stream.len() as u64) {
            let what = format!("client {client} saw {} of {} records", stream.len(), rest.last_seq);
            found.push(Violation::new("streams", stream.len() as u64, what));
        }
    }
    found
}

fn prompt(journal: &Index<'_>, text: &str, keyed: bool, answer: &Answer) -> Option<Violation> {
    const RULE: &str = "a prompt is one turn";
    let turns = journal.turns(text);
    let what = match answer {
        Answer::Turn(turn) if turns != [turn] => format!("{text:?} was accepted as turn {turn} and is {turns:?}"),
        Answer::Refused(status) if !turns.is_empty() => {
            format!("{text:?} was refused with {status} and is {turns:?}")
        }
        Answer::Cut | Answer::Failed(_) if turns.len() > 1 => format!("{text:?} is {turns:?}"),
        Answer::Cut if keyed => format!("{text:?} has a key and was not asked until there was an answer"),
        _ => return None,
    };
    Some(Violation::new(RULE, 0, what))
}

fn ctl_prompt(journal: &Index<'_>, text: &str, answer: &Answer) -> Option<Violation> {
    const RULE: &str = "agentctl tells the truth";
    let turns = journal.turns(text);
    let end = turns.first().and_then(|turn| journal.ends.get(turn));
    let reason = end.and_then(|end| end.stop_reason.as_deref());
    let what = match answer {
        _ if turns.len() > 1 => format!("{text:?} is {turns:?}"),
        Answer::Printed(_) if reason != Some("end_turn") => {
            format!("agentctl prompt {text:?} ended with 0, and the turn ended as {end:?}")
        }
        Answer::Printed(printed) if text.strip_prefix("say ") != Some(printed.trim()) => {
            format!("agentctl prompt {text:?} printed {printed:?}")
        }
        Answer::Cancelled if reason != Some("cancelled") && end.is_some_and(|end| end.stop_reason.is_some()) => {
            format!("agentctl prompt {text:?} said that the turn was cancelled, and it ended as {end:?}")
        }
        Answer::Refused(status) if !turns.is_empty() => {
            format!("agentctl prompt {text:?} ended with {status}, which is a refusal, and is {turns:?}")
        }
        _ => return None,
    };
    Some(Violation::new(RULE, 0, what))
}

/// Checks that the journal has the cancel of an accepted request, unless the turn had already ended.
fn cancel(journal: &Index<'_>, turn: Option<&TurnId>, request: &Request) -> Option<Violation> {
    let Answer::View { .. } = request.answer else { return None };
    // A request without a turn id cannot mean a turn that ended before the request.
    let ran = |turn: &TurnId| {
        let end = journal.events.iter().find(|event| matches!(&event.body, Body::TurnEnded(end) if end.turn == *turn));
        end.is_none_or(|end| SystemTime::from(end.time) + CLOCK >= request.from)
    };
    let is_it = |event: &&Event| match &event.body {
        Body::TurnCancelling(cancelling) => turn.map_or_else(|| ran(&cancelling.turn), |turn| cancelling.turn == *turn),
        Body::TurnEnded(ended) => turn.is_some_and(|turn| ended.turn == *turn),
        _ => false,
    };
    let upto: Vec<&Event> = journal.before(request.until).collect();
    let there = upto.iter().any(is_it);
    (!there).then(|| {
        let seq = upto.last().map_or(0, |event| event.seq);
        Violation::new("answers", seq, format!("a cancel of {turn:?} was accepted and is not in the journal"))
    })
}

/// Checks that after an accepted stop the session's last launch has ended or is ending.
fn stop(journal: &Index<'_>, request: &Request) -> Option<Violation> {
    let phase = match &request.answer {
        Answer::View { phase, .. } => Some(*phase),
        Answer::Printed(_) => None,
        Answer::Refused(status) => {
            let what = format!("a stop was refused with {status}, and a session can always be stopped");
            return Some(Violation::new("answers", 0, what));
        }
        _ => return None,
    };
    let upto: Vec<&Event> = journal.before(request.until).collect();
    let seq = upto.last().map_or(0, |event| event.seq);
    if let Some(phase) = phase.filter(|phase| !matches!(phase, Phase::Stopping | Phase::Stopped | Phase::Failed)) {
        return Some(Violation::new("answers", seq, format!("a stop was accepted, and the session is {phase:?}")));
    }
    let launched = upto.iter().rposition(|event| matches!(event.body, Body::LaunchStarted(_)))?;
    let since = &upto[launched..];
    let asked = since.iter().any(|event| matches!(event.body, Body::StopRequested(_)));
    let over = since.iter().any(|event| matches!(event.body, Body::AgentExited(_) | Body::LaunchFailed(_)));
    // `agentctl stop` returns only after the agent has ended.
    let done = if phase.is_some() { asked || over } else { over || (asked && !has_agent(since)) };
    (!done).then(|| Violation::new("answers", seq, "a stop was accepted, and the journal has neither it nor an end"))
}

fn has_agent(events: &[&Event]) -> bool {
    events.iter().any(|event| matches!(event.body, Body::AgentStarted(_)))
}

/// Checks that an accepted resume has a launch. `agentctl resume` with status 0 also has an open conversation.
fn resume(journal: &Index<'_>, request: &Request) -> Option<Violation> {
    let asked_for = |event: &&Event| {
        let is_one =
            |body: &Body| matches!(body, Body::LaunchStarted(started) if started.reason == LaunchReason::Resume);
        is_one(&event.body) && SystemTime::from(event.time) >= request.from
    };
    let upto: Vec<&Event> = journal.before(request.until).collect();
    let launched = upto.iter().position(asked_for);
    let opened = |from: usize| upto[from..].iter().any(|event| matches!(event.body, Body::ConversationOpened(_)));
    let (launched, opened) = match &request.answer {
        Answer::View { .. } => (launched.is_some(), true),
        Answer::Printed(_) => (launched.is_some(), launched.is_some_and(opened)),
        _ => return None,
    };
    let what = match (launched, opened) {
        (true, true) => return None,
        (false, _) => "a resume was accepted, and no launch was recorded",
        (true, false) => "agentctl resume ended with 0, and no conversation was opened",
    };
    Some(Violation::new("answers", 0, what))
}

fn permit(journal: &Index<'_>, permission: &str, option: &str, request: &Request) -> Option<Violation> {
    let Answer::View { .. } = request.answer else { return None };
    let resolved = journal.events.iter().find_map(|event| match &event.body {
        Body::PermissionResolved(resolved) if resolved.permission.as_str() == permission => Some(resolved),
        _ => None,
    });
    let chosen = PermissionOutcome::Selected(option.to_owned());
    let fits = resolved.is_some_and(|resolved| resolved.by == AnsweredBy::Client && resolved.outcome == chosen);
    (!fits).then(|| {
        Violation::new("answers", 0, format!("{permission} was answered {option:?}, and the journal has {resolved:?}"))
    })
}

/// Checks that an answered change is recorded with its generation, that a refused one is not, and that none is
/// recorded twice.
fn change(journal: &Index<'_>, tag: &str, answer: &Answer) -> Option<Violation> {
    let made = journal.events.iter().filter_map(|event| match &event.body {
        Body::SpecChanged(changed) if changed.spec.tags == [tag] => Some(changed.generation),
        _ => None,
    });
    let made: Vec<u64> = made.collect();
    let fits = match answer {
        Answer::Changed { generation } => made == [*generation],
        Answer::Refused(_) => made.is_empty(),
        _ => made.len() <= 1,
    };
    let what = || format!("the change to {tag:?} was answered {answer:?}, and the journal has {made:?}");
    (!fits).then(|| Violation::new("a change is kept", 0, what()))
}

/// Compares the agents' notes with the journal.
pub(crate) fn account(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut asked: BTreeSet<&str> = BTreeSet::new();
    let was_killed = |keeper: &Option<Identity>| keeper.is_some_and(|keeper| history.killed.contains(&keeper));
    let (journal, index) = (lives(&history.journal), Index::of(&history.journal));
    let mut answered: Vec<(Identity, &str, &str)> = Vec::new();
    let mut prompt = None;
    let mut life: Option<(Identity, Vec<&str>)> = None;
    let mut lives: Vec<(Identity, Vec<&str>)> = Vec::new();
    for note in &history.account {
        match note {
            Note::Overlapped(agent) => {
                let what = format!("agent {} was started while another one of the session was alive", agent.pid);
                found.push(Violation::new("one agent at a time", 0, what));
            }
            Note::Began(agent) => lives.extend(life.replace((*agent, Vec::new()))),
            Note::Asked(text) => {
                if !asked.insert(text) {
                    let what = format!("agents of the session were asked {text:?} twice");
                    found.push(Violation::new("a prompt is sent once", 0, what));
                }
                prompt = Some(text);
            }
            Note::Said(text) => {
                if let Some((_, said)) = &mut life {
                    said.push(text);
                }
            }
            Note::Answered(answer) => {
                answered.extend(
                    life.as_ref()
                        .zip(prompt.take())
                        .map(|((agent, _), prompt)| (*agent, prompt.as_str(), answer.as_str())),
                );
            }
        }
    }
    for (agent, prompt, answer) in answered {
        let Some(life) = journal.get(&agent) else { continue };
        // If the keeper dies, the bytes in its pipe are lost. An agent notes an error before it answers with the error.
        if was_killed(&life.keeper) || (answer == "error" && history.killed.contains(&agent)) {
            continue;
        }
        let Some(end) = index.turns(prompt).first().and_then(|turn| index.ends.get(turn)) else { continue };
        let cause = end.synthetic.as_ref().map(|synthetic| synthetic.cause);
        let fits = match answer {
            "error" => end.stop_reason.is_none() && cause == Some(SyntheticCause::AgentError),
            reason => end.stop_reason.as_deref() == Some(reason) && cause.is_none(),
        };
        if !fits {
            let what =
                format!("{agent:?} noted that it answered {prompt:?} with {answer:?}, and the turn ended as {end:?}");
            found.push(Violation::new("what an agent answers is how its turn ends", life.seq, what));
        }
    }
    lives.extend(life);
    for (agent, noted) in lives {
        let Some(recorded) = journal.get(&agent) else { continue };
        let expected = recorded.said.iter().map(String::as_str).take(noted.len());
        let same = expected.eq(noted.iter().copied().take(recorded.said.len()));
        // A kill can hit the agent between its line and its note. The bytes in the pipe are lost only if the keeper
        // dies.
        let whole = noted.len() <= recorded.said.len() || was_killed(&recorded.keeper);
        let known = recorded.said.len() <= noted.len() + 1;
        if !(same && whole && known) {
            let what = format!(
                "{agent:?} noted that it said {} things, the journal has {}; the last of both: {:?} and {:?}",
                noted.len(),
                recorded.said.len(),
                noted.last(),
                recorded.said.last(),
            );
            found.push(Violation::new("what an agent says is kept", recorded.seq, what));
        }
    }
    found
}

/// Records of one agent process.
#[derive(Default)]
struct Life {
    seq: u64,
    keeper: Option<Identity>,
    said: Vec<String>,
}

/// Returns the records of each agent process.
fn lives(journal: &[Event]) -> BTreeMap<Identity, Life> {
    let mut lives: BTreeMap<Identity, Life> = BTreeMap::new();
    let (mut keeper, mut agent) = (None, None);
    for event in journal {
        match &event.body {
            Body::KeeperStarted(started) => {
                keeper = Some(Identity { pid: started.pid, start_time: started.start_time });
            }
            Body::AgentStarted(started) => {
                let process = Identity { pid: started.pid, start_time: started.start_time };
                agent = Some(process);
                lives.insert(process, Life { seq: event.seq, keeper, said: Vec::new() });
            }
            Body::AgentOut(_) => {
                if let Some((life, said)) = agent.and_then(|agent| lives.get_mut(&agent)).zip(said(event)) {
                    life.said.push(said);
                }
            }
            _ => {}
        }
    }
    lives
}
