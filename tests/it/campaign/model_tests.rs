//! Histories that test the rules of the model. For each rule, one history breaks this rule and no other. Some histories
//! break no rule.
//!
//! Each history is a text with one group of words for each record, see [`record`].

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use agentd_api::session::Phase;
use agentd_api::{Body, Event};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::history::{Answer, CRASHES, History, Note, Request, Rest, Seen, Violation, What};
use crate::harness::process::Identity;

/// Records of a session that a client created, that opened its conversation, and that ended one turn.
const WHOLE: &str = "launch 1 create; keeper 1 10; agent 1 11; open 1; \
    queue t1 count 2 0; start t1 7; in 7; say 1; say 2; answer 7 end_turn; end t1 end_turn";

/// Converts the words of a record, a name and its arguments, into the record's kind and data.
fn record(words: &str) -> (&'static str, Value) {
    let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
    let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
    let number = || first.parse::<u64>().expect("a number");
    match word {
        "launch" => ("launch.started", json!({ "launch": number(), "reason": second })),
        "launch-failed" => ("launch.failed", json!({ "launch": number(), "reason": "X", "message": "x" })),
        "keeper" => {
            let pid: u32 = second.parse().expect("a pid");
            let data = json!({ "pid": pid, "start_time": 1, "version": "1", "protocol": 1, "launch": number() });
            ("keeper.started", data)
        }
        "agent" => {
            let pid: u32 = second.parse().expect("a pid");
            ("agent.started", json!({ "launch": number(), "pid": pid, "start_time": 1, "command": [] }))
        }
        "unusable" => ("agent.unusable", json!({ "launch": number(), "reason": "X", "message": "x" })),
        "exit" => ("agent.exited", json!({ "launch": number(), "requested": second == "requested" })),
        "open" => ("conversation.opened", json!({ "launch": number(), "conversation": "c", "by": "new" })),
        "queue" => ("turn.queued", json!({ "turn": first, "prompt": second })),
        "start" => ("turn.started", json!({ "turn": first, "rpc": second.parse::<u64>().expect("an id") })),
        "in" => ("agent.in", json!({ "jsonrpc": "2.0", "id": number(), "method": "session/prompt" })),
        "reply" => ("agent.in", json!({ "jsonrpc": "2.0", "id": first, "result": {} })),
        "say" => {
            let content = json!({ "type": "text", "text": format!("{rest}\n") });
            let update = json!({ "sessionUpdate": "agent_message_chunk", "content": content });
            ("agent.out", json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "update": update } }))
        }
        "answer" => ("agent.out", json!({ "jsonrpc": "2.0", "id": number(), "result": { "stopReason": second } })),
        "error" => ("agent.out", json!({ "jsonrpc": "2.0", "id": number(), "error": { "code": 1, "message": "x" } })),
        "cancelling" => ("turn.cancelling", json!({ "turn": first })),
        "end" => match second.strip_prefix('!') {
            Some(cause) => ("turn.ended", json!({ "turn": first, "synthetic": { "cause": cause, "detail": "x" } })),
            None => ("turn.ended", json!({ "turn": first, "stop_reason": second })),
        },
        "ask" => {
            let request = json!({ "id": first, "title": "x", "options": [] });
            ("permission.requested", json!({ "request": request, "rpc": "scripted-1" }))
        }
        "resolve" => {
            let (option, by) = second.split_once(' ').expect("an option and who chose it");
            let data = json!({ "permission": first, "outcome": { "selected": option }, "by": by });
            ("permission.resolved", data)
        }
        "change" => {
            let spec = json!({ "directory": "/", "tags": [second] });
            ("spec.changed", json!({ "generation": number(), "spec": spec, "changes": [] }))
        }
        "stop" => ("stop.requested", json!({ "reason": "x" })),
        other => panic!("no record is written as {other:?}"),
    }
}

/// Builds a journal. Its records have the numbers from 1 and are one second apart; `@MS` and `#SEQ` change that for the
/// next record.
fn journal(text: &str) -> Vec<Event> {
    let (mut events, mut ms, mut seq) = (Vec::new(), 0, 0);
    for words in text.split(';').map(str::trim).filter(|words| !words.is_empty()) {
        let (mut words, mut pause) = (words, 1000);
        seq += 1;
        if let Some((given, rest)) = words.strip_prefix('@').and_then(|rest| rest.split_once(' ')) {
            (pause, words) = (given.parse().expect("milliseconds"), rest);
        }
        if let Some((given, rest)) = words.strip_prefix('#').and_then(|rest| rest.split_once(' ')) {
            (seq, words) = (given.parse().expect("a seq"), rest);
        }
        ms += pause;
        let time = format!("2026-01-01T00:{:02}:{:02}.{:03}Z", ms / 60_000, ms / 1000 % 60, ms % 1000);
        let (kind, data) = record(words);
        let line = json!({ "seq": seq, "time": time, "kind": kind, "data": data }).to_string();
        events.push(Event::parse(line.as_bytes()).unwrap_or_else(|error| panic!("{error:?}: {line}")));
    }
    events
}

fn asked(what: What, answer: Answer) -> Request {
    let from = SystemTime::UNIX_EPOCH;
    Request { from, until: from + Duration::from_secs(4_000_000_000), what, answer }
}

/// Returns the identity of a process of the records above.
fn process(pid: u32) -> Identity {
    Identity { pid, start_time: 1 }
}

/// Like [`asked`], with an answer that arrived after the record `seq` and before the next one.
fn asked_at(seq: u64, what: What, answer: Answer) -> Request {
    let time: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let until = SystemTime::from(time) + Duration::from_millis(seq * 1000 + 500);
    Request { until, ..asked(what, answer) }
}

/// Returns a history with this journal. Clients sent each of its prompts, stops and cancels without an answer, and the
/// campaign killed its agents.
fn of(text: &str) -> History {
    let journal = journal(text);
    let prompts = journal.iter().filter_map(|event| match &event.body {
        Body::TurnQueued(queued) => Some(queued.prompt.clone()),
        _ => None,
    });
    let texts: BTreeSet<String> = prompts.collect();
    let mut requests: Vec<Request> =
        texts.into_iter().map(|text| asked(What::Prompt { text, key: None }, Answer::Cut)).collect();
    let mut killed = BTreeSet::new();
    for event in &journal {
        match &event.body {
            Body::StopRequested(_) => requests.push(asked(What::Stop, Answer::Cut)),
            Body::SpecChanged(changed) => {
                requests.push(asked(What::Change { tag: changed.spec.tags[0].clone() }, Answer::Cut));
            }
            Body::TurnCancelling(_) => requests.push(asked(What::Cancel { turn: None }, Answer::Cut)),
            Body::AgentStarted(started) => drop(killed.insert(process(started.pid))),
            _ => {}
        }
    }
    History { journal, requests, killed, ..History::default() }
}

/// Like [`of`], with the session at rest in this phase.
fn resting(text: &str, phase: Phase) -> History {
    let mut history = of(text);
    let launches = history.journal.iter().filter(|event| event.body.kind() == "launch.started").count() as u64;
    let last_seq = history.journal.last().map_or(0, |event| event.seq);
    let changes = history.journal.iter().filter(|event| event.body.kind() == "spec.changed").count() as u64;
    let quiet =
        Rest { phase, generation: 1 + changes, launches, last_seq, turn_open: false, queued: 0, permissions: 0 };
    history.rest = Some(quiet);
    history
}

fn rules(violations: &[Violation]) -> BTreeSet<&'static str> {
    violations.iter().map(|violation| violation.rule).collect()
}

fn breaks(history: &History, rule: &'static str, what: &str) {
    breaks_each(&[(rule, what, history)]);
}

/// Asserts that each history breaks its rule and no other.
fn breaks_each(histories: &[(&'static str, &str, &History)]) {
    let wrong: Vec<String> = histories
        .iter()
        .map(|(rule, what, history)| (rule, what, history.violations()))
        .filter(|(rule, _, found)| rules(found) != BTreeSet::from([**rule]))
        .map(|(rule, what, found)| format!("{rule}, {what}: {found:#?}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn breaks_nothing(history: &History, what: &str) {
    let found = history.violations();
    assert!(found.is_empty(), "{what}: {found:#?}");
}

const CRASHED: &str = "queue t2 hang; start t2 8; in 8; exit 1; end t2 !agent-exited";
const LOST: &str = "queue t2 hang; start t2 8; in 8; error 8; unusable 1";

#[test]
fn histories_that_keep_every_promise_are_not_complained_of() {
    breaks_nothing(&resting(WHOLE, Phase::Idle), "a turn");
    let histories = [
        ("cut", format!("{WHOLE}; {CRASHED}; launch 2 restart; keeper 2 20; agent 2 21; open 2"), Phase::Idle),
        (
            "answered, then killed",
            format!(
                "{WHOLE}; queue t2 hang; start t2 8; in 8; answer 8 end_turn; exit 1; end t2 end_turn; \
                 launch 2 restart; agent 2 21; open 2"
            ),
            Phase::Idle,
        ),
        ("an error", format!("{WHOLE}; queue t2 error; start t2 8; in 8; error 8; end t2 !agent-error"), Phase::Idle),
        (
            "cancelled",
            format!("{WHOLE}; queue t2 hang; start t2 8; in 8; cancelling t2; answer 8 cancelled; end t2 cancelled"),
            Phase::Idle,
        ),
        (
            "stopped with a turn that waits",
            format!("{WHOLE}; queue t2 hang; stop; exit 1 requested; end t2 !dropped"),
            Phase::Stopped,
        ),
        ("stopped while a restart was due", format!("{WHOLE}; {CRASHED}; stop"), Phase::Stopped),
        (
            "a restart that failed",
            format!(
                "{WHOLE}; {CRASHED}; launch 2 restart; launch-failed 2; \
            launch 3 restart; agent 3 31; open 3"
            ),
            Phase::Idle,
        ),
        (
            "a lost conversation",
            format!(
                "{WHOLE}; {LOST}; exit 1 requested; end t2 !agent-error; \
            launch 2 restart; agent 2 21; open 2"
            ),
            Phase::Idle,
        ),
        (
            "a lost conversation of an agent that is killed after its answer",
            format!(
                "{WHOLE}; queue t2 hang; start t2 8; in 8; error 8; exit 1; end t2 !agent-error; unusable 1; \
            launch 2 restart; agent 2 21; open 2"
            ),
            Phase::Idle,
        ),
        (
            "a stop while an agent is ended that lost its conversation",
            format!("{WHOLE}; {LOST}; end t2 !agent-error; stop; exit 1 requested"),
            Phase::Stopped,
        ),
        ("a question", format!("{WHOLE}; ask p1; resolve p1 yes policy; reply scripted-1"), Phase::Idle),
    ];
    for (what, text, phase) in &histories {
        breaks_nothing(&resting(text, *phase), what);
    }
}

#[test]
fn each_rule_of_the_journal_is_broken_by_a_history() {
    let idle = "launch 1 create; keeper 1 10; agent 1 11; open 1";
    let histories: [(&str, &str, String); 38] = [
        ("sequence", "a gap", format!("{WHOLE}; #13 stop")),
        ("sequence", "a double", format!("{WHOLE}; #11 stop")),
        ("launches", "a number left out", "launch 1 create; launch-failed 1; launch 3 resume".into()),
        ("launches", "two agents of one launch", format!("{idle}; agent 1 12")),
        ("launches", "one that failed twice", "launch 1 create; launch-failed 1; launch-failed 1".into()),
        ("launches", "a conversation of none", format!("{idle}; exit 1; open 1")),
        ("one agent.exited a launch", "two", format!("{WHOLE}; stop; exit 1 requested; exit 1 requested")),
        ("one agent.exited a launch", "none", format!("{WHOLE}; launch 2 resume")),
        ("one agent.exited a launch", "of another launch", format!("{WHOLE}; stop; exit 2 requested")),
        (
            "one agent.exited a launch",
            "before its agent",
            "launch 1 create; exit 1 requested; agent 1 11; exit 1".into(),
        ),
        ("agent speaks", "after its end", format!("{WHOLE}; exit 1; say x")),
        ("agent is sent", "after its end", format!("{WHOLE}; exit 1; reply x")),
        ("turns are numbered", "one left out", format!("{idle}; queue t2 hang")),
        ("a prompt is one turn", "two turns of one prompt", format!("{WHOLE}; queue t2 count 2 0")),
        (
            "no launch beside an open turn",
            "a cut turn",
            format!(
                "{WHOLE}; queue t2 hang; start t2 8; in 8; exit 1; \
            launch 2 restart; agent 2 21; open 2"
            ),
        ),
        ("permissions", "open over a launch", format!("{WHOLE}; ask p1; exit 1; launch 2 restart")),
        ("permissions", "asked twice", format!("{WHOLE}; ask p1; ask p1")),
        ("permissions", "answered twice", format!("{WHOLE}; ask p1; resolve p1 a policy; resolve p1 a policy")),
        ("permissions", "told twice", format!("{WHOLE}; reply x; reply x")),
        ("restarts", "after no crash", format!("{WHOLE}; exit 1 requested; launch 2 restart")),
        ("launches", "what was never there is lost", "launch 1 create; agent 1 11; unusable 1".into()),
        ("launches", "a conversation lost twice", format!("{WHOLE}; {LOST}; unusable 1")),
        (
            "a stop wins",
            "over a lost conversation",
            format!("{WHOLE}; {LOST}; end t2 !agent-error; stop; exit 1 requested; launch 2 restart"),
        ),
        ("restarts", "at once", format!("{WHOLE}; exit 1; @10 launch 2 restart")),
        (
            "restarts",
            "without end",
            format!(
                "{WHOLE}; exit 1; launch 2 restart; launch-failed 2; launch 3 restart; \
            launch-failed 3; launch 4 restart; launch-failed 4; launch 5 restart; launch-failed 5; launch 6 restart; \
            launch-failed 6; launch 7 restart"
            ),
        ),
        ("a stop wins", "over a restart", format!("{WHOLE}; {CRASHED}; stop; launch 2 restart")),
        (
            "one turn at a time",
            "two",
            format!("{idle}; queue t1 hang; queue t2 ask; start t1 7; in 7; start t2 8; in 8"),
        ),
        ("a turn has an agent", "none yet", "launch 1 create; agent 1 11; queue t1 hang; start t1 7; in 7".into()),
        ("turns wait in order", "the second first", format!("{idle}; queue t1 hang; queue t2 ask; start t2 7; in 7")),
        ("a prompt is sent once", "twice", format!("{idle}; queue t1 hang; start t1 7; in 7; in 7")),
        ("cancels", "of a turn that does not run", format!("{WHOLE}; cancelling t1")),
        (
            "cancels",
            "of itself",
            format!("{idle}; queue t1 hang; start t1 7; in 7; answer 7 cancelled; end t1 cancelled"),
        ),
        ("numbers", "one is lost", format!("{idle}; queue t1 hang; start t1 7; in 7; say 1; say 3")),
        ("numbers", "one comes twice", format!("{idle}; queue t1 hang; start t1 7; in 7; say 1; say 1")),
        (
            "numbers",
            "the last is lost",
            format!(
                "{idle}; queue t1 count 2 0; start t1 7; in 7; say 1; answer 7 end_turn; \
            end t1 end_turn"
            ),
        ),
        ("numbers", "in no turn", format!("{WHOLE}; say 3")),
        ("a turn ends once", "twice", format!("{WHOLE}; end t1 end_turn")),
        ("a turn ends once", "never queued", format!("{WHOLE}; end t2 !dropped")),
    ];
    let histories = histories.map(|(rule, what, text)| (rule, what, of(&text)));
    breaks_each(&histories.each_ref().map(|(rule, what, history)| (*rule, *what, history)));
}

#[test]
fn each_rule_of_how_turns_end_is_broken_by_a_history() {
    let running = "launch 1 create; agent 1 11; open 1; queue t1 hang; start t1 7; in 7";
    let answered = "an answered turn ends with its answer";
    let histories = [
        (answered, "as crashed", format!("{running}; answer 7 end_turn; exit 1; end t1 !agent-exited")),
        (answered, "with another", format!("{running}; answer 7 end_turn; end t1 cancelled")),
        (answered, "well, after an error", format!("{running}; error 7; end t1 end_turn")),
        (
            answered,
            "a cancelled one as crashed",
            format!(
                "{running}; cancelling t1; answer 7 cancelled; exit 1; \
            end t1 !agent-exited"
            ),
        ),
        ("a cut turn says so", "well", format!("{running}; exit 1; end t1 end_turn")),
        ("a cut turn says so", "with another cause", format!("{running}; exit 1; end t1 !dropped")),
        ("a turn ends with an answer or an end", "while it runs", format!("{running}; end t1 !agent-exited")),
        ("how a waiting turn ends", "as crashed", format!("{running}; queue t2 ask; end t2 !agent-exited")),
        ("how a waiting turn ends", "well", format!("{running}; queue t2 ask; end t2 end_turn")),
    ];
    let histories = histories.map(|(rule, what, text)| (rule, what, of(&text)));
    breaks_each(&histories.each_ref().map(|(rule, what, history)| (*rule, *what, history)));
}

#[test]
fn each_rule_of_changes_is_broken_by_a_history() {
    let changed = format!("{WHOLE}; change 2 a; change 3 b");
    breaks_nothing(&resting(&changed, Phase::Idle), "two changes");
    breaks(&of(&format!("{WHOLE}; change 3 a")), "generations", "one is left out");
    breaks(&of(&format!("{WHOLE}; change 2 a; change 2 b")), "generations", "one is there twice");
    breaks(&of(&format!("{WHOLE}; change 2 a; change 3 a")), "a change is kept", "a change is made twice");
    let mut history = resting(&changed, Phase::Idle);
    history.rest.as_mut().unwrap().generation = 2;
    breaks(&history, "the view is the journal", "an older specification");
    let answered = |tag: &str, answer| {
        let mut history = of(&changed);
        history.requests.push(asked(What::Change { tag: tag.to_owned() }, answer));
        history
    };
    breaks_nothing(&answered("b", Answer::Changed { generation: 3 }), "an answered change");
    breaks(&answered("b", Answer::Changed { generation: 2 }), "a change is kept", "another generation");
    breaks(&answered("c", Answer::Changed { generation: 4 }), "a change is kept", "an answered change is lost");
    breaks(&answered("a", Answer::Refused(412)), "a change is kept", "a refused change is made");
    let mut history = of(&changed);
    history.requests.retain(|request| !matches!(&request.what, What::Change { tag } if tag == "b"));
    breaks(&history, "somebody asks for it", "a change that no client made");
}

#[test]
fn each_rule_of_a_session_at_rest_is_broken_by_a_history() {
    let stopped = format!("{WHOLE}; stop; exit 1 requested");
    breaks(&resting(&format!("{WHOLE}; {CRASHED}"), Phase::Failed), "restarts", "one that is due never comes");
    let lost = format!("{WHOLE}; {LOST}; end t2 !agent-error; exit 1 requested");
    breaks(&resting(&lost, Phase::Failed), "restarts", "an agent that lost its conversation stays ended");
    breaks(&resting(&stopped, Phase::Idle), "the view is the journal", "idle without an agent");
    breaks(&resting(WHOLE, Phase::Stopped), "the view is the journal", "stopped with an agent");
    breaks(&resting(WHOLE, Phase::Busy), "the view is the journal", "busy");
    breaks(&resting(&format!("{WHOLE}; queue t2 hang"), Phase::Idle), "nothing waits", "a turn");
    breaks(&resting(&format!("{WHOLE}; ask p1"), Phase::Idle), "nothing waits", "a question");
    let crashes = (2..=CRASHES + 1).map(|launch| {
        format!("exit {before}; launch {launch} restart; agent {launch} {launch}1; open {launch}", before = launch - 1)
    });
    let crashes = crashes.collect::<Vec<_>>().join("; ");
    let given_up = format!("{WHOLE}; {crashes}; queue t2 hang; exit {}", CRASHES + 1);
    breaks(&resting(&given_up, Phase::Failed), "nothing waits", "a turn that the view does not have");
    let mut history = resting(&given_up, Phase::Failed);
    history.rest.as_mut().unwrap().queued = 1;
    breaks_nothing(&history, "a turn that waits for the next resume");
    let open = format!("{WHOLE}; queue t2 hang; start t2 8; in 8; exit 1; stop");
    breaks(&resting(&open, Phase::Stopped), "no turn stays open", "a cut turn");
    let mut history = resting(WHOLE, Phase::Idle);
    history.rest.as_mut().unwrap().turn_open = true;
    breaks(&history, "nothing waits", "the view has a turn");
    let mut history = resting(WHOLE, Phase::Idle);
    history.rest.as_mut().unwrap().last_seq -= 1;
    breaks(&history, "the view is the journal", "an older view");
}

#[test]
fn what_clients_are_told_is_held_against_the_journal() {
    let prompt = |text: &str, answer| asked(What::Prompt { text: text.into(), key: None }, answer);
    let keyed = |text: &str, answer| asked(What::Prompt { text: text.into(), key: Some("k".into()) }, answer);
    let ctl = |answer| asked(What::CtlPrompt { text: "count 2 0".into() }, answer);
    let turn = |id: &str| Answer::Turn(id.parse().unwrap());
    let view = |phase| Answer::View { phase };
    let (one_turn, truth) = ("a prompt is one turn", "agentctl tells the truth");
    let cancel = |turn: Option<&str>| What::Cancel { turn: turn.map(|turn| turn.parse().unwrap()) };
    let permit = What::Permit { permission: "p1".into(), option: "yes".into() };
    let wrong = [
        (one_turn, prompt("count 2 0", turn("t2"))),
        (one_turn, prompt("never queued", turn("t1"))),
        (one_turn, prompt("count 2 0", Answer::Refused(409))),
        (one_turn, keyed("count 2 0", Answer::Cut)),
        (truth, ctl(Answer::Printed("something else".into()))),
        (truth, ctl(Answer::Refused(4))),
        (truth, ctl(Answer::Cancelled)),
        ("answers", asked(cancel(None), view(Phase::Busy))),
        ("answers", asked(cancel(Some("t7")), view(Phase::Busy))),
        ("answers", asked(What::Stop, view(Phase::Idle))),
        ("answers", asked(What::Stop, Answer::Refused(409))),
        ("answers", asked(What::Stop, view(Phase::Stopped))),
        ("answers", asked(What::Stop, Answer::Printed(String::new()))),
        ("answers", asked(What::Resume, view(Phase::Preparing))),
        ("answers", asked(What::Resume, Answer::Printed(String::new()))),
        ("answers", asked(permit, view(Phase::Busy))),
    ];
    for (rule, request) in wrong {
        let mut history = of(WHOLE);
        let shown = format!("{request:?}");
        history.requests.push(request);
        breaks(&history, rule, &shown);
    }
    let mut unasked = of(WHOLE);
    unasked.requests.clear();
    breaks(&unasked, one_turn, "nobody asked");
    let mut told = of(&format!(
        "{WHOLE}; queue t2 say x; start t2 8; in 8; say x; answer 8 end_turn; end t2 end_turn; \
        ask p1; resolve p1 yes client; cancelling t2"
    ));
    told.journal.pop();
    told.requests.extend([
        keyed("count 2 0", turn("t1")),
        prompt("refused", Answer::Refused(429)),
        asked(What::CtlPrompt { text: "say x".into() }, Answer::Printed("x\n".into())),
        asked(What::Permit { permission: "p1".into(), option: "yes".into() }, view(Phase::Busy)),
        asked(cancel(Some("t1")), view(Phase::Idle)),
    ]);
    breaks_nothing(&told, "answers that are true");
    let stopped = "stop; exit 1 requested; launch 2 resume; agent 2 21; open 2";
    let mut resumed = of(&format!("{WHOLE}; {stopped}"));
    resumed.requests.extend([
        asked_at(12, What::Stop, Answer::View { phase: Phase::Stopping }),
        asked_at(13, What::Stop, Answer::Printed(String::new())),
        asked_at(14, What::Resume, Answer::View { phase: Phase::Preparing }),
        asked(What::Resume, Answer::Printed(String::new())),
    ]);
    breaks_nothing(&resumed, "a stop and a resume that are true");
}

#[test]
fn what_clients_see_is_held_against_the_journal() {
    let with = |change: fn(&mut Vec<Seen>)| {
        let mut history = resting(WHOLE, Phase::Idle);
        let mut stream: Vec<Seen> = history.journal.iter().map(Seen::of).collect();
        change(&mut stream);
        history.streams.push(stream);
        history
    };
    breaks_nothing(&with(|_| {}), "all of it");
    breaks(&with(|stream| _ = stream.remove(3)), "streams", "a gap");
    breaks(&with(|stream| stream.insert(3, stream[3].clone())), "streams", "a double");
    breaks(&with(|stream| stream.swap(3, 4)), "streams", "another order");
    breaks(&with(|stream| stream[3].digest += 1), "streams", "another record");
    breaks(&with(|stream| stream.truncate(10)), "streams", "the last is never seen");
}

#[test]
fn what_agents_note_is_held_against_the_journal() {
    let said = |numbers: &[u64]| numbers.iter().map(|number| Note::Said(format!("{number}\n"))).collect::<Vec<_>>();
    let with = |notes: Vec<Note>| {
        let mut history = of(WHOLE);
        history.account = [vec![Note::Began(process(11)), Note::Asked("count 2 0".into())], notes].concat();
        history
    };
    breaks_nothing(&with(said(&[1, 2])), "all of it");
    breaks_nothing(&with(said(&[1])), "killed before it noted the last");
    let kept = "what an agent says is kept";
    breaks(&with(said(&[1, 2, 3])), kept, "the journal has less");
    breaks(&with(said(&[])), kept, "the journal has more");
    breaks(&with(said(&[2, 1])), kept, "another order");
    let mut history = with(said(&[1, 2, 3]));
    history.killed.insert(process(10));
    breaks_nothing(&history, "what was in the pipe is lost with the keeper");
    let twice = [said(&[1, 2]), vec![Note::Asked("count 2 0".into())]].concat();
    breaks(&with(twice), "a prompt is sent once", "asked twice");
    let both = [said(&[1, 2]), vec![Note::Overlapped(process(12))]].concat();
    breaks(&with(both), "one agent at a time", "two agents");
}

#[test]
fn what_happens_without_a_reason_is_found() {
    let without = |text: &str, change: fn(&mut History)| {
        let mut history = of(text);
        change(&mut history);
        history
    };
    let nobody = "nobody ends by himself";
    let alive = without(&format!("{WHOLE}; {CRASHED}"), |history| history.killed.clear());
    breaks(&alive, nobody, "an agent that nobody killed");
    let by_itself = "exit 17; start t2 8; in 8; exit 1; end t2 !agent-exited";
    let other = without(&format!("{WHOLE}; queue t2 {by_itself}"), |history| history.killed.clear());
    breaks(&other, nobody, "an agent that ended otherwise than it was prompted to");
    let mut killed = without(&format!("{WHOLE}; {CRASHED}"), |history| history.killed.clear());
    killed.killed.insert(process(10));
    breaks_nothing(&killed, "an agent whose keeper was killed");

    let asks = "somebody asks for it";
    let unasked = |history: &mut History| {
        history.requests.retain(|request| !matches!(request.what, What::Stop | What::Cancel { .. }));
    };
    breaks(&without(&format!("{WHOLE}; stop; exit 1 requested"), unasked), asks, "a stop");
    let cancelled =
        format!("{WHOLE}; queue t2 hang; start t2 8; in 8; cancelling t2; answer 8 cancelled; end t2 cancelled");
    breaks(&without(&cancelled, unasked), asks, "a cancel");
    let dropped = format!("{WHOLE}; queue t2 hang; end t2 !dropped");
    breaks(&of(&dropped), asks, "a turn that is dropped");
    let mut of_another = of(&dropped);
    of_another.requests.push(asked(What::Cancel { turn: Some("t1".parse().unwrap()) }, Answer::Cut));
    breaks(&of_another, asks, "a turn that is dropped for another one");
    let mut of_it = of(&dropped);
    of_it.requests.push(asked(What::Cancel { turn: Some("t2".parse().unwrap()) }, Answer::Cut));
    breaks_nothing(&of_it, "a turn that is cancelled while it waits");

    let mut late = of(&cancelled);
    let from = SystemTime::from(late.journal.last().unwrap().time) + Duration::from_secs(10);
    late.requests.push(Request { from, ..asked(What::Cancel { turn: None }, Answer::View { phase: Phase::Idle }) });
    breaks(&late, "answers", "a cancel that was accepted long after the last one");
}

#[test]
fn how_an_agent_notes_that_it_answered_is_how_its_turn_ends() {
    let rule = "what an agent answers is how its turn ends";
    let with = |end: &str, answer: &str| {
        let start = "launch 1 create; keeper 1 10; agent 1 11; open 1; queue t1 hang; start t1 7; in 7; cancelling t1";
        let mut history = of(&format!("{start}; {end}"));
        history.account = vec![Note::Began(process(11)), Note::Asked("hang".into()), Note::Answered(answer.into())];
        history
    };
    breaks_nothing(&with("answer 7 end_turn; end t1 end_turn", "end_turn"), "its answer");
    breaks_nothing(&with("error 7; end t1 !agent-error", "error"), "its error");
    breaks(&with("exit 1; end t1 !agent-exited", "end_turn"), rule, "as crashed");
    breaks(&with("answer 7 cancelled; end t1 cancelled", "end_turn"), rule, "with another answer");
    let mut lost = with("exit 1; end t1 !agent-exited", "end_turn");
    lost.killed.insert(process(10));
    breaks_nothing(&lost, "what was in the pipe is lost with the keeper");
    breaks_nothing(&with("exit 1; end t1 !agent-exited", "error"), "killed before it said the error");
}
