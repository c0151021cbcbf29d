//! Implements the part of `agentctl apply` and `agentctl diff` for schedules.

use agentd_api::ScheduleName;
use agentd_api::schedule::{ScheduleEnvironment, ScheduleSpec, ScheduleView};
use serde_json::json;
use std::collections::BTreeMap;

use super::apply::unified;
use super::life::first;
use super::schedule::{create, is_stale};
use super::{Context, print};
use crate::error::Error;
use agentd_client::Absence as _;
use agentd_client::patiently;
use agentd_screen::terminal::Screen;
use agentd_specs::{WantedSchedule, shown};

/// Number of attempts while other clients change a schedule.
const ATTEMPTS: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Created,
    Changed,
    Unchanged,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
        }
    }
}

/// The present schedules by their names.
type Present = BTreeMap<ScheduleName, ScheduleView>;

async fn present(context: &Context) -> Result<Present, Error> {
    let list = patiently(|| context.client.schedules()).await?.value;
    Ok(list.schedules.into_iter().map(|view| (view.spec.name.clone(), view)).collect())
}

/// Returns the specification of the file, with the environment that the schedule has captured already.
fn wanted_of(file: &ScheduleSpec, known: Option<&ScheduleView>) -> ScheduleSpec {
    let mut wanted = file.clone();
    let kept = known.and_then(|view| view.spec.session.as_ref()?.environment.snapshot.clone());
    if let Some(session) = &mut wanted.session
        && session.environment.snapshot.is_none()
        && wanted.environment == ScheduleEnvironment::Captured
    {
        session.environment.snapshot = kept;
    }
    wanted
}

fn outcome(wanted: &ScheduleSpec, known: Option<&ScheduleView>) -> Outcome {
    match known {
        None => Outcome::Created,
        Some(view) if view.spec == *wanted => Outcome::Unchanged,
        Some(_) => Outcome::Changed,
    }
}

/// Makes the schedules of files as the files request them. Returns the status of the first failure.
pub(super) async fn apply(
    context: &Context,
    wanted: &[WantedSchedule],
    dry_run: bool,
    mut status: u8,
) -> Result<u8, Error> {
    if wanted.is_empty() {
        return Ok(status);
    }
    let present = present(context).await?;
    for one in wanted {
        let known = present.get(&one.spec.name).cloned();
        match patiently(|| applied(context, one, known.clone(), dry_run)).await {
            Ok(outcome) => tell_outcome(context, one, outcome, dry_run)?,
            Err(error) if error.is_absence() => return Err(of_schedule(one, error)),
            Err(error) => status = first(context, status, Err(of_schedule(one, error))),
        }
    }
    Ok(status)
}

/// Adds or changes one schedule. A change by another client in the meantime is compared again.
async fn applied(
    context: &Context,
    one: &WantedSchedule,
    mut known: Option<ScheduleView>,
    dry_run: bool,
) -> Result<Outcome, Error> {
    let mut attempts = 0;
    loop {
        let wanted = wanted_of(&one.spec, known.as_ref());
        let outcome = outcome(&wanted, known.as_ref());
        if dry_run || outcome == Outcome::Unchanged {
            return Ok(outcome);
        }
        let done = match &known {
            None => create(&context.client, wanted).await.map(drop),
            Some(view) => context.client.set_schedule(&wanted, view.generation).await.map(drop).map_err(Error::from),
        };
        attempts += 1;
        match done {
            Ok(()) => return Ok(outcome),
            Err(error) if is_stale(&error) && attempts < ATTEMPTS => {
                known = present(context).await?.remove(&one.spec.name);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Prints the differences between schedules and files. Reports whether there are any.
pub(super) async fn differences(context: &Context, wanted: &[WantedSchedule]) -> Result<bool, Error> {
    if wanted.is_empty() {
        return Ok(false);
    }
    let present = present(context).await?;
    let mut differs = false;
    for one in wanted {
        let known = present.get(&one.spec.name);
        let spec = wanted_of(&one.spec, known);
        let outcome = outcome(&spec, known);
        if outcome == Outcome::Unchanged {
            continue;
        }
        differs = true;
        if context.json {
            tell_outcome(context, one, outcome, true)?;
            continue;
        }
        let name = &one.spec.name;
        let write = |spec: &ScheduleSpec| {
            one.format.write_schedule(spec).map_err(|reason| {
                let detail = format!("cannot write schedule \"{name}\" as {}: {reason}", shown(&one.file));
                Error::Usage { detail, hint: "use YAML for this file".to_owned() }
            })
        };
        let (title, before) = match known {
            Some(view) => (format!("schedule {name} (generation {})", view.generation), write(&view.spec)?),
            None => ("/dev/null".to_owned(), String::new()),
        };
        let titles = [title, format!("schedule {name} ({})", shown(&one.file))];
        print(&unified(&before, &write(&spec)?, &titles, Screen::stdout()))?;
    }
    Ok(differs)
}

fn of_schedule(one: &WantedSchedule, source: Error) -> Error {
    let what = format!("cannot apply schedule \"{}\" of {}", one.spec.name, shown(&one.file));
    Error::Part { what, source: Box::new(source) }
}

fn tell_outcome(context: &Context, one: &WantedSchedule, outcome: Outcome, dry_run: bool) -> Result<(), Error> {
    let (name, result) = (&one.spec.name, outcome.as_str());
    if context.json {
        let line = json!({ "schedule": name, "file": one.file, "result": result, "dry_run": dry_run });
        return context.print_value(&line);
    }
    print(&format!("schedule {name} {result}{}\n", if dry_run { " (dry run)" } else { "" }))
}
