//! Start of a test of checks: a world, and a daemon in this world with some prerequisites.

use std::time::{Duration, Instant};

use agentd_api::prerequisite::{CheckReport, Outcome};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::pulse::Pulse;
use super::world::World;
use crate::harness::{Client, Daemon, Session};

/// Time beyond the check's own time that an answer may take on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_millis(1500);

pub(crate) struct Stage {
    // The fields are in the order in which they must be dropped.
    pub(crate) pulse: Pulse,
    pub(crate) daemon: Daemon,
    pub(crate) world: World,
}

/// Returns the configuration of a prerequisite.
pub(crate) fn declared(name: &str, plugin: &str, settings: &str, keys: &str) -> String {
    format!("[prerequisites.{name}]\nplugin = \"{plugin}\"\nsettings = {{ {settings} }}\n{keys}\n")
}

impl Stage {
    /// Starts the world before it calls `config`, because the configuration may name parts of the world.
    pub(crate) async fn new(config: impl FnOnce(&World) -> String) -> Option<Self> {
        let world = World::new().await?;
        let daemon = world.daemon(&config(&world)).await;
        let pulse = Pulse::of(&daemon, world.files());
        Some(Self { pulse, daemon, world })
    }

    /// Runs a check, asserts that it ends within `time`, and returns its report.
    pub(crate) async fn check(&self, name: &str, time: Duration) -> CheckReport {
        check(self.daemon.client.clone(), name.to_owned(), json!({}), time).await
    }

    /// Like [`Stage::check`], for a prerequisite that reads this session's environment.
    pub(crate) async fn check_for(&self, name: &str, session: &Session, time: Duration) -> CheckReport {
        check(self.daemon.client.clone(), name.to_owned(), json!({ "session": session.id }), time).await
    }

    /// Runs these checks in parallel, and returns their reports in the order in which they end.
    pub(crate) async fn check_all(&self, names: &[&str], time: Duration) -> Vec<CheckReport> {
        let mut all = JoinSet::new();
        for &name in names {
            all.spawn(check(self.daemon.client.clone(), name.to_owned(), json!({}), time));
        }
        all.join_all().await
    }
}

async fn check(client: Client, name: String, of: Value, time: Duration) -> CheckReport {
    let begun = Instant::now();
    let report: CheckReport = client.post(&format!("/v1/prerequisites/{name}/check"), &of).await.expect(200);
    assert!(begun.elapsed() < time + SLACK, "{:?}: {report:#?}", begun.elapsed());
    report
}

/// Asserts that the report has this outcome and summary, and that the named facts have these values.
pub(crate) fn assert_told(report: &CheckReport, outcome: Outcome, summary: &str, facts: &[(&str, &str)]) {
    assert_eq!((report.outcome, report.summary.as_str()), (outcome, summary), "{report:#?}");
    for (name, value) in facts {
        assert_eq!(fact(report, name), *value, "{name}: {report:#?}");
    }
    assert_eq!(report.remedy.is_some(), outcome != Outcome::Pass, "{report:#?}");
}

pub(crate) fn fact<'a>(report: &'a CheckReport, name: &str) -> &'a str {
    let fact = report.facts.iter().find(|fact| fact.name == name);
    fact.unwrap_or_else(|| panic!("there is no fact {name:?} in {report:#?}")).value.as_str()
}

pub(crate) fn remedy(report: &CheckReport) -> &str {
    report.remedy.as_deref().unwrap_or_default()
}
