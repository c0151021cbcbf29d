//! Settings of the present configuration for one session.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::quantity::Time;
use agentd_api::session::SessionSpec;
use agentd_keeper::protocol::StopTimes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::sync::watch;

use crate::document::Document;
use crate::generation::{Generation, Generations};
use crate::mcp;
use crate::staleness;
use agentd_decide::acp::OwnServer;
use agentd_decide::next::Facts;
use agentd_decide::staleness::StalenessSettings;
use agentd_decide::state::State;
use agentd_decide::verdict::RequiredPrerequisites;
use agentd_decide::waits::WaitLimits;
use agentd_decide::workflow::Workflow;

/// The generation in force, with what it means for the session.
pub(crate) struct Terms {
    /// The generation in force when the driver last woke. A running task keeps its own generation.
    pub(crate) generation: Arc<Generation>,
    generations: watch::Receiver<Arc<Generation>>,
    /// Label of the agent, for permission rules and plugins.
    agent: String,
    /// The specification with what the session's workflow needs.
    spec: Arc<SessionSpec>,
    /// The workflow for which `spec` was made.
    workflow: Workflow,
    /// The session's prerequisites under this generation.
    needed: RequiredPrerequisites,
    /// agentd's own MCP server for the session's agent.
    mcp: Option<OwnServer>,
    /// Policies for a stale session.
    staleness: StalenessSettings,
    /// The time zone of this machine.
    zone: TimeZone,
}

impl Terms {
    pub(super) fn new(generations: &Generations, document: &Document, state: &State) -> Self {
        let generation = generations.now();
        let spec = state.workflow.in_force(&document.spec);
        Self {
            agent: generation.agent_label(&document.spec),
            needed: needed(&generation, &spec, state),
            spec,
            workflow: state.workflow.clone(),
            mcp: mcp::server(&generation, &document.id, &document.spec),
            staleness: staleness::settings(&generation.config.staleness),
            zone: TimeZone::system(),
            generation,
            generations: generations.subscribe(),
        }
    }

    /// Waits for another generation. Returns `false` when there will be none.
    pub(super) async fn changed(&mut self) -> bool {
        self.generations.changed().await.is_ok()
    }

    /// Takes over the generation in force.
    pub(super) fn renew(&mut self, document: &Document, state: &State) {
        self.generation = Arc::clone(&self.generations.borrow_and_update());
        self.spec = state.workflow.in_force(&document.spec);
        self.workflow = state.workflow.clone();
        self.needed = needed(&self.generation, &self.spec, state);
        self.mcp = mcp::server(&self.generation, &document.id, &document.spec);
        self.staleness = staleness::settings(&self.generation.config.staleness);
    }

    /// Returns the specification with what the session's workflow needs.
    pub(super) fn spec(&self) -> &Arc<SessionSpec> {
        &self.spec
    }

    /// Reports whether the session has another workflow than at the making of these terms.
    pub(super) fn has_another_workflow(&self, state: &State) -> bool {
        self.workflow != state.workflow
    }

    pub(super) fn facts<'a>(&'a self, document: &'a Document) -> Facts<'a> {
        Facts {
            spec: &self.spec,
            generation: document.generation,
            now: Timestamp::now(),
            zone: &self.zone,
            editor: self.generation.agent(&document.spec).map_or(&[], |agent| &agent.editor),
            replay_quiet: self.generation.config.launch.replay_quiet.0,
            agent: &self.agent,
            rules: &self.generation.config.permissions,
            may_allow: self.generation.launchable().is_ok(),
            note: self.generation.resume_note(&document.spec),
            mcp: self.mcp.as_ref(),
            template: &self.generation.template,
            restart: self.generation.restart_policy(&document.spec),
            drained: self.generation.daemon.drain.is_on(),
            needed: &self.needed,
            staleness: &self.staleness,
            is_examining: false,
        }
    }

    pub(super) fn stop_times(&self) -> StopTimes {
        self.generation.config.launch.stop_times()
    }

    /// Returns the time limits of the session's waits.
    pub(super) fn patience(&self, document: &Document) -> WaitLimits {
        let (limits, launch) = (&self.generation.config.limits, &self.generation.config.launch);
        let own = &document.spec.limits;
        // In a session's own limit 0 means no limit. Without an own limit the configured one applies.
        let choose = |own: Option<u64>, configured: Option<Time>| match own {
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => configured.map(|span| span.0),
        };
        WaitLimits {
            initialize: limits.initialize.0,
            open: limits.open_conversation.0,
            turn: choose(own.turn_seconds, Some(limits.turn)),
            cancel: limits.cancel.0,
            silence: Some(limits.silence.0).filter(|silence| !silence.is_zero()),
            session: choose(own.session_seconds, None),
            idle: choose(own.idle_seconds, limits.idle),
            permission: choose(own.permission_seconds, limits.permission),
            restart_first: launch.restart_first.0,
            restart_longest: launch.restart_longest.0,
        }
    }
}

/// Returns the session's prerequisites. An invalid configuration may lack some, so the recorded ones are used
/// instead.
fn needed(generation: &Generation, spec: &SessionSpec, state: &State) -> RequiredPrerequisites {
    match generation.launchable() {
        Ok(()) => generation.needs(spec),
        Err(_) => state.prerequisites.iter().map(|report| (report.name.clone(), report.on_failure)).collect(),
    }
}
