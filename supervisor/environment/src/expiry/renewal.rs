//! Compares a running agent's environment with renewed values of limited lifetime, without I/O.
//!
//! An unchanged value stays valid for longer. A file is rewritten at its path. Any other changed variable cannot be
//! changed in the running agent and is reported as stale. Values without a limit stay unchanged until the next
//! launch.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use agentd_api::ByteString;
use agentd_api::degraded::{MissingKind, MissingPart};
use agentd_api::environment::{EnvironmentView, VariableView};
use agentd_api::event::StaleVariable;
use jiff::{SignedDuration, Timestamp};

use crate::merge::{CONVERSATION, Environment};
use crate::pipeline::files::SessionFile;

/// Result of a renewal.
pub struct Renewal {
    /// The view to store: the agent's variables with their new expiry times.
    pub view: EnvironmentView,
    /// Files to rewrite.
    pub files: Vec<SessionFile>,
    /// Variables whose value in the agent is out of date, sorted by name.
    pub stale: Vec<StaleVariable>,
    /// Earliest expiry time of the renewed values.
    pub expires: Option<Timestamp>,
    /// Variables that had already expired when they were renewed, with their providers.
    pub over: Vec<String>,
    /// Values to hide in the agent's output after the renewal.
    pub hidden: Vec<agentd_api::ByteString>,
}

/// Shows neither values nor contents.
impl std::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewal").field("files", &self.files).field("stale", &self.stale).finish_non_exhaustive()
    }
}

/// Shortest validity that is used. A shorter validity is extended to it, so that no provider is called in a loop.
const SHORTEST: SignedDuration = SignedDuration::from_secs(1);
/// Longest time before the expiry at which a renewal is due.
const LEAD: SignedDuration = SignedDuration::from_mins(5);

/// Returns the time at which a value that is valid from `from` until `expires` is renewed.
///
/// The time is at 80 % of the validity or five minutes before the end, whichever is later. A delay of up to a
/// quarter of the remaining time is added, so that sessions with the same provider do not renew at once. The delay
/// is a function of the session and of the expiry time.
pub fn renew_at(from: Timestamp, expires: Timestamp, session: &str) -> Timestamp {
    let validity = expires.duration_since(from).max(SHORTEST);
    let lead = (validity / 5).min(LEAD);
    let mut hasher = DefaultHasher::new();
    (session, expires.as_nanosecond()).hash(&mut hasher);
    let part = i32::from(u8::try_from(hasher.finish() % 256).unwrap_or(0)); // of 256
    let jitter = lead / 4 * part / 256;
    from.saturating_add(validity - lead + jitter).unwrap_or(Timestamp::MAX)
}

/// Returns the providers that gave a value that expires.
pub(super) fn providers(view: &EnvironmentView) -> BTreeSet<&str> {
    let variables = view.variables.iter().filter(|one| one.expires_at.is_some()).map(|one| one.provider.as_str());
    let dropped = view.dropped.iter().filter(|one| one.expires_at.is_some()).map(|one| one.provider.as_str());
    variables.chain(dropped).collect()
}

/// Returns why a stored environment cannot be restored. Its launch left out a part, a value has expired, a file was
/// never stored, or it has the place of another conversation. `pinned` has the variables that name the
/// place of the present one.
pub fn restore_obstacle(
    view: &EnvironmentView,
    pinned: &BTreeMap<String, Option<ByteString>>,
    now: Timestamp,
) -> Option<String> {
    let providers = view.variables.iter().map(|one| (&one.name, &one.provider));
    let mut providers = providers.chain(view.dropped.iter().map(|one| (&one.name, &one.provider)));
    if let Some((name, _)) = providers.find(|(name, by)| *by == CONVERSATION && !pinned.contains_key(*name)) {
        return Some(format!("{name} has the value for the conversation before"));
    }
    let over = |expires: Option<Timestamp>| expires.filter(|expires| *expires <= now);
    let variables = view.variables.iter().chain(&view.missing).map(|one| (&one.name, &one.provider, one.expires_at));
    let dropped = view.dropped.iter().map(|one| (&one.name, &one.provider, one.expires_at));
    let expired: Vec<String> = variables
        .chain(dropped)
        .filter_map(|(name, provider, expires)| {
            over(expires).map(|since| format!("{name} of {provider} expired at {since}"))
        })
        .collect();
    let is_lost = |part: &&MissingPart| matches!(part.kind, MissingKind::Provider | MissingKind::Script);
    let lost: Vec<String> =
        (view.without.iter().filter(is_lost)).map(|part| format!("{} {}", part.kind.as_str(), part.name)).collect();
    if !lost.is_empty() {
        return Some(format!("launch {} was degraded and left out {}", view.launch, lost.join(", ")));
    }
    if !expired.is_empty() {
        return Some(expired.join(", "));
    }
    let file = view.variables.iter().find(|variable| variable.file.is_some())?;
    Some(format!("the file of {} from {} was not stored", file.name, file.provider))
}

/// Compares the environment that the agent started with to the renewed results of the first `asked` steps.
/// `remembered` holds the secrets that the agent started with.
pub(super) fn renewal(
    stored: &EnvironmentView,
    fresh: &Environment,
    asked: u32,
    remembered: &BTreeMap<String, Vec<u8>>,
    now: Timestamp,
) -> Renewal {
    let new = fresh.full_view(now, stored.launch);
    let (variables, dropped) = (by_name(&new), new.dropped.iter().map(|one| (one.name.as_str(), one)));
    let dropped: BTreeMap<_, _> = dropped.collect();
    let mut view = stored.clone();
    let (mut stale, mut written) = (Vec::new(), BTreeSet::new());
    for variable in &mut view.variables {
        let given = variables.get(variable.name.as_str()).copied();
        let limited = given.is_some_and(|given| given.expires_at.is_some()) && variable.step <= asked;
        if variable.expires_at.is_none() && !limited {
            continue;
        }
        match given.filter(|given| is_same(variable, given, remembered, fresh)) {
            Some(given) => {
                if given.file.is_some() {
                    written.insert(variable.name.clone());
                }
                (variable.file, variable.expires_at) = (given.file.clone(), given.expires_at);
            }
            None => stale.push(StaleVariable {
                name: variable.name.clone(),
                provider: variable.provider.clone(),
                since: variable.expires_at.unwrap_or(now),
            }),
        }
    }
    for gone in view.dropped.iter_mut().filter(|gone| gone.expires_at.is_some()) {
        match variables.get(gone.name.as_str()) {
            Some(given) => stale.push(StaleVariable {
                name: gone.name.clone(),
                provider: given.provider.clone(),
                since: gone.expires_at.unwrap_or(now),
            }),
            None => gone.expires_at = dropped.get(gone.name.as_str()).and_then(|dropped| dropped.expires_at),
        }
    }
    let known: BTreeMap<&str, u32> = (stored.variables.iter().map(|one| (one.name.as_str(), one.step)))
        .chain(stored.dropped.iter().map(|one| (one.name.as_str(), one.step)))
        .collect();
    let added = new.variables.iter().filter(|one| one.expires_at.is_some() && !known.contains_key(one.name.as_str()));
    stale.extend(added.map(|one| StaleVariable { name: one.name.clone(), provider: one.provider.clone(), since: now }));
    stale.sort_by(|a, b| a.name.cmp(&b.name));
    // A variable that a later step changed is ignored, because that step did not run again.
    let counts = |name: &str| known.get(name).is_none_or(|step| *step <= asked);
    let variables = new.variables.iter().map(|one| (one.name.as_str(), one.provider.as_str(), one.expires_at));
    let dropped = new.dropped.iter().map(|one| (one.name.as_str(), one.provider.as_str(), one.expires_at));
    let counted = variables.chain(dropped).filter(|(name, ..)| counts(name));
    let ends: Vec<(&str, &str, Timestamp)> =
        counted.filter_map(|(name, provider, expires)| Some((name, provider, expires?))).collect();
    let expires = ends.iter().map(|(.., expires)| *expires).min();
    let over = ends.iter().filter(|(.., expires)| *expires <= now);
    let over = over.map(|(name, provider, _)| format!("{name} of {provider}")).collect();
    let files = SessionFile::of(fresh, |variable| written.contains(variable));
    Renewal { view, files, stale, expires, over, hidden: Vec::new() }
}

fn by_name(view: &EnvironmentView) -> BTreeMap<&str, &VariableView> {
    view.variables.iter().map(|variable| (variable.name.as_str(), variable)).collect()
}

/// Reports whether the agent has the same value that it would receive now. A secret that is not in memory counts as
/// changed, because a limit means that it changes.
fn is_same(
    has: &VariableView,
    given: &VariableView,
    remembered: &BTreeMap<String, Vec<u8>>,
    fresh: &Environment,
) -> bool {
    if has.file.is_some() != given.file.is_some() || has.named_secret != given.named_secret {
        return false;
    }
    match (&has.digest, &given.digest) {
        (Some(has), Some(given)) => has == given,
        _ => remembered.get(&has.name).map(Vec::as_slice) == fresh.get(&has.name),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agentd_plugin_host::{Change, Effect};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn limited(change: impl Into<Change>, seconds: u64) -> Change {
        Change { valid_for: Some(Duration::from_secs(seconds)), ..change.into() }
    }

    fn file(content: &str) -> Change {
        let content = content.as_bytes().to_vec();
        Effect::File { name: "TOKEN_FILE".to_owned(), file_name: "token".to_owned(), content }.into()
    }

    /// Returns an environment of the changes of each step, applied at this time, in order.
    fn environment(second: i64, steps: &[Vec<Change>]) -> Environment {
        let mut environment = Environment::with_files_in("/run/s".into());
        for (place, changes) in (1..).zip(steps) {
            environment.apply_at(&format!("p{place}"), place, changes.clone(), at(second)).unwrap();
        }
        environment
    }

    fn renewed(had: &[Vec<Change>], has: &[Vec<Change>], asked: u32) -> Renewal {
        let had = environment(100, had);
        let remembered = had.secret_pairs().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
        let stored = crate::merge::without_secrets(had.full_view(at(100), 1));
        renewal(&stored, &environment(200, has), asked, &remembered, at(200))
    }

    fn stale(renewal: &Renewal) -> Vec<(&str, &str, i64)> {
        let told = renewal.stale.iter();
        told.map(|one| (one.name.as_str(), one.provider.as_str(), one.since.as_second())).collect()
    }

    #[test]
    fn unchanged_values_stay_valid_and_changed_values_are_stale() {
        let had = vec![
            limited(Change::set("SAME", "1"), 50),
            limited(Change::set("OTHER", "1"), 60),
            limited(Change::set("GONE", "1"), 70),
            limited(Change::set("API_KEY", "hunter22"), 80),
            limited(Change::set("API_TOKEN", "hunter22"), 80),
            Change::set("FOR_EVER", "1"),
        ];
        let has = vec![
            limited(Change::set("SAME", "1"), 500),
            limited(Change::set("OTHER", "2"), 600),
            limited(Change::set("API_KEY", "hunter22"), 80),
            limited(Change::set("API_TOKEN", "hunter33"), 300),
            limited(Change::set("NEW", "1"), 300),
            Change::set("FOR_EVER", "2"),
        ];
        let renewal = renewed(&[had], &[has], 1);
        assert_eq!(
            stale(&renewal),
            [("API_TOKEN", "p1", 180), ("GONE", "p1", 170), ("NEW", "p1", 200), ("OTHER", "p1", 160)]
        );
        assert_eq!(renewal.expires, Some(at(280)));
        let expires = |name: &str| by_name(&renewal.view)[name].expires_at.map(Timestamp::as_second);
        assert_eq!((expires("SAME"), expires("OTHER"), expires("API_KEY")), (Some(700), Some(160), Some(280)));
        assert!(!by_name(&renewal.view).contains_key("NEW"), "the agent has not got it");
    }

    #[test]
    fn a_file_is_rewritten_at_its_path_and_its_variable_is_not_stale() {
        let renewal = renewed(&[vec![limited(file("one"), 50)]], &[vec![limited(file("two!"), 50)]], 1);
        assert_eq!((stale(&renewal), renewal.files.len()), (vec![], 1));
        assert_eq!((renewal.files[0].name.as_str(), renewal.files[0].content.as_slice()), ("token", &b"two!"[..]));
        assert_eq!(by_name(&renewal.view)["TOKEN_FILE"].file.as_ref().unwrap().size, 4);
        // A file without a limit stays unchanged.
        let renewal = renewed(&[vec![file("one")]], &[vec![file("two!")]], 1);
        assert_eq!((renewal.files.len(), renewal.expires), (0, None));
        // The file is not rewritten if the variable is now a plain variable.
        let plain = limited(Change::set("TOKEN_FILE", "/run/s/token"), 50);
        let renewal = renewed(&[vec![limited(file("one"), 50)]], &[vec![plain]], 1);
        assert_eq!((stale(&renewal), renewal.files.len()), (vec![("TOKEN_FILE", "p1", 150)], 0));
    }

    #[test]
    fn a_variable_that_a_later_step_changed_is_ignored() {
        let had = [vec![limited(Change::set("X", "1"), 50)], vec![Change::set("X", "mine")]];
        let has = [vec![limited(Change::set("X", "2"), 50)]];
        let renewal = renewed(&had, &has, 1);
        assert_eq!((stale(&renewal), renewal.expires), (vec![], None));
    }

    #[test]
    fn a_removal_with_a_limit_is_renewed_too() {
        let had = [vec![limited(Change::unset("X", None), 50), limited(Change::unset("Y", None), 60)]];
        let has = [vec![limited(Change::unset("X", None), 50), Change::set("Y", "1")]];
        let renewal = renewed(&had, &has, 1);
        assert_eq!((stale(&renewal), renewal.expires), (vec![("Y", "p1", 160)], Some(at(250))));
    }

    #[test]
    fn values_that_had_already_expired_are_reported() {
        let had = [vec![limited(Change::set("X", "1"), 50), limited(Change::set("Y", "1"), 5000)]];
        let stored = environment(100, &had).full_view(at(100), 1);
        let renewal = renewal(&stored, &environment(100, &had), 1, &BTreeMap::new(), at(1000));
        assert_eq!((renewal.expires, renewal.over), (Some(at(150)), vec!["X of p1".to_owned()]));
    }

    #[test]
    fn a_renewal_is_due_at_four_fifths_or_five_minutes_before_the_end_whichever_is_later() {
        for (validity, first) in [(10, 8.0), (600, 480.0), (1500, 1200.0), (3600, 3300.0), (86400, 86100.0)] {
            let latest = first + (f64::from(validity) - first) / 4.0;
            let asked: Vec<f64> = (0..50)
                .map(|session| renew_at(at(0), at(i64::from(validity)), &format!("s{session}")))
                .map(|at| at.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64())
                .collect();
            assert!(asked.iter().all(|at| (first..=latest).contains(at)), "{validity}: {asked:?}");
            assert!(
                asked.iter().any(|at| *at > asked[0]) || asked.iter().any(|at| *at < asked[0]),
                "all sessions ask at once: {asked:?}"
            );
        }
        assert_eq!(renew_at(at(0), at(600), "s"), renew_at(at(0), at(600), "s"));
    }

    #[test]
    fn renewals_of_very_short_limits_are_at_least_a_moment_apart() {
        for expires in [-1000, 0, 1] {
            let asked = renew_at(at(0), at(expires), "s").duration_since(Timestamp::UNIX_EPOCH);
            assert!((SignedDuration::from_millis(800)..SignedDuration::from_secs(1)).contains(&asked), "{asked:?}");
        }
    }

    #[test]
    fn expired_values_are_not_restored() {
        let view = environment(100, &[vec![limited(Change::set("X", "1"), 50), Change::set("Y", "1")]]);
        let view = view.full_view(at(100), 1);
        let obstacle = |now| restore_obstacle(&view, &BTreeMap::new(), now);
        assert_eq!(obstacle(at(149)), None);
        let why = obstacle(at(150)).unwrap();
        assert!(why.starts_with("X of p1 expired at 1970-01-01T00:02:30Z"), "{why}");
        let view = environment(100, &[vec![file("one")]]).full_view(at(100), 1);
        assert!(restore_obstacle(&view, &BTreeMap::new(), at(100)).unwrap().contains("TOKEN_FILE"));
    }

    #[test]
    fn the_place_of_another_conversation_is_not_restored() {
        for change in [Change::set("CODEX_HOME", "/a"), Change::unset("CODEX_HOME", None)] {
            let mut had = environment(100, &[vec![Change::set("CODEX_HOME", "/b")]]);
            had.apply(CONVERSATION, 2, vec![change]).unwrap();
            assert_eq!(had.held(), ["CODEX_HOME"]);
            let view = had.full_view(at(100), 1);
            let pinned = BTreeMap::from([("CODEX_HOME".to_owned(), None)]);
            assert_eq!(restore_obstacle(&view, &pinned, at(100)), None);
            let why = restore_obstacle(&view, &BTreeMap::new(), at(100)).unwrap();
            assert!(why.starts_with("CODEX_HOME has the value"), "{why}");
        }
    }

    #[test]
    fn only_providers_of_effective_values_are_renewed() {
        let had = [
            vec![limited(Change::set("X", "1"), 50)],
            vec![Change::set("X", "mine"), limited(Change::unset("Y", None), 50)],
            vec![Change::set("Z", "1")],
        ];
        let view = environment(100, &had).full_view(at(100), 1);
        assert_eq!(providers(&view).into_iter().collect::<Vec<_>>(), ["p2"]);
    }
}
