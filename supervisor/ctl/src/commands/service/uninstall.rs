//! Implements `agentctl service uninstall`: stops the service, and removes the installed files only.

use super::super::{Context, tell};
use super::install::{InstallPlan, take};
use super::report;
use super::step::Step;
use crate::args::service::UninstallArgs;
use crate::error::Error;
use crate::service::ServiceError;
use crate::service::host::Host;
use crate::service::launchd::Job;
use crate::service::manager::Service;
use crate::service::record::{Record, digest_of};
use crate::service::survey::{self, Running};

pub(super) async fn uninstall(context: &Context, host: &Host, args: UninstallArgs) -> Result<u8, Error> {
    let service = Service::find(host, &args.which).await?;
    if matches!(service, Service::System { .. }) && host.uid != 0 {
        return Err(ServiceError::NotRoot.into());
    }
    let record = Record::read(&service.record(host))?;
    let record = record.ok_or_else(|| ServiceError::NotInstalled { record: service.record(host) })?;
    let mut running = survey::all_running(host, &service, &context.client).await?;
    if let Service::System { user: Some(only) } = &service {
        running.retain(|running| running.user.as_ref() == Some(only));
    }
    let mut plan = InstallPlan::default();
    stop(host, &service, &mut plan).await?;
    // Only the instance of one user is removed; the template stays for the others.
    let is_one_of_many = matches!(service, Service::System { user: Some(_) });
    let kept = if is_one_of_many { Vec::new() } else { remove(host, &service, &record, args.force, &mut plan)? };
    let active = |running: &Running| running.sessions.iter().filter(|view| !view.status.phase.is_over()).count();
    let active: usize = running.iter().map(active).sum();
    let drained = (args.drain && active > 0).then(|| format!("stop {active} sessions"));
    let told: Vec<String> = drained.iter().cloned().chain(plan.steps.iter().map(Step::describe)).collect();
    if context.json {
        context.print_value(&serde_json::json!({ "dry_run": args.dry_run, "steps": told, "kept": kept }))?;
    }
    if args.dry_run {
        if !context.json {
            super::foretell(&told)?;
        }
        return Ok(0);
    }
    if let Some(drained) = drained {
        report(context.json, &drained)?;
        drain(&running).await?;
    }
    take(host, &plan, context.json).await?;
    let own = service.record(host);
    if let Some(directory) = own.parent().filter(|_| !is_one_of_many) {
        let _ = std::fs::remove_dir(directory); // fails if other files remain in the directory
    }
    for path in kept {
        tell(&format!("kept, because it was changed since the install: {} (--force removes it)", path.display()))?;
    }
    if active > 0 && !args.drain {
        tell(&format!(
            "{active} sessions continue; the next agentd takes them over (agentctl starts the agentd in its own \
                 directory)"
        ))?;
    }
    tell("state and configuration stay: ~/.local/state/agentd, ~/.config/agentd, /etc/agentd; lingering is unchanged")?;
    Ok(0)
}

/// Plans to stop and disable the service and its socket.
async fn stop(host: &Host, service: &Service, plan: &mut InstallPlan) -> Result<(), ServiceError> {
    let users = match service {
        Service::System { user: None } => survey::instances(host, service).await?,
        Service::System { user: Some(user) } => vec![user.clone()],
        Service::User => vec![String::new()],
        Service::Launchd => {
            if survey::job_state(host).await?.is_known() {
                plan.steps.push(Step::Job { job: Job::unload(host), back: None });
            }
            return Ok(());
        }
    };
    for user in users {
        let of = if user.is_empty() { service.clone() } else { Service::System { user: Some(user) } };
        let (Some(socket), Some(unit)) = (of.socket_unit(), of.service_unit()) else { continue };
        let (listening, serving) =
            (survey::unit_state(host, &of, &socket).await?, survey::unit_state(host, &of, &unit).await?);
        if !listening.is_known() {
            continue;
        }
        let names = [socket.as_str(), unit.as_str()];
        // The socket stops first: a request in between would start the service again.
        for (name, state) in names.into_iter().zip([&listening, &serving]) {
            if state.is_known() && state.active != "inactive" {
                let back = state.is_active().then(|| of.systemctl(&["start", name]));
                plan.steps.push(Step::Run { command: of.systemctl(&["stop", name]), back });
            }
        }
        for (name, _) in names.into_iter().zip([&listening, &serving]).filter(|(_, state)| state.enabled) {
            let back = Some(of.systemctl(&["enable", name]));
            plan.steps.push(Step::Run { command: of.systemctl(&["disable", name]), back });
        }
    }
    Ok(())
}

/// Plans to remove the installed files. Returns the changed files, which stay.
fn remove(
    host: &Host,
    service: &Service,
    record: &Record,
    force: bool,
    plan: &mut InstallPlan,
) -> Result<Vec<std::path::PathBuf>, ServiceError> {
    let (mut kept, mut removed) = (Vec::new(), Vec::new());
    for path in record.files.keys() {
        match digest_of(path)? {
            None => {}
            Some(found) if force || record.has(path, &found) => removed.push(Step::Remove(path.clone())),
            Some(_) => kept.push(path.clone()),
        }
    }
    plan.steps.extend(Step::pages("remove", removed));
    plan.steps.push(Step::Remove(service.record(host)));
    if *service != Service::Launchd {
        let reload = service.systemctl(&["daemon-reload"]);
        plan.mend.push((0, Step::Run { command: reload.clone(), back: None }));
        plan.steps.push(Step::Run { command: reload, back: None });
    }
    Ok(kept)
}

/// Stops all sessions concurrently. No session is active when it returns.
async fn drain(running: &[Running]) -> Result<(), Error> {
    let mut stops = tokio::task::JoinSet::new();
    for daemon in running {
        for view in daemon.sessions.iter().filter(|view| !view.status.phase.is_over()) {
            let (client, id) = (daemon.client.clone(), view.id.clone());
            stops.spawn(async move { (id.to_string(), client.stop(id.as_str(), Some(super::super::STOP_WAIT)).await) });
        }
    }
    while let Some(stopped) = stops.join_next().await {
        let (session, stopped) = stopped.map_err(|error| Error::Setup(std::io::Error::other(error)))?;
        if !stopped?.value.status.phase.is_over() {
            return Err(ServiceError::Drain { session }.into());
        }
    }
    Ok(())
}
