//! Remembers the results of a provider's calls by their input, and the answers of the host on which they depend.
//!
//! Only agentd's own providers are remembered. They read no more of a call than [`Input`] has. A result is remembered
//! only if it says all there is to say: no secret, no file, no limited lifetime, no refusal and no warning.

use std::sync::{Arc, Mutex, PoisonError};

use crate::call::{Call, Change, Effect, Setting};
use crate::limits::Limits;
use crate::services::Variables;
use crate::state::HostCall;

/// Maximum number of remembered results of one plugin. The least recently used one is dropped first.
const RESULTS: usize = 4;
/// Maximum size of one result with its input in bytes.
const LARGEST: usize = 256 << 10;

/// The results of one plugin, the last used one first.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Vec<Arc<Remembered>>>);

/// All that a remembered result depends on, besides the host's answers. The component and its grant do not change.
#[derive(Debug, PartialEq)]
pub(crate) struct Input {
    environment: Variables,
    settings: Vec<Setting>,
    agent: String,
    directory: String,
    limits: Limits,
}

/// A result.
pub(crate) struct Remembered {
    input: Input,
    pub(crate) calls: Vec<HostCall>,
    pub(crate) changes: Vec<Change>,
}

/// Shows the number of changes, because values may be secrets.
impl std::fmt::Debug for Remembered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remembered").field("changes", &self.changes.len()).finish_non_exhaustive()
    }
}

impl Input {
    pub(crate) fn of(call: &Call) -> Option<Self> {
        let session = call.session.as_ref()?;
        Some(Self {
            environment: call.environment.clone(),
            settings: call.settings.clone(),
            agent: session.agent.clone(),
            directory: session.directory.clone(),
            limits: call.limits,
        })
    }
}

impl Memory {
    /// Returns the remembered result of a call with the same input.
    pub(crate) fn find(&self, input: &Input) -> Option<Arc<Remembered>> {
        let mut results = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = results.iter().position(|one| one.input == *input)?;
        results[..=at].rotate_right(1);
        Some(Arc::clone(&results[0]))
    }

    /// Remembers a result, in place of an earlier result of the same input.
    pub(crate) fn keep(&self, input: Input, calls: Vec<HostCall>, changes: &[Change]) {
        let lasts = |change: &Change| {
            change.valid_for.is_none() && !matches!(change.effect, Effect::Secret { .. } | Effect::File { .. })
        };
        if !changes.iter().all(lasts) {
            return;
        }
        let remembered = Remembered { input, calls, changes: changes.to_vec() };
        let mut results = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        results.retain(|one| one.input != remembered.input);
        if remembered.size() <= LARGEST {
            results.insert(0, Arc::new(remembered));
            results.truncate(RESULTS);
        }
    }
}

impl Remembered {
    fn size(&self) -> usize {
        let variables = |all: &Variables| all.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let of_call = |call: &HostCall| match call {
            HostCall::Log { message, .. } => message.len(),
            HostCall::Login(answer) => answer.as_ref().map_or(0, variables),
            HostCall::Locate { paths, .. } => paths.iter().map(String::len).sum(),
            HostCall::Source { given, sourced, .. } => {
                variables(given) + sourced.as_ref().map_or(0, |sourced| variables(&sourced.environment))
            }
        };
        let of_change = |change: &Change| match &change.effect {
            Effect::Set { name, value } => name.len() + value.len(),
            Effect::Prepend { name, entry } | Effect::Append { name, entry } => name.len() + entry.len(),
            Effect::Unset { name, reason } => name.len() + reason.as_ref().map_or(0, String::len),
            Effect::Secret { .. } | Effect::File { .. } => 0,
        };
        variables(&self.input.environment)
            + self.calls.iter().map(of_call).sum::<usize>()
            + self.changes.iter().map(of_change).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn input(value: &str) -> Input {
        Input {
            environment: vec![("A".to_owned(), value.as_bytes().to_vec())],
            settings: Vec::new(),
            agent: "a".to_owned(),
            directory: "/w".to_owned(),
            limits: Limits::default(),
        }
    }

    fn found(memory: &Memory, input: &Input) -> bool {
        memory.find(input).is_some()
    }

    #[test]
    fn a_result_belongs_to_its_whole_input() {
        let memory = Memory::default();
        memory.keep(input("1"), Vec::new(), &[Change::set("B", "2")]);
        assert_eq!(memory.find(&input("1")).unwrap().changes, [Change::set("B", "2")]);
        let settings = vec![Setting { key: "allow".to_owned(), values: Vec::new() }];
        let limits = Limits { log: 1, ..Limits::default() };
        for other in [
            input("2"),
            Input { settings, ..input("1") },
            Input { agent: "b".to_owned(), ..input("1") },
            Input { directory: "/x".to_owned(), ..input("1") },
            Input { limits, ..input("1") },
        ] {
            assert!(!found(&memory, &other), "{other:?}");
        }
    }

    #[test]
    fn a_secret_a_file_and_what_expires_are_not_kept_and_a_large_result_is_neither() {
        let memory = Memory::default();
        let name = || "B".to_owned();
        let secret = Effect::Secret { name: name(), secret: "s".to_owned() };
        let file = Effect::File { name: name(), file_name: "f".to_owned(), content: Vec::new() };
        let expiring = Change { valid_for: Some(Duration::from_mins(1)), ..Change::set("B", "2") };
        for change in [secret.into(), file.into(), expiring, Change::set("B", vec![b'x'; LARGEST])] {
            memory.keep(input("1"), Vec::new(), &[change]);
            assert!(!found(&memory, &input("1")));
        }
    }

    #[test]
    fn the_last_results_are_kept() {
        let memory = Memory::default();
        let number = |n: usize| input(&n.to_string());
        for n in 0..RESULTS {
            memory.keep(number(n), Vec::new(), &[]);
        }
        assert!(found(&memory, &number(0)));
        memory.keep(number(RESULTS), Vec::new(), &[]);
        assert!(found(&memory, &number(0)) && !found(&memory, &number(1)));
    }
}
