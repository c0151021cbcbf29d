//! Tests the fold of degraded launches.

use agentd_api::degraded::{LaunchDegraded, MissingKind, MissingPart};
use agentd_api::event::{EnvironmentBuilt, LaunchReason, LaunchStarted};
use agentd_api::prerequisite::Requester;
use agentd_api::{Body, Event};
use jiff::Timestamp;

use super::super::state::State;

fn by() -> Requester {
    Requester { uid: 1000, pid: None, program: None, session: None, token: None }
}

fn apply(state: &mut State, body: Body) {
    state.apply(&Event { seq: state.seq + 1, time: Timestamp::UNIX_EPOCH, body });
}

fn launch(state: &mut State, degraded_by: Option<Requester>) {
    let launch = state.launches + 1;
    let started = LaunchStarted { degraded_by, ..LaunchStarted::new(launch, LaunchReason::Resume, false) };
    apply(state, Body::LaunchStarted(started));
}

fn built(state: &mut State) {
    let built = serde_json::json!({ "launch": state.launches, "digest": "", "variables": 1 });
    apply(state, Body::EnvironmentBuilt(serde_json::from_value::<EnvironmentBuilt>(built).unwrap()));
}

fn leaves_out(state: &mut State, launch: u64, names: &[&str]) {
    let part = |name: &&str| MissingPart {
        kind: MissingKind::Script,
        name: (*name).to_owned(),
        message: "it failed".to_owned(),
    };
    let missing = names.iter().map(part).collect();
    apply(state, Body::LaunchDegraded(LaunchDegraded { launch, by: by(), missing }));
}

fn names(state: &State) -> Vec<&str> {
    state.degraded.iter().map(|part| part.name.as_str()).collect()
}

#[test]
fn a_degraded_launch_keeps_its_term_and_its_last_list_until_the_next_launch() {
    let mut state = State::new(Timestamp::UNIX_EPOCH);
    launch(&mut state, Some(by()));
    built(&mut state);
    leaves_out(&mut state, 1, &["a", "b"]);
    assert_eq!((names(&state), state.degraded_by.clone(), state.forced()), (vec!["a", "b"], Some(by()), Some(&by())));
    // The next daemon begins the bring-up again, and everything works.
    built(&mut state);
    assert_eq!((names(&state), state.degraded_by.clone()), (vec![], Some(by())));
    leaves_out(&mut state, 1, &["b"]);
    assert_eq!(names(&state), ["b"]);
    launch(&mut state, None);
    assert_eq!((names(&state), &state.degraded_by, state.forced()), (vec![], &None, None));
    // A record of an earlier launch changes nothing.
    leaves_out(&mut state, 1, &["a"]);
    assert_eq!(names(&state), [""; 0]);
}

#[test]
fn a_state_of_an_older_release_has_no_degraded_launch() {
    let mut stored = serde_json::to_value(State::new(Timestamp::UNIX_EPOCH)).unwrap();
    for field in ["degraded", "degraded_by"] {
        assert!(stored.as_object_mut().unwrap().remove(field).is_some(), "{field}");
    }
    let state: State = serde_json::from_value(stored).unwrap();
    assert_eq!((state.degraded, state.degraded_by), (Vec::new(), None));
}
