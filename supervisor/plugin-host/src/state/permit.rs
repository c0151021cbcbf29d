//! Decides whether a host call is permitted, and formats refusals.
//!
//! If symbolic links matter, a service resolves them and asks the [`Gate`]. A refusal of the gate is final,
//! whatever the service returns. About a path outside of the grant the plugin learns nothing else, not even
//! whether the path exists.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::CallState;
use crate::call::Failure;
use crate::grant::fronts::{Follow, resolve};
use crate::grant::{CallPatterns, Outside, PathError, Places, RequestedPath, ResolvedFronts, Rules};
use crate::text::shown;

/// Maximum number of threads that resolve links for one plugin. A thread that accesses a dead file server never
/// returns.
const LOOKS: usize = 2;
/// The owner of links that are followed.
const ROOT: u32 = 0;

/// State that all calls of a plugin share.
#[derive(Debug)]
pub(crate) struct Bounds {
    pub(crate) rules: Rules,
    looks: Arc<Semaphore>,
}

impl Bounds {
    pub(crate) fn new(rules: Rules) -> Arc<Self> {
        Arc::new(Self { rules, looks: Arc::new(Semaphore::new(LOOKS)) })
    }
}

/// Decides about a resolved path.
type Judge<'a> = Box<dyn Fn(&str) -> Result<(), Outside> + Send + Sync + 'a>;

/// Decides for a service about the path that the service resolved.
pub(super) struct Gate<'a> {
    /// Description of the request for messages: `the file "x"`.
    what: &'a str,
    /// Decision about the path as requested, before links are resolved.
    plain: Result<(), Outside>,
    /// Whether the plugin may learn more about the path than that it is outside of the grant.
    open: bool,
    judge: Judge<'a>,
    /// The last resolved path with its decision.
    asked: Mutex<Option<(String, Result<(), Outside>)>>,
}

impl<'a> Gate<'a> {
    /// Creates a gate. `plain` is the path as requested, before links are resolved.
    pub(super) fn new(
        what: &'a str,
        plain: &str,
        judge: impl Fn(&str) -> Result<(), Outside> + Send + Sync + 'a,
    ) -> Self {
        let plain = judge(plain);
        Self { what, plain, open: plain.is_ok(), judge: Box::new(judge), asked: Mutex::default() }
    }

    /// Allows messages to name the resolved path. For names that are looked up, the resolved path is no secret.
    pub(super) fn opened(self) -> Self {
        Self { open: true, ..self }
    }

    pub(super) fn allows(&self, resolved: &str) -> bool {
        let verdict = (self.judge)(resolved);
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        // A refusal is final, whatever is asked after it.
        if !matches!(*asked, Some((_, Err(_)))) {
            *asked = Some((resolved.to_owned(), verdict));
        }
        verdict.is_ok()
    }

    /// Returns the part of the service's result that the plugin may learn.
    pub(super) fn told<T>(self, answer: Result<T, Failure>) -> Result<T, Failure> {
        let Self { what, plain, open, asked, .. } = self;
        let asked = asked.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (asked, plain, answer) {
            (Some((_, Ok(()))), _, answer) => answer,
            (_, _, Err(failure @ Failure::TimedOut(_))) => Err(failure),
            (Some((resolved, Err(outside))), _, _) if open => {
                Err(Failure::NotGranted(format!("{what} is {}, which {outside}", shown(&resolved))))
            }
            (None, _, Err(failure)) if open => Err(failure),
            // Nothing was resolved, so the path is the requested one.
            (None, Ok(()), answer) => answer,
            (_, Err(outside), _) | (Some((_, Err(outside))), _, _) => Err(refused(what, outside)),
        }
    }
}

/// Makes the failure for a refused request.
pub(super) fn refused(what: &str, outside: Outside) -> Failure {
    Failure::NotGranted(format!("{what} {outside}"))
}

impl CallState {
    /// Decides about a request that no symbolic link affects.
    pub(super) fn judge(&self, what: &str, within: impl Fn(CallPatterns<'_>) -> bool) -> Result<(), Failure> {
        let verdict = self.bounds.rules.judge(&self.places, &ResolvedFronts::default(), within);
        verdict.map_err(|outside| refused(what, outside))
    }

    /// Parses a path that a plugin requests.
    pub(super) fn asked(&self, what: &str, path: &str) -> Result<RequestedPath, Failure> {
        RequestedPath::new(path, &self.places).map_err(|error| match error {
            PathError::Climbs => refused(&format!("{what} {error}, and so"), Outside::Granted),
            error => Failure::Failed(format!("{what} {error}")),
        })
    }

    /// Parses a path that a plugin requests and that must be absolute after replacing its placeholder.
    pub(super) fn asked_absolute(&self, what: &str, path: &str) -> Result<(RequestedPath, String), Failure> {
        let asked = self.asked(what, path)?;
        match asked.absolute.clone() {
            Some(absolute) => Ok((asked, absolute)),
            None => Err(Failure::NotFound(format!("{what} begins with a place that this call does not have"))),
        }
    }

    /// Returns the resolved links of the patterns. They are resolved once in a call.
    pub(super) async fn led(&mut self) -> Result<Arc<ResolvedFronts>, Failure> {
        if let Some(led) = &self.led {
            return Ok(Arc::clone(led));
        }
        let led = Arc::new(self.look().await?);
        self.led = Some(Arc::clone(&led));
        Ok(led)
    }

    async fn look(&self) -> Result<ResolvedFronts, Failure> {
        let bounds = Arc::clone(&self.bounds);
        if !bounds.rules.has_fronts() {
            return Ok(ResolvedFronts::default());
        }
        let (looks, places) = (Arc::clone(&bounds.looks), self.places.clone());
        let look = async {
            let permit = looks.acquire_owned().await.ok();
            let look = tokio::task::spawn_blocking(move || {
                let _permit = permit; // a hanging thread keeps its permit
                look_for(&bounds.rules, &places)
            });
            look.await.map_err(|_| Failure::Failed("agentd is stopping".to_owned()))
        };
        self.bounded("looking where the paths of the grant lead", look).await
    }
}

fn look_for(rules: &Rules, places: &Places) -> ResolvedFronts {
    let wanted = rules.wanted.iter().flat_map(crate::grant::Patterns::fronts);
    ResolvedFronts {
        trusted: resolve(rules.granted.fronts().chain(wanted), Follow::OwnedBy(ROOT, places)),
        denied: resolve(rules.denied.fronts(), Follow::All),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a gate that allows everything below `/open`.
    fn gate<'a>(plain: &str) -> Gate<'a> {
        let below = |path: &str| if path.starts_with("/open/") { Ok(()) } else { Err(Outside::Granted) };
        Gate::new("the file \"x\"", plain, below)
    }

    fn not_granted(text: &str) -> Result<(), Failure> {
        Err(Failure::NotGranted(text.to_owned()))
    }

    fn absent() -> Result<(), Failure> {
        Err(Failure::NotFound("absent".to_owned()))
    }

    #[test]
    fn what_the_gate_refused_is_refused_even_if_the_service_did_it() {
        let inside = gate("/open/link");
        assert!(!inside.allows("/secret"));
        assert!(inside.allows("/open/a"));
        let told = inside.told(Ok(()));
        assert_eq!(told, not_granted("the file \"x\" is \"/secret\", which is outside of this plugin's grant"));
    }

    #[test]
    fn of_what_is_outside_nothing_is_told_but_that() {
        let outside = not_granted("the file \"x\" is outside of this plugin's grant");
        assert_eq!(gate("/secret").told(absent()), outside);
        assert_eq!(gate("/secret").told(Ok(())), outside);
        let asked = gate("/secret");
        assert!(!asked.allows("/other"));
        assert_eq!(asked.told(absent()), outside);
        let late = Failure::TimedOut("late".to_owned());
        assert_eq!(gate("/secret").told::<()>(Err(late.clone())), Err(late));
    }

    #[test]
    fn a_name_that_is_looked_up_may_lead_nowhere_and_that_is_told() {
        assert_eq!(gate("ls").opened().told(absent()), absent());
        let elsewhere = gate("ls").opened();
        assert!(!elsewhere.allows("/bin/ls"));
        let told = not_granted("the file \"x\" is \"/bin/ls\", which is outside of this plugin's grant");
        assert_eq!(elsewhere.told(Ok(())), told);
        let outside = not_granted("the file \"x\" is outside of this plugin's grant");
        assert_eq!(gate("ls").opened().told(Ok(())), outside);
    }

    #[test]
    fn what_is_within_is_told_as_it_is() {
        assert_eq!(gate("/open/a").told(absent()), absent());
        assert_eq!(gate("/open/a").told(Ok(())), Ok(()));
        // A link from outside of the grant to a granted path.
        let link = gate("/elsewhere");
        assert!(link.allows("/open/a"));
        assert_eq!(link.told(Ok(())), Ok(()));
    }
}
