//! Validates specifications of schedules, and finds their times.

use std::sync::Arc;

use agentd_api::environment::SnapshotSource;
use agentd_api::schedule::{LABEL, LONGEST_HISTORY, PrerequisitePolicy, ScheduleEnvironment, ScheduleSpec};
use agentd_api::session::SessionSpec;
use agentd_api::{Code, Problem, SessionName, hint, label};
use agentd_schedule::{Calendar, Times};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::answer;
use crate::generation::Generation;
use crate::spec;

/// Maximum length of the name of a session that a calendar expression creates. The time of the run is appended.
const LONGEST_NAME: usize = 47;

fn invalid(detail: impl Into<String>, hint: impl Into<String>) -> Problem {
    Problem::new(Code::ScheduleInvalid, detail).hint(hint)
}

/// Returns the times of a schedule.
pub(super) fn times(spec: &ScheduleSpec) -> Result<Times, Problem> {
    match (&spec.at, &spec.calendar) {
        (Some(at), None) => match &spec.timezone {
            None => Ok(Times::At(*at)),
            Some(_) => Err(invalid(
                "the schedule has a time zone and no calendar expression",
                "remove `timezone`; `at` has an offset of its own",
            )),
        },
        (None, Some(text)) => {
            let calendar: Calendar = text
                .parse()
                .map_err(|error: agentd_schedule::CalendarError| invalid(error.to_string(), error.hint()))?;
            let zone = match (spec.timezone.as_deref(), calendar.zone()) {
                (Some(one), Some(other)) if one != other => {
                    let detail = format!("the schedule names the time zones {one:?} and {other:?}");
                    return Err(invalid(detail, "name one time zone, in `timezone` or in the calendar expression"));
                }
                (Some(name), _) | (None, Some(name)) => zone(name)?,
                (None, None) => TimeZone::system(),
            };
            Ok(Times::Calendar(calendar, zone))
        }
        (Some(_), Some(_)) => Err(invalid("the schedule has both `at` and `calendar`", "remove one of the two")),
        (None, None) => Err(invalid(
            "the schedule has no time",
            "give `at`, as 2026-12-24T18:00:00Z, or `calendar`, as \"Mon..Fri 09:00\"",
        )),
    }
}

fn zone(name: &str) -> Result<TimeZone, Problem> {
    TimeZone::get(name).map_err(|_| {
        let hint = "name a time zone of the machine, as Europe/Berlin or UTC; /usr/share/zoneinfo has them";
        invalid(format!("there is no time zone {name:?}"), hint)
    })
}

/// Validates a schedule that is added or changed. `now` refuses times that have all passed.
pub(super) async fn check(generation: &Arc<Generation>, spec: &ScheduleSpec, now: Timestamp) -> Result<(), Problem> {
    if times(spec)?.next(now).is_none() {
        let (what, when) = match &spec.calendar {
            Some(calendar) => ("calendar expression", format!("{calendar:?}")),
            None => ("time", spec.at.map(|at| at.to_string()).unwrap_or_default()),
        };
        return Err(invalid(format!("the {what} {when} has no time after now"), "give a time in the future"));
    }
    if spec.wait_seconds.is_some() && spec.prerequisites == PrerequisitePolicy::Skip {
        let hint = "remove `wait_seconds`, or set `prerequisites` to \"wait\"";
        return Err(invalid("the schedule has a limit of a wait and does not wait for prerequisites", hint));
    }
    if spec.history_limit.is_some_and(|limit| !(1..=LONGEST_HISTORY).contains(&limit)) {
        let detail = format!("the history limit is not from 1 to {LONGEST_HISTORY}");
        return Err(invalid(detail, "leave `history_limit` out for the default"));
    }
    match (&spec.session, &spec.prompt) {
        (Some(session), None) => check_session(generation, spec, session).await,
        (None, Some(prompt)) => {
            if prompt.text.trim().is_empty() {
                return Err(invalid("the prompt of the schedule is empty", "give it some text"));
            }
            if prompt.session.parse::<SessionName>().is_err() {
                let detail = format!("{:?} is not an id or name of a session", prompt.session);
                return Err(invalid(detail, hint::LIST_SESSIONS));
            }
            if spec.environment == ScheduleEnvironment::Captured {
                let hint = "leave `environment` out: the session to prompt has its own environment";
                return Err(invalid("only a new session begins with a captured environment", hint));
            }
            Ok(())
        }
        (Some(_), Some(_)) => Err(invalid("the schedule has both a session and a prompt", "remove one of the two")),
        (None, None) => Err(invalid("the schedule has nothing to start", "give `session` or `prompt`")),
    }
}

async fn check_session(
    generation: &Arc<Generation>,
    schedule: &ScheduleSpec,
    session: &SessionSpec,
) -> Result<(), Problem> {
    let is_long = session.name.as_ref().is_some_and(|name| name.as_str().len() > LONGEST_NAME);
    if schedule.calendar.is_some() && is_long {
        let hint = "shorten it: each run appends its time";
        return Err(invalid(format!("the name of the session is longer than {LONGEST_NAME} characters"), hint));
    }
    if session.conversation.is_some() {
        let hint = "adopt the conversation first, then schedule a `prompt` to its session";
        return Err(invalid("a conversation of the agent can be continued by one session only", hint));
    }
    if session.parent.is_some() {
        let hint = "schedule a `prompt` to the other session, or remove `parent`";
        return Err(invalid("a session that continues another one sends no prompt by itself", hint));
    }
    let captured = schedule.environment == ScheduleEnvironment::Captured;
    match &session.environment.snapshot {
        None if captured => {
            let detail = "the schedule captures a terminal's environment, but the request names none";
            return Err(Problem::new(Code::SnapshotNeeded, detail)
                .hint("send it with POST /v1/snapshots, and use the id of the response in session.environment"));
        }
        Some(_) if !captured => {
            let hint = "set `environment` to \"captured\", or remove session.environment.snapshot";
            return Err(invalid("the session names a terminal's environment, which the schedule does not keep", hint));
        }
        _ => {}
    }
    let spec = run_spec(generation, schedule, session, None);
    spec::validate(generation, &spec, |_| true)?;
    if let Some(schema) = &session.answer_schema {
        answer::check_schema(&generation.daemon, schema).await?;
    }
    spec::check_directories(generation, &spec).await
}

/// Returns the specification of the session that a run creates. `due` is the time of the run.
pub(super) fn run_spec(
    generation: &Generation,
    schedule: &ScheduleSpec,
    session: &SessionSpec,
    due: Option<Timestamp>,
) -> SessionSpec {
    let mut spec = session.clone();
    if let (Some(name), Some(due), Some(_)) = (&spec.name, due, &schedule.calendar) {
        spec.name = format!("{name}-{}", due.strftime("%Y%m%d-%H%M%S")).parse().ok();
    }
    if label::check(LABEL, schedule.name.as_str()).is_ok() {
        spec.labels.insert(LABEL.to_owned(), schedule.name.to_string());
    }
    let source = generation.source(&spec);
    if schedule.environment == ScheduleEnvironment::Built && source == SnapshotSource::Terminal {
        // No terminal is there when the run starts.
        spec.environment.source = Some(SnapshotSource::LoginShell);
    }
    if schedule.environment == ScheduleEnvironment::Captured {
        spec.environment.source = Some(SnapshotSource::Terminal);
    }
    spec
}

/// Returns the calendar expression of a timer unit, with the time zone in which agentd computes the times.
pub(super) fn expression(spec: &ScheduleSpec, next: Timestamp) -> String {
    let Some(calendar) = &spec.calendar else {
        return format!("{} UTC", next.strftime("%Y-%m-%d %H:%M:%S%.f"));
    };
    let names_zone = calendar.parse::<Calendar>().is_ok_and(|calendar| calendar.zone().is_some());
    let zone = match &spec.timezone {
        _ if names_zone => None,
        Some(zone) => Some(zone.clone()),
        None => TimeZone::system().iana_name().map(str::to_owned),
    };
    zone.map_or_else(|| calendar.clone(), |zone| format!("{calendar} {zone}"))
}
