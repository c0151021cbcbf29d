//! Each route and each problem code of the description is reached by a test.
//!
//! The harness records the refusals that tests get (`tests/harness/reached.rs`). After all tests, `.ci/run` runs
//! [`each_code_of_each_route_is_reached`], which fails for a code of a route that no test got. The tests in the other
//! files of this directory make the call of each route in a state that refuses it.

mod calls;
mod exceptions;
mod front;
mod single;
mod work;

use std::collections::BTreeSet;
use std::fs;

use agentd_api::{Code, Problem, Route};
use serde_json::Value;

use self::calls::Target;
use self::exceptions::{Exceptions, Extent, Word};
use crate::harness::{Daemon, Response, paths, reached};

/// A route, as `METHOD PATH`, and the code of a refusal.
type Pair = (String, String);

/// Returns the codes of each route in the committed description.
fn described() -> BTreeSet<Pair> {
    let file = paths::checkout().join("docs/reference/openapi.json");
    let document: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let mut pairs = BTreeSet::new();
    for route in Route::ALL {
        let operation = &document["paths"][route.path()][route.method().as_str().to_ascii_lowercase()];
        for answer in operation["responses"].as_object().expect("a route has answers").values() {
            let target = answer["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
            let answer = target.map_or(answer, |target| document.pointer(target).expect("the target exists"));
            let codes = &answer["content"]["application/problem+json"]["schema"]["properties"]["code"]["enum"];
            let codes = codes.as_array().into_iter().flatten().filter_map(Value::as_str);
            pairs.extend(codes.map(|code| (route.to_string(), code.to_owned())));
        }
    }
    pairs
}

/// Returns the routes from which a test in this directory must get the code.
fn with(code: Code) -> Vec<Route> {
    let (pairs, exceptions, code) = (described(), Exceptions::read(), code.as_str());
    let is_described = |route: &Route| pairs.contains(&(route.to_string(), code.clone()));
    let routes = Route::ALL.iter().copied().filter(is_described);
    routes.filter(|route| exceptions.demand(*route, &code)).collect()
}

/// Returns what the tests got so far.
fn recorded() -> BTreeSet<Pair> {
    let mut pairs = BTreeSet::new();
    for entry in fs::read_dir(reached::directory()).into_iter().flatten().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap();
        pairs.extend(text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
    pairs
}

/// Reports whether a pair that no test got is excepted.
fn is_excepted(exceptions: &Exceptions, (route, code): &Pair, recorded: &BTreeSet<Pair>) -> bool {
    let mut of_code = exceptions.exception.iter().filter(|exception| exception.codes.contains(code));
    of_code.any(|exception| match &exception.routes {
        Extent::Word(Word::All) => true,
        Extent::Word(Word::AllButOne) => recorded.iter().any(|(_, other)| other == code),
        Extent::Routes(routes) => routes.contains(route),
    })
}

/// Returns a daemon with these lines behind its configuration, and the target of calls on `session`.
async fn prepared(lines: &str, session: &str) -> (Daemon, Target) {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n{lines}\n"));
    daemon.run().await;
    let target = target(&daemon, session);
    (daemon, target)
}

fn target(daemon: &Daemon, session: &str) -> Target {
    Target::new(session, &daemon.work(), serde_json::to_value(daemon.scripted(&[])).unwrap())
}

/// Lists the routes whose answer is another than the refusal with this code.
fn others(code: Code, answers: impl IntoIterator<Item = (Route, Response)>) -> Vec<String> {
    let is_other = |(route, answer): (Route, Response)| {
        let problem = serde_json::from_slice::<Problem>(&answer.body).ok();
        let text = || String::from_utf8_lossy(&answer.body).trim().chars().take(200).collect::<String>();
        let is_it = problem.is_some_and(|problem| problem.code == code);
        (!is_it).then(|| format!("{}  {route}: {} {}", code.as_str(), answer.status, text()))
    };
    answers.into_iter().filter_map(is_other).collect()
}

/// Makes each call whose description has the code. Lists those whose answer is another.
async fn others_of(daemon: &Daemon, target: &Target, code: Code) -> Vec<String> {
    let mut answers = Vec::new();
    for route in with(code) {
        answers.push((route, target.make(&daemon.client, route).await));
    }
    others(code, answers)
}

/// Fails unless the list of answers that are not refusals is empty.
fn assert_all_refused(others: &[String]) {
    assert!(others.is_empty(), "these calls were not refused with the code:\n{}", others.join("\n"));
}

#[test]
#[ignore = "runs after all tests: .ci/run"]
#[allow(clippy::print_stdout, reason = ".ci/run shows the counts")]
fn each_code_of_each_route_is_reached() {
    let (described, recorded, exceptions) = (described(), recorded(), Exceptions::read());
    let missing: Vec<&Pair> = described.difference(&recorded).collect();
    let (excepted, missing): (Vec<&Pair>, Vec<&Pair>) =
        missing.into_iter().partition(|pair| is_excepted(&exceptions, pair, &recorded));
    let undescribed: Vec<&Pair> = recorded.difference(&described).collect();
    println!(
        "{} pairs of a route and a code are described; tests reached {}, and {} are excepted",
        described.len(),
        described.intersection(&recorded).count(),
        excepted.len()
    );
    let list = |pairs: &[&Pair]| {
        let lines: Vec<String> = pairs.iter().map(|(route, code)| format!("  {code}  {route}")).collect();
        lines.join("\n")
    };
    assert!(undescribed.is_empty(), "the description lacks codes that tests got:\n{}", list(&undescribed));
    assert!(
        missing.is_empty(),
        "no test reached these codes; add a test, or an exception in exceptions.toml:\n{}",
        list(&missing)
    );
    println!("excepted:\n{}", list(&excepted));
}

#[test]
fn each_exception_is_about_codes_of_the_description() {
    let (described, exceptions) = (described(), Exceptions::read());
    assert!(described.len() > 1000, "{}", described.len());
    let is_described = |route: &str, code: &str| described.contains(&(route.to_owned(), code.to_owned()));
    let lists = exceptions.exception.iter().filter_map(|exception| match &exception.routes {
        Extent::Routes(routes) => Some((&exception.codes, routes)),
        Extent::Word(_) => None,
    });
    for (codes, routes) in lists.chain(exceptions.elsewhere.iter().map(|other| (&other.codes, &other.routes))) {
        for code in codes {
            for route in routes {
                assert!(is_described(route, code), "{route} is not described with {code}");
            }
        }
    }
    assert!(exceptions.exception.iter().all(|exception| !exception.reason.is_empty() && !exception.codes.is_empty()));
    assert!(exceptions.elsewhere.iter().all(|other| other.tests.ends_with("::")));
}
