//! What the answers come to.

use agentd_plugin_checks::explain;
use agentd_plugin_sdk::{Outcome, Report};

use crate::asked::{Alternative, Answer, Answers, daemon};
use crate::entry::Server;

/// What one variable, or the settings, name.
pub(crate) struct List {
    pub(crate) name: String,
    /// Whether one of it must answer, whatever the other lists have.
    pub(crate) must: bool,
    pub(crate) alternatives: Vec<Alternative>,
}

/// Whether something can be used; in the order in which one of several says most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Down,
    Untold,
    /// It can, and a part of it is down.
    Partly,
    Up,
}

/// What is known of one alternative, and the words for it.
#[derive(Default)]
struct Words {
    /// Facts of what does not answer, and of what does.
    bad: Vec<(String, String)>,
    good: Vec<(String, String)>,
}

/// What was found for all lists; there is one at least.
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
        Outcome::Unknown => format!("it cannot be told whether a licence server of {names} answers: {}", said()),
    };
    let facts = words.bad.into_iter().chain(words.good);
    let mut report = facts.fold(Report::new(outcome, summary), |report, (name, value)| report.fact(name, value));
    if let (true, Some((problem, to))) = (outcome != Outcome::Pass, answers.silent()) {
        report = explain::connection(report, problem, to);
    }
    report = report.fact("checked", "whether a connection opens; whether there are licences left was not asked");
    if outcome == Outcome::Pass {
        return report;
    }
    report.remedy(format!(
        "connect to the network that the licence servers are in, ask who runs them whether they are up, or correct {names}"
    ))
}

/// The outcome, and the names of the lists that decide it.
fn outcome(lists: &[(&List, State)]) -> (Outcome, String) {
    let of = |wanted: &dyn Fn(&(&List, State)) -> bool| {
        let names: Vec<&str> = lists.iter().filter(|list| wanted(list)).map(|(list, _)| list.name.as_str()).collect();
        names.join(", ")
    };
    let must_be = |state: State| lists.iter().any(|(list, is)| list.must && *is == state);
    let found: Vec<State> = lists.iter().filter(|(list, _)| !list.must).map(|(_, state)| *state).collect();
    let best = found.iter().copied().max();
    for (state, outcome) in [(State::Down, Outcome::Fail), (State::Untold, Outcome::Unknown)] {
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
        Alternative::Useless(why) => {
            words.bad.push((list.name.clone(), why.clone()));
            return State::Down;
        }
        Alternative::Untold(why) => {
            words.bad.push((list.name.clone(), why.clone()));
            return State::Untold;
        }
    };
    let from = file.as_ref().unwrap_or(&list.name);
    let states: Vec<State> =
        servers.iter().map(|server| of_server(&told(server, from), answers.get(server), words)).collect();
    let mut state = together(&states);
    if servers.len() > 1 {
        let up = states.iter().filter(|state| **state == State::Up).count();
        let fact = (format!("triad ({from})"), format!("{up} of {} answer; 2 must", servers.len()));
        if state == State::Up { words.good.push(fact) } else { words.bad.push(fact) }
    }
    for (name, port) in vendors {
        // Of a triad it runs beside the one that is the master.
        let daemons: Vec<Server> = servers.iter().map(|server| daemon(server, *port)).collect();
        let answering = daemons.iter().find(|daemon| matches!(answers.get(daemon), Some(Answer::Answers { .. })));
        let Some(shown) = answering.or(daemons.first()) else { continue };
        let label = format!("{name}, {}", told(shown, from));
        state = state.min(of_server(&label, answers.get(shown), words));
    }
    state
}

/// Of one server its own state, of three that of two.
fn together(states: &[State]) -> State {
    let quorum = if states.len() > 1 { 2 } else { 1 };
    let count = |wanted: &[State]| states.iter().filter(|state| wanted.contains(state)).count();
    match count(&[State::Up]) {
        up if up == states.len() => State::Up,
        up if up >= quorum => State::Partly,
        _ if count(&[State::Up, State::Untold]) >= quorum => State::Untold,
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
        Some(Answer::Untold(why)) => {
            words.bad.push((label, why.clone()));
            State::Untold
        }
        None => State::Untold,
    }
}

/// A server as it stands in a list, and where it stands.
fn told(server: &Server, from: &str) -> String {
    let (first, last) = (server.ports.start(), server.ports.end());
    let ports = if first == last { first.to_string() } else { format!("{first}-{last}") };
    format!("{ports}@{} ({from})", server.host)
}
