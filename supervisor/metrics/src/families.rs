//! The list of all families.

use std::sync::{Mutex, MutexGuard, PoisonError};

use agentd_api::doc::Named;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::declare::{Described, Kind, Label, PREFIX, families};
use crate::family::{Counter, Gauge, Histogram};
use crate::label;
use crate::names::Names;

/// Maximum number of sessions with series of their own.
pub const SESSIONS: usize = 200;
/// Maximum number of machines of places with series of their own.
pub const HOSTS: usize = 200;
/// Help text of `agentd_build_info`, without the full stop.
const BUILD_HELP: &str = "Version of the running daemon. The value is always 1";

/// Bounds for answers and calls: from a millisecond to ten seconds.
const SHORT: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];
/// Bounds for the work of a launch: from ten milliseconds to two minutes.
const WORK: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];
/// Bounds for turns and waits for people: from half a second to a day.
const LONG: &[f64] = &[0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0];

families! {
    /// Time at which the daemon started, in seconds since 1970.
    start_time: Gauge = "start_time" seconds [];
    /// 1 if a session can be launched now, as `/readyz` answers, else 0.
    ready: Gauge = "ready" [];
    /// 1 for each reason why no session can be launched, else 0. The reasons are those of `/readyz`.
    not_ready: Gauge = "not_ready" [reason in NOT_READY];
    /// 1 while the daemon is drained, else 0.
    draining: Gauge = "draining" [];
    /// Free space of the state directory's file system that agentd may use.
    disk_free: Gauge = "disk_free" bytes [];
    /// Size of the state directory's file system.
    disk_size: Gauge = "disk_size" bytes [];

    /// Number of sessions by phase and agent. `command` means sessions with a command of their own, and `other` means
    /// the agents beyond the first 50.
    sessions: Gauge = "sessions" [phase, agent];
    /// Number of active sessions on places, by place and state. `other` means places that are not configured any more.
    place_sessions: Gauge = "place_sessions" [place, state];
    /// Number of sessions whose agent runs on a machine of a place, by place and name of the machine. `other` means the
    /// machines beyond the first 200. Containers and pods are left out, because each has a host name of its own.
    place_host_sessions: Gauge = "place_host_sessions" [place, host];
    /// Duration of the queries of the engines' states, by place and outcome. One query answers for all sessions of a
    /// place.
    place_query_duration: Histogram = "place_query_duration" seconds in buckets SHORT [place, outcome in CALLS];
    /// Number of sessions whose condition is True, for each condition.
    session_conditions: Gauge = "session_conditions" [condition];
    /// Number of sessions that cannot be read and are set aside.
    unreadable_sessions: Gauge = "unreadable_sessions" [];
    /// Number of sessions with a running keeper.
    keepers: Gauge = "keepers" [];
    /// Number of agents that were started for later sessions and wait for one.
    warm_agents: Gauge = "warm_agents" [];
    /// Number of queued turns of all sessions.
    queued_turns: Gauge = "queued_turns" [];
    /// Number of permission requests and questions that wait for an answer.
    open_permissions: Gauge = "open_permissions" [];
    /// Number of sessions whose journal cannot be written at present.
    journals_held_up: Gauge = "journals_held_up" [];
    /// Number of sessions whose driver has been in one step for half of the watchdog's time.
    drivers_stuck: Gauge = "drivers_stuck" [];

    /// Number of launches that ended, by the reason of the launch and by outcome.
    launches: Counter = "launches" [reason in LAUNCH_REASONS, outcome in LAUNCH_OUTCOMES];
    /// Number of launches that had a warm agent: `used`, or `not-used` if the agent had another environment or had
    /// ended.
    warm_agent_launches: Counter = "warm_agent_launches" [outcome in WARM_OUTCOMES];
    /// Duration of launches, from the begin to the open conversation or to the failure.
    launch_duration: Histogram = "launch_duration" seconds in buckets WORK [outcome in LAUNCH_OUTCOMES];
    /// Duration of each step of a launch. Waits for prerequisites are part of their step.
    launch_step_duration: Histogram = "launch_step_duration" seconds in buckets WORK [step in STEPS];
    /// Number of restarts of crashed agents.
    restarts: Counter = "restarts" [];
    /// Number of times that a session was parked because its agent crashed too often.
    parkings: Counter = "parkings" [];
    /// Number of ended agents, by cause.
    agent_ends: Counter = "agent_ends" [cause in ENDS];

    /// Number of environments of launches, by outcome. `incomplete` environments lack a failed part.
    environment_builds: Counter = "environment_builds" [outcome in BUILDS];
    /// Duration of building or restoring the environment of a launch.
    environment_build_duration: Histogram = "environment_build_duration" seconds in buckets WORK [];
    /// Number of uses of login shells' snapshots: a hit needs no run of the shell.
    snapshot_uses: Counter = "snapshot_uses" [result in SNAPSHOT_USES];
    /// Age of the oldest snapshot of a login shell that is in memory.
    snapshot_age: Gauge = "snapshot_age" seconds [];
    /// Number of environment scripts of launches, by outcome. A reused result needs no run.
    scripts: Counter = "scripts" [outcome in SCRIPTS];
    /// Duration of the runs of environment scripts.
    script_duration: Histogram = "script_duration" seconds in buckets WORK [];
    /// Number of checks of prerequisites that were run, by outcome.
    prerequisite_checks: Counter = "prerequisite_checks" [outcome in CHECKS];
    /// Duration of the checks of prerequisites.
    prerequisite_check_duration: Histogram = "prerequisite_check_duration" seconds in buckets SHORT [];
    /// Number of calls of plugins, by plugin and outcome. `other` means the plugins beyond the first 50.
    plugin_calls: Counter = "plugin_calls" [plugin, outcome in CALLS];
    /// Duration of the calls of plugins.
    plugin_call_duration: Histogram = "plugin_call_duration" seconds in buckets SHORT [plugin];

    /// Number of turns that ended, by outcome.
    turns: Counter = "turns" [outcome in TURNS];
    /// Duration of turns, from the first prompt to the end. Turns that were dropped from the queue are left out.
    turn_duration: Histogram = "turn_duration" seconds in buckets LONG [];
    /// Number of times that a turn met a rate limit of its provider.
    rate_limits: Counter = "rate_limits" [];
    /// Number of permission requests and questions that were answered or ended, by the source of the answer. `client`
    /// is a person, an editor or a program outside of the sessions. `session` is an agent.
    permission_answers: Counter = "permission_answers" [by in ANSWERS];
    /// Time from a permission request or question to its answer.
    permission_wait: Histogram = "permission_wait" seconds in buckets LONG [by in ANSWERS];

    /// Number of lines of agents that keepers left out of journals.
    dropped_lines: Counter = "dropped_lines" [];
    /// Number of bytes of agents that keepers left out of journals.
    dropped: Counter = "dropped" bytes [];
    /// Size of all journals.
    journal: Gauge = "journal" bytes [];
    /// Time from the writing of a record to the moment at which the daemon has applied it.
    journal_lag: Histogram = "journal_lag" seconds in buckets SHORT [];

    /// Number of sessions with a keeper that the daemon took over at its start.
    adopted_sessions: Gauge = "adopted_sessions" [];
    /// Time that the daemon needed at its start to take over these sessions.
    adoption_duration: Gauge = "adoption_duration" seconds [];

    /// Memory of a session's processes: of its cgroup, or else the sum of their resident memory. At most 200 sessions.
    session_memory: Gauge = "session_memory" bytes [session];
    /// Processor time of a session's processes since the start of the agent.
    session_cpu: Counter = "session_cpu" seconds [session];
    /// Number of processes of a session, with the keeper.
    session_processes: Gauge = "session_processes" [session];
    /// Number of sessions with a keeper that have no series of their own, because there are more than 200.
    sessions_left_out: Gauge = "sessions_left_out" [];
    /// Time of the last measurement, in seconds since 1970. Journals and snapshots are measured with the disk, and
    /// sessions' memory and processor time with the processes.
    last_sample: Gauge = "last_sample" seconds [of in SAMPLES];

    /// Number of answered requests, by route and status. `none` means an unknown path or method.
    requests: Counter = "requests" [route, status];
    /// Time from a request to the head of its answer. Requests that ask to wait are included.
    request_duration: Histogram = "request_duration" seconds in buckets SHORT [route];
    /// Number of open streams of events, streams of `/acp` and requests that wait.
    streams: Gauge = "streams" [];
    /// Number of connections that were refused because all connections or those of the caller were in use.
    connections_refused: Counter = "connections_refused" [listener in CONNECTIONS_REFUSED];
    /// Number of attempts of hooks to deliver an event, by hook and outcome. `other` means the hooks beyond the first
    /// 50.
    hook_deliveries: Counter = "hook_deliveries" [hook, outcome in HOOK_OUTCOMES];
    /// Number of events in the feed behind the position of a hook. Not all of them are for the hook.
    hook_lag: Gauge = "hook_lag" [hook];
    /// Number of records of the audit log.
    audit_records: Counter = "audit_records" [];
    /// Number of records of the audit log about refused calls.
    audit_refusals: Counter = "audit_refusals" [];
    /// Number of calls that the audit log lacks, because a session made too many or because the disk is too slow.
    audit_dropped: Counter = "audit_dropped" [];
}

/// Format of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

impl Format {
    /// Returns the format that a client accepts. `OpenMetrics` is the default.
    pub fn accepted(accept: &str) -> Self {
        let is_text = accept.contains("text/plain") && !accept.contains("application/openmetrics-text");
        if is_text { Self::Text } else { Self::OpenMetrics }
    }

    /// Returns the media type of the page.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => prometheus_text::CONTENT_TYPE,
        }
    }
}

impl Metrics {
    /// Replaces values that belong together. No page is written meanwhile.
    pub fn replace(&self, replace: impl FnOnce(&Self)) {
        let _alone = self.alone();
        replace(self);
    }

    /// Writes the page after `refresh` has set the values of the moment.
    pub fn page(&self, format: Format, refresh: impl FnOnce(&Self)) -> String {
        let _alone = self.alone();
        refresh(self);
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = match format {
            Format::OpenMetrics => text::encode(&mut page, &self.registry),
            Format::Text => prometheus_text::encode(&mut page, &self.registry),
        };
        page
    }

    /// Returns the label value of an agent. `None` is a session with a command of its own.
    pub fn agent<'a>(&self, name: Option<&'a str>) -> &'a str {
        name.map_or(label::COMMAND, |name| self.agents.bounded(name))
    }

    /// Returns the label value of a plugin.
    pub fn plugin<'a>(&self, name: &'a str) -> &'a str {
        self.plugins.bounded(name)
    }

    /// Returns the label value of a place.
    pub fn place<'a>(&self, name: &'a str) -> &'a str {
        self.places.bounded(name)
    }

    /// Returns the label value of a hook.
    pub fn hook<'a>(&self, name: &'a str) -> &'a str {
        self.hooks.bounded(name)
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        // The lock guards no value.
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_family_has_its_own_name_and_the_page_has_each_with_its_type() {
        let names: BTreeSet<String> = Metrics::ALL.iter().map(Described::name).collect();
        assert_eq!(names.len(), Metrics::ALL.len());
        let metrics = Metrics::new("1.2.3");
        metrics.requests.count(["GET /healthz", "200"]);
        metrics.request_duration.observe(["GET /healthz"], Duration::from_millis(3));
        metrics.replace(|metrics| metrics.session_memory.set(["abc"], 7.0));
        let page = metrics.page(Format::OpenMetrics, |metrics| metrics.ready.set([], 1.0));
        for described in Metrics::ALL {
            let kind = format!("{:?}", described.kind).to_lowercase();
            let line = format!("# TYPE {} {kind}\n", described.name());
            // A family without a series is left out until its first value.
            let is_open = described.combinations().is_empty();
            assert!(page.contains(&line) || is_open, "{line}{page}");
        }
        for line in [
            "agentd_ready 1.0\n",
            "agentd_build_info{version=\"1.2.3\"} 1\n",
            "agentd_requests_total{route=\"GET /healthz\",status=\"200\"} 1.0\n",
            "agentd_session_memory_bytes{session=\"abc\"} 7.0\n",
            "agentd_turns_total{outcome=\"end-turn\"} 0.0\n",
            "agentd_request_duration_seconds_bucket{le=\"0.005\",route=\"GET /healthz\"} 1\n",
        ] {
            assert!(page.contains(line), "{line}{page}");
        }
        assert!(page.ends_with("# EOF\n"), "{page}");
    }

    #[test]
    fn a_held_gauge_falls_when_its_guard_is_dropped_and_a_reset_gauge_keeps_its_known_series() {
        let metrics = Metrics::new("1");
        let held = metrics.streams.hold([]);
        assert!(metrics.page(Format::Text, |_| ()).contains("agentd_streams 1.0\n"));
        drop(held);
        metrics.sessions.count(["idle", "demo"]);
        metrics.not_ready.set(["draining"], 1.0);
        metrics.sessions.reset();
        metrics.not_ready.reset();
        let page = metrics.page(Format::Text, |_| ());
        assert!(page.contains("agentd_streams 0.0\n"), "{page}");
        assert!(page.contains("agentd_not_ready{reason=\"draining\"} 0.0\n"), "{page}");
        assert!(!page.contains("demo"), "{page}");
    }

    #[test]
    fn openmetrics_is_the_default_and_text_is_sent_to_those_that_accept_nothing_else() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [("", Format::OpenMetrics), ("*/*", Format::OpenMetrics), ("text/plain", Format::Text)]
        {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
    }
}
