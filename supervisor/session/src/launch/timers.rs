//! Timer units for schedules: transient units of the manager that runs the sessions.
//!
//! A timer starts a service that asks agentd to run what is due. So a time passes on a machine whose agentd is not
//! running: the request starts agentd by its socket unit. A unit is never changed. Its name has the number of the
//! schedule's specification, and another specification gets another unit.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use agentd_api::{ScheduleName, SessionId, hex};
use sha2::{Digest as _, Sha256};
use zbus::{OwnedObjectPath, Variant};

use super::LaunchError;
use super::systemd::{ExecStart, Units};

/// A timer unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScheduleTimer {
    /// Name of the unit without its ending.
    pub(crate) name: String,
    pub(crate) schedule: ScheduleName,
    /// `OnCalendar=` (systemd.timer(5)).
    pub(crate) calendar: String,
    /// The path of agentctl.
    pub(crate) program: PathBuf,
    /// The control socket.
    pub(crate) socket: PathBuf,
}

/// Names of the timer units of one daemon. Daemons with other state directories have other names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TimerNames {
    prefix: String,
}

impl TimerNames {
    pub(crate) fn new(state: &Path) -> Self {
        // The names must stay the same in later releases.
        let digest = hex(&Sha256::digest(state.as_os_str().as_bytes()));
        Self { prefix: format!("agentd-schedule-{}-", &digest[..8]) }
    }

    /// Returns the name of a schedule's unit. `id` tells a schedule from a removed one of the same name.
    pub(crate) fn of(&self, schedule: &ScheduleName, id: &SessionId, generation: u64) -> String {
        format!("{}{schedule}-{id}-{generation}", self.prefix)
    }
}

/// A unit as `ListUnitsByPatterns` describes it; only its name counts.
type Listed = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

impl Units {
    /// Stops the units that are not wanted, and starts those that are missing.
    pub(super) async fn set_timers(
        &self,
        names: &TimerNames,
        timers: &[&ScheduleTimer],
    ) -> Vec<Result<(), LaunchError>> {
        let present = match self.timers(names).await {
            Ok(present) => present,
            // Each attempt would fail in the same way, and the error is reported for each schedule.
            Err(_) if timers.is_empty() => return Vec::new(),
            Err(_) => BTreeSet::new(),
        };
        let file = |timer: &ScheduleTimer| format!("{}.timer", timer.name);
        let wanted: BTreeSet<String> = timers.iter().map(|timer| file(timer)).collect();
        for unit in present.difference(&wanted) {
            if let Err(error) = self.call(unit, "StopUnit", &(unit.as_str(), "replace")).await {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(unit, error, "cannot stop the timer of a schedule");
            }
        }
        let mut results = Vec::new();
        for timer in timers {
            let is_present = present.contains(&file(timer));
            results.push(if is_present { Ok(()) } else { self.start_timer(timer).await });
        }
        results
    }

    /// Returns the names of the present timer units.
    async fn timers(&self, names: &TimerNames) -> Result<BTreeSet<String>, LaunchError> {
        let pattern = format!("{}*.timer", names.prefix);
        let none: Vec<&str> = Vec::new();
        let answer = self.call(&pattern, "ListUnitsByPatterns", &(none, vec![pattern.as_str()])).await?;
        let body = answer.body();
        let listed: Vec<Listed> =
            body.deserialize().map_err(|source| LaunchError::Unit { unit: pattern.clone(), source })?;
        let is_active = |unit: &Listed| unit.3 == "active" || unit.3 == "activating";
        Ok(listed.into_iter().filter(is_active).map(|unit| unit.0).collect())
    }

    async fn start_timer(&self, timer: &ScheduleTimer) -> Result<(), LaunchError> {
        let (unit, service) = (format!("{}.timer", timer.name), format!("{}.service", timer.name));
        let (program, socket) = (timer.program.display().to_string(), timer.socket.display().to_string());
        let words = ["--socket", &socket, "schedule", "run", timer.schedule.as_str(), "--due"];
        let argv: Vec<&str> = std::iter::once(program.as_str()).chain(words).collect();
        let exec: Vec<ExecStart<'_>> = vec![(&program, argv, false)];
        let description = format!("agentd: schedule {}", timer.schedule);
        let calendars: Vec<(&str, &str)> = vec![("OnCalendar", timer.calendar.as_str())];
        let properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", description.as_str().into()),
            ("TimersCalendar", calendars.into()),
            // The default of systemd is a minute.
            ("AccuracyUSec", 1_000_000_u64.into()),
        ];
        let of_service: Vec<(&str, Variant<'_>)> = vec![
            ("Description", description.as_str().into()),
            ("Type", "oneshot".into()),
            ("ExecStart", exec.into()),
            ("CollectMode", "inactive-or-failed".into()),
            ("SyslogIdentifier", "agentctl".into()),
        ];
        let auxiliary = vec![(service.as_str(), of_service)];
        let arguments = (unit.as_str(), "fail", properties, auxiliary);
        self.call(&unit, "StartTransientUnit", &arguments).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_the_daemon_the_schedule_and_its_specification_in_its_name() {
        let names = TimerNames::new(Path::new("/home/kim/.local/state/agentd"));
        let (name, id) = ("nightly".parse().unwrap(), "k3m9x2p7qa4z".parse().unwrap());
        assert_eq!(
            names.of(&name, &id, 2),
            "agentd-schedule-HASH-nightly-k3m9x2p7qa4z-2".replace("HASH", &names.prefix[16..24])
        );
        assert_ne!(names, TimerNames::new(Path::new("/tmp/state")));
    }
}
