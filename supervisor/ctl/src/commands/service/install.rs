//! Implements `agentctl service install`: plans all steps, then prints and takes them one by one. If a step
//! fails, the earlier steps are undone.
//!
//! An upgrade takes the same path. First the new build is asked whether it can take over the old build's files
//! and keepers. Then the programs are replaced under the running daemon, which keeps its own files. At last the
//! daemon is restarted and takes over its sessions.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::super::{Context, print, tell};
use super::report;
use super::step::{Step, Steps};
use crate::args::service::InstallArgs;
use crate::compatibility;
use crate::error::Error;
use crate::service::ServiceError;
use crate::service::host::{Host, line};
use crate::service::launchd::Job;
use crate::service::manager::Service;
use crate::service::material;
use crate::service::record::{Record, Standing, digest_of};
use crate::service::survey::lingers;
use crate::service::survey::{self, InstalledText, Running, Survey, UnitState};

/// Planned steps.
#[derive(Debug, Default)]
pub(super) struct InstallPlan {
    pub(super) steps: Vec<Step>,
    /// Steps that make the manager read the restored files again. Each runs if its step or a later step fails.
    pub(super) mend: Vec<(usize, Step)>,
}

impl InstallPlan {
    fn run(&mut self, command: Vec<String>, back: Option<Vec<String>>) {
        self.steps.push(Step::Run { command, back });
    }

    /// Runs this command if a step from here on fails.
    pub(super) fn mend_by(&mut self, command: Vec<String>) {
        self.mend.push((self.steps.len(), Step::Run { command, back: None }));
    }
}

/// Decision about lingering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linger {
    /// Lingering is enabled already, or this manager has no lingering.
    Settled,
    Wanted,
    Refused,
    /// Undecided: there was no terminal to ask at.
    Open,
}

pub(super) async fn install(context: &Context, host: &Host, from: &Path, args: InstallArgs) -> Result<u8, Error> {
    let service = Service::find(host, &args.which).await?;
    let plan = plan(host, &service, context, from, &args).await?;
    let linger = linger(host, &service, &args).await?;
    let mut told: Vec<String> = plan.steps.iter().map(Step::describe).collect();
    let enable = user_of(host, &service).map(|user| vec!["loginctl".to_owned(), "enable-linger".to_owned(), user]);
    let enable = enable.filter(|_| linger == Linger::Wanted);
    told.extend(enable.as_ref().map(|command| line(command)));
    if context.json {
        context.print_value(&serde_json::json!({ "dry_run": args.dry_run, "steps": told }))?;
    }
    if args.dry_run {
        if !context.json {
            super::foretell(&told)?;
        }
        return Ok(0);
    }
    if told.is_empty() && !context.json {
        print("everything is up to date\n")?;
    }
    take(host, &plan, context.json).await?;
    if let Some(command) = enable {
        let _ = report(context.json, &line(&command));
        let ran = host.run(&command).await?;
        if !ran.success {
            let user = user_of(host, &service).unwrap_or_default();
            return Err(ServiceError::NoLinger { said: ran.complaint, user }.into());
        }
    }
    if linger == Linger::Open {
        let user = user_of(host, &service).unwrap_or_default();
        tell(&format!(
            "sessions of {user} end with the last logout of {user}: install again with --linger, or run \
                 `loginctl enable-linger {user}`"
        ))?;
    }
    if service == (Service::System { user: None }) {
        tell("template installed; enable it for a user: agentctl service install --system --user NAME")?;
    }
    Ok(0)
}

/// Takes the planned steps, or undoes every step taken.
pub(super) async fn take(host: &Host, plan: &InstallPlan, quiet: bool) -> Result<(), Error> {
    let mut steps = Steps::new(host);
    // Ctrl-C interrupts no step in its middle; the steps taken so far are undone.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(Error::Setup)?;
    }
    for (at, step) in plan.steps.iter().enumerate() {
        // A closed output is no reason to stop in the middle.
        let _ = report(quiet, &step.describe());
        let taken =
            if interrupted.load(Ordering::Relaxed) { Err(ServiceError::Interrupted) } else { steps.take(step).await };
        let Err(error) = taken else { continue };
        let mut left = steps.undo().await;
        for (_, step) in plan.mend.iter().filter(|(from, _)| *from <= at) {
            left.extend(Steps::new(host).take(step).await.err().map(|error| error.to_string()));
        }
        return Err(ServiceError::Undone { step: step.describe(), source: Box::new(error), left }.into());
    }
    steps.keep();
    Ok(())
}

async fn plan(
    host: &Host,
    service: &Service,
    context: &Context,
    from: &Path,
    args: &InstallArgs,
) -> Result<InstallPlan, Error> {
    if matches!(service, Service::System { .. }) && host.uid != 0 {
        return Err(ServiceError::NotRoot.into());
    }
    if let Service::System { user: Some(user) } = service {
        may_have_an_instance(host, service, user).await?;
    }
    let mut survey = Survey::look(host, service, from, args.bin_dir.as_deref()).await?;
    if survey.units.is_empty() {
        return Err(ServiceError::NoTemplate.into());
    }
    let is_new = |standing: Standing| standing != Standing::Current;
    refuse_foreign(host, &mut survey, args.force).await?;
    let running = survey::all_running(host, service, &context.client).await?;
    let instance = running.iter().filter_map(|running| running.unit.as_ref()).find(|unit| unit.starts_with("agentd@"));
    if let (Service::User, Some(unit)) = (service, instance) {
        return Err(ServiceError::Administrators { unit: unit.clone() }.into());
    }
    let programs_change = survey.programs.iter().any(|program| is_new(program.standing));
    let new = compatibility::ask(&from.join(material::PROGRAMS[0])).await?;
    if programs_change {
        takes_over(&survey, &running, &new).await?;
    }

    let mut plan = InstallPlan::default();
    for program in survey.programs.iter().filter(|program| is_new(program.standing)) {
        plan.steps.push(Step::Copy { from: program.from.clone(), to: program.to.clone() });
    }
    let changed: Vec<_> = survey.units.iter().filter(|unit| is_new(unit.standing)).collect();
    for InstalledText { file, .. } in &changed {
        plan.steps.push(Step::Write { path: file.path.clone(), text: file.text.clone() });
    }
    let documents = survey.documents.iter().filter(|it| is_new(it.standing));
    plan.steps.extend(Step::pages(
        "write",
        documents.map(|InstalledText { file, .. }| Step::Write { path: file.path.clone(), text: file.text.clone() }),
    ));
    let units_change = !changed.is_empty();
    let socket_changes =
        changed.iter().any(|it| it.file.path.extension().is_some_and(|extension| extension == "socket"));
    let stale = |running: &Running| {
        programs_change
            || units_change
            || running.version != new.version
            || running.program(host).is_some_and(|program| program.replaced)
    };
    let restart: Vec<&Running> = running.iter().filter(|running| running.unit.is_some() && stale(running)).collect();
    let stray = running.iter().find(|running| running.unit.is_none());
    if *service == Service::Launchd {
        for_launchd(host, &survey, &mut plan, units_change, &restart, stray).await?;
    } else {
        let change = Change { units: units_change, socket: socket_changes };
        for_systemd(host, service, &mut plan, change, &restart, stray).await?;
    }
    for running in restart {
        plan.steps.push(Step::Await {
            client: running.client.clone(),
            version: new.version.clone(),
            not: Some(running.pid),
            user: running.user.clone(),
        });
    }
    record(host, service, &survey, &new.version, &mut plan)?;
    Ok(plan)
}

/// Checks that the user exists and runs no agentd of their own: two daemons would not share the sessions.
async fn may_have_an_instance(host: &Host, service: &Service, user: &str) -> Result<(), Error> {
    let found = nix::unistd::User::from_name(user).map_err(|errno| Error::Setup(errno.into()))?;
    let found = found.ok_or_else(|| ServiceError::NoUser { user: user.to_owned() })?;
    let (socket, _) = survey::states(host, service).await?;
    let own = host.path(&format!("/run/user/{}/agentd/control.sock", found.uid));
    if own.exists() && !socket.is_some_and(|socket| socket.enabled) {
        return Err(ServiceError::OwnAgentd { user: user.to_owned(), socket: own }.into());
    }
    Ok(())
}

/// Kinds of units whose text changes.
#[derive(Debug, Clone, Copy)]
struct Change {
    units: bool,
    socket: bool,
}

async fn for_systemd(
    host: &Host,
    service: &Service,
    plan: &mut InstallPlan,
    change: Change,
    restart: &[&Running],
    stray: Option<&Running>,
) -> Result<(), Error> {
    let (socket, state) = survey::states(host, service).await?;
    let is_older = [&socket, &state].into_iter().flatten().any(|state| state.stale);
    if change.units || is_older {
        let reload = service.systemctl(&["daemon-reload"]);
        plan.mend_by(reload.clone());
        plan.run(reload, None);
    }
    plan.steps.extend(stray.map(|running| Step::Terminate { pid: running.pid }));
    let units = [service.socket_unit(), service.service_unit()];
    if let (Some(socket), [Some(socket_unit), Some(service_unit)]) = (&socket, &units) {
        for (unit, state) in [(socket_unit, Some(socket)), (service_unit, state.as_ref())] {
            if state.is_some_and(|state| state.active == "failed") {
                plan.run(service.systemctl(&["reset-failed", unit]), None);
            }
        }
        if !socket.enabled {
            let back = service.systemctl(&["disable", socket_unit]);
            plan.run(service.systemctl(&["enable", socket_unit]), Some(back));
        }
        if !socket.is_active() {
            // systemd refuses to listen for a running service.
            if state.as_ref().is_some_and(UnitState::is_up) {
                plan.run(service.systemctl(&["stop", service_unit]), None);
            }
            plan.run(service.systemctl(&["start", socket_unit]), Some(service.systemctl(&["stop", socket_unit])));
        } else if change.socket {
            let restart_both = service.systemctl(&["restart", socket_unit]);
            plan.mend_by(restart_both.clone());
            plan.run(service.systemctl(&["stop", service_unit]), None);
            plan.run(restart_both, None);
        }
    }
    for unit in restart.iter().filter_map(|running| running.unit.as_deref()) {
        // After a failure under the new programs, the old programs must run again.
        plan.mend_by(service.systemctl(&["restart", unit]));
        // The service was stopped with its socket above.
        let stopped = socket.as_ref().is_some_and(|socket| change.socket || !socket.is_active());
        let verb = if stopped { "start" } else { "try-restart" };
        plan.run(service.systemctl(&[verb, unit]), None);
    }
    Ok(())
}

async fn for_launchd(
    host: &Host,
    survey: &Survey,
    plan: &mut InstallPlan,
    units_change: bool,
    restart: &[&Running],
    stray: Option<&Running>,
) -> Result<(), Error> {
    let job = survey::job_state(host).await?;
    let plist = &survey.units[0].file;
    for key in ["SockPathName", "StandardErrorPath"] {
        let path = material::plist_value(&plist.text, key).map(PathBuf::from);
        let directory = path.as_deref().and_then(Path::parent).filter(|directory| !directory.is_dir());
        plan.steps.extend(directory.map(|directory| Step::Directory(directory.to_owned())));
    }
    plan.steps.extend(stray.map(|running| Step::Terminate { pid: running.pid }));
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
    let load = Job::load(host, &plist.path);
    match (job.is_known(), units_change) {
        (true, true) => {
            plan.mend.push((plan.steps.len(), Step::Job { job: load, back: None }));
            let renew = Job::renew(host, &plist.path);
            plan.steps.push(Step::Job { job: renew, back: Some(Job::unload(host)) });
        }
        (true, false) if !restart.is_empty() => {
            let again = words(&["launchctl", "kickstart", "-k", &Service::target(host)]);
            plan.mend_by(again.clone());
            plan.run(again, None);
        }
        (true, false) => {}
        (false, _) => plan.steps.push(Step::Job { job: load, back: Some(Job::unload(host)) }),
    }
    Ok(())
}

/// Plans to write the record of installed files, if it changes.
fn record(host: &Host, service: &Service, survey: &Survey, version: &str, plan: &mut InstallPlan) -> Result<(), Error> {
    let mut files = BTreeMap::new();
    for program in &survey.programs {
        let digest = digest_of(&program.from)?;
        files.extend(digest.map(|digest| (program.to.clone(), digest)));
    }
    for InstalledText { file, .. } in survey.units.iter().chain(&survey.documents) {
        files.insert(file.path.clone(), material::digest(file.text.as_bytes()));
    }
    // Files that an earlier install put elsewhere remain in the record, so that uninstall removes them.
    let before = survey.record.as_ref().map(|record| record.files.clone()).unwrap_or_default();
    files.extend(
        before
            .into_iter()
            .filter(|(path, _)| path.exists())
            .filter(|(path, _)| !files.contains_key(path))
            .collect::<Vec<_>>(),
    );
    let record = Record::new(version, &survey.directory, files);
    if survey.record.as_ref() != Some(&record) {
        plan.steps.push(Step::Write { path: service.record(host), text: record.text()? });
    }
    Ok(())
}

/// Refuses to overwrite files that no install wrote. A program whose `--version` names agentd's program is an
/// older build.
async fn refuse_foreign(host: &Host, survey: &mut Survey, force: bool) -> Result<(), ServiceError> {
    let mut foreign = Vec::new();
    for program in survey.programs.iter_mut().filter(|program| program.standing == Standing::Foreign) {
        let name = program.to.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let said = host.said(&[program.to.as_os_str(), "--version".as_ref()]).await;
        if said.is_some_and(|said| said.starts_with(&format!("{name} "))) {
            program.standing = Standing::Ours;
        } else {
            foreign.push(program.to.clone());
        }
    }
    let texts = survey.units.iter().chain(&survey.documents).filter(|it| it.standing == Standing::Foreign);
    foreign.extend(texts.map(|it| it.file.path.clone()));
    if foreign.is_empty() || force { Ok(()) } else { Err(ServiceError::Foreign { paths: foreign }) }
}

/// Checks that the new build can take over the old build's files and the running keepers.
async fn takes_over(
    survey: &Survey,
    running: &[Running],
    new: &agentd_api::compatibility::Compatibility,
) -> Result<(), Error> {
    let mut reasons = Vec::new();
    for daemon in running {
        reasons.extend(compatibility::obstacles(&daemon.compatibility, new, &daemon.sessions));
    }
    // Without a running daemon, the installed build wrote the files. A program that cannot answer is not agentd.
    let installed =
        survey.programs.first().filter(|program| program.standing != Standing::Absent && running.is_empty());
    if let Some(installed) = installed
        && let Ok(old) = compatibility::ask(&installed.to).await
    {
        reasons.extend(compatibility::obstacles(&old, new, &[]));
    }
    if reasons.is_empty() { Ok(()) } else { Err(ServiceError::CannotTakeOver { reasons }.into()) }
}

/// Returns the user whose login the sessions depend on.
fn user_of(host: &Host, service: &Service) -> Option<String> {
    match service {
        Service::User => Some(host.user.clone()),
        Service::System { user } => user.clone(),
        Service::Launchd => None,
    }
}

async fn linger(host: &Host, service: &Service, args: &InstallArgs) -> Result<Linger, Error> {
    let Some(user) = user_of(host, service) else { return Ok(Linger::Settled) };
    if lingers(host, &user).await {
        return Ok(Linger::Settled);
    }
    if args.linger.linger {
        return Ok(Linger::Wanted);
    }
    if args.linger.no_linger {
        return Ok(Linger::Refused);
    }
    let is_asked = !args.dry_run && io::stdin().is_terminal() && io::stderr().is_terminal();
    if !is_asked {
        return Ok(Linger::Open);
    }
    let question = format!(
        "sessions of {user} end with the last logout of {user}; let them continue (loginctl enable-linger \
             {user})? [y/N] "
    );
    io::stderr().write_all(question.as_bytes()).map_err(Error::Output)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(Error::Input)?;
    let yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    Ok(if yes { Linger::Wanted } else { Linger::Refused })
}
