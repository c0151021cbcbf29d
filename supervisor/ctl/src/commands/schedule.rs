//! Implements `agentctl schedule`.

use std::fmt::Write as _;

use agentd_api::Code;
use agentd_api::quantity::Time;
use agentd_api::schedule::{
    Concurrency, MissedPolicy, PrerequisitePolicy, RunOutcome, ScheduleEnvironment, ScheduleList, ScheduleRun,
    ScheduleSpec, ScheduleView, ScheduledPrompt, Timer,
};
use agentd_api::session::SessionSpec;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::life::first;
use super::{Context, print, tell};
use crate::args::schedule::{AddArgs, ConcurrencyArg, ScheduleCommand};
use crate::error::Error;
use crate::machine::Machine;
use crate::spec::{is_no_prompt, prompt_text, send_terminal, spec};
use agentd_client::{Client, Document};
use agentd_screen::table::{Cut, Table, age, span};
use agentd_screen::terminal::Screen;

pub(super) async fn schedule(context: &Context, command: ScheduleCommand) -> Result<u8, Error> {
    match command {
        ScheduleCommand::Add(args) => add(context, *args).await,
        ScheduleCommand::Ls => {
            let list = context.client.schedules().await?;
            if context.json {
                return context.print_document(&list.raw).map(|()| 0);
            }
            Context::table(&table(&list.value, Timestamp::now(), Screen::stdout()))?;
            for unreadable in &list.value.unreadable {
                tell(&format!("cannot read the schedule {}: {}", unreadable.name, unreadable.reason))?;
            }
            Ok(0)
        }
        ScheduleCommand::Show { schedule } => {
            let view = context.client.schedule(schedule.as_str()).await?;
            if context.json {
                return context.print_document(&view.raw).map(|()| 0);
            }
            print(&details(&view.value, Screen::stdout()))?;
            Context::table(&history(&view.value.history, Screen::stdout()))?;
            Ok(0)
        }
        ScheduleCommand::Rm { schedules } => {
            let mut status = 0;
            for schedule in &schedules {
                let removed = context.client.remove_schedule(schedule).await;
                status = first(context, status, removed.map(|()| 0).map_err(Error::from));
            }
            Ok(status)
        }
        ScheduleCommand::Run { schedule, due } => run(context, schedule.as_str(), due).await,
    }
}

async fn add(context: &Context, args: AddArgs) -> Result<u8, Error> {
    if args.session.is_none() {
        is_no_prompt(&context.client, &args.spec).await?;
    }
    let added = create(&context.client, requested(args, &Machine::of(&context.client), Timestamp::now())?).await?;
    if context.json {
        context.print_document(&added.raw)?;
    } else if let Some(next) = added.value.next {
        tell(&format!("{} runs next at {}", added.value.spec.name, local(next)))?;
    } else {
        tell(&format!("{} is suspended", added.value.spec.name))?;
    }
    Ok(0)
}

/// Adds a schedule. If its session begins with this terminal's environment, that environment is sent first.
pub(super) async fn create(client: &Client, mut spec: ScheduleSpec) -> Result<Document<ScheduleView>, Error> {
    let is_captured = spec.environment == ScheduleEnvironment::Captured;
    if let Some(session) = spec.session.as_mut().filter(|_| is_captured)
        && session.environment.snapshot.is_none()
    {
        session.environment.snapshot = Some(send_terminal(client).await?);
    }
    Ok(client.add_schedule(&spec).await?)
}

fn usage(detail: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Usage { detail: detail.into(), hint: hint.into() }
}

/// Builds the specification from the arguments.
fn requested(args: AddArgs, machine: &Machine, now: Timestamp) -> Result<ScheduleSpec, Error> {
    let AddArgs { schedule: name, at, calendar, timezone, session, captured, wait, skip_unmet, .. } = args;
    let AddArgs { skip_missed, concurrency, suspended, history: history_limit, spec: mut of_session, .. } = args;
    let at = at.map(|text| time(&text, timezone.as_deref(), now)).transpose()?;
    let prompt = match session {
        None => None,
        Some(session) => {
            let text = std::mem::take(&mut of_session.text);
            let given = of_session.prompt.take().or_else(|| (!text.is_empty()).then(|| text.join(" ")));
            let given = given.ok_or_else(|| usage("--session has no prompt", "give --prompt TEXT"))?;
            Some(ScheduledPrompt { session, text: prompt_text(&given)? })
        }
    };
    // The daemon of a prompt's session knows its directory.
    let machine = if prompt.is_some() { &Machine::This } else { machine };
    let of_session = spec(of_session, machine)?;
    if prompt.is_some() && of_session != SessionSpec::new(machine.directory(None)?) {
        let hint = "leave the options of a new session out: the session to prompt has its own";
        return Err(usage("--session is given together with options of a new session", hint));
    }
    let session = Some(of_session).filter(|_| prompt.is_none());
    Ok(ScheduleSpec {
        name,
        timezone: timezone.filter(|_| at.is_none()),
        at,
        calendar,
        session,
        prompt,
        environment: if captured { ScheduleEnvironment::Captured } else { ScheduleEnvironment::Built },
        prerequisites: if skip_unmet { PrerequisitePolicy::Skip } else { PrerequisitePolicy::Wait },
        wait_seconds: wait.map(Time::seconds),
        missed: if skip_missed { MissedPolicy::Skip } else { MissedPolicy::Once },
        concurrency: match concurrency {
            ConcurrencyArg::Allow => Concurrency::Allow,
            ConcurrencyArg::Forbid => Concurrency::Forbid,
            ConcurrencyArg::Replace => Concurrency::Replace,
        },
        suspended,
        history_limit,
    })
}

/// Parses a time: a timestamp, a date and time in a time zone, or a length of time from now.
fn time(text: &str, timezone: Option<&str>, now: Timestamp) -> Result<Timestamp, Error> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    if let Ok(Time(length)) = text.parse::<Time>() {
        return now.checked_add(length).map_err(|_| usage(format!("{text} from now is too far away"), "give less"));
    }
    let zone = match timezone {
        None => TimeZone::system(),
        Some(name) => TimeZone::get(name)
            .map_err(|_| usage(format!("there is no time zone {name:?}"), "name one as Europe/Berlin or UTC"))?,
    };
    let clock = text.parse::<DateTime>().ok();
    clock.and_then(|clock| zone.to_zoned(clock).ok()).map(|zoned| zoned.timestamp()).ok_or_else(|| {
        let hint = "give 2026-12-24T18:00:00Z, \"2026-12-24 18:00\", or a length of time from now, as 2h";
        usage(format!("{text:?} is not a time"), hint)
    })
}

async fn run(context: &Context, name: &str, due: bool) -> Result<u8, Error> {
    let begun = context.client.run_schedule(name, due).await?;
    if context.json {
        context.print_document(&begun.raw)?;
    }
    let mut status = 0;
    for run in &begun.value.runs {
        if run.outcome == RunOutcome::Failed {
            let detail = format!("the run of {name} failed: {}", run.reason.as_deref().unwrap_or("no reason is known"));
            let hint = Some(format!("agentctl schedule show {name}"));
            status = first(context, status, Err(Error::Session { detail, hint }));
        } else if context.json {
        } else if let Some(session) = &run.session {
            print(&format!("{session}\n"))?;
        } else {
            let reason = run.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            tell(&format!("{name}: {}{reason}", run.outcome.as_str()))?;
        }
    }
    Ok(status)
}

/// Formats a time in the time zone of this machine.
fn local(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

fn when(spec: &ScheduleSpec) -> String {
    let zone = spec.timezone.as_ref().map(|zone| format!(" {zone}")).unwrap_or_default();
    let at = || spec.at.map(local).unwrap_or_default();
    spec.calendar.as_ref().map_or_else(at, |calendar| format!("{calendar}{zone}"))
}

fn what(spec: &ScheduleSpec) -> String {
    match (&spec.prompt, &spec.session) {
        (Some(prompt), _) => format!("prompt to {}", prompt.session),
        (None, Some(session)) => format!("session in {}", session.directory.display()),
        (None, None) => String::new(),
    }
}

fn table(list: &ScheduleList, now: Timestamp, screen: Screen) -> Table {
    let mut table = Table::new(&[
        ("NAME", Cut::Never),
        ("NEXT", Cut::Never),
        ("LAST", Cut::Never),
        ("OUTCOME", Cut::Never),
        ("ACTIVE", Cut::Never),
        ("WHEN", Cut::End),
        ("WHAT", Cut::End),
        ("ERROR", Cut::End),
    ]);
    for view in &list.schedules {
        let next = match view.next {
            Some(next) => {
                let left = u64::try_from(next.duration_since(now).as_secs()).unwrap_or(0);
                format!("in {}", span(left))
            }
            None if view.spec.suspended => "suspended".to_owned(),
            None => "never".to_owned(),
        };
        let run = view.last.as_ref();
        table.row([
            view.spec.name.to_string(),
            next,
            run.map(|run| format!("{} ago", age(run.due, now))).unwrap_or_default(),
            run.map(|run| run.outcome.as_str().to_owned()).unwrap_or_default(),
            view.active.to_string(),
            screen.line(&when(&view.spec)),
            screen.line(&what(&view.spec)),
            screen.line(view.error.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

fn details(view: &ScheduleView, screen: Screen) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{:<12}{}", format!("{name}:"), screen.line(value));
    };
    line("name", view.spec.name.as_str());
    line("when", &when(&view.spec));
    line("what", &what(&view.spec));
    if let Some(next) = view.next {
        let by = match view.timer {
            Some(Timer::Systemd) => " (a timer unit of systemd)",
            Some(Timer::Agentd) => " (agentd waits)",
            Some(Timer::Unknown) | None => "",
        };
        line("next", &format!("{}{by}", local(next)));
    }
    if view.spec.suspended {
        line("suspended", "yes");
    }
    if let Some(error) = &view.error {
        line("error", error);
    }
    text
}

fn history(runs: &[ScheduleRun], screen: Screen) -> Table {
    let mut table = Table::new(&[
        ("DUE", Cut::Never),
        ("OUTCOME", Cut::Never),
        ("SESSION", Cut::Never),
        ("TURN", Cut::Never),
        ("TOOK", Cut::Never),
        ("REASON", Cut::End),
    ]);
    for run in runs {
        let took = run.started.zip(run.ended).map(|(from, to)| age(from, to)).unwrap_or_default();
        let count = run.count.map(|count| format!("{count} missed")).or_else(|| run.reason.clone());
        table.row([
            local(run.due),
            run.outcome.as_str().to_owned(),
            run.session.as_ref().map(ToString::to_string).unwrap_or_default(),
            run.turn.as_ref().map(ToString::to_string).unwrap_or_default(),
            took,
            screen.line(&count.unwrap_or_default()),
        ]);
    }
    table
}

/// Reports whether a schedule has this name already, or was removed meanwhile.
pub(super) fn is_stale(error: &Error) -> bool {
    matches!(error.problem_code(), Some(Code::NameTaken | Code::GenerationChanged | Code::NoSuchSchedule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_timestamp_a_clock_or_a_length() {
        let now: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
        for (text, wanted) in [
            ("2026-12-24T18:00:00Z", "2026-12-24T18:00:00Z"),
            ("2026-12-24T18:00:00+01:00", "2026-12-24T17:00:00Z"),
            ("2026-12-24 18:00", "2026-12-24T17:00:00Z"),
            ("2026-12-24 18:00:30", "2026-12-24T17:00:30Z"),
            ("2h", "2026-11-26T14:00:00Z"),
            ("90", "2026-11-26T12:01:30Z"),
        ] {
            assert_eq!(time(text, Some("Europe/Berlin"), now).unwrap().to_string(), wanted, "{text}");
        }
        for wrong in ["", "soon", "18:00", "2026-13-01 10:00"] {
            assert!(matches!(time(wrong, Some("UTC"), now), Err(Error::Usage { .. })), "{wrong}");
        }
        assert!(matches!(time("2026-12-24 18:00", Some("No/Where"), now), Err(Error::Usage { .. })));
    }
}
