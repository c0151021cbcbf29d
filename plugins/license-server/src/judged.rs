//! Turns the results of all connections into a report.

use agentd_plugin_checks::explain;
use agentd_plugin_sdk::{Outcome, Report};

use crate::asked::{Alternative, Answer, Answers, daemon};
use crate::entry::Server;

/// The servers that one variable, or the settings, name.
pub(crate) struct List {
    pub(crate) name: String,
    /// Whether the list must have an answering server, independent of the other lists.
    pub(crate) must: bool,
    pub(crate) alternatives: Vec<Alternative>,
}

/// State of a server or list. The order is that of preference when one of several is sufficient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Down,
    Unknown,
    /// Usable, but a part is down.
    Partly,
    Up,
}

/// Facts about servers, for the report.
#[derive(Default)]
struct Words {
    /// Facts about servers that do not answer.
    bad: Vec<(String, String)>,
    /// Facts about servers that answer.
    good: Vec<(String, String)>,
}

/// Makes the report for all lists. There must be at least one list.
pub(crate) fn report(lists: &[List], answers: &Answers) -> Report {
    let mut words = Words::default();
    let mut of_lists = Vec::new();
    for list in lists {
        let states: Vec<State> =
            list.alternatives.iter().map(|alternative| judge(list, alternative, answers, &mut words)).collect();
        let best = states.iter().copied().max().unwrap_or(State::Down);
        let all_up = states.iter().all(|state| *state == State::Up);
        of_lists.push((list, if best == State::Up && !all_up { State::Partly } else { best }));
    }
    let (outcome, names) = outcome(&of_lists);
    let said = || {
        let all: Vec<String> = words.bad.iter().take(3).map(|(name, value)| format!("{name} {value}")).collect();
        all.join("; ")
    };
    let summary = match outcome {
        Outcome::Pass => format!("the licence servers of {names} answer"),
        Outcome::Warn => format!("licence servers of {names} answer, and not all of them: {}", said()),
        Outcome::Fail => format!("no licence server of {names} answers: {}", said()),
        Outcome::Unknown => format!("cannot tell whether a licence server of {names} answers: {}", said()),
    };
    let facts = words.bad.into_iter().chain(words.good);
    let mut report = facts.fold(Report::new(outcome, summary), |report, (name, value)| report.fact(name, value));
    if let (true, Some((problem, to))) = (outcome != Outcome::Pass, answers.silent()) {
        report = explain::connection(report, problem, to);
    }
    report = report.fact("checked", "whether a connection opens, not whether licences are available");
    if outcome == Outcome::Pass {
        return report;
    }
    report.remedy(format!(
        "connect to the network of the licence servers, ask their administrator whether they are up, or correct {names}"
    ))
}

/// Returns the outcome, and the names of the lists that determine it.
fn outcome(lists: &[(&List, State)]) -> (Outcome, String) {
    let of = |wanted: &dyn Fn(&(&List, State)) -> bool| {
        let names: Vec<&str> = lists.iter().filter(|list| wanted(list)).map(|(list, _)| list.name.as_str()).collect();
        names.join(", ")
    };
    let must_be = |state: State| lists.iter().any(|(list, is)| list.must && *is == state);
    let found: Vec<State> = lists.iter().filter(|(list, _)| !list.must).map(|(_, state)| *state).collect();
    let best = found.iter().copied().max();
    for (state, outcome) in [(State::Down, Outcome::Fail), (State::Unknown, Outcome::Unknown)] {
        if must_be(state) {
            return (outcome, of(&|(list, is)| list.must && *is == state));
        }
        if best == Some(state) {
            return (outcome, of(&|(list, _)| !list.must));
        }
    }
    let all_up = lists.iter().all(|(_, state)| *state == State::Up);
    (if all_up { Outcome::Pass } else { Outcome::Warn }, of(&|_| true))
}

fn judge(list: &List, alternative: &Alternative, answers: &Answers, words: &mut Words) -> State {
    let (file, servers, vendors) = match alternative {
        Alternative::Servers { file, servers, vendors } => (file, servers, vendors),
        Alternative::Local(path) => {
            words.good.push((list.name.clone(), format!("{path} names no server, so none is needed")));
            return State::Up;
        }
        Alternative::Unusable(why) => {
            words.bad.push((list.name.clone(), why.clone()));
            return State::Down;
        }
        Alternative::Unknown(why) => {
            words.bad.push((list.name.clone(), why.clone()));
            return State::Unknown;
        }
    };
    let from = file.as_ref().unwrap_or(&list.name);
    let states: Vec<State> =
        servers.iter().map(|server| of_server(&server_label(server, from), answers.get(server), words)).collect();
    let mut state = together(&states);
    if servers.len() > 1 {
        let up = states.iter().filter(|state| **state == State::Up).count();
        let fact = (format!("triad ({from})"), format!("{up} of {} answer; 2 must", servers.len()));
        if state == State::Up { words.good.push(fact) } else { words.bad.push(fact) }
    }
    for (name, port) in vendors {
        // In a triad, the vendor daemon runs on the master's machine.
        let daemons: Vec<Server> = servers.iter().map(|server| daemon(server, *port)).collect();
        let answering = daemons.iter().find(|daemon| matches!(answers.get(daemon), Some(Answer::Answers { .. })));
        let Some(shown) = answering.or(daemons.first()) else { continue };
        let label = format!("{name}, {}", server_label(shown, from));
        state = state.min(of_server(&label, answers.get(shown), words));
    }
    state
}

/// Combines the states of servers: of one server its state, of three servers that of the best two.
fn together(states: &[State]) -> State {
    let quorum = if states.len() > 1 { 2 } else { 1 };
    let count = |wanted: &[State]| states.iter().filter(|state| wanted.contains(state)).count();
    match count(&[State::Up]) {
        up if up == states.len() => State::Up,
        up if up >= quorum => State::Partly,
        _ if count(&[State::Up, State::Unknown]) >= quorum => State::Unknown,
        _ => State::Down,
    }
}

fn of_server(label: &str, answer: Option<&Answer>, words: &mut Words) -> State {
    let label = label.to_owned();
    match answer {
        Some(Answer::Answers { at }) => {
            words.good.push((label, format!("answers at {at}")));
            State::Up
        }
        Some(Answer::Silent { why, .. }) => {
            words.bad.push((label, why.clone()));
            State::Down
        }
        Some(Answer::Unknown(why)) => {
            words.bad.push((label, why.clone()));
            State::Unknown
        }
        None => State::Unknown,
    }
}

/// Describes a server and where it is named.
fn server_label(server: &Server, from: &str) -> String {
    let (first, last) = (server.ports.start(), server.ports.end());
    let ports = if first == last { first.to_string() } else { format!("{first}-{last}") };
    format!("{ports}@{} ({from})", server.host)
}
