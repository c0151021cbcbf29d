//! The known agent of a launch: the places of its conversations, and the logins by its keys.

use agentd_api::event::EnvironmentBuilt;
use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_api::{ByteString, hint, reason};
use agentd_environment::BuiltEnvironment;

use crate::bringup::Progress;
use crate::environment::condition;
use crate::launch_plan::LaunchPlan;

/// Adds the facts of the launch's known agent to the record of the environment.
pub(super) fn note(record: &mut EnvironmentBuilt, built: &BuiltEnvironment) {
    let Some(known) = built.known else { return };
    let places = known.agentd.conversations.iter().map(|place| {
        let value = built.environment.get(&place.variable).map(ByteString::from);
        (place.variable.clone(), value)
    });
    record.places = places.collect();
    // A key that only happens to be in the environment must not replace another login of the agent.
    let methods = known.agentd.login.methods.iter().filter(|method| built.secret_variables.contains(&method.key));
    record.key_logins = methods.map(|method| method.method.clone()).collect();
    record.key_logins.dedup();
}

/// Returns the condition about variables that name the place of the conversation, if they have other values now. `held`
/// are those variables.
pub(super) fn place_condition(plan: &LaunchPlan, held: &[String]) -> Option<Progress> {
    if held.is_empty() {
        return None;
    }
    let given = held.iter().map(|name| match plan.conversation_places.get(name) {
        Some(Some(value)) => format!("{name}={}", String::from_utf8_lossy(value.as_bytes())),
        _ => format!("no {name}"),
    });
    let message = format!(
        "{} changed since the conversation began; the agent gets {}, where the conversation is; {}",
        held.join(", "),
        given.collect::<Vec<_>>().join(", "),
        hint::RESUME_WITH_NEW_CONVERSATION,
    );
    Some(condition(ConditionType::ConversationPlace, ConditionStatus::False, reason::PLACE_HELD, message))
}
