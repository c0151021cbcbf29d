//! Decides which caller may make which call. The owner may make each call, a guest those that `[control] guests`
//! allows, and a stranger the public ones.
//!
//! The scope of a token or of the read-only socket ([`crate::grant`]) is a further condition, which is checked first.
//!
//! A guest that names a foreign session learns nothing about that session, not even whether it exists.

use agentd_api::hint;
use agentd_api::route::Scope;
use agentd_api::session::SessionView;
use agentd_api::{Code, Problem, Route, SessionId};
use agentd_caller::{Caller, CallerClass, StrangerReason};

use super::named::Named;
use super::router::Context;
use super::routes::{self, Access};
use agentd_config::Guests;

/// Refuses a call that the caller may not make. `named` is the session in the path. An unknown path has no route, and
/// a guest learns that the path is unknown.
pub(super) async fn check(context: &Context, route: Option<Route>, named: Option<&Named>) -> Result<(), Problem> {
    let access = route.map_or(Access::Guest, routes::access);
    let guest = match (&context.caller.who, access) {
        (CallerClass::Owner, _) | (_, Access::Public) => return Ok(()),
        // Start-up files and scripts may make plain reads. These wait for nothing, and return only facts that the
        // user's files contain as well.
        (CallerClass::Stranger(StrangerReason::OfAgentd), _) if is_plain_read(route) => return Ok(()),
        (CallerClass::Stranger(why), _) => return Err(stranger(*why)),
        (CallerClass::Guest(guest), _) => guest,
    };
    let guests = context.generation.config.control.guests;
    let is_allowed = match access {
        _ if guests == Guests::None => false,
        Access::Public | Access::Guest => true,
        Access::Inside => of_guest(context, guest, named).await.is_some(),
        Access::Own => of_guest(context, guest, named).await == Some(Relation::Own),
        Access::Parent => {
            let relation = of_guest(context, guest, named).await;
            guests == Guests::Children && relation == Some(Relation::Child)
        }
        Access::Creator => guests == Guests::Children,
        Access::Owner => false,
    };
    if is_allowed { Ok(()) } else { Err(in_session(guest, guests)) }
}

/// Reports whether the call changes nothing and is answered at once, whatever is being launched.
fn is_plain_read(route: Option<Route>) -> bool {
    matches!(route, Some(Route::Readiness | Route::Version | Route::Agents | Route::Sessions | Route::Session))
}

/// Relation of a session to the guest's own session.
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

async fn of_guest(context: &Context, guest: &SessionId, named: Option<&Named>) -> Option<Relation> {
    let session = named?.session(&context.sessions).await.ok()?;
    relation(guest, &session.view())
}

/// Reports whether a caller sees this session in a list.
pub(super) fn sees(caller: &Caller, view: &SessionView) -> bool {
    match &caller.who {
        CallerClass::Owner => true,
        CallerClass::Guest(guest) => relation(guest, view).is_some(),
        CallerClass::Stranger(why) => *why == StrangerReason::OfAgentd,
    }
}

/// Refuses a guest a call that only the owner may make, even on the guest's own session. `what` begins the
/// message.
pub(super) fn owner_only(context: &Context, what: &str) -> Result<(), Problem> {
    match &context.caller.who {
        CallerClass::Owner if context.grant.scope == Scope::Own => Ok(()),
        CallerClass::Owner => {
            let scope = context.grant.scope;
            Err(Problem::new(Code::ScopeTooSmall, format!("{what}; the scope of the call is {scope}"))
                .hint("make the call as the owner over the control socket, or with a token of the scope own"))
        }
        CallerClass::Guest(guest) => {
            Err(Problem::new(Code::InSession, format!("{what}; the caller is inside the session {guest}"))
                .hint("make the call from outside of the sessions"))
        }
        CallerClass::Stranger(why) => Err(stranger(*why)),
    }
}

fn in_session(guest: &SessionId, guests: Guests) -> Problem {
    let may = match guests {
        Guests::None => "control.guests allows it no call",
        Guests::Own => "it may read its own session, change what that remembers, and propose a script for it",
        Guests::Children => {
            "it may read its own session, change what that remembers, propose a script for it, and control the \
             sessions that it created"
        }
    };
    Problem::new(Code::InSession, format!("the call comes from inside the session {guest}: {may}"))
        .hint("make the call from outside of the sessions; control.guests sets what a session may do")
}

fn stranger(why: StrangerReason) -> Problem {
    let unknown = |detail: &str, hint: &str| Problem::new(Code::CallerUnknown, detail).hint(hint);
    match why {
        StrangerReason::OtherUser => Problem::new(Code::Forbidden, "this agentd belongs to another user"),
        StrangerReason::Gone => unknown(
            "the calling process has ended, so its owner cannot be determined",
            "keep it running until the response has arrived",
        ),
        StrangerReason::Unplaced => unknown(
            "cannot determine whether the calling process is inside a session",
            "call from outside of the sessions; if /proc is mounted with hidepid, agentd must see its user's processes",
        ),
        StrangerReason::OfAgentd => Problem::new(
            Code::StartedByAgentd,
            "the calling process was started by agentd itself, for a start-up file, a script or a plugin; agentd waits \
             for that process, so the process cannot wait for agentd",
        )
        .hint(hint::CALL_FROM_TERMINAL),
        StrangerReason::Unseen => {
            Problem::new(Code::OutOfResources, "agentd has no descriptor left to identify the caller")
                .hint("try again in a moment")
        }
    }
}
