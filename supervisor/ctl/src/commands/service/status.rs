//! Implements `agentctl service status`: the installed files and the running daemons. Starts nothing: a request
//! at the socket would start the service.

use std::path::Path;

use serde_json::{Value, json};

use super::super::{Context, print};
use crate::args::service::WhichArgs;
use crate::error::{Error, exit};
use crate::service::host::Host;
use crate::service::manager::Service;
use crate::service::record::Standing;
use crate::service::survey::{self, Running, Survey, UnitState};
use agentd_screen::terminal::Screen;

pub(super) async fn status(context: &Context, host: &Host, from: &Path, which: &WhichArgs) -> Result<u8, Error> {
    let service = Service::find(host, which).await?;
    let survey = Survey::look(host, &service, from, None).await?;
    let (socket, state) = survey::states(host, &service).await?;
    let mut running = survey::all_running(host, &service, &context.client).await?;
    if let Service::System { user: Some(only) } = &service {
        running.retain(|running| running.user.as_ref() == Some(only));
    }
    if context.json {
        let document = document(host, &service, &survey, [socket.as_ref(), state.as_ref()], &running);
        context.print_value(&document)?;
    } else {
        let text = text(host, &service, &survey, [socket.as_ref(), state.as_ref()], &running);
        print(&Screen::stdout().text(&text))?;
    }
    Ok(if running.is_empty() { exit::UNREACHABLE } else { 0 })
}

fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Absent => "missing",
        Standing::Current => "current",
        Standing::Ours => "of another build",
        Standing::Foreign => "not as installed",
    }
}

fn text(
    host: &Host,
    service: &Service,
    survey: &Survey,
    [socket, state]: [Option<&UnitState>; 2],
    running: &[Running],
) -> String {
    let mut lines = Vec::new();
    let mut field = |name: &str, value: &str| lines.push(format!("{:<11}{value}\n", format!("{name}:")));
    field("manager", service.name());
    let installed = survey.record.as_ref().map(|record| record.version.as_str());
    field("installed", installed.unwrap_or(if survey.is_installed() { "yes, by hand" } else { "no" }));
    for program in &survey.programs {
        field("program", &format!("{} ({})", program.to.display(), word(program.standing)));
    }
    for file in &survey.units {
        field("unit", &format!("{} ({})", file.file.path.display(), word(file.standing)));
    }
    for standing in [Standing::Absent, Standing::Current, Standing::Ours, Standing::Foreign] {
        let count = survey.documents.iter().filter(|it| it.standing == standing).count();
        if count > 0 {
            field("documents", &format!("{count} completion scripts and man pages ({})", word(standing)));
        }
    }
    for (name, state) in [("socket", socket), ("service", state)] {
        let Some(state) = state else { continue };
        let enabled = if name == "socket" && state.enabled { ", enabled" } else { "" };
        let older = if state.stale { "; its unit has changed since it was read: systemctl daemon-reload" } else { "" };
        field(name, &format!("{}{enabled}{older}", state.active));
    }
    if running.is_empty() {
        let listens = socket.is_some_and(UnitState::is_active);
        field("agentd", if listens { "does not run; the first request starts it" } else { "does not run" });
    }
    for daemon in running {
        let whose = daemon.user.as_ref().map(|user| format!("{user}: ")).unwrap_or_default();
        let by = if daemon.unit.is_some() { "" } else { ", started by no manager" };
        field("agentd", &format!("{whose}{} (pid {}){by}", daemon.version, daemon.pid));
        if let Some(program) = daemon.program(host) {
            let replaced = if program.replaced { " (replaced since: restart agentd)" } else { "" };
            field("file", &format!("{}{replaced}", program.path.display()));
        }
        let active = daemon.sessions.iter().filter(|view| view.status.phase.is_active()).count();
        field("sessions", &format!("{}, {active} active", daemon.sessions.len()));
    }
    lines.concat()
}

fn document(
    host: &Host,
    service: &Service,
    survey: &Survey,
    [socket, state]: [Option<&UnitState>; 2],
    running: &[Running],
) -> Value {
    let file = |path: &Path, standing: Standing| json!({ "path": path, "state": word(standing) });
    let unit = |state: &UnitState| {
        json!({
            "state": state.active,
            "enabled": state.enabled,
            "pid": state.pid,
            "stale": state.stale,
        })
    };
    let daemon = |daemon: &Running| {
        let program = daemon.program(host);
        json!({
            "unit": daemon.unit,
            "user": daemon.user,
            "version": daemon.version,
            "pid": daemon.pid,
            "program": program.as_ref().map(|program| &program.path),
            "replaced": program.as_ref().map(|program| program.replaced),
            "sessions": daemon.sessions.len(),
            "active": daemon.sessions.iter().filter(|view| view.status.phase.is_active()).count(),
        })
    };
    json!({
        "manager": if *service == Service::Launchd { "launchd" } else { "systemd" },
        "system": matches!(service, Service::System { .. }),
        "installed": survey.record.as_ref().map(|record| &record.version),
        "programs": survey.programs.iter().map(|it| file(&it.to, it.standing)).collect::<Vec<_>>(),
        "units": survey.units.iter().map(|it| file(&it.file.path, it.standing)).collect::<Vec<_>>(),
        "documents": survey.documents.iter().map(|it| file(&it.file.path, it.standing)).collect::<Vec<_>>(),
        "socket": socket.map(unit),
        "service": state.map(unit),
        "running": running.iter().map(daemon).collect::<Vec<_>>(),
    })
}
