//! Folds the facts about a session's directory: the last observed ones, and the baseline with which a launch compares.
//!
//! The baseline is the state in which the agent last worked. It moves at three records:
//!
//! - `turn.started`: the agent begins to work with the facts that the launch has read.
//! - `facts.observed` after a turn, or after the end of an agent in a turn: the changes until then are the agent's own.
//!
//! Before the first turn, the baseline has the facts of the creation.

use std::collections::BTreeSet;
use std::sync::Arc;

use agentd_api::event::EnvironmentBuilt;
use agentd_api::facts::{FactsMoment, FactsObserved, Repository, ScriptDigests, SessionFacts};
use agentd_api::session::AgentInfo;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Facts of a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObservedFacts {
    /// The facts that were observed last.
    pub last: Option<Arc<SessionFacts>>,
    /// Digests of the scripts that the last launch has read.
    pub scripts: Option<Arc<ScriptDigests>>,
    /// Digest of the environment that the last launch has built.
    pub environment: Option<String>,
    pub baseline: Arc<Baseline>,
    /// The reading that is due after the agent's work.
    pub due: Option<DueReading>,
}

/// State in which the agent last worked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    pub facts: Option<Arc<SessionFacts>>,
    pub scripts: Option<Arc<ScriptDigests>>,
    pub environment: Option<String>,
    /// Names of variables that have changed since the agent last worked.
    pub changed: BTreeSet<String>,
    pub agent: Option<AgentInfo>,
    /// Time of the last use: a turn, or an opened conversation.
    pub used: Option<Timestamp>,
}

/// A reading of the facts that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DueReading {
    pub moment: FactsMoment,
    /// Number of the record that made the reading due.
    pub seq: u64,
    /// Time of that record. A late reading would take the changes of others for the agent's.
    pub since: Timestamp,
}

impl ObservedFacts {
    pub(crate) fn observed(&mut self, observed: &FactsObserved) {
        self.last = Some(Arc::clone(&observed.facts));
        self.due = None;
        if let Some(scripts) = &observed.scripts {
            self.scripts = Some(Arc::new(scripts.clone()));
        }
        if matches!(observed.moment, FactsMoment::TurnEnd | FactsMoment::AgentEnd) {
            let known = self.known();
            self.baseline_mut().facts = known;
        }
        if self.baseline.facts.is_none() {
            let (facts, scripts) = (self.last.clone(), self.scripts.clone());
            let baseline = self.baseline_mut();
            (baseline.facts, baseline.scripts) = (facts, scripts);
        }
    }

    fn baseline_mut(&mut self) -> &mut Baseline {
        Arc::make_mut(&mut self.baseline)
    }

    /// Returns the last facts. A repository that could not be read counts as unchanged.
    fn known(&self) -> Option<Arc<SessionFacts>> {
        let (last, before) = (self.last.clone()?, self.baseline.facts.as_ref());
        let is_unread = matches!(last.repository, Repository::Unread(_) | Repository::Unknown);
        match before.filter(|_| is_unread) {
            Some(before) => {
                Some(Arc::new(SessionFacts { repository: before.repository.clone(), ..SessionFacts::clone(&last) }))
            }
            None => Some(last),
        }
    }

    pub(crate) fn built(&mut self, built: &EnvironmentBuilt) {
        self.environment = Some(built.digest.clone());
        let baseline = Arc::make_mut(&mut self.baseline);
        if baseline.environment.is_none() {
            baseline.environment.clone_from(&self.environment);
        }
        if baseline.environment == self.environment {
            baseline.changed.clear();
        } else {
            baseline.changed.extend(built.changed.iter().chain(&built.removed).cloned());
        }
    }

    /// Sets the time of the last use of a session that lacks one.
    pub(crate) fn used_since(&mut self, time: Timestamp) {
        if self.baseline.used.is_none() {
            self.baseline_mut().used = Some(time);
        }
    }

    /// Handles the begin of a launch. `agent` is the agent of the launch before.
    pub(crate) fn launched(&mut self, agent: Option<&AgentInfo>) {
        // States stored by older releases have no baseline.
        if self.baseline.agent.is_none() {
            self.baseline_mut().agent = agent.cloned();
        }
    }

    pub(crate) fn opened(&mut self, agent: Option<&AgentInfo>, now: Timestamp) {
        if self.baseline.agent.is_none() {
            self.baseline_mut().agent = agent.cloned();
        }
        self.baseline_mut().used = Some(now);
    }

    pub(crate) fn turn_started(&mut self, agent: Option<&AgentInfo>, now: Timestamp) {
        self.baseline = Arc::new(Baseline {
            facts: self.known(),
            scripts: self.scripts.clone(),
            environment: self.environment.clone(),
            changed: BTreeSet::new(),
            agent: agent.cloned(),
            used: Some(now),
        });
        self.due = None;
    }

    pub(crate) fn turn_ended(&mut self, seq: u64, now: Timestamp) {
        self.baseline_mut().used = Some(now);
        self.due = Some(DueReading { moment: FactsMoment::TurnEnd, seq, since: now });
    }

    /// Handles the end of an agent in a turn.
    pub(crate) fn cut(&mut self, seq: u64, now: Timestamp) {
        self.due = Some(DueReading { moment: FactsMoment::AgentEnd, seq, since: now });
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::facts::{RepositoryFacts, RepositoryUnread};

    use super::*;

    fn facts(branch: &str) -> Arc<SessionFacts> {
        let repository = if branch.is_empty() {
            Repository::Unread(RepositoryUnread { message: "git did not answer in time".to_owned() })
        } else {
            Repository::Found(RepositoryFacts {
                root: "/w".into(),
                branch: Some(branch.to_owned()),
                head: None,
                remotes: std::collections::BTreeMap::new(),
                dirty: None,
            })
        };
        Arc::new(SessionFacts { read_at: Timestamp::UNIX_EPOCH, directory: None, repository })
    }

    fn observe(observed: &mut ObservedFacts, moment: FactsMoment, branch: &str) {
        observed.observed(&FactsObserved { launch: 1, moment, facts: facts(branch), scripts: None });
    }

    fn branch(observed: &ObservedFacts) -> &str {
        let facts = observed.baseline.facts.as_ref().unwrap();
        facts.repository.found().unwrap().branch.as_deref().unwrap()
    }

    fn second(n: i64) -> Timestamp {
        Timestamp::from_second(n).unwrap()
    }

    #[test]
    fn a_launch_moves_the_baseline_when_its_first_turn_starts_and_the_agent_moves_it_by_its_work() {
        let mut observed = ObservedFacts::default();
        observe(&mut observed, FactsMoment::Launch, "created");
        observe(&mut observed, FactsMoment::Launch, "resumed");
        assert_eq!(branch(&observed), "created");
        observed.turn_started(None, second(1));
        assert_eq!(branch(&observed), "resumed");
        observed.turn_ended(9, second(2));
        assert_eq!(observed.due.map(|due| (due.moment, due.seq)), Some((FactsMoment::TurnEnd, 9)));
        observe(&mut observed, FactsMoment::TurnEnd, "own");
        assert_eq!((branch(&observed), observed.due), ("own", None));
    }

    #[test]
    fn the_facts_after_an_agent_that_ended_in_a_turn_are_its_own() {
        let mut observed = ObservedFacts::default();
        observe(&mut observed, FactsMoment::Launch, "main");
        observed.turn_started(None, second(1));
        observed.cut(10, second(2));
        assert_eq!(observed.due.map(|due| (due.moment, due.seq)), Some((FactsMoment::AgentEnd, 10)));
        observe(&mut observed, FactsMoment::AgentEnd, "own");
        assert_eq!((branch(&observed), observed.due), ("own", None));
    }

    #[test]
    fn a_repository_that_could_not_be_read_is_taken_for_unchanged() {
        let mut observed = ObservedFacts::default();
        observe(&mut observed, FactsMoment::Launch, "main");
        observe(&mut observed, FactsMoment::TurnEnd, "");
        assert_eq!(branch(&observed), "main");
        observed.turn_started(None, second(1));
        assert_eq!(branch(&observed), "main");
    }
}
