//! Who may make which call: the owner each, a guest what `[control] guests` lets it, a stranger what is public.
//!
//! A guest that names a session that is not its own learns nothing of it, not even whether there is one.

use agentd_api::session::SessionView;
use agentd_api::{Code, Problem, SessionId};
use agentd_keeper::caller::{Caller, Who, Why};

use super::router::Context;
use super::routes::{Access, Call};
use crate::config::Guests;

/// Whether the call may be made; `named` is the session in its path, and a path that is not there has no call.
pub(super) async fn check(
    context: &Context,
    (access, call): (Access, Option<Call>),
    named: Option<&str>,
) -> Result<(), Problem> {
    let guest = match (&context.caller.who, access) {
        (Who::Owner, _) | (_, Access::Public) => return Ok(()),
        // A start-up file or a script may look: it waits for nothing, and sees what it could read in the user's files.
        (Who::Stranger(Why::OfAgentd), _) if is_plain_read(call) => return Ok(()),
        (Who::Stranger(why), _) => return Err(stranger(*why)),
        (Who::Guest(guest), _) => guest,
    };
    let guests = context.world.config.control.guests;
    let is_allowed = match access {
        _ if guests == Guests::None => false,
        Access::Public | Access::Guest => true,
        Access::Inside => of_guest(context, guest, named).await.is_some(),
        Access::Parent => {
            let relation = of_guest(context, guest, named).await;
            guests == Guests::Children && relation == Some(Relation::Child)
        }
        Access::Creator => guests == Guests::Children,
        Access::Owner => false,
    };
    if is_allowed { Ok(()) } else { Err(in_session(guest, guests)) }
}

/// Whether the answer is there at once, whatever is launched, and changes nothing.
fn is_plain_read(call: Option<Call>) -> bool {
    matches!(call, Some(Call::Readiness | Call::Version | Call::Agents | Call::List | Call::Show))
}

/// How a session stands to the guest's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Own,
    Child,
}

fn relation(guest: &SessionId, view: &SessionView) -> Option<Relation> {
    if view.id == *guest {
        return Some(Relation::Own);
    }
    (view.parent.as_ref() == Some(guest)).then_some(Relation::Child)
}

async fn of_guest(context: &Context, guest: &SessionId, named: Option<&str>) -> Option<Relation> {
    let session = context.sessions.find(named?).await.ok()?;
    relation(guest, &session.view())
}

/// Whether a caller may see this session in a list.
pub(super) fn sees(caller: &Caller, view: &SessionView) -> bool {
    match &caller.who {
        Who::Owner => true,
        Who::Guest(guest) => relation(guest, view).is_some(),
        Who::Stranger(why) => *why == Why::OfAgentd,
    }
}

/// Refuses a guest what only the owner may do with a session of the guest's own.
pub(super) fn owner_only(context: &Context, what: &str) -> Result<(), Problem> {
    match &context.caller.who {
        Who::Owner => Ok(()),
        Who::Guest(guest) => Err(Problem::new(Code::InSession, format!("{what}, and the session {guest} may not"))
            .hint("a person may, from outside of the sessions")),
        Who::Stranger(why) => Err(stranger(*why)),
    }
}

fn in_session(guest: &SessionId, guests: Guests) -> Problem {
    let may = match guests {
        Guests::None => "nothing here is for it, as control.guests says",
        Guests::Own => "it may look at its own session and change nothing",
        Guests::Children => "it may look at its own session, and direct those that it created",
    };
    Problem::new(Code::InSession, format!("the call comes from inside the session {guest}: {may}"))
        .hint("a person may, from outside of the sessions; control.guests says what a session may")
}

fn stranger(why: Why) -> Problem {
    let unknown = |detail: &str, hint: &str| Problem::new(Code::CallerUnknown, detail).hint(hint);
    match why {
        Why::OtherUser => Problem::new(Code::Forbidden, "this agentd belongs to another user"),
        Why::Gone => unknown(
            "the process that connected has ended, and whose it was cannot be told any more",
            "keep it running until the answer has come",
        ),
        Why::Unplaced => unknown(
            "it cannot be told whether the process that connected is inside a session",
            "call from outside of the sessions; where /proc is mounted with hidepid, agentd has to see its user's processes",
        ),
        Why::OfAgentd => Problem::new(
            Code::StartedByAgentd,
            "the process that connected was started by agentd itself, for a start-up file, a script or a plugin; agentd waits for it, \
             and so it cannot wait for agentd",
        )
        .hint("such a program may look (agentctl ls, agents, show, version); call agentctl for all else from a terminal"),
        Why::Unseen => Problem::new(Code::OutOfResources, "agentd has no descriptor left to find out who calls")
            .hint("try again in a moment"),
    }
}
