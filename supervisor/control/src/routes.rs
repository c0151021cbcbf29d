//! The routes: each method and path with its call, and with the callers that may make the call. No route can be
//! declared without its access.

use hyper::Method;

/// Parts of a path. They are not percent-decoded, since ids and names never need `%`.
pub(super) type Parts<'a> = &'a [&'a str];

/// Callers that may make a call, from all callers to the owner alone. Each level includes the following ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// All callers, including strangers.
    Public,
    /// A process inside a session.
    Guest,
    /// A process inside the session that the path names, or inside the session that created it.
    Inside,
    /// A process inside the session that created the session in the path.
    Parent,
    /// A process inside a session that may create others.
    Creator,
    /// The user whose daemon it is, and root.
    Owner,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Health,
    Readiness,
    Version,
    Agents,
    Audit,
    Doctor,
    Plugins,
    Plugin,
    Prerequisites,
    CheckPrerequisite,
    Reload,
    Drain,
    Scripts,
    AllowScripts,
    DenyScripts,
    Secrets,
    CheckSecrets,
    Snapshots,
    AddSnapshot,
    RefreshSnapshots,
    InvalidateSnapshots,
    Create,
    List,
    Show,
    Remove,
    Events,
    Environment,
    EnvironmentDifference,
    Validation,
    RotateKey,
    Keep,
    Prompt,
    Cancel,
    CancelTurn,
    Stop,
    Resume,
    Permit,
}

impl Call {
    /// Reports whether the response reveals contents of a session or decisions of the owner. Such a call is
    /// recorded.
    pub(super) fn reveals(self) -> bool {
        matches!(
            self,
            Self::Audit
                | Self::Environment
                | Self::EnvironmentDifference
                | Self::Events
                | Self::Scripts
                | Self::Secrets
                | Self::Snapshots
        )
    }
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    /// Parts of the path; `*` matches any part.
    path: &'static [&'static str],
    pub(super) access: Access,
    pub(super) call: Call,
}

const fn get(path: &'static [&'static str], access: Access, call: Call) -> Route {
    Route { method: Method::GET, path, access, call }
}

const fn post(path: &'static [&'static str], access: Access, call: Call) -> Route {
    Route { method: Method::POST, path, access, call }
}

const fn delete(path: &'static [&'static str], access: Access, call: Call) -> Route {
    Route { method: Method::DELETE, path, access, call }
}

/// All routes. The first match counts.
#[rustfmt::skip] // Keep the columns of the table aligned.
static ROUTES: &[Route] = &[
    get(&["healthz"], Access::Public, Call::Health),
    get(&["readyz"], Access::Guest, Call::Readiness),
    get(&["v1", "version"], Access::Owner, Call::Version),
    get(&["v1", "agents"], Access::Owner, Call::Agents),
    get(&["v1", "audit"], Access::Owner, Call::Audit),
    get(&["v1", "doctor"], Access::Owner, Call::Doctor),
    get(&["v1", "plugins"], Access::Owner, Call::Plugins),
    get(&["v1", "plugins", "*"], Access::Owner, Call::Plugin),
    get(&["v1", "prerequisites"], Access::Owner, Call::Prerequisites),
    post(&["v1", "prerequisites", "*", "check"], Access::Owner, Call::CheckPrerequisite),
    get(&["v1", "reload"], Access::Owner, Call::Reload),
    post(&["v1", "reload"], Access::Owner, Call::Reload),
    get(&["v1", "drain"], Access::Owner, Call::Drain),
    post(&["v1", "drain"], Access::Owner, Call::Drain),
    delete(&["v1", "drain"], Access::Owner, Call::Drain),
    get(&["v1", "scripts"], Access::Owner, Call::Scripts),
    post(&["v1", "scripts", "allow"], Access::Owner, Call::AllowScripts),
    post(&["v1", "scripts", "deny"], Access::Owner, Call::DenyScripts),
    get(&["v1", "secrets"], Access::Owner, Call::Secrets),
    post(&["v1", "secrets", "check"], Access::Owner, Call::CheckSecrets),
    get(&["v1", "snapshots"], Access::Owner, Call::Snapshots),
    post(&["v1", "snapshots"], Access::Owner, Call::AddSnapshot),
    post(&["v1", "snapshots", "refresh"], Access::Owner, Call::RefreshSnapshots),
    post(&["v1", "snapshots", "invalidate"], Access::Owner, Call::InvalidateSnapshots),
    post(&["v1", "environment", "rotate-key"], Access::Owner, Call::RotateKey),
    post(&["v1", "environment", "keep"], Access::Owner, Call::Keep),
    get(&["v1", "sessions"], Access::Guest, Call::List),
    post(&["v1", "sessions"], Access::Creator, Call::Create),
    get(&["v1", "sessions", "*"], Access::Inside, Call::Show),
    delete(&["v1", "sessions", "*"], Access::Owner, Call::Remove),
    get(&["v1", "sessions", "*", "events"], Access::Inside, Call::Events),
    get(&["v1", "sessions", "*", "environment"], Access::Inside, Call::Environment),
    get(&["v1", "sessions", "*", "environment", "diff"], Access::Inside, Call::EnvironmentDifference),
    get(&["v1", "sessions", "*", "validation"], Access::Inside, Call::Validation),
    post(&["v1", "sessions", "*", "prompt"], Access::Parent, Call::Prompt),
    post(&["v1", "sessions", "*", "cancel"], Access::Parent, Call::Cancel),
    delete(&["v1", "sessions", "*", "turns", "*"], Access::Parent, Call::CancelTurn),
    post(&["v1", "sessions", "*", "stop"], Access::Parent, Call::Stop),
    post(&["v1", "sessions", "*", "resume"], Access::Owner, Call::Resume),
    post(&["v1", "sessions", "*", "permissions", "*"], Access::Owner, Call::Permit),
];

fn of(parts: Parts<'_>) -> impl Iterator<Item = &'static Route> {
    let fits = move |path: &[&str]| {
        path.len() == parts.len() && path.iter().zip(parts).all(|(wanted, part)| *wanted == "*" || wanted == part)
    };
    ROUTES.iter().filter(move |route| fits(route.path))
}

/// Returns the route of a request.
pub(super) fn find(method: &Method, parts: Parts<'_>) -> Option<&'static Route> {
    of(parts).find(|route| route.method == *method)
}

/// Lists the methods of a path; `None` for an unknown path.
pub(super) fn methods(parts: Parts<'_>) -> Option<String> {
    let methods: Vec<&str> = of(parts).map(|route| route.method.as_str()).collect();
    (!methods.is_empty()).then(|| methods.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_change_something_need_the_owner_or_concern_a_child() {
        for route in ROUTES {
            let allowed = if route.method == Method::GET {
                matches!(route.access, Access::Public | Access::Guest | Access::Inside | Access::Owner)
            } else {
                matches!(route.access, Access::Parent | Access::Creator | Access::Owner)
            };
            assert!(allowed, "{route:?}");
            let names_a_session = route.path.starts_with(&["v1", "sessions", "*"]);
            assert!(names_a_session || !matches!(route.access, Access::Inside | Access::Parent), "{route:?}");
        }
        let public: Vec<Call> =
            ROUTES.iter().filter(|route| route.access == Access::Public).map(|route| route.call).collect();
        assert_eq!(public, [Call::Health]);
    }

    #[test]
    fn a_path_has_its_methods_and_an_unknown_path_has_no_method() {
        assert_eq!(methods(&["v1", "sessions", "k3m"]).as_deref(), Some("GET, DELETE"));
        assert_eq!(methods(&["v1", "drain"]).as_deref(), Some("GET, POST, DELETE"));
        assert_eq!(methods(&["v1", "sessions", "k3m", "k3m"]), None);
        let stop = find(&Method::POST, &["v1", "sessions", "k3m", "stop"]).map(|route| route.call);
        assert_eq!(stop, Some(Call::Stop));
        assert!(find(&Method::PUT, &["v1", "sessions"]).is_none());
    }
}
