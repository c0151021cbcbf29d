//! Tests the record of a script that was proposed for a session.

use agentd_api::event::Body;
use agentd_api::session::PermissionPolicy;

use super::super::rules::Command;
use super::{World, ready};

fn propose(world: &mut World, digest: &str, explanation: Option<&str>) {
    let (digest, explanation) = (digest.to_owned(), explanation.map(str::to_owned));
    world.ask(Command::ProposeScript { digest, explanation, requester: None }).unwrap();
}

#[test]
fn a_proposal_is_recorded_once_and_the_last_one_is_known_after_a_crash_and_a_stop() {
    let mut world = ready(PermissionPolicy::Ask);
    propose(&mut world, "aa", Some("for A"));
    propose(&mut world, "aa", Some("for A"));
    propose(&mut world, "aa", Some("for another reason"));
    propose(&mut world, "bb", None);
    let recorded = world.journal.iter().filter(|event| matches!(event.body, Body::ScriptProposed(_))).count();
    assert_eq!(recorded, 3, "an equal proposal needs no record");
    world.agent_ends(true);
    world.settle();
    world.daemon_dies(world.journal.len() - 1);
    let known = world.state.proposal.expect("the last proposal is known");
    assert_eq!((known.digest.as_str(), known.explanation), ("bb", None));
}
